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

from coalmine.arrays import Bools, Floats, Ints
from coalmine.results.verdict import CHECK_RATE

# Comparisons of a movement with a measured noise level, per replay, at most: each level may be too low by chance, and
# they share half of the rate.
TESTS = 200
RATE = CHECK_RATE / 2 / TESTS

# Standard errors by which noise may seem larger along a movement than elsewhere, or dependent. Beyond them, movements
# are judged with fewer assumptions: if independent noise gets there by chance, only power is lost.
_LARGER, _DEPENDENT = 3.0, 4.0
_NOTHING = 1e-9  # relative to the largest noise: rounding, not noise
_NEGLIGIBLE = 0.01  # share of an array's coordinates and of its squared movement below which a group is left out


@dataclass(frozen=True)
class Length:
    """Length of a movement in standard deviations of the noise, which was measured.

    Args:
        squares: Squared lengths of its parts, each by a noise level of its own, (parts,).
        degrees: Degrees of freedom of these noise levels, (parts,), less what heavy tails take.
    """

    squares: Floats
    degrees: Floats

    @property
    def measured(self) -> float:
        """The length if all noise levels are as measured."""
        return math.sqrt(float(np.sum(self.squares)))

    def lower(self, rate: float = RATE) -> float:
        """Return a lower limit on the length that fails with probability ``rate`` at most (χ², union bound).

        For noise with heavier tails the mean square of n numbers has the variance (2 + excess)/n, that of a χ² variable
        with n / (1 + excess/2) degrees of freedom, whose lower tail is used: an approximation.
        """
        degrees = np.maximum(self.degrees, 0.1)
        shares = 2 * special.gammaincinv(degrees / 2, rate / max(1, degrees.size)) / degrees
        return math.sqrt(float(np.sum(self.squares * shares)))

    def p_value(self, noise_multiplier: float) -> float:
        """Return a p-value of the claim that the movement is covered: that some noise level was measured too low.

        It is the smallest rate at which `lower` would still leave a movement that is not covered, times `TESTS`.
        """
        low, high = -700.0, 0.0
        for _ in range(40):
            middle = (low + high) / 2
            covered = self.lower(math.exp(middle)) * noise_multiplier <= 1
            low, high = (middle, high) if covered else (low, middle)
        return min(1.0, TESTS * math.exp(high)) if low > -700 else 0.0


@dataclass(frozen=True, eq=False)
class NoiseLevel:
    """The noise of a release.

    Args:
        std: Standard deviation of each coordinate, pooled over its array, (dim,). 0 where one value occurs in more than
            half of the runs: there is no noise, or noise of few values whose standard deviation says little.
        arrays: Which array each coordinate belongs to, (dim,).
        bare: Which coordinates seem to carry no noise, (dim,).
        level: Typical standard deviation where there is noise; 0 if there is none.
        rounds: Inverse correlation of the rounds' noise, (rounds, rounds).
        shared: Directions across rounds that carry no noise, (k, rounds).
        residuals: The first round's noise in units of ``std``, where there is any, (runs, numbers).
        excess: Kurtosis above that of Gaussian noise, at least 0.
        independent: Whether the numbers of one run seem to be independent.
    """

    std: Floats
    arrays: Ints
    bare: Bools
    level: float
    rounds: Floats
    shared: Floats
    residuals: Floats
    excess: float
    independent: bool

    def length(self, moved: Floats) -> Length:
        """Return the length of a movement, (rounds, dim), in standard deviations of the noise where there is any."""
        noisy = ~self.bare
        direction = moved[:, noisy] / self.std[noisy]
        if np.max(np.abs(self.shared @ direction), initial=0.0) > 1e-6:
            return Length(np.array([math.inf]), np.ones(1))  # rounds share noise, so together they show the movement
        if len(moved) == 1 and direction.any():
            return self._along(direction[0]) or self._by_size(direction[0])
        squares = np.maximum(np.sum(direction * (self.rounds @ direction), axis=0), 0.0)
        numbers = np.bincount(self.arrays[noisy])
        degrees = np.maximum((len(self.residuals) - 1) * numbers - len(moved) + 1, 1) / (1 + self.excess / 2)
        return Length(np.bincount(self.arrays[noisy], squares).astype(np.float64), degrees)

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
        degrees = (len(self.residuals) - 1) / (1 + self.excess * float(np.sum(weights**4)) / 2)
        expected = float(weights**2 @ np.mean(self.residuals**2, axis=0))
        if self.independent and square <= expected * (1 + _LARGER * math.sqrt(2 / degrees)):
            return None
        return Length(np.array([length**2 / max(square, 1e-300)]), np.array([degrees]))

    def _by_size(self, direction: Floats) -> Length:
        """Return the length of a movement, (numbers,), for independent noise whose numbers may have any sizes.

        For N numbers with movements mᵢ, noise σᵢ and measured noise sᵢ, Σ sᵢ²/mᵢ² is stochastically larger than if all
        σᵢ/mᵢ were equal to their geometric mean g: of all ellipsoids of one volume, the ball has the largest
        probability under a normal distribution. And Σ mᵢ²/σᵢ² ≥ N/g². So N²/Σ (sᵢ²/mᵢ²) is a squared length with the
        error of N · (runs − 1) degrees of freedom at most. Numbers that moved about equally far go together, since the
        arithmetic mean of mᵢ² is near their harmonic mean then.
        """
        moved = direction**2 > _NOTHING**2 * np.max(direction**2)
        arrays, square = self.arrays[~self.bare][moved], direction[moved] ** 2
        variances = np.mean(self.residuals**2, axis=0)[moved]
        # One group for each array and power of two.
        _, labels = np.unique(arrays * 4096 + np.frexp(square)[1], return_inverse=True)
        numbers, part = np.bincount(labels), np.bincount(labels, square)
        home = np.zeros(numbers.size, dtype=np.int64)
        home[labels] = arrays
        kept = part > _NEGLIGIBLE * np.bincount(arrays, square)[home]
        kept |= numbers > _NEGLIGIBLE * np.bincount(arrays)[home]
        squares = numbers**2 / np.maximum(np.bincount(labels, variances / square), 1e-300)
        degrees = numbers * (len(self.residuals) - 1) / (1 + self.excess / 2)
        return Length(squares[kept], degrees[kept])


