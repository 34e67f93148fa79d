"""Local mechanisms: what a client does to its gradient before it leaves the device. Also the server of their reports.

Algorithms and lines are those of Matsumoto et al. (2022). A mechanism makes reports in two ways with the same
distribution: `LocalMechanism.reports` makes whole vectors from random numbers drawn beforehand, which several
mechanisms can share; `LocalMechanism.projections` draws only a report's coordinates in a small subspace that contains
the gradient, a few numbers per report instead of d. See also ``docs/ldp.md``.

PrivUnit₂ (Bhowmick, Duchi, Freudiger, Kapoor and Rogers, 2018) reports from an optimized spherical cap; LDP-SGD is the
special case whose cap is half of the sphere. With the best cap for ε, reports are as accurate as those of any ε-LDP
mechanism for directions can be, up to lower-order terms (Asi, Feldman and Talwar, 2022).

The random numbers come from an ordinary generator: fit for simulating and auditing a mechanism, not for deploying one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from coalmine.arrays import Floats
from coalmine.claims import Claim
from coalmine.errors import InputError, check_delta, check_positive
from coalmine.seeds import default_rng
from coalmine.stats.gaussian import sigma_gaussian
from coalmine.usercode import errors_of

Reports = npt.NDArray[np.float32]
"""(k, d): one report per row."""

_CHUNK = 1 << 20  # entries of the reports that are made at a time

UNIFORMS = 3
"""How many uniform numbers a report may use, in addition to its d normal ones."""


class Normals:
    """Standard normal numbers (k, d), with the lengths of their rows computed at most once."""

    def __init__(self, values: Reports, lengths: Floats | None = None) -> None:
        self.values = values
        self._lengths = lengths

    @property
    def lengths(self) -> Floats:
        """The ℓ₂ norm of each row, shape (k,)."""
        if self._lengths is None:
            # einsum accumulates in float32; summing in blocks keeps the digits however long the rows are.
            squares = np.zeros(len(self.values))
            for start in range(0, self.values.shape[1], 4096):
                block = self.values[:, start : start + 4096]
                squares += np.einsum("ij,ij->i", block, block)
            self._lengths = np.sqrt(squares)
        return self._lengths

    @cached_property
    def sign_sums(self) -> Floats:
        """The sum of the signs of each row, shape (k,)."""
        sums: Floats = np.sign(self.values).sum(axis=1, dtype=np.float64)
        return sums

    def rows(self, start: int, stop: int) -> Normals:
        """Rows ``start`` to ``stop``, as a view."""
        return Normals(self.values[start:stop], self.lengths[start:stop])


@dataclass(frozen=True, kw_only=True)
class LocalMechanism(ABC):
    """A local randomizer of gradients.

    Subclasses implement ``reports`` (never ``randomize``, which calls it), ``log_density`` and ``server_factor``, and
    should implement ``projections`` if there is a closed form. A subclass that overrides ``reports`` alone is audited
    by its reports, never by inherited projections.

    Args:
        epsilon: The claimed ε of one report, between any two gradients.
        norm: The clip norm (L in the papers): longer gradients are scaled down to it.

    Raises:
        InputError: If an argument is not positive.

    Example:
        >>> from coalmine.simulation import LDPSGD
        >>> mechanism = LDPSGD(epsilon=2.0)
        >>> mechanism.randomize(np.ones(3), np.random.default_rng(0), count=5).shape
        (5, 3)
        >>> mechanism.claim().epsilon
        2.0
    """

    name: ClassVar[str]
    density_is_known: ClassVar[bool] = True
    """Whether ``log_density`` of a single report is exact up to a constant; if not, it is only a score."""
    epsilon: float
    norm: float = 1.0
    delta = 0.0  # at which ``epsilon`` is claimed; mechanisms with another one make it a field

    def __init_subclass__(cls) -> None:
        # Audits make reports from numbers drawn beforehand, so a bug in an overridden `randomize` would go unseen.
        if "randomize" in vars(cls):
            raise InputError(f"{cls.__name__} overrides randomize, which audits do not call: override reports instead")

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_positive("the clip norm", self.norm)

    def claim(self) -> Claim:
        """The claimed guarantee of one report, between any two gradients."""
        return Claim(local_epsilon=self.epsilon, rounds=1, delta=0.0)

    def clipped(self, gradient: npt.ArrayLike) -> Floats:
        """The gradient, scaled down to the clip norm if it is longer (Algorithm 1, line 1)."""
        vector = np.asarray(gradient, dtype=np.float64)
        length = float(np.linalg.norm(vector))
        if not math.isfinite(length):
            raise InputError(f"a gradient must be finite, got one of norm {length}")
        return vector * min(1.0, self.norm / length) if length > 0 else vector

    @abstractmethod
    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """Reports (k, d) made of ``normals`` (k, d) and ``uniforms`` (3, k), written to ``out``."""

    def randomize(self, gradient: npt.ArrayLike, rng: np.random.Generator, count: int = 1) -> Reports:
        """Draw independent reports of one gradient.

        Args:
            gradient: The gradient, shape (d,).
            rng: Source of randomness.
            count: Number of reports.

        Returns:
            The reports, shape (count, d), float32.

        Raises:
            InputError: If the gradient or a report is not finite.
        """
        vector = np.asarray(gradient)
        normals = Normals(rng.standard_normal((count, vector.size), dtype=np.float32))
        return self.sent(vector, normals, rng.random((UNIFORMS, count)), out=np.empty_like(normals.values))

    def sent(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """What ``reports`` returns, in ``out``, after a check that a server could use it."""
        # A user's subclass may return an array of its own instead of filling ``out``, or one that no server could use.
        reports = self.reports(gradient, normals, uniforms, out=out)
        if np.shape(reports) != out.shape or not np.isfinite(reports).all():
            raise InputError(
                f"{type(self).__name__} must return finite reports of shape {out.shape}, got shape {np.shape(reports)} "
                "or numbers that are not finite"
            )
        if reports is not out:
            out[:] = reports
        return out

    def projections(self, gradient: npt.ArrayLike, dim: int, rng: np.random.Generator, count: int) -> Floats:
        """Coordinates of independent reports in an r-dimensional subspace that contains the gradient.

        They have exactly the distribution of the coordinates of ``randomize``. Optional.

        Args:
            gradient: The gradient's coordinates in an orthonormal basis of the subspace, shape (r,).
            dim: Number of dimensions d of the whole space.
            rng: Source of randomness.
            count: Number of reports.

        Returns:
            The coordinates, shape (count, r).
        """
        raise NotImplementedError

    def coordinates(self, gradient: npt.ArrayLike, basis: Floats, rng: np.random.Generator, count: int) -> Floats:
        """Coordinates (count, r) of reports of a whole gradient (d,), in an orthonormal ``basis`` (d, r) that spans it.

        Uses ``projections`` if they belong to the same class as ``reports``; else whole reports are projected.
        """
        vector = np.asarray(gradient, dtype=np.float64)
        # Both must come from one class. A subclass that changes its reports alone would otherwise be judged by the
        # projections of the correct mechanism that it inherits from.
        homes = [next(base for base in type(self).__mro__ if name in vars(base)) for name in ("projections", "reports")]
        if homes[0] is homes[1]:
            return self.projections(basis.T @ vector, len(basis), rng, count)
        rows = max(1, _CHUNK // len(basis))
        coordinates = np.empty((count, basis.shape[1]))
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            coordinates[start:stop] = self.randomize(vector, rng, stop - start) @ basis
        return coordinates

    @abstractmethod
    def log_density(self, total: Floats, gradient: npt.ArrayLike, dim: int, clients: int = 1) -> Floats:
        """The log-likelihood of a sum of ``clients`` reports, one of them of ``gradient``, up to a constant.

        Exact for one client. With more, the others' reports are treated as Gaussian noise, which is what an adversary
        may assume who does not know them.

        Args:
            total: Coordinates of the sums, as in ``projections``, shape (k, r).
            gradient: Coordinates of the gradient, shape (r,).
            dim: Number of dimensions d of the whole space.
            clients: Number of reports in each sum.

        Returns:
            The log-likelihoods, shape (k,).
        """

    @abstractmethod
    def server_factor(self, dim: int) -> float:
        """The factor that makes the mean of reports an unbiased estimate of the mean clipped gradient."""

    def printed_factor(self, dim: int) -> float:
        """The server's factor as printed in the paper, where that differs from ``server_factor``."""
        return self.server_factor(dim)


