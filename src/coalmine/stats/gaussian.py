"""Gaussian mechanisms: their exact ε, and estimates that assume normal scores (Andrew et al., 2023, Sections 3 and 4).

Everything is computed with logarithms of probabilities, so that ε = 0.1 and ε = 50,000 are equally accurate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import Floats, finite_list
from coalmine.errors import InputError, NotApplicableError, check_confidence, check_delta, check_nonnegative
from coalmine.seeds import default_rng
from coalmine.stats.scores import Estimate, Scores, largest

_STEPS = 200  # of a bisection, at most
_DRAWS = 2000  # of the moments behind an interval
_TOO_FAR = 1e150  # standard deviations: squares overflow beyond this, and so would ε
_FEWEST_VALUES = 8  # for a test of normality
# ln(1 − p) as a parabola of the statistic below 0.2 and 0.34, then ln p below 0.6 and beyond.
_TABLE_4_9 = (
    (-13.436, 101.14, -223.73),
    (-8.318, 42.796, -59.938),
    (0.9177, -4.279, -1.38),
    (1.2937, -5.709, 0.0186),
)


def epsilon_gdp(mu: ArrayLike, delta: float) -> Floats:
    """Compute the ε of a μ-GDP mechanism at δ (Dong, Roth & Su, 2019, Corollary 2.13).

    Args:
        mu: The parameter μ of Gaussian differential privacy, any shape; the sign is ignored.
        delta: The δ at which ε is stated, in [0, 1).

    Returns:
        The smallest ε for which the mechanism is (ε, δ)-DP, elementwise.

    Raises:
        InputError: If ``mu`` is NaN or ``delta`` is out of range.

    Example:
        >>> epsilon_gdp([0.0, 1.0], 1e-5).round(4)
        array([0.    , 4.3772])
    """
    check_delta(delta)
    shift = np.abs(np.asarray(mu, dtype=np.float64))
    if np.any(np.isnan(shift)):
        raise InputError("mu must be a number, got NaN")
    if delta == 0:
        return np.where(shift > 0, math.inf, 0.0)
    plain = np.where((shift > 0) & np.isfinite(shift), shift, 1.0)
    # δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)
    epsilon = _solve(
        lambda e: _log_gap(e, special.log_ndtr(plain / 2 - e / plain), special.log_ndtr(-plain / 2 - e / plain)),
        plain.shape,
        delta,
    )
    return np.where(shift == 0, 0.0, np.where(np.isinf(shift), math.inf, epsilon))


def sigma_gaussian(epsilon: float, delta: float) -> float:
    """Compute the least noise for which the Gaussian mechanism with sensitivity 1 is (ε, δ)-DP (Balle & Wang, 2018).

    Args:
        epsilon: The ε to reach, at least 0.
        delta: The δ to reach, in [0, 1).

    Returns:
        Standard deviation of the noise; 0 for an infinite ε, infinite for ``delta`` 0.

    Raises:
        InputError: If ``epsilon`` is negative or ``delta`` is out of range.

    Example:
        >>> round(sigma_gaussian(1.0, 1e-5), 4)
        3.7306
    """
    check_delta(delta)
    check_nonnegative("epsilon", epsilon)
    if epsilon == math.inf:
        return 0.0
    if delta == 0:
        return math.inf
    at = np.array(epsilon)
    # The largest μ = 1/σ that keeps δ; rounded down, so that σ is enough noise.
    mu = largest(
        lambda m: (
            float(_log_gap(at, special.log_ndtr(m / 2 - at / m), special.log_ndtr(-m / 2 - at / m))) - math.log(delta)
        ),
        floor=math.exp(-60),
        relative=1e-15,
    )
    return 1 / mu


def _log_gap(epsilon: Floats, log_p1: Floats, log_p0: Floats) -> Floats:
    """Return ln(P₁ − e^ε P₀), or −∞ where the difference is not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = epsilon + log_p0 - log_p1
        gap = log_p1 + np.log(-np.expm1(np.minimum(ratio, 0)))
    return np.where(ratio < 0, gap, -math.inf)


def _solve(log_delta: Callable[[Floats], Floats], shape: tuple[int, ...], delta: float) -> Floats:
    """Return the ε ≥ 0 at which the decreasing δ(ε) equals δ, or 0 if δ(0) is below, by bisection, elementwise."""
    target = math.log(delta)
    low, high = np.zeros(shape), np.ones(shape)
    while np.any(grow := log_delta(high) > target):
        low, high = np.where(grow, high, low), np.where(grow, 2 * high, high)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        up = log_delta(middle) > target
        low, high = np.where(up, middle, low), np.where(up, high, middle)
        if np.all(high - low <= 1e-15 * high + 1e-18):
            break
    return np.where(log_delta(np.zeros(shape)) > target, (low + high) / 2, 0.0)


