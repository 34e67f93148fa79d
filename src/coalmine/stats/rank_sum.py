"""The rank-sum test of a claim: do members outrank non-members more often than the claimed curve allows?

Theorem 3 of docs/simultaneous-bound.md: under any pair of score distributions that a claim allows, the members beat the
non-members no more often than under one least favorable pair, in every comparison at once. So any statistic that grows
with the comparisons won can be calibrated by drawing from that pair. This one counts them all, which makes it the
sharpest test of the curve as a whole; tests at single thresholds (`rank_tests`) see leaks in the tails.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coalmine.arrays import Floats, Ints
from coalmine.stats.nulls import DependentNull
from coalmine.stats.ranks import random_choice
from coalmine.stats.scores import Scores
from coalmine.stats.tradeoff import ApproximateDP, Curve

# Comparing 50 evenly spaced ranks of each side instead of all scores costs about 1% of the power, and makes the cost of
# a draw independent of the number of scores.
_RANKS = 50
DRAWS = 4_999


@dataclass(frozen=True, eq=False)
class RankSum:
    """Draws from which the rank-sum statistic is calibrated, for given numbers of scores.

    Args:
        members: Number of members.
        nonmembers: Number of non-members, or None if their distribution is known.
        rng: Source of the draws.
        draws: Number of draws.

    Example:
        >>> from coalmine.stats.tradeoff import GaussianDP
        >>> rng = np.random.default_rng(0)
        >>> test = RankSum(100, 100, rng)
        >>> scores = Scores(rng.normal(2, 1, 100), rng.normal(0, 1, 100))
        >>> test.p_value_of(scores, GaussianDP(1.0)), test.p_value_of(scores, GaussianDP(3.0)) > 0.5
        (0.0002, True)
    """

    members: int
    nonmembers: int | None
    rng: np.random.Generator
    draws: int = DRAWS

    @classmethod
    def of(cls, scores: Scores) -> RankSum:
        """Return the test for these scores, with draws that depend on their order alone."""
        if scores.null is not None:
            return cls(scores.members.size, None, random_choice(scores.members, scores.members[:0]))
        return cls(scores.members.size, scores.observed.size, random_choice(scores.members, scores.observed))

    def p_value_of(self, scores: Scores, claim: Curve) -> float:
        """Return the p-value of a claim from these scores.

        If they share a random quantity (`DependentNull`), it is the mean over the parts of its values.
        """
        if isinstance(scores.null, DependentNull):
            shares, log_fpr, _ = scores.null.given_shared(self._at_even_ranks(scores))
            p_values = [self.p_value(1 - float(lost), claim) for lost in np.mean(np.exp(log_fpr), axis=0)]
            return float(shares @ p_values)
        return self.p_value(self.statistic(scores), claim)

    def statistic(self, scores: Scores) -> float:
        """Return the share of comparisons that members win; ties count as lost."""
        members = self._at_even_ranks(scores)
        if scores.null is not None:
            return 1 - float(np.mean(np.exp(scores.null.log_sf(members))))
        nonmembers = scores.observed[scores.observed.size - even_ranks(scores.observed.size)]
        return float(np.mean(members[:, None] > nonmembers))

    def _at_even_ranks(self, scores: Scores) -> Floats:
        """Return the members' scores that are compared."""
        return scores.members[self.members - even_ranks(self.members)]

    def drawn(self, curve: Curve) -> Floats:
        """Return the statistic of every draw from the least favorable pair of a curve, shape (draws,)."""
        # A member's score has the FPR curve⁻¹(U) for a uniform U, and a non-member's is uniform itself.
        fpr = curve.fpr(self._members_tail)
        if self._nonmembers_tail is None:
            return np.asarray(1 - fpr.mean(axis=1))
        m, n = fpr.shape[1], self._nonmembers_tail.shape[1]
        # Members come first among equals, which they win. Without any wins they would have the last m places.
        order = np.argsort(np.concatenate([fpr, self._nonmembers_tail], axis=1), axis=1, kind="stable")
        won = np.arange(n, n + m).sum() - (order < m) @ np.arange(m + n)
        return np.asarray(won / (m * n))

    def p_value(self, statistic: float, claim: Curve) -> float:
        """Return the p-value of a claim: a Monte Carlo test, so it is valid for any number of draws."""
        reached = self.draws - np.searchsorted(self._sorted(claim), statistic - 1e-12, side="left")
        return float((1 + reached) / (1 + self.draws))

    def power(self, claim: Curve, truth: Curve, level: float) -> float:
        """Return the probability that the test rejects ``claim`` at significance ``level`` if ``truth`` holds.

        For the attack with the highest power that ``truth`` allows.
        """
        return float(np.mean(self.drawn(truth) > self.critical(claim, level)))

    def critical(self, claim: Curve, level: float) -> float:
        """Return the statistic above which the test rejects ``claim`` at significance ``level``."""
        # The p-value is at most `level` if at most this many of the draws reach the statistic.
        allowed = int(np.floor(level * (1 + self.draws) + 1e-9)) - 1
        return float(self._sorted(claim)[-1 - allowed]) + 1e-12 if allowed >= 0 else np.inf

    def _sorted(self, claim: Curve) -> Floats:
        """Return the sorted statistics of the draws; kept, since a claim is asked for many times."""
        if claim not in self._kept:
            self._kept[claim] = np.sort(self.drawn(claim))
        return self._kept[claim]

    @cached_property
    def _kept(self) -> dict[Curve, Floats]:
        return {}

    @cached_property
    def _members_tail(self) -> Floats:
        return uniform_order_statistics(self.members, even_ranks(self.members), self.rng, self.draws)

    @cached_property
    def _nonmembers_tail(self) -> Floats | None:
        _ = self._members_tail  # drawn first, whatever is asked for first
        if self.nonmembers is None:
            return None
        return uniform_order_statistics(self.nonmembers, even_ranks(self.nonmembers), self.rng, self.draws)


def even_ranks(count: int) -> Ints:
    """Return at most `_RANKS` evenly spaced ranks from the top, 1 being the highest score."""
    ranks = np.ceil((np.arange(min(count, _RANKS)) + 0.5) * count / min(count, _RANKS))
    return ranks.astype(np.int64)


def uniform_order_statistics(count: int, ranks: Ints, rng: np.random.Generator, draws: int) -> Floats:
    """Return draws of the order statistics of ``count`` uniform numbers at ascending ranks, smallest first."""
    # Gaps between order statistics are gamma variables over their sum.
    shapes = np.diff(np.concatenate([[0], ranks, [count + 1]]))
    gaps = rng.standard_gamma(shapes, (draws, shapes.size))
    sums = np.cumsum(gaps, axis=1)
    return np.asarray(sums[:, :-1] / sums[:, -1:])


def seem_inverted(scores: Scores, level: float = 0.001) -> bool:
    """Whether members score significantly *lower* than non-members, as if the scores were losses.

    Args:
        scores: Scores of members and of non-members. With a known null the answer is always False.
        level: How often scores that say nothing about membership seem inverted.

    Returns:
        True if a test at significance ``level`` finds members below non-members.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> seem_inverted(Scores(rng.normal(-1, 1, 100), rng.normal(0, 1, 100)))
        True
    """
    if scores.null is not None:
        return False
    negated = Scores(-scores.members, -scores.observed)
    return RankSum.of(negated).p_value_of(negated, ApproximateDP(0.0, 0.0)) <= level
