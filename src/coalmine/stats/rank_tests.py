"""Tests of a privacy claim at ranks fixed before the scores were seen, each with a valid p-value.

Theorems 1 and 2, which the p-values rest on, are proved in docs/simultaneous-bound.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, Self

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError
from coalmine.stats.nulls import DependentNull, Null
from coalmine.stats.ranks import balanced, both_tails, member_ranks
from coalmine.stats.rates import binomial_cdf
from coalmine.stats.scores import Scores
from coalmine.stats.tradeoff import NODES, WEIGHTS, ApproximateDP, BetaPair, Curve, quantiles

Design = Literal["fixed", "coin-flips"]
"""How members were chosen: in fixed numbers, or each canary by its own fair coin flip."""

# Guesses in both tails see twice the evidence if the mechanism is symmetric, as Gaussian noise is, so they get more of
# the significance than the single thresholds (weight 1), which also work for asymmetric mechanisms.
TWO_TAILS_WEIGHT = 1.5

# Share of the canaries that are guessed about when a whole curve is tested. Unlike a single (ε, δ), which is decided at
# one place in the tails, a curve can be refuted anywhere, most easily where many canaries are.
CURVE_GUESSES = 0.75


class Tests(Protocol):
    """A family of tests fixed before the scores were seen."""

    @property
    def thresholds(self) -> Floats:
        """The score at which each test looks, shape (tests,)."""
        ...

    @property
    def weight(self) -> float:
        """The family's share of the significance, relative to other families."""
        ...

    def p_values(self, claim: Curve, indices: Ints) -> Floats:
        """Return the p-values of the tests at ``indices``, or upper limits on them."""
        ...

    def rejects(self, claim: Curve, indices: Ints, level: float) -> Bools:
        """Return whether each of the tests at ``indices`` rejects the claim at significance ``level``."""
        ...


@dataclass(frozen=True)
class ObservedThresholds:
    """Tests at single thresholds, each the score of the v-th best of m members.

    If a of the n non-members score at least as high, the p-value is P(Beta(v, m−v+1) ≤ curve(Beta(a+1, n−a))), which is
    attained by the least favorable scores that the claim allows (docs/simultaneous-bound.md, Theorem 1).
    """

    thresholds: Floats
    pairs: BetaPair
    beaten: Bools
    weight: float = 1.0

    @classmethod
    def at(cls, scores: Scores) -> Self:
        """Return the tests at the ranks of `member_ranks`."""
        m, n = scores.members.size, scores.observed.size
        rank = member_ranks(m)
        thresholds = scores.members[m - rank]
        above = n - np.searchsorted(scores.observed, thresholds, side="left")
        v, a = rank.astype(np.float64), above.astype(np.float64)
        return cls(thresholds, BetaPair(v, m - v + 1, a + 1, np.maximum(n - a, 1)), above == n)

    def p_values(self, claim: Curve, indices: Ints) -> Floats:
        """Return the p-values of the tests at ``indices``; 1 if every non-member scores at least as high."""
        return np.where(self.beaten[indices], 1.0, self.pairs.probability_below(claim, indices))

    def rejects(self, claim: Curve, indices: Ints, level: float) -> Bools:
        """Return whether each of the tests at ``indices`` rejects the claim at significance ``level``."""
        # Most tests are far from rejecting, which a lower limit on the p-value shows without an integral.
        rejected = self.pairs.probability_at_least(claim, indices) <= level
        if rejected.any():
            rejected[rejected] = self.p_values(claim, indices[rejected]) <= level
        return rejected


@dataclass(frozen=True)
class KnownNullThresholds:
    """The same tests with an exact false positive rate; the p-value is P(Beta(v, m−v+1) ≤ curve(FPR)).

    If scores share a random quantity, FPR and TNR have one column for each part of its values, and the p-value is the
    mean over these parts, of probabilities ``shares``. No p-value is below ``floor``: a p-value that holds even if the
    null is only an approximation, divided by the number of tests, which together reject no more than it does.
    """

    thresholds: Floats
    rank: Ints
    members: int
    log_fpr: Floats
    log_tnr: Floats
    shares: Floats
    floor: float = 0.0
    weight: float = 1.0

    @classmethod
    def at(cls, scores: Scores, null: Null) -> Self:
        """Return the tests at the ranks of `member_ranks`."""
        members = scores.members.size
        rank = member_ranks(members)
        thresholds = scores.members[members - rank]
        if isinstance(null, DependentNull):
            shares, log_fpr, log_tnr = null.given_shared(thresholds)
            floor = null.proved_p_value(scores.members) / rank.size
            return cls(thresholds, rank, members, log_fpr, log_tnr, shares, floor)
        log_fpr, log_tnr = null.log_sf(thresholds)[:, None], null.log_cdf(thresholds)[:, None]
        return cls(thresholds, rank, members, log_fpr, log_tnr, np.ones(1))

    def p_values(self, claim: Curve, indices: Ints) -> Floats:
        """Return the p-values of the tests at ``indices``."""
        allowed = claim.tpr_at_tails(self.log_fpr[indices], self.log_tnr[indices])
        v = self.rank[indices, None]
        result: Floats = np.maximum(special.betainc(v, self.members - v + 1, allowed) @ self.shares, self.floor)
        return result

    def rejects(self, claim: Curve, indices: Ints, level: float) -> Bools:
        """Return whether each of the tests at ``indices`` rejects the claim at significance ``level``."""
        return self.p_values(claim, indices) <= level