def threshold_epsilon(mu0: float, std0: float, mu1: float, std1: float, delta: float) -> float:
    """Compute the ε at δ that attacks with a single threshold reach between two normal distributions.

    Andrew et al. (2023), Algorithm 1: the larger of both directions. For equal standard deviations it is the exact ε
    of the two distributions.

    Args:
        mu0: Mean of the first distribution.
        std0: Standard deviation of the first distribution, above 0.
        mu1: Mean of the second distribution.
        std1: Standard deviation of the second distribution, above 0.
        delta: The δ at which ε is stated, in [0, 1).

    Example:
        >>> round(threshold_epsilon(0.0, 1.0, 0.0, 1.05, 1e-6), 4)
        0.8722
    """
    if (mu0, std0) == (mu1, std1):
        return 0.0
    far = max(abs(mu1 - mu0) / min(std0, std1), std1 / std0, std0 / std1)
    # At δ = 0, one of the two density ratios is unbounded in a tail.
    if check_delta(delta) == 0 or not far < _TOO_FAR:
        return math.inf
    epsilons = []
    for shift, scale in (((mu1 - mu0) / std0, std1 / std0), ((mu0 - mu1) / std1, std0 / std1)):
        log_delta = partial(_log_delta_threshold, shift=shift, scale=scale)
        epsilons.append(float(_solve(log_delta, (), delta)))
    return max(epsilons)


def _log_delta_threshold(epsilon: Floats, shift: float, scale: float) -> Floats:
    """Return ln of the largest P₁(E) − e^ε P₀(E) over half-lines E, for P₁ = N(shift, scale²) and P₀ = N(0, 1)."""
    # The difference is stationary where the densities have ratio e^ε: at the roots of a z² + b z + c = ln(p₁/p₀) − ε.
    a = (scale - 1) * (scale + 1) / (2 * scale**2)
    b = shift / scale**2
    c = -(shift**2) / (2 * scale**2) - math.log(scale) - epsilon
    # The numerically stable pair of roots; the far one goes to infinity as a → 0.
    root = np.sqrt(np.maximum(b * b - 4 * a * c, 0))
    half = -(b + np.copysign(root, b)) / 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        near = np.where(half != 0, c / half, 0.0)
        other = half / a if a else np.full_like(near, math.inf)
    best = np.full_like(near, -math.inf)
    for z in (near, other):
        for sign in (-1, 1):  # the half-lines above and below z
            log_p1, log_p0 = special.log_ndtr(sign * (z - shift) / scale), special.log_ndtr(sign * z)
            best = np.maximum(best, _log_gap(epsilon, log_p1, log_p0))
    return best


