"""Which single tests are made of a claim? Those at ranks fixed before the scores were seen, each with its p-value.

The claim test (`claim_tests`) and the lower bounds (`simultaneous_bound`) are both made of them.
Which ranks are tested depends on the numbers of canaries only, never on the scores: that is what makes the tests valid.
Theorems 1, 2 and 4, which the p-values rest on, are proved in docs/proofs.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError
from coalmine.seeds import default_rng
from coalmine.stats.nulls import DependentNull
from coalmine.stats.scores import Scores, binomial_cdf
from coalmine.stats.tradeoff import NODES, WEIGHTS, ApproximateDP, BetaPair, Curve, quantiles

Design = Literal["fixed", "coin-flips"]
"""How members were chosen: in fixed numbers, or each canary by its own fair coin flip."""

Tails = tuple[Floats, Ints, Ints]
"""Thresholds, numbers of guesses, and numbers of right guesses."""

# With fewer, no test could reject anything at the significance that its share of the grid leaves it.
_MIN_GUESSES = 16
_MIN_MEMBERS = 8

# Guesses in both tails see twice the evidence if the mechanism is symmetric, as Gaussian noise is, so they get more of
# the significance than the single thresholds (weight 1), which also work for asymmetric mechanisms.
TWO_TAILS_WEIGHT = 1.5


class Tests(Protocol):
    """A family of tests fixed before the scores were seen.

    Attributes:
        thresholds: The score at which each test looks, shape (tests,).
        weight: The family's share of the significance, relative to other families.
    """

    thresholds: Floats
    weight: float

    def p_values(self, claim: Curve) -> Floats:
        """Return the p-value of each test, or an upper limit on it, shape (tests,)."""
        ...

    def margins(self, claim: Curve, level: float) -> Floats:
        """Return ln(p/level) for each test: at most 0 where it rejects the claim at significance ``level``."""
        with np.errstate(divide="ignore"):
            return np.log(self.p_values(claim) / level)


@dataclass(frozen=True)
class ObservedThresholds(Tests):
    """Tests at single thresholds, each the score of the v-th best of m members.

    If a of the n non-members score at least as high, the p-value is P(Beta(v, m−v+1) ≤ curve(Beta(a+1, n−a))), which is
    attained by the least favorable scores that the claim allows (docs/proofs.md, Theorem 1).
    """

    thresholds: Floats
    pairs: BetaPair
    beaten: Bools
    weight: float = 1.0

    def p_values(self, claim: Curve) -> Floats:
        """Return the p-values; 1 if every non-member scores at least as high."""
        return np.where(self.beaten, 1.0, self.pairs.probability_below(claim))


@dataclass(frozen=True)
class KnownNullThresholds(Tests):
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

    def p_values(self, claim: Curve) -> Floats:
        """Return the p-values."""
        allowed = claim.directions[0].tpr_at_tails(self.log_fpr, self.log_tnr)
        v = self.rank[:, None]
        means = special.betainc(v, self.members - v + 1, allowed) @ self.shares
        return np.asarray(np.maximum(means, self.floor))


def threshold_tests(scores: Scores) -> ObservedThresholds | KnownNullThresholds:
    """Return the tests at single thresholds, at the ranks of `member_ranks`."""
    m, null = scores.members.size, scores.null
    rank = member_ranks(m)
    thresholds = scores.members[m - rank]
    if null is None:
        n = scores.observed.size
        above = n - np.searchsorted(scores.observed, thresholds, side="left")
        v, a = rank.astype(np.float64), above.astype(np.float64)
        return ObservedThresholds(thresholds, BetaPair(v, m - v + 1, a + 1, np.maximum(n - a, 1)), above == n)
    if isinstance(null, DependentNull):
        shares, log_fpr, log_tnr = null.given_shared(thresholds)
        floor = null.proved_p_value(scores.members) / rank.size
        return KnownNullThresholds(thresholds, rank, m, log_fpr, log_tnr, shares, floor)
    log_fpr, log_tnr = null.log_sf(thresholds)[:, None], null.log_cdf(thresholds)[:, None]
    return KnownNullThresholds(thresholds, rank, m, log_fpr, log_tnr, shares=np.ones(1))


@dataclass(frozen=True)
class TwoTails(Tests):
    """Tests that guess "member" for the r top scores of all canaries and "non-member" for the r bottom ones.

    ``right`` of the ``guesses`` = 2r guesses are right. With coin flips they are independent, so any curve can be
    tested (docs/proofs.md, Theorem 4).
    """

    thresholds: Floats
    guesses: Ints
    right: Ints
    canaries: int
    weight: float = TWO_TAILS_WEIGHT

    def p_values(self, claim: Curve) -> Floats:
        """Return the p-values."""
        return curve_tail_probability(self.guesses, self.right, self.canaries, claim)


def two_tailed_tests(scores: Scores, share: float) -> TwoTails:
    """Return the two-tailed test that guesses about a share of the canaries, which coin flips inserted."""
    members, nonmembers, _ = guessing_scores(scores, "coin-flips")
    canaries = members.size + nonmembers.size
    return TwoTails(*tail_guesses(members, nonmembers, int(share * canaries), np.inf), canaries)


def tail_probability(guesses: Ints, right: Ints, canaries: int, claim: ApproximateDP, *, steps: int = 128) -> Floats:
    """Bound the probability of at least ``right`` right guesses under (ε, δ)-DP with coin flips, elementwise.

    E[P(Bin(R − G, q) ≥ w − G)] with q = e^ε/(1+e^ε) and G ~ Bin(N, δ), for w right ones of R guesses about N canaries
    (docs/proofs.md, Theorem 2). The expectation is over at most ``steps`` values of G, rounded up.
    """
    q = float(special.expit(claim.epsilon))
    total, correct = guesses.astype(np.float64)[:, None], right.astype(np.float64)[:, None]
    given_away, mass = binomial_steps(canaries, claim.delta, steps)
    # Canaries that are given away are guessed right for free; the others must account for the rest.
    needed = correct - given_away
    tail = np.where(needed > 0, special.betainc(np.maximum(needed, 1), total - correct + 1, q), 1.0)
    return np.minimum(tail @ mass, 1.0)


def curve_tail_probability(guesses: Ints, right: Ints, canaries: int, claim: Curve) -> Floats:
    """Bound the probability of at least ``right`` right guesses under any claim, with coin flips, elementwise.

    P(Bin(R, 1 − x/V) ≥ w) for V ~ Beta(R + 1, N − R) and x + f(x) = V, where f is the curve: the R most exposed
    canaries lie in the two tails of total probability V, and a share f(x)/V of what is there is guessed right
    (docs/proofs.md, Theorem 4). The number of guesses must be smaller than the number of canaries.
    """
    total, correct = guesses.astype(np.float64), right.astype(np.float64)
    a, b = total + 1, canaries - total
    edges = quantiles(a, b)
    # A curve with f(0) > 0 gives the canaries in its first part away: their share of right guesses has a kink there.
    kink = np.clip(claim.tpr(np.zeros(a.size)), edges.min(axis=1), edges.max(axis=1))
    edges = np.sort(np.column_stack([edges, kink]), axis=1)
    width = np.diff(edges, axis=1)[..., None]
    v = edges[:, :-1, None] + width * (NODES + 1) / 2
    a, b, total, correct = (values[:, None, None] for values in (a, b, total, correct))
    density = np.exp(special.xlogy(a - 1, v) + special.xlog1py(b - 1, -v) - special.betaln(a, b))
    # The x with x + f(x) = V by bisection, 0 where f(0) already exceeds it; f(x) ≥ x.
    low, high = np.zeros_like(v), v / 2
    for _ in range(52):
        middle = (low + high) / 2
        beyond = middle + claim.tpr(middle) > v
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    wrong = np.clip(low / v, 0, 1)
    tail = np.where(correct > 0, special.betaincc(total - correct + 1, np.maximum(correct, 1), wrong), 1.0)
    return np.asarray(np.clip(np.sum(density * tail * WEIGHTS * width, axis=(1, 2)) / 2, 0.0, 1.0))


def fixed_numbers_factor(
    canaries: int, guesses: Floats | Ints, given_away: Floats, q: float, *, most: float | Floats
) -> Floats:
    """Bound how much likelier a number of right guesses is if exactly half of the canaries are members.

    [B(N − 4q(1−q)·R − G) + 4·P(Bin(N, ½) < R′/2)] / B(N) with B(x) = Γ((x+1)/2) / (√π Γ(x/2 + 1)), for N canaries, R
    guesses and G canaries given away (docs/proofs.md, Theorem 2). Close to 1 as long as R is much smaller
    than N. R′ is ``most``, the largest number of guesses that the same test makes.
    """
    n = float(canaries)
    few = binomial_cdf(most / 2 - 1, n, 0.5)
    central = central_probability(np.maximum(n - 4 * q * (1 - q) * guesses - given_away, 0))
    return np.asarray((central + 4 * few) / central_probability(np.array(n)))


def central_probability(x: Floats) -> Floats:
    """Return B(x) = Γ((x+1)/2) / (√π Γ(x/2+1)), which for even x is the central probability of Binomial(x, ½)."""
    return np.asarray(np.exp(special.gammaln((x + 1) / 2) - special.gammaln(x / 2 + 1)) / np.sqrt(np.pi))


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


def guessing_scores(scores: Scores, design: Design) -> tuple[Floats, Floats, float]:
    """Return the members and non-members to guess about, and their share of all scores.

    For the design ``fixed`` these are equally many members and non-members, sorted, as Theorem 2 requires: the larger
    side is reduced to a random subset.
    """
    sides = [scores.members, scores.observed]
    sizes = [side.size for side in sides]
    if design == "coin-flips":
        # Fair coin flips give more uneven numbers less than once in a million times.
        if 2 * float(binomial_cdf(min(sizes), sum(sizes), 0.5)) < 1e-6:
            raise InputError(
                f"{sizes[0]} members and {sizes[1]} non-members cannot be the outcome of fair coin flips; use the "
                "design 'fixed' if the numbers were fixed"
            )
    elif sizes[0] != sizes[1]:
        larger = int(np.argmax(sizes))
        # Which ones are kept depends on the order of the scores alone; sorted places keep the subset sorted.
        kept = random_choice(sides[0], sides[1]).choice(max(sizes), min(sizes), replace=False, shuffle=False)
        sides[larger] = sides[larger][np.sort(kept)]
    return sides[0], sides[1], (sides[0].size + sides[1].size) / sum(sizes)


def member_ranks(members: int) -> Ints:
    """Return ranks of members from the top, dense toward both ends: m/2ⁱ, m − m/2ⁱ, and m itself."""
    outer = _falling(members, _MIN_MEMBERS, 2)
    ranks = np.unique(np.concatenate([outer, members - outer, [members]]))
    return ranks[ranks > 0]


def _falling(top: int, least: int, ratio: float) -> Ints:
    """Return top, top/ratio, top/ratio², … down to ``least``, rounded; empty if ``top`` is below ``least``."""
    steps = np.arange(0 if top < least else int(np.log(top / least) / np.log(ratio)) + 1)
    return np.unique(np.round(top * ratio ** -steps.astype(np.float64)).astype(np.int64))


def tail_guesses(members: Floats, nonmembers: Floats, most: int, ratio: float, *, top_only: bool = False) -> Tails:
    """Count right guesses at a grid of numbers of guesses up to ``most``; ties count against the guesser.

    Guesses are "member" for the top r of the sorted scores, and "non-member" for the bottom r unless ``top_only``.
    """
    each = _falling(most, _MIN_GUESSES, ratio)
    if not top_only:
        each = np.unique(each // 2)
    top = _among_extremes(members, nonmembers, each)
    # The r-th largest score, where guesses of "member" end: the lower of each side's last one among the r largest.
    others = each - top
    last_member = np.where(top > 0, members[members.size - np.maximum(top, 1)], np.inf)
    last_other = np.where(others > 0, nonmembers[nonmembers.size - np.maximum(others, 1)], np.inf)
    thresholds = np.minimum(last_member, last_other)
    if top_only:
        return thresholds, each, top
    return thresholds, 2 * each, top + _among_extremes(nonmembers, members, each, lowest=True)


def _among_extremes(wanted: Floats, others: Floats, r: Ints, *, lowest: bool = False) -> Ints:
    """Return how many of the r largest (or lowest) scores of both sides are ``wanted``; ties go to the others."""
    # A bisection for each r. The place of the j-th wanted score is j plus the number of others ahead of it, and grows
    # with j. Looking at a few places only, it takes no time even for millions of sorted scores.
    low, high = np.zeros_like(r), np.minimum(r, wanted.size)
    while np.any(low < high):
        j = (low + high + 1) // 2
        nth = np.maximum(j, 1)
        if lowest:
            ahead = np.searchsorted(others, wanted[nth - 1], side="right")
        else:
            ahead = others.size - np.searchsorted(others, wanted[wanted.size - nth], side="left")
        fits = (j == low) | (j + ahead <= r)
        low, high = np.where(fits, j, low), np.where(fits, high, j - 1)
    return low


def random_choice(members: Floats, nonmembers: Floats) -> np.random.Generator:
    """Return a generator for random choices among sorted scores, seeded by the order of the scores."""
    # A constant seed would pick the same ranks in every audit, so a "random subset" of sorted scores would be a fixed
    # set of order statistics and not a sample. Hashing the order of members among non-members avoids that, and keeps
    # results reproducible and invariant under monotone transformations of the scores.
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.searchsorted(nonmembers, members, side="left").astype("<i8").tobytes())
    digest.update(np.searchsorted(nonmembers, members, side="right").astype("<i8").tobytes())
    digest.update(np.array([members.size, nonmembers.size], dtype="<i8").tobytes())
    return default_rng([0, int.from_bytes(digest.digest(), "little")])
