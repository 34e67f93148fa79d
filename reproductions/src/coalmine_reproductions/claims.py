"""Claims of papers as data: what a paper says, our numbers for it, and when the two agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from coalmine.arrays import Floats
from coalmine_reproductions.cells import over_seeds

Predicate = Callable[[Floats], bool]
"""Says whether numbers, each a mean over seeds, are as a paper has them."""

Numbers = Mapping[str, Sequence[float]]
"""What a reproduction measured: by name, one number per seed."""


_MOST = 8  # numbers in one line


class Agreement(StrEnum):
    """How a reproduction compares with a claim of its paper."""

    AGREES = "agrees"
    IN_SHAPE = "agrees in shape"
    NOT = "does not come out"
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class JudgedClaim:
    """A claim beside our numbers."""

    text: str
    paper: str
    ours: str
    agreement: Agreement

    def __str__(self) -> str:
        """Return the claim in one line."""
        if self.agreement is Agreement.NOT_TRIED:
            return f"{self.agreement} at this scale: {self.text} (paper: {self.paper})"
        return f"{self.agreement}: {self.text} (paper: {self.paper}; ours: {self.ours})"


@dataclass(frozen=True)
class PaperClaim:
    """A claim of a paper.

    Args:
        text: What the paper claims, in our words.
        paper: The paper's numbers, or "no number".
        numbers: Names of the numbers that decide it.
        agrees: Whether the means over seeds of these numbers agree with the paper.
        in_shape: Where they do not: whether order and size still do. None if the claim is about nothing but an order.
        over: What of a number's values over seeds is judged: their mean, or for claims about stability their
            `relative_spread`, which one seed does not have.

    Example:
        >>> claim = PaperClaim("more noise, less ε", "6.2, 0.2", ("quiet", "noisy"), near(6.2, 0.2, within=0.5), falls)
        >>> str(claim.judged({"quiet": [8.0, 9.0], "noisy": [1.0, 1.5]}))
        'agrees in shape: more noise, less ε (paper: 6.2, 0.2; ours: 8.5 ± 0.707, 1.25 ± 0.354)'
    """

    text: str
    paper: str
    numbers: Sequence[str]
    agrees: Predicate
    in_shape: Predicate | None = None
    over: Callable[[Sequence[float]], float] = lambda values: float(np.mean(values))

    def judged(self, numbers: Numbers) -> JudgedClaim:
        """Compare the claim with measured numbers; without all of them it was not tried."""
        if not all(name in numbers for name in self.numbers):
            return JudgedClaim(self.text, self.paper, "-", Agreement.NOT_TRIED)
        values = [numbers[name] for name in self.numbers]
        means = np.array([self.over(value) for value in values])
        if np.isnan(means).any():
            return JudgedClaim(self.text, self.paper, "-", Agreement.NOT_TRIED)
        ours = ", ".join(over_seeds(value, ".3g") for value in values) if len(values) <= _MOST else "see the table"
        return JudgedClaim(self.text, self.paper, ours, self._agreement(means))

    def _agreement(self, means: Floats) -> Agreement:
        if self.agrees(means):
            return Agreement.AGREES
        if self.in_shape is not None and self.in_shape(means):
            return Agreement.IN_SHAPE
        return Agreement.NOT


def printed(
    text: str, value: float, number: str, *, within: float, spec: str = "g", in_shape: Predicate | None = None
) -> PaperClaim:
    """Return the claim of a single number that the paper prints.

    Args:
        text: What the paper claims, in our words.
        value: The paper's number.
        number: Name of our number.
        within: How far ours may be from it.
        spec: How the paper prints it, as in ``format(value, spec)``.
        in_shape: As for `PaperClaim`.

    Example:
        >>> str(printed("test accuracy", 0.639, "model", within=0.03, spec=".1%").judged({"model": [0.65]}))
        'agrees: test accuracy (paper: 63.9%; ours: 0.65)'
    """
    return PaperClaim(text, format(value, spec), [number], near(value, within=within), in_shape)


def relative_spread(values: Sequence[float]) -> float:
    """Return the standard deviation over seeds as a share of the mean; NaN for a single seed."""
    return float(np.std(values, ddof=1) / np.mean(values)) if len(values) > 1 else math.nan


def near(*expected: float, within: float | Sequence[float]) -> Predicate:
    """Return whether each number is within a distance of the expected one."""
    return lambda means: bool(np.all(np.abs(means - np.array(expected)) <= np.array(within)))


def rises(means: Floats) -> bool:
    """Return whether each number is larger than the one before."""
    return bool(np.all(np.diff(means) > 0))


def falls(means: Floats) -> bool:
    """Return whether each number is smaller than the one before."""
    return bool(np.all(np.diff(means) < 0))


def pairs_fall(means: Floats) -> bool:
    """Return whether the second number of each pair is the smaller one."""
    return bool(np.all(means[1::2] < means[0::2]))
