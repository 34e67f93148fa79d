"""What the checks of the noise remember of each round's update: energies, a sample of coordinates, and copies.

An update is recorded in units of clip norm / divisor, the most that one client moves it. Claimed noise then has the
noise multiplier as its standard deviation, which need not be known before the end. It takes about 12 MB at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats, Ints
from coalmine.layers import Layers
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.vectors import CPU, dot, on, pieces

THE_UPDATE = "the update"
"""Name of the only tensor if the layers are unknown."""

_BLOCKS = 4  # parts of a tensor whose energies are kept
_LEAST_BLOCK = 32
_KEPT_ROUNDS, _KEPT_NUMBERS, _LEAST_BINS = 4096, 1 << 21, 256
_MOST_SAMPLED, _LEAST_SAMPLED = 2048, 256
_MOST_SQUARES = 1 << 19  # numbers up to which the energy of every single one is kept
# Copies inside an update are bugs of the code, not of single rounds: a few rounds show them.
COPY_ROUNDS = 4
_SEARCHED = 1 << 14  # numbers of the update, and of each tensor, that are searched for copies
_PREFIX, _SHORT_PREFIX, _MOST_TENSORS = 64, 16, 128

# Precision: of single precision, so many steps are one of bfloat16 and of half precision.
_BRAIN_STEPS, _HALF_STEPS = 1 << 16, 1 << 13
_FEW, _SEVERAL = 64, 256
_LEAST_NUMBERS = 8  # other than 0: fewer may have few digits by chance
_LEAST_VALUES = 8  # that differ, to recognize a grid: fewer are hardly noise
_MOST_STEPS = 1e5  # of a grid up to the largest number: a finer one is the precision of the numbers themselves
_OFF_GRID = 0.01  # steps

_ARRAYS = ("energies", "counts", "divisor", "rounding", "samples", "sampled", "copies", "whole", "squares")


class NoiseRecord:
    """A bounded record of a training's updates.

    Args:
        layers: The tensors of the model.
        rounds: Number of rounds.
        seed: Seed of the sampled coordinates.
    """

    def __init__(self, layers: Layers, rounds: int, seed: int) -> None:
        self.layers, self.rounds = layers, rounds
        # Large tensors are cut into blocks, so that noise that is missing in a part of them shows.
        edges: list[int] = []
        for start, size in zip(layers.starts.tolist(), layers.sizes.tolist(), strict=True):
            parts = max(1, min(_BLOCKS, size // _LEAST_BLOCK))
            edges += (start + size * np.arange(parts) // parts).tolist()
        self.edges = np.array(edges, dtype=np.int64)
        self.block_sizes = np.diff(np.append(self.edges, layers.dim))
        self.tensor_of_block = np.searchsorted(layers.starts, self.edges, side="right") - 1
        # Energies of a long training are summed over bins of consecutive rounds.
        self.bins = min(rounds, max(_LEAST_BINS, _KEPT_NUMBERS // (4 * len(edges))))
        self.bin_of_round = np.arange(rounds) * self.bins // rounds
        self.energies = np.zeros((self.bins, len(edges)))
        self.counts, self.rounding = np.zeros(self.bins, dtype=np.int64), np.zeros(self.bins)
        self.divisor = np.zeros(1)  # the largest one
        # The sampled coordinates in ascending order: half of them spread evenly over tensors, half by their size.
        kept = min(rounds, _KEPT_ROUNDS)
        budget = int(np.clip(_KEPT_NUMBERS // kept, _LEAST_SAMPLED, _MOST_SAMPLED))
        sizes = layers.sizes
        quotas = np.minimum(sizes, -(-budget // (2 * len(sizes))) + budget * sizes // (2 * sizes.sum()))
        draw = generator(seed, "checks")
        sampled = []
        for start, size, quota in zip(layers.starts, sizes, quotas, strict=True):
            sampled.append(start + np.sort(draw.choice(size, quota, replace=False)))
        self.coordinates = np.concatenate(sampled).astype(np.int64)
        self.tensor_of_sample = np.searchsorted(layers.starts, self.coordinates, side="right") - 1
        self.samples = np.zeros((kept, len(self.coordinates)), dtype=np.float32)
        self.sampled = np.full(kept, -1, dtype=np.int64)
        # Pairs of halves that are compared: of neighbors, of rows, and of the starts of two tensors.
        self.pairs: list[tuple[str, str, str]] = []
        by_name = dict(zip(layers.names, sizes.tolist(), strict=True))
        large = [name for name, size in by_name.items() if size >= _SHORT_PREFIX]
        for name in large:
            self.pairs.append(("neighbors", name, ""))
        for name in large:
            shape = layers.shapes[name]
            if len(shape) > 1 and shape[0] > 1:
                self.pairs.append(("rows", name, ""))
        large.sort(key=lambda name: -by_name[name])
        for i, name in enumerate(large[:_MOST_TENSORS]):
            for larger in large[:i]:
                self.pairs.append(("tensors", name, larger))
        # Energy of one half of pairs after projecting out the other half, and before: (rounds, pairs).
        self.copies = np.full((COPY_ROUNDS, len(self.pairs)), np.nan)
        self.whole = np.full((COPY_ROUNDS, len(self.pairs)), np.nan)
        # Energy of each single number over all rounds.
        self.squares = np.zeros(layers.dim if layers.dim <= _MOST_SQUARES else 0)

    def add(self, round: int, update: Vector, unit: float, rounding: float, divisor: float = 1.0) -> None:
        """Record an update.

        Args:
            round: Number of the round.
            update: The update, (dim,).
            unit: Clip norm / divisor.
            rounding: How far rounding may have moved each number of the update.
            divisor: What the sum was divided by.
        """
        self.divisor[0] = max(self.divisor[0], divisor)
        index = self.bin_of_round[round]
        if len(self.squares):
            squares = np.square(on(CPU, update) / unit, dtype=np.float64)
            self.squares += squares
            self.energies[index] += np.add.reduceat(squares, self.edges)
        else:
            for block, (start, size) in enumerate(zip(self.edges.tolist(), self.block_sizes.tolist(), strict=True)):
                part = update[start : start + size]
                self.energies[index, block] += dot(part, part) / unit**2
        self.counts[index] += 1
        self.rounding[index] = max(self.rounding[index], rounding / unit)
        # Of a long training the first and the last rounds are kept.
        kept, middle = len(self.samples), len(self.samples) // 2
        slot = round if round < kept else middle + (round - middle) % (kept - middle)
        self.samples[slot] = on(CPU, update[on(update.device, self.coordinates)]) / np.float32(unit)
        self.sampled[slot] = round
        unused = np.flatnonzero(np.isnan(self.whole).all(axis=1))
        if not self.pairs or not len(unused):
            return
        for pair, (half, other) in enumerate(self.halves(update)):
            whole, across, length = float(half @ half), float(half @ other), float(other @ other)
            rest = whole - across**2 / length if length > 0 else whole
            self.whole[unused[0], pair], self.copies[unused[0], pair] = whole / unit**2, rest / unit**2

    def halves(self, update: Vector) -> list[tuple[Floats, Floats]]:
        """Return for each of `pairs` two vectors of equal length whose noise should be independent."""
        values: dict[str, Floats] = {}
        for name, start, size in zip(self.layers.names, self.layers.starts, self.layers.sizes, strict=True):
            values[name] = on(CPU, update[start : start + min(size, _SEARCHED)]).astype(np.float64)
        halves: list[tuple[Floats, Floats]] = []
        for kind, name, other in self.pairs:
            numbers = values[name]
            if kind == "tensors":
                length = _PREFIX if min(numbers.size, values[other].size) >= _PREFIX else _SHORT_PREFIX
                halves.append((numbers[:length], values[other][:length]))
                continue
            block = 1 if kind == "neighbors" else math.prod(self.layers.shapes[name][1:])
            if numbers.size < 2 * block:
                halves.append((numbers[: max(0, numbers.size - block)], numbers[block:]))
            else:  # every other block, and the blocks that follow them
                blocks = numbers[: numbers.size // (2 * block) * (2 * block)].reshape(-1, 2, block)
                halves.append((blocks[:, 0].ravel(), blocks[:, 1].ravel()))
        return halves

    # Checkpoints

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps."""
        return {f"noise_{name}": np.array(getattr(self, name)) for name in _ARRAYS}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        for name in _ARRAYS:
            setattr(self, name, np.array(state[f"noise_{name}"]))