def threshold_tests(scores: Scores) -> ObservedThresholds | KnownNullThresholds:
    """Return the tests at single thresholds, at the ranks of `member_ranks`."""
    return ObservedThresholds.at(scores) if scores.null is None else KnownNullThresholds.at(scores, scores.null)


@dataclass(frozen=True)
class TwoTails:
    """Tests that guess "member" for the r top scores of all canaries and "non-member" for the r bottom ones.

    ``right`` of the ``guesses`` = 2r guesses are right. Under (ε, δ)-DP each guess is right with probability at most
    e^ε/(1+e^ε), except for canaries that the δ part gives away. With coin flips the guesses are independent, and any
    other curve can be tested as well. With fixed numbers of members and non-members they are not, which costs at most
    the factor `fixed_numbers_factor` (docs/simultaneous-bound.md, Theorems 2 and 4).
    """

    thresholds: Floats
    guesses: Ints
    right: Ints
    canaries: int
    design: Design
    weight: float = TWO_TAILS_WEIGHT

    def p_values(self, claim: Curve, indices: Ints) -> Floats:
        """Return the p-values of the tests at ``indices``; with fixed numbers, the claim must be an `ApproximateDP`."""
        guesses, right = self.guesses[indices], self.right[indices]
        if self.design == "coin-flips":
            if isinstance(claim, ApproximateDP):
                return tail_probability(guesses, right, self.canaries, claim)
            return curve_tail_probability(guesses, right, self.canaries, claim)
        if not isinstance(claim, ApproximateDP):
            raise TypeError(f"with fixed numbers of members, two-tailed guesses test (ε, δ)-DP only, got {claim}")
        return tail_probability(guesses, right, self.canaries, claim, fixed_numbers=True)

    def rejects(self, claim: Curve, indices: Ints, level: float) -> Bools:
        """Return whether each of the tests at ``indices`` rejects the claim at significance ``level``."""
        return self.p_values(claim, indices) <= level


def tail_probability(
    guesses: Ints, right: Ints, canaries: int, claim: ApproximateDP, *, fixed_numbers: bool = False, steps: int = 128
) -> Floats:
    """Bound the probability of at least ``right`` right guesses under (ε, δ)-DP, elementwise.

    E[P(Bin(R − G, q) ≥ w − G)] with q = e^ε/(1+e^ε) and G ~ Bin(N, δ), for w right ones of R guesses about N canaries;
    with fixed numbers of members, each term is multiplied by `fixed_numbers_factor` (docs/simultaneous-bound.md). The
    expectation is over at most ``steps`` values of G, rounded up.
    """
    q = float(special.expit(claim.epsilon))
    total, correct = guesses.astype(np.float64)[:, None], right.astype(np.float64)[:, None]
    given_away, mass = binomial_steps(canaries, claim.delta, steps)
    # Canaries that are given away are guessed right for free; the others must account for the rest.
    needed = correct - given_away
    tail = np.where(needed > 0, special.betainc(np.maximum(needed, 1), total - correct + 1, q), 1.0)
    if fixed_numbers:
        tail = tail * fixed_numbers_factor(canaries, total, given_away, q)
    return np.minimum(tail @ mass, 1.0)


def curve_tail_probability(guesses: Ints, right: Ints, canaries: int, claim: Curve) -> Floats:
    """Bound the probability of at least ``right`` right guesses under any claim, with coin flips, elementwise.

    P(Bin(R, 1 − x/V) ≥ w) for V ~ Beta(R + 1, N − R) and x + f(x) = V, where f is the curve: the R most exposed
    canaries lie in the two tails of total probability V, and a share f(x)/V of what is there is guessed right
    (docs/simultaneous-bound.md, Theorem 4). The number of guesses must be smaller than the number of canaries.
    """
    total, correct = guesses.astype(np.float64)[:, None], right.astype(np.float64)[:, None]
    a, b = total + 1, canaries - total
    edges = np.sort(quantiles(a[:, 0], b[:, 0]), axis=1)
    # A curve with f(0) > 0 gives the canaries in its first part away: their share of right guesses has a kink there.
    edges = np.sort(np.append(edges, np.clip(claim.tpr(np.zeros((edges.shape[0], 1))), edges[:, :1], edges[:, -1:]), 1))
    width = np.diff(edges, axis=1)[..., None]
    v = edges[:, :-1, None] + width * (NODES + 1) / 2
    log_density = special.xlogy(a - 1, v.reshape(a.size, -1)) + special.xlog1py(b - 1, -v.reshape(a.size, -1))
    density = np.exp(log_density - special.betaln(a, b)).reshape(v.shape)
    wrong = np.clip(_fpr_of_both_tails(claim, v) / v, 0, 1)
    needed, others = np.maximum(correct, 1)[..., None], (total - correct + 1)[..., None]
    tail = np.where(correct[..., None] > 0, special.betaincc(others, needed, wrong), 1.0)
    result: Floats = np.sum(density * tail * WEIGHTS * width, axis=(1, 2)) / 2
    return np.clip(result, 0.0, 1.0)