def gaussian_fit(scores: Scores, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Compute ε_est: fit a normal distribution to each side, and take the best single threshold between the two.

    Andrew et al. (2023), Algorithm 1 (known null) and Algorithm 2 (observed non-members). An estimate, and biased
    upward: ε at a small δ is decided far in the tail, where a small error in a fitted standard deviation costs a lot.

    It has no interval. For a Gaussian mechanism both standard deviations are equal, and there ε is smallest: it grows
    if either exceeds the other. Nearly all draws around the fit then lie above the true ε, and their quantiles would
    hold it in about 70% of audits at a nominal 95%, however many scores there are (docs/estimators.md).

    Args:
        scores: Scores of members and of non-members, or with a known null.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Not used, since there is no interval; in [0.5, 1).

    Returns:
        The estimate, without an interval.

    Raises:
        NotApplicableError: If a side has fewer than two distinct scores, or the null has no known moments.
        InputError: If ``delta`` or ``confidence`` is out of range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(rng.normal(1, 1, 1000), rng.normal(0, 1, 1000))
        >>> round(gaussian_fit(scores, delta=1e-5).epsilon, 1)  # the true ε is 4.4
        5.2
    """
    check_confidence(confidence)
    nonmembers, members = moments(scores)
    epsilon = threshold_epsilon(*nonmembers, *members, delta)
    assumes = "the scores of either side are normal"
    return Estimate("gaussian-fit", epsilon, delta=delta, assumes=assumes, few_scores=scores.few)


def gaussian_shift(scores: Scores, *, delta: float, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """Compute the ε of two normal distributions that differ only in their means.

    The standard deviation is the non-members'. For cosines of random canaries this is Section 3 of Andrew et al.
    (2023): σ̂ = 1/(μ̂√d), then the exact ε of the Gaussian mechanism with that noise. An estimate, nearly unbiased for
    Gaussian mechanisms and meaningless if the scores are not bell-shaped.

    Its interval is a generalized confidence interval (Weerahandi 1993): quantiles of the shift for means and standard
    deviations that are drawn around the observed ones. For normal scores it covers as often as it says from 10 scores
    on, also if the two standard deviations differ.

    Args:
        scores: Scores of members and of non-members, or with a known null.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of the two-sided interval, in [0.5, 1).
        seed: Seed of the draws behind the interval.

    Returns:
        The estimate; ``lower`` and ``upper`` show its sampling error and do not bound the true ε.

    Raises:
        NotApplicableError: If a side has fewer than two distinct scores, or the null has no known moments.
        InputError: If ``delta`` or ``confidence`` is out of range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(rng.normal(1, 1, 1000), rng.normal(0, 1, 1000))
        >>> round(gaussian_shift(scores, delta=1e-5).epsilon, 1)  # the true ε is 4.4
        4.1
    """
    tail = (1 - check_confidence(confidence)) / 2
    (mu0, std0), (mu1, std1) = moments(scores)
    # Means and standard deviations that could be behind the observed ones: generalized pivotal quantities. With the
    # observed mean m and standard deviation s of n normal scores, σ* = s √((n − 1) / χ²) and μ* = m + σ* z / √n. A
    # parametric bootstrap would draw s* = s √(χ² / (n − 1)) instead, which repeats the bias of s: its lower end exceeds
    # the true ε in up to 9% of audits instead of 2.5%.
    rng = default_rng(seed)
    means0, stds0 = np.array(mu0), np.array(std0)  # exact for a known null
    if scores.nonmembers is not None:
        n = scores.nonmembers.size
        stds0 = std0 * np.sqrt((n - 1) / rng.chisquare(n - 1, _DRAWS))
        means0 = mu0 + stds0 * rng.standard_normal(_DRAWS) / np.sqrt(n)
    m = scores.members.size
    stds1 = std1 * np.sqrt((m - 1) / rng.chisquare(m - 1, _DRAWS))
    means1 = mu1 + stds1 * rng.standard_normal(_DRAWS) / np.sqrt(m)
    low, high = np.quantile((means1 - means0) / stds0, [tail, 1 - tail])
    # ε of the Gaussian mechanism grows with the shift, so the quantiles of one are those of the other.
    epsilon, lower, upper = epsilon_gdp(np.maximum(0.0, [(mu1 - mu0) / std0, low, high]), check_delta(delta)).tolist()
    assumes = "the scores of either side are normal with the same standard deviation"
    ends = (epsilon, lower, upper, confidence, delta)
    return Estimate("gaussian-shift", *ends, assumes=assumes, few_scores=scores.few)


def moments(scores: Scores) -> tuple[tuple[float, float], tuple[float, float]]:
    """Compute mean and standard deviation of both sides.

    Args:
        scores: Scores of members and of non-members, or with a known null.

    Returns:
        (mean, standard deviation) of the non-members, exact for a known null, and of the members.

    Raises:
        NotApplicableError: If a side has fewer than two distinct scores, or the null has no known moments.

    Example:
        >>> moments(Scores([1.0, 3.0], [-1.0, 0.0, 1.0]))
        ((0.0, 1.0), (2.0, 1.4142135623730951))
    """
    sides = {"nonmembers": scores.nonmembers, "members": scores.members}
    fits = []
    for name, side in sides.items():
        mean, std = math.nan, math.nan
        if side is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                # A single score has no spread, and no fit.
                mean, std = float(np.mean(side)), float(np.std(side, ddof=min(1, side.size - 1)))
        elif scores.null is not None:
            mean, std = scores.null.mean, scores.null.std
        if not 0 < std < np.inf:
            raise NotApplicableError(
                f"a Gaussian fit needs {name} with at least two distinct scores of moderate size, or a null with known "
                "moments"
            )
        fits.append((mean, std))
    return fits[0], fits[1]


class AndersonDarling(NamedTuple):
    """Outcome of the Anderson–Darling test.

    Attributes:
        statistic: A², the weighted squared distance between the empirical and the fitted normal distribution.
        p_value: Probability of a statistic at least as large for normal values.
    """

    statistic: float
    p_value: float


def anderson_darling(values: ArrayLike) -> AndersonDarling:
    """Test whether values are normal, with their mean and standard deviation estimated from the values themselves.

    The p-value follows D'Agostino and Stephens (1986, table 4.9) with the correction 1 + 0.75/n + 2.25/n². It is
    accurate to a few percent between 0.001 and 0.5, and to the order of magnitude below.

    Args:
        values: At least 8 finite numbers, shape (n,).

    Returns:
        The statistic A² and its p-value.

    Raises:
        NotApplicableError: If there are fewer than 8 values, or all are equal.

    Example:
        >>> values = np.random.default_rng(0).normal(3.0, 2.0, 500)
        >>> anderson_darling(values).p_value > 0.05
        True
        >>> anderson_darling(np.exp(values)).p_value < 1e-6
        True
    """
    data = np.sort(finite_list("values", values))
    n = data.size
    std = float(np.std(data, ddof=min(1, n - 1)))
    if n < _FEWEST_VALUES or not 0 < std < np.inf:
        raise NotApplicableError(f"a test of normality needs at least {_FEWEST_VALUES} values that are not all equal")
    z = (data - data.mean()) / std
    odd = 2 * np.arange(1, n + 1) - 1
    statistic = -n - float(np.mean(odd * (special.log_ndtr(z) + special.log_ndtr(-z[::-1]))))
    a = min(statistic * (1 + 0.75 / n + 2.25 / n**2), 13.0)  # the fitted parabola would rise again
    constant, slope, curvature = _TABLE_4_9[np.searchsorted([0.2, 0.34, 0.6], a, side="right")]
    tail = math.exp(constant + slope * a + curvature * a**2) * (a < 13)
    p_value = tail if a >= 0.34 else 1 - tail
    return AndersonDarling(statistic, p_value)
