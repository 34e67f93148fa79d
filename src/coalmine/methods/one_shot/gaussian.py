"""Gaussian canaries: independent and uniform on the unit sphere, as in the one-shot paper (Section 3).

Their cost is random numbers, ``dim`` per canary and pass, so the numbers come from a table. Sixteen random bits choose
one of 65,536 points of the plane that represent the normal distribution without its tail; one point in 1,024 is drawn
from the exact tail instead; and all points of a canary are rotated by one uniform angle. A single coordinate, before
normalization, is then normal to 6e-6 in probability and to 0.5% of each tail probability, and exactly beyond 3.8. Only
raw words of a bit generator are used, since NumPy keeps these streams the same across versions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats, Ints
from coalmine.methods.one_shot.families import UpdateCanaries
from coalmine.protocol import Vector
from coalmine.vectors import CPU, Device, empty, library, on

Points = npt.NDArray[np.complex64]
Turns = npt.NDArray[np.complex128]

# Points generated at a time: together with their random words they fit in a core's cache.
_TILE = 1 << 15
# Streams advanced together, so that a tile of the updates serves all of them while it is cached.
_BLOCK = 16
_CELLS = 1 << 16
# Share of the points drawn from the exact tail, beyond the radius √(−2 ln share).
_FAR = 2.0**-10


class GaussianCanaries(UpdateCanaries):
    """Independent canaries, uniform on the unit sphere.

    The null score of any update follows ``CosineNull(dim)``, whatever the update looks like. Canary i is a function of
    ``seed``, ``dim`` and i alone and is never stored; only norms are.

    Args:
        dim: Number of coordinates.
        count: Number of canaries.
        seed: Seed of the canaries.
    """

    orthonormal = False

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        super().__init__(dim=dim, count=count, seed=seed)
        self._pairs = -(-self.dim // 2)
        # Short canaries share a stream: seeding one takes as long as generating thousands of points.
        self._together = max(1, _TILE // self._pairs)
        self._norms = np.full((-(-self.count // self._together), self._together), np.nan)

    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""
        even = vector
        if self.dim % 2:  # points of the plane have two numbers each
            even = empty(2 * self._pairs, vector.device)
            even[:-1], even[-1] = vector, 0.0
        points = even.view(library(vector.device).complex64)[None]
        dots = np.empty(self._norms.shape)
        for numbers, turns, tiles in self._blocks(np.arange(len(self._norms)), vector.device):
            sums, squares = np.zeros((turns.size, 1), dtype=np.complex128), np.zeros(turns.size)
            measured = not np.isnan(self._norms[numbers]).any()
            for columns, tile in tiles:
                sums += on(CPU, tile @ points[:, columns].T)
                if not measured:
                    squares += _squares(tile)
            if not measured:
                self._norms[numbers] = np.sqrt(squares).reshape(turns.shape)
            dots[numbers] = (sums.reshape(turns.shape) * (turns / self._norms[numbers])).real
        return dots.ravel()[: self.count]

    def total(self, weights: npt.ArrayLike, device: Device = CPU) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,).

        Canaries of weight 0 are not generated, except for those that share a stream with others. Canaries whose norm is
        not known yet are generated twice.
        """
        shares = np.zeros(self._norms.shape)
        shares.flat[: self.count] = np.asarray(weights, dtype=np.float64)
        needed = np.flatnonzero(shares.any(axis=1))
        unmeasured = needed[np.isnan(self._norms[needed]).any(axis=1)]
        for numbers, turns, tiles in self._blocks(unmeasured, device):
            self._norms[numbers] = np.sqrt(sum(_squares(tile) for _, tile in tiles)).reshape(turns.shape)
        total = on(device, np.zeros(self._pairs, dtype=np.complex64))
        for numbers, turns, tiles in self._blocks(needed, device):
            scales = on(device, (shares[numbers] * turns / self._norms[numbers]).astype(np.complex64).ravel())
            for columns, tile in tiles:
                total[columns] += scales @ tile
        # For points of the plane ⟨a, b⟩ = Re(a · conj b). `dots` multiplies without conjugating, so the canaries are
        # the conjugates of their points.
        vector: Vector = total.view(library(device).float32)
        vector[1::2] *= -1
        return vector[: self.dim]

    def _blocks(self, needed: Ints, device: Device) -> Iterator[tuple[Ints, Turns, Iterator[tuple[slice, Points]]]]:
        """Yield blocks of streams: their numbers, the rotations (streams, canaries per stream), and their tiles."""
        shape = (min(_BLOCK, needed.size), self._together * min(self._pairs, _TILE))
        buffer = on(device, np.empty(shape, dtype=np.complex64))
        for start in range(0, needed.size, _BLOCK):
            numbers = needed[start : start + _BLOCK]
            streams = [_Stream(self.seed, int(number), self._together, self._pairs) for number in numbers]
            turns = np.stack([stream.turns for stream in streams])
            yield numbers, turns, self._tiles(streams, turns.ravel(), buffer[: len(streams)])

    def _tiles(self, streams: list[_Stream], turns: Turns, buffer: Points) -> Iterator[tuple[slice, Points]]:
        """Yield columns and the points of all canaries there, before rotation, in the reused ``buffer``."""
        device: Device = buffer.device
        around, back = turns, turns.conj()
        if device != CPU:
            around, back = on(device, around.astype(np.complex64)), on(device, back.astype(np.complex64))
        for start in range(0, self._pairs, _TILE):
            columns = slice(start, min(start + _TILE, self._pairs))
            width = columns.stop - start
            filled = buffer[:, : self._together * width]
            for stream, row in zip(streams, filled, strict=True):
                stream.fill(row)
            points = filled.reshape(-1, width)
            if columns.stop == self._pairs and self.dim % 2:
                # An odd dimension leaves one coordinate too many: make it 0 after the rotation.
                points[:, -1] = (around * points[:, -1]).real * back
            yield columns, points


