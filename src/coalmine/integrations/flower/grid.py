"""A Flower grid with canaries among its nodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from coalmine.errors import InputError, check_kind, check_positive
from coalmine.integrations.flower.course import Course
from coalmine.integrations.flower.local import copied
from coalmine.integrations.flower.mod import request
from coalmine.methods.one_shot.audit import OneShot
from coalmine.methods.one_shot.planted import PlantedCanaries
from coalmine.protocol import Audit, Contribution, Vector

_STEP = 1e-6
"""What a held-out canary sends, in clip norms: Flower's clipping divides by the length of an update, so none may be 0.
It is longer where parameters have not the digits for it. Planted canaries are shorter by twice as much, so that one
client still moves a sum by no more than the clip norm."""

_MOST = 0.01  # clip norms that such a step may have

_EXAMPLES = "num-examples"
_CLIP_NORM = "clipping_norm"  # what Flower's client-side clipping calls it in messages

Answer = Callable[[Message, Context], Message]


class CanaryGrid(Grid):
    """``grid`` with the canaries of ``audits`` as further nodes, which live in this process.

    Whatever strategy is given this grid finds their ids among the others, sends them messages and gets replies: the
    global model plus the canary's update, with the names of records and the mean metrics of the real replies. Canaries
    that are held out are nodes too, and reply with the model they got (but for a step of 1e-6 clip norms), so that
    neither the number of nodes nor the divisor depends on who is planted. While a round is configured, those nodes are
    listed that are due by the audit's participation, and the strategy must take all of them (``fraction_train=1.0``).
    For `ObservedParticipation` all are listed, and the strategy takes whom it likes. Canaries are never asked to
    evaluate.

    ``clip_norm`` bounds a client's update, a number or (where it adapts) a function that gives it now; if not given it
    is read from the messages, where Flower's client-side clipping puts it. ``length`` is the canaries', in clip norms:
    above 1 it tests whether somebody clips. ``mods`` are those of the ClientApp, through which canaries' replies pass
    too. ``metrics`` replaces some of the canaries' metrics, such as ``{"num-examples": 100}``. ``cohort(round, trial,
    nodes)`` chooses the real nodes of a round, for exact schedules. ``hosts`` are real nodes with `canary_mod`, which
    then send the canaries in place of this process.
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
        check_kind("grid", grid, Grid, "a flwr Grid, as ServerApp's main function gets it")
        self.inner, self.course = grid, Course([audits] if isinstance(audits, Audit) else list(audits))
        self._clip_norm, self._length = clip_norm, check_positive("length", length)
        self._mods, self._metrics, self._cohort = tuple(mods), dict(metrics or {}), cohort
        self._hosts = tuple(hosts)
        if self._hosts and not all(isinstance(a, OneShot) for a in self.course.audits):
            raise InputError("hosts can send canaries of OneShot alone: others are not made from a few numbers")
        self._names = ("arrays", "metrics")
        self._usual: dict[str, Any] = {_EXAMPLES: 1}
        self._contexts: dict[int, Context] = {}
        self._answers: dict[str, Message] = {}
        self._shorter = 1 - 2 * _STEP

    @property
    def rounds(self) -> int:
        """How many rounds Flower must hold, frozen ones included: ``num_rounds`` of ``start``."""
        return len(self.course.places)

    def recorder(
        self, evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None
    ) -> Callable[[int, ArrayRecord], MetricRecord | None]:
        """``evaluate_fn`` for ``start``: shows the audits each round's model, and calls yours in turn.

        Yours is called for the training's own rounds, which it counts from 1.
        """

        def record(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if server_round == 0:
                self.course.begin(arrays)
                own = 0
            else:
                place = self.course.record(arrays)
                if place.trial is not None:
                    return None
                own = place.round + 1
            return None if evaluate_fn is None else evaluate_fn(own, arrays)

        return record

    # What strategies ask of a grid

    def set_run(self, run: Any) -> None:
        """As the grid inside."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        """As the grid inside."""
        return self.inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message, the old way."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The real nodes, and while a round is configured its canaries, whose ids are below 0."""
        real = list(self.inner.get_node_ids())
        place = self.course.place
        if place is None:
            return real
        if self._cohort is not None:
            real = list(self._cohort(place.round, place.trial, sorted(real)))
        return real + [self._id(audit, seat) for audit, seat in self.course.due()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Real nodes' messages go on; canaries answer at once."""
        ours, theirs = _apart(messages)
        found = list(self.inner.push_messages(theirs))
        if not _trains([*ours, *theirs]):
            return found
        self.course.answered(len(ours) + len(theirs), 0, 0, "")
        for reply in self._replies(ours, [], self._bound([*ours, *theirs])):
            identity = f"canary-{len(self._answers)}-{reply.metadata.src_node_id}"
            self._answers[identity] = reply
            found.append(identity)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """From real nodes and canaries."""
        asked = list(message_ids)
        ours = [self._answers.pop(identity) for identity in asked if identity in self._answers]
        return [*self.inner.pull_messages([i for i in asked if not i.startswith("canary-")]), *ours]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Real nodes first, so that canaries can reply like them."""
        ours, theirs = _apart(messages)
        if not _trains([*ours, *theirs]):
            return self.inner.send_and_receive(theirs, timeout=timeout)
        self.course.drew(len(ours) + len(theirs), len(list(self.inner.get_node_ids())) + len(self.course.due()))
        replies = list(self.inner.send_and_receive(theirs, timeout=timeout)) if theirs else []
        canaries = list(self._replies(ours, replies, self._bound([*ours, *theirs]), timeout))
        good = [reply for reply in [*replies, *canaries] if reply.has_content()]
        bad = [reply for reply in [*replies, *canaries] if not reply.has_content()]
        missing = len(ours) + len(theirs) - len(good) - len(bad)
        self.course.answered(len(good), missing, len(bad), str(bad[0].error.reason) if bad else "")
        return [*replies, *canaries]

    # Canaries

    def _id(self, audit: int, seat: int) -> int:
        return -1 - (seat * len(self.course.audits) + audit)

    def _replies(
        self, messages: Sequence[Message], real: Sequence[Message], clip_norm: float, timeout: float | None = None
    ) -> Iterator[Message]:
        """The canaries' replies, in the order in which they were asked: it does not tell who is planted."""
        seats: dict[int, list[int]] = {}
        asked: dict[tuple[int, int], Message] = {}
        for message in messages:
            seat, audit = divmod(-1 - message.metadata.dst_node_id, len(self.course.audits))
            seats.setdefault(audit, []).append(seat)
            asked[audit, seat] = message
        planted = self.course.plant(seats, clip_norm)
        if not messages:
            return
        self._look_at(real)
        step = self._step(_arrays(messages[0]), clip_norm)
        if self._hosts:
            yield from self._hosted(asked, planted, step, timeout)
            return
        nudged = self._layout.nudged(_arrays(messages[0]), step)  # all that are held out send the same
        moved = {(audit, seat): self._moved(asked[audit, seat], update) for audit, seat, update in _updates(planted)}
        for place, message in asked.items():
            yield self._answered(message, moved.pop(place, nudged))

    def _step(self, arrays: ArrayRecord, clip_norm: float) -> float:
        """What a held-out canary sends; planted ones are shorter by twice as much."""
        unit = clip_norm if math.isfinite(clip_norm) else 1.0
        step = self._layout.step(arrays, _STEP * unit)
        if step > _MOST * unit:
            raise InputError(
                f"the model's parameters have not the digits for a step below {step:.3g}, which is more than a "
                f"hundredth of the clip norm {clip_norm:g}: train in float32, or raise the clip norm"
            )
        self._shorter = 1 - 2 * step / unit
        return step

    def _moved(self, message: Message, update: Vector) -> ArrayRecord:
        return self._layout.moved(_arrays(message), update * np.float32(self._length * self._shorter))

    def _answered(self, message: Message, arrays: ArrayRecord) -> Message:
        """A reply as a client would send it, through the mods of the ClientApp."""
        name, metrics = self._names
        values = {**self._usual, **self._metrics}

        def app(asked: Message, context: Context) -> Message:
            return Message(RecordDict({name: ArrayRecord(dict(arrays)), metrics: MetricRecord(values)}), reply_to=asked)

        call: Answer = app
        for mod in reversed(self._mods):
            call = _through(mod, call)
        if not self._mods:
            return call(message, Context(0, 0, {}, RecordDict(), {}))
        node = message.metadata.dst_node_id
        context = self._contexts.setdefault(node, Context(0, node, {}, RecordDict(), {}))
        return call(Message(metadata=message.metadata, content=copied(message.content)), context)

    def _hosted(
        self,
        asked: dict[tuple[int, int], Message],
        planted: Mapping[int, Contribution],
        step: float,
        timeout: float | None,
    ) -> Iterator[Message]:
        """Canaries sent by real nodes, each host in turn."""
        sent = []
        for number, ((audit, seat), message) in enumerate(asked.items()):
            found = planted.get(audit)
            assert isinstance(found, PlantedCanaries)
            assert found.canaries is not None
            there = seat in found.members
            norm = found.norm * self._length * self._shorter if there else step
            family = getattr(self.course.audits[audit], "family", "")
            content = RecordDict(dict(message.content))
            name, config = next(iter(message.content.config_records.items()))
            content[name] = request(
                config, found.canaries, family, self._layout, canary=seat if there else None, norm=norm
            )
            host = self._hosts[number % len(self._hosts)]
            sent.append(Message(content, host, message.metadata.message_type))
        yield from self.inner.send_and_receive(sent, timeout=timeout)

    def _bound(self, messages: Sequence[Message]) -> float:
        if callable(self._clip_norm):
            return float(self._clip_norm())
        if self._clip_norm is not None:
            return self._clip_norm
        told = [c[_CLIP_NORM] for m in messages for c in m.content.config_records.values() if _CLIP_NORM in c]
        return float(told[0]) if told else math.inf

    def _look_at(self, real: Sequence[Message]) -> None:
        """Take names from the real replies, and the mean of their metrics, so that averages stay what they are."""
        good = [reply.content for reply in real if reply.has_content()]
        good = [content for content in good if content.array_records and content.metric_records]
        if not good:
            return
        self._names = (next(iter(good[0].array_records)), next(iter(good[0].metric_records)))
        records = [content.metric_records.get(self._names[1], {}) for content in good]
        self._usual = {key: _usual(key, [r for r in records if key in r]) for key in records[0]}

    @property
    def _layout(self) -> Any:
        if self.course.layout is None:
            raise InputError("the first model was not recorded: give evaluate_fn=grid.recorder() to start()")
        return self.course.layout


def _apart(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """Messages to canaries, and to real nodes."""
    found = list(messages)
    return [m for m in found if m.metadata.dst_node_id < 0], [m for m in found if m.metadata.dst_node_id >= 0]


def _arrays(message: Message) -> ArrayRecord:
    found = list(message.content.array_records.values())
    if len(found) != 1:
        raise InputError(f"a message to a canary holds one record of arrays, the model, got {len(found)}")
    return found[0]


def _updates(planted: Mapping[int, Contribution]) -> Iterator[tuple[int, int, Vector]]:
    for audit, contribution in planted.items():
        for seat, update in contribution.one_by_one():
            yield audit, seat, update


def _through(mod: Any, call: Answer) -> Answer:
    return lambda message, context: mod(message, context, call)


def _trains(messages: Iterable[Message]) -> bool:
    return any(message.metadata.message_type.startswith("train") for message in messages)


def _usual(key: str, records: Sequence[Mapping[str, Any]]) -> Any:
    """The mean of a metric, by numbers of examples as Flower weighs them; of those numbers themselves, 1 at least."""
    values, sizes = [record[key] for record in records], [record.get(_EXAMPLES, 0) for record in records]
    if key == _EXAMPLES:
        mean = _mean(values, [1] * len(values))
        return max(1, mean) if isinstance(mean, int) else mean
    return _mean(values, sizes if any(sizes) else [1] * len(values))


def _mean(values: Sequence[Any], weights: Sequence[float]) -> Any:
    """Of numbers, or of lists of the same length; whole numbers stay whole, and equal ones what they are."""
    if all(value == values[0] for value in values):
        return values[0]
    if isinstance(values[0], list):
        if len({len(value) for value in values}) > 1:
            return values[0]
        return [_mean(some, weights) for some in zip(*values, strict=True)]
    mean = math.fsum(map(operator.mul, values, weights)) / math.fsum(weights)
    return round(mean) if all(isinstance(value, int) for value in values) else mean
