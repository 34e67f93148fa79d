"""How much noise a release carries, measured by running it again with other random numbers.

The movement that one client may cause is judged against this noise. All limits are for Gaussian noise: the squared
scale of ``n`` residuals is χ² distributed, which also holds for movements across rounds whose noise is correlated
(1 / aᵀS⁻¹a is χ² with n − T + 1 degrees of freedom for a Wishart matrix S of T rounds; Muirhead 1982, Theorem 3.2.12).
Limits for other noise are wider, by its kurtosis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats
from coalmine.results.finding import CHECK_RATE

# Measured noise levels per replay, at most: each may be too low by chance, and they share half of the rate.
_LEVELS = 20
_RATE = CHECK_RATE / 2 / _LEVELS

_NOTHING = 1e-9  # relative to the largest noise: rounding, not noise


@dataclass(frozen=True)
class Noise:
    """The noise of a release.

    Args:
        mean: Average of all runs, (rounds, dim).
        std: Standard deviation of each coordinate, pooled over the array it belongs to, (dim,). 0 where there is none.
        rounds: Inverse correlation of the rounds' noise, (rounds, rounds).
        singular: Directions across rounds that carry no noise, (k, rounds).
        degrees: Degrees of freedom of ``std``.
        excess: Kurtosis above that of Gaussian noise, at least 0.
        rank: Dimension of the space that the noise vectors span, if smaller than their number; otherwise None.
    """

    mean: Floats
    std: Floats
    rounds: Floats
    singular: Floats
    degrees: int
    excess: float
    rank: int | None

    @property
    def bare(self) -> Bools:
        """Which coordinates carry no noise, (dim,)."""
        return np.asarray(self.std == 0)

    @property
    def level(self) -> float:
        """Typical standard deviation where there is noise; 0 if there is none."""
        noisy = self.std[~self.bare]
        return float(np.sqrt(np.mean(noisy**2))) if noisy.size else 0.0

    @property
    def margin(self) -> float:
        """A factor below 1: the true deviation is at most the measured one over it, but for 1 case of 40,000."""
        exact = math.sqrt(_chi_square_quantile(_RATE, self.degrees) / self.degrees)
        quantile = float(-special.ndtri(_RATE))
        wide = 1 - quantile * math.sqrt((2 + self.excess) / (4 * self.degrees))
        return max(min(exact, wide), 0.1)

    def deviations(self, moved: Floats) -> float:
        """Return the length of a movement, (rounds, dim), in standard deviations of the noise where there is any."""
        standard = moved[:, ~self.bare] / self.std[~self.bare]
        if self.singular.size and np.max(np.abs(self.singular @ standard), initial=0.0) > 1e-6:
            return math.inf  # a combination of rounds shows the movement without noise
        return math.sqrt(max(float(np.sum(standard * (self.rounds @ standard))), 0.0))

    def p_value(self, excess_ratio: float) -> float:
        """Return the chance, over all levels of a replay, that noise is measured this many times too low."""
        if not math.isfinite(excess_ratio):
            return 0.0
        n = self.degrees / (1 + self.excess / 2)
        return min(1.0, _LEVELS * float(special.gammainc(n / 2, n / 2 / excess_ratio**2)))


def measure(runs: Floats, sizes: list[int]) -> Noise:
    """Measure the noise.

    Args:
        runs: Releases of the same clients with other random numbers, (runs, rounds, dim).
        sizes: Numbers of coordinates of the arrays of one round's release.
    """
    count, rounds, _ = runs.shape
    mean = runs.mean(axis=0)
    residuals = (runs - mean) * math.sqrt(count / (count - 1))
    first = residuals[:, 0]
    own = np.sqrt(np.mean(first**2, axis=0))
    largest = float(own.max(initial=0.0))
    # A coordinate's own scale, since its rounding error is relative to its own size.
    noisy = own > np.maximum(_NOTHING * largest, 1e-12 * np.abs(mean[0]))
    noisy &= np.ptp(runs[:, 0], axis=0) > 0
    std = np.where(noisy, _pooled(own, noisy, sizes, count), 0.0)
    if not noisy.any():
        return Noise(mean, std, np.eye(rounds), np.empty((0, rounds)), 1, 0.0, None)
    standard = residuals[:, :, noisy] / std[noisy]
    samples = (count - 1) * int(noisy.sum())
    inverse, singular = _inverse(np.einsum("ktc,kuc->tu", standard, standard) / (count * int(noisy.sum())))
    excess = max(0.0, float(np.mean((first[:, noisy] / std[noisy]) ** 4)) - 3.0)
    return Noise(mean, std, inverse, singular, max(1, samples - rounds + 1), excess, _rank(standard[:, 0]))


def _pooled(own: Floats, noisy: Bools, sizes: list[int], count: int) -> Floats:
    """Return one standard deviation per array, or one for all arrays if they do not differ beyond chance."""
    std, common = np.zeros_like(own), math.sqrt(float(np.mean(own[noisy] ** 2))) if noisy.any() else 0.0
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        mask, start = noisy[part], start + size
        if not mask.any():
            continue
        level, degrees = math.sqrt(float(np.mean(own[part][mask] ** 2))), (count - 1) * int(mask.sum())
        low, high = (_chi_square_quantile(rate, degrees) / degrees for rate in (1e-4, 1 - 1e-4))
        std[part] = common if low <= (level / common) ** 2 <= high else level
    return std


def _inverse(correlation: Floats) -> tuple[Floats, Floats]:
    """Return the inverse of a correlation matrix on the directions it has, and the directions it lacks."""
    values, vectors = np.linalg.eigh(correlation)
    missing = values < 1e-8 * values[-1]
    return (vectors[:, ~missing] / values[~missing]) @ vectors[:, ~missing].T, vectors[:, missing].T


def _rank(standard: Floats) -> int | None:
    """Return how many dimensions the noise vectors span, if fewer than as many random vectors would."""
    vectors = standard[: max(2, min(len(standard), standard.shape[1] // 2))]
    if standard.shape[1] < 8:
        return None
    differences = vectors[1:] - vectors[:1]
    values = np.linalg.eigvalsh(differences @ differences.T)
    rank = int(np.sum(values > 1e-9 * values[-1]))
    return rank if rank < len(values) else None


def _chi_square_quantile(probability: float, degrees: float) -> float:
    return 2 * float(special.gammaincinv(degrees / 2, probability))