def measure(runs: Floats, sizes: list[int]) -> NoiseLevel:
    """Measure the noise.

    Args:
        runs: Releases of the same clients with other random numbers, (runs, rounds, dim).
        sizes: Numbers of coordinates of the arrays of one round's release.
    """
    count, rounds, _ = runs.shape
    mean = runs.mean(axis=0)
    residuals = (runs - mean) * math.sqrt(count / (count - 1))
    deviations = np.sqrt(np.mean(residuals[:, 0] ** 2, axis=0))
    # A coordinate's own scale, since its rounding error is relative to its own size.
    noisy = deviations > np.maximum(_NOTHING * deviations.max(initial=0.0), 1e-12 * np.abs(mean[0]))
    # How often the most frequent value of each coordinate occurs.
    ordered = np.sort(runs[:, 0], axis=0)
    repeats = most = np.ones(ordered.shape[1])
    for equal in ordered[1:] == ordered[:-1]:
        repeats = np.where(equal, repeats + 1, 1)
        most = np.maximum(most, repeats)
    noisy &= most <= count / 2
    arrays = np.repeat(np.arange(len(sizes)), sizes)
    if not noisy.any():
        nothing = np.zeros_like(deviations)
        return NoiseLevel(
            std=nothing, arrays=arrays, bare=~noisy, level=0.0, rounds=np.eye(rounds), shared=np.empty((0, rounds)),
            residuals=np.empty((count, 0)), excess=0.0, independent=True,
        )  # fmt: skip
    numbers = np.bincount(arrays[noisy], minlength=len(sizes))
    energy = np.bincount(arrays[noisy], deviations[noisy] ** 2, minlength=len(sizes))
    std = np.where(noisy, np.sqrt(energy / np.maximum(numbers, 1))[arrays], 0.0)
    standard = residuals[:, :, noisy] / std[noisy]
    correlation = np.einsum("ktc,kuc->tu", standard, standard) / (count * int(noisy.sum()))
    values, vectors = np.linalg.eigh(correlation)
    missing = values < 1e-8 * values[-1]
    inverse = (vectors[:, ~missing] / values[~missing]) @ vectors[:, ~missing].T
    first = standard[:, 0]
    # A residual of n runs is a weighted sum of all of them, which has this share of the excess kurtosis.
    share = ((count - 1) ** 3 + 1) / (count**2 * (count - 1))
    excess = max(0.0, (float(np.mean(first**4)) - 3.0) / share)
    return NoiseLevel(
        std=std, arrays=arrays, bare=std == 0, level=float(np.sqrt(np.mean(std[noisy] ** 2))), rounds=inverse,
        shared=vectors[:, missing].T, residuals=first, excess=excess, independent=_independent(first),
    )  # fmt: skip


def _independent(standard: Floats) -> bool:
    """Whether the numbers of noise vectors, (runs, numbers), seem to be independent, whatever their sizes."""
    runs, numbers = standard.shape
    if numbers < 8:  # so few say little
        return False
    # Differences of runs are symmetric. If the signs of their numbers are independent, (Σ aᵢbᵢ)² is Σ aᵢ²bᵢ² on
    # average, and more if fewer dimensions matter. Different pairs are uncorrelated.
    pairs = standard[: runs // 2 * 2 : 2] - standard[1::2]
    pairs /= np.maximum(np.linalg.norm(pairs, axis=1, keepdims=True), 1e-12)
    upper = np.triu_indices(len(pairs), 1)
    squares, expected = (pairs @ pairs.T)[upper] ** 2, (pairs**2 @ (pairs**2).T)[upper]
    return bool(np.mean(squares) < np.mean(expected) * (1 + _DEPENDENT * math.sqrt(2 / len(upper[0]))))


def largest_chance(noise_multiplier: float) -> float:
    """Return how often a number may have one value with a client and another without it, at most.

    Let a value have the probabilities p and q with and without the client. Gaussian noise, and discrete Gaussian noise,
    of noise multiplier z has a Kullback–Leibler divergence of at most 1/(2z²) in both directions, whatever follows
    (Bun and Steinke, 2016, Lemma 2.4; Canonne, Kamath and Steinke, 2020, Theorem 4). Let m = min(p, 1 − q) > ½.
    Then (2m − 1) log(m / (1 − m)) ≤ kl(p, q) ≤ 1/(2z²). A draw has the value on one side only with at most the
    probability m, however the two sides depend on each other.

    Example:
        >>> [round(largest_chance(z), 3) for z in (0.5, 1.0, 4.0)]
        [0.917, 0.74, 0.562]
    """
    allowed = 1 / (2 * noise_multiplier**2)
    # By bisection in t = log(m / (1 − m)), where 2m − 1 = tanh(t/2); t · tanh(t/2) > t − 1.
    low, high = 0.0, allowed + 1
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.tanh(middle / 2) < allowed else (low, middle)
    return 1 / (1 + math.exp(-high))
