"""Lower bounds on ε that hold for all their thresholds at once. The mathematics is in docs/simultaneous-bound.md.

A claim (a trade-off curve) is put to a small family of tests that were fixed before the scores were seen: at which
ranks to look. Each test has an exact p-value under the least favourable pair of score distributions that the claim
allows; the significance is shared out among the tests, and the bound is the largest claim that any of them rejects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, Self

import numpy as np
from scipy import special

from coalmine.errors import InputError, NotApplicableError, check_confidence, check_count, check_delta, check_number
from coalmine.stats.arrays import Bools, Floats, Ints
from coalmine.stats.epsilon import COIN_FLIPS, GAUSSIAN, INDEPENDENT, Estimate
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.stats.ranks import balanced, both_tails, halves, member_ranks
from coalmine.stats.rates import binomial_cdf
from coalmine.stats.scores import Scores
from coalmine.stats.search import largest
from coalmine.stats.tradeoff import (
    ApproximateDP,
    BetaPair,
    Curve,
    GaussianDP,
    group_parameters,
)

Design = Literal["fixed", "coin-flips"]

# Guesses in both tails see twice the evidence when the mechanism is symmetric; single thresholds, of weight 1, are what
# is left when it is not.
TWO_TAILS_WEIGHT = 1.5


_ASSUMES: dict[Design, str] = {"fixed": INDEPENDENT, "coin-flips": f"{INDEPENDENT}; {COIN_FLIPS}"}


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


def simultaneous(
    scores: Scores,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    design: Design = "fixed",
    copies: int = 1,
) -> Estimate:
    """Lower bound on ε at ``delta``, valid for every threshold it looked at.

    Coverage is at least ``confidence`` for every mechanism, provided that the scores are independent of one another.
    With ``design="fixed"`` nothing is assumed of how the numbers of members and non-members came about; with
    ``"coin-flips"`` each canary was planted by its own fair coin flip, which makes the two-tailed tests slightly
    sharper. ``copies`` is the number of times that each member was planted, divided out by group privacy.
    """
    check_delta(delta)
    check_count("copies", copies)
    alpha = 1 - check_confidence(confidence)
    families = _families(scores, design)

    def claim(epsilon: float) -> Curve:
        return ApproximateDP(*group_parameters(epsilon, delta, copies))

    lower, threshold = largest_rejected(families, alpha, claim)
    return Estimate.bound(
        "simultaneous" if scores.null is None else "exact-null",
        lower,
        delta=delta,
        confidence=confidence,
        assumes=_ASSUMES[design] if scores.null is None else f"{INDEPENDENT}; their null distribution is exact",
        threshold=threshold,
    )


def refutes(
    scores: Scores, epsilon: float, *, delta: float = 0.0, confidence: float = 0.95, design: Design = "fixed"
) -> bool:
    """Whether the scores refute a claim of (ε, δ)-DP: whether `simultaneous` is at least ε, at a tenth of its cost."""
    claim = ApproximateDP(check_number("epsilon", epsilon), check_delta(delta))
    return any_rejects(_families(scores, design), 1 - check_confidence(confidence), claim)


def ceiling(
    members: int,
    nonmembers: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    design: Design = "fixed",
    copies: int = 1,
) -> float:
    """The largest bound that `simultaneous` can give with so many scores: that of scores which separate perfectly.

    An ε beyond it cannot be shown, however leaky the mechanism.
    """
    m, n = check_count("members", members), check_count("nonmembers", nonmembers)
    apart = Scores(np.arange(n, n + m, dtype=float), np.arange(n, dtype=float))
    return simultaneous(apart, delta=delta, confidence=confidence, design=design, copies=copies).epsilon


def gdp(scores: Scores, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Lower bound on ε(δ) of a mechanism that is μ-GDP: the largest rejected μ, converted exactly.

    The same simultaneous tests at single thresholds, against the Gaussian trade-off curve. It extrapolates along that
    curve far beyond the rates that were seen, and is wrong for mechanisms that are not Gaussian.
    """
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    mu, threshold = largest_rejected([_thresholds(scores)], alpha, GaussianDP)
    lower = float(epsilon_gdp(mu, delta))
    return Estimate.bound(
        "gdp",
        lower,
        delta=delta,
        confidence=confidence,
        assumes=f"{INDEPENDENT}; {GAUSSIAN}",
        threshold=threshold,
        valid=False,
    )


