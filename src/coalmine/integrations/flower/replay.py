"""Replay of Flower strategies: one client more, the same randomness (docs/replay.md)."""

from __future__ import annotations

import copy
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from coalmine.errors import InputError, check_count, check_kind
from coalmine.integrations.flower.local import _identify
from coalmine.replaying import Client, Replay, replay
from coalmine.replaying.clients import Template


def replay_strategy(
    strategy: Strategy,
    model: ArrayRecord,
    clients: int | Sequence[Client | Mapping[str, Any]] | None = None,
    *,
    mods: Sequence[Any] = (),
    clip_norm: float | None = None,
    noise_multiplier: float | None = None,
    weighted_by: str = "num-examples",
    hostile: bool = True,
    dropouts: bool = True,
    rounds: int = 3,
    draws: int | None = None,
    quick: bool = False,
    seed: int = 0,
) -> Replay:
    """Replay rounds of a Flower strategy with and without one client.

    The strategy configures each round and aggregates its replies as in a training; no network and no ClientApp are
    involved. Its state (momentum, clip norms, privacy spent) is copied for each run. What an adversary sees is the
    model after each round and, with adaptive clipping, the next clip norm if clients receive it.

    Args:
        strategy: The strategy with its DP wrapper. It is not changed.
        model: The model before the round.
        clients: The other clients: updates as dicts of arrays by the model's keys, all with the same weight, or
            `Client` objects of such an update and a number of examples. Or their number: they then have random updates
            of twice the clip norm. By default ``num_sampled_clients − 1`` of these.
        mods: Mods of the ClientApp, such as ``fixedclipping_mod``, which all replies go through.
        clip_norm: The claimed clip norm; by default the wrapper's.
        noise_multiplier: The claimed noise multiplier; by default the wrapper's.
        weighted_by: Key of the number of examples among the metrics of a reply.
        hostile: Whether findings about replies that no honest client sends refute the claim. Replies come from a
            network, so they do by default.
        dropouts: Whether rounds in which clients do not reply happen, too.
        rounds: Number of rounds in which a client of the first one may still be seen.
        draws: Number of runs that measure the noise (see `coalmine.replay`).
        quick: Whether to try only the clients and rounds that find most.
        seed: Seed of all randomness.

    Returns:
        The findings, and how far each client moved the model.

    Raises:
        InputError: If the strategy has no clip norm or noise multiplier and none is given, or if it fails on an
            ordinary round.

    Example:
        >>> from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedMedian
        >>> model = ArrayRecord({"weight": Array(np.zeros((30, 20), dtype=np.float32))})
        >>> inner = FedMedian(fraction_evaluate=0.0)
        >>> result = replay_strategy(DifferentialPrivacyServerSideFixedClipping(inner, 2.0, 0.5, 13), model)
        >>> result.ok, "other clients" in [finding.check for finding in result.findings]
        (False, True)
    """
    check_kind("strategy", strategy, Strategy, "a flwr.serverapp.strategy.Strategy")
    check_kind("model", model, ArrayRecord, "a flwr.app.ArrayRecord")
    clip = _setting(strategy, "clipping_norm", clip_norm, "clip_norm")
    noise = claimed_noise(strategy) if noise_multiplier is None else noise_multiplier
    if noise is None:
        raise InputError("the strategy has no noise multiplier: set noise_multiplier")
    if clients is None:
        clients = max(1, int(getattr(strategy, "num_sampled_clients", 10)) - 1)
    if isinstance(clients, int | float):
        clients = template(model).random(check_count("clients", clients), norm=2 * clip, seed=seed)
    nodes = max(len(clients) + 1, *(int(getattr(s, "min_available_nodes", 0)) for s in layers(strategy)))
    release = StrategyRelease(strategy, model, nodes=nodes, mods=mods, weighted_by=weighted_by)
    return replay(
        release, clients, clip_norm=clip, noise_multiplier=noise, hostile=hostile, dropouts=dropouts, rounds=rounds,
        divisor=len(clients) + 1, draws=draws, quick=quick, size_released=release.sends_clip_norm, seed=seed,
    )  # fmt: skip