class SphereMechanism(LocalMechanism):
    """Reports are unit vectors, uniform on a cap around the gradient's direction or uniform on the rest of the sphere.

    A gradient shorter than ``norm`` is first stretched to that length and given a random sign, such that its mean stays
    the same (the *gradient norm projection* of Algorithm 1, line 2). Subclasses define the cap.
    """

    @abstractmethod
    def cap(self, dim: int) -> tuple[float, float, float]:
        """The cap's smallest cosine, its share of the sphere's surface, and the probability of a report in it."""

    def log_density(self, total: Floats, gradient: npt.ArrayLike, dim: int, clients: int = 1) -> Floats:
        """See `LocalMechanism.log_density`: relative to the uniform distribution on the sphere."""
        unit, length = self._direction(gradient)
        least, share, chance = self.cap(dim)

        # The density is constant inside of the cap and constant outside: the chance of each over its area.
        def density(cosine: Floats) -> Floats:
            if clients == 1:
                inside = (cosine >= least).astype(float)
            else:
                # Coordinates of uniform directions are close to N(0, 1/d), and so is this client's, given the sum.
                spread = math.sqrt((clients - 1) / (clients * dim))
                inside = special.ndtr((cosine / clients - least) / spread)
            return inside * chance / share + (1 - inside) * (1 - chance) / (1 - share)

        along = total @ unit
        # A gradient shorter than L was flipped with probability (1 − length) / 2: a mixture of both directions.
        return np.log((1 + length) / 2 * density(along) + (1 - length) / 2 * density(-along))

    def _direction(self, gradient: npt.ArrayLike) -> tuple[Floats, float]:
        """The unit vector of the clipped gradient, and its length in units of L: the mean of the random sign."""
        clipped = self.clipped(gradient)
        length = float(np.linalg.norm(clipped))
        if length == 0:
            # Both signs are equally likely then, so any direction gives the same, uniform reports.
            return np.eye(1, clipped.size)[0], 0.0
        return clipped / length, min(1.0, length / self.norm)


