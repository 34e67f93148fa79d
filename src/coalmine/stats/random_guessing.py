"""Baselines for exposure: its exact distribution if no canary was memorized (Jagielski, 2023, Section 2.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_confidence, check_count, check_probability

LN2 = math.log(2)


def random_mean(references: float) -> float:
    """Return the exact mean exposure of a canary that was not memorized; 1/ln 2 for infinitely many references."""
    n = _references(references)
    if n == math.inf:
        return 1 / LN2
    return float(math.log2(n) - special.gammaln(n + 2) / (n + 1) / LN2)


def random_quantile(references: float, probability: float) -> float:
    """Return the least e such that a canary that was not memorized has exposure ≤ e with at least this probability."""
    n, p = _references(references), check_probability("probability", probability)
    if n == math.inf:
        return -math.log1p(-p) / LN2
    # The product is rounded, so check with the quotient whether `count` of the n + 1 equally likely ranks suffice.
    count = max(math.ceil(p * (n + 1)) - 1, 1)
    while count / (n + 1) < p:
        count += 1
    return math.log2(n) - math.log2(n + 2 - count)


@dataclass(frozen=True, kw_only=True)
class OrderStatistic:
    """Distribution of the exposure of the k-th most exposed of m canaries, if none was memorized.

    Exact for losses without ties: canaries and references are then exchangeable, and the number of references ahead of
    the canary is beta-binomial.

    Args:
        references: Number of references that the canaries share; `math.inf` is allowed. Time is linear in it.
        canaries: Number m of canaries.
        position: Position k of the canary, from 1 for the most exposed.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> top = OrderStatistic(references=1000, canaries=100, position=1)
        >>> round(top.mean(), 1), round(top.quantile(0.5), 1)
        (7.2, 7.0)
    """

    references: float
    canaries: int
    position: int

    def __post_init__(self) -> None:
        _references(self.references)
        check_count("canaries", self.canaries)
        if check_count("position", self.position) > self.canaries:
            raise InputError(f"position must be at most the {self.canaries} canaries, got {self.position}")

    def mean(self) -> float:
        """Return the mean exposure."""
        if self.references == math.inf:
            return float(special.digamma(self.canaries + 1) - special.digamma(self.position)) / LN2
        ahead = self._ahead()
        return float(math.log2(self.references) - ahead @ np.log2(np.arange(1, ahead.size + 1)))

    def quantile(self, probability: float) -> float:
        """Return the least e such that the exposure is ≤ e with at least this probability."""
        p = check_probability("probability", probability)
        if self.references == math.inf:
            return float(-np.log2(special.betainccinv(self.position, self.canaries - self.position + 1, p)))
        ahead = self._ahead()
        # Each tail is summed from its own end to keep far quantiles accurate. The slack absorbs rounding where a
        # probability is met exactly, as for a median by symmetry.
        if p < 0.5:
            rank = ahead.size - np.searchsorted(np.cumsum(ahead[::-1]), p * (1 - 1e-9))
        else:
            rank = 1 + np.searchsorted(np.cumsum(ahead), (1 - p) * (1 + 1e-9), side="right")
        return math.log2(self.references) - math.log2(rank)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return an equal-tailed interval that contains the exposure with at least this probability."""
        tail = (1 - check_confidence(confidence)) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def _ahead(self) -> Floats:
        """Return the probabilities of 0…n references ahead of the canary, shape (n + 1,)."""
        n, after = int(self.references), self.canaries - self.position
        k = np.arange(n + 1.0)
        log = special.gammaln(k + self.position) - special.gammaln(k + 1)
        log = log + (special.gammaln(k + after + 1) - special.gammaln(k + 1))[::-1]
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class RandomGuessing:
    """Distribution of exposures if nothing was memorized: m canaries exchangeable with n shared references.

    ``mean``, ``median`` and ``quantile`` are for a single canary (Jagielski, 2023, Section 2.1). Compare the most
    exposed of m canaries with ``order_statistic(1)``, and the median exposure of all of them with
    ``sample_median_mean`` and ``sample_median_interval``.

    Args:
        references: Number n of references; `math.inf` is the baseline of extrapolated exposure.
        canaries: Number m of canaries.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> baseline = RandomGuessing(references=1000, canaries=101)
        >>> round(baseline.mean(), 2), round(baseline.median(), 2)
        (1.43, 1.0)
        >>> [round(end, 2) for end in baseline.sample_median_interval()]
        [0.73, 1.32]
    """

    references: float
    canaries: int = 1

    def __post_init__(self) -> None:
        _references(self.references)
        check_count("canaries", self.canaries)

    def mean(self) -> float:
        """Return the mean exposure of one canary, which is also that of the average over all of them."""
        return random_mean(self.references)

    def median(self) -> float:
        """Return the median exposure of one canary: about 1 bit."""
        return random_quantile(self.references, 0.5)

    def quantile(self, probability: float) -> float:
        """Return a quantile of the exposure of one canary: about −log2(1 − probability)."""
        return random_quantile(self.references, probability)

    def order_statistic(self, position: int) -> OrderStatistic:
        """Return the distribution of the exposure of the ``position``-th most exposed canary."""
        return OrderStatistic(references=self.references, canaries=self.canaries, position=position)

    def sample_median_mean(self) -> float:
        """Return the mean of the median of the m exposures."""
        return (self._upper_middle().mean() + self._lower_middle().mean()) / 2

    def sample_median_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return an interval that contains the median of the m exposures with at least this probability.

        For an even m it contains both of the middle exposures.
        """
        tail = (1 - check_confidence(confidence)) / 2
        return self._lower_middle().quantile(tail), self._upper_middle().quantile(1 - tail)

    def _upper_middle(self) -> OrderStatistic:
        """Return the distribution of the larger of the two middle exposures; of the middle one for an odd m."""
        return self.order_statistic((self.canaries + 1) // 2)

    def _lower_middle(self) -> OrderStatistic:
        """Return the distribution of the smaller of the two middle exposures; of the middle one for an odd m."""
        return self.order_statistic(self.canaries // 2 + 1)


def _references(value: float) -> float:
    """Return a number of references, which may be infinite."""
    return math.inf if value == math.inf else check_count("references", value)
