"""Independent canaries, uniform on the unit sphere: normalized Gaussian vectors, the family of the one-shot paper.

What they cost is random numbers, ``dim`` for every canary in every pass. So numbers are made in pairs, points of the
plane: sixteen bits choose one of 65,536 points that are spread as the normal law is, one point in 1,024 is drawn from
the exact law of the far ones instead, and all points of a canary are turned by an angle of its own, uniform on the
circle. So even the law of a single coordinate, before canaries are normalized, is normal: to 6e-6 in probability, and
tails to 0.5% of what is left of them, exact beyond 3.8. Only raw words of a bit generator are used: NumPy keeps their
streams the same from version to version.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError, check_count
from coalmine.protocol import Vector

Points = npt.NDArray[np.complex64]
Turns = npt.NDArray[np.complex128]

# Points made at a time: with the words they come from, they stay in a core's cache.
_TILE = 1 << 15
# Streams that go on together, so that a tile of the updates serves them all while it is in the cache.
_BLOCK = 16
_CELLS = 1 << 16
# The share of points that are drawn from the exact law beyond the radius √(−2 ln share).
_FAR = 2.0**-10


class GaussianCanaries:
    """``count`` independent canaries in ``dim`` dimensions from ``seed``, none of them ever stored.

    Each is uniform on the unit sphere, so the null score of any update follows ``CosineNull(dim)``, whatever the update
    looks like. Canary i is a function of ``seed``, ``dim`` and i alone. Norms are kept once they are known.
    """

    orthonormal = False

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        self.dim, self.count = check_count("dim", dim, least=2), check_count("count", count)
        self.seed = check_count("seed", seed, least=0)
        self._pairs = -(-self.dim // 2)
        # Short canaries share a stream: to seed one takes as long as thousands of its points.
        self._together = max(1, _TILE // self._pairs)
        self._norms = np.full((-(-self.count // self._together), self._together), np.nan)

    def dots(self, vector: Vector) -> Floats:
        """⟨canaryᵢ, vector⟩ of all canaries, (count,)."""
        return self.dots_of(np.asarray(vector)[None])[:, 0]

    def dots_of(self, vectors: npt.ArrayLike) -> Floats:
        """⟨canaryᵢ, vectorⱼ⟩ of all canaries and all ``vectors`` (n, dim), (count, n): every canary is made once.

        Where ``dim`` is odd or the vectors are not float32, it copies them.
        """
        updates = np.ascontiguousarray(vectors, dtype=np.float32)
        if np.ndim(vectors) != 2 or updates.shape[1] != self.dim:
            raise InputError(f"updates must be rows of {self.dim} numbers, got an array of shape {np.shape(vectors)}")
        points = (np.pad(updates, ((0, 0), (0, 1))) if self.dim % 2 else updates).view(np.complex64)
        found = np.empty((*self._norms.shape, len(points)))
        for numbers, turns, tiles in self._blocks(np.arange(len(self._norms))):
            sums, squares = np.zeros((turns.size, len(points)), dtype=np.complex128), np.zeros(turns.size)
            known = not np.isnan(self._norms[numbers]).any()
            for columns, tile in tiles:
                sums += tile @ points[:, columns].T
                if not known:
                    squares += _squares(tile)
            if not known:
                self._norms[numbers] = np.sqrt(squares).reshape(turns.shape)
            scales = turns / self._norms[numbers]
            found[numbers] = (sums.reshape(*turns.shape, -1) * scales[..., None]).real
        return found.reshape(-1, len(points))[: self.count]

    def total(self, weights: npt.ArrayLike) -> Vector:
        """Σ weightᵢ · canaryᵢ, (dim,). Canaries of weight 0 are not made, but for those that share a stream.

        Where norms are not known yet, it makes the canaries twice.
        """
        factors = np.asarray(weights, dtype=np.float64)
        if factors.shape != (self.count,):
            raise InputError(f"{self.count} canaries take as many weights, got an array of shape {factors.shape}")
        shares = np.zeros(self._norms.shape)
        shares.flat[: self.count] = factors
        needed = np.flatnonzero(shares.any(axis=1))
        self._measure(needed[np.isnan(self._norms[needed]).any(axis=1)])
        total = np.zeros(self._pairs, dtype=np.complex64)
        for numbers, turns, tiles in self._blocks(needed):
            scales = (shares[numbers] * turns / self._norms[numbers]).astype(np.complex64).ravel()
            for columns, tile in tiles:
                total[columns] += scales @ tile
        # A dot product is the real part of a product of complex numbers, one of them conjugate.
        return np.conjugate(total, out=total).view(np.float32)[: self.dim]

    def canary(self, index: int) -> Vector:
        """One canary, (dim,): the same in every process."""
        weights = np.zeros(self.count)
        weights[index] = 1.0
        return self.total(weights)

    def each(self, indices: Sequence[int]) -> Iterator[Vector]:
        """These canaries one by one."""
        for index in indices:
            yield self.canary(int(index))

    def _measure(self, needed: Ints) -> None:
        for numbers, turns, tiles in self._blocks(needed):
            self._norms[numbers] = np.sqrt(sum(_squares(tile) for _, tile in tiles)).reshape(turns.shape)

    def _blocks(self, needed: Ints) -> Iterator[tuple[Ints, Turns, Iterator[tuple[slice, Points]]]]:
        """The numbers of some streams, how their canaries are turned (streams, canaries of each), and their tiles."""
        buffer = np.empty((min(_BLOCK, needed.size), self._together * min(self._pairs, _TILE)), dtype=np.complex64)
        for start in range(0, needed.size, _BLOCK):
            numbers = needed[start : start + _BLOCK]
            streams = [_Stream(self.seed, int(number), self._together, self._pairs) for number in numbers]
            turns = np.stack([stream.turns for stream in streams])
            yield numbers, turns, self._tiles(streams, turns.ravel(), buffer[: len(streams)])

    def _tiles(self, streams: list[_Stream], turns: Turns, buffer: Points) -> Iterator[tuple[slice, Points]]:
        """Columns and the points there of all canaries of ``streams``, not turned yet, in the ``buffer``."""
        for start in range(0, self._pairs, _TILE):
            columns = slice(start, min(start + _TILE, self._pairs))
            width = columns.stop - start
            filled = buffer[:, : self._together * width]
            for stream, row in zip(streams, filled, strict=True):
                stream.fill(row)
            points = filled.reshape(-1, width)
            if columns.stop == self._pairs and self.dim % 2:
                # What would be one coordinate too many is 0 after the turn.
                points[:, -1] = (turns * points[:, -1]).real * turns.conj()
            yield columns, points


class _Stream:
    """The points of ``canaries`` canaries of ``pairs`` each, one after the other, and the angles they are turned by."""

    def __init__(self, seed: int, number: int, canaries: int, pairs: int) -> None:
        self._words = np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(number,)))
        self.turns = np.exp(2j * np.pi * self._uniform(canaries))
        # Far points arrive as a Poisson process that hits each place with probability _FAR, each independently. Ten
        # standard deviations more than are due do not run out.
        due = canaries * pairs * _FAR
        far = math.ceil(due + 10 * math.sqrt(due) + 20)
        self._places = np.cumsum(np.log(self._uniform(far)) / math.log1p(-_FAR)).astype(np.int64)
        radius = np.sqrt(-2 * np.log(_FAR * self._uniform(far)))
        self._points = (radius * np.exp(2j * np.pi * self._uniform(far))).astype(np.complex64)
        self._made = 0

    def fill(self, points: Points) -> None:
        """Fill a row with the next points."""
        cells = self._words.random_raw(-(-points.size // 4)).view(np.uint16)[: points.size]
        np.take(_near(), cells, out=points, mode="wrap")
        first, last = np.searchsorted(self._places, (self._made, self._made + points.size))
        points[self._places[first:last] - self._made] = self._points[first:last]
        self._made += points.size

    def _uniform(self, count: int) -> Floats:
        words = self._words.random_raw(count) >> np.uint64(11)
        return (words.astype(np.float64) + 0.5) * 2.0**-53


def _squares(points: Points) -> Floats:
    """The squared norms of rows."""
    numbers = points.view(np.float32)
    squares: Floats = np.vecdot(numbers, numbers).astype(np.float64)
    return squares


@lru_cache(maxsize=1)
def _near() -> Points:
    """65,536 points that stand for the normal law of the plane without its far points.

    Radii are quantiles, angles follow the golden section. With each point its three turns by 90° are there, so that the
    mean is 0 and no direction has more variance than another.
    """
    quarter = np.arange(_CELLS // 4)
    radii = np.sqrt(-2 * np.log1p((_FAR - 1) * (quarter + 0.5) / len(quarter)))
    angles = np.pi / 2 * (quarter * (math.sqrt(5) - 1) / 2 % 1)
    points = (radii * np.exp(1j * angles)).astype(np.complex64)
    return np.concatenate([points, 1j * points, -points, -1j * points]).astype(np.complex64)
