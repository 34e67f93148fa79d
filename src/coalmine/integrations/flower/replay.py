"""Replay of Flower strategies: one client more, the same randomness (docs/checks.md).

`replay_strategy` replays a strategy by itself. `StrategyChecks` does the same inside a training, for the audit.
"""

from __future__ import annotations

import copy
import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import Strategy
from torch.utils import _pytree as pytree

from coalmine.checks import Client, Replay, ReplayOptions, replay
from coalmine.checks.clients import Template
from coalmine.checks.findings import Moved
from coalmine.checks.release import Runner
from coalmine.errors import InputError, check_count, check_kind
from coalmine.integrations.flower.nodes import LocalGrid, through_mods
from coalmine.integrations.flower.rounds import AuditedRounds
from coalmine.results.verdict import Check

_EXAMPLES = "num-examples"
_ADD_NOISE = "_add_noise_to_aggregated_arrays"  # the method in which Flower's DP wrappers add their noise
_AFTER = " after the DP wrapper"  # in the names of arrays that follow it
_ROUNDING = 1e-6  # relative, of what follows the wrapper: such as in sums on a GPU, in any order
_CLIENTS = 5  # an odd number, so that one client decides a median

# What replay finds in any training, the most telling check first; one finding is enough.
_ALWAYS = (
    Check.PLACES, Check.INTEGERS, Check.ARRAY, Check.CLIPPING, Check.SENSITIVITY, Check.OTHERS, Check.MEMORY,
)  # fmt: skip

# Mods that clients of these wrappers clip with.
_CLIPPING_MODS = {
    "DifferentialPrivacyClientSideFixedClipping": (fixedclipping_mod,),
    "DifferentialPrivacyClientSideAdaptiveClipping": (adaptiveclipping_mod,),
}

# Replies come from a network, so that clients may send anything.
_HOSTILE = ReplayOptions(hostile=True)
_DEFAULTS = (
    "Strategies such as plain FedAvg weight clients by num-examples, divide by those that reply and let NaN through. "
    "Leave out what cannot happen: weighted_by=None, ReplayOptions(dropouts=False, hostile=False)."
)