@dataclass(frozen=True, kw_only=True)
class LDPSGD(SphereMechanism):
    """LDP-SGD (Erlingsson et al., 2020, after Duchi, Jordan and Wainwright, 2018): pure ε-LDP.

    A report is a uniformly random direction, flipped into the gradient's half-space with probability e^ε / (1 + e^ε)
    and into the opposite one otherwise.

    Args:
        epsilon: The claimed ε of one report.
        norm: The clip norm.

    Raises:
        InputError: If an argument is not positive.

    Example:
        >>> mechanism = LDPSGD(epsilon=1.0)
        >>> reports = mechanism.randomize([0.6, 0.8, 0.0], np.random.default_rng(0), count=1000)
        >>> reports.shape
        (1000, 3)
        >>> bool(0.70 < np.mean(reports @ [0.6, 0.8, 0.0] > 0) < 0.76)  # e / (1 + e) = 0.73
        True
    """

    name: ClassVar[str] = "ldp-sgd"

    @property
    def chance(self) -> float:
        """The probability of the gradient's half-space, e^ε / (1 + e^ε)."""
        return float(special.expit(self.epsilon))

    def cap(self, dim: int) -> tuple[float, float, float]:
        """Half of the sphere."""
        return 0.0, 0.5, self.chance

    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """Algorithm 1: a normalized normal vector, times a random sign."""
        unit, length = self._direction(gradient)
        side = normals.values @ unit.astype(np.float32)
        scale = self._signs(side, length, uniforms) / normals.lengths
        return np.multiply(normals.values, scale.astype(np.float32)[:, None], out=out)

    def scales(self, gradient: npt.ArrayLike, along: Floats, lengths: Floats, uniforms: Floats) -> Floats:
        """The factors (k,) that turn normal vectors into the reports of ``reports``, without the vectors themselves.

        ``along`` (k, r) and ``gradient`` (r,) are coordinates in a subspace that contains the gradient; ``lengths``
        (k,) are the lengths of the whole vectors.
        """
        unit, length = self._direction(gradient)
        return self._signs(along @ unit, length, uniforms) / lengths

    def projections(self, gradient: npt.ArrayLike, dim: int, rng: np.random.Generator, count: int) -> Floats:
        """See `LocalMechanism.projections`: r normal coordinates over the length of the whole normal vector."""
        unit, length = self._direction(gradient)
        coordinates = rng.standard_normal((count, unit.size))
        # A uniform direction is a normal vector over its length, to which the coordinates outside contribute a χ².
        coordinates /= normal_lengths(coordinates, dim - unit.size, rng)[:, None]
        signs = self._signs(coordinates @ unit, length, rng.random((2, count)))
        return coordinates * signs[:, None]

    def _signs(self, side: npt.NDArray[np.floating], length: float, uniforms: Floats) -> Floats:
        """The sign for each direction; ``side`` is positive for directions in the gradient's half-space."""
        projected = np.where(uniforms[0] < 0.5 + length / 2, 1.0, -1.0)  # the sign of z: line 2
        truthful = np.where(uniforms[1] < self.chance, 1.0, -1.0)  # line 3
        return np.where(side >= 0, 1.0, -1.0) * projected * truthful

    def printed_factor(self, dim: int) -> float:
        """The factor of Algorithm 2, line 4, as printed: 1/d of the unbiased one."""
        # Γ overflows from d = 342 on, its logarithm does not. 1 / tanh(ε/2) = (e^ε + 1) / (e^ε − 1).
        ratio = special.gammaln((dim - 1) / 2 + 1) - special.gammaln(dim / 2 + 1)
        return float(self.norm * math.sqrt(math.pi) / 2 * math.exp(ratio) / math.tanh(self.epsilon / 2))

    def server_factor(self, dim: int) -> float:
        """See `LocalMechanism.server_factor`: d times the printed factor (Duchi, Jordan and Wainwright, 2018)."""
        return dim * self.printed_factor(dim)