class _Stream:
    """Generates the points of ``canaries`` canaries of ``pairs`` points each, and the rotations of the canaries."""

    def __init__(self, seed: int, number: int, canaries: int, pairs: int) -> None:
        self._words = np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(number,)))
        self.turns = np.exp(2j * np.pi * self._uniform(canaries))
        # Gaps between tail points are geometric, so each place has one with probability _FAR, independently. Ten
        # standard deviations more than expected do not run out.
        due = canaries * pairs * _FAR
        far = math.ceil(due + 10 * math.sqrt(due) + 20)
        self._places = np.cumsum(np.log(self._uniform(far)) / math.log1p(-_FAR)).astype(np.int64)
        radius = np.sqrt(-2 * np.log(_FAR * self._uniform(far)))
        self._points = (radius * np.exp(2j * np.pi * self._uniform(far))).astype(np.complex64)
        self._made = 0

    def fill(self, points: Points) -> None:
        """Fill a row with the next points of the stream."""
        count, device = len(points), points.device
        cells = self._words.random_raw(-(-count // 4)).view(np.uint16)[:count]
        if device == CPU:
            np.take(_near(), cells, out=points, mode="wrap")
        else:  # two bytes per point go to the device, as signed integers since it may not index by unsigned ones
            points[:] = _near(str(device))[on(device, cells.view(np.int16)).int() & (_CELLS - 1)]
        first, last = np.searchsorted(self._places, (self._made, self._made + count))
        points[on(device, self._places[first:last] - self._made)] = on(device, self._points[first:last])
        self._made += count

    def _uniform(self, count: int) -> Floats:
        """Return uniform numbers in (0, 1) with 53 random bits each."""
        words = self._words.random_raw(count) >> np.uint64(11)
        return (words.astype(np.float64) + 0.5) * 2.0**-53


def _squares(points: Points) -> Floats:
    """Return the squared norm of each row."""
    arrays = library(points.device)
    numbers = points.view(arrays.float32)
    squares: Floats = on(CPU, arrays.linalg.vecdot(numbers, numbers)).astype(np.float64)
    return squares


@lru_cache(maxsize=4)
def _near(device: str = CPU) -> Points:
    """Return 65,536 points that represent the normal distribution of the plane without its tail.

    Radii are quantiles and angles follow the golden ratio. Each point comes with its rotations by 90°, 180° and 270°,
    which makes the mean 0 and the variance the same in every direction.
    """
    quarter = np.arange(_CELLS // 4)
    radii = np.sqrt(-2 * np.log1p((_FAR - 1) * (quarter + 0.5) / len(quarter)))
    angles = np.pi / 2 * (quarter * (math.sqrt(5) - 1) / 2 % 1)
    points = (radii * np.exp(1j * angles)).astype(np.complex64)
    all_points: Points = on(device, np.concatenate([points, 1j * points, -points, -1j * points]).astype(np.complex64))
    return all_points
