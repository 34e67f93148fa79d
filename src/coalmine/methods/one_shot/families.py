"""Families of orthonormal canaries: Hadamard ones for large models, never stored, and stored ones for small models.

`coalmine.methods.one_shot.gaussian` has the paper's independent ones. Of the Hadamard family,
canary i is row i of S₀ · B · S₃ · T₂ · S₂ · T₁ · S₁. The S are random signs. T₁ is an orthogonal transform of the first
coordinates, more than 31/32 of them, and T₂ one of the last coordinates, which spreads what T₁ leaves out: at least
131,072 of them, or as many as T₁ where there are fewer. So the energy of any update is spread over many coordinates.
B adds up coordinates with the same residue modulo K and multiplies by the Hadamard matrix of K rows. Where T₂ is
shorter than T₁, B first rotates the residues in each of 32 parts by a random amount. Every factor is orthogonal or has
orthonormal rows, so the canaries are exactly orthonormal in any dimension. docs/one-shot.md says what is proved about
their scores.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count
from coalmine.parallel import single_thread
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.stats import CosineNull
from coalmine.stats.nulls import OrthogonalCosineNull
from coalmine.vectors import CPU, Device, empty, library, on, pieces

Signs = npt.NDArray[np.int8]
Rows = npt.NDArray[np.float32]

MOST_NUMBERS = 1 << 23
"""Numbers of all orthogonal canaries together, at most: 64 MB."""

# Transforms are products with matrices of 8 or 16 rows, but for the first, q, and the last. Small ones come closest to
# the d log d multiplications of a fast transform, and with these sizes the products take little longer than memory.
_FIRST_BITS, _FACTOR_BITS, _LAST_BITS = 6, 4, 5
_ROWS = 64  # of a matrix that is multiplied by the last factor at a time
_LEAST_LAST = 1 << 17  # coordinates that T₂ spreads what T₁ leaves out over, if there are as many
_CHUNKS = 32  # parts of the coordinates, each with its own random rotation of the residues
_FEW_ROWS = 32  # are summed in float32 at a time


class UpdateCanaries(ABC):
    """Random unit vectors. The same seed gives the same ones in every process and on every device.

    Dot products are computed where the vector is, sums on the device that is asked for.

    Args:
        dim: Number of coordinates: the model's parameters.
        count: Number of canaries, inserted and held out.
        seed: Seed of the canaries.

    Attributes:
        cosine_null: Distribution of a held-out canary's cosine with what it is compared with.
    """

    orthonormal: ClassVar[bool]
    """Whether all canaries are orthogonal to each other."""

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        self.dim, self.count = check_count("dim", dim, least=2), check_count("count", count)
        self.seed = check_count("seed", seed, least=0)
        self.cosine_null = CosineNull(self.dim)
        if self.orthonormal:
            # Uniform on the sphere of what the others leave free, which has to be two dimensions at least.
            self.cosine_null = OrthogonalCosineNull(max(2, self.dim - self.count + 1))

    @abstractmethod
    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""

    @abstractmethod
    def total(self, weights: npt.ArrayLike, device: Device = CPU) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,)."""

    def canary(self, index: int) -> Vector:
        """Return one canary, (dim,)."""
        return next(self.each([index]))

    def each(self, indices: Sequence[int], device: Device = CPU) -> Iterator[Vector]:
        """Yield these canaries one by one."""
        for index in indices:
            weights = np.zeros(self.count)
            weights[index] = 1.0
            yield self.total(weights, device)