# How coarse are the numbers? Rounding to half precision, bfloat16 or a fixed grid is no bug of the noise. Each tensor
# is looked at by itself, since layers often differ; fixed-point numbers, as of secure aggregation, have one grid.


def largest_roundings(vector: Vector, starts: Ints) -> Floats:
    """Return how far rounding may have moved a number of each tensor, by the precision that it turns out to have.

    On a fixed grid that is a whole step, since stochastic rounding may have been used.

    Args:
        vector: The release as float32, (dim,).
        starts: Where each tensor starts, ascending, from 0 on.

    Returns:
        One number per tensor, (tensors,).

    Example:
        >>> noise = np.random.default_rng(0).normal(size=1000).astype(np.float32)
        >>> f"{largest_roundings(noise, np.array([0]))[0]:.1g}"
        '1e-07'
        >>> half = np.concatenate([noise[:500], noise[500:].astype(np.float16)], dtype=np.float32)
        >>> [f"{rounding:.1g}" for rounding in largest_roundings(half, np.array([0, 500]))]
        ['1e-07', '0.001']
        >>> f"{largest_roundings((noise / 0.01).round() * np.float32(0.01), np.array([0]))[0]:.1g}"
        '0.01'
    """
    stops, largest = np.append(starts[1:], len(vector)), np.empty(len(starts))
    for tensor, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        # Two passes without a copy are faster than one over an array of absolute values.
        part = vector[start:stop]
        largest[tensor] = max(float(part.max()), -float(part.min()))
    roundings: Floats = np.spacing(largest.astype(np.float32)).astype(np.float64) / 2  # of single precision
    # Neither half precision nor bfloat16 uses the last 13 bits of a float32: a few numbers mostly settle the matter.
    places = np.minimum(starts[:, None] + np.arange(_FEW), stops[:, None] - 1)
    first = on(CPU, vector[on(vector.device, places)])
    for tensor, is_single in enumerate((first.view(np.int32) & (_HALF_STEPS - 1)).any(axis=1).tolist()):
        if not is_single:
            roundings[tensor] = _rounding(vector[starts[tensor] : stops[tensor]], float(largest[tensor]))
    return np.maximum(_grid(vector), roundings)


