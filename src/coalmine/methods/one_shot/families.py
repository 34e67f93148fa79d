"""Families of canaries: what they have in common, and the one for small models, stored as a matrix on the CPU.

The families for large models are `coalmine.methods.one_shot.hadamard` and `coalmine.methods.one_shot.gaussian`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count
from coalmine.parallel import single_thread
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.vectors import Device, on, to_numpy

MOST_NUMBERS = 1 << 23
"""Numbers of all orthogonal canaries together, at most: 64 MB."""


class UpdateCanaries(ABC):
    """Random unit vectors. The same seed gives the same ones in every process and on every device.

    Dot products are computed where the vector is, sums on the device that is asked for (None is NumPy on the CPU).

    Args:
        dim: Number of coordinates: the model's parameters.
        count: Number of canaries, inserted and held out.
        seed: Seed of the canaries.
    """

    orthonormal: ClassVar[bool]
    """Whether all canaries are orthogonal to each other."""

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        self.dim, self.count = check_count("dim", dim, least=2), check_count("count", count)
        self.seed = check_count("seed", seed, least=0)

    @abstractmethod
    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""

    @abstractmethod
    def total(self, weights: npt.ArrayLike, device: Device = None) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,)."""

    def canary(self, index: int) -> Vector:
        """Return one canary, (dim,)."""
        return next(self.each([index]))

    def each(self, indices: Sequence[int], device: Device = None) -> Iterator[Vector]:
        """Yield these canaries one by one."""
        for index in indices:
            weights = np.zeros(self.count)
            weights[index] = 1.0
            yield self.total(weights, device)


class OrthogonalCanaries(UpdateCanaries):
    """Orthonormal canaries, uniform among all such.

    Each is uniform on the sphere of the dimensions that the others leave, so the null scores follow
    ``OrthogonalCosineNull`` exactly, whatever the update looks like and in any dimension.

    Args:
        dim: Number of coordinates.
        count: Number of canaries, at most ``dim``.
        seed: Seed of the canaries.

    Raises:
        InputError: If the canaries do not fit the dimension or into memory.

    Example:
        >>> canaries = OrthogonalCanaries(dim=10, count=3, seed=0)
        >>> canaries.dots(canaries.canary(1)).round(6) + 0.0
        array([0., 1., 0.])
    """

    orthonormal = True

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        super().__init__(dim=dim, count=count, seed=seed)
        if self.count > self.dim:
            raise InputError(f"count must be at most {self.dim}, the number of dimensions, got {count}")
        if self.count * self.dim > MOST_NUMBERS:
            raise InputError(
                f"{self.count:,} orthogonal canaries of {self.dim:,} numbers are more than {MOST_NUMBERS:,} numbers: "
                "use family=hadamard"
            )

    @cached_property
    def _rows(self) -> Floats:
        """The canaries, (count, dim)."""
        with single_thread():
            columns, triangle = np.linalg.qr(generator(self.seed, "canaries").normal(size=(self.dim, self.count)))
        # With a positive diagonal the factorization is unique, and its first factor uniform (Stewart 1980).
        return np.ascontiguousarray((columns * np.where(np.diag(triangle) < 0, -1.0, 1.0)).T)

    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""
        # einsum adds in one order, whatever the number of threads.
        return np.asarray(np.einsum("ij,j->i", self._rows, to_numpy(vector).astype(np.float64)))

    def total(self, weights: npt.ArrayLike, device: Device = None) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,)."""
        total = np.einsum("i,ij->j", np.asarray(weights, dtype=np.float64), self._rows)
        vector: Vector = on(device, total.astype(np.float32))
        return vector
