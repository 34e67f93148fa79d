"""How much ε do independent scores prove? Lower bounds that hold for all thresholds at once; proofs in docs/proofs.md.

A claim (a trade-off curve) is put to a few tests at ranks that were fixed before the scores were seen. Each has an
exact p-value under the least favorable pair of score distributions that the claim allows. The significance is divided
among the tests, and the bound is the largest claim that any of them rejects.

The sharpest test of (ε, δ)-DP guesses "member" for the top scores and "non-member" for the bottom ones, one more pair
at a time. The number of right guesses is at most a random walk with a known distribution (docs/proofs.md, Theorem 2),
so the probability that it ever crosses a boundary is computed exactly, where a union bound would add up the
probabilities at each number of guesses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Self

import numpy as np
from scipy import special

from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError, check_confidence, check_count, check_delta
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.stats.rank_tests import (
    TWO_TAILS_WEIGHT,
    Design,
    Tests,
    binomial_steps,
    central_probability,
    fixed_numbers_factor,
    guessing_scores,
    tail_guesses,
    tail_probability,
    threshold_tests,
    two_tailed_tests,
)
from coalmine.stats.scores import COIN_FLIPS, GAUSSIAN, INDEPENDENT, Estimate, Scores, largest
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP, group_parameters

# The joint boundary is that of single tests at this share of the whole significance. A lower level would favor larger
# numbers of guesses over smaller ones. Chosen by simulation; the test is valid for any value.
_BOUNDARY_LEVEL = 0.4

# Share of the canaries that are guessed about when a whole curve is tested. Unlike a single (ε, δ), which is decided at
# one place in the tails, a curve can be refuted anywhere, most easily where many canaries are.
_CURVE_GUESSES = 0.75

_ASSUMES: dict[Design, str] = {"fixed": INDEPENDENT, "coin-flips": f"{INDEPENDENT}; {COIN_FLIPS}"}


def simultaneous(
    scores: Scores, *, delta: float = 0.0, confidence: float = 0.95, design: Design = "fixed", copies: int = 1
) -> Estimate:
    """Compute a lower bound on ε that is valid for every threshold it looks at: the recommended estimator.

    For every mechanism, the bound exceeds the true ε at ``delta`` with probability at most ``1 - confidence``, provided
    that the scores are independent of one another and members were picked at random among exchangeable canaries.

    Args:
        scores: Scores of members and of non-members, or with a known null.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of the bound, in [0.5, 1).
        design: How members were chosen. ``"fixed"`` assumes nothing about their number. ``"coin-flips"`` says that
            each canary was inserted by its own fair coin flip, which makes the two-tailed test slightly sharper.
        copies: How often each member was inserted; the bound is for one copy, by group privacy.

    Returns:
        A valid bound, ``"simultaneous"`` or, with a known null, ``"exact-null"``.

    Raises:
        InputError: If an argument is out of range, or the numbers of scores contradict fair coin flips.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(rng.normal(1, 1, 1000), rng.normal(0, 1, 1000))
        >>> bound = simultaneous(scores, delta=1e-5)
        >>> bound.valid, 1.5 < bound.lower < 4.377  # the true ε
        (True, True)
    """
    check_delta(delta)
    check_count("copies", copies)
    alpha = 1 - check_confidence(confidence)
    families = claim_families(scores, design, ApproximateDP(0.0, delta), alpha=alpha)
    levels = significance_levels(families, alpha)
    lower, threshold = largest_rejected(families, levels, lambda e: ApproximateDP(*group_parameters(e, delta, copies)))
    method, assumes = "simultaneous", _ASSUMES[design]
    if scores.null is not None:
        method, assumes = "exact-null", f"{INDEPENDENT}; their null distribution is exact"
    return Estimate(
        method, lower, lower, delta=delta, confidence=confidence, assumes=assumes, threshold=threshold, valid=True
    )


def p_value(scores: Scores, claim: Curve, *, design: Design = "fixed", confidence: float = 0.95) -> float:
    """Compute the p-value of a claim: the smallest joint significance at which one of the tests at ranks rejects it.

    If the claim is true, the p-value is at most p with probability at most p, under the assumptions of `simultaneous`.
    Nothing is assumed about the mechanism, whatever the curve: a small p-value refutes the claim itself.

    Args:
        scores: Scores of members and of non-members, or with a known null.
        claim: The claimed trade-off curve. (ε, δ)-DP is tested by the joint boundary and at single thresholds, other
            curves by guesses about three quarters of the canaries (coin flips only) and at single thresholds.
        design: How members were chosen, as in `simultaneous`.
        confidence: Confidence around which the test is most powerful, in [0.5, 1); for (ε, δ)-DP, a p-value of at most
            ``1 - confidence`` means that the `simultaneous` bound is at least ε.

    Returns:
        A valid p-value, at most 1.

    Raises:
        InputError: If an argument is out of range, or the numbers of scores contradict fair coin flips.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(rng.normal(2, 1, 100), rng.normal(0, 1, 100))
        >>> p_value(scores, GaussianDP(mu=1.0)) < 0.01 < p_value(scores, GaussianDP(mu=2.0))
        True
    """
    families = claim_families(scores, design, claim, alpha=1 - check_confidence(confidence))
    return joint_p_value(families, claim)


def ceiling(
    members: int,
    nonmembers: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    design: Design = "fixed",
    copies: int = 1,
) -> float:
    """Compute the largest bound that `simultaneous` can give with this many scores.

    It is reached if the scores separate perfectly. No larger ε can be shown, however much the mechanism leaks; a bound
    near its ceiling means that more canaries would show more.

    Args:
        members: Number of members, at least 1.
        nonmembers: Number of non-members, at least 1.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of the bound, in [0.5, 1).
        design: How members were chosen, as in `simultaneous`.
        copies: How often each member was inserted.

    Returns:
        The largest possible lower bound on ε.

    Raises:
        InputError: If an argument is out of range, or the numbers contradict fair coin flips.

    Example:
        >>> ceiling(50, 50) < ceiling(500, 500)
        True
    """
    m, n = check_count("members", members), check_count("nonmembers", nonmembers)
    separated = Scores(np.arange(n, n + m, dtype=float), np.arange(n, dtype=float))
    return simultaneous(separated, delta=delta, confidence=confidence, design=design, copies=copies).epsilon


def gdp(scores: Scores, *, delta: float, confidence: float = 0.95, design: Design = "fixed") -> Estimate:
    """Compute a lower bound on the ε of a Gaussian mechanism.

    The tests at single thresholds, and with coin flips one in both tails, against the trade-off curve of μ-GDP; the
    largest rejected μ is converted to ε exactly. It extrapolates along that curve far beyond the observed rates, so it
    is a bound for Gaussian mechanisms only, and not marked valid.

    Args:
        scores: Scores of members and of non-members, or with a known null.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of the bound, in [0.5, 1).
        design: How members were chosen, as in `simultaneous`.

    Returns:
        The bound, valid only if the mechanism is Gaussian.

    Raises:
        InputError: If an argument is out of range, or the numbers of scores contradict fair coin flips.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(rng.normal(1, 1, 1000), rng.normal(0, 1, 1000))
        >>> simultaneous(scores, delta=1e-5).lower < gdp(scores, delta=1e-5).lower < 4.377  # the true ε
        True
    """
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    families = claim_families(scores, design, GaussianDP(0.0))
    mu, threshold = largest_rejected(families, significance_levels(families, alpha), GaussianDP)
    lower, assumes = float(epsilon_gdp(mu, delta)), f"{_ASSUMES[design]}; {GAUSSIAN}"
    return Estimate("gdp", lower, lower, delta=delta, confidence=confidence, assumes=assumes, threshold=threshold)


def largest_rejected(
    families: Sequence[Tests], levels: Sequence[float], claim: Callable[[float], Curve]
) -> tuple[float, float | None]:
    """Return the largest claim that some test rejects at its family's level, and the threshold of that test.

    The threshold is None if no test rejects anything. If the levels of all tests sum to α, the claim exceeds the truth
    with probability at most α, by a union bound.
    """
    bound, threshold = 0.0, None
    for family, level in zip(families, levels, strict=True):
        if family.thresholds.size == 0:
            continue
        # Starting at the bound of earlier families: a family that rejects nothing there cannot raise it.
        reached = largest(
            lambda x, family=family, level=level: float(np.min(family.margins(claim(x), level))),  # type: ignore[misc]
            floor=bound,
        )
        if reached > bound:
            rejecting = int(np.argmax(family.margins(claim(reached), level) <= 0))
            bound, threshold = reached, float(family.thresholds[rejecting])
    return bound, None if threshold is None or math.isnan(threshold) else threshold


def joint_p_value(families: Sequence[Tests], claim: Curve) -> float:
    """Return the smallest joint significance at which some test rejects the claim."""
    p_value = 1.0
    for family, share in zip(families, significance_levels(families, 1.0), strict=True):
        if family.thresholds.size:
            p_value = min(p_value, float(np.min(family.p_values(claim))) / share)
    return p_value


def claim_families(scores: Scores, design: Design, claim: Curve, *, alpha: float = 0.05) -> list[Tests]:
    """Return the families of tests for a claim, which do not depend on its ε or μ.

    They are most powerful around a significance of ``alpha``, and for (ε, δ)-DP at the claim's δ.
    """
    if design not in ("fixed", "coin-flips"):
        raise InputError(f"design must be 'fixed' or 'coin-flips', got {design!r}")
    families: list[Tests] = [threshold_tests(scores)]
    if scores.null is not None:
        return families
    if isinstance(claim, ApproximateDP):
        level = _BOUNDARY_LEVEL * alpha
        families.insert(0, JointBoundary.at(scores, design, level=level, delta=claim.delta))
    elif design == "coin-flips":  # two-tailed tests of other curves are proved for coin flips only
        families.insert(0, two_tailed_tests(scores, _CURVE_GUESSES))
    return families


def significance_levels(families: Sequence[Tests], alpha: float) -> list[float]:
    """Return the significance of one test of each family: ``alpha`` split by weight, then evenly within a family."""
    sizes = np.array([family.thresholds.size for family in families])
    weights = np.array([family.weight for family in families]) * (sizes > 0)
    # A family without tests gets nothing; if none has any, there is nothing to divide.
    levels: list[float] = (alpha * weights / max(weights.sum(), 1e-300) / np.maximum(sizes, 1)).tolist()
    return levels


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
    boundary: Ints
    canaries: int
    design: Design
    weight: float = TWO_TAILS_WEIGHT

    @classmethod
    def at(cls, scores: Scores, design: Design, *, level: float, delta: float) -> Self:
        """Return the test, with the boundary of (·, delta)-DP at significance ``level``."""
        members, nonmembers, kept = guessing_scores(scores, design)
        canaries = members.size + nonmembers.size
        thresholds, guesses, right = tail_guesses(members, nonmembers, canaries // 2, _RATIO)
        # The score to report: at the number of guesses that bounds ε best, leaving δ aside.
        rate = np.where(right > 0, special.betaincinv(np.maximum(right, 1), guesses - right + 1, level), 0.0)
        best = np.argsort(-rate, kind="stable")[:1]
        boundary = joint_boundary(guesses, right, canaries, level, delta)
        return cls(thresholds[best], guesses, boundary, canaries, design, TWO_TAILS_WEIGHT * kept)

    def p_values(self, claim: Curve) -> Floats:
        """Return the p-value of the test, shape (1,); the claim must be an `ApproximateDP`.

        It is an upper limit on the probability that the walk is on or above its boundary at any of the numbers of
        guesses (Theorem 2).
        """
        assert isinstance(claim, ApproximateDP)  # Theorem 2 is about single (ε, δ) only
        q = float(special.expit(claim.epsilon))
        given_away, mass = binomial_steps(self.canaries, claim.delta)
        cost = np.ones(self.guesses.size)
        if self.design == "fixed":
            most = float(self.guesses[-1])
            cost = fixed_numbers_factor(self.canaries, self.guesses, np.zeros(1), q, most=most)
            # κ with g canaries given away over κ with none is at most B(y − g)/B(y), where y = N − 4q(1−q)·R: B is
            # log-convex, so the ratio is largest at the largest number of guesses. For g > y nothing better than
            # 1/P(K = n) is known.
            least = np.array(self.canaries - 4 * q * (1 - q) * most)
            ratio = central_probability(np.maximum(least - given_away, 0)) / central_probability(least)
            unknown = 1 / central_probability(np.array(float(self.canaries)))
            mass = mass * np.where(given_away <= least, ratio, unknown)
        probability = float(first_crossings(self.guesses, self.boundary, q, given_away, mass) @ cost)
        return np.full(self.thresholds.size, min(1.0, probability))


def joint_boundary(guesses: Ints, right: Ints, canaries: int, level: float, delta: float) -> Ints:
    """Return the number of right guesses that counts as a crossing, for each number of guesses."""
    if guesses.size == 0:
        return guesses
    # Of each number of guesses alone; coarse ones, since they only define the boundary.
    p_values = partial(tail_probability, guesses, canaries=canaries, steps=16)
    # Rounded down, which moves the boundary down and the p-value up.
    with np.errstate(divide="ignore"):
        best = largest(
            lambda epsilon: float(np.log(np.min(p_values(right, claim=ApproximateDP(epsilon, delta))) / level)),
            relative=1e-4,
        )
    claim = ApproximateDP(best, delta)
    # A bisection for the least number of right guesses that rejects as much; one more than the number of guesses
    # where not even right guesses alone do.
    low, high = np.zeros_like(guesses), guesses + 1
    while np.any(searching := low < high):
        middle = (low + high) // 2
        rejected = p_values(np.minimum(middle, guesses), claim=claim) <= level
        high = np.where(searching & rejected, middle, high)
        low = np.where(searching & ~rejected, middle + 1, low)
    # If no count rejects even ε = 0, every walk counts as a crossing, and the p-value is 1.
    return high * int(np.any(right >= high))


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
        low, size = low + shift, walk.size + steps.size - 1
        if min(walk.size, steps.size) < _LARGE:
            walk = np.convolve(walk, steps)
        else:
            length = 1 << (size - 1).bit_length()
            product = np.fft.irfft(np.fft.rfft(walk, length) * np.fft.rfft(steps, length), length)
            walk = np.maximum(product[:size], 0.0)
        # Walks that start within this step; all its guesses up to the start are right.
        stop = int(np.searchsorted(given_away, total, side="right"))
        for start, weight in zip(given_away[started:stop], mass[started:stop], strict=True):
            shift, steps = _binomial(total - int(start), q)
            # The sum of two lists of probabilities that start at different values.
            new_low = int(start) + shift
            least = min(low, new_low)
            joined = np.zeros(max(low + walk.size, new_low + steps.size) - least)
            joined[low - least : low - least + walk.size] += walk
            joined[new_low - least : new_low - least + steps.size] += weight * steps
            low, walk = least, joined
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
    if rate == 1:
        return trials, np.ones(1)
    log_odds = math.log(rate) - math.log1p(-rate)
    return low, np.exp(_log_choose(trials)[low : high + 1] + k * log_odds + trials * math.log1p(-rate))


@lru_cache(maxsize=128)
def _log_choose(trials: int) -> Floats:
    """Return the logarithms of the binomial coefficients; kept, since a search asks for them at many rates."""
    log_factorial = special.gammaln(np.arange(trials + 1) + 1.0)
    return np.asarray(log_factorial[-1] - log_factorial - log_factorial[::-1])