def _rounding(values: Vector, largest: float) -> float:
    """Return how far rounding may have moved the numbers of a tensor, whose first ones use few bits."""
    single = float(np.spacing(np.float32(largest))) / 2
    few = np.count_nonzero(on(CPU, values[:_FEW])) < _LEAST_NUMBERS
    if few and int((values != 0).sum()) < _LEAST_NUMBERS:
        return single
    with np.errstate(over="ignore"):
        if _holds(values, lambda part: np.array_equal(part.astype(np.float16), part)):
            return float(np.spacing(np.float16(largest))) / 2
    # bfloat16 has the first 16 bits of a float32, the others are 0.
    if _holds(values, lambda part: not (part.view(np.int32) & (_BRAIN_STEPS - 1)).any()):
        return single * _BRAIN_STEPS
    return single


def _grid(values: Vector) -> float:
    """Return the step of a grid that all numbers lie on; 0 if there is none.

    Discrete noise on rounded updates lies on a grid, and so does any sum that was rounded after the noise. Coarse noise
    on updates that were not rounded does not.
    """
    several = np.sort(np.abs(on(CPU, values[:_SEVERAL]).astype(np.float64)))
    gaps, largest = several[1:] - several[:-1], float(several[-1])
    wide = gaps[gaps > largest / _MOST_STEPS]
    if np.count_nonzero(gaps) < _LEAST_VALUES - 1 or not wide.size:
        return 0.0
    step = largest / round(largest / float(wide.min()))  # a gap of large numbers has a larger relative error

    def on_grid(part: Vector) -> bool:
        steps = part.astype(np.float64) / step
        return float(np.abs(steps - np.round(steps)).max()) < _OFF_GRID

    return step if _holds(values, on_grid) else 0.0


def _holds(values: Vector, test: Callable[[Vector], bool]) -> bool:
    """Return whether all numbers pass a test: a few, which mostly settle the matter, and then all in pieces."""
    if not test(on(CPU, values[:_FEW])):
        return False
    return all(test(on(CPU, values[part])) for part in pieces(len(values), values.device))