def split(scores: Scores, *, delta: float = 0.0, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """Lower bound on ε from one test: chosen on a random half of the scores, carried out on the other half."""
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    if min(scores.members.size, scores.observed.size) < 2:
        raise NotApplicableError("split needs at least two scores a side")
    first, second = halves(scores.members, scores.observed, seed)

    def claim(epsilon: float) -> Curve:
        return ApproximateDP(epsilon, delta)

    chosen = _families(Scores(*first), "fixed")
    _, best = search(chosen, [alpha] * len(chosen), claim, relative=1e-3)
    lower, threshold = 0.0, None
    if best is not None:
        family = _families(Scores(*second), "fixed")[best[0]]
        # The second half has one score more at most, and then perhaps one test more: the same index is still there.
        lower = largest(lambda epsilon: bool(family.rejects(claim(epsilon), np.array([best[1]]), alpha)[0]))
        threshold = float(family.thresholds[best[1]])
    return Estimate.bound("split", lower, delta=delta, confidence=confidence, assumes=INDEPENDENT, threshold=threshold)


def largest_rejected(
    families: Sequence[Tests], alpha: float, claim: Callable[[float], Curve]
) -> tuple[float, float | None]:
    """The largest claim that some test rejects, and the threshold of that test (None where none rejects anything).

    With probability at least 1 − ``alpha`` it is not above the truth: the tests' significances sum to ``alpha``.
    """
    bound, best = search(families, test_levels(families, alpha), claim)
    return bound, None if best is None else float(families[best[0]].thresholds[best[1]])


def any_rejects(families: Sequence[Tests], alpha: float, claim: Curve) -> bool:
    """Whether some test rejects the claim, at significance ``alpha`` for all of them together."""
    return any(
        bool(np.any(family.rejects(claim, np.arange(family.thresholds.size), level)))
        for family, level in zip(families, test_levels(families, alpha), strict=True)
        if family.thresholds.size
    )


def search(
    families: Sequence[Tests], levels: Sequence[float], claim: Callable[[float], Curve], *, relative: float = 1e-10
) -> tuple[float, tuple[int, int] | None]:
    """The largest claim that some test rejects at its family's level, and that test: (family, index in it)."""
    bound, best = 0.0, None
    for f, (family, level) in enumerate(zip(families, levels, strict=True)):
        live = np.arange(family.thresholds.size)

        def rejects(parameter: float, family: Tests = family, level: float = level) -> bool:
            nonlocal live
            rejecting = live[family.rejects(claim(parameter), live, level)] if live.size else live
            if rejecting.size:
                # A test that does not reject a weak claim will not reject a stronger one: no need to ask it again.
                live = rejecting
            return bool(rejecting.size)

        # What no test of this family rejects at the bound so far, it cannot raise.
        reached = largest(rejects, floor=bound, relative=relative)
        if reached > bound:
            bound, best = reached, (f, int(live[0]))
    return bound, best


def _families(scores: Scores, design: Design) -> list[Tests]:
    if design not in ("fixed", "coin-flips"):
        raise InputError(f"design must be 'fixed' or 'coin-flips', got {design!r}")
    if scores.null is not None:
        return [_thresholds(scores)]
    return [_two_tails(scores, design), _thresholds(scores)]


def test_levels(families: Sequence[Tests], alpha: float) -> list[float]:
    """The significance of one test of each family: ``alpha`` is shared by weight, and evenly within a family."""
    sizes = [family.thresholds.size for family in families]
    total = sum(family.weight for family, size in zip(families, sizes, strict=True) if size)
    return [alpha * family.weight / total / size if size else 0.0 for family, size in zip(families, sizes, strict=True)]


@dataclass(frozen=True)
class ObservedThresholds:
    """ "Member if among the v best-scoring members' reach": thresholds at members' ranks, non-members counted.

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


def _thresholds(scores: Scores) -> ObservedThresholds | KnownNullThresholds:
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


def _two_tails(scores: Scores, design: Design) -> TwoTails:
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
