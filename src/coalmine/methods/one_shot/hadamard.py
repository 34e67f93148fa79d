"""Hadamard canaries: random orthonormal vectors whose dot products with an update all come from fast transforms.

Canary i is row i of S₀ · B · S₃ · T₂ · S₂ · T₁ · S₁. The S are random signs. T₁ and T₂ are orthogonal transforms of the
first and of the last n coordinates, where n is more than 31/32 of ``dim``, so that together they spread the energy of
any update over all coordinates. B folds coordinates with the same residue modulo K and multiplies by the Hadamard
matrix of K rows. Every factor is orthogonal or has orthonormal rows, so the canaries are exactly orthonormal in any
dimension. docs/one-shot.md says what is proved about their scores.
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
Rows = npt.NDArray[np.float32]

# Transforms are products with matrices of about this size: large enough for fast matrix products, small enough to stay
# near d log d multiplications.
_FACTOR = 32
# Numbers generated at a time when canaries are yielded one by one.
_BLOCK = 1 << 20


class HadamardCanaries:
    """Orthonormal canaries, never stored.

    For a fixed update the null scores, given their magnitudes, have independent fair signs. Each is a sum of
    independent signs, whose variance is that of a uniform direction up to how evenly the residues divide the
    coordinates: exactly if K, the power of two from ``count`` on, divides ``dim``.

    Args:
        dim: Number of coordinates.
        count: Number of canaries, at most the largest power of two up to ``dim``.
        seed: Seed of the canaries.
    """

    orthonormal = True

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        self.dim, self.count = check_count("dim", dim, least=2), check_count("count", count)
        self.seed = check_count("seed", seed, least=0)
        most = 1 << (self.dim.bit_length() - 1)
        if self.count > most:
            raise InputError(
                f"count must be at most {most} for hadamard canaries in {self.dim} dimensions, got {count}"
            )
        self._length = transform_length(self.dim)
        self._rows = 1 << (self.count - 1).bit_length()
        # Coordinates k, k + K, k + 2K, … fold into one. Residues below dim mod K have one coordinate more.
        whole, rest = divmod(self.dim, self._rows)
        self._whole = whole * self._rows
        self._scale = (1 / np.sqrt(whole + (np.arange(self._rows) < rest))).astype(np.float32)

    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""
        mixed = np.multiply(vector, self._signs(0), dtype=np.float32)
        mixed[: self._length] = transform(mixed[: self._length])
        mixed *= self._signs(1)
        mixed[-self._length :] = transform(mixed[-self._length :])
        mixed *= self._signs(2)
        # In float64: thousands of float32 numbers, added up in order, would lose digits that scores without noise need.
        folded = mixed[: self._whole].reshape(-1, self._rows).sum(axis=0, dtype=np.float64)
        folded[: self.dim - self._whole] += mixed[self._whole :]
        rows = transform((folded * self._scale).astype(np.float32))
        return (rows[: self.count] * self._flips).astype(np.float64)

    def total(self, weights: npt.ArrayLike) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,)."""
        coefficients = np.zeros((1, self._rows), dtype=np.float32)
        coefficients[0, : self.count] = weights
        coefficients[:, : self.count] *= self._flips
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
            coefficients[np.arange(len(rows)), rows] = self._flips[rows]
            yield from self._sums(coefficients)

    def _sums(self, coefficients: Rows) -> Rows:
        """Return Σ coefficientᵢ · canaryᵢ for each row of coefficients, (rows, dim): `dots`, transposed."""
        spread = transform(coefficients) * self._scale
        mixed = np.empty((len(spread), self.dim), dtype=np.float32)
        mixed[:, : self._whole].reshape(len(spread), -1, self._rows)[:] = spread[:, None]
        mixed[:, self._whole :] = spread[:, : self.dim - self._whole]
        mixed *= self._signs(2)
        mixed[:, -self._length :] = transform(mixed[:, -self._length :])
        mixed *= self._signs(1)
        mixed[:, : self._length] = transform(mixed[:, : self._length])
        mixed *= self._signs(0)
        return mixed

    def _signs(self, layer: int) -> Signs:
        """Return the random signs S₁, S₂ or S₃ for ``layer`` 0, 1 or 2, (dim,)."""
        return _sign(self._bytes, layer)

    @cached_property
    def _flips(self) -> Signs:
        """The random sign S₀ of each canary, (count,)."""
        return _sign(self._draw(1, self.count), 0)

    @cached_property
    def _bytes(self) -> Signs:
        """One random byte per coordinate, (dim,), with a bit for each layer of signs."""
        return self._draw(0, self.dim)

    def _draw(self, stream: int, count: int) -> Signs:
        """Return random bytes."""
        bits = np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=(stream,))))
        return np.frombuffer(bits.bytes(count), np.int8)


def _sign(numbers: Signs, bit: int) -> Signs:
    """Return 1 or -1 by one bit of each number."""
    return ((numbers >> bit) & 1) * np.int8(2) - np.int8(1)


def transform_length(dim: int) -> int:
    """Return the largest q · 2ʲ up to ``dim`` with q < 64, more than 31/32 of it: a length that `transform` accepts."""
    power = _power(dim)
    return dim >> power << power


def transform(vectors: Rows) -> Rows:
    """Return an orthonormal transform that is its own inverse and spreads every coordinate evenly over all.

    The Hadamard transform if the length is a power of two. Otherwise the Kronecker product of a Hartley matrix and a
    Hadamard matrix. No entry of either exceeds √(2 / length).

    Args:
        vectors: A vector or rows, of a length q · 2ʲ with 32 ≤ q < 64, or below 64.
    """
    shape, after = vectors.shape, vectors.shape[-1]
    before = vectors.size // after
    size = after >> _power(after)
    # Multiply by one small factor of the Kronecker product after the other.
    while after > 1:
        after //= size
        blocks = vectors.reshape(before, size, after)
        matrix = _matrix(size)
        vectors = matrix @ blocks if after > 1 else blocks.reshape(before, size) @ matrix
        before *= size
        size = min(_FACTOR, after)
    return vectors.reshape(shape)


def _power(length: int) -> int:
    """Return the exponent j of the power of two in length ≈ q · 2ʲ, 32 ≤ q < 64."""
    return max(0, length.bit_length() - _FACTOR.bit_length())


@lru_cache(maxsize=128)
def _matrix(size: int) -> Rows:
    """Return a symmetric orthonormal matrix of flat entries: Sylvester's Hadamard matrix, or else Hartley's."""
    if size & (size - 1):
        angles = 2 * np.pi / size * (np.outer(np.arange(size), np.arange(size)) % size)
        return np.asarray((np.cos(angles) + np.sin(angles)) / np.sqrt(size), dtype=np.float32)
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(size), dtype=np.float32)