@dataclass(frozen=True, kw_only=True)
class PrivUnit2(SphereMechanism):
    """PrivUnit₂ with the cap that maximizes the length of the mean report: pure ε-LDP.

    For every cap, the probability of a report in it is the largest that ε allows: the density inside is exactly e^ε
    times the density outside. The gradient's norm is encoded by a random sign, as in LDP-SGD, and not by a separate
    mechanism for scalars as in the paper.

    Args:
        epsilon: The claimed ε of one report.
        norm: The clip norm.

    Raises:
        InputError: If an argument is not positive; in fewer than 2 dimensions when it is used.

    Example:
        >>> mechanism = PrivUnit2(epsilon=8.0)
        >>> reports = mechanism.randomize(np.eye(100)[0], np.random.default_rng(0), count=5)
        >>> np.round(np.linalg.norm(reports, axis=1), 3)
        array([1., 1., 1., 1., 1.], dtype=float32)
    """

    name: ClassVar[str] = "privunit"

    def cap(self, dim: int) -> tuple[float, float, float]:
        """The best cap for this ε."""
        return best_cap(self.epsilon, dim)

    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """A random cosine with the gradient, and a uniform direction orthogonal to it."""
        unit, length = self._direction(gradient)
        cosines = self._cosines(length, unit.size, uniforms)
        single = unit.astype(np.float32)
        # The normal vectors minus their components along the gradient.
        np.multiply((normals.values @ single)[:, None], -single, out=out)
        out += normals.values
        scale = np.sqrt(1 - cosines**2) / np.maximum(Normals(out).lengths, 1e-300)
        out *= scale.astype(np.float32)[:, None]
        out += cosines.astype(np.float32)[:, None] * single
        return out

    def projections(self, gradient: npt.ArrayLike, dim: int, rng: np.random.Generator, count: int) -> Floats:
        """See `LocalMechanism.projections`: the cosine, and r − 1 coordinates of a direction in d − 1 dimensions."""
        unit, length = self._direction(gradient)
        cosines = self._cosines(length, dim, rng.random((3, count)))
        # A uniform direction orthogonal to the gradient, of which only the part inside of the subspace is needed.
        across = rng.standard_normal((count, unit.size))
        across -= np.outer(across @ unit, unit)
        lengths = normal_lengths(across, dim - unit.size, rng)
        across *= (np.sqrt(1 - cosines**2) / np.maximum(lengths, 1e-300))[:, None]
        return across + np.outer(cosines, unit)

    def server_factor(self, dim: int) -> float:
        """See `LocalMechanism.server_factor`: L over the mean cosine of a report with the gradient."""
        least, share, chance = self.cap(dim)
        return self.norm / _mean_cosine(least, share, chance, dim)

    def _cosines(self, length: float, dim: int, uniforms: Floats) -> Floats:
        """The cosines of reports with the gradient, from ``uniforms`` (3, k)."""
        least, share, chance = self.cap(dim)
        signs = np.where(uniforms[0] < 0.5 + length / 2, 1.0, -1.0)
        in_cap = uniforms[1] < chance
        # The cosine's tail probability is uniform on (0, share) inside of the cap, and on (share, 1) outside.
        tails = np.where(in_cap, share * uniforms[2], share + (1 - share) * uniforms[2])
        cosines = cosine_quantile(tails, dim)
        # Rounding in the quantile must not move a report across the edge of the cap.
        return signs * np.where(in_cap, np.maximum(cosines, least), np.minimum(cosines, np.nextafter(least, -1.0)))


