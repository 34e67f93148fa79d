"""The calls of a mechanism that its battery of attacks learns from and is tested on (docs/mechanism.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coalmine.arrays import Array, Bools, Floats, Ints
from coalmine.protocol import Vector
from coalmine.seeds import generator

LEAST, MOST = 0.9, 1.0
"""The values of canaries: an update of one coordinate is that large. Its secret part lies between these."""

LEAST_CALLS = 16
"""Fewer calls leave nothing to learn from."""

_CANARY_SHARE = 0.75  # of the coordinates in a call; the others are left at zero, a window on the noise
_PILOT_SHARE = 0.2  # of the calls
_EARLY_SHARE = 0.06  # test calls that precede the pilot, since a mechanism may start differently
_MOST_CALLS, _MANY_CALLS = 6000, 1000
_FEW_COORDINATES = 4e5  # in all calls together; only then are there more than so many of them
_WAVES_SHARE = 0.2  # of the calls, in the basis of cosines
_WAVES_UP_TO = 2_000_000  # coordinates; beyond, the transforms would take longer than all the rest
_KEPT = 12_288  # coordinates whose outputs are kept; all of them up to this dimension
_RUN = 32  # of neighboring coordinates among them
_SUSPECTS = 256  # coordinates that are kept because their noise was the smallest in the pilot, of each kind
_LARGEST = 1e60  # output
_BLOCKS = (64, 4096)  # sizes of blocks among which the weakest are looked for


def default_calls(dim: int) -> int:
    """Return the number of calls: four million coordinates in all, but fewer calls of very large mechanisms.

    A call has as many canaries as coordinates, so small mechanisms, whose calls are cheap, need many of them.

    Example:
        >>> [default_calls(d) for d in (10, 100, 1000, 10_000, 100_000, 10_000_000)]
        [6000, 4000, 1000, 400, 300, 16]
    """
    few, many = min(_MOST_CALLS, _FEW_COORDINATES / dim), min(_MANY_CALLS, 4e6 / dim)
    return int(max(LEAST_CALLS, few, many, min(300, 3e7 / dim)))


def calls_along_waves(dim: int, calls: int) -> int:
    """Return how many further calls look for weak directions; none in very many dimensions.

    Example:
        >>> calls_along_waves(10_000, 400), calls_along_waves(10_000_000, 16)
        (80, 0)
    """
    return max(LEAST_CALLS, int(_WAVES_SHARE * calls)) if dim <= _WAVES_UP_TO else 0


def canaries_to_guess(dim: int, calls: int) -> int:
    """Return how many canaries the test calls have, about.

    Example:
        >>> canaries_to_guess(50, 1000)
        30000
    """
    return int(_CANARY_SHARE * min(dim, _KEPT) * (calls - _pilots(calls)))


def _pilots(calls: int) -> int:
    """Return the number of calls of the pilot."""
    return max(4, math.ceil(_PILOT_SHARE * calls))


@dataclass(frozen=True, eq=False)
class Calls:
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
        before: Number of calls of the mechanism before these, for sentences.
    """

    coordinates: Ints
    first: Ints
    pilot: Bools
    values: Floats
    canary: Bools
    inserted: Bools
    outputs: Floats
    resolution: float
    before: int = 0

    def number(self, call: int) -> int:
        """Return the number of a call among all that were made, from 1."""
        return self.before + call + 1

    @cached_property
    def gain(self) -> float:
        """How much an output grows with the input, from the pilot: 1 for a sum, 1/n for a mean of n updates.

        Rounded to 1 or 1/n if the pilot does not tell it from that, so that outputs can be compared exactly.
        """
        put_in, came_out = self.inputs[self.pilot], self.outputs[self.pilot]
        centered = put_in - put_in.mean()
        power = float(np.sum(centered**2))
        came_out = came_out - came_out.mean()
        gain = float(np.sum(centered * came_out)) / power if power else 0.0
        error = math.sqrt(float(np.sum((came_out - gain * centered) ** 2)) / max(power, 1e-300) / put_in.size)
        if abs(gain) <= 6 * error or abs(gain - 1) <= 5 * error:
            return 1.0
        updates = round(1 / abs(gain))
        if updates and abs(1 / abs(gain) - updates) <= 5 * error / gain**2 < 0.2:
            return math.copysign(1 / updates, gain)
        return gain

    @cached_property
    def inputs(self) -> Floats:
        """What went in, shape (t, n)."""
        return np.where(self.canary & self.inserted, self.values, 0.0)

    @cached_property
    def released(self) -> Floats:
        """The outputs in units of the input, shape (t, n)."""
        return self.outputs / self.gain

    @cached_property
    def known(self) -> Bools:
        """Where the attacker knows the noise: in the pilot, and where there was no canary; shape (t, n)."""
        kept = np.arange(self.pilot.size)[:, None] >= self.first
        return (self.pilot[:, None] | ~self.canary) & kept

    @cached_property
    def noise(self) -> Floats:
        """The noise where it is known, and 0 elsewhere, shape (t, n)."""
        return np.where(self.known, self.released - self.inputs, 0.0)

    @cached_property
    def squares(self) -> Floats:
        """The squares of `noise`, shape (t, n)."""
        return np.square(self.noise)

    @cached_property
    def spread(self) -> float:
        """Variance of the known squares over that of normal noise, at least 1: sums of few say less for heavy tails."""
        count, total = max(int(np.sum(self.known)), 1), float(np.sum(self.squares))
        fourth = float(np.einsum("ij,ij->", self.squares, self.squares)) / count
        return max(1.0, (fourth / (total / count) ** 2 - 1) / 2) if total else 1.0  # normal noise: fourth moment 3

    @cached_property
    def targets(self) -> tuple[Ints, Ints]:
        """Call and column of each canary of the test calls, the ones to guess about."""
        call, column = np.nonzero(self.canary & ~self.pilot[:, None])
        return call, column

    @cached_property
    def gap(self) -> Floats:
        """Output minus half of the value, for each target: positive if it looks inserted."""
        return self.released[self.targets] - self.values[self.targets] / 2

    @cached_property
    def coins(self) -> Bools:
        """The coin of each target."""
        return self.inserted[self.targets]

    @cached_property
    def size(self) -> float:
        """Standard deviation of the noise in the pilot, where it was kept."""
        pilot = self.noise[self.pilot][:, self.first == 0]
        return float(math.sqrt(np.mean(np.square(pilot))))

    @cached_property
    def tolerance(self) -> float:
        """How far two outputs may differ that come from the same noise."""
        return 8 * self.resolution * (float(np.abs(self.outputs).max(initial=0.0)) / abs(self.gain) + 1)