def replay_strategy(
    strategy: Strategy,
    model: ArrayRecord,
    clients: int | Sequence[Client | Mapping[str, Any]] | None = None,
    *,
    mods: Sequence[Any] = (),
    clip_norm: float | None = None,
    noise_multiplier: float | None = None,
    weighted_by: str | None = _EXAMPLES,
    options: ReplayOptions = _HOSTILE,
) -> Replay:
    """Replay rounds of a Flower strategy with and without one client.

    The strategy configures each round and aggregates its replies as in a training; no network and no ClientApp are
    involved. Its state (momentum, clip norms, privacy spent) is copied for each run. What an adversary sees is the
    model after each round and, with adaptive clipping, the next clip norm if clients receive it. With one of Flower's
    DP wrappers, that model is the wrapper's output; what a strategy around it makes of it must depend on nothing else.

    Args:
        strategy: The strategy with its DP wrapper, which may be wrapped itself. It is not changed.
        model: The model before the round.
        clients: The other clients: updates as dicts of arrays by the model's keys, all with the same weight, or
            `Client` objects of such an update and a number of examples. Or their number: they then have random updates
            of twice the clip norm. By default ``num_sampled_clients − 1`` of these.
        mods: Mods of the ClientApp, such as ``fixedclipping_mod``, which all replies go through.
        clip_norm: The claimed clip norm; by default the wrapper's.
        noise_multiplier: The claimed noise multiplier; by default the wrapper's.
        weighted_by: Key of the number of examples among the metrics of a reply; None if all clients send the same.
        options: What is tried, and what counts as a bug. By default replies that no honest client sends do, since they
            come from a network. The divisor is the number of clients.

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
    wrapper = dp_wrapper(strategy)
    if clip_norm is None:
        clip_norm = getattr(wrapper, "clipping_norm", None)
    if noise_multiplier is None:
        noise_multiplier = claimed_noise(wrapper)
    if clip_norm is None or noise_multiplier is None:
        raise InputError("the strategy has no clip norm or no noise multiplier: set clip_norm and noise_multiplier")
    if clients is None:
        clients = max(1, int(getattr(wrapper, "num_sampled_clients", 10)) - 1)
    if isinstance(clients, int):
        clients = template(model).random(check_count("clients", clients), norm=2 * clip_norm, seed=options.seed)
    nodes = max(len(clients) + 1, *(int(getattr(s, "min_available_nodes", 0)) for s in layers(strategy)))
    release = StrategyRelease(strategy, model, nodes=nodes, mods=mods, weighted_by=weighted_by)
    options = replace(options, divisor=len(clients) + 1, size_released=release.sends_clip_norm)
    with untouched(strategy):
        result = replay(
            release, clients, clip_norm=float(clip_norm), noise_multiplier=noise_multiplier, options=options
        )
    return replace(result, about=_DEFAULTS)


class WrapperOutput:
    """Keeps what the DP wrapper in a strategy releases, before strategies around it process it.

    Copies of the strategy have one of their own, since copies of bound methods belong to copies of their objects.

    Args:
        strategy: The strategy, if any. If it has one of Flower's DP wrappers, this becomes part of it.

    Attributes:
        wrapper: The DP wrapper, or None.
        replaced_by: What the wrapper returns in place of what it releases, if anything.
    """

    def __init__(self, strategy: Strategy | None) -> None:
        self.wrapper = dp_wrapper(strategy)  # which is copied with this: strategies around it need not be
        self.replaced_by: ArrayRecord | None = None
        self._released: ArrayRecord | None = None
        if hasattr(self.wrapper, _ADD_NOISE):
            self._add_noise = getattr(self.wrapper, _ADD_NOISE)
            setattr(self.wrapper, _ADD_NOISE, self._add_noise_and_keep)

    def _add_noise_and_keep(self, aggregated: ArrayRecord) -> ArrayRecord:
        noisy = self._add_noise(aggregated)
        self._released = ArrayRecord(dict(noisy))  # a copy, since FedAvgM empties what it gets
        return self.replaced_by or noisy

    def taken(self) -> ArrayRecord | None:
        """Return what was released since the last call, None if there is no wrapper or it added no noise."""
        released, self._released = self._released, None
        return released


class StrategyRelease:
    """Rounds of a strategy as a function from clients to the model that is released.

    Args:
        strategy: The strategy, which is copied.
        model: The model before the first round.
        nodes: Number of nodes; those without a client never reply.
        mods: Mods that replies go through.
        weighted_by: Key of the number of examples; None if all send the same.
        metrics: Other metrics of all replies.
        asked: The message that all clients reply to in the middle of the first round. The strategy configures no
            rounds then: all of them have the same model, so that only the strategy remembers clients.

    Attributes:
        sends_clip_norm: Whether clients receive a clip norm that adapts, so that it is part of the release.
    """

    def __init__(
        self, strategy: Strategy, model: ArrayRecord, *, nodes: int, mods: Sequence[Any] = (),
        weighted_by: str | None = _EXAMPLES, metrics: Mapping[str, float] | None = None, asked: Message | None = None,
    ) -> None:  # fmt: skip
        self._strategy, self._model, self._asked, self._number = copied_strategy(strategy), model, asked, 0
        self._first = []
        for layer in layers(strategy):
            self._first.append({name: kept for name, kept in vars(layer).items() if name == "current_arrays"})
        self._output = WrapperOutput(self._strategy)
        wrapper = self._output.wrapper
        self.sends_clip_norm = bool(clipping_mods(wrapper)) and hasattr(wrapper, "clipped_count_stddev")
        # Strategies around the wrapper get the same from it in every run, so that no client may show in what they do.
        moved = {key: np.asarray(array.numpy() + 0.01, dtype=array.dtype) for key, array in model.items()}
        self._output.replaced_by = ArrayRecord({key: Array(part) for key, part in moved.items()})
        self._mods, self._weighted_by = list(mods), weighted_by
        self._grid = LocalGrid(ClientApp(), nodes=nodes)  # strategies only ask it for the nodes
        self._metrics = dict(metrics or {})

    def __call__(self, clients: Sequence[Client | Mapping[str, Any]]) -> dict[str, Any] | None:
        """Run the next round; None if the strategy releases nothing."""
        self._number += 1
        strategy, wrapper = self._strategy, self._output.wrapper
        with _quiet():
            asked = [self._asked] * len(clients)
            if self._asked is None:
                asked = list(strategy.configure_train(self._number, self._model, ConfigRecord(), self._grid))
            else:
                # Optimizers take their own last model for that of the clients, which is the same in all rounds here.
                for layer, first in zip(layers(strategy), self._first, strict=True):
                    vars(layer).update(first)
            # The client in question is mostly the last one: it must be among those that a strategy asks.
            sent = [each if isinstance(each, Client) else Client(each) for each in clients[-len(asked) :]]
            replies = [self._reply(message, client) for message, client in zip(asked, sent, strict=False)]
            before = getattr(wrapper, "clipping_norm", None)
            arrays, _ = strategy.aggregate_train(self._number, replies)
        private = self._output.taken()
        if not arrays:
            return None
        released: dict[str, Any] = {key: np.array(array.numpy()) for key, array in sorted((private or arrays).items())}
        if private and arrays is not self._output.replaced_by:
            released |= {f"{key}{_AFTER}": array.numpy() for key, array in sorted(arrays.items())}
        self._model = arrays
        if self.sends_clip_norm and self._asked is None and wrapper.clipping_norm != before:
            # Adaptive clipping: its noise is Gaussian in the logarithm.
            released["log clipping_norm"] = math.log(wrapper.clipping_norm) if wrapper.clipping_norm else -math.inf
        return released

    def moved_after_wrapper(self, clients: list[Client]) -> list[Moved]:
        """Return what other clients change where the DP wrapper releases the same: a model that bypasses its noise."""
        runner = Runner(self, seed=0)
        with runner.isolated.leaves_no_trace():
            one, other = (runner.run([group]) for group in (clients, clients[:1] * len(clients)))
        names = [name for name in one.sizes if _AFTER in name]
        if not names or one.sizes != other.sizes:  # nothing follows the wrapper, or it fails
            return []
        after = slice(-sum(one.sizes[name] for name in names), None)
        differs = ~np.isclose(one.vector[after], other.vector[after], rtol=_ROUNDING, atol=0, equal_nan=True)
        when, moved = "other clients took part and the wrapper released the same", int(differs.sum())
        row = Moved(
            check=Check.PLACES, client=when, example="", arrays=names, bare=moved, excess=math.inf, lower=math.inf
        )
        return [row] if moved else []

    def _reply(self, message: Any, client: Client) -> Message:
        """Return what a client sends, after its mods."""
        name, before = next(iter(message.content.array_records.items()))
        arrays = {}
        for key, part in client.update.items():
            # Clients send models. Arrays that the model lacks are sent as they are.
            moved = before[key].numpy() + part if key in before else part
            arrays[key] = Array(np.asarray(moved).astype(np.asarray(part).dtype))
        examples = {self._weighted_by: client.examples} if self._weighted_by else {_EXAMPLES: 1}
        metrics = MetricRecord({**self._metrics, **examples})
        content = RecordDict({name: ArrayRecord(arrays), "metrics": metrics})
        context = Context(1, message.metadata.dst_node_id, {}, RecordDict(), {})
        return through_mods(self._mods, content, message, context)


class StrategyChecks:
    """Replays the strategy of a training once, and compares the replies of all rounds with what it does.

    A copy of the strategy for five clients, without its noise, must not move the model by more than the clip norm /
    clients, which is what the noise is made for. No statistics are involved.

    Args:
        audited: The audits that findings go to.
        mods: Mods of the ClientApp, which clip if the strategy does not.
        metrics: Metrics of replies.
    """

    def __init__(self, audited: AuditedRounds, *, mods: Sequence[Any], metrics: Mapping[str, float]) -> None:
        self._audited, self._mods, self._metrics = audited, mods, metrics
        self._keys: list[str] = []
        self._replayed: Replay | None = None
        self._reported: list[Sequence[str]] = []

    def replay(self, strategy: Strategy | None, asked: Message, model: ArrayRecord, clip_norm: float) -> None:
        """Find out, in the first round, how far one client can move the model.

        Args:
            strategy: The strategy, if known.
            asked: A message to a client.
            model: The model that it carries.
            clip_norm: The clip norm.
        """
        wrapper, self._keys = dp_wrapper(strategy), list(model)
        if not claimed_noise(wrapper) or not math.isfinite(clip_norm):
            return
        # With client-side clipping in mods that are not known here, clients are assumed to clip as Flower's do.
        name, inner = type(wrapper).__name__, type(getattr(wrapper, "strategy", wrapper)).__name__
        mods = self._mods or clipping_mods(wrapper)
        trusted = bool(mods) and not self._mods
        options = ReplayOptions(hostile=not trusted, dropouts=False, rounds=2, quick=True, divisor=_CLIENTS)
        clients = template(model).random(_CLIENTS - 1, norm=2 * clip_norm, seed=0)

        def silent(strategy: Any) -> StrategyRelease:
            twin = copied_strategy(strategy, num_sampled_clients=_CLIENTS, noise_multiplier=0.0, accountant=None)
            return StrategyRelease(twin, model, nodes=_CLIENTS, mods=mods, metrics=self._metrics, asked=asked)

        part = f"the sensitivity of {name}"
        try:
            inside = silent(wrapper)
            with untouched(strategy):
                result = replay(inside, clients, clip_norm=clip_norm, noise_multiplier=None, options=options)
            result = replace(result, about=f"{name} around {inner}")
            self._report(replace(result, complete=False), [_ALWAYS])
            part = f"whether clients show in what strategies around {name} make of its release"
            # Strategies around the wrapper run only twice: they may evaluate the model, say, or save it.
            outside = silent(strategy)
            with untouched(strategy):
                self._report(replace(result, moved=[*outside.moved_after_wrapper(clients), *result.moved]), [])
        except InputError as error:  # the strategy needs metrics, say, that only the clients know
            for audit in self._audited.audits:
                audit.note(f"Not tested: {part} ({error})")

    def look_at(self, contents: Sequence[RecordDict]) -> None:
        """Look for replies that the strategy does not treat as the claim assumes, each kind once."""
        sizes = {record.get(_EXAMPLES, 1) for content in contents for record in content.metric_records.values()}
        orders = [list(record) for content in contents for record in content.array_records.values()]
        seen = {
            Check.EXAMPLES: len(sizes) > 1,
            Check.ORDER: orders.count(self._keys) < len(orders),
            Check.NOT_FINITE: self._audited.lost_numbers > 0,
        }
        new = [[check] for check, occurs in seen.items() if occurs and [check] not in self._reported]
        if new and self._replayed is not None:
            self._report(self._replayed, new)

    def _report(self, replayed: Replay, new: Sequence[Sequence[str]]) -> None:
        self._replayed, self._reported = replayed, [*self._reported, *new]
        replay = replace(replayed, reported=[list(map(str, group)) for group in self._reported])
        for audit in self._audited.audits:
            audit.add_replay(Check.SENSITIVITY, replay)


def running_start() -> Mapping[str, Any]:
    """Return the variables of the strategy's ``start`` that is running, such as ``self`` and ``num_rounds``.

    Flower does not tell a grid which strategy uses it. It is on the call stack, where `Strategy.start` calls the grid.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and not isinstance(frame.f_locals.get("self"), Strategy):
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def dp_wrapper(strategy: Strategy | None) -> Any:
    """Return the layer of a strategy that is one of Flower's DP wrappers, or else like one; None if there is none."""
    every = layers(strategy)
    # All of Flower's wrappers add noise in this method, and scale it by this number of clients.
    marked = [layer for mark in (_ADD_NOISE, "num_sampled_clients") for layer in every if hasattr(layer, mark)]
    return marked[0] if marked else None


