"""What checks of the noise remember of each round's update: energies, a sample of coordinates, and copies.

An update is recorded in units of clip norm / divisor, the most that one client moves it. Claimed noise then has the
noise multiplier as its standard deviation, which need not be known before the end. It takes about 12 MB at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats, Ints
from coalmine.layers import Layers
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.vectors import energies, take, to_numpy

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

_ARRAYS = ("energies", "counts", "divisor", "rounding", "samples", "sampled", "copies", "whole", "lag", "squares")


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
        self.lag = np.zeros(1, dtype=np.int64)
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
        """All kinds of pairs: ("neighbors", tensor, ""), ("rows", tensor, ""), ("tensors", A, B), ("lag", "", "")."""
        shapes, sizes = self.layers.shapes, dict(zip(self.layers.names, self.layers.sizes, strict=True))
        kinds = [("neighbors", name, "") for name in sizes if sizes[name] >= _SHORT_PREFIX]
        kinds += [
            ("rows", name, "") for name in sizes if len(shapes[name]) > 1 and shapes[name][0] > 1 and sizes[name] >= 16
        ]
        largest = sorted((name for name in sizes if sizes[name] >= _SHORT_PREFIX), key=lambda name: -sizes[name])
        heads = largest[:_MOST_TENSORS]
        kinds += [("tensors", a, b) for i, a in enumerate(heads) for b in heads[:i]]
        return [*kinds, ("lag", "", "")]

    @cached_property
    def pair_dimensions(self) -> Ints:
        """Dimensions in which the two halves of each kind of pair are compared, (kinds,); for the lag see `lag`."""
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
        kept, half = len(self.samples), len(self.samples) // 2
        slot = round if round < kept else half + (round - half) % (kept - half)
        self.samples[slot] = take(update, self.coordinates) / np.float32(unit)
        self.sampled[slot] = round
        turn = COPY_ROUNDS - int(np.count_nonzero(np.isnan(self.whole[:, -1])))
        if turn < COPY_ROUNDS:
            self._add_copies(turn, update, unit)

    def _add_copies(self, turn: int, update: Vector, unit: float) -> None:
        """Compare halves of the update with each other."""
        if turn == 0:  # this round chooses the lag, the next ones test it
            self.lag[0] = _likeliest_lag(to_numpy(update[:_SEARCHED]))
        for kind, (half, other) in enumerate(self._halves(update)):
            whole, across, length = float(half @ half), float(half @ other), float(other @ other)
            self.whole[turn, kind] = whole / unit**2
            self.copies[turn, kind] = (whole - across**2 / length if length > 0 else whole) / unit**2
        if turn == 0:
            self.copies[0, -1] = np.nan  # it chose the lag, so it cannot test it

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
            elif kind == "tensors":
                length = _PREFIX if min(values[first].size, values[second].size) >= _PREFIX else _SHORT_PREFIX
                halves.append((values[first][:length], values[second][:length]))
            else:
                first_numbers = to_numpy(update[:_SEARCHED]).astype(np.float64)
                halves.append(_alternating(first_numbers, max(1, int(self.lag[0]))))
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


def _likeliest_lag(values: Vector) -> int:
    """Return the lag at which a vector is most like itself."""
    length = 1 << (2 * values.size - 1).bit_length()
    spectrum = np.fft.rfft(values.astype(np.float64) - float(values.mean()), length)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2, length)[1 : max(2, values.size - _SHORT_PREFIX)]
    return int(np.argmax(np.abs(correlation))) + 1