def make_calls(
    mechanism: Callable[[Vector], Array],
    *,
    dim: int,
    calls: int,
    seed: int,
    places: Ints | None = None,
    before: int = 0,
) -> Calls:
    """Call the mechanism with canaries of one coordinate each.

    Args:
        mechanism: Function from a float32 vector, (dim,), to one of the same length.
        dim: Number of coordinates.
        calls: Number of calls.
        seed: Seed of canaries and coins.
        before: Number of calls before these.
        places: Coordinates that must be among the kept ones, such as the first of each tensor.
    """
    coordinates = _spread(dim, seed, places)
    first = np.zeros(coordinates.size, dtype=np.int64)
    early, pilots = math.ceil(_EARLY_SHARE * calls), _pilots(calls)
    pilot = np.zeros(calls, dtype=bool)
    pilot[early : early + pilots] = True
    size = dim if dim <= _KEPT else coordinates.size + (1 + len(_BLOCKS)) * _SUSPECTS
    values = np.zeros((calls, size), dtype=np.float32)
    canary, inserted = np.zeros((2, calls, size), dtype=bool)
    outputs = np.zeros((calls, size))
    energy = np.zeros(dim if dim > _KEPT else 0, dtype=np.float32)
    resolution = 0.0
    for call in range(calls):
        if call == early + pilots and energy.size:
            suspects = _suspects(energy, coordinates)
            coordinates = np.concatenate([coordinates, suspects])
            first = np.concatenate([first, np.full(suspects.size, call)])
        here = slice(0, coordinates.size)
        draw = generator(seed, "coins", call)
        values[call, here] = draw.uniform(LEAST, MOST, coordinates.size)
        canary[call, here] = draw.random(coordinates.size) < _CANARY_SHARE
        inserted[call, here] = draw.random(coordinates.size) < 0.5
        total = np.zeros(dim, dtype=np.float32)
        total[coordinates] = np.where(canary[call, here] & inserted[call, here], values[call, here], 0)
        released = mechanism(total)
        # What an attacker makes of outputs is free; powers of larger numbers would overflow.
        outputs[call, here] = np.clip(released[coordinates].astype(np.float64), -_LARGEST, _LARGEST)
        if released.dtype.kind == "f":
            resolution = max(resolution, float(np.finfo(released.dtype).eps))
        if pilot[call] and energy.size:
            with np.errstate(over="ignore"):  # infinite energy is not the smallest
                energy += np.square(released, dtype=np.float32)
    order = np.argsort(coordinates, kind="stable")
    return Calls(
        coordinates=coordinates[order],
        first=first[order],
        pilot=pilot,
        values=values[:, order].astype(np.float64),
        canary=canary[:, order],
        inserted=inserted[:, order],
        outputs=outputs[:, order],
        resolution=max(resolution, 1e-15),
        before=before,
    )


def _spread(dim: int, seed: int, places: Ints | None) -> Ints:
    """Return the coordinates to keep from the start: all, or short runs at random places, and the first and last."""
    if dim <= _KEPT:
        return np.arange(dim)
    room = _KEPT - (1 + len(_BLOCKS)) * _SUSPECTS
    starts = generator(seed, "aside").integers(0, dim - _RUN, room // _RUN - 2)
    first = [np.asarray(places if places is not None else [], dtype=np.int64), np.array([0, dim - _RUN])]
    # Places that were asked for come first; random ones fill the remaining room.
    starts = np.concatenate([*first, starts])[: room // _RUN]
    return np.unique(np.minimum(starts[:, None], dim - _RUN) + np.arange(_RUN))


def _suspects(energy: Vector, kept: Ints) -> Ints:
    """Return coordinates with the least noise in the pilot: single ones, and parts of the weakest blocks."""
    energy = energy.copy()
    energy[kept] = np.inf  # these are looked at anyway, and carried canaries
    chosen = np.argpartition(energy, _SUSPECTS)[:_SUSPECTS]
    energy[kept] = 0
    counts = np.ones_like(energy)
    counts[kept] = 0
    picks = [chosen]
    for block in _BLOCKS:
        starts = np.arange(0, energy.size, block)
        mean = np.add.reduceat(energy, starts) / np.maximum(np.add.reduceat(counts, starts), 1)
        mean[np.add.reduceat(counts, starts) < block / 2] = np.inf
        weakest = np.argsort(mean)[: max(1, _SUSPECTS // block)]
        picks.append((starts[weakest][:, None] + np.arange(min(block, _SUSPECTS))).ravel()[:_SUSPECTS])
    suspects = np.unique(np.concatenate(picks))
    return np.setdiff1d(suspects[suspects < energy.size], kept)
