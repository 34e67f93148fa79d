"""The noise of a training's updates: what is recorded of each one, and whether the claimed noise is in it.

An update is recorded in units of clip norm / divisor, the most that one client moves it. Claimed noise then has the
noise multiplier as its standard deviation, which need not be known before the end. `NoiseRecord` takes about 12 MB.

Afterwards `noise_findings` asks: is there enough noise, everywhere, drawn anew each time, independent and normal? Each
test uses one lemma (`coalmine.stats.exact_tests`): in a subspace fixed before the noise of a round is drawn, the update
has at least the energy of the claimed noise, whatever the clients sent. docs/checks.md has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from coalmine.arrays import Bools, Floats, Ints
from coalmine.layers import Layers
from coalmine.protocol import Vector
from coalmine.results.summary import list_rounds, plural
from coalmine.results.verdict import Check, Finding
from coalmine.seeds import generator
from coalmine.stats.exact_tests import energy_p_value, near_zero_p_value, noise_at_most
from coalmine.vectors import CPU, dot, on, pieces

THE_UPDATE = "the update"
"""Name of the only tensor if the layers are unknown."""

NOISE_CHECKS = (Check.PLACES, Check.FRESH, Check.INDEPENDENT, Check.SHAPE)

RECORDED = ("energies", "counts", "divisor", "rounding", "samples", "sampled", "copies", "whole", "place", "squares")
"""The arrays of a `NoiseRecord` that a checkpoint keeps."""

# What is recorded

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

# What is tested

# Families of tests of the size: blocks, rounds, blocks in single rounds, numbers near zero, single numbers.
_SIZE_TESTS = 5
_UNCOMMON = 0.01  # probability of an energy, over the number of blocks, below which it is of another size
_WIDTHS = (0.1, 0.001)  # standard deviations of the claimed noise that count as near zero
_LISTED = 3
_ALIKE = 0.15  # relative difference up to which factors count as the same
_LEAST_FACTOR = 3.0  # by which everything is smaller if it was divided by a number of clients
_TOLD_APART = 6  # standard errors
_LEAST_DIMENSIONS = 50  # in which noise of the claimed size is never twice as large by chance (p < 1e-17)
# A copy explains at least this share of the energy. Where it does not, the noise is missing rather than copied.
_EXPLAINED = 0.2
_REPEATED = 0.6  # share from which on noise is said to repeat other noise rather than to depend on it
_LEAST_SAMPLE = 8
_MOST_BY_TENSOR = 1024  # rounds up to which repeats are looked for in each tensor
# Shape: half of the range and the width of one place where values are counted, in standard deviations, and how much of
# the range the likeliest places may fill.
_RANGE, _PLACE = 5.0, 0.05
_MEASURES = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0)
_SUBJECTS = {THE_UPDATE: "The update"}  # names that a sentence does not start with as they are
_COPIES = {"neighbors": "Neighboring coordinates of ", "rows": "The rows of ", "tensors": "", "update": "Parts of "}


class Pair(NamedTuple):
    """Two halves of an update, of equal length, whose noise should be independent.

    Args:
        kind: ``"neighbors"``, ``"rows"``, ``"tensors"`` or ``"update"``.
        name: Name of the tensor, or of both.
        first: Number of the tensor of the first half, which is its start.
        second: Number of the tensor of the second half.
        shift: Where the second half starts in its tensor.
        length: Length of both halves, or of their blocks.
        blocks: Number of blocks if the halves alternate in blocks; 0 if they do not.
    """

    kind: str
    name: str
    first: int
    second: int
    shift: int
    length: int
    blocks: int = 0


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
        self.energies = np.zeros((self.bins, len(edges)))
        self.counts, self.rounding = np.zeros(self.bins, dtype=np.int64), np.zeros(self.bins)
        self.divisor = np.zeros(1)  # the largest one
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
            name, searched = layers.names[number], min(int(sizes[number]), _SEARCHED)
            neighbors.append(Pair("neighbors", name, number, number, 1, 1, searched // 2))
            row = math.prod(layers.shapes[name][1:])
            if len(layers.shapes[name]) > 1 and row < sizes[number]:
                blocks = searched // (2 * row)
                rest = max(0, searched - row)  # of rows longer than half of what is searched
                rows.append(Pair("rows", name, number, number, row, row if blocks else rest, blocks))
        large = large[np.argsort(-sizes[large], kind="stable")][:_MOST_TENSORS]
        for i, number in enumerate(large.tolist()):
            length = _PREFIX if sizes[number] >= _PREFIX else _SHORT_PREFIX
            for larger in large[:i].tolist():
                names = f"{layers.names[number]} and {layers.names[larger]}"
                tensors.append(Pair("tensors", names, number, larger, 0, length))
        self.pairs = [*neighbors, *rows, *tensors]
        # Where the update is most like itself, whether backwards, and how many numbers are compared. The first round
        # chooses the place, so it cannot test it.
        self.place = np.zeros(3, dtype=np.int64)
        if layers.dim >= 4 * _SHORT_PREFIX:
            self.pairs.append(Pair("update", THE_UPDATE, 0, 0, 0, 0))
        # Energy of one half of pairs after projecting out the other half, and before: (rounds, pairs).
        self.copies = np.full((_COPY_ROUNDS, len(self.pairs)), np.nan)
        self.whole = np.full((_COPY_ROUNDS, len(self.pairs)), np.nan)
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
        values: list[Floats] = []
        for start, size in zip(self.layers.starts, self.layers.sizes, strict=True):
            values.append(on(CPU, update[start : start + min(size, _SEARCHED)]).astype(np.float64))
        for number, pair in enumerate(self.pairs):
            half = values[pair.first][: pair.length]
            other = values[pair.second][pair.shift : pair.shift + pair.length]
            if pair.kind == "update":
                start = on(CPU, update[:_SEARCHED]).astype(np.float64)
                chosen = unused[0] > 0
                if not chosen:
                    self.place[:2] = _most_alike_at(start)
                half, other = _halves(start, *self.place[:2].tolist())
                self.place[2] = half.size
                # The round that chose the place keeps all its energy, which can only hide a copy.
                other = other if chosen else np.zeros(half.size)
            elif pair.blocks:
                blocks = values[pair.first][: 2 * pair.length * pair.blocks].reshape(-1, 2, pair.length)
                half, other = blocks[:, 0].ravel(), blocks[:, 1].ravel()
            whole, across, length = float(half @ half), float(half @ other), float(other @ other)
            rest = whole - across**2 / length if length > 0 else whole
            self.whole[unused[0], number], self.copies[unused[0], number] = whole / unit**2, rest / unit**2


def _most_alike_at(values: Floats) -> tuple[int, bool]:
    """Return where a vector is most like itself: at which lag, or about which sum of two places if backwards."""
    spectrum = np.fft.rfft(values - values.mean(), 2 * values.size)
    # x[i] · x[i + lag] summed over i, and x[i] · x[sum − i], which counts everything twice; both of enough terms.
    lags = np.abs(np.fft.irfft(np.abs(spectrum) ** 2))[1 : values.size - _SHORT_PREFIX]
    sums = np.abs(np.fft.irfft(spectrum**2))[2 * _SHORT_PREFIX : 2 * (values.size - _SHORT_PREFIX)]
    if lags.max() > sums.max() / 2:
        return int(np.argmax(lags)) + 1, False
    return int(np.argmax(sums)) + 2 * _SHORT_PREFIX, True


def _halves(values: Floats, place: int, backwards: int) -> tuple[Floats, Floats]:
    """Return two halves of a vector without common numbers, the second one a lag later or mirrored."""
    if backwards:
        first = np.arange(max(0, place - values.size + 1), (place + 1) // 2)
        return values[first], values[place - first]
    if values.size < 2 * place:
        return values[: values.size - place], values[place:]
    blocks = values[: values.size // (2 * place) * (2 * place)].reshape(-1, 2, place)
    return blocks[:, 0].ravel(), blocks[:, 1].ravel()


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
    several = np.sort(np.abs(on(CPU, vector[:_SEVERAL]).astype(np.float64)))
    gaps = several[1:] - several[:-1]
    wide = gaps[gaps > several[-1] / _MOST_STEPS]
    if np.count_nonzero(gaps) < _LEAST_VALUES - 1 or not wide.size:
        return roundings
    step = several[-1] / round(several[-1] / float(wide.min()))  # a gap of large numbers has a larger relative error
    for piece in (slice(_SEVERAL), *pieces(len(vector), vector.device)):  # the first few mostly settle the matter
        steps = on(CPU, vector[piece]).astype(np.float64) / step
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


@dataclass(frozen=True, eq=False, kw_only=True)
class ClaimedNoise:
    """The record of a training beside the noise that it claims.

    Args:
        record: What was recorded, of at least one round.
        noise_multipliers: Claimed noise multiplier of each round, (rounds,).
        level: Significance of each of the checks.
        energies: Energy of each block in each round in units of the claimed variance, (rounds, blocks).
        dimensions: Dimensions of these energies, (rounds, blocks).
        by_block: The p-value of each block over all rounds, adjusted for all tests of its check, (blocks,).
        low_tensors: Which tensors have a block with too little noise, (tensors,).
        sampled: Sampled rounds in order.
        rows: Their updates in standard deviations of the noise, (sampled, coordinates).
        row_rounding: How far rounding may have moved the numbers of each, (sampled,).
    """

    record: NoiseRecord
    noise_multipliers: Floats
    level: float
    energies: Floats
    dimensions: Floats
    by_block: Floats
    low_tensors: Bools
    sampled: Ints
    rows: Floats
    row_rounding: Floats


def noise_findings(
    record: NoiseRecord, noise_multipliers: Floats, level: float, canaries_share: tuple[float, float] | None = None,
    even_noise: bool = False,
) -> tuple[list[Finding], bool]:  # fmt: skip
    """Return what all checks found, and whether it casts doubt on the divisor.

    The p-values take all tests of one check into account.

    Args:
        record: What was recorded, of at least one round.
        noise_multipliers: Claimed noise multiplier of each round, (rounds,).
        level: Significance of each of the checks.
        canaries_share: How much of the canaries' sum the releases contain, and its standard error, if that is known.
        even_noise: Whether the claim states the noise of every tensor, so that none may have less.
    """
    # Rounds that share a bin are judged by the smallest noise among them.
    bin_noise = np.full(record.bins, np.inf)
    np.minimum.at(bin_noise, record.bin_of_round, noise_multipliers)
    seen = record.counts > 0
    noise = bin_noise[seen][:, None]
    dimensions = np.multiply.outer(record.counts[seen], record.block_sizes).astype(np.float64)
    energies = with_rounding(record.energies[seen] / noise**2, dimensions, record.rounding[seen][:, None] / noise)
    blocks = energies.shape[1]
    by_block = _SIZE_TESTS * blocks * energy_p_value(energies.sum(axis=0), dimensions.sum(axis=0))
    low = by_block <= level
    order = np.argsort(record.sampled)[np.sum(record.sampled < 0) :]
    sampled = record.sampled[order]
    noise = noise_multipliers[sampled]
    claim = ClaimedNoise(
        record=record, noise_multipliers=noise_multipliers, level=level, energies=energies, dimensions=dimensions,
        by_block=by_block, low_tensors=np.isin(np.arange(len(record.layers.names)), record.tensor_of_block[low]),
        sampled=sampled, rows=record.samples[order].astype(np.float64) / noise[:, None],
        row_rounding=record.rounding[record.bin_of_round[sampled]] / noise,
    )  # fmt: skip
    # Noise that repeats in all rounds may be small by chance in all of them together, but not in a single one. So noise
    # is missing if blocks with most of the numbers have too little, and so in the first round already.
    at_first = _SIZE_TESTS * blocks * energy_p_value(energies[0], dimensions[0])
    missing = low & (at_first <= level)
    is_missing = float(record.block_sizes[missing].sum()) > record.layers.dim / 2
    repeats = [] if is_missing else repeat_findings(claim)  # without noise, what repeats is the signal
    enough = claim
    if repeats:
        # Only the first round counts then: others have the same noise, which may be small by chance.
        enough = replace(claim, energies=energies[:1], dimensions=dimensions[:1], by_block=at_first)
    findings = size_findings(enough, canaries_share, even_noise, fresh=not repeats)
    if not is_missing:
        findings += [*repeats, *copy_findings(claim)]
        # Missing and repeated noise has another shape, too.
        findings = findings or shape_findings(claim.rows, float(claim.row_rounding.max()), level)
    # Updates that are larger than the claimed noise and clipped clients explain hide missing noise. As many clients as
    # the divisor says, or twice as many with canaries, have an energy of at most their number squared.
    size, divisor = float(np.sqrt(energies.sum() / dimensions.sum())), float(record.divisor[0])
    per_round = float(dimensions.sum()) / float(record.counts.sum())
    clients = 2 * divisor / (float(noise_multipliers.min()) * np.sqrt(per_round))
    # A divisor of about 1 says nothing about the number of clients.
    if dimensions.sum() < _LEAST_DIMENSIONS or divisor < _LEAST_FACTOR or size < 2 * (1 + clients):
        return findings, bool(low.any()) and low_everywhere(low, energies.sum(axis=0), dimensions.sum(axis=0))
    # Where the sum was not divided, noise and clients are larger by the divisor.
    why = "so the noise is larger than claimed, updates are not clipped, divisor= is wrong, or these are models."
    if 1 - _ALIKE < size / divisor < (1 + _ALIKE) * (1 + clients):
        why = f"about the divisor, so they look like sums that were not divided by {divisor:g}."
    sentence = (
        f"The updates are {size:.3g} times as large as the claimed noise, {why} Noise missing in single tensors would "
        "not show."
    )
    return [*findings, Finding(check=Check.UNITS, sentence=sentence, refutes=False)], True


def with_rounding(energy: Floats, dimensions: Floats, rounding: Floats | float) -> Floats:
    """Return the largest energy before rounding: it moved a vector of k numbers by at most rounding · √k."""
    return np.square(np.sqrt(np.maximum(energy, 0.0)) + rounding * np.sqrt(dimensions))


# Is there enough of it?


def low_everywhere(low: Bools, energies: Floats, dimensions: Floats) -> bool:
    """Whether noise is missing everywhere: in some blocks for certain, and the others look like these.

    Blocks of a few numbers cannot lack noise for certain. They look like the others if each has an energy that is
    common with as little noise, and if that much noise explains all of them better than the claimed noise does.

    Args:
        low: Which blocks have less than the claimed noise, at least one, (blocks,).
        energies: Energy of each block in units of the claimed variance, (blocks,).
        dimensions: Their dimensions, (blocks,).
    """
    if low.all():
        return True
    share = float(energies[low].sum() / dimensions[low].sum())  # of the variance
    if not 0 < share < 1:
        return False
    others, numbers = energies[~low], dimensions[~low]
    common = stats.chi2.sf(others / share, numbers) >= _UNCOMMON / others.size
    # The logarithms of the densities of the energies, without what they share.
    likelier = -numbers.sum() * np.log(share) - others.sum() * (1 / share - 1) > 0
    return bool(common.all() & likelier)


def size_findings(
    claim: ClaimedNoise, canaries_share: tuple[float, float] | None, even_noise: bool, *, fresh: bool
) -> list[Finding]:
    """Return tensors, parts of tensors and rounds with less energy than the claimed noise has."""
    record, level = claim.record, claim.level
    energies, dimensions, by_block = claim.energies, claim.dimensions, claim.by_block
    by_round = _SIZE_TESTS * len(energies) * energy_p_value(energies.sum(axis=1), dimensions.sum(axis=1))
    by_both = _SIZE_TESTS * energies.size * energy_p_value(energies, dimensions)
    certain, low_rounds = by_block <= level, by_round <= level
    low_blocks, findings = certain, list[Finding]()
    if certain.any():
        if low_everywhere(certain, energies.sum(axis=0), dimensions.sum(axis=0)):
            low_blocks = np.ones_like(certain)
        about = _same_factor(claim, canaries_share)
        for words, is_whole, run in _runs(record, low_blocks):
            # Any of blocks² runs of blocks might have been picked, so the bound holds for all of them together.
            share = noise_at_most(energies[:, run].sum(), dimensions[:, run].sum(), level / certain.size**2)
            sentence = f"{words} {_less(share)}{about}"
            if not about and is_whole and not (even_noise or low_blocks.all()):
                # With a clip norm per tensor, noise in proportion to it keeps the claim.
                sentence += ", if one clip norm covers all tensors; otherwise pass noise_per_layer"
            p_value = float(by_block[run][certain[run]].max())
            findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=p_value))
    rounds = np.flatnonzero(record.counts > 0)[: len(energies)]
    if low_rounds.any() and not low_rounds.all():
        share = 0.0
        for t in np.flatnonzero(low_rounds):
            share = max(share, noise_at_most(energies[t].sum(), dimensions[t].sum(), level / len(energies)))
        have = "has" if low_rounds.sum() == 1 else "have"
        sentence = f"{list_rounds(rounds[low_rounds], _LISTED).capitalize()} {have} {_less(share)}"
        findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=float(by_round[low_rounds].max())))
    odd = (by_both <= level) & ~low_blocks & ~low_rounds[:, None]
    for tensor in np.unique(record.tensor_of_block[odd.any(axis=0)])[:_LISTED]:
        cells = odd & (record.tensor_of_block == tensor)
        name, where = record.layers.names[tensor], list_rounds(rounds[cells.any(axis=1)], _LISTED)
        sentence = f"{_SUBJECTS.get(name, name)} lacks the claimed noise in {where}"
        findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=float(by_both[cells].max())))
    if fresh and not low_rounds.any():  # rounds without noise have many numbers near zero, too
        findings += _near_zero(claim)
    return findings


def _same_factor(claim: ClaimedNoise, canaries_share: tuple[float, float] | None) -> str:
    """Ask about the divisor if all tensors and rounds are smaller by about the same factor; empty if they are not."""
    energies, dimensions = claim.energies, claim.dimensions
    share = float(np.sqrt(energies.sum() / dimensions.sum()))
    if not 0 < share <= 1 / _LEAST_FACTOR:
        return ""
    by_block = np.sqrt(energies.sum(axis=0) / dimensions.sum(axis=0))
    by_round = np.sqrt(energies.sum(axis=1) / dimensions.sum(axis=1))
    if np.abs(np.concatenate([by_block, by_round]) / share - 1).max() >= _ALIKE:
        return ""
    canaries, error = canaries_share or (share, 0.0)
    if canaries - share > _TOLD_APART * error:  # they are not smaller by the same factor, so noise is missing
        return ""
    factor, divisor = 1 / share, float(claim.record.divisor[0])
    if divisor > 1 and abs(factor / divisor - 1) < _ALIKE:
        return f". All of it is smaller by the divisor, {divisor:g}: perhaps the update was divided twice"
    return (
        f". All of it is smaller by about {factor:.3g}: perhaps the sum was divided by {factor * divisor:.3g}, and "
        "divisor= should say so"
    )


def _near_zero(claim: ClaimedNoise) -> list[Finding]:
    """Return tensors in which more numbers are near zero than noise allows, and single numbers without noise."""
    record, known, rows = claim.record, claim.low_tensors, claim.rows
    tensors, rounding, findings = record.tensor_of_sample, float(claim.row_rounding.max()), list[Finding]()
    for width in _WIDTHS:
        counts = np.bincount(tensors, np.sum(np.abs(rows) <= width, axis=0), len(known))
        totals = np.bincount(tensors, minlength=len(known)) * float(len(rows))
        chance = near_zero_p_value(counts, totals, width + rounding)
        p_values = _SIZE_TESTS * len(_WIDTHS) * len(known) * chance
        low = (p_values <= claim.level) & ~known
        by_chance = float(special.erf(width / np.sqrt(2)))  # noise puts some numbers near zero, too
        for tensor in np.flatnonzero(low):
            bare = max(0.0, counts[tensor] / totals[tensor] - by_chance) / (1 - by_chance)
            name = record.layers.names[tensor]
            sentence = f"About {100 * bare:.2g}% of the coordinates of {name} have next to no noise"
            findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=float(p_values[tensor])))
        known = known | low
    # Single numbers that lack noise in all rounds: any number, or one of the sample in large models.
    coordinates, energies, dimensions = record.coordinates, np.sum(rows**2, axis=0), float(len(rows))
    if len(record.squares):
        coordinates, energies = np.arange(record.layers.dim), record.squares / claim.noise_multipliers.min() ** 2
        dimensions = float(record.counts.sum())
    energies = with_rounding(energies, np.array(dimensions), rounding)
    p_values = _SIZE_TESTS * len(energies) * energy_p_value(energies, dimensions)
    tensors = np.searchsorted(record.layers.starts, coordinates, side="right") - 1
    low = (p_values <= claim.level) & ~known[tensors]
    if low.any():
        first = int(coordinates[int(np.argmax(low))])
        where, _ = record.layers.name_of_stretch(first, first)
        verb, such_as = ("lacks", ":") if low.sum() == 1 else ("lack", ", such as")
        count = f"{int(low.sum()):,} of {low.size:,}"
        sentence = f"{count} coordinates {verb} the claimed noise in all rounds{such_as} {where}"
        findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=float(p_values[low].max())))
    return findings


def _less(share: float) -> str:
    """Say that there is less than the claimed noise, with the upper bound on its share if that says more."""
    return "less than the claimed noise" if share > 0.99 else f"at most {share:.2g} of the claimed noise"


def _runs(record: NoiseRecord, low: Bools) -> list[tuple[str, bool, Ints]]:
    """Return runs of blocks: what they are called with a verb, whether that is one whole tensor, and which they are."""
    blocks = np.flatnonzero(low)
    if low.all() and len(record.layers.names) > 1:
        return [("All tensors together have", False, blocks)]
    runs = []
    breaks = (np.diff(blocks) > 1) | (np.diff(record.tensor_of_block[blocks]) > 0)
    for run in np.split(blocks, np.flatnonzero(breaks) + 1):
        start = int(record.edges[run[0]])
        name, several = record.layers.name_of_stretch(start, start + int(record.block_sizes[run].sum()) - 1)
        words = f"{name[:1].upper()}{name[1:]} have" if several else f"{_SUBJECTS.get(name, name)} has"
        runs.append((words, not several, run))
    return runs


# Is it drawn anew?


def repeat_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return rounds whose noise is, up to scale, that of an earlier round and too little else: in all, or a tensor."""
    rounds, home, level = claim.sampled, claim.record.tensor_of_sample, claim.level
    if len(rounds) < 2:
        return []
    # Where a round has too little energy with all that it shares, noise is missing, and what repeats is the signal.
    bare = len(rounds) * energy_p_value(np.sum(claim.rows**2, axis=1), claim.rows.shape[1]) <= level
    sizes = np.bincount(home, minlength=len(claim.low_tensors))
    large = sizes >= _LEAST_SAMPLE
    parts = [("The noise of", home >= 0, 2)]
    for tensor in np.flatnonzero(large & ~claim.low_tensors if len(rounds) <= _MOST_BY_TENSOR else ()):
        name = claim.record.layers.names[tensor]
        parts.append((f"The noise of {name} in", home == tensor, 2 * int(np.sum(large))))
    findings = list[Finding]()
    for subject, columns, tests in parts:
        rows = claim.rows[:, columns]
        dimensions, lengths = rows.shape[1], np.sum(rows**2, axis=1)
        explained = np.tril((rows @ rows.T) ** 2 / np.maximum(lengths, 1e-300), -1)  # of row t by row s < t
        source, shared = np.argmax(explained, axis=1)[1:], explained.max(axis=1)[1:]
        rest = with_rounding(lengths[1:] - shared, np.array(float(dimensions)), claim.row_rounding[1:])
        pairs = len(rounds) * (len(rounds) - 1) / 2
        p_values = np.minimum(1.0, tests * pairs * energy_p_value(rest, dimensions - 1))
        copied = (p_values <= level) & (shared >= _EXPLAINED * lengths[1:])
        repeated = np.flatnonzero(copied & ~bare[1:])
        if not len(repeated):
            continue
        first = repeated[0]
        verb = "repeats" if shared[first] >= _REPEATED * lengths[first + 1] else "depends on"
        sentence = f"{subject} round {rounds[first + 1]} {verb} that of round {rounds[source[first]]}"
        if len(repeated) > 1:
            sentence += f", and likewise in {plural(len(repeated) - 1, 'more round')}"
        findings.append(Finding(check=Check.FRESH, sentence=sentence, p_value=float(p_values[repeated].max())))
        if columns.all():  # then no tensor need be named
            break
    return findings