class HadamardCanaries(UpdateCanaries):
    """Orthonormal canaries, never stored.

    For a fixed update the null scores, given their magnitudes, have independent fair signs. Each is a sum of
    independent signs, whose variance is that of a uniform direction up to how evenly the residues divide the
    coordinates: exactly if K, the power of two from ``count`` on, divides ``dim``.

    The same seed gives the same canaries on every device: random bytes come from one generator on the CPU, and are
    copied to a device once.

    Args:
        dim: Number of coordinates.
        count: Number of canaries, at most the largest power of two up to ``dim``.
        seed: Seed of the canaries.
    """

    orthonormal = True

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        super().__init__(dim=dim, count=count, seed=seed)
        most = 1 << (self.dim.bit_length() - 1)
        if self.count > most:
            raise InputError(
                f"count must be at most {most} for hadamard canaries in {self.dim} dimensions, got {count}"
            )
        self._rows = 1 << (self.count - 1).bit_length()
        # T₁ leaves out less than a 32nd. T₂ covers four times as much, and each of the K residues.
        first, last = self.dim, min(self.dim, max(self.dim // 8, self._rows, _LEAST_LAST))
        # The largest q · 2ʲ with q < 64, which is a length that `transform` accepts and more than 31/32 of the rest.
        lengths = []
        for most in (first, last):
            power = max(0, most.bit_length() - _FIRST_BITS)
            lengths.append(most >> power << power)
        self._first, self._last = slice(lengths[0]), slice(-lengths[1], None)
        # Coordinates k, k + K, k + 2K, … fold into one. Residues below dim mod K have one coordinate more.
        whole, rest = divmod(self.dim, self._rows)
        self._whole = whole * self._rows
        self._scale = (1 / np.sqrt(whole + (np.arange(self._rows) < rest))).astype(np.float32)
        # After T₁ alone, the energy of a few adjacent numbers may lie in a few residues, the same ones everywhere, and
        # scores would vary together. T₂ on all coordinates spreads it, so nothing needs to be rotated then.
        chunks = 1 if lengths[0] == lengths[1] else _CHUNKS
        self._chunk = -(-whole // chunks) * self._rows
        # By how much B rotates the residues of each chunk.
        self._turns = [0]
        if self._chunk < self._whole:
            self._turns = (self._draw(2, 4 * _CHUNKS).view(np.uint32) % self._rows).tolist()
        self._flips = (self._draw(1, self.count) & 1) * np.int8(2) - np.int8(1)  # the random sign S₀ of each canary
        # One random byte per coordinate, of which bits 1, 2 and 3 are its signs S₁, S₂ and S₃, by device.
        self._bytes: dict[str, Signs] = {}

    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""
        device: Device = vector.device
        mixed = empty(self.dim, device)
        for part in pieces(self.dim, device):
            mixed[part] = vector[part]
            self._flip(0, mixed, part)
        transform(mixed[self._first])
        self._flip(1, mixed, slice(0, self.dim))
        transform(mixed[self._last])
        # In float64: thousands of float32 numbers, added up in order, would lose digits that scores without noise need.
        # A few rows at a time lose nothing in float32, and leave little to add in float64, which is slower.
        folded = np.zeros(self._rows)
        for part, turn in self._folds(device):
            self._flip(2, mixed, part)
            rows = mixed[part].reshape(-1, self._rows)
            whole = len(rows) - len(rows) % _FEW_ROWS
            few = on(CPU, rows[:whole].reshape(-1, _FEW_ROWS, self._rows).sum(1))
            sums = few.sum(axis=0, dtype=np.float64) + on(CPU, rows[whole:].sum(0))
            folded += np.roll(sums, turn)
        self._flip(2, mixed, slice(self._whole, self.dim))
        folded[: self.dim - self._whole] += on(CPU, mixed[self._whole :])
        spread = transform((folded * self._scale).astype(np.float32))
        return (spread[: self.count] * self._flips).astype(np.float64)

    def total(self, weights: npt.ArrayLike, device: Device = CPU) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,): `dots`, transposed."""
        coefficients = np.zeros(self._rows, dtype=np.float32)
        coefficients[: self.count] = weights
        coefficients[: self.count] *= self._flips
        spread = transform(coefficients) * self._scale
        mixed = empty(self.dim, device)
        for part, turn in self._folds(device):
            mixed[part].reshape(-1, self._rows)[:] = on(device, np.roll(spread, -turn))
            self._flip(2, mixed, part)
        mixed[self._whole :] = on(device, spread[: self.dim - self._whole])
        self._flip(2, mixed, slice(self._whole, self.dim))
        transform(mixed[self._last])
        self._flip(1, mixed, slice(0, self.dim))
        transform(mixed[self._first])
        self._flip(0, mixed, slice(0, self.dim))
        return mixed

    def _folds(self, device: Device) -> Iterator[tuple[slice, int]]:
        """Yield pieces of whole rows of K coordinates, and by how much B rotates their residues."""
        for start, turn in zip(range(0, self._whole, self._chunk), self._turns, strict=False):
            length = min(self._chunk, self._whole - start)
            for part in pieces(length, device, multiple=self._rows):
                yield slice(start + part.start, start + part.stop), turn

    def _flip(self, layer: int, vector: Vector, part: slice) -> None:
        """Multiply a part of a vector by its random signs S₁, S₂ or S₃, for ``layer`` 0, 1 or 2, in place."""
        device: Device = vector.device
        if str(device) not in self._bytes:
            random = self._draw(0, self.dim)
            random += random
            self._bytes[str(device)] = on(device, random)
        for piece in pieces(part.stop - part.start, device):
            place = slice(part.start + piece.start, part.start + piece.stop)
            signs = self._bytes[str(device)][place] >> layer
            signs &= 2
            signs -= 1
            numbers = vector[place]
            numbers *= signs

    def _draw(self, stream: int, count: int) -> Signs:
        """Return random bytes."""
        bits = np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=(stream,))))
        # As ``bits.bytes``, which would copy them three times.
        words = bits.integers(0, 1 << 32, -(-count // 4), dtype=np.uint32)
        return words.astype("<u4", copy=False).view(np.int8)[:count]


def transform(vector: Vector) -> Vector:
    """Apply an orthonormal transform that is its own inverse and spreads every coordinate evenly over all, in place.

    The Hadamard transform if the length is a power of two. Otherwise the Kronecker product of a Hartley matrix and a
    Hadamard matrix. No entry of either exceeds √(2 / length).

    Args:
        vector: A contiguous vector of a length q · 2ʲ with 32 ≤ q < 64, or below 64.

    Returns:
        The same vector.
    """
    length, device = len(vector), vector.device
    matmul = library(device).matmul
    # The factors of q · 2ʲ, 32 ≤ q < 64: q, and powers of two.
    power = max(0, length.bit_length() - _FIRST_BITS)
    last = min(power, _LAST_BITS)
    parts = -(-(power - last) // _FACTOR_BITS)
    sizes = [length >> power]
    for part in range(parts):
        sizes.append(1 << (power - last + part) // parts)
    sizes.append(1 << last)
    piece = next(pieces(length, device)).stop
    scratch, after = empty(piece, device), length
    # Factors that mix distant numbers: as many columns at a time as fit in the cache.
    while after > piece:
        size = sizes.pop(0)
        after //= size
        factor, width = _matrix(size, str(device)), piece // size
        for matrix in vector.reshape(-1, size, after):
            for start in range(0, after, width):
                columns = matrix[:, start : start + width]
                product = scratch[: size * columns.shape[1]].reshape(size, -1)
                matmul(factor, columns, out=product)
                columns[:] = product
    # The other factors mix numbers that are close together: piece by piece, all of them while a piece is in the cache.
    for near in pieces(length, device, multiple=after):
        numbers = source = vector[near]
        target, left = scratch[: len(numbers)], after
        for size in sizes:
            factor = _matrix(size, str(device))
            left //= size
            if left > 1:
                matmul(factor, source.reshape(-1, size, left), out=target.reshape(-1, size, left))
            else:
                # On the CPU, BLAS would copy one long matrix: products of many small ones are twice as fast.
                rows = math.gcd(len(numbers) // size, _ROWS)
                shape: tuple[int, ...] = (-1, rows, size) if device == CPU else (-1, size)
                matmul(source.reshape(shape), factor, out=target.reshape(shape))
            source, target = target, source
        if source is not numbers:
            numbers[:] = source
    return vector


@lru_cache(maxsize=128)
def _matrix(size: int, device: str = CPU) -> Rows:
    """Return a symmetric orthonormal matrix of flat entries: Sylvester's Hadamard matrix, or else Hartley's."""
    if device != CPU:
        matrix: Rows = on(device, _matrix(size))
        return matrix
    if size & (size - 1):
        angles = 2 * np.pi / size * (np.outer(np.arange(size), np.arange(size)) % size)
        return np.asarray((np.cos(angles) + np.sin(angles)) / np.sqrt(size), dtype=np.float32)
    signs = np.ones((1, 1))
    while len(signs) < size:
        signs = np.block([[signs, signs], [signs, -signs]])
    return np.asarray(signs / np.sqrt(size), dtype=np.float32)


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
        return np.asarray(np.einsum("ij,j->i", self._rows, on(CPU, vector).astype(np.float64)))

    def total(self, weights: npt.ArrayLike, device: Device = CPU) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,)."""
        total = np.einsum("i,ij->j", np.asarray(weights, dtype=np.float64), self._rows)
        vector: Vector = on(device, total.astype(np.float32))
        return vector
