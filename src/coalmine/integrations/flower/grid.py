"""`CanaryGrid`: a Flower grid with canaries among its nodes; `FrozenRounds`: rounds that leave the model alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from coalmine.errors import CanaryWarning, InputError, check_kind, check_positive
from coalmine.integrations.flower.nodes import LocalGrid, canary_request, through_mods
from coalmine.integrations.flower.replay import (
    StrategyChecks,
    WrapperOutput,
    claimed_noise,
    copied_strategy,
    running_start,
    untouched,
)
from coalmine.integrations.flower.rounds import AuditedRounds
from coalmine.methods.one_shot.canaries import FAMILIES, PlantedCanaries, warn_if_crowded
from coalmine.protocol import Audit, Contribution
from coalmine.vectors import CPU, flat, on

# What a held-out canary sends, in clip norms. Flower's clipping divides by the norm of an update, so it must not be 0.
# Inserted canaries are shorter by twice as much, so that the two differ by no more than the clip norm.
_STEP = 1e-6
_LARGEST_STEP = 0.01

_EXAMPLES = "num-examples"


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
        clip_norm: Clip norm of client updates, or a function that returns the current one if it adapts. By default
            that of Flower's DP wrapper, wherever it is in the strategy.
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
        crafted = {str(audit.family) for audit in self.audited.audits}.difference(FAMILIES)
        if self._hosts and crafted:
            raise InputError(f"hosts can only send canaries that a seed regenerates, got {', '.join(crafted)}")
        self._record_names = ("arrays", "metrics")
        self._mean_metrics: dict[str, Any] = {_EXAMPLES: 1}
        self._contexts: dict[int, Context] = {}
        self._checks = StrategyChecks(self.audited, mods=self._mods, metrics=self._metrics)
        self._strategy: Strategy | None = None
        self._output = WrapperOutput(None)

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
                start = running_start()
                strategy, rounds, left = start.get("self"), start.get("num_rounds"), self.rounds - self.audited.position
                if rounds not in (None, left):
                    raise InputError(f"num_rounds is {rounds}, but this grid has {left} rounds left, of {self.rounds}")
                # Frozen rounds are the audit's own.
                self._strategy = strategy.strategy if isinstance(strategy, FrozenRounds) else strategy
                self._output = WrapperOutput(self._strategy)
                wrapper = self._output.wrapper
                self.audited.begin(
                    arrays,
                    noise_multiplier=claimed_noise(wrapper) or None,
                    adapts_clip_norm=hasattr(wrapper, "clipped_count_stddev"),
                    stratify=not self._hosts,
                )
            else:
                recorded = self.audited.record(arrays, self._output.taken())
                if recorded.trial is not None:
                    return None
                training_round = recorded.round + 1
            if evaluate_fn is None:
                return None
            return evaluate_fn(training_round, arrays)

        return record

    # The interface of a grid

    def set_run(self, run: Any) -> None:
        """Set the run of the inner grid."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the inner grid."""
        return self.inner.run

    create_message = LocalGrid.create_message

    def get_node_ids(self) -> Iterable[int]:
        """Return the real nodes and, while a round is configured, its canaries, whose ids are negative."""
        # Real ids are not negative, so an id below 0 holds both the audit and the seat of a canary.
        audits = len(self.audited.audits)
        return [*self.inner.get_node_ids(), *(-1 - (seat * audits + audit) for audit, seat in self.audited.due())]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages to real nodes; canaries only answer `send_and_receive`, which Flower's strategies use."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies of real nodes."""
        return self.inner.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Ask real nodes first, so that canaries can reply like them."""
        to_canaries, to_clients = list[Message](), list[Message]()
        for message in messages:
            (to_canaries if message.metadata.dst_node_id < 0 else to_clients).append(message)
        asked = [*to_canaries, *to_clients]
        # Canaries are never asked to evaluate.
        if not asked or not asked[0].metadata.message_type.startswith("train"):
            return self.inner.send_and_receive(to_clients, timeout=timeout)
        available = len(list(self.inner.get_node_ids()))
        self.audited.sampled([message.metadata.dst_node_id for message in asked], available, _arrays(asked[0]))
        clip_norm = self._clip_norm() if callable(self._clip_norm) else self._clip_norm
        if clip_norm is None:
            clip_norm = float(getattr(self._output.wrapper, "clipping_norm", math.inf))
        planned = self.audited.plan[self.audited.position]
        if planned.round == 0 and planned.trial is None:
            # Held-out canaries count in the average as well. The advice is not a larger server learning rate, since
            # Flower's DP wrappers scale their noise to the plain average.
            advice = (
                f'use at most {len(to_clients)} canaries and design="fixed", with which held-out canaries need no nodes'
            )
            warn_if_crowded(len(to_canaries), len(to_clients), advice=advice)
            counted = getattr(self._output.wrapper, "num_sampled_clients", len(asked))
            if counted != len(asked):
                sentence = f"num_sampled_clients is {counted}, {len(asked)} nodes reply: set {len(asked)}"
                self.audited.note(sentence)
                warnings.warn(sentence, CanaryWarning, stacklevel=2)
            self._checks.replay(self._strategy, asked[0], _arrays(asked[0]), clip_norm)
        replies = list(self.inner.send_and_receive(to_clients, timeout=timeout))
        contents = [reply.content for reply in replies if reply.has_content()]
        self._checks.look_at(contents)
        self._imitate(contents)
        replies += self._canary_replies(to_canaries, clip_norm, timeout)
        # Strategies average over the nodes that sent an update, so that is the divisor.
        reasons = [str(reply.error.reason) for reply in replies if not reply.has_content()]
        updates = len(replies) - len(reasons)
        self.audited.answered(updates, len(asked) - len(replies), len(reasons), "".join(reasons[:1]))
        return replies

    # Canaries

    def _imitate(self, contents: Sequence[RecordDict]) -> None:
        """Take record names and mean metrics from the real replies, so that averages of metrics do not change."""
        complete = [content for content in contents if content.array_records and content.metric_records]
        if not complete:
            return
        self._record_names = (next(iter(complete[0].array_records)), next(iter(complete[0].metric_records)))
        records = [content.metric_records.get(self._record_names[1], {}) for content in complete]
        weights = np.array([record.get(_EXAMPLES, 1) for record in records], dtype=float)
        for key in set(records[0]).intersection(*records):
            values = np.array([record[key] for record in records])
            # Flower averages metrics by the number of examples, and that number itself is a plain mean here.
            mean = np.average(values, axis=0, weights=None if key == _EXAMPLES else weights)
            # Whole numbers stay whole: Flower refuses a record whose types differ from those of the other replies.
            if values.dtype.kind == "i":
                mean = mean.round().astype(int)
            self._mean_metrics[key] = mean.tolist()
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
        shorter = 1 - 2 * step / unit
        if self._hosts:
            requests = self._requests(asked, planted, self._length * shorter, step)
            return list(self.inner.send_and_receive(requests, timeout=timeout))
        # Held-out canaries all send the same arrays.
        models = dict.fromkeys(asked, layout.nudged(model, step))
        for audit, contribution in planted.items():
            for seat, update in contribution.one_by_one(self._length):
                moved = layout.moved(_arrays(asked[audit, seat]), on(CPU, flat(update)) * np.float32(shorter))
                models[audit, seat] = moved
        replies = []
        array_name, metric_name = self._record_names
        for canary, message in asked.items():
            metrics = MetricRecord({**self._mean_metrics, **self._metrics})
            content = RecordDict({array_name: ArrayRecord(dict(models[canary])), metric_name: metrics})
            node = message.metadata.dst_node_id
            context = self._contexts.setdefault(node, Context(0, node, {}, RecordDict(), {}))
            replies.append(through_mods(self._mods, content, message, context))
        return replies

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
            family = str(self.audited.audits[audit].family)
            canary, norm = (seat, contribution.norm * scale) if inserted else (-1, step)
            request = canary_request(contribution.canaries.dense, family, self.audited.layout, canary=canary, norm=norm)
            content[name] = ConfigRecord({**config, **request})
            requests.append(Message(content, self._hosts[number % len(self._hosts)], message.metadata.message_type))
        return requests


def _arrays(message: Message) -> ArrayRecord:
    """Return the model that a message carries."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise InputError(f"a message to a canary must hold one array record, the model, got {len(records)}")
    return records[0]


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
        self._training_round = 1  # the training's own number of the current round, frozen ones left out

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure a round by the strategy, or by its copy."""
        planned = self._grid.audited.plan[server_round - 1]
        self._frozen, self._training_round = planned.trial is not None, planned.round + 1
        self._acting, self._arrays = self.strategy, arrays
        if self._frozen:
            # A copy, so that momentum, clip norms and privacy spent stay those of the training.
            self._acting = copied_strategy(self.strategy)
            self._output = WrapperOutput(self._acting)
        with untouched(self.strategy) if self._frozen else nullcontext():
            return self._acting.configure_train(self._training_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate by the strategy; after a frozen round, return the old model."""
        if not self._frozen:
            return self.strategy.aggregate_train(self._training_round, replies)
        with untouched(self.strategy):
            arrays, _ = self._acting.aggregate_train(self._training_round, replies)
        self._grid.audited.release(arrays, self._output.taken())
        return self._arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure an evaluation by the strategy; none in frozen rounds."""
        if self._frozen:
            return []
        return self.strategy.configure_evaluate(self._training_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Aggregate an evaluation by the strategy; none in frozen rounds."""
        if self._frozen:
            return None
        return self.strategy.aggregate_evaluate(self._training_round, replies)

    def summary(self) -> None:
        """Log the strategy's summary."""
        self.strategy.summary()