# Is it independent inside an update?


def copy_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return tensors whose noise repeats inside the update."""
    record, pairs, level = claim.record, claim.record.pairs, claim.level
    if not pairs:
        return []
    used = int(np.count_nonzero(~np.isnan(record.whole[:, -1])))
    noise = claim.noise_multipliers[claim.sampled[:used]][:, None] ** 2
    rest = (record.copies[:used] / noise).sum(axis=0)
    whole = (record.whole[:used] / noise).sum(axis=0)
    lengths = [record.place[2] if pair.kind == "update" else pair.length for pair in pairs]
    sizes = np.array(lengths) * np.array([max(1, pair.blocks) for pair in pairs])
    dimensions = used * np.maximum(sizes - 1, 0).astype(np.float64)
    rounding = float(np.max(record.rounding)) / float(np.sqrt(noise.min()))
    p_values = len(pairs) * energy_p_value(with_rounding(rest, dimensions, rounding), dimensions)
    # Where a half has too little energy by itself, noise is missing, and what is copied is the signal.
    low = len(pairs) * energy_p_value(whole, dimensions) <= level
    copied = np.flatnonzero((p_values <= level) & (whole - rest >= _EXPLAINED * whole) & ~low)
    kinds, findings = np.array([pair.kind for pair in pairs]), list[Finding]()
    for kind, start in _COPIES.items():
        group = copied[kinds[copied] == kind]
        if not len(group):
            continue
        listed = 1 if kind == "tensors" else _LISTED
        names, more = ", ".join(pairs[pair].name for pair in group[:listed]), len(group) - listed
        sentence = f"{start}{names} get the same noise"
        if more > 0 and kind == "tensors":
            sentence += f", and {more} more pairs of tensors"
        elif more > 0:
            sentence = f"{start}{names} and {more} more tensors get the same noise"
        p_value = float(min(1.0, p_values[group].max()))
        findings.append(Finding(check=Check.INDEPENDENT, sentence=sentence, p_value=p_value))
    return findings


# Is it normal?


def shape_findings(rows: Floats, rounding: float, level: float) -> list[Finding]:
    """Return a finding if the values of later rounds lie in the likeliest places of earlier ones too often.

    Args:
        rows: Sampled numbers of each round in standard deviations of the claimed noise, (rounds, numbers).
        rounding: How far rounding may have moved each number, in the same units.
        level: Significance.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> shape_findings(rng.normal(size=(8, 500)), 0.0, 1e-3)
        []
        >>> [finding] = shape_findings(rng.uniform(-3**0.5, 3**0.5, size=(8, 500)), 0.0, 1e-3)
        >>> finding.sentence
        '100% of the noise lies in places 4 standard deviations wide in all; of Gaussian noise at most 95% would'
    """
    half = len(rows) // 2
    if not half:
        return []
    edges = np.arange(-_RANGE, _RANGE + _PLACE / 2, _PLACE)
    likeliest = np.argsort(-np.histogram(rows[:half], edges)[0], kind="stable")
    counts = np.histogram(rows[half:], edges)[0]
    total = rows[half:].size
    findings = []
    for measure in _MEASURES:
        places = likeliest[: round(measure / _PLACE)]
        # Before rounding, a value was in a place that is wider by the rounding on both sides.
        width = len(places) * (_PLACE + 2 * rounding) / 2
        hits = float(counts[places].sum())
        most = math.erf(width / math.sqrt(2))
        sentence = (
            f"{hits / total:.0%} of the noise lies in places {measure:g} standard deviations wide in all; of "
            f"Gaussian noise at most {most:.0%} would"
        )
        p_value = min(1.0, len(_MEASURES) * float(near_zero_p_value(hits, total, width)))
        findings.append(Finding(check=Check.SHAPE, sentence=sentence, p_value=p_value))
    best = min(findings, key=lambda finding: finding.p_value)
    return [best] if best.p_value <= level else []
