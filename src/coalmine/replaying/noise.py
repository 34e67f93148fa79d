"""How much noise a release carries, measured by running it again with other random numbers.

The movement that one client may cause is judged against this noise. All limits are for Gaussian noise: the squared
scale of ``n`` residuals is χ² distributed, which also holds for movements across rounds whose noise is correlated
(1 / aᵀS⁻¹a is χ² with n − T + 1 degrees of freedom for a Wishart matrix S of T rounds; Muirhead 1982, Theorem 3.2.12).
Limits for other noise are wider, by its kurtosis. In one round, numbers that moved about equally far are judged
together, which is valid for independent noise whose numbers have any sizes (see `Noise._by_size`). Where numbers depend
on each other, a movement is judged by the noise along it, which is less precise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.results.finding import CHECK_RATE

# Comparisons of a movement with a measured noise level, per replay, at most: each level may be too low by chance, and
# they share half of the rate.
TESTS = 200
RATE = CHECK_RATE / 2 / TESTS

_LEAST_NUMBERS = 8  # with fewer, noise vectors of full rank say little

# Standard errors by which noise may seem larger along a movement than elsewhere, uneven, or dependent. Beyond them,
# movements are judged with fewer assumptions: if even or independent noise gets there by chance, only power is lost.
_LARGER, _UNEVEN, _DEPENDENT = 3.0, 3.0, 4.0

_NOTHING = 1e-9  # relative to the largest noise: rounding, not noise

_FLAT = 1e-6  # relative to the largest, size of the noise in a direction that does not count as one of its span

# Groups of numbers below this share of an array's numbers and of its squared movement are left out.
_NEGLIGIBLE = 0.01


@dataclass(frozen=True)
class Length:
    """Length of a movement in standard deviations of the noise, which was measured.

    Args:
        measured: The length, as if the noise had one size along it and elsewhere.
        squares: Squared lengths of its parts, each by a noise level of its own, (parts,). They may leave something out.
        degrees: Degrees of freedom of these noise levels, (parts,), less what heavy tails take.
    """

    measured: float
    squares: Floats
    degrees: Floats

    @property
    def margin(self) -> float:
        """The movement is at least this share of what was measured."""
        if not 0 < self.measured < math.inf:
            return 1.0
        shares = 1 / factors(self.degrees) ** 2
        return math.sqrt(float(np.sum(self.squares * shares))) / self.measured

    def p_value(self, noise_multiplier: float) -> float:
        """Return a p-value of the claim that the movement is covered: that some noise level was measured too low.

        It is the smallest rate at which `margin` would still leave a movement that is not covered.
        """
        if math.isinf(self.measured):
            return 0.0
        low, high = -700.0, 0.0  # logarithms of the rate of one comparison
        for _ in range(40):
            middle = (low + high) / 2
            shares = 1 / factors(self.degrees, math.exp(middle)) ** 2
            covered = float(np.sum(self.squares * shares)) * noise_multiplier**2 <= 1
            low, high = (middle, high) if covered else (low, middle)
        return min(1.0, TESTS * math.exp(high)) if low > -700 else 0.0


@dataclass(frozen=True)
class Noise:
    """The noise of a release.

    Args:
        mean: Average of all runs, (rounds, dim).
        std: Standard deviation of each coordinate, pooled over the array it belongs to, (dim,), or over all arrays if
            they do not differ beyond chance. 0 where there is none.
        levels: The same, always pooled over one array, (dim,).
        rounds: Inverse correlation of the rounds' noise, (rounds, rounds).
        singular: Directions across rounds that carry no noise, (k, rounds).
        arrays: Which array each coordinate belongs to, (dim,).
        array_degrees: Degrees of freedom of the measured noise of each array.
        degrees: Degrees of freedom of all noise together.
        excess: Kurtosis above that of Gaussian noise, at least 0.
        varying: Which coordinates vary at all, (dim,).
        unit: Size of the first round's noise in each coordinate, 1 where there is none, (dim,).
        vectors: That noise over its size, where it varies, (runs, varying).
        rank: Dimension of the space that these vectors span, if smaller than their number; otherwise None.
        residuals: The first round's noise in units of ``std``, where there is any, (runs, numbers).
        even: Whether its numbers seem to have the same size within each array.
        independent: Whether its numbers seem to be independent.
    """

    mean: Floats
    std: Floats
    levels: Floats
    arrays: Ints
    array_degrees: Floats
    rounds: Floats
    singular: Floats
    degrees: int
    excess: float
    varying: Bools
    unit: Floats
    vectors: Floats
    rank: int | None
    residuals: Floats
    even: bool
    independent: bool

    @property
    def bare(self) -> Bools:
        """Which coordinates have one value in more than half of the runs, (dim,).

        They carry no noise, or noise of few values whose standard deviation says little: that of a sign, or discrete
        noise on a grid that is coarse for it. `coalmine.replaying.atoms` judges them.
        """
        return np.asarray(self.std == 0)

    @property
    def level(self) -> float:
        """Typical standard deviation where there is noise; 0 if there is none."""
        noisy = self.std[~self.bare]
        return float(np.sqrt(np.mean(noisy**2))) if noisy.size else 0.0

    @cached_property
    def variances(self) -> Floats:
        """Variance of each number that has noise, in units of ``std``, (numbers,)."""
        return np.asarray(np.mean(self.residuals**2, axis=0))

    def length(self, moved: Floats) -> Length:
        """Return the length of a movement, (rounds, dim), in standard deviations of the noise where there is any."""
        noisy = ~self.bare
        direction = moved[:, noisy] / self.std[noisy]
        if self.singular.size and np.max(np.abs(self.singular @ direction), initial=0.0) > 1e-6:
            return Length(math.inf, np.empty(0), np.empty(0))  # some rounds together show the movement without noise
        if len(moved) == 1 and direction.any():
            return self._along(direction[0]) or self._by_size(direction[0])
        squares = np.sum(direction * (self.rounds @ direction), axis=0)
        measured = math.sqrt(max(float(np.sum(squares)), 0.0))
        by_array = np.bincount(
            self.arrays[noisy], squares * (self.std[noisy] / self.levels[noisy]) ** 2, minlength=self.array_degrees.size
        )
        measurable = self.array_degrees > 0
        degrees = self.array_degrees[measurable] / self._heavy(1.0)
        return Length(measured, np.maximum(by_array[measurable], 0.0), degrees)

    def misses(self, moved: Floats, rounding: Floats, noise_multiplier: float) -> bool:
        """Whether a movement leaves the span of the noise vectors by more than the noise may cover there.

        Directions that are not counted as part of the span have noise of at most a millionth of the largest, and the
        claim lets a client move the release by that over the noise multiplier. More is outside, but for rounding.

        Args:
            moved: The movement, (dim,).
            rounding: How far rounding may move each coordinate, (dim,).
            noise_multiplier: The claimed noise multiplier.
        """
        _, sizes, rows = np.linalg.svd(self.vectors, full_matrices=False)
        least = _FLAT * sizes.max(initial=0.0)
        span, direction = rows[sizes > least], (moved / self.unit)[self.varying]
        outside = float(np.linalg.norm(direction - span.T @ (span @ direction)))
        covered = least / math.sqrt(len(self.vectors)) / noise_multiplier
        return outside > float(covered) + float(np.linalg.norm((rounding / self.unit)[self.varying]))

    @property
    def plain_excess(self) -> float:
        """Excess above which a movement is not covered, even if the noise depends on other noise in any way."""
        return _plain_excess(len(self.residuals))

    def _heavy(self, share: float) -> float:
        """Return the factor by which heavy tails reduce degrees of freedom, for a sum with this share of the excess."""
        return 1 + self.excess * share / 2

    def _along(self, direction: Floats) -> Length | None:
        """Return the length of a movement, (numbers,), by the noise along it, if that must be used.

        For noise of any covariance Σ, mᵀΣ⁻¹m ≥ |m|⁴ / mᵀΣm: a movement m is at least |m| / (size along m) standard
        deviations long. That is exact for white noise, and needs no assumption on others, but uses one number per run.
        So it counts where numbers seem to depend on each other, or where there seems to be more noise along m than
        its numbers have.
        """
        length = float(np.linalg.norm(direction))
        weights = direction / length
        square = float(np.mean((self.residuals @ weights) ** 2))
        degrees = (len(self.residuals) - 1) / self._heavy(float(np.sum(weights**4)))
        expected = 1.0 if self.even else float(weights**2 @ self.variances)
        if self.independent and square <= expected * (1 + _LARGER * math.sqrt(2 / degrees)):
            return None
        return Length(length, np.array([length**2 / square]), np.array([degrees]))

    def _by_size(self, direction: Floats) -> Length:
        """Return the length of a movement, (numbers,), for independent noise whose numbers may have any sizes.

        For N numbers with movements mᵢ, noise σᵢ and measured noise sᵢ, Σ sᵢ²/mᵢ² is stochastically larger than if all
        σᵢ/mᵢ were equal to their geometric mean g: of all ellipsoids of one volume, the ball has the largest
        probability under a normal distribution. And Σ mᵢ²/σᵢ² ≥ N/g². So N²/Σ (sᵢ²/mᵢ²) is a squared length with the
        error of N · (runs − 1) degrees of freedom at most. Numbers that moved about equally far go together, since the
        arithmetic mean of mᵢ² is near their harmonic mean then.
        """
        moved = direction**2 > _NOTHING**2 * np.max(direction**2)
        places, square = self.arrays[~self.bare][moved], direction[moved] ** 2
        _, labels = np.unique(places * 4096 + np.frexp(square)[1], return_inverse=True)
        part, numbers = np.bincount(labels, square), np.bincount(labels)
        home = np.zeros(numbers.size, dtype=np.int64)
        home[labels] = places
        squares = numbers**2 / np.bincount(labels, self.variances[moved] / square)
        kept = part > _NEGLIGIBLE * np.bincount(places, square)[home]
        kept |= numbers > _NEGLIGIBLE * np.bincount(places)[home]
        degrees = numbers * (len(self.residuals) - 1) / self._heavy(1.0)
        measured = float(np.linalg.norm(direction)) if self.even else math.sqrt(float(np.sum(squares[kept])))
        return Length(measured, squares[kept], degrees[kept])


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
    varying = deviations > np.maximum(_NOTHING * largest, 1e-12 * np.abs(mean[0]))
    varying &= np.ptp(runs[:, 0], axis=0) > 0
    unit = np.where(varying, deviations, 1.0)
    vectors = first[:, varying] / unit[varying]
    rank = _rank(vectors)
    noisy = varying & (_most_frequent(runs[:, 0]) <= count / 2)
    places = np.repeat(np.arange(len(sizes)), sizes)
    numbers = np.bincount(places[noisy], minlength=len(sizes))
    if not noisy.any():
        nothing = np.zeros_like(deviations)
        eye, none = np.eye(rounds), np.empty((0, rounds))
        none_left = np.empty((count, 0))
        no_degrees = np.zeros(len(sizes))
        return Noise(
            mean, nothing, nothing, places, no_degrees, eye, none, 1, 0.0, varying, unit, vectors, rank, none_left,
            True, True,
        )  # fmt: skip
    levels = np.sqrt(np.bincount(places[noisy], deviations[noisy] ** 2, minlength=len(sizes)) / np.maximum(numbers, 1))
    array_degrees = np.maximum((count - 1) * numbers - rounds + 1, numbers > 0).astype(float)
    std = np.where(noisy, _pooled(levels, numbers, count)[places], 0.0)
    standard = residuals[:, :, noisy] / std[noisy]
    samples = (count - 1) * int(noisy.sum())
    inverse, singular = _inverse(np.einsum("ktc,kuc->tu", standard, standard) / (count * int(noisy.sum())))
    excess = excess_kurtosis(first[:, noisy] / std[noisy])
    degrees = max(1, samples - rounds + 1)
    return Noise(
        mean, std, np.where(noisy, levels[places], 0.0), places, array_degrees, inverse, singular, degrees, excess,
        varying, unit, vectors, rank, standard[:, 0], _even(standard[:, 0]), _independent(standard[:, 0]),
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


def factors(degrees: Floats, rate: float = RATE) -> Floats:
    """Return how many times each measured standard deviation the true one may be.

    All limits hold together with probability 1 − ``rate`` if the noise is Gaussian (χ², union bound). For noise with
    heavier tails the mean square of n numbers has the variance (2 + excess)/n, that of a χ² variable with
    n / (1 + excess/2) degrees of freedom, whose lower tail is used: an approximation.

    Args:
        degrees: Degrees of freedom of each, less what heavy tails take.
        rate: Probability that any limit is too low.
    """
    n = np.maximum(degrees, 0.1)
    return np.asarray(1 / np.sqrt(np.maximum(_chi_square_quantile(rate / max(1, n.size), n) / n, 1e-6)))


def _plain_excess(runs: int) -> float:
    """Return the excess above which so many runs decide, whatever the covariance of the noise.

    A movement is judged by the noise along it where that seems more than _LARGER errors above what its numbers have.
    Where it does not, the noise along the movement may still be larger by `factors`, at the rate of a test.
    """
    degrees = runs - 1
    return math.sqrt(1 + _LARGER * math.sqrt(2 / degrees)) * float(factors(np.array([degrees]))[0])


def draws_for(excess: float, most: int) -> int:
    """Return how many draws decide about a movement of this excess, at most so many."""
    return next((runs for runs in range(10, most, 10) if _plain_excess(runs) < excess), most)


def excess_kurtosis(standard: Floats) -> float:
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
    continuous = standard[:, _most_frequent(standard) == 1]
    if continuous.shape[1] < _LEAST_NUMBERS:
        return _repeated(standard)
    vectors = continuous[: max(2, min(len(standard), continuous.shape[1] // 2))]
    differences = vectors[1:] - vectors[:1]
    values = np.linalg.eigvalsh(differences @ differences.T)
    rank = int(np.sum(values > 1e-9 * values[-1]))
    return rank if rank < len(values) else None


def _even(standard: Floats) -> bool:
    """Whether the numbers of noise vectors, (runs, numbers), seem to be of one size."""
    numbers = standard.shape[1]
    if numbers < _LEAST_NUMBERS:
        return False
    # What is large in one half of the runs is not large in the other, whatever the distribution.
    one, two = (np.log(half.var(axis=0) + 1e-12) for half in np.array_split(standard, 2))
    return bool(one.std() and two.std() and np.corrcoef(one, two)[0, 1] <= _UNEVEN / math.sqrt(numbers))


def _independent(standard: Floats) -> bool:
    """Whether the numbers of noise vectors, (runs, numbers), seem to be independent, whatever their sizes."""
    runs, numbers = standard.shape
    if numbers < _LEAST_NUMBERS:
        return False
    # Differences of runs are symmetric. If the signs of their numbers are independent, (Σ aᵢbᵢ)² is Σ aᵢ²bᵢ² on
    # average, and more if fewer dimensions matter. Different pairs are uncorrelated.
    pairs = standard[: runs // 2 * 2 : 2] - standard[1::2]
    pairs /= np.maximum(np.linalg.norm(pairs, axis=1, keepdims=True), 1e-12)
    upper = np.triu_indices(len(pairs), 1)
    squares, expected = (pairs @ pairs.T)[upper] ** 2, (pairs**2 @ (pairs**2).T)[upper]
    return bool(np.mean(squares) < np.mean(expected) * (1 + _DEPENDENT * math.sqrt(2 / len(upper[0]))))


def _most_frequent(runs: Floats) -> Floats:
    """Return how often the most frequent value of each number occurs, for runs (runs, numbers)."""
    ordered = np.sort(runs, axis=0)
    count = most = np.ones(runs.shape[1])
    for equal in ordered[1:] == ordered[:-1]:
        count = np.where(equal, count + 1, 1)
        most = np.maximum(most, count)
    return most


def _repeated(standard: Floats) -> int | None:
    """Return the dimension of noise of few values if its vectors repeat, which independent numbers would not do.

    Two runs agree in a number with at most the probability of its most frequent value, here its share of the runs.

    Args:
        standard: The noise, (runs, numbers).
    """
    most = _most_frequent(standard)
    runs, different = len(standard), len(np.unique(standard, axis=0))
    log_chance = math.log(runs**2 / 2) + float(np.sum(np.log(most / runs)))
    return different - 1 if different < runs and log_chance < math.log(RATE) else None


def _chi_square_quantile(probability: float, degrees: Floats | Ints) -> Floats:
    return np.asarray(2 * special.gammaincinv(degrees / 2, probability))
