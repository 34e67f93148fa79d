"""Local mechanisms (LDP-SGD and Gaussian) and the server that averages their reports.

Algorithms and lines are those of Matsumoto et al. (2022). `coalmine.simulation.mechanisms.local_base` has the
interface, `coalmine.simulation.mechanisms.privunit` a third mechanism; see also ``docs/ldp.md``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from coalmine.arrays import Floats
from coalmine.claims import Claim
from coalmine.errors import InputError, check_delta, check_positive
from coalmine.simulation.mechanisms.local_base import UNIFORMS, LocalMechanism, Normals, Reports, normal_lengths
from coalmine.stats.gaussian import sigma_gaussian

__all__ = [
    "LDPSGD",
    "UNIFORMS",
    "LDPServer",
    "LocalGaussian",
    "LocalMechanism",
    "Normals",
    "Reports",
    "SphereMechanism",
]


class SphereMechanism(LocalMechanism):
    """Reports are unit vectors, uniform on a cap around the gradient's direction or uniform on the rest of the sphere.

    A gradient shorter than ``norm`` is first stretched to that length and given a random sign, such that its mean stays
    the same (the *gradient norm projection* of Algorithm 1, line 2). Subclasses define the cap.
    """

    def length(self, gradient: Floats) -> float:
        """‖x‖ / L of a clipped gradient, in [0, 1]: the mean of the random sign."""
        return min(1.0, float(np.linalg.norm(gradient)) / self.norm)

    @abstractmethod
    def cap(self, dim: int) -> tuple[float, float, float]:
        """The cap's smallest cosine, its share of the sphere's surface, and the probability of a report in it."""

    def log_density(self, total: Floats, gradient: npt.ArrayLike, dim: int, clients: int = 1) -> Floats:
        """See `LocalMechanism.log_density`: relative to the uniform distribution on the sphere."""
        unit, length = self._direction(gradient)
        least, share, chance = self.cap(dim)
        along = total @ unit

        def inside(cosine: Floats) -> Floats:
            if clients == 1:
                return (cosine >= least).astype(float)
            # Coordinates of uniform directions are close to N(0, 1/d), and so is this client's, given the sum.
            spread = math.sqrt((clients - 1) / (clients * dim))
            probability: Floats = special.ndtr((cosine / clients - least) / spread)
            return probability

        def density(cosine: Floats) -> Floats:
            within = inside(cosine)
            return within * chance / share + (1 - within) * (1 - chance) / (1 - share)

        return np.log((1 + length) / 2 * density(along) + (1 - length) / 2 * density(-along))

    def _direction(self, gradient: npt.ArrayLike) -> tuple[Floats, float]:
        """The unit vector of the clipped gradient, and the gradient's length in units of L."""
        clipped = self.clipped(gradient)
        length = float(np.linalg.norm(clipped))
        if length == 0:
            # Both signs are equally likely then, so any direction gives the same, uniform reports.
            return np.eye(1, clipped.size)[0], 0.0
        return clipped / length, self.length(clipped)


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
        """The probability of the gradient's half-space."""
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
        ratio = special.gammaln((dim - 1) / 2 + 1) - special.gammaln(dim / 2 + 1)
        return float(self.norm * math.sqrt(math.pi) / 2 * math.exp(ratio) / math.tanh(self.epsilon / 2))

    def server_factor(self, dim: int) -> float:
        """See `LocalMechanism.server_factor`: d times the printed factor (Duchi, Jordan and Wainwright, 2018)."""
        return dim * self.printed_factor(dim)


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
class LDPServer:
    """What the server does with local reports: θ ← Π(θ − η · factor · mean report) (Algorithm 2, lines 4 and 5).

    Args:
        learning_rate: The step size η.
        scaling: The factor: ``"unbiased"``, or ``"printed"`` as in the paper, which is d times smaller for LDP-SGD and
            the same for other mechanisms.
        radius: Π projects onto the ball of this radius around 0; None does not project.

    Raises:
        InputError: If an argument is out of range.

    Example:
        >>> server, model = LDPServer(learning_rate=0.1), np.zeros(2, dtype=np.float32)
        >>> server.move(model, np.array([[1.0, -1.0]], dtype=np.float32), LocalGaussian(epsilon=1.0))
        array([[-0.1,  0.1]], dtype=float32)
    """

    learning_rate: float = 0.01
    scaling: Literal["unbiased", "printed"] = "unbiased"
    radius: float | None = None

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        if self.radius is not None:
            check_positive("radius", self.radius)
        if self.scaling not in ("unbiased", "printed"):
            raise InputError(f"scaling must be unbiased or printed, got {self.scaling!r}")

    def step(self, mechanism: LocalMechanism, dim: int) -> float:
        """The factor on the mean report that is subtracted from the model."""
        factor = mechanism.printed_factor if self.scaling == "printed" else mechanism.server_factor
        return self.learning_rate * factor(dim)

    def move(self, model: Reports, means: Reports, mechanism: LocalMechanism) -> Reports:
        """The new models (k, d) for each of k mean reports ``means`` (k, d), which are overwritten."""
        means *= np.float32(-self.step(mechanism, model.size))
        means += model
        if self.radius is not None:
            shrink = np.minimum(1.0, self.radius / np.maximum(Normals(means).lengths, 1e-300))
            means *= shrink.astype(np.float32)[:, None]
        return means
