"""How much noise a release carries, measured by running it again with other random numbers.

The movement that one client may cause is judged against this noise. All limits are for Gaussian noise: the squared
scale of ``n`` residuals is χ² distributed, which also holds for movements across rounds whose noise is correlated
(1 / aᵀS⁻¹a is χ² with n − T + 1 degrees of freedom for a Wishart matrix S of T rounds; Muirhead 1982, Theorem 3.2.12).
Limits for other noise are wider, by its kurtosis. Arrays may differ in the size of their noise. Where the numbers of an
array do, or depend on each other, movements are judged by the noise along them, which is less precise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.results.finding import CHECK_RATE

# Measured noise levels per replay, at most: each may be too low by chance, and they share half of the rate.
_LEVELS = 20
_RATE = CHECK_RATE / 2 / _LEVELS

_LEAST_NUMBERS = 8  # with fewer, noise vectors of full rank say little

# Standard errors by which noise may seem larger along a movement than elsewhere, uneven, or dependent. Beyond them,
# movements are judged by the noise along them: if white noise gets there by chance, only power is lost.
_LARGER, _UNEVEN, _DEPENDENT = 3.0, 3.0, 4.0

_NOTHING = 1e-9  # relative to the largest noise: rounding, not noise


@dataclass(frozen=True)
class Noise:
    """The noise of a release.

    Args:
        mean: Average of all runs, (rounds, dim).
        std: Standard deviation of each coordinate, pooled over the array it belongs to, (dim,). 0 where there is none.
        rounds: Inverse correlation of the rounds' noise, (rounds, rounds).
        singular: Directions across rounds that carry no noise, (k, rounds).
        upper: Upper limit on the standard deviation of each coordinate, (dim,): exceeded in any array with a
            probability of at most 1 in 40,000.
        arrays: Which array each coordinate belongs to, (dim,).
        array_degrees: Degrees of freedom of the measured noise of each array.
        degrees: Degrees of freedom of all noise together.
        excess: Kurtosis above that of Gaussian noise, at least 0.
        rank: Dimension of the space that the noise vectors span, if smaller than their number; otherwise None.
        residuals: The first round's noise in units of ``std``, where there is any, (runs, numbers).
        white: Whether its numbers seem to have the same size within each array, and to be independent.
    """

    mean: Floats
    std: Floats
    upper: Floats
    arrays: Ints
    array_degrees: Floats
    rounds: Floats
    singular: Floats
    degrees: int
    excess: float
    rank: int | None
    residuals: Floats
    white: bool

    @property
    def bare(self) -> Bools:
        """Which coordinates carry no noise, (dim,)."""
        return np.asarray(self.std == 0)

    @property
    def level(self) -> float:
        """Typical standard deviation where there is noise; 0 if there is none."""
        noisy = self.std[~self.bare]
        return float(np.sqrt(np.mean(noisy**2))) if noisy.size else 0.0

    def deviations(self, moved: Floats, *, at_least: bool = False) -> float:
        """Return the length of a movement, (rounds, dim), in standard deviations of the noise where there is any.

        Args:
            moved: The movement.
            at_least: Whether to return a lower limit, which holds for any measurement error within ``upper``.
        """
        scale = self.upper if at_least else self.std
        standard = moved[:, ~self.bare] / scale[~self.bare]
        if self.singular.size and np.max(np.abs(self.singular @ standard), initial=0.0) > 1e-6:
            return math.inf  # a combination of rounds shows the movement without noise
        return math.sqrt(max(float(np.sum(standard * (self.rounds @ standard))), 0.0))

    def margin(self, moved: Floats) -> float:
        """Return a factor of at most 1: a movement is at least this share of what was measured."""
        measured = self.deviations(moved)
        if not 0 < measured < math.inf:
            return 1.0
        margin = self.deviations(moved, at_least=True) / measured
        size, degrees = self._along(moved)
        return margin if size is None else min(margin, float(1 / (size * _factors(degrees, 0.0)[0])))

    def _along(self, moved: Floats) -> tuple[float | None, Floats]:
        """Return the size of the noise along a movement, in units of ``std``, if it must be used, and its degrees.

        For noise of any covariance Σ, mᵀΣ⁻¹m ≥ |m|⁴ / mᵀΣm: a movement m is at least |m| / (size along m) standard
        deviations long. That is exact for white noise, and needs no assumption on others, but uses one number per run.
        So it counts where numbers seem to differ in size or to depend on each other, or where there seems to be more
        noise along m than elsewhere.
        """
        direction = moved[0, ~self.bare] / self.std[~self.bare]
        length = float(np.linalg.norm(direction))
        if len(moved) > 1 or not length:
            return None, np.ones(1)
        square = float(np.mean((self.residuals @ (direction / length)) ** 2))
        heavy = self.excess * float(np.sum((direction / length) ** 4))  # excess kurtosis of a weighted sum
        degrees = (len(self.residuals) - 1) / (1 + heavy / 2)
        if self.white and square <= 1 + _LARGER * math.sqrt(2 / degrees):
            return None, np.ones(1)
        return math.sqrt(square), np.array([degrees])

    def p_value(self, moved: Floats, noise_multiplier: float) -> float:
        """Return a p-value of the claim that a movement is covered: that some array's noise was measured too low.

        A part of a movement is no longer than all of it. So arrays of few numbers, whose noise is uncertain, may be
        left out: the best of these choices counts, times their number.
        """
        size, degrees = self._along(moved)
        if size is not None:
            half, ratio = float(degrees[0]) / 2, self.deviations(moved) * noise_multiplier / size
            return min(1.0, _LEVELS * float(special.gammainc(half, half / ratio**2))) if ratio > 1 else 1.0
        order = np.argsort(-self.array_degrees, kind="stable")
        order = order[self.array_degrees[order] > 0]
        best, total = 1.0, np.zeros_like(moved)
        for count, array in enumerate(order, start=1):
            here = self.arrays == array
            total[:, here] = moved[:, here]
            ratio = self.deviations(total) * noise_multiplier
            if math.isinf(ratio):
                return 0.0
            if ratio > 1:
                n = self.array_degrees[order[:count]] / (1 + self.excess / 2)
                best = min(best, float(np.sum(special.gammainc(n / 2, n / 2 / ratio**2))))
        return min(1.0, _LEVELS * len(order) * best)


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
    deviations = np.sqrt(np.mean(first**2, axis=0))
    largest = float(deviations.max(initial=0.0))
    # A coordinate's own scale, since its rounding error is relative to its own size.
    noisy = deviations > np.maximum(_NOTHING * largest, 1e-12 * np.abs(mean[0]))
    noisy &= np.ptp(runs[:, 0], axis=0) > 0
    places = np.repeat(np.arange(len(sizes)), sizes)
    numbers = np.bincount(places[noisy], minlength=len(sizes))
    if not noisy.any():
        nothing = np.zeros_like(deviations)
        eye, none = np.eye(rounds), np.empty((0, rounds))
        none_left = np.empty((count, 0))
        return Noise(mean, nothing, nothing, places, np.zeros(len(sizes)), eye, none, 1, 0.0, None, none_left, True)
    levels = np.sqrt(np.bincount(places[noisy], deviations[noisy] ** 2, minlength=len(sizes)) / np.maximum(numbers, 1))
    array_degrees = np.maximum((count - 1) * numbers - rounds + 1, numbers > 0).astype(float)
    std = np.where(noisy, _pooled(levels, numbers, count)[places], 0.0)
    standard = residuals[:, :, noisy] / std[noisy]
    samples = (count - 1) * int(noisy.sum())
    inverse, singular = _inverse(np.einsum("ktc,kuc->tu", standard, standard) / (count * int(noisy.sum())))
    excess = _excess_kurtosis(first[:, noisy] / std[noisy])
    upper = np.where(noisy, np.maximum(std, (levels * _factors(array_degrees, excess))[places]), 0.0)
    degrees = max(1, samples - rounds + 1)
    return Noise(
        mean, std, upper, places, array_degrees, inverse, singular, degrees, excess, _rank(standard[:, 0]),
        standard[:, 0], _white(standard[:, 0]),
    )  # fmt: skip


def _pooled(levels: Floats, numbers: Ints, count: int) -> Floats:
    """Return one standard deviation per array, or one for all arrays if they do not differ beyond chance.

    Args:
        levels: Measured standard deviation of each array.
        numbers: Number of coordinates with noise in each array.
        count: Number of runs.
    """
    common = math.sqrt(float(np.sum(numbers * levels**2) / np.sum(numbers)))
    degrees = np.maximum((count - 1) * numbers, 1)
    low, high = (_chi_square_quantile(rate, degrees) / degrees for rate in (1e-4, 1 - 1e-4))
    square = (levels / common) ** 2
    return np.where((low <= square) & (square <= high), common, levels)


def _factors(degrees: Floats, excess: float, rate: float = _RATE) -> Floats:
    """Return how many times the measured standard deviation of each array the true one may be.

    All limits hold together with probability 1 − ``rate`` if the noise is Gaussian (χ², union bound over arrays). For
    noise with heavier tails the mean square of n numbers has the variance (2 + excess)/n, that of a χ² variable with
    n / (1 + excess/2) degrees of freedom, whose lower tail is used: an approximation.
    """
    share = rate / max(1, int(np.sum(degrees > 0)))
    n = np.maximum(degrees, 1.0) / (1 + excess / 2)
    return np.asarray(1 / np.sqrt(np.maximum(_chi_square_quantile(share, n) / n, 1e-6)))


def _excess_kurtosis(standard: Floats) -> float:
    """Return the excess kurtosis of noise, (runs, numbers), from residuals of unit variance; at least 0.

    A residual x − mean of n runs is a weighted sum of all of them, which has ((n−1)³ + 1) / (n²(n−1)) of the excess.
    """
    n = len(standard)
    share = ((n - 1) ** 3 + 1) / (n**2 * (n - 1))
    return max(0.0, (float(np.mean(standard**4)) - 3.0) / share)


def _inverse(correlation: Floats) -> tuple[Floats, Floats]:
    """Return the inverse of a correlation matrix on the directions it has, and the directions it lacks."""
    values, vectors = np.linalg.eigh(correlation)
    missing = values < 1e-8 * values[-1]
    return (vectors[:, ~missing] / values[~missing]) @ vectors[:, ~missing].T, vectors[:, missing].T


def _rank(standard: Floats) -> int | None:
    """Return how many dimensions noise vectors, (runs, numbers), span, if fewer than as many random vectors would."""
    ordered = np.sort(standard, axis=0)
    same = ordered[1:] == ordered[:-1]
    continuous = standard[:, ~same.any(axis=0)]
    if continuous.shape[1] < _LEAST_NUMBERS:
        return _repeated(standard, same)
    vectors = continuous[: max(2, min(len(standard), continuous.shape[1] // 2))]
    differences = vectors[1:] - vectors[:1]
    values = np.linalg.eigvalsh(differences @ differences.T)
    rank = int(np.sum(values > 1e-9 * values[-1]))
    return rank if rank < len(values) else None


def _white(standard: Floats) -> bool:
    """Whether the numbers of noise vectors, (runs, numbers), seem to be of one size and independent."""
    runs, numbers = standard.shape
    if numbers < _LEAST_NUMBERS:
        return False
    # Of one size: what is large in one half of the runs is not large in the other, whatever the distribution.
    one, two = (np.log(half.var(axis=0) + 1e-12) for half in np.array_split(standard, 2))
    if not one.std() or not two.std() or np.corrcoef(one, two)[0, 1] > _UNEVEN / math.sqrt(numbers):
        return False
    # Independent: squared cosines of noise vectors are 1/d on average, and more if fewer than d dimensions matter;
    # those of different pairs are uncorrelated. Differences of runs have no common mean.
    pairs = standard[: runs // 2 * 2 : 2] - standard[1::2]
    pairs /= np.maximum(np.linalg.norm(pairs, axis=1, keepdims=True), 1e-12)
    squares = (pairs @ pairs.T)[np.triu_indices(len(pairs), 1)] ** 2 * numbers
    return bool(np.mean(squares) < 1 + _DEPENDENT * math.sqrt(2 / len(squares)))


def _repeated(standard: Floats, same: Bools) -> int | None:
    """Return the dimension of noise of few values if its vectors repeat, which independent numbers would not do.

    Two runs agree in a number with at most the probability of its most frequent value, here its share of the runs.

    Args:
        standard: The noise, (runs, numbers).
        same: Whether neighbors among the sorted values of a number are equal, (runs − 1, numbers).
    """
    count = most = np.ones(standard.shape[1])
    for equal in same:
        count = np.where(equal, count + 1, 1)
        most = np.maximum(most, count)
    runs, different = len(standard), len(np.unique(standard, axis=0))
    log_chance = math.log(runs**2 / 2) + float(np.sum(np.log(most / runs)))
    return different - 1 if different < runs and log_chance < math.log(_RATE) else None


def _chi_square_quantile(probability: float, degrees: Floats | Ints) -> Floats:
    return np.asarray(2 * special.gammaincinv(degrees / 2, probability))
