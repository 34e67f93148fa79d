"""The interface of local mechanisms: what a client does to its gradient before it leaves the device.

A mechanism produces reports in three ways with the same distribution: `LocalMechanism.randomize` makes whole vectors,
`LocalMechanism.reports` makes them from random numbers drawn beforehand (several mechanisms can share them), and
`LocalMechanism.projections` draws only a report's coordinates in a small subspace that contains the gradient, a few
numbers per report instead of d. NumPy only.

The random numbers come from an ordinary generator: fit for simulating and auditing a mechanism, not for deploying one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.claims import Claim
from coalmine.errors import InputError, check_count, check_positive

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

    Subclasses implement ``reports``, ``log_density`` and ``server_factor``, and should implement ``projections`` if
    there is a closed form. Overriding ``randomize`` or ``reports`` alone is safe: the other ways to produce reports
    then fall back on it, so an audit always tests what a client would send.

    Args:
        epsilon: The claimed ε of one report, between any two gradients.
        norm: The clip norm (L in the papers): longer gradients are scaled down to it.

    Raises:
        InputError: If an argument is not positive.

    Example:
        >>> from coalmine.simulation.mechanisms import LDPSGD
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

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_positive("the clip norm", self.norm)

    @property
    def delta(self) -> float:
        """The δ at which ``epsilon`` is claimed."""
        return 0.0

    def claim(self) -> Claim:
        """The claimed guarantee of one report, between any two gradients."""
        return Claim(local_epsilon=self.epsilon, rounds=1, delta=0.0)

    def clipped(self, gradient: npt.ArrayLike) -> Floats:
        """The gradient, scaled down to the clip norm if it is longer (Matsumoto et al., 2022, Algorithm 1, line 1)."""
        vector = np.asarray(gradient, dtype=np.float64)
        length = float(np.linalg.norm(vector))
        if not math.isfinite(length):
            raise InputError(f"a gradient must be finite, got one of norm {length}")
        return vector * min(1.0, self.norm / length) if length > 0 else vector

    def randomize(self, gradient: npt.ArrayLike, rng: np.random.Generator, count: int = 1) -> Reports:
        """Draw independent reports of one gradient.

        Args:
            gradient: The gradient, shape (d,).
            rng: Source of randomness.
            count: Number of reports.

        Returns:
            The reports, shape (count, d), float32.

        Raises:
            InputError: If the gradient is not a finite vector.
        """
        vector = np.asarray(gradient)
        if vector.ndim != 1 or not vector.size:
            raise InputError(f"a gradient must be one flat vector, got an array of shape {vector.shape}")
        count = check_count("count", count)
        normals = Normals(rng.standard_normal((count, vector.size), dtype=np.float32))
        return self.reports(vector, normals, rng.random((UNIFORMS, count)), out=np.empty_like(normals.values))

    @abstractmethod
    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """Reports (k, d) made of ``normals`` (k, d) and ``uniforms`` (3, k), written to ``out``."""

    def sent(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """Checked ``reports``; if a subclass overrides ``randomize`` alone, what that returns instead.

        ``randomize`` is then called once per report, with a generator seeded by the report's uniform numbers.
        """
        if _is_current(type(self), "reports", "randomize"):
            reports = self._checked(self.reports(gradient, normals, uniforms, out=out), *out.shape)
            if reports is not out:
                out[:] = reports
            return out
        for row, row_uniforms in zip(out, uniforms.T, strict=True):
            row[:] = self.drawn(gradient, seeded(row_uniforms), 1)[0]
        return out

    def drawn(self, gradient: npt.ArrayLike, rng: np.random.Generator, count: int = 1) -> Reports:
        """Checked ``randomize``: raises `InputError` unless it returns ``count`` finite reports of the right length."""
        return self._checked(self.randomize(gradient, rng, count), count, np.asarray(gradient).size)

    def _checked(self, reports: object, count: int, dim: int) -> Reports:
        """The reports, if they are a finite (count, dim) array of real numbers; raises `InputError` otherwise."""
        shape = getattr(reports, "shape", None)
        if not isinstance(reports, np.ndarray) or reports.dtype.kind not in "fiub" or shape != (count, dim):
            got = f"{reports.dtype} of shape {shape}" if isinstance(reports, np.ndarray) else type(reports).__name__
            raise InputError(f"{type(self).__name__} must return an array ({count}, {dim}) of numbers, got {got}")
        if not np.isfinite(reports).all():
            raise InputError(f"{type(self).__name__} returned a report that is not finite")
        return reports

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

        Uses ``projections``, unless a subclass overrides ``reports`` or ``randomize`` without it; then whole
        reports are made and projected.
        """
        vector = np.asarray(gradient, dtype=np.float64)
        if _is_current(type(self), "projections", "reports", "randomize"):
            return self.projections(basis.T @ vector, len(basis), rng, count)
        rows = max(1, _CHUNK // len(basis))
        parts = [self.drawn(vector, rng, min(rows, count - i)) @ basis for i in range(0, count, rows)]
        return np.concatenate([np.empty((0, basis.shape[1])), *parts])

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


def seeded(uniforms: Floats) -> np.random.Generator:
    """A generator for one report, seeded by the report's uniform numbers."""
    return np.random.default_rng([int(2**53 * number) for number in uniforms])


def normal_lengths(coordinates: Floats, others: int, rng: np.random.Generator) -> Floats:
    """Draw the lengths of normal vectors with these ``coordinates`` (k, r) and ``others`` further ones: χ²."""
    squares = np.einsum("ij,ij->i", coordinates, coordinates)
    if others < 0:
        dim = coordinates.shape[1] + others
        raise InputError(f"a subspace of {coordinates.shape[1]} dimensions does not fit into {dim}")
    lengths: Floats = np.sqrt(squares + (rng.chisquare(others, len(squares)) if others else 0.0))
    return lengths


def _is_current(kind: type, name: str, *others: str) -> bool:
    """Whether no subclass overrides one of ``others`` below the class that implements ``name``."""
    for base in kind.__mro__:
        if name in vars(base):
            return base is not LocalMechanism
        if any(other in vars(base) for other in others):
            return False
    return False