@dataclass(frozen=True, kw_only=True)
class LocalGaussian(LocalMechanism):
    """Clip the gradient and add N(0, σ²) to each coordinate, with the smallest σ that is (ε, δ)-LDP.

    Replacing one clipped gradient by another moves the report by at most 2L; σ is the exact calibration of Balle and
    Wang (2018) for that sensitivity.

    Args:
        epsilon: The claimed ε of one report.
        norm: The clip norm L.
        delta: The claimed δ, in (0, 1).

    Raises:
        InputError: If an argument is out of range.

    Example:
        >>> round(LocalGaussian(epsilon=1.0, delta=1e-5).noise, 4)
        7.4613
    """

    name: ClassVar[str] = "gaussian"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_delta(self.delta) == 0:
            raise InputError("delta must be in (0, 1) for the Gaussian mechanism, got 0: no finite ε holds at delta 0")

    @cached_property
    def noise(self) -> float:
        """The noise standard deviation σ."""
        # Two gradients of the clip norm are up to 2L apart, and a report has to hide which of them it came from.
        return 2 * self.norm * sigma_gaussian(self.epsilon, self.delta)

    def claim(self) -> Claim:
        """The exact guarantee of the Gaussian mechanism."""
        return Claim(
            epsilon=self.epsilon,
            delta=self.delta,
            rounds=1,
            accountant="exact",
            noise_multiplier=self.noise / (2 * self.norm),
            local_epsilon=self.epsilon,
            adjacency="replace-one",
        )

    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """x + σ·N."""
        np.multiply(normals.values, np.float32(self.noise), out=out)
        out += self.clipped(gradient).astype(np.float32)
        return out

    def projections(self, gradient: npt.ArrayLike, dim: int, rng: np.random.Generator, count: int) -> Floats:
        """See `LocalMechanism.projections`: Gaussian noise is the same in any subspace."""
        clipped = self.clipped(gradient)
        return clipped + self.noise * rng.standard_normal((count, clipped.size))

    def log_density(self, total: Floats, gradient: npt.ArrayLike, dim: int, clients: int = 1) -> Floats:
        """See `LocalMechanism.log_density`: normal; others' gradients count as small compared with the noise."""
        residuals = total - self.clipped(gradient)
        log_density: Floats = -0.5 * np.einsum("ij,ij->i", residuals, residuals) / (clients * self.noise**2)
        return log_density

    def server_factor(self, dim: int) -> float:
        """1: noise of mean zero needs no correction."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class OwnMechanism(LocalMechanism):
    """A user's function as a local mechanism, with the (ε, δ) that it claims.

    Nothing else is known about it, so reports are made whole, one at a time. Its "log-likelihood" is the inner product
    of report and clipped gradient, which is optimal for Gaussian noise and merely a score for anything else.

    Args:
        function: What a client runs: ``function(gradient, rng)`` returns the report, shape (d,).
        epsilon: The claimed ε of one report.
        norm: The clip norm that the function uses.
        delta: The claimed δ, in [0, 1).
        factor: What the server multiplies the mean report by.

    Raises:
        InputError: When it is called, if the function fails or its report is not a finite vector of the gradient's
            length.

    Example:
        >>> def noisy(gradient, rng):
        ...     return gradient + rng.normal(0, 10, gradient.size)
        >>> OwnMechanism(function=noisy, epsilon=1.0, delta=1e-5).randomize([1.0, 0.0], np.random.default_rng(0)).shape
        (1, 2)
    """

    density_is_known: ClassVar[bool] = False
    function: Callable[[Any, np.random.Generator], Any]
    delta: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.delta)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The function's name."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def claim(self) -> Claim:
        """The guarantee as claimed."""
        # A report with δ > 0 has no pure ε by itself, of which the curve of the claim would be made.
        local_epsilon = self.epsilon if self.delta == 0 else None
        return Claim(
            epsilon=self.epsilon,
            delta=self.delta,
            rounds=1,
            accountant="as claimed",
            local_epsilon=local_epsilon,
            adjacency="replace-one",
        )

    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """The function's reports, each drawn with a generator that is seeded by its uniform numbers."""
        vector = np.asarray(gradient, dtype=np.float32)
        # Seeding by numbers that the audit drew keeps reports reproducible, also between audits that share them.
        for row, row_uniforms in zip(out, uniforms.T, strict=True):
            rng = default_rng([int(2**53 * number) for number in row_uniforms])
            with errors_of(f"the mechanism {self.name} failed"):
                report = np.asarray(self.function(vector.copy(), rng))
            if report.dtype.kind not in "fiub" or report.shape != vector.shape or not np.isfinite(report).all():
                raise InputError(
                    f"the mechanism {self.name} must return {vector.size} finite real numbers, got {report!r:.80}"
                )
            row[:] = report
        return out

    def log_density(self, total: Floats, gradient: npt.ArrayLike, dim: int, clients: int = 1) -> Floats:
        """A score: the inner product with the clipped gradient."""
        scores: Floats = total @ self.clipped(gradient)
        return scores

    def server_factor(self, dim: int) -> float:
        """The factor as given."""
        return self.factor


