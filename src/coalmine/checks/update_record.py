"""What is recorded of a training's updates: a bounded summary, whatever the number of rounds and parameters.

Nobody has to say what a sum was divided by, or what the server did with it: `NoiseRecord` measures updates in a unit of
their own, the size of a typical coordinate of what is new in them. How large the claimed noise is in that unit follows
from the share of the canaries (`coalmine.checks.update_shares`). A coordinate that is exactly zero counts as not
released. The record takes about 16 MB, and for models of up to half a million parameters some vectors of their size.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from coalmine.arrays import Array, Floats, Ints
from coalmine.layers import Layers
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.vectors import dot

THE_UPDATE = "the update"
"""Name of the only tensor if the layers are unknown."""

# The arrays that a checkpoint keeps: those that the checks read, and those that only later rounds need.
_READ = (
    "energies", "numbers", "products", "canaries", "news", "counts", "rounding", "norms", "sampled", "updates",
    "new", "planted", "copies", "whole", "lengths", "squares", "released", "places", "processed",
)  # fmt: skip
_CARRIED = ("before", "older", "dropped", "quiet", "last_round")
_BLOCKS = 4  # parts of a tensor whose energies are kept
_LEAST_BLOCK = 32
_KEPT_ROUNDS, _KEPT_NUMBERS, _LEAST_BINS = 4096, 1 << 20, 256
_MOST_SAMPLED, _LEAST_SAMPLED = 4096, 256
_FIRST = 64  # coordinates that are always sampled, for the seed of a generator to show
_MOST_SQUARES = 1 << 19  # numbers up to which the energy of every single one is kept
_LEAST_NEWS = 1e-6  # share of an update that is new, below which it is rounding
LAGS = 3  # earlier updates that may explain a part of an update, if memory allows
_LAG_NUMBERS, _LAG_DIMENSIONS = 1 << 22, 512
# Copies inside an update are bugs of the code, not of single rounds: a few rounds show them.
_COPY_ROUNDS = 4
_SEARCHED = 1 << 14  # numbers of each tensor that are searched for copies
_PREFIX, _LEAST_HALF = 64, 16

_LEAST_VALUES = 8  # different numbers of about the same size that show a grid: fewer are on one by chance
_MOST_STEPS = 1e5  # of a grid up to the largest number: a finer one is the precision of the numbers themselves
_OFF_GRID = 0.01  # steps


class Pair(NamedTuple):
    """Two stretches of an update whose noise should be independent, or one that is split where it is most like itself.

    Args:
        name: Name of the tensor, or of both.
        tensor: Index of the tensor with the first stretch.
        first: The first stretch.
        second: The second stretch, of equal length; None if the first one is split.
    """

    name: str
    tensor: int
    first: slice
    second: slice | None = None


class NoiseRecord:
    """A bounded record of a training's updates, and of how much of the canaries they contain.

    What a server carries over from earlier updates, as momentum does, adds up faster for canaries that are in every
    round than for noise. So only what the last updates do not explain counts: the *news* of an update.

    Args:
        layers: The tensors of the model.
        rounds: Number of rounds.
        seed: Seed of the sampled coordinates.
    """

    def __init__(self, layers: Layers, rounds: int, seed: int) -> None:
        self.layers, sizes, dim = layers, layers.sizes, layers.dim
        # Large tensors are cut into blocks, so that noise that is missing in a part of them shows.
        edges: list[int] = []
        for start, size in zip(layers.starts.tolist(), sizes.tolist(), strict=True):
            parts = max(1, min(_BLOCKS, size // _LEAST_BLOCK))
            edges += (start + size * np.arange(parts) // parts).tolist()
        self.edges = np.array(edges, dtype=np.int64)
        self.block_sizes = np.diff(np.append(self.edges, dim))
        self.tensor_of_block = np.searchsorted(layers.starts, self.edges, side="right") - 1
        # Energies of a long training are summed over bins of consecutive rounds.
        self.bins = min(rounds, max(_LEAST_BINS, 2 * _KEPT_NUMBERS // (4 * len(edges))))
        self.bin_of_round = np.arange(rounds) * self.bins // rounds
        self.energies, self.numbers = np.zeros((2, self.bins, len(edges)))
        # By tensor: products of news and canaries, and energies of the canaries and of the news.
        self.products, self.canaries, self.news = np.zeros((3, self.bins, len(sizes)))
        self.counts, self.rounding = np.zeros(self.bins, dtype=np.int64), np.zeros(self.bins)
        # How many clip norms a unit is in the sum of the clients, by the stated divisor; 0 if none was stated. And
        # whether anything may have happened to an update after the noise.
        self.norms, self.processed = np.zeros(self.bins), np.zeros((), dtype=bool)
        # The sampled coordinates in ascending order: half of them spread evenly over tensors, half by their size.
        kept = min(rounds, _KEPT_ROUNDS)
        budget = int(np.clip(_KEPT_NUMBERS // kept, _LEAST_SAMPLED, _MOST_SAMPLED))
        quotas = np.minimum(sizes, -(-budget // (2 * len(sizes))) + budget * sizes // (2 * sizes.sum()))
        draw = generator(seed, "checks")
        sampled = [np.arange(min(_FIRST, dim))]
        for start, size, quota in zip(layers.starts, sizes, quotas, strict=True):
            sampled.append(start + draw.choice(size, quota, replace=False))
        self.coordinates = np.unique(np.concatenate(sampled)).astype(np.int64)
        self.tensor_of_sample = np.searchsorted(layers.starts, self.coordinates, side="right") - 1
        self.updates, self.new, self.planted = np.zeros((3, kept, len(self.coordinates)), dtype=np.float32)
        self.sampled = np.full(kept, -1, dtype=np.int64)
        self.pairs = self._pairs()
        # Energy of one half of pairs after projecting out the other half, and before: (rounds, pairs).
        self.copies, self.whole = np.full((2, _COPY_ROUNDS, len(self.pairs)), np.nan)
        self.lengths = np.zeros(len(self.pairs), dtype=np.int64)  # of the halves
        self.places = np.zeros((len(self.pairs), 2), dtype=np.int64)  # where each is split; and 1 if backwards
        # Energy of each single number over all rounds, and how often it was released.
        self.squares, self.released = np.zeros((2, dim if dim <= _MOST_SQUARES else 0), dtype=np.float32)
        # The last updates, at most ``lags`` of them; the mean of those before; and how many these were.
        self.lags = max(1, min(LAGS, _LAG_NUMBERS // dim, dim // _LAG_DIMENSIONS))
        self.before, self.older = np.zeros((0, dim), dtype=np.float32), np.zeros(dim * (self.lags > 1), np.float32)
        self.dropped, self.last_round = np.zeros((), dtype=np.int64), np.full((), -1, dtype=np.int64)
        self.quiet = np.zeros(dim, dtype=np.uint8)  # rounds since each number was released, at most 255

    def _pairs(self) -> list[Pair]:
        """Return each tensor, and the starts of tensors of neighboring sizes."""
        layers, sizes, starts = self.layers, self.layers.sizes, self.layers.starts.tolist()
        ordered = np.argsort(-sizes, kind="stable")[: np.sum(sizes >= _LEAST_HALF)].tolist()
        pairs = []
        for number in ordered:
            if sizes[number] >= 4 * _LEAST_HALF:
                searched = slice(starts[number], starts[number] + min(int(sizes[number]), _SEARCHED))
                pairs.append(Pair(layers.names[number], number, searched))
        for larger, number in pairwise(ordered):
            length, name = min(int(sizes[number]), _PREFIX), f"{layers.names[number]} and {layers.names[larger]}"
            one, other = (slice(starts[tensor], starts[tensor] + length) for tensor in (number, larger))
            pairs.append(Pair(name, number, one, other))
        return pairs

    def add(
        self,
        round: int,
        update: Vector,
        canaries: Vector,
        *,
        rounding: float = 0.0,
        norm: float = 0.0,
        unprocessed: bool = False,
    ) -> None:
        """Record an update.

        Args:
            round: Number of the round.
            update: The update in any unit, (dim,).
            canaries: Sum of the inserted canaries in clip norms, (dim,).
            rounding: How far rounding may have moved each number, at least.
            norm: How many clip norms one unit of the update is in the sum of the clients; 0 if unknown.
            unprocessed: Whether nothing but a division has happened to the noisy sum.
        """
        sampled = update[self.coordinates]
        released = sampled != 0
        if not released.any():
            return
        # A strong signal in few coordinates does not change the median.
        size = float(np.median(np.abs(sampled[released])))
        rounding = max(rounding, largest_rounding(sampled, self.tensor_of_sample))
        update = update / np.float32(size)
        # What was not released for n rounds may have been added up, which leaves n canaries and √n of the noise. As if
        # √n canaries had been planted, it then has the share that it has in one round.
        passed = max(1, round - int(self.last_round))
        self.quiet += np.minimum(255 - self.quiet, passed).astype(np.uint8)
        if self.quiet.max() > 1:
            canaries = canaries * np.sqrt(self.quiet, dtype=np.float32)
        self.quiet[update != 0], self.last_round[...] = 0, round
        news = self._news(update, canaries)
        # In units of what is new, noise has the same size however the server scales it, and whatever it carries over.
        unit = max(float(np.median(np.abs(news[self.coordinates][released]))), _LEAST_NEWS)
        index, starts = self.bin_of_round[round], self.layers.starts
        self.energies[index] += _products(update, update, self.edges) / unit**2
        self.numbers[index] += [np.count_nonzero(part) for part in np.split(update, self.edges[1:])]
        if len(self.squares):
            self.squares += np.square(update / np.float32(unit))
            self.released += update != 0
        self.products[index] += _products(news, canaries, starts) / unit
        self.canaries[index] += _products(canaries, canaries, starts)
        self.news[index] += _products(news, news, starts) / unit**2
        self.counts[index] += 1
        self.rounding[index] = max(self.rounding[index], rounding / (unit * size))
        self.norms[index] = max(self.norms[index], norm * unit * size)
        self.processed |= not unprocessed
        # Of a long training the first and the last rounds are kept.
        kept, middle = len(self.updates), len(self.updates) // 2
        slot = round if round < kept else middle + (round - middle) % (kept - middle)
        self.sampled[slot] = round
        for rows, vector, scale in ((self.updates, update, unit), (self.new, news, unit), (self.planted, canaries, 1)):
            rows[slot] = vector[self.coordinates] / np.float32(scale)
        self._compare_halves(update, unit)

    def _news(self, update: Vector, canaries: Vector) -> Vector:
        """Return what is new in an update beside the last ones."""
        news, length = update, dot(canaries, canaries)
        if len(self.before):
            # Least squares on the updates before. What is in all of them is no sign that anything was carried over:
            # neither the canaries, nor what clients send again and again, for which the mean of older updates stands.
            terms = [*self.before, self.older] if self.dropped and self.older.size else [*self.before]
            gram = np.array([[dot(one, other) for other in terms] for one in terms])
            across = np.array([dot(one, update) for one in terms])
            if length > 0:
                products = np.array([dot(one, canaries) for one in terms])
                gram -= np.outer(products, products) / length
                across -= products * dot(update, canaries) / length
            factors = np.linalg.lstsq(gram, across, rcond=1e-6)[0]
            news = update - factors[: len(self.before)].astype(np.float32) @ self.before
        if len(self.before) == self.lags:
            self.dropped += 1
            if self.older.size:
                self.older += (self.before[0] - self.older) / np.float32(self.dropped)
            self.before = self.before[1:]
        self.before = np.concatenate([self.before, update[None]]) if len(self.before) else update[None]
        return news

    def _compare_halves(self, update: Vector, unit: float) -> None:
        """Record how much of one half of each pair the other half explains, in the first few rounds."""
        unused = np.flatnonzero(np.isnan(self.whole).all(axis=1))
        if not self.pairs or not len(unused):
            return
        slot = unused[0]
        for number, pair in enumerate(self.pairs):
            half = update[pair.first].astype(np.float64) / unit
            if pair.second is None:
                if slot == 0:
                    self.places[number] = _most_alike(half)
                half, other = _split(half, *self.places[number].tolist())
            else:
                other = update[pair.second].astype(np.float64) / unit
            whole, across, length = float(half @ half), float(half @ other), float(other @ other)
            # The round that chose the place cannot test it. It keeps all its energy, which can only hide a copy.
            tests = length > 0 and (slot > 0 or pair.second is not None)
            self.whole[slot, number], self.lengths[number] = whole, half.size
            self.copies[slot, number] = whole - across**2 / length if tests else whole

    def rounds(self) -> Ints:
        """Return the slots of sampled rounds in order of the rounds."""
        return np.argsort(self.sampled)[np.sum(self.sampled < 0) :]

    def state(self, *, carried: bool = True) -> dict[str, Array]:
        """Return what a checkpoint keeps, or only what checks read."""
        return {name: np.array(getattr(self, name)) for name in (*_READ, *(_CARRIED if carried else ()))}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore what `state` returned."""
        for name, array in state.items():
            setattr(self, name, np.array(array))


