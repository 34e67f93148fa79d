"""`CanaryGrid`: a Flower grid with canaries among its nodes; `FrozenRounds`: rounds that leave the model alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from coalmine.errors import InputError, check_kind, check_positive
from coalmine.integrations.flower.local import through_mods
from coalmine.integrations.flower.mod import canary_request
from coalmine.integrations.flower.replay import (
    StrategyChecks,
    calling_strategy,
    copied_strategy,
    noise_multiplier_of,
)
from coalmine.integrations.flower.rounds import AuditedRounds
from coalmine.methods.one_shot.canaries import FAMILIES, PlantedCanaries, warn_if_crowded
from coalmine.protocol import Audit, Contribution
from coalmine.vectors import flat, to_numpy

# What a held-out canary sends, in clip norms. Flower's clipping divides by the norm of an update, so it must not be 0.
# Inserted canaries are shorter by twice as much, so that the two differ by no more than the clip norm.
_STEP = 1e-6
_LARGEST_STEP = 0.01

_EXAMPLES = "num-examples"
_CLIP_NORM = "clipping_norm"  # the key that Flower's client-side clipping uses in messages


class CanaryGrid(Grid):
    """A grid with the canaries of audits as additional nodes, which live in this process.

    Any strategy that is given this grid samples the canaries' nodes, sends them messages and receives replies: the
    global model plus the canary's update, with the record names and mean metrics of the real replies. Held-out canaries
    are nodes too, and reply with the model they received (plus a step of 1e-6 clip norms), so that neither the number
    of nodes nor the divisor depends on which canaries are inserted. With ``design="fixed"`` and canaries in every
    round, that number is fixed anyway, and only inserted canaries are nodes. Canaries are never asked to evaluate.

    When a round is configured, the grid lists the canaries that are due by the audit's participation, and the strategy
    must sample all of them (``fraction_train=1.0``). With `Observed` all canaries are listed, and the strategy samples
    as it likes.

    Args:
        grid: The grid that the ServerApp received.
        audits: One audit or several, with the same number of rounds.
        clip_norm: Clip norm of client updates, or a function that returns the current one if it adapts. By default it
            is read from the messages, where Flower's client-side clipping puts it.
        length: Norm of canaries before clipping, in clip norms. More than 1 tests whether updates are clipped.
        mods: Mods of the ClientApp, which the canaries' replies go through as well.
        metrics: Metrics of canaries that replace the mean of the real ones, such as ``{"num-examples": 100}``.
        hosts: Ids of real nodes with `canary_mod`, which send the canaries instead of this process.

    Raises:
        InputError: If the audits do not go together, or hosts cannot make their canaries.

    Example:
        >>> from coalmine import OneShot
        >>> from coalmine.integrations.flower import LocalGrid
        >>> from flwr.clientapp import ClientApp
        >>> audit = OneShot(100, rounds=3, canaries=5, view="updates", participation="every-round")
        >>> grid = CanaryGrid(LocalGrid(ClientApp(), nodes=4), audit, clip_norm=0.5)
        >>> len(list(grid.get_node_ids()))  # 4 clients, and 10 canaries of which about 5 are inserted
        14
    """

    def __init__(
        self,
        grid: Grid,
        audits: Audit | Sequence[Audit],
        *,
        clip_norm: float | Callable[[], float] | None = None,
        length: float = 1.0,
        mods: Sequence[Any] = (),
        metrics: Mapping[str, float] | None = None,
        hosts: Sequence[int] = (),
    ) -> None:
        check_kind("grid", grid, Grid, "the flwr Grid that the ServerApp's main function received")
        self.inner, self.audited = grid, AuditedRounds([audits] if isinstance(audits, Audit) else list(audits))
        self._clip_norm, self._length = clip_norm, check_positive("length", length)
        self._mods, self._metrics, self._hosts = tuple(mods), dict(metrics or {}), tuple(hosts)
        crafted = [audit.family for audit in self.audited.audits if audit.family not in FAMILIES]
        if self._hosts and crafted:
            raise InputError(
                f"hosts can only send canaries that a seed regenerates ({', '.join(FAMILIES)}), got {crafted[0]}"
            )
        self._record_names = ("arrays", "metrics")
        self._mean_metrics: dict[str, Any] = {_EXAMPLES: 1}
        self._contexts: dict[int, Context] = {}
        self._balance_checked = False
        self._checks = StrategyChecks(self.audited, mods=self._mods, metrics=self._metrics)

    @property
    def rounds(self) -> int:
        """The number of rounds to start Flower with (``num_rounds``), frozen ones included."""
        return len(self.audited.plan)

    def recorder(
        self, evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None
    ) -> Callable[[int, ArrayRecord], MetricRecord | None]:
        """Return the ``evaluate_fn`` to start Flower with, which shows the audits the model after each round.

        Args:
            evaluate_fn: Your own function. It is called after each of the training's own rounds, counted from 1.
        """

        def record(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            training_round = 0
            if server_round == 0:  # Flower evaluates the first model before any training
                noise_multiplier = noise_multiplier_of(calling_strategy())
                self.audited.begin(arrays, noise_multiplier=noise_multiplier, stratify=not self._hosts)
            else:
                recorded = self.audited.record(arrays)
                if recorded.trial is not None:
                    return None
                training_round = recorded.round + 1
            return None if evaluate_fn is None else evaluate_fn(training_round, arrays)

        return record

    # The interface of a grid

    def set_run(self, run: Any) -> None:
        """Set the run of the inner grid."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the inner grid."""
        return self.inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message, as older code creates it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the real nodes and, while a round is configured, its canaries, whose ids are negative."""
        # Real ids are not negative, so an id below 0 holds both the audit and the seat of a canary.
        audits = len(self.audited.audits)
        return [*self.inner.get_node_ids(), *(-1 - (seat * audits + audit) for audit, seat in self.audited.due())]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages to real nodes; canaries only answer `send_and_receive`, which Flower's strategies use."""
        pushed = list(messages)
        if any(message.metadata.dst_node_id < 0 for message in pushed):
            raise InputError("canaries cannot be pushed messages: call send_and_receive, as Flower's strategies do")
        return self.inner.push_messages(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies of real nodes."""
        return self.inner.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Ask real nodes first, so that canaries can reply like them."""
        everything = list(messages)
        to_canaries = [message for message in everything if message.metadata.dst_node_id < 0]
        to_clients = [message for message in everything if message.metadata.dst_node_id >= 0]
        asked = [*to_canaries, *to_clients]
        if not any(message.metadata.message_type.startswith("train") for message in asked):
            return self.inner.send_and_receive(to_clients, timeout=timeout)
        if not self._balance_checked:
            # Held-out canaries count in the average as well. The advice is not a larger server learning rate, since
            # Flower's DP wrappers scale their noise to the plain average.
            advice = (
                f'use at most {len(to_clients)} canaries and design="fixed", with which held-out canaries need no nodes'
            )
            warn_if_crowded(len(to_canaries), len(to_clients), advice=advice)
            self._balance_checked = True
        available = len(list(self.inner.get_node_ids()))
        self.audited.sampled([message.metadata.dst_node_id for message in asked], available)
        clip_norm = self._current_clip_norm(asked)
        self._checks.replay(asked[0], _arrays(asked[0]), clip_norm)
        replies = list(self.inner.send_and_receive(to_clients, timeout=timeout)) if to_clients else []
        self._checks.look_at(replies)
        self._imitate(replies)
        replies += self._canary_replies(to_canaries, clip_norm, timeout)
        # Strategies average over the nodes that sent an update, so that is the divisor.
        failed = [reply for reply in replies if not reply.has_content()]
        reason = str(failed[0].error.reason) if failed else ""
        self.audited.answered(len(replies) - len(failed), len(asked) - len(replies), len(failed), reason)
        return replies

    def _current_clip_norm(self, messages: Sequence[Message]) -> float:
        if callable(self._clip_norm):
            return float(self._clip_norm())
        if self._clip_norm is not None:
            return self._clip_norm
        configs = (config for message in messages for config in message.content.config_records.values())
        return next((float(config[_CLIP_NORM]) for config in configs if _CLIP_NORM in config), math.inf)

    # Canaries

    def _imitate(self, real: Sequence[Message]) -> None:
        """Take record names and mean metrics from the real replies, so that averages of metrics do not change."""
        contents = [reply.content for reply in real if reply.has_content()]
        contents = [content for content in contents if content.array_records and content.metric_records]
        if not contents:
            return
        first = contents[0]
        self._record_names = (next(iter(first.array_records)), next(iter(first.metric_records)))
        records = [content.metric_records.get(self._record_names[1], {}) for content in contents]
        for key in records[0]:
            values = [record[key] for record in records if key in record]
            sizes = [record.get(_EXAMPLES, 0) for record in records if key in record]
            self._mean_metrics[key] = _mean(values, sizes if any(sizes) and key != _EXAMPLES else None)
        if _EXAMPLES in records[0]:
            self._mean_metrics[_EXAMPLES] = max(1, self._mean_metrics[_EXAMPLES])

    def _canary_replies(
        self, messages: Sequence[Message], clip_norm: float, timeout: float | None = None
    ) -> list[Message]:
        """Return the canaries' replies in the order of the messages, which does not reveal who is inserted."""
        seats: dict[int, list[int]] = {}
        asked: dict[tuple[int, int], Message] = {}
        for message in messages:
            seat, audit = divmod(-1 - message.metadata.dst_node_id, len(self.audited.audits))
            seats.setdefault(audit, []).append(seat)
            asked[audit, seat] = message
        planted = self.audited.plant(seats, clip_norm)
        if not messages:
            return []
        # Nothing is clipped with an infinite clip norm, and any small step will do.
        unit = clip_norm if math.isfinite(clip_norm) else 1.0
        layout, model = self.audited.layout, _arrays(messages[0])
        step = layout.representable_step(model, _STEP * unit)
        if step > _LARGEST_STEP * unit:
            raise InputError(
                f"the precision of the parameters allows no step below {step:.3g}, more than a hundredth of the clip "
                f"norm {clip_norm:g}: train in float32, or raise the clip norm"
            )
        scale = self._length * (1 - 2 * step / unit)
        if self._hosts:
            return list(self.inner.send_and_receive(self._requests(asked, planted, scale, step), timeout=timeout))
        updates: dict[tuple[int, int], Any] = {}
        for audit, contribution in planted.items():
            for seat, update in contribution.one_by_one():
                updates[audit, seat] = to_numpy(flat(update)) * np.float32(scale)
        held_out = layout.nudged(model, step)  # the same arrays for all held-out canaries
        replies = []
        for canary, message in asked.items():
            moved = layout.moved(_arrays(message), updates.pop(canary)) if canary in updates else held_out
            replies.append(self._reply(message, moved))
        return replies

    def _reply(self, message: Message, arrays: ArrayRecord) -> Message:
        """Return a reply as a client would send it, through the mods of the ClientApp."""
        array_name, metric_name = self._record_names
        metrics = {**self._mean_metrics, **self._metrics}

        def train(received: Message, context: Context) -> Message:
            content = RecordDict({array_name: ArrayRecord(dict(arrays)), metric_name: MetricRecord(metrics)})
            return Message(content, reply_to=received)

        node = message.metadata.dst_node_id
        context = self._contexts.setdefault(node, Context(0, node, {}, RecordDict(), {}))
        return through_mods(self._mods, train, message, context)

    def _requests(
        self, asked: dict[tuple[int, int], Message], planted: Mapping[int, Contribution], scale: float, step: float
    ) -> list[Message]:
        """Return messages that ask hosts to send the canaries, each host in turn."""
        requests = []
        for number, ((audit, seat), message) in enumerate(asked.items()):
            contribution = planted.get(audit)
            assert isinstance(contribution, PlantedCanaries)
            inserted = seat in contribution.members
            content = RecordDict(dict(message.content))
            name, config = next(iter(message.content.config_records.items()))
            content[name] = canary_request(
                config,
                contribution.canaries.dense,
                self.audited.audits[audit].family or "",
                self.audited.layout,
                canary=seat if inserted else None,
                norm=contribution.norm * scale if inserted else step,
            )
            requests.append(Message(content, self._hosts[number % len(self._hosts)], message.metadata.message_type))
        return requests


def _arrays(message: Message) -> ArrayRecord:
    """Return the model that a message carries."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise InputError(f"a message to a canary must hold one array record, the model, got {len(records)}")
    return records[0]


def _mean(values: Sequence[Any], weights: Sequence[float] | None) -> Any:
    """Return the weighted mean of numbers or of lists of equal length; whole numbers stay whole."""
    if len({np.shape(value) for value in values}) > 1:
        return values[0]
    numbers = np.array(values)
    mean = np.average(numbers, axis=0, weights=weights)
    # Flower refuses a record whose types differ from those of the other replies.
    return (mean.round().astype(int) if numbers.dtype.kind == "i" else mean).tolist()


class FrozenRounds(Strategy):
    """Wraps a strategy and adds the rounds on a frozen model that the audits of a grid ask for, which CANIFE needs.

    In a frozen round, a copy of the strategy with all its state (momentum, clip norms, privacy spent) configures and
    aggregates. The audit sees the outcome, the copy is thrown away, and the model stays as it was. The training's own
    rounds are therefore the same as without frozen rounds, except for Flower's global random numbers. Nothing is
    evaluated in frozen rounds.

    Args:
        strategy: The strategy of the training.
        grid: The grid with the audits. Start with ``num_rounds=grid.rounds``.
    """

    def __init__(self, strategy: Strategy, grid: CanaryGrid) -> None:
        check_kind("grid", grid, CanaryGrid, "CanaryGrid(...)")
        self.strategy, self._grid = strategy, grid
        self._acting, self._frozen, self._arrays = strategy, False, ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure a round by the strategy, or by its copy."""
        current = self._grid.audited.current
        self._frozen = current is not None and current.trial is not None
        self._arrays = arrays
        # A copy, so that momentum, clip norms and privacy spent stay those of the training.
        self._acting = copied_strategy(self.strategy) if self._frozen else self.strategy
        training_round = server_round if current is None else current.round + 1
        return self._acting.configure_train(training_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate by the strategy; after a frozen round, return the old model."""
        arrays, metrics = self._acting.aggregate_train(self._training_round(server_round), replies)
        if not self._frozen:
            return arrays, metrics
        self._grid.audited.release(arrays)
        return self._arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure an evaluation by the strategy; none in frozen rounds."""
        if self._frozen:
            return []
        return self.strategy.configure_evaluate(self._training_round(server_round), arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Aggregate an evaluation by the strategy; none in frozen rounds."""
        if self._frozen:
            return None
        return self.strategy.aggregate_evaluate(self._training_round(server_round), replies)

    def summary(self) -> None:
        """Log the strategy's summary."""
        self.strategy.summary()

    def _training_round(self, server_round: int) -> int:
        """Return the training's own number, from 1, of one of Flower's rounds."""
        return self._grid.audited.plan[server_round - 1].round + 1
