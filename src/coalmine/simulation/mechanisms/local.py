"""What a client does to its gradient before it leaves the device: local differential privacy.

A mechanism turns a gradient into reports three ways that agree in distribution: `LocalMechanism.randomize` makes whole
vectors, `LocalMechanism.reports` makes them of random numbers that were drawn before (so that several mechanisms may
share them), and `LocalMechanism.projections` draws a report's coordinates in a small subspace that holds the gradient:
a few numbers a report instead of d. NumPy only.

The random numbers come from an ordinary generator: fit for simulating and auditing a mechanism, not for deploying one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from coalmine.accounting import Theory, local_theory
from coalmine.accounting.sampling import EveryRound
from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_delta, check_positive
from coalmine.stats.gaussian import sigma_gaussian

Reports = npt.NDArray[np.float32]
"""(k, d): a report in each row."""

_CHUNK = 1 << 20  # numbers in the reports that are made together

UNIFORMS = 3
"""How many uniform numbers a report may need, beside its d normal ones."""


class Normals:
    """Standard normal numbers (k, d), and the lengths of their rows, computed once."""

    def __init__(self, values: Reports, lengths: Floats | None = None) -> None:
        self.values = values
        self._lengths = lengths

    @property
    def lengths(self) -> Floats:
        """(k,)."""
        if self._lengths is None:
            # einsum sums float32 numbers in one go: in blocks it keeps its digits however long the rows are.
            squares = np.zeros(len(self.values))
            for start in range(0, self.values.shape[1], 4096):
                block = self.values[:, start : start + 4096]
                squares += np.einsum("ij,ij->i", block, block)
            self._lengths = np.sqrt(squares)
        return self._lengths

    @cached_property
    def sign_sums(self) -> Floats:
        """Σ sgn of each row, (k,)."""
        found: Floats = np.sign(self.values).sum(axis=1, dtype=np.float64)
        return found

    def rows(self, start: int, stop: int) -> Normals:
        """Some of the rows, as a view."""
        return Normals(self.values[start:stop], self.lengths[start:stop])


@dataclass(frozen=True, kw_only=True)
class LocalMechanism(ABC):
    """A local randomizer of gradients that are clipped to ``norm`` (the papers' L), ``epsilon``-LDP in some sense."""

    name: ClassVar[str]
    density_is_known: ClassVar[bool] = True
    """Whether ``log_density`` of one report is what it says, up to a constant, and not merely a score."""
    epsilon: float
    norm: float = 1.0

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_positive("the clip norm", self.norm)

    @property
    def delta(self) -> float:
        """The δ at which ``epsilon`` is promised."""
        return 0.0

    def theory(self) -> Theory:
        """What it promises for one report, between any two gradients."""
        return local_theory(epsilon=self.epsilon)

    def clipped(self, gradient: npt.ArrayLike) -> Floats:
        """The gradient, shortened to the clip norm where it is longer (Algorithm 1, line 1)."""
        vector = np.asarray(gradient, dtype=np.float64)
        length = float(np.linalg.norm(vector))
        if not math.isfinite(length):
            raise InputError(f"a gradient must be finite, got one of norm {length}")
        return vector * min(1.0, self.norm / length) if length > 0 else vector

    def randomize(self, gradient: npt.ArrayLike, rng: np.random.Generator, count: int = 1) -> Reports:
        """``count`` independent reports of one gradient, (count, d)."""
        vector = np.asarray(gradient)
        if vector.ndim != 1 or not vector.size:
            raise InputError(f"a gradient must be one flat vector, got an array of shape {vector.shape}")
        count = check_count("count", count)
        normals = Normals(rng.standard_normal((count, vector.size), dtype=np.float32))
        return self.reports(vector, normals, rng.random((UNIFORMS, count)), out=np.empty_like(normals.values))

    @abstractmethod
    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """Reports (k, d) made of ``normals`` (k, d) and ``uniforms`` (3, k), written into ``out``."""

    def sent(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """As ``reports``, or what ``randomize`` gives where a class says anew what that does and not its reports.

        It is asked for a report at a time, with a generator that is seeded by the report's uniform numbers.
        """
        if _is_as_specific(type(self), "reports", "randomize"):
            found = self._checked(self.reports(gradient, normals, uniforms, out=out), *out.shape)
            if found is not out:
                out[:] = found
            return out
        for row, own in zip(out, uniforms.T, strict=True):
            row[:] = self.drawn(gradient, seeded(own), 1)[0]
        return out

    def drawn(self, gradient: npt.ArrayLike, rng: np.random.Generator, count: int = 1) -> Reports:
        """What ``randomize`` gives, if that is ``count`` finite reports of the gradient's length: refused otherwise."""
        return self._checked(self.randomize(gradient, rng, count), count, np.asarray(gradient).size)

    def _checked(self, reports: object, count: int, dim: int) -> Reports:
        shape = getattr(reports, "shape", None)
        if not isinstance(reports, np.ndarray) or reports.dtype.kind not in "fiub" or shape != (count, dim):
            got = f"{reports.dtype} of shape {shape}" if isinstance(reports, np.ndarray) else type(reports).__name__
            raise InputError(
                f"{type(self).__name__} must give reports as an array ({count}, {dim}) of numbers, got {got}"
            )
        if not np.isfinite(reports).all():
            raise InputError(f"{type(self).__name__} gave a report that is not finite")
        return reports

    def projections(self, gradient: npt.ArrayLike, dim: int, rng: np.random.Generator, count: int) -> Floats:
        """The coordinates (count, r) of independent reports in an r-dimensional subspace that holds the gradient.

        ``gradient`` (r,) has the gradient's own coordinates there, in an orthonormal basis. The distribution is exactly
        that of the coordinates of ``randomize``. A mechanism without a closed form for it leaves this out.
        """
        raise NotImplementedError

    def coordinates(self, gradient: npt.ArrayLike, basis: Floats, rng: np.random.Generator, count: int) -> Floats:
        """As ``projections``, for a whole gradient (d,) and an orthonormal ``basis`` (d, r) whose span holds it.

        Where a class says anew what ``reports`` or ``randomize`` does and not what its projections are, whole reports
        are made: what is audited is always what would be sent.
        """
        vector = np.asarray(gradient, dtype=np.float64)
        if _is_as_specific(type(self), "projections", "reports", "randomize"):
            return self.projections(basis.T @ vector, len(basis), rng, count)
        rows = max(1, _CHUNK // len(basis))
        parts = [self.drawn(vector, rng, min(rows, count - i)) @ basis for i in range(0, count, rows)]
        return np.concatenate([np.empty((0, basis.shape[1])), *parts])

    @abstractmethod
    def log_density(self, total: Floats, gradient: npt.ArrayLike, dim: int, clients: int = 1) -> Floats:
        """How likely ``gradient`` makes a sum (k, r) of ``clients`` reports, of which one is its own, up to a constant.

        Both are given by coordinates as in ``projections``. Exact for one client. With more, the others' reports are
        taken for noise that is Gaussian in a small subspace: what an adversary may assume who does not know them.
        """

    @abstractmethod
    def server_factor(self, dim: int) -> float:
        """What the mean of reports is multiplied by to have the mean of the clipped gradients as its expectation."""


class SphereMechanism(LocalMechanism):
    """Reports are unit vectors, uniform on a cap around the gradient's direction or uniform on the rest of the sphere.

    A gradient shorter than ``norm`` is first turned into one of that length, with a random sign that makes up for it in
    the mean (the *gradient norm projection*: Algorithm 1, line 2). Subclasses say which cap, and how likely it is.
    """

    def length(self, gradient: Floats) -> float:
        """‖x‖ / L of a clipped gradient, in [0, 1]: the mean of the random sign."""
        return min(1.0, float(np.linalg.norm(gradient)) / self.norm)

    @abstractmethod
    def cap(self, dim: int) -> tuple[float, float, float]:
        """The least cosine with the direction in the cap, its share of the sphere, and the chance to report from it."""

    def log_density(self, total: Floats, gradient: npt.ArrayLike, dim: int, clients: int = 1) -> Floats:
        """Of one report exactly; see `LocalMechanism.log_density`."""
        unit, length = self._direction(gradient)
        least, share, chance = self.cap(dim)
        along = total @ unit

        def inside(cosine: Floats) -> Floats:
            if clients == 1:
                return (cosine >= least).astype(float)
            # Coordinates of uniform directions are close to N(0, 1/d): so is the own part's, given the sum.
            spread = math.sqrt((clients - 1) / (clients * dim))
            found: Floats = special.ndtr((cosine / clients - least) / spread)
            return found

        def density(cosine: Floats) -> Floats:
            within = inside(cosine)
            return within * chance / share + (1 - within) * (1 - chance) / (1 - share)

        return np.log((1 + length) / 2 * density(along) + (1 - length) / 2 * density(-along))

    def _direction(self, gradient: npt.ArrayLike) -> tuple[Floats, float]:
        """The unit vector z / L (up to sign) and how long the clipped gradient is, in units of L."""
        clipped = self.clipped(gradient)
        length = float(np.linalg.norm(clipped))
        if length == 0:
            # Either sign is as likely as the other: any direction gives the same, uniform reports.
            return np.eye(1, clipped.size)[0], 0.0
        return clipped / length, self.length(clipped)


@dataclass(frozen=True, kw_only=True)
class LDPSGD(SphereMechanism):
    """LDP-SGD of Erlingsson et al. (2020), after Duchi, Jordan and Wainwright (2018): pure ``epsilon``-LDP.

    A report is a uniformly random direction, turned into the half-space of the gradient with probability
    e^ε / (1 + e^ε) and into the other half otherwise.
    """

    name: ClassVar[str] = "ldp-sgd"

    @property
    def chance(self) -> float:
        """The probability of the right half-space."""
        return float(special.expit(self.epsilon))

    def cap(self, dim: int) -> tuple[float, float, float]:
        """Half of the sphere."""
        return 0.0, 0.5, self.chance

    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """Algorithm 1."""
        unit, length = self._direction(gradient)
        side = normals.values @ unit.astype(np.float32)
        scale = self._signs(side, length, uniforms) / normals.lengths
        return np.multiply(normals.values, scale.astype(np.float32)[:, None], out=out)

    def scales(self, gradient: npt.ArrayLike, along: Floats, lengths: Floats, uniforms: Floats) -> Floats:
        """What normal vectors are multiplied by to become the reports of ``reports``, (k,).

        ``along`` (k, r) and ``gradient`` (r,) are coordinates in a subspace that holds the gradient; ``lengths`` are
        those of the whole vectors.
        """
        unit, length = self._direction(gradient)
        return self._signs(along @ unit, length, uniforms) / lengths

    def projections(self, gradient: npt.ArrayLike, dim: int, rng: np.random.Generator, count: int) -> Floats:
        """A direction has r normal coordinates over a length that takes the others in: χ² with d − r degrees."""
        unit, length = self._direction(gradient)
        coordinates = rng.standard_normal((count, unit.size))
        coordinates /= normal_lengths(coordinates, dim - unit.size, rng)[:, None]
        signs = self._signs(coordinates @ unit, length, rng.random((2, count)))
        return coordinates * signs[:, None]

    def _signs(self, side: npt.NDArray[np.floating], length: float, uniforms: Floats) -> Floats:
        """What directions are multiplied by that lie on this ``side`` of the gradient."""
        towards = np.where(uniforms[0] < 0.5 + length / 2, 1.0, -1.0)  # the sign of z: line 2
        told = np.where(uniforms[1] < self.chance, 1.0, -1.0)  # line 3
        return np.where(side >= 0, 1.0, -1.0) * towards * told

    def printed_factor(self, dim: int) -> float:
        """The factor of Algorithm 2, line 4, as printed: 1/d of the one that makes the mean right."""
        ratio = special.gammaln((dim - 1) / 2 + 1) - special.gammaln(dim / 2 + 1)
        return float(self.norm * math.sqrt(math.pi) / 2 * math.exp(ratio) / math.tanh(self.epsilon / 2))

    def server_factor(self, dim: int) -> float:
        """d times the printed factor, as in Duchi, Jordan and Wainwright (2018)."""
        return dim * self.printed_factor(dim)


@dataclass(frozen=True, kw_only=True)
class LocalGaussian(LocalMechanism):
    """Clip, and add N(0, σ²) to each coordinate, with the least σ that is (``epsilon``, ``delta``)-LDP.

    Replacing one clipped gradient by another moves the report by up to 2L (Balle and Wang 2018 for the least σ).
    """

    name: ClassVar[str] = "gaussian"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_delta(self.delta) == 0:
            raise InputError("the Gaussian mechanism has no ε at delta 0: delta must be in (0, 1)")

    @cached_property
    def noise(self) -> float:
        """σ."""
        return 2 * self.norm * sigma_gaussian(self.epsilon, self.delta)

    def theory(self) -> Theory:
        """Of the Gaussian mechanism, exactly."""
        return Theory(
            epsilon=self.epsilon,
            delta=self.delta,
            accountant="exact",
            noise_multiplier=self.noise / (2 * self.norm),
            sampling=str(EveryRound()),
            q=1.0,
            rounds=1,
            adjacency="replace-one",
        )

    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """x + σ·N."""
        np.multiply(normals.values, np.float32(self.noise), out=out)
        out += self.clipped(gradient).astype(np.float32)
        return out

    def projections(self, gradient: npt.ArrayLike, dim: int, rng: np.random.Generator, count: int) -> Floats:
        """The same in fewer dimensions."""
        clipped = self.clipped(gradient)
        return clipped + self.noise * rng.standard_normal((count, clipped.size))

    def log_density(self, total: Floats, gradient: npt.ArrayLike, dim: int, clients: int = 1) -> Floats:
        """Normal around the clipped gradient; others' gradients are taken to be small beside the noise."""
        away = total - self.clipped(gradient)
        found: Floats = -0.5 * np.einsum("ij,ij->i", away, away) / (clients * self.noise**2)
        return found

    def server_factor(self, dim: int) -> float:
        """Noise of mean zero needs no correction."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """Algorithm 2, lines 4 and 5: θ ← Π(θ − η · factor · mean report), Π onto the ball of ``radius`` around 0.

    ``scaling`` is the factor: ``unbiased``, or ``printed`` as in the paper's Algorithm 2, which is d times smaller; it
    makes a difference for LDP-SGD alone. Without a ``radius`` the parameter set is the whole space.
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
        """What the mean report is multiplied by and subtracted from the model."""
        if self.scaling == "printed" and isinstance(mechanism, LDPSGD):
            return self.learning_rate * mechanism.printed_factor(dim)
        return self.learning_rate * mechanism.server_factor(dim)

    def move(self, model: Reports, means: Reports, mechanism: LocalMechanism) -> Reports:
        """The models (k, d) that the mean reports ``means`` (k, d) make of ``model`` (d,); ``means`` is overwritten."""
        means *= np.float32(-self.step(mechanism, model.size))
        means += model
        if self.radius is not None:
            shrink = np.minimum(1.0, self.radius / np.maximum(Normals(means).lengths, 1e-300))
            means *= shrink.astype(np.float32)[:, None]
        return means


def seeded(uniforms: Floats) -> np.random.Generator:
    """A generator for one report, of its uniform numbers."""
    return np.random.default_rng([int(2**53 * number) for number in uniforms])


def _is_as_specific(kind: type, name: str, *others: str) -> bool:
    """Whether a class says what ``name`` is at least where it, or one it derives from, says what ``others`` are."""
    for one in kind.__mro__:
        if name in vars(one):
            return one is not LocalMechanism
        if any(other in vars(one) for other in others):
            return False
    return False


def normal_lengths(coordinates: Floats, others: int, rng: np.random.Generator) -> Floats:
    """The lengths of normal vectors of which these are some coordinates, and ``others`` more are not looked at."""
    squares = np.einsum("ij,ij->i", coordinates, coordinates)
    if others < 0:
        raise InputError(f"a subspace of {coordinates.shape[1]} dimensions does not fit into fewer")
    found: Floats = np.sqrt(squares + (rng.chisquare(others, len(squares)) if others else 0.0))
    return found
