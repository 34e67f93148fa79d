"""What exposures look like when nothing was memorized."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_confidence, check_count, check_probability

LN2 = math.log(2)


def random_mean(references: float) -> float:
    """Expected exposure of a canary that was not memorized, exact; ``math.inf`` references give 1/ln 2."""
    n = _references(references)
    if n == math.inf:
        return 1 / LN2
    return float(math.log2(n) - special.gammaln(n + 2) / (n + 1) / LN2)


def random_quantile(references: float, probability: float) -> float:
    """The least e such that a canary that was not memorized has exposure ≤ e with at least this probability."""
    n, p = _references(references), check_probability("probability", probability)
    if n == math.inf:
        return -math.log1p(-p) / LN2
    # The quotient, not the rounded product, says whether `count` of the n + 1 equally likely ranks are enough.
    count = max(math.ceil(p * (n + 1)) - 1, 1)
    while count / (n + 1) < p:
        count += 1
    return math.log2(n) - math.log2(n + 2 - count)


@dataclass(frozen=True, kw_only=True)
class OrderStatistic:
    """Exposure of the ``position``-th most exposed of m canaries that share n references, when none was memorized.

    Exact: canaries and references are then exchangeable, and the number of references ahead is beta-binomial. Loss
    ties are left out. ``references`` may be ``math.inf``; the time is linear in it otherwise.
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
        """Expected exposure."""
        if self.references == math.inf:
            return float(special.digamma(self.canaries + 1) - special.digamma(self.position)) / LN2
        ahead = self._ahead()
        return float(math.log2(self.references) - ahead @ np.log2(np.arange(1, ahead.size + 1)))

    def quantile(self, probability: float) -> float:
        """The least e such that the exposure is ≤ e with at least this probability."""
        p = check_probability("probability", probability)
        if self.references == math.inf:
            return float(-np.log2(special.betainccinv(self.position, self.canaries - self.position + 1, p)))
        ahead = self._ahead()
        # Each tail is summed from its own end, so that far quantiles are right; the slack forgives rounding where a
        # probability is met exactly, as a median is by symmetry.
        if p < 0.5:
            rank = ahead.size - np.searchsorted(np.cumsum(ahead[::-1]), p * (1 - 1e-9))
        else:
            rank = 1 + np.searchsorted(np.cumsum(ahead), (1 - p) * (1 + 1e-9), side="right")
        return math.log2(self.references) - math.log2(rank)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Holds the exposure with at least this probability; at most half of the rest lies on either side."""
        tail = (1 - check_confidence(confidence)) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def _ahead(self) -> Floats:
        """Probabilities of 0…n references ahead, shape (n + 1,)."""
        n, after = int(self.references), self.canaries - self.position
        k = np.arange(n + 1.0)
        log = special.gammaln(k + self.position) - special.gammaln(k + 1)
        log = log + (special.gammaln(k + after + 1) - special.gammaln(k + 1))[::-1]
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class RandomGuessing:
    """What exposures look like when nothing was memorized: m canaries exchangeable with n shared references.

    ``mean``, ``median`` and ``quantile`` are those of any one canary (Jagielski 2023, Section 2.1). What m canaries
    give scatters around them: compare a most exposed canary with ``order_statistic(1)``, and the median exposure of
    all canaries with ``sample_median_mean`` and ``sample_median_interval``. ``references`` may be ``math.inf``.
    """

    references: float
    canaries: int = 1

    def __post_init__(self) -> None:
        _references(self.references)
        check_count("canaries", self.canaries)

    def mean(self) -> float:
        """Expected exposure of one canary, and of the average over all of them."""
        return random_mean(self.references)

    def median(self) -> float:
        """Median exposure of one canary: about 1."""
        return random_quantile(self.references, 0.5)

    def quantile(self, probability: float) -> float:
        """Quantile of the exposure of one canary: about −log2(1 − probability)."""
        return random_quantile(self.references, probability)

    def order_statistic(self, position: int) -> OrderStatistic:
        """Law of the exposure of the ``position``-th most exposed canary."""
        return OrderStatistic(references=self.references, canaries=self.canaries, position=position)

    def sample_median_mean(self) -> float:
        """Expected median of the m exposures; of an even number, the mean of the two in the middle."""
        return (self._upper_middle().mean() + self._lower_middle().mean()) / 2

    def sample_median_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Holds the median of the m exposures with at least this probability, and both middle ones of an even m."""
        tail = (1 - check_confidence(confidence)) / 2
        return self._lower_middle().quantile(tail), self._upper_middle().quantile(1 - tail)

    def _upper_middle(self) -> OrderStatistic:
        return self.order_statistic((self.canaries + 1) // 2)

    def _lower_middle(self) -> OrderStatistic:
        return self.order_statistic(self.canaries // 2 + 1)


def _references(value: float) -> float:
    return math.inf if value == math.inf else check_count("references", value)
