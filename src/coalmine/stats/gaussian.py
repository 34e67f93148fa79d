"""Exact ε of Gaussian mechanisms and between pairs of normal distributions.

Everything is computed with logarithms of probabilities, so that ε = 0.1 and ε = 50,000 are equally accurate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_delta, check_nonnegative

_STEPS = 200


def epsilon_gaussian(sigma: ArrayLike, delta: float) -> Floats:
    """Compute the ε of the Gaussian mechanism with sensitivity 1 (Balle & Wang, 2018, Theorem 8).

    Args:
        sigma: Standard deviation of the noise, at least 0, any shape.
        delta: The δ at which ε is stated, in [0, 1).

    Returns:
        The smallest ε for which the mechanism is (ε, δ)-DP, elementwise; infinite for ``sigma`` 0 or ``delta`` 0.

    Raises:
        InputError: If ``sigma`` is negative or ``delta`` is out of range.

    Example:
        >>> round(float(epsilon_gaussian(1.0, 1e-5)), 4)
        4.3772
    """
    sigma = np.asarray(sigma, dtype=float)
    if np.any(~(sigma >= 0)):
        raise InputError(f"sigma must be at least 0, got {sigma}")
    with np.errstate(divide="ignore"):
        return epsilon_gdp(1 / sigma, delta)


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
    epsilon = _solve(lambda epsilon: _log_delta_gdp(epsilon, plain), plain.shape, delta)
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
    log_delta = math.log(delta)
    low, high = -60.0, 60.0  # ln σ
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if float(_log_delta_gdp(np.array(epsilon), np.array(math.exp(-middle)))) > log_delta:
            low = middle
        else:
            high = middle
        if high - low < 1e-16:
            break
    return math.exp(high)


def _log_delta_gdp(epsilon: Floats, mu: Floats) -> Floats:
    """Return ln δ(ε) of a μ-GDP mechanism: ln(Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ))."""
    return _log_gap(epsilon, special.log_ndtr(mu / 2 - epsilon / mu), special.log_ndtr(-mu / 2 - epsilon / mu))


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


def epsilon_between_gaussians(mu0: ArrayLike, std0: ArrayLike, mu1: ArrayLike, std1: ArrayLike, delta: float) -> Floats:
    """Compute the exact ε at δ between N(μ₀, σ₀²) and N(μ₁, σ₁²), the larger of both directions.

    This is the supremum of the hockey-stick divergence over all events; for attacks that compare with one threshold see
    `threshold_epsilon_between_gaussians`.

    Args:
        mu0: Mean of the first distribution, any shape.
        std0: Standard deviation of the first distribution, above 0.
        mu1: Mean of the second distribution.
        std1: Standard deviation of the second distribution, above 0.
        delta: The δ at which ε is stated, in [0, 1).

    Returns:
        ε, elementwise over the broadcast arguments.

    Raises:
        InputError: If a standard deviation is not positive and finite, a mean is NaN, or ``delta`` is out of range.

    Example:
        >>> round(float(epsilon_between_gaussians(0, 1, 1, 1, 1e-5)), 4)  # the Gaussian mechanism with σ = 1
        4.3772
    """
    return _epsilon(mu0, std0, mu1, std1, delta, "any")


def threshold_epsilon_between_gaussians(
    mu0: ArrayLike, std0: ArrayLike, mu1: ArrayLike, std1: ArrayLike, delta: float
) -> Floats:
    """Compute the ε at δ that attacks with a single threshold reach (Andrew et al., 2023, Algorithm 1).

    Args:
        mu0: Mean of the first distribution, any shape.
        std0: Standard deviation of the first distribution, above 0.
        mu1: Mean of the second distribution.
        std1: Standard deviation of the second distribution, above 0.
        delta: The δ at which ε is stated, in [0, 1).

    Returns:
        ε, elementwise; never above `epsilon_between_gaussians`, and equal to it for equal standard deviations.

    Raises:
        InputError: If a standard deviation is not positive and finite, a mean is NaN, or ``delta`` is out of range.

    Example:
        >>> round(float(threshold_epsilon_between_gaussians(0, 1, 0, 1.05, 1e-6)), 4)
        0.8722
        >>> round(float(epsilon_between_gaussians(0, 1, 0, 1.05, 1e-6)), 4)
        0.9402
    """
    return _epsilon(mu0, std0, mu1, std1, delta, "threshold")


def _epsilon(mu0: ArrayLike, std0: ArrayLike, mu1: ArrayLike, std1: ArrayLike, delta: float, events: str) -> Floats:
    """Return the larger ε of both directions, over any event or over single thresholds."""
    check_delta(delta)
    mu0, std0, mu1, std1 = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (mu0, std0, mu1, std1)))
    if np.any(~(std0 > 0)) or np.any(~(std1 > 0)) or not np.all(np.isfinite(std0) & np.isfinite(std1)):
        raise InputError(f"standard deviations must be positive and finite, got {std0} and {std1}")
    if np.any(np.isnan(mu0)) or np.any(np.isnan(mu1)):
        raise InputError("means must be numbers, got NaN")
    if delta == 0:
        # Unless the distributions are equal, one of the two density ratios is unbounded in a tail.
        return np.where((mu0 == mu1) & (std0 == std1), 0.0, math.inf)
    forward = _one_direction(mu0, std0, mu1, std1, delta, events)
    backward = _one_direction(mu1, std1, mu0, std0, delta, events)
    return np.maximum(forward, backward)


def _one_direction(mu0: Floats, std0: Floats, mu1: Floats, std1: Floats, delta: float, events: str) -> Floats:
    """Return the supremum of ε ≥ 0 with P₁(E) > e^ε P₀(E) + δ for some event E."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Squares overflow beyond this, and so would ε.
        infinite = ~(np.abs(mu1 - mu0) / std0 < 1e150) | ~(np.maximum(std1 / std0, std0 / std1) < 1e150)
    mu0, mu1 = np.where(infinite, 0.0, mu0), np.where(infinite, 0.0, mu1)
    std0, std1 = np.where(infinite, 1.0, std0), np.where(infinite, 1.0, std1)
    epsilon = _solve(lambda epsilon: _log_delta(epsilon, mu0, std0, mu1, std1, events), mu0.shape, delta)
    return np.where(infinite, math.inf, epsilon)


