"""Tables of texts, for terminals and files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from coalmine.results import words
from coalmine.stats import Estimate


@dataclass(frozen=True)
class Table:
    """A table with a title: one text for each cell."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of_estimates(cls, estimates: Sequence[Estimate], title: str) -> Self:
        """Return one row per estimate: its figures, and what sort of figure it is."""
        rows = [
            [
                e.method,
                fixed(e.epsilon, 3),
                fixed(e.lower, 3),
                fixed(e.upper, 3),
                "-" if e.threshold is None else f"{e.threshold:.4g}",
                words.kind(e),
            ]
            for e in estimates
        ]
        return cls(title, ["method", "ε", "lower", "upper", "threshold", "what it is"], rows)


def fixed(value: float | None, digits: int) -> str:
    """Format a number with that many digits after the point; a dash for None, ∞ for infinity."""
    if value is None:
        return "-"
    return "∞" if value == math.inf else f"{value:.{digits}f}"