def clipping_mods(wrapper: Any) -> Sequence[Any]:
    """Return the mods that clients clip with, at the clip norm that the DP wrapper sends them; none if they do not."""
    names = [kind.__name__ for kind in type(wrapper).__mro__]
    return next((mods for name, mods in _CLIPPING_MODS.items() if name in names), ())


def claimed_noise(wrapper: Any) -> float | None:
    """Return the noise multiplier that a DP wrapper was created with, if any.

    Wrappers with adaptive clipping raise it for the noise on the count of clipped updates, z⁻² = z_updates⁻² + (2 σ)⁻²
    (Andrew et al., 2021, Theorem 1), which is undone here.
    """
    noise: float | None = getattr(wrapper, "noise_multiplier", None)
    count = getattr(wrapper, "clipped_count_stddev", None)
    if noise and count:
        noise = float((noise**-2 + (2 * count) ** -2) ** -0.5)
    return noise


def template(model: ArrayRecord) -> Template:
    """Return what clients of a model look like."""
    return Template(Client({key: np.zeros(array.shape, array.dtype) for key, array in model.items()}))


def layers(strategy: Strategy | None) -> list[Strategy]:
    """Return a strategy and all that it holds, the outermost first, whatever the names of the attributes."""
    layers = [] if strategy is None else [strategy]
    for layer in layers:  # which grows meanwhile
        values = pytree.tree_leaves(vars(layer))
        layers += [value for value in values if isinstance(value, Strategy) and value not in layers]
    return layers