def _log_delta(epsilon: Floats, mu0: Floats, std0: Floats, mu1: Floats, std1: Floats, events: str) -> Floats:
    """Return ln of the largest P₁(E) − e^ε P₀(E) over all events E, or over single thresholds.

    In standard units of P₀, ln(p₁/p₀) − ε = a z² + b z + c, and the best event is where this is positive: outside the
    roots (a > 0), between them (a < 0), or a half-line (a = 0).
    """
    shift, scale = (mu1 - mu0) / std0, std1 / std0
    a = (scale - 1) * (scale + 1) / (2 * scale**2)
    b = shift / scale**2
    c = -(shift**2) / (2 * scale**2) - np.log(scale) - epsilon
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        root = np.sqrt(np.maximum(b * b - 4 * a * c, 0))
        # The numerically stable pair of roots; the far one goes to infinity as a → 0.
        half = -(b + np.where(b >= 0, root, -root)) / 2
        near = np.where(half != 0, c / half, 0.0)
        other = np.where(a != 0, half / a, np.where(b >= 0, -math.inf, math.inf))
        left, right = np.minimum(near, other), np.maximum(near, other)
        crossing = (b * b - 4 * a * c > 0) | (a == 0)

        def gap(log_p1: Floats, log_p0: Floats) -> Floats:
            return _log_gap(epsilon, log_p1, log_p0)

        def tails(z: Floats, sign: int) -> tuple[Floats, Floats]:
            """Return ln P₁ and ln P₀ of the half-line above z (sign −1) or below z (sign +1)."""
            return special.log_ndtr(sign * (z - shift) / scale), special.log_ndtr(sign * z)

        below, over = tails(left, 1), tails(right, -1)
        if events == "threshold":
            # A threshold gives one half-line: the better of the two outer ones, or of those that hold the interval.
            outer = np.maximum(gap(*below), gap(*over))
            inner = np.maximum(gap(*tails(left, -1)), gap(*tails(right, 1)))
        else:
            outer = np.logaddexp(gap(*below), gap(*over))
            inner = gap(_log_between((left - shift) / scale, (right - shift) / scale), _log_between(left, right))
        flat = np.where(b > 0, gap(*tails(near, -1)), np.where(b < 0, gap(*tails(near, 1)), -math.inf))
        curved = np.where(crossing, np.where(a > 0, outer, inner), -math.inf)
    return np.asarray(np.where(a == 0, flat, curved))


def _log_between(low: Floats, high: Floats) -> Floats:
    """Return ln(Φ(high) − Φ(low)) for low ≤ high, from the tail in which nothing cancels."""
    flip = low > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    small, large = special.log_ndtr(low), special.log_ndtr(high)
    with np.errstate(divide="ignore"):
        result: Floats = large + np.log(-np.expm1(np.minimum(small - large, 0)))
    return result
