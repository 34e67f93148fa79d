"""Do the scores contradict a claim? One p-value for the whole claimed curve, and the power to detect less noise.

The rank-sum test asks whether members outrank non-members more often than the curve allows. Theorem 3 of
docs/proofs.md: under any pair of score distributions that a claim allows, the members beat the non-members
no more often than under one least favorable pair, in every comparison at once. So any statistic that grows with the
comparisons won can be calibrated by drawing from that pair. This one counts them all, which makes it the sharpest test
of the curve as a whole; tests at single thresholds (`rank_tests`) see leaks in the tails.

With a known null no draws are needed. The curve says how likely a member scores as high as each one does, at most, and
the sum of these probabilities is compared with that of as many uniform numbers, whose distribution is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy import special

from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError
from coalmine.seeds import default_rng
from coalmine.stats.nulls import DependentNull
from coalmine.stats.one_run import guess_families, guess_power, most_powerful_guesses
from coalmine.stats.rank_tests import TWO_TAILS_WEIGHT, Design, member_ranks, random_choice
from coalmine.stats.scores import COIN_FLIPS, INDEPENDENT, Scores
from coalmine.stats.simultaneous_bound import claim_families, joint_p_value
from coalmine.stats.tradeoff import ApproximateDP, BetaPair, Curve, GaussianDP

# The rank-sum test is the sharpest for noise that is too small everywhere, the others see leaks in the tails.
RANK_SUM_SHARE = 0.5
_POWER_DRAWS = 1_999  # of which the power is known to 0.01
_FEW_UNIFORM = 16  # uniform numbers whose series would converge slowly
_FARTHEST = 1e3  # standard deviations: a score that is certainly a member's counts as this far away


class ClaimTests:
    """The tests of a claim on given scores.

    Half of the significance goes to the rank-sum test of the whole curve, half to the tests at ranks fixed in advance.
    If scores may depend on one another, only the one-run guessing test is used.

    Args:
        scores: Scores of members and of non-members, or with a known null.
        design: How members were chosen.
        dependent: Whether scores may depend on one another.
        guesses: Number of canaries to guess about if scores are dependent, chosen without looking at who is a member;
            by default half of them. `most_powerful_guesses` suggests one.

    Raises:
        InputError: If the design is unknown, or dependent scores come without coin flips.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> tests = ClaimTests(Scores(rng.normal(2, 1, 100), rng.normal(0, 1, 100)))
        >>> tests.p_value(GaussianDP(mu=1.0)) < 0.01, tests.p_value(GaussianDP(mu=2.0)) > 0.05
        (True, True)
    """

    def __init__(
        self, scores: Scores, *, design: Design = "fixed", dependent: bool = False, guesses: int | None = None
    ) -> None:
        if dependent and (design == "fixed" or scores.null is not None):
            raise InputError("dependent scores need observed non-members and the design 'coin-flips'")
        self.scores, self.design, self.dependent = scores, design, dependent
        self.members = scores.members.size
        self.nonmembers: int | None = None
        self._by_signs = isinstance(scores.null, DependentNull)
        others = scores.members[:0]
        if scores.null is not None:
            self.standard_error = 1 / math.sqrt(self.members)  # of `separation`, roughly
            self.assumes = f"{INDEPENDENT}; their null distribution is exact"
            # How likely a non-member scores at least, and below, what each member does, in logarithms (members, parts).
            # The parts are those of a random quantity that all scores share, whose probabilities come first.
            log_fpr, log_tnr = scores.null.log_sf(scores.members), scores.null.log_cdf(scores.members)
            self._tails = np.ones(1), log_fpr[:, None], log_tnr[:, None]
            if isinstance(scores.null, DependentNull):
                self._tails = scores.null.given_shared(scores.members)
            self.separation = max(0.0, separation(log_fpr, self.members))
        else:
            others = scores.observed
            self.nonmembers = others.size
            self.standard_error = math.sqrt(1 / self.members + 1 / others.size)
            self.assumes = COIN_FLIPS if dependent else INDEPENDENT
            below = np.searchsorted(others, scores.members, side="left")
            tied = np.searchsorted(others, scores.members, side="right") - below
            lost = 1 - float(np.mean(below + tied / 2)) / others.size
            least = 1 / (2 * self.members * others.size)
            self.separation = max(0.0, float(-math.sqrt(2) * special.ndtri(max(lost, least))))
            # The draws of the rank-sum test depend on the order of the scores alone.
            self.rank_sum = RankSum(self.members, self.nonmembers, random_choice(scores.members, others))
        self._guesses = guesses or (self.members + others.size) // 2

    def p_value(self, claim: Curve) -> float:
        """Return the p-value of a claim."""
        if self.dependent:
            return joint_p_value(guess_families(self.scores, self._guesses), claim)
        floor, null = 0.0, self.scores.null
        if null is None:
            whole = self.rank_sum.p_value(self.scores, claim)
        else:
            # From the sum of the probabilities that members score as high as they do.
            shares, log_fpr, log_tnr = self._tails
            sums = claim.directions[0].tpr_at_tails(log_fpr, log_tnr).sum(axis=0)
            whole = float(shares @ uniform_sum_cdf(sums, self.members))
        at_ranks = joint_p_value(claim_families(self.scores, self.design, claim), claim) / (1 - RANK_SUM_SHARE)
        if isinstance(null, DependentNull):
            # The p-value of uninformative scores holds even if the null is only an approximation.
            floor = null.proved_p_value(self.scores.members)
        return max(floor, min(1.0, whole / RANK_SUM_SHARE, at_ranks))

    def powers(self, claim: Curve, alpha: float, factor: float = 1.0) -> Callable[[Curve], float]:
        """Return the probability to reject ``claim``, as a function of the curve that the attack really reaches.

        With counted non-members it is a lower limit where there are guesses in both tails, which it leaves out.

        Args:
            claim: The claim.
            alpha: Significance of the test.
            factor: How many times as many canaries there are.
        """
        members, nonmembers = math.ceil(self.members * factor), math.ceil((self.nonmembers or 0) * factor)
        if self.dependent:
            canaries = members + nonmembers

            def guessed(truth: Curve) -> float:
                guesses = self._guesses if factor == 1 else most_powerful_guesses(canaries, claim, truth, alpha)
                return float(guess_power(canaries, np.array([guesses]), claim, truth, alpha)[0])

            return guessed
        if self.nonmembers is None:
            return KnownNullDetection(members, claim, alpha, by_signs=self._by_signs).power
        return CountedDetection(members, nonmembers, claim, alpha, self.design).power


class Detection(Protocol):
    """Simulated audits, and how many of them reject a claim."""

    def power(self, truth: Curve) -> float:
        """Return the share of the audits that reject the claim if ``truth`` holds."""
        ...


class CountedDetection(Detection):
    """Simulated audits with counted non-members, which test by rank sum and at thresholds.

    The significance of guesses in both tails is left out, so the power is a lower limit where there are any.

    Args:
        members: Number of members.
        nonmembers: Number of non-members.
        claim: The claim.
        alpha: Significance of all tests together.
        design: How members were chosen.

    Example:
        >>> CountedDetection(50, 50, GaussianDP(1.0), 0.05, "fixed").power(GaussianDP(2.0)) > 0.95
        True
    """

    def __init__(self, members: int, nonmembers: int, claim: Curve, alpha: float, design: Design) -> None:
        top = member_ranks(members).astype(np.float64)
        # The share of these tests beside guesses in both tails, if there are any (`claim_families`).
        others_weight = 0.0
        if design == "coin-flips" or isinstance(claim, ApproximateDP):
            guessed = 1.0 if design == "coin-flips" else 2 * min(members, nonmembers) / (members + nonmembers)
            others_weight = TWO_TAILS_WEIGHT * guessed
        level = alpha * (1 - RANK_SUM_SHARE) / (1 + others_weight) / top.size
        # How many non-members must score lower than the member at each rank for the claim to be rejected there; one
        # more than all where it never is. A bisection.
        low, high = np.zeros(top.size, dtype=np.int64), np.full(top.size, nonmembers + 1)
        while np.any(open_ranks := high - low > 1):
            beaten = np.where(open_ranks, (low + high) // 2, high)
            pairs = BetaPair(top, members - top + 1, nonmembers - beaten + 1.0, np.maximum(beaten, 1.0))
            rejects = (beaten <= nonmembers) & (pairs.probability_below(claim) <= level)
            low, high = np.where(open_ranks & ~rejects, beaten, low), np.where(rejects, beaten, high)
        # The first of them counts: the non-member that has as many others above it as may score higher.
        possible = high <= nonmembers
        top, first = self.compared_ranks = top[possible], (nonmembers + 1 - high)[possible]
        ranks, other_ranks = np.union1d(even_ranks(members), top), np.union1d(even_ranks(nonmembers), first)
        self._even = np.searchsorted(ranks, even_ranks(members)), np.searchsorted(other_ranks, even_ranks(nonmembers))
        self._compared = np.searchsorted(ranks, top), np.searchsorted(other_ranks, first)
        rng = default_rng(1)
        self._uniform = uniform_order_statistics(members, ranks, rng, _POWER_DRAWS)
        self._quantiles = special.ndtri(self._uniform)
        self._others = uniform_order_statistics(nonmembers, other_ranks, rng, _POWER_DRAWS)
        self._critical = RankSum(members, nonmembers, rng).critical(claim, alpha * RANK_SUM_SHARE)

    def power(self, truth: Curve) -> float:
        """Return the share of the audits that reject the claim if ``truth`` holds."""
        fpr = member_fpr(truth, self._uniform, self._quantiles)
        whole = comparisons_won(fpr[:, self._even[0]], self._others[:, self._even[1]]) > self._critical
        at_top = fpr[:, self._compared[0]] < self._others[:, self._compared[1]]
        return float(np.mean(whole | at_top.any(axis=1)))


class KnownNullDetection(Detection):
    """Simulated audits with a known null.

    The mean over all members is simulated as that over at most 50 order statistics, in the middle of even blocks.

    Args:
        members: Number of members.
        claim: The claim.
        alpha: Significance of all tests together.
        by_signs: Whether nothing is rejected that the signs of the scores do not reject (`DependentNull`).

    Example:
        >>> detection = KnownNullDetection(25, GaussianDP(10.0), 0.05)  # claims ε = 96 at δ = 1e-5
        >>> detection.power(GaussianDP(20.0))  # ε = 292
        1.0
    """

    def __init__(self, members: int, claim: Curve, alpha: float, *, by_signs: bool = False) -> None:
        level = alpha * RANK_SUM_SHARE
        blocks, self._top = min(members, _RANKS), member_ranks(members)
        even = (np.arange(blocks) + 0.5) * members / blocks + 0.5  # need not be whole
        ranks = np.union1d(even, self._top)
        self._claim, self._members = claim, members
        self._even_columns, self._top_columns = np.searchsorted(ranks, even), np.searchsorted(ranks, self._top)
        self._uniform = uniform_order_statistics(members, ranks, default_rng(1), _POWER_DRAWS)
        self._quantiles = special.ndtri(self._uniform)
        # The largest mean that rejects.
        self._critical, high = 0.0, 0.5
        for _ in range(40):
            middle = (self._critical + high) / 2
            rejects = uniform_sum_cdf(np.array(middle * members), members) <= level
            self._critical, high = (middle, high) if rejects else (self._critical, middle)
        self._level_at_ranks = (alpha - level) / self._top.size
        self._cannot_reject = by_signs and 0.5**members > alpha  # not even if all scores are positive

    def power(self, truth: Curve) -> float:
        """Return the share of the audits that reject the claim if ``truth`` holds."""
        if self._cannot_reject:
            return 0.0
        fpr = member_fpr(truth, self._uniform, self._quantiles)
        with np.errstate(divide="ignore"):
            allowed = self._claim.directions[0].tpr_at_tails(np.log(fpr), np.log1p(-fpr))
        at_top = special.betainc(self._top, self._members - self._top + 1, allowed[:, self._top_columns])
        whole = allowed[:, self._even_columns].mean(axis=1) <= self._critical
        return float(np.mean(whole | (at_top <= self._level_at_ranks).any(axis=1)))


def uniform_sum_cdf(totals: Floats, count: int) -> Floats:
    """Return the probability that so many independent uniform numbers add up to at most each total (Irwin–Hall).

    Rounded up by 1e-15 for each number, more than the error of the computation.

    Args:
        totals: The totals, any shape.
        count: How many uniform numbers, at least 1.

    Example:
        >>> uniform_sum_cdf(np.array([0.5, 1.5]), 3).round(6)  # 0.5³/3! and, by symmetry, ½
        array([0.020833, 0.5     ])
    """
    if count <= _FEW_UNIFORM:
        # F_k(x) = (x·F_{k−1}(x) + (k − x)·F_{k−1}(x − 1))/k, at x = total, total − 1, …
        x = totals[..., None] - np.arange(count + 1)
        cdf = np.where(x >= 0, 1.0, 0.0)
        for k in range(1, count + 1):
            weight = np.clip(x / k, 0, 1)[..., :-1]
            cdf[..., :-1] = weight * cdf[..., :-1] + (1 - weight) * cdf[..., 1:]
        return np.asarray(np.minimum(cdf[..., 0] * (1 + 1e-15 * count), 1.0))
    # The Fourier series of the distribution function with a period of twice its range. Its terms fall like the
    # characteristic function, sinc(t/2) to the power of the count.
    odd = np.arange(1, 20 * math.isqrt(count) + 50, 2)
    terms = np.sinc(odd / (2 * count)) ** count / odd
    angles = np.pi / count * (totals[..., None] - count / 2) * odd
    return np.asarray(np.clip(0.5 + 2 / np.pi * np.sin(angles) @ terms + 1e-15 * count, 0.0, 1.0))


def separation(log_fpr: Floats, members: int) -> float:
    """Return the distance in standard deviations of two normal distributions that overlap like the members' FPRs.

    It is that of the same area under the ROC curve. Where less overlaps than so many members show, it is their mean
    distance in standard deviations from non-members, which is the same for normal distributions.

    Args:
        log_fpr: ln FPR at the score of each member, or at evenly spread quantiles of members' scores.
        members: Number of members.

    Example:
        >>> from coalmine.stats.nulls import NormalNull
        >>> quantiles = special.ndtri((np.arange(1000) + 0.5) / 1000)
        >>> [round(separation(NormalNull().log_sf(mu + quantiles), members=25), 2) for mu in (1, 5, 30)]
        [1.0, 5.0, 30.0]
    """
    lost = float(np.mean(np.exp(log_fpr)))
    if lost >= 1 / (2 * members):
        return float(-math.sqrt(2) * special.ndtri(lost))
    return float(np.mean(np.minimum(-special.ndtri_exp(log_fpr), _FARTHEST)))


# Comparing 50 evenly spaced ranks of each side instead of all scores costs about 1% of the power, and makes the cost of
# a draw independent of the number of scores.
_RANKS = 50
DRAWS = 4_999
_ROUNDING = 1e-12  # statistics that differ by less are equal


class RankSum:
    """Draws from which the rank-sum statistic is calibrated, for given numbers of scores.

    Args:
        members: Number of members.
        nonmembers: Number of non-members.
        rng: Source of the draws.
        draws: Number of draws.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> test = RankSum(100, 100, rng)
        >>> scores = Scores(rng.normal(2, 1, 100), rng.normal(0, 1, 100))
        >>> test.p_value(scores, GaussianDP(1.0)), test.p_value(scores, GaussianDP(3.0)) > 0.5
        (0.0002, True)
    """

    def __init__(self, members: int, nonmembers: int, rng: np.random.Generator, draws: int = DRAWS) -> None:
        self.members, self.draws = members, draws
        self._uniform = uniform_order_statistics(members, even_ranks(members), rng, draws)
        self._quantiles = special.ndtri(self._uniform)
        self._nonmembers = uniform_order_statistics(nonmembers, even_ranks(nonmembers), rng, draws)

    def p_value(self, scores: Scores, claim: Curve) -> float:
        """Return the p-value of a claim from these scores: a Monte Carlo test, valid for any number of draws."""
        least = self.statistic(scores) - _ROUNDING
        reached = max(int(np.count_nonzero(self.drawn(each) >= least)) for each in claim.directions)
        return (1 + reached) / (1 + self.draws)

    def statistic(self, scores: Scores) -> float:
        """Return the share of comparisons that members win; ties count as lost."""
        members = scores.members[self.members - even_ranks(self.members)]
        nonmembers = scores.observed[scores.observed.size - even_ranks(scores.observed.size)]
        return float(np.mean(members[:, None] > nonmembers))

    def drawn(self, curve: Curve) -> Floats:
        """Return the statistic of draws from the least favorable pair of a curve."""
        # A member's score has the FPR curve⁻¹(U) for a uniform U, and a non-member's is uniform itself.
        return comparisons_won(member_fpr(curve, self._uniform, self._quantiles), self._nonmembers)

    def critical(self, claim: Curve, level: float) -> float:
        """Return the statistic above which the test rejects ``claim`` at significance ``level``."""
        # The p-value is at most `level` if at most this many of the draws reach the statistic.
        allowed = int(np.floor(level * (1 + self.draws) + 1e-9)) - 1
        if allowed < 0:
            return np.inf
        return max(float(np.sort(self.drawn(each))[-1 - allowed]) for each in claim.directions) + _ROUNDING


def comparisons_won(fpr: Floats, others: Floats) -> Floats:
    """Return the share of comparisons that members win in each row, from the FPRs at all scores, (rows, scores)."""
    m, n = fpr.shape[1], others.shape[1]
    # Ties count as wins for members. Without any wins, members would take the last m places.
    order = np.argsort(np.concatenate([fpr, others], axis=1), axis=1, kind="stable")
    # Exact in float32, and by einsum, since BLAS takes ten times as long for such narrow rows.
    places = np.einsum("ij,j->i", (order < m).astype(np.float32), np.arange(m + n, dtype=np.float32))
    return np.asarray((np.arange(n, n + m).sum() - places) / (m * n), dtype=np.float64)


def member_fpr(curve: Curve, uniform: Floats, quantiles: Floats) -> Floats:
    """Return the FPRs at members' scores of uniform tail probabilities if a curve holds: curve⁻¹ of them.

    ``quantiles`` are their normal quantiles, the slow part for a Gaussian curve, and the same for every μ.
    """
    if isinstance(curve, GaussianDP):
        return np.asarray(special.ndtr(quantiles - curve.mu))
    return curve.fpr(uniform)


def even_ranks(count: int) -> Ints:
    """Return at most `_RANKS` evenly spaced ranks from the top, 1 being the highest score."""
    ranks = np.ceil((np.arange(min(count, _RANKS)) + 0.5) * count / min(count, _RANKS))
    return ranks.astype(np.int64)


def uniform_order_statistics(count: int, ranks: Ints | Floats, rng: np.random.Generator, draws: int) -> Floats:
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
    return ClaimTests(negated).rank_sum.p_value(negated, ApproximateDP(0.0, 0.0)) <= level
