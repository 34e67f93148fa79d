"""Rounds on a frozen model, which CANIFE needs: a strategy around any other."""

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
    """Wraps a strategy and adds the frozen rounds that the audits of a grid ask for.

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
        # An accountant refers to Python modules, which deepcopy cannot copy: they are passed as already copied.
        self._acting = (
            copy.deepcopy(self.strategy, {id(m): m for m in sys.modules.values()}) if self._frozen else self.strategy
        )
        training_round = server_round if current is None else current.round + 1
        return self._acting.configure_train(training_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate by the strategy; after a frozen round, return the old model."""
        arrays, metrics = self._acting.aggregate_train(self._training_round(server_round), replies)
        if not self._frozen:
            return arrays, metrics
        self._grid.audited.record_frozen(arrays)
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
