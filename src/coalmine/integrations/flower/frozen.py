"""Rounds on a frozen model, for CANIFE: a strategy around any other."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from coalmine.errors import check_kind
from coalmine.integrations.flower.grid import CanaryGrid


class FrozenRounds(Strategy):
    """``strategy`` with the frozen rounds that the audits of ``grid`` ask for; start it for ``grid.rounds`` rounds.

    In a frozen round a copy of the strategy configures and aggregates, with everything in it (momentum, clip norms,
    privacy spent), and is then forgotten; the old model is returned. So the training's own rounds are what they would
    be without them, but for Flower's global random numbers, which move on. Nothing is evaluated in frozen rounds.
    """

    def __init__(self, strategy: Strategy, grid: CanaryGrid) -> None:
        check_kind("grid", grid, CanaryGrid, "CanaryGrid(...)")
        self.strategy, self._grid = strategy, grid
        self._acting, self._frozen, self._arrays = strategy, False, ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """By the strategy, or by its copy."""
        place = self._grid.course.place
        self._frozen = place is not None and place.trial is not None
        self._arrays = arrays
        # An accountant holds modules, which are not to be copied.
        self._acting = (
            copy.deepcopy(self.strategy, {id(m): m for m in sys.modules.values()}) if self._frozen else self.strategy
        )
        own = server_round if place is None else place.round + 1
        return self._acting.configure_train(own, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """By the strategy; in a frozen round the audit sees it and the model stays."""
        place = self._grid.course.places[server_round - 1]
        arrays, metrics = self._acting.aggregate_train(place.round + 1, replies)
        if not self._frozen:
            return arrays, metrics
        self._grid.course.record_frozen(arrays)
        return self._arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing in frozen rounds."""
        if self._frozen:
            return []
        own = self._grid.course.places[server_round - 1].round + 1
        return self.strategy.configure_evaluate(own, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing in frozen rounds."""
        if self._frozen:
            return None
        return self.strategy.aggregate_evaluate(self._grid.course.places[server_round - 1].round + 1, replies)

    def summary(self) -> None:
        """As the strategy."""
        self.strategy.summary()
