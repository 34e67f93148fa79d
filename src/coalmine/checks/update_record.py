"""What the checks of the noise remember of each round's update: energies, a sample of coordinates, and copies.

An update is recorded in units of clip norm / divisor, the most that one client moves it. Claimed noise then has the
noise multiplier as its standard deviation, which need not be known before the end. It takes about 12 MB at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats, Ints
from coalmine.layers import Layers
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.vectors import bits_of, device_of, energies, is_half, largest_sizes, pieces, take, to_numpy

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
        self._seed = seed
        self.edges = _block_edges(layers)
        # Energies of a long training are summed over bins of consecutive rounds.
        self.bins = min(rounds, max(_LEAST_BINS, _KEPT_NUMBERS // (4 * len(self.edges))))
        self.energies = np.zeros((self.bins, len(self.edges)))
        self.counts, self.rounding = np.zeros(self.bins, dtype=np.int64), np.zeros(self.bins)
        self.divisor = np.zeros(1)  # the largest one
        kept = min(rounds, _KEPT_ROUNDS)
        self.samples = np.zeros((kept, len(self.coordinates)), dtype=np.float32)
        self.sampled = np.full(kept, -1, dtype=np.int64)
        # Energy of one half of pairs after projecting out the other half, and before: (rounds, kinds of pairs).
        self.copies = np.full((COPY_ROUNDS, len(self.pairs)), np.nan)
        self.whole = np.full((COPY_ROUNDS, len(self.pairs)), np.nan)
        # Energy of each single number over all rounds.
        self.squares = np.zeros(layers.dim if layers.dim <= _MOST_SQUARES else 0)

    # Where to look

    @cached_property
    def coordinates(self) -> Ints:
        """The sampled coordinates in ascending order: half of them spread evenly over tensors, half by their size."""
        budget = int(np.clip(_KEPT_NUMBERS // min(self.rounds, _KEPT_ROUNDS), _LEAST_SAMPLED, _MOST_SAMPLED))
        sizes, starts = self.layers.sizes, self.layers.starts
        quotas = np.minimum(sizes, -(-budget // (2 * len(sizes))) + budget * sizes // (2 * sizes.sum()))
        draw = generator(self._seed, "checks")
        parts = [
            start + np.sort(draw.choice(size, quota, replace=False))
            for start, size, quota in zip(starts, sizes, quotas, strict=True)
        ]
        return np.concatenate(parts).astype(np.int64)

    @cached_property
    def tensor_of_sample(self) -> Ints:
        """Number of the tensor that each sampled coordinate belongs to, (sampled,)."""
        return np.searchsorted(self.layers.starts, self.coordinates, side="right") - 1

    @cached_property
    def tensor_of_block(self) -> Ints:
        """Number of the tensor that each block belongs to, (blocks,)."""
        return np.searchsorted(self.layers.starts, self.edges, side="right") - 1

    @cached_property
    def block_sizes(self) -> Ints:
        """Number of coordinates of each block, (blocks,)."""
        return np.diff(np.append(self.edges, self.layers.dim))

    @cached_property
    def pairs(self) -> list[tuple[str, str, str]]:
        """All kinds of pairs: ("neighbors", tensor, ""), ("rows", tensor, ""), ("tensors", A, B)."""
        shapes, sizes = self.layers.shapes, dict(zip(self.layers.names, self.layers.sizes, strict=True))
        kinds = [("neighbors", name, "") for name in sizes if sizes[name] >= _SHORT_PREFIX]
        kinds += [
            ("rows", name, "") for name in sizes if len(shapes[name]) > 1 and shapes[name][0] > 1 and sizes[name] >= 16
        ]
        largest = sorted((name for name in sizes if sizes[name] >= _SHORT_PREFIX), key=lambda name: -sizes[name])
        heads = largest[:_MOST_TENSORS]
        kinds += [("tensors", a, b) for i, a in enumerate(heads) for b in heads[:i]]
        return kinds

    @cached_property
    def pair_dimensions(self) -> Ints:
        """Dimensions in which the two halves of each kind of pair are compared, (kinds,)."""
        zeros = np.zeros(self.layers.dim, dtype=np.float32)
        return np.array([len(half) - 1 for half, _ in self._halves(zeros)], dtype=np.int64)

    def bin_of(self, round: int) -> int:
        """Return the bin of a round: the round itself, unless the training is very long."""
        return round * self.bins // self.rounds

    # What happened

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
        index = self.bin_of(round)
        if len(self.squares):
            squares = np.square(to_numpy(update) / unit, dtype=np.float64)
            self.squares += squares
            self.energies[index] += np.add.reduceat(squares, self.edges)
        else:
            self.energies[index] += energies(update, self.edges) / unit**2
        self.counts[index] += 1
        self.rounding[index] = max(self.rounding[index], rounding / unit)
        kept, middle = len(self.samples), len(self.samples) // 2
        slot = round if round < kept else middle + (round - middle) % (kept - middle)
        self.samples[slot] = take(update, self.coordinates) / np.float32(unit)
        self.sampled[slot] = round
        turn = self.copy_rounds
        if self.pairs and turn < COPY_ROUNDS:
            for kind, (half, other) in enumerate(self._halves(update)):
                whole, across, length = float(half @ half), float(half @ other), float(other @ other)
                self.whole[turn, kind] = whole / unit**2
                self.copies[turn, kind] = (whole - across**2 / length if length > 0 else whole) / unit**2

    @property
    def copy_rounds(self) -> int:
        """Number of rounds that were searched for copies."""
        return int(np.count_nonzero(~np.isnan(self.whole[:, -1]))) if self.pairs else 0

    def _halves(self, update: Vector) -> list[tuple[Floats, Floats]]:
        """Return for each kind of pair two vectors of equal length whose noise should be independent."""
        values = {
            name: to_numpy(update[start : start + min(size, _SEARCHED)]).astype(np.float64)
            for name, start, size in zip(self.layers.names, self.layers.starts, self.layers.sizes, strict=True)
        }
        halves: list[tuple[Floats, Floats]] = []
        for kind, first, second in self.pairs:
            if kind == "neighbors":
                halves.append(_alternating(values[first], 1))
            elif kind == "rows":
                halves.append(_alternating(values[first], math.prod(self.layers.shapes[first][1:])))
            else:
                length = _PREFIX if min(values[first].size, values[second].size) >= _PREFIX else _SHORT_PREFIX
                halves.append((values[first][:length], values[second][:length]))
        return halves

    # Checkpoints

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps."""
        return {f"noise_{name}": np.array(getattr(self, name)) for name in _ARRAYS}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        for name in _ARRAYS:
            setattr(self, name, np.array(state[f"noise_{name}"]))


