"""Random orthonormal canaries whose dot products with an update all come from one fast transform.

Canary i is row i of B · S₃ · H₂ · S₂ · H₁ · S₁: random signs S, Hadamard transforms H₁ of the first D coordinates and
H₂ of the last D (D is the largest power of two in ``dim``, so the two overlap and all coordinates mix), and B, a
Hadamard matrix of K rows whose columns are each spread over a block of coordinates. Every factor is orthogonal or has
orthonormal rows, so canaries have norm 1 and are orthogonal to one another, exactly, in any number of dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coalmine.errors import check_count
from coalmine.seam import Vector
from coalmine.stats.arrays import Floats

Signs = npt.NDArray[np.int8]

# Transforms are products with Hadamard matrices of at most this size: large enough for fast products, small enough
# not to do much more than d log d multiplications.
_FACTOR = 32
# Numbers made at a time where canaries are given out one by one.
_BLOCK = 1 << 20


class HadamardCanaries:
    """``count`` canaries in ``dim`` dimensions from ``seed``, none of them ever stored.

    For a fixed update each null score is a sum of independent signs with the variance that a uniform direction has, up
    to the evenness of the blocks. The canaries beyond ``dim`` come from transforms of their own: only those of one
    transform are orthogonal to one another.
    """

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        self.dim, self.count = check_count("dim", dim, least=2), check_count("count", count)
        self.seed = check_count("seed", seed, least=0)
        self._length = 1 << (self.dim.bit_length() - 1)
        self._rows = min(1 << (self.count - 1).bit_length(), self._length)
        edges = np.arange(self._rows + 1) * self.dim // self._rows
        self._starts, sizes = edges[:-1], np.diff(edges)
        self._sizes, self._scale = sizes, (1 / np.sqrt(self._rows * sizes)).astype(np.float32)
        self._kept: tuple[int, list[Signs]] | None = None

    @property
    def orthonormal(self) -> bool:
        """Whether one transform holds them all, so that all are orthogonal to one another."""
        return self.count <= self._rows

    def dots(self, vector: Vector) -> Floats:
        """⟨canaryᵢ, vector⟩ of all canaries, (count,)."""
        found = np.empty(self.count)
        for transform, some in self._transforms():
            first, second, third = self._signs(transform)
            mixed = np.multiply(vector, first, dtype=np.float32)
            mixed[: self._length] = hadamard(mixed[: self._length])
            mixed *= second
            mixed[-self._length :] = hadamard(mixed[-self._length :])
            mixed *= third
            folded = np.add.reduceat(mixed, self._starts) * self._scale
            found[some] = hadamard(folded)[: some.stop - some.start] * np.sqrt(self._rows)
        return found

    def total(self, weights: npt.ArrayLike) -> Vector:
        """Σ weightᵢ · canaryᵢ, (dim,)."""
        factors = np.asarray(weights, dtype=np.float64)
        total = np.zeros(self.dim, dtype=np.float32)
        for transform, some in self._transforms():
            if not factors[some].any():
                continue
            coefficients = np.zeros((1, self._rows), dtype=np.float32)
            coefficients[0, : some.stop - some.start] = factors[some]
            total += self._sums(transform, coefficients)[0]
        return total

    def canary(self, index: int) -> Vector:
        """One canary, (dim,): the same in every process."""
        weights = np.zeros(self.count)
        weights[index] = 1.0
        return self.total(weights)

    def each(self, indices: Sequence[int]) -> Iterator[Vector]:
        """These canaries one by one, made several at a time."""
        block = max(1, _BLOCK // self.dim)
        numbers = np.asarray(indices, dtype=np.int64)
        for transform, some in self._transforms():
            here = numbers[(numbers >= some.start) & (numbers < some.stop)] - some.start
            for start in range(0, len(here), block):
                rows = here[start : start + block]
                coefficients = np.zeros((len(rows), self._rows), dtype=np.float32)
                coefficients[np.arange(len(rows)), rows] = 1.0
                yield from self._sums(transform, coefficients)

    def _sums(self, transform: int, coefficients: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """For each row of ``coefficients``, the sum of so much of each canary of a transform, (rows, dim)."""
        first, second, third = self._signs(transform)
        spread = hadamard(coefficients) * (np.float32(np.sqrt(self._rows)) * self._scale)
        mixed = np.repeat(spread, self._sizes, axis=1)
        mixed *= third
        mixed[:, -self._length :] = hadamard(mixed[:, -self._length :])
        mixed *= second
        mixed[:, : self._length] = hadamard(mixed[:, : self._length])
        mixed *= first
        return mixed

    def _transforms(self) -> Iterator[tuple[int, slice]]:
        for transform, start in enumerate(range(0, self.count, self._rows)):
            yield transform, slice(start, min(start + self._rows, self.count))

    def _signs(self, transform: int) -> list[Signs]:
        if self._kept is None or self._kept[0] != transform:
            bits = np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=(transform,))))
            drawn = [np.unpackbits(np.frombuffer(bits.bytes(-(-self.dim // 8)), np.uint8)) for _ in range(3)]
            self._kept = transform, [some[: self.dim].view(np.int8) * np.int8(2) - np.int8(1) for some in drawn]
        return self._kept[1]


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