def _products(one: Vector, other: Vector, starts: Ints) -> Floats:
    """Return the dot product of two vectors in each stretch, without temporary vectors."""
    pairs = zip(np.split(one, starts[1:]), np.split(other, starts[1:]), strict=True)
    return np.array([dot(*pair) for pair in pairs])


def _most_alike(values: Floats) -> tuple[int, bool]:
    """Return where a vector is most like itself: at which lag, or about which sum of two places if backwards."""
    spectrum = np.fft.rfft(values - values.mean(), 2 * values.size)
    # x[i] · x[i + lag] summed over i, and x[i] · x[sum − i], which counts all twice; both of enough terms.
    lags = np.abs(np.fft.irfft(np.abs(spectrum) ** 2))[1 : values.size - _LEAST_HALF]
    sums = np.abs(np.fft.irfft(spectrum**2))[2 * _LEAST_HALF : 2 * (values.size - _LEAST_HALF)]
    if lags.max() > sums.max() / 2:
        return int(np.argmax(lags)) + 1, False
    return int(np.argmax(sums)) + 2 * _LEAST_HALF, True


def _split(values: Floats, place: int, mirrored: int) -> tuple[Floats, Floats]:
    """Return two halves of a vector that are so far apart, or mirror each other, without common numbers."""
    if mirrored:
        first = np.arange(max(0, place - values.size + 1), (place + 1) // 2)
        return values[first], values[place - first]
    if values.size < 2 * place:
        return values[: max(0, values.size - place)], values[place:]
    blocks = values[: values.size // (2 * place) * (2 * place)].reshape(-1, 2, place)
    return blocks[:, 0].ravel(), blocks[:, 1].ravel()


def largest_rounding(values: Vector, tensors: Ints) -> float:
    """Return how far rounding may have moved a number, by the precision that numbers turn out to have.

    Rounding to half precision, bfloat16 or a fixed grid is no bug of the noise. Numbers within a factor of two of the
    largest one are then on a grid. On it, rounding moves a number by up to a whole step, since it may have been
    stochastic. Each tensor is looked at by itself, since layers often differ, and all together, since small ones show
    little.

    Args:
        values: Numbers of the release, (n,).
        tensors: The tensor of each, (n,).

    Example:
        >>> noise = np.random.default_rng(0).normal(size=1000).astype(np.float32)
        >>> f"{largest_rounding(noise, np.zeros(1000)):.1g}"
        '1e-07'
        >>> f"{largest_rounding(noise.astype(np.float16), np.zeros(1000)):.1g}"
        '0.001'
        >>> f"{largest_rounding((noise / 0.01).round() * np.float32(0.01), np.zeros(1000)):.1g}"
        '0.01'
    """
    rounding = float(np.spacing(np.abs(values).max().astype(np.float32))) / 2  # of single precision
    for part in (values, *(values[tensors == tensor] for tensor in np.unique(tensors))):
        # Half precision has one step for numbers of about one size, which one sign keeps apart from an offset.
        sizes = np.abs(part)
        for near in (part, part[2 * sizes > sizes.max()]):
            several = np.unique(near[near != 0].astype(np.float64))
            gaps = np.diff(several)
            gaps = gaps[gaps > np.abs(several).max(initial=0.0) / _MOST_STEPS]
            if len(several) < _LEAST_VALUES or not gaps.size:
                continue
            span = several[-1] - several[0]
            step = span / round(span / float(gaps.min()))  # a gap of large numbers has a larger relative error
            # Quantization from the least to the largest number need not have 0 on its grid. The smaller of these
            # numbers of half precision may have half of the step.
            steps = 2 * (several - several[0]) / step
            if float(np.abs(steps - np.round(steps)).max()) < _OFF_GRID:
                rounding = max(rounding, step)
    return rounding
