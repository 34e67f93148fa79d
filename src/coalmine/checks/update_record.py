"""What is recorded of a training's updates: a bounded summary, whatever the number of rounds and parameters.

An update is recorded in a unit of its own, the size of a typical coordinate: how large the claimed noise is in it
follows from the share of the canaries (`coalmine.checks.update_shares`). A coordinate that is exactly zero counts as
not released. `NoiseRecord` takes about 12 MB. `coalmine.checks.update_noise` tests what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from coalmine.arrays import Array, Floats, Ints
from coalmine.layers import Layers
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.vectors import CPU, dot, on, pieces

THE_UPDATE = "the update"
"""Name of the only tensor if the layers are unknown."""

# The arrays that a checkpoint keeps.
_RECORDED = ("energies", "numbers", "counts", "rounding", "samples", "sampled", "copies", "whole", "lengths", "squares")
_BLOCKS = 4  # parts of a tensor whose energies are kept
_LEAST_BLOCK = 32
_KEPT_ROUNDS, _KEPT_NUMBERS, _LEAST_BINS = 4096, 1 << 21, 256
_MOST_SAMPLED, _LEAST_SAMPLED = 2048, 256
_MOST_SQUARES = 1 << 19  # numbers up to which the energy of every single one is kept
# Copies inside an update are bugs of the code, not of single rounds: a few rounds show them.
_COPY_ROUNDS = 4
_SEARCHED = 1 << 14  # numbers of each tensor that are searched for copies
_PREFIX, _SHORT_PREFIX, _MOST_TENSORS = 64, 16, 128

# Precision: of single precision, so many steps are one of bfloat16 and of half precision.
_BRAIN_STEPS, _HALF_STEPS = 1 << 16, 1 << 13
_FEW, _SEVERAL = 64, 256
_LEAST_NUMBERS = 8  # other than 0: fewer may have few digits by chance
_LEAST_VALUES = 8  # that differ, to recognize a grid: fewer are hardly noise
_MOST_STEPS = 1e5  # of a grid up to the largest number: a finer one is the precision of the numbers themselves
_OFF_GRID = 0.01  # steps


class Pair(NamedTuple):
    """Two halves of an update whose noise should be independent: two stretches, or one and itself at another place.

    Args:
        kind: ``"neighbors"``, ``"rows"``, ``"tensors"`` or ``"update"``.
        name: Name of the tensor, or of both.
        first: The stretch.
        second: The other stretch, of equal length; None if there is none.
        place: How much later the second half of a single stretch is; or, if it is mirrored, the sum of two places.
        mirrored: Whether the second half runs backwards.
    """

    kind: str
    name: str
    first: slice
    second: slice | None = None
    place: int = 0
    mirrored: bool = False

    def halves(self, update: Vector) -> tuple[Floats, Floats]:
        """Return both halves of an update, without common numbers."""
        values, place = update[self.first].astype(np.float64), self.place
        if self.second is not None:
            return values, update[self.second].astype(np.float64)
        if self.mirrored:
            first = np.arange(max(0, place - values.size + 1), (place + 1) // 2)
            return values[first], values[place - first]
        if values.size < 2 * place:
            return values[: max(0, values.size - place)], values[place:]
        blocks = values[: values.size // (2 * place) * (2 * place)].reshape(-1, 2, place)
        return blocks[:, 0].ravel(), blocks[:, 1].ravel()


class NoiseRecord:
    """A bounded record of a training's updates.

    Args:
        layers: The tensors of the model.
        rounds: Number of rounds.
        seed: Seed of the sampled coordinates.
    """

    def __init__(self, layers: Layers, rounds: int, seed: int) -> None:
        self.layers, sizes = layers, layers.sizes
        # Large tensors are cut into blocks, so that noise that is missing in a part of them shows.
        edges: list[int] = []
        for start, size in zip(layers.starts.tolist(), sizes.tolist(), strict=True):
            parts = max(1, min(_BLOCKS, size // _LEAST_BLOCK))
            edges += (start + size * np.arange(parts) // parts).tolist()
        self.edges = np.array(edges, dtype=np.int64)
        self.block_sizes = np.diff(np.append(self.edges, layers.dim))
        self.tensor_of_block = np.searchsorted(layers.starts, self.edges, side="right") - 1
        # Energies of a long training are summed over bins of consecutive rounds.
        self.bins = min(rounds, max(_LEAST_BINS, _KEPT_NUMBERS // (4 * len(edges))))
        self.bin_of_round = np.arange(rounds) * self.bins // rounds
        self.energies, self.numbers = np.zeros((2, self.bins, len(edges)))
        self.counts, self.rounding = np.zeros(self.bins, dtype=np.int64), np.zeros(self.bins)
        # The sampled coordinates in ascending order: half of them spread evenly over tensors, half by their size.
        kept = min(rounds, _KEPT_ROUNDS)
        budget = int(np.clip(_KEPT_NUMBERS // kept, _LEAST_SAMPLED, _MOST_SAMPLED))
        quotas = np.minimum(sizes, -(-budget // (2 * len(sizes))) + budget * sizes // (2 * sizes.sum()))
        draw = generator(seed, "checks")
        sampled = []
        for start, size, quota in zip(layers.starts, sizes, quotas, strict=True):
            sampled.append(start + np.sort(draw.choice(size, quota, replace=False)))
        self.coordinates = np.concatenate(sampled).astype(np.int64)
        self.tensor_of_sample = np.searchsorted(layers.starts, self.coordinates, side="right") - 1
        self.samples = np.zeros((kept, len(self.coordinates)), dtype=np.float32)
        self.sampled = np.full(kept, -1, dtype=np.int64)
        # Every other number and the one after it, every other row and the next, and the starts of two tensors.
        neighbors, rows, tensors = list[Pair](), list[Pair](), list[Pair]()
        large = np.flatnonzero(sizes >= _SHORT_PREFIX)
        for number in large.tolist():
            name, start = layers.names[number], int(layers.starts[number])
            searched = slice(start, start + min(int(sizes[number]), _SEARCHED))
            neighbors.append(Pair("neighbors", name, searched, place=1))
            row = math.prod(layers.shapes[name][1:])
            if len(layers.shapes[name]) > 1 and row < sizes[number]:
                rows.append(Pair("rows", name, searched, place=row))
        large = large[np.argsort(-sizes[large], kind="stable")][:_MOST_TENSORS]
        for i, number in enumerate(large.tolist()):
            length = _PREFIX if sizes[number] >= _PREFIX else _SHORT_PREFIX
            for larger in large[:i].tolist():
                names = f"{layers.names[number]} and {layers.names[larger]}"
                one, other = (slice(start, start + length) for start in layers.starts[[number, larger]].tolist())
                tensors.append(Pair("tensors", names, one, other))
        self.pairs = [*neighbors, *rows, *tensors]
        if layers.dim >= 4 * _SHORT_PREFIX:  # the whole update, at the place where it is most like itself
            self.pairs.append(Pair("update", THE_UPDATE, slice(_SEARCHED)))
        # Energy of one half of pairs after projecting out the other half, and before: (rounds, pairs).
        self.copies = np.full((_COPY_ROUNDS, len(self.pairs)), np.nan)
        self.whole = np.full((_COPY_ROUNDS, len(self.pairs)), np.nan)
        self.lengths = np.zeros(len(self.pairs), dtype=np.int64)  # of the halves
        # Energy of each single number over all rounds.
        self.squares = np.zeros(layers.dim if layers.dim <= _MOST_SQUARES else 0)

    def unit(self, update: Vector) -> float:
        """Return the size of a typical coordinate, which a strong signal in few of them does not change."""
        released = np.abs(update[self.coordinates])
        released = released[released > 0]
        return float(np.median(released)) if released.size else 0.0

    def add(self, round: int, update: Vector, unit: float, rounding: float) -> None:
        """Record an update.

        Args:
            round: Number of the round.
            update: The update, (dim,).
            unit: What it is measured in.
            rounding: How far rounding may have moved each number of the update.
        """
        index = self.bin_of_round[round]
        if len(self.squares):
            squares = np.square(update / unit, dtype=np.float64)
            energies = np.add.reduceat(squares, self.edges)
            numbers = np.add.reduceat(squares > 0, self.edges, dtype=np.float64)
            # A coordinate that is not released in this round counts as others in its block.
            usual = np.repeat(energies / np.maximum(numbers, 1), self.block_sizes)
            self.squares += np.where(squares > 0, squares, usual)
            self.energies[index] += energies
            self.numbers[index] += numbers
        else:
            for block, (start, size) in enumerate(zip(self.edges.tolist(), self.block_sizes.tolist(), strict=True)):
                part = update[start : start + size]
                self.energies[index, block] += dot(part, part) / unit**2
                self.numbers[index, block] += np.count_nonzero(part)
        self.counts[index] += 1
        self.rounding[index] = max(self.rounding[index], rounding / unit)
        # Of a long training the first and the last rounds are kept.
        kept, middle = len(self.samples), len(self.samples) // 2
        slot = round if round < kept else middle + (round - middle) % (kept - middle)
        self.samples[slot] = update[self.coordinates] / np.float32(unit)
        self.sampled[slot] = round
        self._compare_halves(update, unit)

    def _compare_halves(self, update: Vector, unit: float) -> None:
        """Record how much of one half of each pair the other half explains, in the first few rounds."""
        unused = np.flatnonzero(np.isnan(self.whole).all(axis=1))
        if not self.pairs or not len(unused):
            return
        slot, searches = unused[0], self.pairs[-1].kind == "update"
        if searches and slot == 0:
            # Where the vector is most like itself: at which lag, or about which sum of two places if backwards.
            values = update[:_SEARCHED].astype(np.float64)
            spectrum = np.fft.rfft(values - values.mean(), 2 * values.size)
            # x[i] · x[i + lag] summed over i, and x[i] · x[sum − i], which counts all twice; both of enough terms.
            lags = np.abs(np.fft.irfft(np.abs(spectrum) ** 2))[1 : values.size - _SHORT_PREFIX]
            sums = np.abs(np.fft.irfft(spectrum**2))[2 * _SHORT_PREFIX : 2 * (values.size - _SHORT_PREFIX)]
            place, mirrored = int(np.argmax(lags)) + 1, not lags.max() > sums.max() / 2
            if mirrored:
                place = int(np.argmax(sums)) + 2 * _SHORT_PREFIX
            self.pairs[-1] = self.pairs[-1]._replace(place=place, mirrored=mirrored)
        for number, pair in enumerate(self.pairs):
            half, other = pair.halves(update)
            whole, across, length = float(half @ half), float(half @ other), float(other @ other)
            rest = whole - across**2 / length if length > 0 else whole
            self.whole[slot, number], self.copies[slot, number] = whole / unit**2, rest / unit**2
            self.lengths[number] = half.size
        if searches and slot == 0:
            # The round that chose the place cannot test it. It keeps all its energy, which can only hide a copy.
            self.copies[0, -1] = self.whole[0, -1]

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint keeps."""
        places = [[pair.place, pair.mirrored] for pair in self.pairs[-1:]]
        return {name: np.array(getattr(self, name)) for name in _RECORDED} | {"place": np.array(places, dtype=np.int64)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore what `state` returned."""
        for name in _RECORDED:
            setattr(self, name, np.array(state[name]))
        for place, mirrored in state["place"].tolist():
            self.pairs[-1] = self.pairs[-1]._replace(place=place, mirrored=bool(mirrored))


def largest_roundings(vector: Vector, starts: Ints) -> Floats:
    """Return how far rounding may have moved a number of each tensor, by the precision that it turns out to have.

    Rounding to half precision, bfloat16 or a fixed grid is no bug of the noise. Each tensor is looked at by itself,
    since layers often differ; fixed-point numbers, as of secure aggregation, have one grid. On a grid, rounding moves a
    number by up to a whole step, since it may have been stochastic.

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
    is_single = (first.view(np.int32) & (_HALF_STEPS - 1)).any(axis=1)
    for tensor in np.flatnonzero(~is_single).tolist():
        roundings[tensor] = _coarse_rounding(vector[starts[tensor] : stops[tensor]], float(largest[tensor]))
    # Discrete noise on rounded updates lies on a grid, and so does any sum that was rounded after the noise. Coarse
    # noise on updates that were not rounded does not.
    several = np.sort(on(CPU, vector[:_SEVERAL]).astype(np.float64))
    gaps, span = several[1:] - several[:-1], several[-1] - several[0]
    wide = gaps[gaps > np.abs(several).max() / _MOST_STEPS]
    if len(np.unique(np.abs(several))) < _LEAST_VALUES or not wide.size:
        return roundings
    step = span / round(span / float(wide.min()))  # a gap of large numbers has a larger relative error
    for piece in (slice(_SEVERAL), *pieces(len(vector), vector.device)):  # the first few mostly settle the matter
        # Quantization from the least to the largest number need not have 0 on its grid.
        steps = (on(CPU, vector[piece]).astype(np.float64) - several[0]) / step
        if float(np.abs(steps - np.round(steps)).max()) >= _OFF_GRID:
            return roundings
    return np.asarray(np.maximum(step, roundings))


def _coarse_rounding(values: Vector, largest: float) -> float:
    """Return how far rounding may have moved the numbers of a tensor, whose first ones use few bits."""
    single = float(np.spacing(np.float32(largest))) / 2
    if int((values != 0).sum()) < _LEAST_NUMBERS:
        return single
    numbers = on(CPU, values)
    with np.errstate(over="ignore"):
        if np.array_equal(numbers.astype(np.float16), numbers):
            return float(np.spacing(np.float16(largest))) / 2
    # bfloat16 has the first 16 bits of a float32, the others are 0.
    is_brain = not (numbers.view(np.int32) & (_BRAIN_STEPS - 1)).any()
    return single * _BRAIN_STEPS if is_brain else single
