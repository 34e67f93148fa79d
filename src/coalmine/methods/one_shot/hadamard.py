"""Hadamard canaries: random orthonormal vectors whose dot products with an update all come from fast transforms.

Canary i is row i of S₀ · B · S₃ · T₂ · S₂ · T₁ · S₁. The S are random signs. T₁ is an orthogonal transform of the first
coordinates, more than 31/32 of them, and T₂ one of the last coordinates, which spreads what T₁ leaves out: at least
131,072 of them, or as many as T₁ where there are fewer. So the energy of any update is spread over many coordinates.
B adds up coordinates with the same residue modulo K and multiplies by the Hadamard matrix of K rows. Where T₂ is
shorter than T₁, B first rotates the residues in each of 32 parts by a random amount. Every factor is orthogonal or has
orthonormal rows, so the canaries are exactly orthonormal in any dimension. docs/one-shot.md says what is proved about
their scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count
from coalmine.protocol import Vector
from coalmine.vectors import (
    Device,
    column_sums,
    device_of,
    empty,
    matrix_product,
    on,
    pieces,
    to_numpy,
)

Signs = npt.NDArray[np.int8]
Rows = npt.NDArray[np.float32]

# Transforms are products with matrices of 8 or 16 rows, but for the first, q, and the last. Small ones come closest to
# the d log d multiplications of a fast transform, and with these sizes the products take little longer than memory.
_FIRST_BITS, _FACTOR_BITS, _LAST_BITS = 6, 4, 5
_ROWS = 64  # of a matrix that is multiplied by the last factor at a time
_LEAST_LAST = 1 << 17  # coordinates that T₂ spreads what T₁ leaves out over, if there are as many
_CHUNKS = 32  # parts of the coordinates, each with its own random rotation of the residues


class HadamardCanaries:
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
        self.dim, self.count = check_count("dim", dim, least=2), check_count("count", count)
        self.seed = check_count("seed", seed, least=0)
        most = 1 << (self.dim.bit_length() - 1)
        if self.count > most:
            raise InputError(
                f"count must be at most {most} for hadamard canaries in {self.dim} dimensions, got {count}"
            )
        self._rows = 1 << (self.count - 1).bit_length()
        # T₁ leaves out less than a 32nd. T₂ covers four times as much, and each of the K residues.
        first, last = self.dim, min(self.dim, max(self.dim // 8, self._rows, _LEAST_LAST))
        self._first, self._last = slice(transform_length(first)), slice(-transform_length(last), None)
        # Coordinates k, k + K, k + 2K, … fold into one. Residues below dim mod K have one coordinate more.
        whole, rest = divmod(self.dim, self._rows)
        self._whole = whole * self._rows
        self._scale = (1 / np.sqrt(whole + (np.arange(self._rows) < rest))).astype(np.float32)
        # After T₁ alone, the energy of a few adjacent numbers may lie in a few residues, the same ones everywhere, and
        # scores would vary together. T₂ on all coordinates spreads it, so nothing needs to be rotated then.
        chunks = 1 if transform_length(last) == transform_length(first) else _CHUNKS
        self._chunk = -(-whole // chunks) * self._rows
        self._on_devices: dict[str, Signs] = {}

    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""
        device = device_of(vector)
        mixed = empty(self.dim, device)
        for part in pieces(self.dim, device):
            mixed[part] = vector[part] * self._signs(0, part, device)
        transform(mixed[self._first])
        self._flip_all(1, mixed)
        transform(mixed[self._last])
        # In float64: thousands of float32 numbers, added up in order, would lose digits that scores without noise need.
        folded = np.zeros(self._rows)
        for part, turn in self._folds(device):
            self._flip(2, mixed, part)
            folded += np.roll(column_sums(mixed[part].reshape(-1, self._rows)), turn)
        self._flip(2, mixed, slice(self._whole, self.dim))
        folded[: self.dim - self._whole] += to_numpy(mixed[self._whole :])
        rows = transform((folded * self._scale).astype(np.float32))
        return (rows[: self.count] * self._flips).astype(np.float64)

    def total(self, weights: npt.ArrayLike, device: Device = None) -> Vector:
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
        self._flip_all(1, mixed)
        transform(mixed[self._first])
        self._flip_all(0, mixed)
        return mixed

    def canary(self, index: int) -> Vector:
        """Return one canary, (dim,)."""
        return next(self.each([range(self.count)[index]]))

    def each(self, indices: Sequence[int], device: Device = None) -> Iterator[Vector]:
        """Yield these canaries one by one."""
        for index in indices:
            weights = np.zeros(self.count)
            weights[index] = 1.0
            yield self.total(weights, device)

    def _folds(self, device: Device) -> Iterator[tuple[slice, int]]:
        """Yield pieces of whole rows of K coordinates, and by how much B rotates their residues."""
        for start, turn in zip(range(0, self._whole, self._chunk), self._turns, strict=False):
            length = min(self._chunk, self._whole - start)
            for part in pieces(length, device, multiple=self._rows):
                yield slice(start + part.start, start + part.stop), turn

    def _flip_all(self, layer: int, vector: Vector) -> None:
        """Multiply a vector by random signs, in place."""
        for part in pieces(self.dim, device_of(vector)):
            self._flip(layer, vector, part)

    def _flip(self, layer: int, vector: Vector, part: slice) -> None:
        """Multiply a part of a vector by its random signs, in place."""
        numbers = vector[part]
        numbers *= self._signs(layer, part, device_of(vector))

    def _signs(self, layer: int, part: slice, device: Device) -> Signs:
        """Return the random signs S₁, S₂ or S₃ of a part of all coordinates, for ``layer`` 0, 1 or 2."""
        signs = self._bytes_on(device)[part] >> layer
        signs &= 2
        signs -= 1
        return signs

    @cached_property
    def _turns(self) -> list[int]:
        """By how much the residues of each chunk are rotated: 0 if there is only one chunk."""
        random = self._draw(2, 4 * _CHUNKS).view(np.uint32) % self._rows
        return [0] if self._chunk == self._whole else random.tolist()

    @cached_property
    def _flips(self) -> Signs:
        """The random sign S₀ of each canary, (count,)."""
        return (self._draw(1, self.count) & 1) * np.int8(2) - np.int8(1)

    @cached_property
    def _bytes(self) -> Signs:
        """One random byte per coordinate, (dim,), of which bits 1, 2 and 3 are the signs."""
        random = self._draw(0, self.dim)
        random += random
        return random

    def _bytes_on(self, device: Device) -> Signs:
        """Return the random bytes on a device."""
        if device is None:
            return self._bytes
        if str(device) not in self._on_devices:
            self._on_devices[str(device)] = on(device, self._bytes)
        return self._on_devices[str(device)]

    def _draw(self, stream: int, count: int) -> Signs:
        """Return random bytes."""
        bits = np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=(stream,))))
        # As ``bits.bytes``, which would copy them three times.
        words = bits.integers(0, 1 << 32, -(-count // 4), dtype=np.uint32)
        return words.astype("<u4", copy=False).view(np.int8)[:count]


def transform_length(dim: int) -> int:
    """Return the largest q · 2ʲ up to ``dim`` with q < 64, more than 31/32 of it: a length that `transform` accepts."""
    power = _power(dim)
    return dim >> power << power


def transform(vector: Vector) -> Vector:
    """Apply an orthonormal transform that is its own inverse and spreads every coordinate evenly over all, in place.

    The Hadamard transform if the length is a power of two. Otherwise the Kronecker product of a Hartley matrix and a
    Hadamard matrix. No entry of either exceeds √(2 / length).

    Args:
        vector: A contiguous vector of a length q · 2ʲ with 32 ≤ q < 64, or below 64.

    Returns:
        The same vector.
    """
    length, device = len(vector), device_of(vector)
    piece = next(pieces(length, device)).stop
    sizes, scratch, after = _sizes(length), empty(piece, device), length
    while after > piece:
        after //= sizes[0]
        _mix_rows(vector.reshape(-1, sizes.pop(0), after), scratch)
    # The other factors mix numbers that are close together: piece by piece, all of them while a piece is in the cache.
    for part in pieces(length, device, multiple=after):
        _mix(vector[part], sizes, after, scratch)
    return vector


def _mix_rows(matrices: Vector, scratch: Vector) -> None:
    """Multiply matrices by one factor, in place, as many of their columns at a time as fit in the cache."""
    size, after = matrices.shape[1:]
    factor, width = _factor(size, device_of(matrices)), len(scratch) // size
    for matrix in matrices:
        for columns in (matrix[:, start : start + width] for start in range(0, after, width)):
            product = scratch[: size * columns.shape[1]].reshape(size, -1)
            matrix_product(factor, columns, out=product)
            columns[:] = product


def _mix(numbers: Vector, sizes: Sequence[int], length: int, scratch: Vector) -> None:
    """Multiply vectors of a length, one after the other, by the Kronecker product of factors, in place."""
    source, target, device = numbers, scratch[: len(numbers)], device_of(numbers)
    for size in sizes:
        length //= size
        factor = _factor(size, device)
        if length > 1:
            shape: tuple[int, ...] = (-1, size, length)
            matrix_product(factor, source.reshape(shape), out=target.reshape(shape))
        else:
            # On the CPU, BLAS would copy one long matrix: products of many small ones are twice as fast.
            shape = (-1, math.gcd(len(numbers) // size, _ROWS), size) if device is None else (-1, size)
            matrix_product(source.reshape(shape), factor, out=target.reshape(shape))
        source, target = target, source
    if source is not numbers:
        numbers[:] = source


def _sizes(length: int) -> list[int]:
    """Return the sizes of the factors of the transform of q · 2ʲ: q, and powers of two."""
    power = _power(length)
    last = min(power, _LAST_BITS)
    parts = -(-(power - last) // _FACTOR_BITS)
    return [length >> power, *(1 << (power - last + part) // parts for part in range(parts)), 1 << last]


def _power(length: int) -> int:
    """Return the exponent j of the power of two in length ≈ q · 2ʲ, 32 ≤ q < 64."""
    return max(0, length.bit_length() - _FIRST_BITS)


def _factor(size: int, device: Device) -> Rows:
    """Return a factor on a device."""
    return _matrix(size, None if device is None else str(device))


@lru_cache(maxsize=128)
def _matrix(size: int, device: str | None = None) -> Rows:
    """Return a symmetric orthonormal matrix of flat entries: Sylvester's Hadamard matrix, or else Hartley's."""
    if device is not None:
        matrix: Rows = on(device, _matrix(size))
        return matrix
    if size & (size - 1):
        angles = 2 * np.pi / size * (np.outer(np.arange(size), np.arange(size)) % size)
        return np.asarray((np.cos(angles) + np.sin(angles)) / np.sqrt(size), dtype=np.float32)
    signs = np.ones((1, 1))
    while len(signs) < size:
        signs = np.block([[signs, signs], [signs, -signs]])
    return np.asarray(signs / np.sqrt(size), dtype=np.float32)