@dataclass(frozen=True, kw_only=True)
class LDPServer:
    """What the server does with local reports: θ ← θ − η · factor · mean report (Algorithm 2, lines 4 and 5).

    Args:
        learning_rate: The step size η.
        scaling: The factor: ``"unbiased"``, or ``"printed"`` as in the paper, which is d times smaller for LDP-SGD and
            the same for other mechanisms.

    Raises:
        InputError: If the learning rate is not positive.

    Example:
        >>> server, model = LDPServer(learning_rate=0.1), np.zeros(2, dtype=np.float32)
        >>> server.move(model, np.array([[1.0, -1.0]], dtype=np.float32), LocalGaussian(epsilon=1.0))
        array([[-0.1,  0.1]], dtype=float32)
    """

    learning_rate: float = 0.01
    scaling: Literal["unbiased", "printed"] = "unbiased"

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)

    def step(self, mechanism: LocalMechanism, dim: int) -> float:
        """The factor on the mean report that is subtracted from the model."""
        factor = mechanism.printed_factor if self.scaling == "printed" else mechanism.server_factor
        return self.learning_rate * factor(dim)

    def move(self, model: Reports, means: Reports, mechanism: LocalMechanism) -> Reports:
        """The new models (k, d) for each of k mean reports ``means`` (k, d), which are overwritten."""
        means *= np.float32(-self.step(mechanism, model.size))
        means += model
        return means


