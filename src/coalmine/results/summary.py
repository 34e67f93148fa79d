"""A run in one table: a row for each method and view with claim, lower bound, best guess and verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coalmine.results.groups import shown_results
from coalmine.results.result import AuditResult

COLUMNS = ["method", "view", "unit", "claimed ε", "lower bound", "best guess", "by", "verdict"]


def rows(results: Sequence[AuditResult]) -> list[list[str]]:
    """Return the rows of the table, under `COLUMNS`."""
    return [
        [
            result.method,
            result.label,
            result.unit.name,
            short(None if result.theory is None else result.theory.epsilon),
            short(None if result.decisive is None else result.decisive.epsilon),
            short(None if result.best_guess is None else result.best_guess.epsilon),
            "" if result.best_guess is None else result.best_guess.method,
            result.verdict.value,
        ]
        for result in shown_results(results)
    ]


def short(value: float | None) -> str:
    """Format an ε with three digits after the point; a dash for None, ∞ for infinity."""
    return "-" if value is None else "∞" if value == math.inf else f"{value:.3f}"
