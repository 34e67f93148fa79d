"""Many calls of one mechanism with canaries of one coordinate each: what the tests of noise learn from.

Each coordinate of each call may carry a canary, an update of one coordinate with a secret size, which a fair coin
inserts or leaves out. An attacker knows the coins of a pilot and the places without a canary, so he sees the noise
there, and guesses the coins of the other calls. docs/checks.md proves that counting his right guesses is a valid
test of any claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import fft

from coalmine.arrays import Array, Bools, Floats, Ints
from coalmine.protocol import Vector
from coalmine.seeds import default_rng, generator

LEAST, MOST = 0.9, 1.0
"""Canaries are this large. The secret part of their size lies between these, so that it can be guessed, too."""

LEAST_CALLS = 16
"""Fewer calls leave nothing to learn from."""

_CANARY_SHARE = 0.75  # of the coordinates in a call; the others are left at zero, a window on the noise
_PILOT_SHARE = 0.2  # of the calls
_EARLY_SHARE = 0.06  # test calls that precede the pilot, since a mechanism may start differently
_KEPT = 12_288  # coordinates whose outputs are kept; all of them up to this dimension
_STRETCH = 32  # neighboring coordinates among them
_DIRECTIONS = 16  # along which the noise is looked at, beside coordinates
_ROUNDING = 1e-8  # share of squares that is rounding
_SUSPECTS = 256  # coordinates that are kept because their noise was the smallest in the pilot


def default_calls(dim: int) -> int:
    """Return the number of calls: four million coordinates in all, but fewer calls of very large mechanisms.

    A call has as many canaries as coordinates, so small mechanisms, whose calls are cheap, need many of them.

    Example:
        >>> [default_calls(d) for d in (10, 100, 1000, 10_000, 100_000, 10_000_000)]
        [6000, 4000, 1000, 400, 300, 16]
    """
    few, many = min(6000, 4e5 / dim), min(1000, 4e6 / dim)
    return int(max(LEAST_CALLS, few, many, min(300, 3e7 / dim)))


def canaries_to_guess(dim: int, calls: int) -> int:
    """Return how many canaries the test calls have, about.

    Example:
        >>> canaries_to_guess(50, 1000)
        30000
    """
    return int(_CANARY_SHARE * min(dim, _KEPT) * (calls - max(4, math.ceil(_PILOT_SHARE * calls))))


@dataclass(eq=False)
class Transcript:
    """What went into the mechanism and what came out, at the coordinates that were kept.

    Args:
        coordinates: Their indices, ascending, shape (n,).
        first: The call from which on each was kept, shape (n,): 0, or that after the pilot, which pointed to it.
        pilot: Which calls the attacker knows all coins of, shape (t,).
        values: Size of each canary, shape (t, n).
        canary: Where there was one, shape (t, n); elsewhere the input was zero.
        inserted: Outcomes of the fair coins, shape (t, n).
        outputs: What came out, shape (t, n).
        resolution: Smallest relative difference between two outputs.

    Attributes:
        inputs: What went in, shape (t, n).
        gain: How much an output grows with the input: 1 for a sum, 1/n for a mean of n updates.
        known: Where the attacker knows the noise: in the pilot, and where there was no canary; shape (t, n).
        noise: The noise in units of the input where it is known, and 0 elsewhere, shape (t, n).
        squares: The squares of ``noise``, shape (t, n).
        spread: Variance of the known squares over that of normal noise, at least 1.
        pilot_noise: The noise of the pilot at the coordinates that were kept from the start.
        pilot_inserted: Where the pilot had an inserted canary, among ``pilot_noise``.
        size: Standard deviation of the noise in the pilot.
        tolerance: How far two outputs may differ that come from the same noise.
        targets: Call and column of each canary of the test calls, the ones to guess about.
        target_values: Size of each target.
        target_outputs: What came out at each target, in units of the input.
        coins: The coin of each target.
    """

    coordinates: Ints
    first: Ints
    pilot: Bools
    values: Floats
    canary: Bools
    inserted: Bools
    outputs: Floats
    resolution: float

    def __post_init__(self) -> None:
        self.inputs = np.where(self.canary & self.inserted, self.values, 0.0)
        # Rounded to 1 or 1/n if the pilot does not tell it from that, so that outputs can be compared exactly.
        inputs, outputs = self.inputs[self.pilot], self.outputs[self.pilot]
        centered, came_out = inputs - inputs.mean(), outputs - outputs.mean()
        power = max(float(np.sum(centered**2)), 1e-300)
        self.gain = float(np.sum(centered * came_out)) / power
        error = math.sqrt(float(np.sum((came_out - self.gain * centered) ** 2)) / power / inputs.size)
        updates = round(1 / abs(self.gain)) if self.gain else 0
        if abs(self.gain) <= 6 * error or abs(self.gain - 1) <= 5 * error:
            self.gain = 1.0
        elif updates and abs(1 / abs(self.gain) - updates) <= 5 * error / self.gain**2 < 0.2:
            self.gain = math.copysign(1 / updates, self.gain)
        kept = np.arange(self.pilot.size)[:, None] >= self.first
        self.known: Bools = (self.pilot[:, None] | ~self.canary) & kept
        self.noise = np.where(self.known, self.outputs / self.gain - self.inputs, 0.0)
        self.squares = np.square(self.noise)
        # Sums of few squares say less for heavy tails. The fourth moment of normal noise is 3.
        count, total, self.spread = max(int(np.sum(self.known)), 1), float(np.sum(self.squares)), 1.0
        if total:
            fourth = float(np.einsum("ij,ij->", self.squares, self.squares)) / count
            self.spread = max(1.0, (fourth / (total / count) ** 2 - 1) / 2)
        from_start = self.first == 0
        self.pilot_noise = self.noise[self.pilot][:, from_start]
        self.pilot_inserted = self.inputs[self.pilot][:, from_start] != 0
        self.size = math.sqrt(float(np.mean(np.square(self.pilot_noise))))
        self.tolerance = 8 * self.resolution * (float(np.abs(self.outputs).max(initial=0.0)) / abs(self.gain) + 1)
        self.targets = np.nonzero(self.canary & ~self.pilot[:, None])
        self.target_values = self.values[self.targets]
        self.target_outputs = self.outputs[self.targets] / self.gain
        self.coins = self.inserted[self.targets]


def call_often(
    mechanism: Callable[[Vector], Array], *, dim: int, calls: int, seed: int, starts: Ints | None = None
) -> Transcript:
    """Call the mechanism with canaries of one coordinate each.

    Args:
        mechanism: Function from a float32 vector, (dim,), to one of the same length.
        dim: Number of coordinates.
        calls: Number of calls.
        seed: Seed of canaries and coins.
        starts: Coordinates that must be among the kept ones, such as the first of each tensor.
    """
    coordinates, in_part = np.arange(dim), dim > _KEPT
    if in_part:
        # Short stretches of neighbors: those that were asked for, the first and the last, and random ones in what room
        # is left.
        room = (_KEPT - 2 * _SUSPECTS) // _STRETCH
        asked = np.array([] if starts is None else starts, dtype=np.int64)
        anywhere = generator(seed, "aside").integers(0, dim - _STRETCH, room)
        places = np.concatenate([asked, [0, dim - _STRETCH], anywhere])[:room].astype(np.int64)
        coordinates = np.unique(np.minimum(places[:, None], dim - _STRETCH) + np.arange(_STRETCH))
    first = np.zeros(coordinates.size, dtype=np.int64)
    early, pilots = math.ceil(_EARLY_SHARE * calls), max(4, math.ceil(_PILOT_SHARE * calls))
    pilot = np.zeros(calls, dtype=bool)
    pilot[early : early + pilots] = True
    size = coordinates.size + 2 * _SUSPECTS * in_part
    values = np.zeros((calls, size))
    canary, inserted = np.zeros((2, calls, size), dtype=bool)
    outputs = np.zeros((calls, size))
    energy = np.zeros(dim, dtype=np.float32)
    resolution = 1e-15
    for call in range(calls):
        if call == early + pilots and in_part:
            # Those with the least noise in the pilot are kept from now on: single ones, and blocks of 64.
            energy[coordinates] = np.inf
            single = np.argpartition(energy, _SUSPECTS)[:_SUSPECTS]
            blocks = energy[: dim // 64 * 64].reshape(-1, 64).sum(axis=1)
            weakest = np.argsort(blocks)[: _SUSPECTS // 64]
            in_blocks = (64 * weakest[:, None] + np.arange(64)).ravel()
            suspects = np.setdiff1d(np.concatenate([single, in_blocks]), coordinates)
            coordinates = np.concatenate([coordinates, suspects])
            first = np.concatenate([first, np.full(suspects.size, call)])
        here = slice(0, coordinates.size)
        draw = generator(seed, "coins", call)
        values[call, here] = draw.uniform(LEAST, MOST, coordinates.size).astype(np.float32)
        canary[call, here] = draw.random(coordinates.size) < _CANARY_SHARE
        inserted[call, here] = draw.random(coordinates.size) < 0.5
        total = np.zeros(dim, dtype=np.float32)
        total[coordinates] = np.where(canary[call, here] & inserted[call, here], values[call, here], 0)
        released = mechanism(total)
        # What an attacker makes of outputs is free; powers of larger numbers would overflow.
        outputs[call, here] = np.clip(released[coordinates].astype(np.float64), -1e60, 1e60)
        if released.dtype.kind == "f":
            resolution = max(resolution, float(np.finfo(released.dtype).eps))
        if pilot[call] and in_part:
            with np.errstate(over="ignore"):  # infinite energy is not the smallest
                energy += np.square(released, dtype=np.float32)
    order = np.argsort(coordinates, kind="stable")
    if in_part:  # otherwise all is in order, which saves copies of large arrays
        values, canary, inserted, outputs = (table[:, order] for table in (values, canary, inserted, outputs))
    return Transcript(
        coordinates=coordinates[order], first=first[order], pilot=pilot, values=values, canary=canary,
        inserted=inserted, outputs=outputs, resolution=resolution,
    )  # fmt: skip


def weakest_directions(transcript: Transcript, dim: int) -> tuple[Floats, int]:
    """Return orthonormal vectors along which the noise of all calls was the smallest, and its missing dimensions.

    The vectors, (dim, k), are combinations of any coordinates if there are more calls than these noise vectors have
    dimensions. Otherwise half of them are waves (the cosine transform), from the sum of all coordinates to differences
    of neighbors, and half are orthogonal to all noise, which tells of later calls if noise has few more dimensions than
    there were calls. If the vectors are too long to be kept, there is only the sum.
    """
    if transcript.coordinates.size != dim or dim > _KEPT:
        return np.full((dim, 1), dim**-0.5), 0
    count = max(1, min(_DIRECTIONS, dim // 2))
    # The attacker may know all coins of these calls, since others are guessed.
    noise = transcript.outputs / transcript.gain - transcript.inputs
    many = len(noise) >= dim
    squares, vectors = np.linalg.eigh(noise.T @ noise if many else noise @ noise.T)
    spanned = squares > _ROUNDING * squares[-1]
    # Calls and coordinates without noise have checks of their own.
    energies = [np.sum(noise**2, axis=axis) for axis in (0, 1)]
    missing = min(int(np.sum(energy > _ROUNDING * energy.max())) for energy in energies) - int(spanned.sum())
    if many:
        return np.asarray(vectors[:, :count]), missing
    span = noise.T @ (vectors[:, spanned] / np.sqrt(squares[spanned]))
    anywhere = default_rng(0).standard_normal((dim, count))
    beside = anywhere - span @ (span.T @ anywhere)
    if missing > 0:
        return np.asarray(np.linalg.qr(beside)[0]), missing
    weakest = np.argsort(np.sum(fft.dct(noise, norm="ortho") ** 2, axis=0), kind="stable")[: -(-count // 2)]
    waves, beside = fft.idct(np.eye(dim)[weakest], norm="ortho").T, beside[:, : min(count // 2, dim - len(noise))]
    return np.asarray(np.linalg.qr(np.hstack([waves, beside]))[0]), missing


def turned(mechanism: Callable[[Vector], Array], directions: Floats) -> Callable[[Vector], Array]:
    """Return the mechanism in coordinates of which the first are along these orthonormal vectors, (dim, k)."""
    count = directions.shape[1]
    first = np.eye(len(directions), count)
    # With A = I − EᵀW, the matrix I − (E − W)A⁻¹(E − W)ᵀ is orthogonal and turns the vectors W into E, since
    # (E − W)ᵀ(E − W) = A + Aᵀ. Opposite signs keep A from being singular where a vector is a coordinate already.
    along = directions * np.where(np.diag(directions) > 0, -1.0, 1.0)
    change = first - along
    inverse = np.linalg.inv(np.eye(count) - first.T @ along)

    def applied(total: Vector) -> Floats:
        turned_back = total - change @ (inverse.T @ (change.T @ total))
        released = mechanism(turned_back.astype(np.float32)).astype(np.float64)
        return np.asarray(released - change @ (inverse @ (change.T @ released)))

    return applied