def _block_edges(layers: Layers) -> Ints:
    """Return where each block of coordinates starts: tensors, of which large ones are cut into parts."""
    edges: list[int] = []
    for start, size in zip(layers.starts.tolist(), layers.sizes.tolist(), strict=True):
        parts = max(1, min(_BLOCKS, size // _LEAST_BLOCK))
        edges += [start + size * part // parts for part in range(parts)]
    return np.array(edges, dtype=np.int64)


def _alternating(values: Floats, block: int) -> tuple[Floats, Floats]:
    """Return every other block of ``block`` numbers, and the blocks that follow them."""
    if values.size < 2 * block:
        rest = max(0, values.size - block)
        return values[:rest], values[block:]
    whole = values[: values.size // (2 * block) * (2 * block)].reshape(-1, 2, block)
    return whole[:, 0].ravel(), whole[:, 1].ravel()


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
    largest, stops = largest_sizes(vector, starts), np.append(starts[1:], len(vector))
    roundings: Floats = np.spacing(largest.astype(np.float32)).astype(np.float64) / 2  # of single precision
    # Neither half precision nor bfloat16 uses the last 13 bits of a float32: a few numbers mostly settle the matter.
    first = take(vector, np.minimum(starts[:, None] + np.arange(_FEW), stops[:, None] - 1))
    for tensor, is_single in enumerate((bits_of(first) & (_HALF_STEPS - 1)).any(axis=1).tolist()):
        if not is_single:
            roundings[tensor] = _rounding(vector[starts[tensor] : stops[tensor]], float(largest[tensor]))
    return np.maximum(_grid(vector), roundings)


def _rounding(values: Vector, largest: float) -> float:
    """Return how far rounding may have moved the numbers of a tensor, whose first ones use few bits."""
    single = float(np.spacing(np.float32(largest))) / 2
    few = np.count_nonzero(to_numpy(values[:_FEW])) < _LEAST_NUMBERS
    if few and int((values != 0).sum()) < _LEAST_NUMBERS:
        return single
    if all(is_half(part) for part in _first_and_all(values)):
        return float(np.spacing(np.float16(largest))) / 2
    # bfloat16 has the first 16 bits of a float32, the others are 0.
    is_brain = all(not (bits_of(part) & (_BRAIN_STEPS - 1)).any() for part in _first_and_all(values))
    return single * _BRAIN_STEPS if is_brain else single


def _grid(values: Vector) -> float:
    """Return the step of a grid that all numbers lie on; 0 if there is none.

    Discrete noise on rounded updates lies on a grid, and so does any sum that was rounded after the noise. Coarse noise
    on updates that were not rounded does not.
    """
    several = np.sort(np.abs(to_numpy(values[:_SEVERAL]).astype(np.float64)))
    gaps, largest = several[1:] - several[:-1], float(several[-1])
    wide = gaps[gaps > largest / _MOST_STEPS]
    if np.count_nonzero(gaps) < _LEAST_VALUES - 1 or not wide.size:
        return 0.0
    step = largest / round(largest / float(wide.min()))  # a gap of large numbers has a larger relative error
    is_on_grid = all(_steps_off(part, step) < _OFF_GRID for part in _first_and_all(values))
    return step if is_on_grid else 0.0


def _steps_off(values: Vector, step: float) -> float:
    """Return how far numbers are off a grid, at most, in its steps."""
    steps = to_numpy(values).astype(np.float64) / step
    return float(np.abs(steps - np.round(steps)).max())


def _first_and_all(values: Vector) -> Iterator[Vector]:
    """Yield a few numbers, which mostly settle the matter, and then all in pieces."""
    yield values[:_FEW]
    for part in pieces(len(values), device_of(values)):
        yield values[part]
