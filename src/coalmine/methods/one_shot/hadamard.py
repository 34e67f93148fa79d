"""Hadamard canaries: random orthonormal vectors whose dot products with an update all come from one fast transform.

Canary i is row i of B · S₃ · H₂ · S₂ · H₁ · S₁. The S are random signs. H₁ and H₂ are Hadamard transforms of the first
and the last D coordinates, where D is the largest power of two up to ``dim``, so that they overlap and all coordinates
mix. B is a Hadamard matrix of K rows, each column spread over a block of coordinates. Every factor is orthogonal or has
orthonormal rows, so the canaries are exactly orthonormal in any dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count
from coalmine.protocol import Vector

Signs = npt.NDArray[np.int8]

# Transforms are products with Hadamard matrices of at most this size: large enough for fast matrix products, small
# enough to stay near d log d multiplications.
_FACTOR = 32
# Numbers generated at a time when canaries are yielded one by one.
_BLOCK = 1 << 20


class HadamardCanaries:
    """Orthonormal canaries, never stored.

    For a fixed update a null score is a sum of independent signs. Its variance is that of a uniform direction, up to
    how evenly the blocks divide the coordinates.

    Args:
        dim: Number of coordinates.
        count: Number of canaries, at most the largest power of two up to ``dim``.
        seed: Seed of the canaries.
    """

    orthonormal = True

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        self.dim, self.count = check_count("dim", dim, least=2), check_count("count", count)
        self.seed = check_count("seed", seed, least=0)
        self._length = 1 << (self.dim.bit_length() - 1)
        if self.count > self._length:
            raise InputError(
                f"count must be at most {self._length} for hadamard canaries in {self.dim} dimensions, got {count}"
            )
        self._rows = 1 << (self.count - 1).bit_length()
        edges = np.arange(self._rows + 1) * self.dim // self._rows
        self._starts, self._sizes = edges[:-1], np.diff(edges)
        self._scale = (1 / np.sqrt(self._rows * self._sizes)).astype(np.float32)

    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""
        first, second, third = self._signs
        mixed = np.multiply(vector, first, dtype=np.float32)
        mixed[: self._length] = hadamard(mixed[: self._length])
        mixed *= second
        mixed[-self._length :] = hadamard(mixed[-self._length :])
        mixed *= third
        # B folds each block of coordinates into one number, then mixes the K numbers.
        folded = np.add.reduceat(mixed, self._starts) * self._scale
        return np.asarray(hadamard(folded)[: self.count] * np.sqrt(self._rows), dtype=np.float64)

    def total(self, weights: npt.ArrayLike) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,)."""
        coefficients = np.zeros((1, self._rows), dtype=np.float32)
        coefficients[0, : self.count] = weights
        total: Vector = self._sums(coefficients)[0]
        return total

    def canary(self, index: int) -> Vector:
        """Return one canary, (dim,)."""
        return next(self.each([range(self.count)[index]]))

    def each(self, indices: Sequence[int]) -> Iterator[Vector]:
        """Yield these canaries one by one, generated in blocks."""
        block = max(1, _BLOCK // self.dim)
        for start in range(0, len(indices), block):
            rows = np.asarray(indices[start : start + block], dtype=np.int64)
            coefficients = np.zeros((len(rows), self._rows), dtype=np.float32)
            coefficients[np.arange(len(rows)), rows] = 1.0
            yield from self._sums(coefficients)

    def _sums(self, coefficients: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return Σ coefficientᵢ · canaryᵢ for each row of coefficients, (rows, dim): the transposed transform."""
        first, second, third = self._signs
        spread = hadamard(coefficients) * (np.float32(np.sqrt(self._rows)) * self._scale)
        mixed = np.repeat(spread, self._sizes, axis=1)
        mixed *= third
        mixed[:, -self._length :] = hadamard(mixed[:, -self._length :])
        mixed *= second
        mixed[:, : self._length] = hadamard(mixed[:, : self._length])
        mixed *= first
        return mixed

    @cached_property
    def _signs(self) -> list[Signs]:
        """Three vectors of random signs, (dim,) each."""
        bits = np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=(0,))))
        drawn = [np.unpackbits(np.frombuffer(bits.bytes(-(-self.dim // 8)), np.uint8)) for _ in range(3)]
        return [flips[: self.dim].view(np.int8) * np.int8(2) - np.int8(1) for flips in drawn]


def hadamard(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the orthonormal Walsh–Hadamard transform, which is its own inverse.

    Args:
        vectors: A vector or rows, whose length is a power of two.
    """
    # The transform is a Kronecker product: multiply by one small factor after the other.
    shape, after = vectors.shape, vectors.shape[-1]
    before = vectors.size // after
    while after > 1:
        size = min(_FACTOR, after)
        after //= size
        blocks = vectors.reshape(before, size, after)
        matrix = _matrix(size)
        vectors = matrix @ blocks if after > 1 else blocks.reshape(before, size) @ matrix
        before *= size
    return vectors.reshape(shape)


@lru_cache(maxsize=16)
def _matrix(size: int) -> npt.NDArray[np.float32]:
    """Return the orthonormal Hadamard matrix, by Sylvester's construction."""
    matrix = np.ones((1, 1), dtype=np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(size), dtype=np.float32)