class StrategyRelease:
    """Rounds of a strategy as a function from clients to the model that is released.

    Args:
        strategy: The strategy.
        model: The model before the first round.
        nodes: Number of nodes; those without a client never reply.
        mods: Mods that replies go through.
        weighted_by: Key of the number of examples.
        metrics: Other metrics of all replies.
        asked: The message that all clients reply to in the middle of a round, Flower's round ``number``. The strategy
            configures no rounds then: all of them have the same model, so that only the strategy remembers clients.
        number: Number of the round before the first.
    """

    def __init__(
        self,
        strategy: Strategy,
        model: ArrayRecord,
        *,
        nodes: int,
        mods: Sequence[Any] = (),
        weighted_by: str = "num-examples",
        metrics: Mapping[str, float] | None = None,
        asked: Message | None = None,
        number: int = 0,
    ) -> None:
        _identify()
        self._strategy, self._model, self._number, self._asked = strategy, model, number, asked
        self._grid, self._mods, self._weighted_by = _Nodes(nodes), list(mods), weighted_by
        self._metrics, self._encoded = dict(metrics or {}), _Encoded()

    @property
    def sends_clip_norm(self) -> bool:
        """Whether clients receive a clip norm that adapts, so that it is part of the release."""
        twin = copied_strategy(self._strategy)
        adapts = getattr(twin, "clipped_count_stddev", None) is not None
        with _quiet():
            asked = list(twin.configure_train(1, self._model, ConfigRecord(), self._grid)) if adapts else []
        return _sent(asked, getattr(twin, "clipping_norm", None))

    def __call__(self, clients: Sequence[Client | Mapping[str, Any]]) -> dict[str, Any] | None:
        """Run the next round; None if the strategy releases nothing."""
        self._number += 1
        with _quiet():
            asked = [self._asked] * len(clients) if self._asked else self._configured()
            # The client in question is the last one. It is asked first, for strategies that ask only some of the nodes.
            ordered = [*clients[-1:], *clients[:-1]]
            replies = [self._reply(message, client) for message, client in zip(asked, ordered, strict=False)]
            before = getattr(self._strategy, "clipping_norm", None)
            arrays, _ = self._strategy.aggregate_train(self._number, replies)
            if not arrays:
                return None
            released: dict[str, Any] = {key: np.array(array.numpy()) for key, array in sorted(arrays.items())}
        self._model = arrays
        after = getattr(self._strategy, "clipping_norm", None)
        if after != before and self._asked is None and _sent(asked, before):
            # Adaptive clipping: its noise is Gaussian in the logarithm.
            released["log clipping_norm"] = math.log(float(after or 0.0)) if after else -math.inf
        return released

    def _configured(self) -> list[Message]:
        return list(self._strategy.configure_train(self._number, self._model, ConfigRecord(), self._grid))

    def _reply(self, message: Message, client: Client | Mapping[str, Any]) -> Message:
        """Return what a client sends, after its mods."""
        name, before = next(iter(message.content.array_records.items()))
        update, examples = (client.update, client.examples) if isinstance(client, Client) else (client, 1)

        def train(asked: Message, _: Context | None) -> Message:
            arrays = {key: self._encoded.moved(before.get(key), part) for key, part in update.items()}
            metrics = MetricRecord({**self._metrics, self._weighted_by: examples})
            return Message(RecordDict({name: ArrayRecord(arrays), "metrics": metrics}), reply_to=asked)

        if not self._mods:
            return train(message, None)
        separate = Message(metadata=message.metadata, content=copy.deepcopy(message.content))  # mods write into it
        call: Callable[..., Message] = train
        for mod in reversed(self._mods):
            call = _around(mod, call)
        return call(separate, Context(1, message.metadata.dst_node_id, {}, RecordDict(), {}))


def template(model: ArrayRecord) -> Template:
    """Return what clients of a model look like."""
    return Template(Client({key: np.zeros(array.shape, array.dtype) for key, array in model.items()}))


def layers(strategy: Strategy | None) -> Iterator[Strategy]:
    """Yield a strategy, the one that it wraps, and so on."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


def copied_strategy(strategy: Strategy, **changes: Any) -> Strategy:
    """Return a copy of a strategy, with the attributes of all its layers set that have these names."""
    # An accountant refers to Python modules, which deepcopy cannot copy: they are passed as already copied.
    twin = copy.deepcopy(strategy, {id(module): module for module in sys.modules.values()})
    for layer in layers(twin):
        for name in changes.keys() & vars(layer).keys():
            setattr(layer, name, changes[name])
    return twin


def claimed_noise(strategy: Strategy) -> float | None:
    """Return the noise multiplier that a DP wrapper was created with.

    Wrappers with adaptive clipping raise it for the noise on the count of clipped updates, z⁻² = z_updates⁻² + (2 σ)⁻²
    (Andrew et al., 2021, Theorem 1), which is undone here.
    """
    noise = getattr(strategy, "noise_multiplier", None)
    count = getattr(strategy, "clipped_count_stddev", None)
    if noise is None or not noise or not count:
        return None if noise is None else float(noise)
    return float((noise**-2 + (2 * count) ** -2) ** -0.5)


class _Encoded:
    """Arrays as Flower sends them. The same clients reply in run after run, and encoding takes most of the time."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Array] = {}

    def __deepcopy__(self, _: Any) -> _Encoded:
        """Return the same memory: copies of a release share it."""
        return self

    def moved(self, before: Array | None, update: Any) -> Array:
        """Return an array of the model after a client's update, of the update's type."""
        update = np.asarray(update)
        key = None if before is None else before.data, update.tobytes(), update.shape, update.dtype.str
        if key not in self._known:
            if len(self._known) > 1000:
                self._known.clear()
            after = update if before is None else np.asarray(before.numpy() + update).astype(update.dtype)
            self._known[key] = Array(np.asarray(after))
        return self._known[key]  # records copy what they are made of


class _Nodes(Grid):
    """A grid of which strategies only ask for the nodes."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        """Return 1 to the number of nodes."""
        return list(range(1, self._nodes + 1))

    def set_run(self, run: Any) -> None:
        """Do nothing."""

    @property
    def run(self) -> Any:
        """No run."""
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Refuse: aggregating replies takes no messages to nodes."""
        raise NotImplementedError("a replayed strategy has no nodes to send messages to")

    push_messages = pull_messages = send_and_receive = create_message


def _sent(asked: Sequence[Message], value: Any) -> bool:
    """Whether clients receive a number with the model."""
    records = [record for message in asked[:1] for record in message.content.config_records.values()]
    return any(value in record.values() for record in records)


def _around(mod: Any, call: Callable[..., Message]) -> Callable[..., Message]:
    return lambda message, context: mod(message, context, call)


def _setting(strategy: Strategy, name: str, value: float | None, argument: str) -> float:
    value = getattr(strategy, name, None) if value is None else value
    if value is None:
        raise InputError(f"the strategy has no {name}: set {argument}")
    return float(value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Flower's log for a while."""
    logger = logging.getLogger("flwr")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
