"""Tests of a privacy claim at ranks that were fixed before the scores were seen, each with a p-value that holds.

The mathematics is in docs/simultaneous-bound.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, Self

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError
from coalmine.stats.ranks import balanced, both_tails, member_ranks
from coalmine.stats.rates import binomial_cdf
from coalmine.stats.scores import Scores
from coalmine.stats.tradeoff import ApproximateDP, BetaPair, Curve

Design = Literal["fixed", "coin-flips"]

# Guesses in both tails see twice the evidence when the mechanism is symmetric; single thresholds, of weight 1, are what
# is left when it is not.
TWO_TAILS_WEIGHT = 1.5


class Tests(Protocol):
    """A family of tests fixed in advance: the threshold that each looks at, and which of them reject a claim."""

    @property
    def thresholds(self) -> Floats:
        """One a test."""
        ...

    @property
    def weight(self) -> float:
        """How much of the significance the family gets, relative to others."""
        ...

    def rejects(self, claim: Curve, which: Ints, level: float) -> Bools:
        """Which of the tests in ``which`` reject the claim at significance ``level``."""
        ...


@dataclass(frozen=True)
class ObservedThresholds:
    """Thresholds at the scores of members of given ranks; how many non-members reach them is counted.

    a of the n non-members score at least as high as the v-th best of the m members. Under a claim the chance of so few
    is at most P(Beta(v, m−v+1) ≤ curve(Beta(a+1, n−a))), and that value is attained (docs/simultaneous-bound.md,
    Theorem 1).
    """

    thresholds: Floats
    pairs: BetaPair
    beaten: Bools
    weight: float = 1.0

    @classmethod
    def at(cls, scores: Scores) -> Self:
        """The tests at the ranks of `member_ranks`."""
        m, n = scores.members.size, scores.observed.size
        rank = member_ranks(m)
        thresholds = scores.members[m - rank]
        above = n - np.searchsorted(scores.observed, thresholds, side="left")
        v, a = rank.astype(np.float64), above.astype(np.float64)
        return cls(thresholds, BetaPair(v, m - v + 1, a + 1, np.maximum(n - a, 1)), above == n)

    def p_values(self, claim: Curve, which: Ints) -> Floats:
        """One p-value for each test in ``which``; 1 where every non-member scores at least as high."""
        return np.where(self.beaten[which], 1.0, self.pairs.probability_below(claim, which))

    def rejects(self, claim: Curve, which: Ints, level: float) -> Bools:
        """Which of the tests in ``which`` reject the claim at significance ``level``."""
        return self.p_values(claim, which) <= level


@dataclass(frozen=True)
class KnownNullThresholds:
    """The same thresholds where the false positive rate is known exactly: P(Beta(v, m−v+1) ≤ curve(FPR))."""

    thresholds: Floats
    rank: Ints
    members: int
    log_fpr: Floats
    log_tnr: Floats
    weight: float = 1.0

    def p_values(self, claim: Curve, which: Ints) -> Floats:
        """One p-value for each test in ``which``."""
        allowed = claim.tpr_at_tails(self.log_fpr[which], self.log_tnr[which])
        v = self.rank[which]
        result: Floats = special.betainc(v, self.members - v + 1, allowed)
        return result

    def rejects(self, claim: Curve, which: Ints, level: float) -> Bools:
        """Which of the tests in ``which`` reject the claim at significance ``level``."""
        return self.p_values(claim, which) <= level


def threshold_tests(scores: Scores) -> ObservedThresholds | KnownNullThresholds:
    """Single thresholds at the ranks of `member_ranks`."""
    if scores.null is None:
        return ObservedThresholds.at(scores)
    members = scores.members.size
    rank = member_ranks(members)
    thresholds = scores.members[members - rank]
    return KnownNullThresholds(
        thresholds, rank, members, scores.null.log_sf(thresholds), scores.null.log_cdf(thresholds)
    )


@dataclass(frozen=True)
class TwoTails:
    """Guess "member" for the r top scores of all canaries and "non-member" for the r bottom ones, none in between.

    ``right`` of ``guesses`` = 2r guesses were right, among ``canaries``. Under (ε, δ)-DP each guess is right with
    probability at most e^ε/(1+e^ε), but for the canaries that the δ part gives away. With coin flips the guesses are
    independent; with fixed numbers of members and non-members they are not, which costs at most the factor
    `fixed_numbers_factor` (docs/simultaneous-bound.md, Theorem 2).
    """

    thresholds: Floats
    guesses: Ints
    right: Ints
    canaries: int
    design: Design
    weight: float = TWO_TAILS_WEIGHT

    def p_values(self, claim: Curve, which: Ints) -> Floats:
        """One p-value for each test in ``which``; the claim must be an `ApproximateDP`."""
        if not isinstance(claim, ApproximateDP):
            raise TypeError(f"two-tailed guesses test (ε, δ)-DP only, got {claim}")
        guesses, right = self.guesses[which].astype(np.float64)[:, None], self.right[which].astype(np.float64)[:, None]
        q = float(special.expit(claim.epsilon))
        given_away, weight = _binomial_steps(self.canaries, claim.delta)
        needed = right - given_away
        tail = np.where(needed > 0, special.betainc(np.maximum(needed, 1), guesses - right + 1, q), 1.0)
        if self.design == "fixed":
            tail = tail * fixed_numbers_factor(self.canaries, guesses, given_away, q)
        return np.minimum(tail @ weight, 1.0)

    def rejects(self, claim: Curve, which: Ints, level: float) -> Bools:
        """Which of the tests in ``which`` reject the claim at significance ``level``."""
        return self.p_values(claim, which) <= level


def fixed_numbers_factor(canaries: int, guesses: Floats, given_away: Floats, q: float) -> Floats:
    """How much likelier a number of right two-tailed guesses can be when exactly half of the canaries are members.

    At most [B(N − 4q(1−q)·R − G) + 4·P(Bin(N, ½) < R/2)] / B(N), where B(x) = Γ((x+1)/2) / (√π Γ(x/2 + 1)), for N
    canaries, R guesses and G canaries given away. Close to 1 while R is small beside N; exact for one member and one
    non-member at ε = 0 (it is 2).
    """
    n = float(canaries)
    few = binomial_cdf(guesses / 2 - 1, n, 0.5)
    central = _central(np.maximum(n - 4 * q * (1 - q) * guesses - given_away, 0))
    result: Floats = (central + 4 * few) / _central(np.array(n))
    return result


def _central(x: Floats) -> Floats:
    """B(x) = Γ((x+1)/2) / (√π Γ(x/2+1)): for even whole x the middle probability of Binomial(x, ½)."""
    result: Floats = np.exp(special.gammaln((x + 1) / 2) - special.gammaln(x / 2 + 1)) / np.sqrt(np.pi)
    return result


@lru_cache(maxsize=64)
def _binomial_steps(trials: int, rate: float, most: int = 128) -> tuple[Floats, Floats]:
    """Binomial(trials, rate) as at most ``most`` values with weights, rounded up: never stochastically smaller."""
    if rate == 0:
        return np.zeros(1), np.ones(1)
    mean, spread = trials * rate, np.sqrt(trials * rate * (1 - rate))
    low, high = max(0.0, mean - 9 * spread - 40), min(float(trials), mean + 9 * spread + 40)
    values = np.unique(np.ceil(np.linspace(low, high, most)))
    values[-1] = trials
    return values, np.diff(binomial_cdf(values, trials, rate), prepend=0.0)


def check_coin_flips(members: int, nonmembers: int) -> None:
    """Refuse numbers of members and non-members that fair coin flips give less than once in a million times."""
    if 2 * float(binomial_cdf(min(members, nonmembers), members + nonmembers, 0.5)) < 1e-6:
        raise InputError(
            f"{members} members and {nonmembers} non-members did not come about by fair coin flips;"
            " for numbers that were fixed, use the design fixed"
        )


def two_tailed_tests(scores: Scores, design: Design) -> TwoTails:
    """Two-tailed guesses at the numbers of `both_tails`; with fixed numbers, about equally many of both sides."""
    members, nonmembers = scores.members, scores.observed
    if design == "coin-flips":
        check_coin_flips(members.size, nonmembers.size)
    else:
        members, nonmembers = balanced(members, nonmembers)  # the theorem wants equal numbers
    canaries = members.size + nonmembers.size
    # What had to be left out of the larger side makes these tests weaker than those that use everything.
    kept = canaries / (scores.members.size + scores.observed.size)
    tails = both_tails(members, nonmembers, most=canaries // 2)
    return TwoTails(*tails, canaries, design, TWO_TAILS_WEIGHT * kept)
