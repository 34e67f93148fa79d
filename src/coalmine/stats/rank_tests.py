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
from coalmine.stats.tradeoff import ApproximateDP, BetaPair, Curve

Design = Literal["fixed", "coin-flips"]
"""How members were chosen: in fixed numbers, or each canary by its own fair coin flip."""

# Guesses in both tails see twice the evidence if the mechanism is symmetric, as Gaussian noise is, so they get more of
# the significance than the single thresholds (weight 1), which also work for asymmetric mechanisms.
TWO_TAILS_WEIGHT = 1.5


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
        return self.p_values(claim, indices) <= level


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
    e^ε/(1+e^ε), except for canaries that the δ part gives away. With coin flips the guesses are independent. With fixed
    numbers of members and non-members they are not, which costs at most the factor `fixed_numbers_factor`
    (docs/simultaneous-bound.md, Theorem 2).
    """

    thresholds: Floats
    guesses: Ints
    right: Ints
    canaries: int
    design: Design
    weight: float = TWO_TAILS_WEIGHT

    def p_values(self, claim: Curve, indices: Ints) -> Floats:
        """Return the p-values of the tests at ``indices``; the claim must be an `ApproximateDP`."""
        if not isinstance(claim, ApproximateDP):
            raise TypeError(f"two-tailed guesses test (ε, δ)-DP only, got {claim}")
        guesses = self.guesses[indices].astype(np.float64)[:, None]
        right = self.right[indices].astype(np.float64)[:, None]
        q = float(special.expit(claim.epsilon))
        given_away, weight = _binomial_steps(self.canaries, claim.delta)
        # Canaries that are given away are guessed right for free; the others must account for the rest.
        needed = right - given_away
        tail = np.where(needed > 0, special.betainc(np.maximum(needed, 1), guesses - right + 1, q), 1.0)
        if self.design == "fixed":
            tail = tail * fixed_numbers_factor(self.canaries, guesses, given_away, q)
        return np.minimum(tail @ weight, 1.0)

    def rejects(self, claim: Curve, indices: Ints, level: float) -> Bools:
        """Return whether each of the tests at ``indices`` rejects the claim at significance ``level``."""
        return self.p_values(claim, indices) <= level


def fixed_numbers_factor(canaries: int, guesses: Floats, given_away: Floats, q: float) -> Floats:
    """Bound how much likelier a number of right guesses is if exactly half of the canaries are members.

    [B(N − 4q(1−q)·R − G) + 4·P(Bin(N, ½) < R/2)] / B(N) with B(x) = Γ((x+1)/2) / (√π Γ(x/2 + 1)), for N canaries, R
    guesses and G canaries given away (docs/simultaneous-bound.md, Theorem 2). Close to 1 as long as R is much smaller
    than N.
    """
    n = float(canaries)
    few = binomial_cdf(guesses / 2 - 1, n, 0.5)
    central = _central(np.maximum(n - 4 * q * (1 - q) * guesses - given_away, 0))
    result: Floats = (central + 4 * few) / _central(np.array(n))
    return result


def _central(x: Floats) -> Floats:
    """Return B(x) = Γ((x+1)/2) / (√π Γ(x/2+1)), which for even x is the central probability of Binomial(x, ½)."""
    result: Floats = np.exp(special.gammaln((x + 1) / 2) - special.gammaln(x / 2 + 1)) / np.sqrt(np.pi)
    return result


@lru_cache(maxsize=64)
def _binomial_steps(trials: int, rate: float, most: int = 128) -> tuple[Floats, Floats]:
    """Return at most ``most`` values and weights of Binomial(trials, rate), rounded up: stochastically not smaller."""
    if rate == 0:
        return np.zeros(1), np.ones(1)
    mean, spread = trials * rate, np.sqrt(trials * rate * (1 - rate))
    low, high = max(0.0, mean - 9 * spread - 40), min(float(trials), mean + 9 * spread + 40)
    values = np.unique(np.ceil(np.linspace(low, high, most)))
    values[-1] = trials
    return values, np.diff(binomial_cdf(values, trials, rate), prepend=0.0)


def check_coin_flips(members: int, nonmembers: int) -> None:
    """Raise `InputError` if fair coin flips give such numbers of members less than once in a million times."""
    if 2 * float(binomial_cdf(min(members, nonmembers), members + nonmembers, 0.5)) < 1e-6:
        raise InputError(
            f"{members} members and {nonmembers} non-members cannot be the outcome of fair coin flips; use the design "
            "'fixed' if the numbers were fixed"
        )


def two_tailed_tests(scores: Scores, design: Design) -> TwoTails:
    """Return the two-tailed tests; for the design ``fixed``, on equally many members and non-members."""
    members, nonmembers = scores.members, scores.observed
    if design == "coin-flips":
        check_coin_flips(members.size, nonmembers.size)
    else:
        members, nonmembers = balanced(members, nonmembers)  # Theorem 2 requires equal numbers
    canaries = members.size + nonmembers.size
    # Leaving out part of the larger side makes these tests weaker than the thresholds, which use all scores.
    kept = canaries / (scores.members.size + scores.observed.size)
    tails = both_tails(members, nonmembers, most=canaries // 2)
    return TwoTails(*tails, canaries, design, TWO_TAILS_WEIGHT * kept)
