"""Random orthonormal canaries whose dot products with an update all come from one fast transform.

Canary i is row i of B · S₃ · H₂ · S₂ · H₁ · S₁: random signs S, Hadamard transforms H₁ of the first D coordinates and
H₂ of the last D (D is the largest power of two in ``dim``, so the two overlap and all coordinates mix), and B, a
Hadamard matrix of K rows whose columns are each spread over a block of coordinates. Every factor is orthogonal or has
orthonormal rows, so canaries have norm 1 and are orthogonal to one another, exactly, in any number of dimensions.
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

# Transforms are products with Hadamard matrices of at most this size: large enough for fast products, small enough
# not to do much more than d log d multiplications.
_FACTOR = 32
# Numbers made at a time where canaries are given out one by one.
_BLOCK = 1 << 20


class HadamardCanaries:
    """``count`` orthonormal canaries in ``dim`` dimensions from ``seed``, none of them ever stored.

    For a fixed update each null score is a sum of independent signs with the variance that a uniform direction has, up
    to the evenness of the blocks. There are at most as many as the largest power of two in ``dim``.
    """

    orthonormal = True

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        self.dim, self.count = check_count("dim", dim, least=2), check_count("count", count)
        self.seed = check_count("seed", seed, least=0)
        self._length = 1 << (self.dim.bit_length() - 1)
        if self.count > self._length:
            raise InputError(
                f"there are at most {self._length} hadamard canaries in {self.dim} dimensions, got {count}"
            )
        self._rows = 1 << (self.count - 1).bit_length()
        edges = np.arange(self._rows + 1) * self.dim // self._rows
        self._starts, self._sizes = edges[:-1], np.diff(edges)
        self._scale = (1 / np.sqrt(self._rows * self._sizes)).astype(np.float32)

    def dots(self, vector: Vector) -> Floats:
        """⟨canaryᵢ, vector⟩ of all canaries, (count,)."""
        first, second, third = self._signs
        mixed = np.multiply(vector, first, dtype=np.float32)
        mixed[: self._length] = hadamard(mixed[: self._length])
        mixed *= second
        mixed[-self._length :] = hadamard(mixed[-self._length :])
        mixed *= third
        folded = np.add.reduceat(mixed, self._starts) * self._scale
        return np.asarray(hadamard(folded)[: self.count] * np.sqrt(self._rows), dtype=np.float64)

    def total(self, weights: npt.ArrayLike) -> Vector:
        """Σ weightᵢ · canaryᵢ, (dim,)."""
        coefficients = np.zeros((1, self._rows), dtype=np.float32)
        coefficients[0, : self.count] = weights
        found: Vector = self._sums(coefficients)[0]
        return found

    def canary(self, index: int) -> Vector:
        """One canary, (dim,): the same in every process."""
        return next(self.each([range(self.count)[index]]))

    def each(self, indices: Sequence[int]) -> Iterator[Vector]:
        """These canaries one by one, made several at a time."""
        block = max(1, _BLOCK // self.dim)
        for start in range(0, len(indices), block):
            rows = np.asarray(indices[start : start + block], dtype=np.int64)
            coefficients = np.zeros((len(rows), self._rows), dtype=np.float32)
            coefficients[np.arange(len(rows)), rows] = 1.0
            yield from self._sums(coefficients)

    def _sums(self, coefficients: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """For each row of ``coefficients``, the sum of so much of each canary, (rows, dim)."""
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
        bits = np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=(0,))))
        drawn = [np.unpackbits(np.frombuffer(bits.bytes(-(-self.dim // 8)), np.uint8)) for _ in range(3)]
        return [some[: self.dim].view(np.int8) * np.int8(2) - np.int8(1) for some in drawn]


def hadamard(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The orthonormal Walsh–Hadamard transform of a vector, or of rows, whose length is a power of two.

    It is its own inverse.
    """
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
    matrix = np.ones((1, 1), dtype=np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(size), dtype=np.float32)