def _fpr_of_both_tails(claim: Curve, both: Floats) -> Floats:
    """Return the x with x + f(x) = ``both`` by bisection, elementwise; 0 where f(0) already exceeds it."""
    low, high = np.zeros_like(both), both / 2  # f(x) ≥ x
    for _ in range(52):
        middle = (low + high) / 2
        above = middle + claim.tpr(middle) > both
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return low


def fixed_numbers_factor(
    canaries: int, guesses: Floats | Ints, given_away: Floats, q: float, *, most: float | None = None
) -> Floats:
    """Bound how much likelier a number of right guesses is if exactly half of the canaries are members.

    [B(N − 4q(1−q)·R − G) + 4·P(Bin(N, ½) < R′/2)] / B(N) with B(x) = Γ((x+1)/2) / (√π Γ(x/2 + 1)), for N canaries, R
    guesses and G canaries given away (docs/simultaneous-bound.md, Theorem 2). Close to 1 as long as R is much smaller
    than N. R′ is ``most``, the largest number of guesses that the same test makes; by default R itself.
    """
    n = float(canaries)
    few = binomial_cdf((guesses if most is None else most) / 2 - 1, n, 0.5)
    central = central_probability(np.maximum(n - 4 * q * (1 - q) * guesses - given_away, 0))
    result: Floats = (central + 4 * few) / central_probability(np.array(n))
    return result


def central_probability(x: Floats) -> Floats:
    """Return B(x) = Γ((x+1)/2) / (√π Γ(x/2+1)), which for even x is the central probability of Binomial(x, ½)."""
    result: Floats = np.exp(special.gammaln((x + 1) / 2) - special.gammaln(x / 2 + 1)) / np.sqrt(np.pi)
    return result


@lru_cache(maxsize=64)
def binomial_steps(trials: int, rate: float, most: int = 128) -> tuple[Floats, Floats]:
    """Return at most ``most`` values and weights of Binomial(trials, rate), rounded up: stochastically not smaller."""
    if rate == 0:
        return np.zeros(1), np.ones(1)
    mean, spread = trials * rate, np.sqrt(trials * rate * (1 - rate))
    low, high = max(0.0, mean - 9 * spread - 40), min(float(trials), mean + 9 * spread + 40)
    values = np.unique(np.ceil(np.linspace(low, high, most)))
    values[-1] = trials
    weights = np.diff(binomial_cdf(values, trials, rate), prepend=0.0)
    return values[weights > 0], weights[weights > 0]


def check_coin_flips(members: int, nonmembers: int) -> None:
    """Raise `InputError` if fair coin flips give such numbers of members less than once in a million times."""
    if 2 * float(binomial_cdf(min(members, nonmembers), members + nonmembers, 0.5)) < 1e-6:
        raise InputError(
            f"{members} members and {nonmembers} non-members cannot be the outcome of fair coin flips; use the design "
            "'fixed' if the numbers were fixed"
        )


def guessing_scores(scores: Scores, design: Design) -> tuple[Floats, Floats, float]:
    """Return the members and non-members to guess about, and their share of all scores.

    For the design ``fixed`` these are equally many members and non-members, as Theorem 2 requires.
    """
    members, nonmembers = scores.members, scores.observed
    if design == "coin-flips":
        check_coin_flips(members.size, nonmembers.size)
    else:
        members, nonmembers = balanced(members, nonmembers)
    return members, nonmembers, (members.size + nonmembers.size) / (scores.members.size + scores.observed.size)


def two_tailed_tests(scores: Scores, design: Design) -> TwoTails:
    """Return the two-tailed tests at a grid of numbers of guesses, up to half of the canaries."""
    members, nonmembers, kept = guessing_scores(scores, design)
    canaries = members.size + nonmembers.size
    # Leaving out part of the larger side makes these tests weaker than the thresholds, which use all scores.
    return TwoTails(*both_tails(members, nonmembers, canaries // 2), canaries, design, TWO_TAILS_WEIGHT * kept)


def two_tailed_curve_test(scores: Scores) -> TwoTails:
    """Return the two-tailed test of any curve at one number of guesses, for members chosen by coin flips."""
    members, nonmembers, _ = guessing_scores(scores, "coin-flips")
    canaries = members.size + nonmembers.size
    tails = both_tails(members, nonmembers, int(CURVE_GUESSES * canaries), ratio=np.inf)
    return TwoTails(*tails, canaries, "coin-flips")