def normal_lengths(coordinates: Floats, others: int, rng: np.random.Generator) -> Floats:
    """Draw the lengths of normal vectors with these ``coordinates`` (k, r) and ``others`` further ones: χ²."""
    squares: Floats = np.einsum("ij,ij->i", coordinates, coordinates)
    if others:
        squares += rng.chisquare(others, len(squares))
    return np.sqrt(squares)


def cosine_tail(cosine: npt.ArrayLike, dim: int) -> Floats:
    """P(⟨V, u⟩ ≥ cosine) for V uniform on the unit sphere of ℝᵈ and any unit vector u, d ≥ 2."""
    t = np.asarray(cosine, dtype=float)
    half = 0.5 * special.betaincc(0.5, (dim - 1) / 2, t**2)
    tail: Floats = np.where(t >= 0, half, 1 - half)
    return tail


def cosine_quantile(tail: npt.ArrayLike, dim: int) -> Floats:
    """The cosine that is exceeded with probability ``tail``: the inverse of `cosine_tail`."""
    s = np.asarray(tail, dtype=float)
    magnitude = np.sqrt(special.betainccinv(0.5, (dim - 1) / 2, np.minimum(1.0, 2 * np.minimum(s, 1 - s))))
    cosine: Floats = np.where(s <= 0.5, magnitude, -magnitude)
    return cosine


@lru_cache(maxsize=64)
def best_cap(epsilon: float, dim: int) -> tuple[float, float, float]:
    """The cap whose reports have the longest mean: its smallest cosine, its share of the sphere, and its probability.

    Searched on a grid of shares between 1/2 and e^−(ε + 5) / 2; every cap on it is exactly ε-LDP.
    """
    if dim < 2:
        raise InputError(f"PrivUnit needs at least 2 dimensions, got {dim}")
    share = np.exp(-np.linspace(math.log(2), math.log(2) + epsilon + 5, 4001))
    least = cosine_quantile(share, dim)
    # Recomputed from the rounded cosine: the cap that is used has exactly this share, so ε holds exactly.
    share = cosine_tail(least, dim)
    # The largest probability p that ε allows: logit p = ε + logit share.
    chance = special.expit(epsilon + special.logit(share))
    # Drop caps that rounding has left empty: a smallest cosine of 1, or a share that underflows.
    usable = share > 1e-300
    least, share, chance = least[usable], share[usable], chance[usable]
    best = int(np.argmax(_mean_cosine(least, share, chance, dim)))
    return float(least[best]), float(share[best]), float(chance[best])


def _mean_cosine(least: npt.ArrayLike, share: npt.ArrayLike, chance: npt.ArrayLike, dim: int) -> float:
    """E⟨V, u⟩ of a report: M·(p/q − (1−p)/(1−q)) for a cap with share q and probability p.

    M = E[T; T ≥ γ] = Γ(d/2)/(√π·Γ((d−1)/2)) · (1−γ²)^((d−1)/2)/(d−1) is the part of a uniform direction's mean cosine
    inside of the cap; E[T] = 0 gives the part outside.
    """
    least, share, chance = np.asarray(least), np.asarray(share), np.asarray(chance)
    log_constant = special.gammaln(dim / 2) - special.gammaln((dim - 1) / 2) - 0.5 * math.log(math.pi)
    inside = np.exp(log_constant + (dim - 1) / 2 * np.log1p(-np.minimum(least**2, 1 - 1e-16)) - math.log(dim - 1))
    return inside * (chance / share - (1 - chance) / (1 - share))  # type: ignore[no-any-return]
