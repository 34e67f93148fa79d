"""Cells of reproduced tables that hold a number, and what is shown of it over several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import numpy as np


class Number(str):
    """The text of a number in a table, which remembers the number, so that several seeds can be shown together.

    Args:
        value: The number.
        spec: How it is formatted, as in ``format(value, spec)``.
        spread: Standard deviation within the one seed, shown behind ±.
        bound: Whether it is a confidence bound: of those, several seeds show the range, since their mean is no bound.

    Example:
        >>> Number(0.25, ".2f", spread=0.1)
        '0.25 ± 0.10'
        >>> Number.over_seeds([Number(0.25, ".2f"), Number(0.35, ".2f")])
        '0.30 ± 0.07'
    """

    value: float
    spec: str
    bound: bool

    def __new__(cls, value: float, spec: str, *, spread: float | None = None, bound: bool = False) -> Self:
        """Format the number."""
        text = shown(value, spec)
        cell = super().__new__(cls, text if spread is None else f"{text} ± {shown(spread, spec)}")
        cell.value, cell.spec, cell.bound = float(value), spec, bound
        return cell

    @staticmethod
    def over_seeds(cells: Sequence[str]) -> str:
        """Return one text for the cells of several seeds: mean ± standard deviation, or the range of bounds."""
        numbers = [cell for cell in cells if isinstance(cell, Number)]
        if len(numbers) < len(cells):
            return cells[0] if len(set(cells)) == 1 else "; ".join(cells)
        values, spec = [number.value for number in numbers], numbers[0].spec
        if numbers[0].bound and len(set(numbers)) > 1:
            return f"{shown(min(values), spec)} to {shown(max(values), spec)}"
        return shown(values[0], spec) if numbers[0].bound else over_seeds(values, spec)


def over_seeds(values: Sequence[float], spec: str) -> str:
    """Return the mean ± standard deviation of a number over seeds, or the number if there is one seed or no spread."""
    mean = float(np.mean(values))
    if len(values) == 1 or not math.isfinite(mean) or len(set(values)) == 1:
        return shown(mean, spec)
    return f"{shown(mean, spec)} ± {shown(float(np.std(values, ddof=1)), spec)}"


def shown(value: float, spec: str) -> str:
    """Format a number, with ∞ for infinity."""
    return "∞" if value == math.inf else format(value, spec)
