"""The exact joint test of guesses in both tails, for many numbers of guesses at once.

Guess "member" for the top scores and "non-member" for the bottom ones, one more pair at a time. Under (ε, δ)-DP the
number of right guesses is at most a random walk with a known distribution (docs/proofs.md, Theorem 2), so
the probability that it ever crosses a boundary is computed exactly, where a union bound would add up the probabilities
at each number of guesses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
from scipy import special

from coalmine.arrays import Floats, Ints
from coalmine.stats.epsilon import largest
from coalmine.stats.rank_tests import (
    TWO_TAILS_WEIGHT,
    Design,
    Tests,
    binomial_steps,
    both_tails,
    central_probability,
    fixed_numbers_factor,
    guessing_scores,
    tail_probability,
)
from coalmine.stats.scores import Scores
from coalmine.stats.tradeoff import ApproximateDP, Curve

# Between neighboring numbers of guesses. Finer grids gain nothing: neighboring counts are almost the same.
_RATIO = 2**0.25
# Mass far below the boundary that is counted as a crossing, to keep the number of states small.
_NEGLIGIBLE = 1e-16
# From this size on, a convolution by the fast Fourier transform is quicker than a direct one, at an error below 1e-16.
_LARGE = 300


@dataclass(frozen=True)
class JointBoundary(Tests):
    """One test of (ε, δ)-DP: does the walk of right guesses reach its boundary at any of the numbers of guesses?

    The boundary consists of the counts for which a test at one number of guesses, at significance ``level``, would give
    as large a bound on ε as the best of the observed counts ``right``. It does not depend on the claim, which makes the
    test valid for all claims together (docs/proofs.md, Theorem 2).
    """

    thresholds: Floats
    guesses: Ints
    right: Ints
    canaries: int
    design: Design
    level: float
    delta: float
    weight: float = TWO_TAILS_WEIGHT

    @classmethod
    def at(cls, scores: Scores, design: Design, *, level: float, delta: float) -> Self:
        """Return the test, with the boundary of (·, delta)-DP at significance ``level``."""
        members, nonmembers, kept = guessing_scores(scores, design)
        canaries = members.size + nonmembers.size
        thresholds, guesses, right = both_tails(members, nonmembers, canaries // 2, _RATIO)
        # The score to report: at the number of guesses that bounds ε best, leaving δ aside.
        rate = np.where(right > 0, special.betaincinv(np.maximum(right, 1), guesses - right + 1, level), 0.0)
        best = np.argsort(-rate, kind="stable")[:1]
        return cls(thresholds[best], guesses, right, canaries, design, level, delta, TWO_TAILS_WEIGHT * kept)

    @cached_property
    def boundary(self) -> Ints:
        """Number of right guesses that counts as a crossing, for each number of guesses."""
        guesses = self.guesses

        def p_values(right: Ints, epsilon: float) -> Floats:
            # Of each number of guesses alone; coarse ones, since they only define the boundary.
            return tail_probability(guesses, right, self.canaries, ApproximateDP(epsilon, self.delta), steps=16)

        # Rounded down, which moves the boundary down and the p-value up.
        with np.errstate(divide="ignore"):
            best = largest(
                lambda epsilon: float(np.log(np.min(p_values(self.right, epsilon)) / self.level)), relative=1e-4
            )
        # A bisection for the least number of right guesses that rejects as much; one more than the number of guesses
        # where not even right guesses alone do.
        low, high = np.zeros_like(guesses), guesses + 1
        while np.any(searching := low < high):
            middle = (low + high) // 2
            rejected = p_values(np.minimum(middle, guesses), best) <= self.level
            high = np.where(searching & rejected, middle, high)
            low = np.where(searching & ~rejected, middle + 1, low)
        # If no count rejects even ε = 0, every walk counts as a crossing, and the p-value is 1.
        return high if np.any(self.right >= high) else np.zeros_like(high)

    def p_values(self, claim: Curve) -> Floats:
        """Return the p-value of the test, shape (1,); the claim must be an `ApproximateDP`."""
        assert isinstance(claim, ApproximateDP)  # Theorem 2 is about single (ε, δ) only
        probability = crossing_probability(self.guesses, self.boundary, self.canaries, self.design, claim)
        return np.full(self.thresholds.size, probability)


def crossing_probability(guesses: Ints, boundary: Ints, canaries: int, design: Design, claim: ApproximateDP) -> float:
    """Bound the probability that the right guesses reach a boundary under (ε, δ)-DP (Theorem 2).

    Args:
        guesses: Numbers of guesses, increasing, shape (k,).
        boundary: Number of right guesses that counts as a crossing, for each number of guesses.
        canaries: Number of canaries.
        design: How members were chosen; if ``"fixed"``, half of the canaries are members.
        claim: The claim.

    Returns:
        The probability that the walk is on or above its boundary at any of the numbers of guesses, at most 1.
    """
    q = float(special.expit(claim.epsilon))
    given_away, mass = binomial_steps(canaries, claim.delta)
    cost = np.ones(guesses.size)
    if design == "fixed":
        most = float(guesses[-1])
        cost = fixed_numbers_factor(canaries, guesses, np.zeros(1), q, most=most)
        # κ with g canaries given away over κ with none is at most B(y − g)/B(y), where y = N − 4q(1−q)·R: B is
        # log-convex, so the ratio is largest at the largest number of guesses. For g > y nothing better than
        # 1/P(K = n) is known.
        least = np.array(canaries - 4 * q * (1 - q) * most)
        ratio = central_probability(np.maximum(least - given_away, 0)) / central_probability(least)
        mass = mass * np.where(given_away <= least, ratio, 1 / central_probability(np.array(float(canaries))))
    return min(1.0, float(first_crossings(guesses, boundary, q, given_away, mass) @ cost))


def first_crossings(guesses: Ints, boundary: Ints, q: float, given_away: Floats, mass: Floats) -> Floats:
    """Return the probabilities that the walk is first on or above its boundary at each number of guesses.

    The walk starts with ``given_away`` right guesses, a random number with probabilities ``mass``; each further guess
    is right with probability ``q``.

    Args:
        guesses: Numbers of guesses at which the walk is compared with the boundary, increasing, shape (k,).
        boundary: Numbers of right guesses, shape (k,).
        q: Probability of a right guess.
        given_away: Possible numbers of canaries given away, increasing, shape (g,).
        mass: Their probabilities, or any other non-negative weights, shape (g,).

    Returns:
        Probabilities of shape (k,); their sum is the probability of a crossing.

    Example:
        >>> first_crossings(np.array([1, 2]), np.array([1, 1]), 0.5, np.zeros(1), np.ones(1))  # H, or T and then H
        array([0.5 , 0.25])
    """
    first = np.zeros(guesses.size)
    low, walk = 0, np.zeros(1)  # walk[i] is the probability of low + i right guesses without a crossing so far
    previous, started = 0, 0
    for j, (total, limit) in enumerate(zip(guesses.tolist(), boundary.tolist(), strict=True)):
        shift, steps = _binomial(total - previous, q)
        low, walk = low + shift, _convolve(walk, steps)
        # Walks that start within this step; all its guesses up to the start are right.
        stop = int(np.searchsorted(given_away, total, side="right"))
        for start, weight in zip(given_away[started:stop], mass[started:stop], strict=True):
            shift, steps = _binomial(total - int(start), q)
            low, walk = _added(low, walk, int(start) + shift, weight * steps)
        previous, started = total, stop
        crossed = max(limit - low, 0)
        first[j] = walk[crossed:].sum()
        walk = walk[:crossed] if crossed else np.zeros(1)
        if total >= limit:  # those that have not started yet are at `total`, too
            first[j] += mass[started:].sum()
            mass = mass[:started]
            given_away = given_away[:started]
        if walk.size > _LARGE:
            # Little can happen far below the boundary. Counting this mass as crossed keeps the sum an upper bound.
            far = min(int(np.searchsorted(np.cumsum(walk), _NEGLIGIBLE)), walk.size - 1)
            first[j] += walk[:far].sum()
            low, walk = low + far, walk[far:]
    return first


def _binomial(trials: int, rate: float) -> tuple[int, Floats]:
    """Return the probabilities of Binomial(trials, rate) up to a negligible rest, and the value of the first."""
    reach = 9 * math.sqrt(trials * rate * (1 - rate)) + 30
    low, high = max(0, int(trials * rate - reach)), min(trials, int(trials * rate + reach))
    k = np.arange(low, high + 1.0)
    log_odds = math.log(rate) - math.log1p(-rate) if 0 < rate < 1 else math.inf
    if log_odds == math.inf:
        return trials, np.ones(1)
    return low, np.exp(_log_choose(trials)[low : high + 1] + k * log_odds + trials * math.log1p(-rate))


@lru_cache(maxsize=128)
def _log_choose(trials: int) -> Floats:
    """Return the logarithms of the binomial coefficients; kept, since a search asks for them at many rates."""
    log_factorial = special.gammaln(np.arange(trials + 1) + 1.0)
    return np.asarray(log_factorial[-1] - log_factorial - log_factorial[::-1])


def _convolve(first: Floats, second: Floats) -> Floats:
    """Return the distribution of a sum from the distributions of its two parts."""
    if min(first.size, second.size) < _LARGE:
        return np.convolve(first, second)
    size = first.size + second.size - 1
    length = 1 << (size - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(first, length) * np.fft.rfft(second, length), length)
    return np.maximum(product[:size], 0.0)


def _added(low: int, walk: Floats, other_low: int, other: Floats) -> tuple[int, Floats]:
    """Return the sum of two lists of probabilities that start at different values."""
    start = min(low, other_low)
    total = np.zeros(max(low + walk.size, other_low + other.size) - start)
    total[low - start : low - start + walk.size] += walk
    total[other_low - start : other_low - start + other.size] += other
    return start, total
