"""`CanaryGrid`: a Flower grid with canaries among its nodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from coalmine.errors import InputError, check_kind, check_positive
from coalmine.integrations.flower.arrays import Layout
from coalmine.integrations.flower.local import copied
from coalmine.integrations.flower.mod import canary_request
from coalmine.integrations.flower.rounds import AuditedRounds
from coalmine.integrations.flower.strategy_checks import StrategyChecks, calling_strategy, noise_multiplier_of
from coalmine.methods.one_shot.costs import warn_if_crowded
from coalmine.methods.one_shot.planted import PlantedCanaries
from coalmine.methods.one_shot.updates import FAMILIES
from coalmine.protocol import Audit, Contribution
from coalmine.vectors import flat, to_numpy

# What a held-out canary sends, in clip norms. Flower's clipping divides by the norm of an update, so it must not be 0.
# Inserted canaries are shorter by twice as much, so that the two differ by no more than the clip norm.
_STEP = 1e-6
_LARGEST_STEP = 0.01

_EXAMPLES = "num-examples"
_CLIP_NORM = "clipping_norm"  # the key that Flower's client-side clipping uses in messages

_Call = Callable[[Message, Context], Message]


class CanaryGrid(Grid):
    """A grid with the canaries of audits as additional nodes, which live in this process.

    Any strategy that is given this grid samples the canaries' nodes, sends them messages and receives replies: the
    global model plus the canary's update, with the record names and mean metrics of the real replies. Held-out canaries
    are nodes too, and reply with the model they received (plus a step of 1e-6 clip norms), so that neither the number
    of nodes nor the divisor depends on which canaries are inserted. With ``design="fixed"`` and canaries in every
    round, that number is fixed anyway, and only inserted canaries are nodes. Canaries are never asked to evaluate.

    When a round is configured, the grid lists the canaries that are due by the audit's participation, and the strategy
    must sample all of them (``fraction_train=1.0``). With `Observed` all canaries are listed, and the
    strategy samples as it likes.

    Args:
        grid: The grid that the ServerApp received.
        audits: One audit or several, with the same number of rounds.
        clip_norm: Clip norm of client updates, or a function that returns the current one if it adapts. By default it
            is read from the messages, where Flower's client-side clipping puts it.
        length: Norm of canaries before clipping, in clip norms. More than 1 tests whether updates are clipped.
        mods: Mods of the ClientApp, which the canaries' replies go through as well.
        metrics: Metrics of canaries that replace the mean of the real ones, such as ``{"num-examples": 100}``.
        cohort: Function of (round, trial, nodes) that returns the real nodes of a round, for exact schedules.
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
        cohort: Callable[[int, int | None, Sequence[int]], Sequence[int]] | None = None,
        hosts: Sequence[int] = (),
    ) -> None:
        check_kind("grid", grid, Grid, "the flwr Grid that the ServerApp's main function received")
        self.inner, self.audited = grid, AuditedRounds([audits] if isinstance(audits, Audit) else list(audits))
        self._clip_norm, self._length = clip_norm, check_positive("length", length)
        self._mods, self._metrics, self._cohort = tuple(mods), dict(metrics or {}), cohort
        self._hosts = tuple(hosts)
        crafted = [audit.family for audit in self.audited.audits if audit.family not in FAMILIES]
        if self._hosts and crafted:
            raise InputError(
                f"hosts can only send canaries that a seed regenerates ({', '.join(FAMILIES)}), got {crafted[0]}"
            )
        self._record_names = ("arrays", "metrics")
        self._mean_metrics: dict[str, Any] = {_EXAMPLES: 1}
        self._contexts: dict[int, Context] = {}
        self._pending: dict[str, Message] = {}
        self._shrink, self._balance_checked = 1 - 2 * _STEP, False
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
            if server_round == 0:
                noise_multiplier = noise_multiplier_of(calling_strategy())
                self.audited.begin(arrays, noise_multiplier=noise_multiplier, stratify=not self._hosts)
                training_round = 0
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
        real = list(self.inner.get_node_ids())
        current = self.audited.current
        if current is None:
            return real
        if self._cohort is not None:
            real = list(self._cohort(current.round, current.trial, sorted(real)))
        return real + [self._node_id(audit, seat) for audit, seat in self.audited.due()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages to real nodes, and have canaries answer theirs at once."""
        to_canaries, to_clients = _apart(messages)
        trains = _trains([*to_canaries, *to_clients])
        if trains:
            self._check_balance(len(to_canaries), len(to_clients))
        ids = list(self.inner.push_messages(to_clients))
        if not trains:
            return ids
        self.audited.answered(len(to_canaries) + len(to_clients), 0, 0, "")
        for reply in self._replies(to_canaries, [], self._current_clip_norm([*to_canaries, *to_clients])):
            message_id = f"canary-{len(self._pending)}-{reply.metadata.src_node_id}"
            self._pending[message_id] = reply
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies of real nodes and canaries."""
        ids = list(message_ids)
        replies = [self._pending.pop(message_id) for message_id in ids if message_id in self._pending]
        return [*self.inner.pull_messages([i for i in ids if not i.startswith("canary-")]), *replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Ask real nodes first, so that canaries can reply like them."""
        to_canaries, to_clients = _apart(messages)
        if not _trains([*to_canaries, *to_clients]):
            return self.inner.send_and_receive(to_clients, timeout=timeout)
        self._check_balance(len(to_canaries), len(to_clients))
        sent = len(to_canaries) + len(to_clients)
        asked = [*to_canaries, *to_clients]
        available = len(list(self.inner.get_node_ids()))
        self.audited.sampled([message.metadata.dst_node_id for message in asked], available)
        clip_norm = self._current_clip_norm(asked)
        self._checks.replay(asked[0], _arrays(asked[0]), clip_norm)
        replies = list(self.inner.send_and_receive(to_clients, timeout=timeout)) if to_clients else []
        self._checks.look_at(replies)
        replies += list(self._replies(to_canaries, list(replies), clip_norm, timeout))
        failed = [reply for reply in replies if not reply.has_content()]
        reason = str(failed[0].error.reason) if failed else ""
        self.audited.answered(len(replies) - len(failed), sent - len(replies), len(failed), reason)
        return replies

    # Canaries

    def _check_balance(self, canaries: int, clients: int) -> None:
        """Warn before the first round if most nodes are canaries: held-out ones count in the average as well."""
        if not self._balance_checked:
            # Not a larger server learning rate: Flower's DP wrappers scale their noise to the plain average.
            advice = f'use at most {clients} canaries and design="fixed", with which held-out canaries need no nodes'
            warn_if_crowded(canaries, clients, advice=advice)
        self._balance_checked = True

    def _node_id(self, audit: int, seat: int) -> int:
        return -1 - (seat * len(self.audited.audits) + audit)

    def _replies(
        self, messages: Sequence[Message], real: Sequence[Message], clip_norm: float, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield the canaries' replies in the order of the messages, which does not reveal who is inserted."""
        seats: dict[int, list[int]] = {}
        asked: dict[tuple[int, int], Message] = {}
        for message in messages:
            seat, audit = divmod(-1 - message.metadata.dst_node_id, len(self.audited.audits))
            seats.setdefault(audit, []).append(seat)
            asked[audit, seat] = message
        planted = self.audited.plant(seats, clip_norm)
        if not messages:
            return
        self._imitate(real)
        step = self._held_out_step(_arrays(messages[0]), clip_norm)
        if self._hosts:
            yield from self._hosted(asked, planted, step, timeout)
            return
        nudged = self._layout.nudged(_arrays(messages[0]), step)  # the same arrays for all held-out canaries
        scale = np.float32(self._length * self._shrink)
        moved = {
            (audit, seat): self._layout.moved(_arrays(asked[audit, seat]), to_numpy(flat(update)) * scale)
            for audit, contribution in planted.items()
            for seat, update in contribution.one_by_one()
        }
        for canary, message in asked.items():
            yield self._reply(message, moved.pop(canary, nudged))

    def _held_out_step(self, arrays: ArrayRecord, clip_norm: float) -> float:
        """Return what a held-out canary sends, and shorten inserted ones accordingly."""
        unit = clip_norm if math.isfinite(clip_norm) else 1.0
        step = self._layout.representable_step(arrays, _STEP * unit)
        if step > _LARGEST_STEP * unit:
            raise InputError(
                f"the precision of the parameters allows no step below {step:.3g}, more than a hundredth of the clip "
                f"norm {clip_norm:g}: train in float32, or raise the clip norm"
            )
        self._shrink = 1 - 2 * step / unit
        return step

    def _reply(self, message: Message, arrays: ArrayRecord) -> Message:
        """Return a reply as a client would send it, through the mods of the ClientApp."""
        array_name, metric_name = self._record_names
        metrics = {**self._mean_metrics, **self._metrics}

        def app(received: Message, context: Context) -> Message:
            content = RecordDict({array_name: ArrayRecord(dict(arrays)), metric_name: MetricRecord(metrics)})
            return Message(content, reply_to=received)

        call: _Call = app
        for mod in reversed(self._mods):
            call = _through(mod, call)
        if not self._mods:
            return call(message, Context(0, 0, {}, RecordDict(), {}))
        node = message.metadata.dst_node_id
        context = self._contexts.setdefault(node, Context(0, node, {}, RecordDict(), {}))
        # Messages of a round share their content, and mods write into it.
        return call(Message(metadata=message.metadata, content=copied(message.content)), context)

    def _hosted(
        self,
        asked: dict[tuple[int, int], Message],
        planted: Mapping[int, Contribution],
        step: float,
        timeout: float | None,
    ) -> Iterator[Message]:
        """Have real nodes send the canaries, each host in turn."""
        requests: list[Message] = []
        for number, ((audit, seat), message) in enumerate(asked.items()):
            contribution = planted.get(audit)
            assert isinstance(contribution, PlantedCanaries)
            inserted = seat in contribution.members
            content = RecordDict(dict(message.content))
            name, config = next(iter(message.content.config_records.items()))
            content[name] = canary_request(
                config,
                contribution.canaries,
                self.audited.audits[audit].family or "",
                self._layout,
                canary=seat if inserted else None,
                norm=contribution.norm * self._length * self._shrink if inserted else step,
            )
            host = self._hosts[number % len(self._hosts)]
            requests.append(Message(content, host, message.metadata.message_type))
        yield from self.inner.send_and_receive(requests, timeout=timeout)

    def _current_clip_norm(self, messages: Sequence[Message]) -> float:
        if callable(self._clip_norm):
            return float(self._clip_norm())
        if self._clip_norm is not None:
            return self._clip_norm
        configs = (config for message in messages for config in message.content.config_records.values())
        return next((float(config[_CLIP_NORM]) for config in configs if _CLIP_NORM in config), math.inf)

    def _imitate(self, real: Sequence[Message]) -> None:
        """Take record names and mean metrics from the real replies, so that averages of metrics do not change."""
        contents = [reply.content for reply in real if reply.has_content()]
        contents = [content for content in contents if content.array_records and content.metric_records]
        if not contents:
            return
        first = contents[0]
        self._record_names = (next(iter(first.array_records)), next(iter(first.metric_records)))
        records = [content.metric_records.get(self._record_names[1], {}) for content in contents]
        self._mean_metrics = {key: _mean_metric(key, [r for r in records if key in r]) for key in records[0]}

    @property
    def _layout(self) -> Layout:
        return self.audited.checked_layout


def _apart(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """Return the messages to canaries, and those to real nodes."""
    everything = list(messages)
    to_canaries = [message for message in everything if message.metadata.dst_node_id < 0]
    return to_canaries, [message for message in everything if message.metadata.dst_node_id >= 0]


def _arrays(message: Message) -> ArrayRecord:
    """Return the model that a message carries."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise InputError(f"a message to a canary must hold one array record, the model, got {len(records)}")
    return records[0]


def _through(mod: Any, call: _Call) -> _Call:
    return lambda message, context: mod(message, context, call)


def _trains(messages: Iterable[Message]) -> bool:
    return any(message.metadata.message_type.startswith("train") for message in messages)


def _mean_metric(key: str, records: Sequence[Mapping[str, Any]]) -> Any:
    """Return the mean of a metric, weighted by numbers of examples as Flower does; at least 1 for those numbers."""
    values, sizes = [record[key] for record in records], [record.get(_EXAMPLES, 0) for record in records]
    if key == _EXAMPLES:
        mean = _mean(values, [1] * len(values))
        return max(1, mean) if isinstance(mean, int) else mean
    return _mean(values, sizes if any(sizes) else [1] * len(values))


def _mean(values: Sequence[Any], weights: Sequence[float]) -> Any:
    """Return the weighted mean of numbers or of lists; integers stay integers, and equal values what they are."""
    if all(value == values[0] for value in values):
        return values[0]
    if isinstance(values[0], list):
        if len({len(value) for value in values}) > 1:
            return values[0]
        return [_mean(column, weights) for column in zip(*values, strict=True)]
    mean = math.fsum(map(operator.mul, values, weights)) / math.fsum(weights)
    return round(mean) if all(isinstance(value, int) for value in values) else mean