def copied_strategy(strategy: Strategy, **changes: Any) -> Strategy:
    """Return a copy of a strategy, with the attributes of all its layers set that have these names."""
    # An accountant refers to Python modules, which deepcopy cannot copy: they are passed as already copied.
    try:
        twin = copy.deepcopy(strategy, {id(module): module for module in sys.modules.values()})
    except Exception as error:  # whatever the user's objects raise
        raise InputError(f"{type(strategy).__name__} cannot be copied ({type(error).__name__}: {error})") from error
    for layer in layers(twin):
        for name in changes.keys() & vars(layer).keys():
            setattr(layer, name, changes[name])
    return twin


@contextmanager
def untouched(strategy: Strategy | None) -> Iterator[None]:
    """Let nobody use a strategy for a while, so that a replay of its copy does not change the training.

    A function that was put in place of a method is no part of a copy: it still refers to the strategy itself.
    """

    def refuse(layer: Any, name: str) -> Any:
        raise InputError(
            "its copy uses the strategy of the training itself, such as by a function that was put in place of a "
            "method: write a subclass or a wrapper instead"
        )

    guarded = [(layer, type(layer)) for layer in layers(strategy)]
    try:
        for layer, kind in guarded:
            object.__setattr__(layer, "__class__", type(kind.__name__, (kind,), {"__getattribute__": refuse}))
        yield
    finally:
        for layer, kind in guarded:
            object.__setattr__(layer, "__class__", kind)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Flower's log for a while."""
    logger = logging.getLogger("flwr")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
