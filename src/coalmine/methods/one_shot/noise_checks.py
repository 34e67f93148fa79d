"""Checks of a training's noise that need no canary: is it there, everywhere, and drawn anew each time?

Each is a test of one lemma (`coalmine.stats.noise_tests`): in a subspace fixed before the noise of a round is drawn,
the update has at least the energy of the claimed noise, whatever the clients sent. docs/checks.md has the proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.methods.one_shot.noise_patterns import pair_p_value, shape_findings
from coalmine.methods.one_shot.noise_record import THE_UPDATE, NoiseRecord
from coalmine.results.finding import Check, Finding
from coalmine.results.words import list_rounds
from coalmine.stats.noise_tests import energy_p_value, near_zero_p_value, noise_at_most

NOISE_CHECKS = (Check.PLACES, Check.FRESH, Check.INDEPENDENT, Check.SHAPE)

# Numbers within this many standard deviations of the claimed noise count as near zero.
_WIDTHS = (0.1, 0.001)
# A copy explains at least this share of the energy. Where it does not, the noise is missing rather than copied.
_EXPLAINED = 0.2
_REPEATED = 0.6
_LEAST_SAMPLE = 8
# Families of tests: blocks, rounds, blocks in single rounds, numbers near zero, single numbers.
_SIZE_TESTS = 5
_MOST_BY_TENSOR = 1024  # rounds up to which repeats are looked for in each tensor
_LISTED = 3
_ALIKE = 0.15  # relative difference up to which factors count as the same
_LEAST_FACTOR = 3.0  # by which everything is smaller if it was divided by a number of clients
_TOLD_APART = 6  # standard errors
_LEAST_DIMENSIONS = 50  # in which noise of the claimed size is never twice as large by chance (p < 1e-17)


@dataclass(frozen=True, eq=False)
class ClaimedNoise:
    """The record of a training beside the noise that it claims.

    Args:
        record: What was recorded.
        noise_multipliers: Claimed noise multiplier of each round, (rounds,).
        level: Significance of each of the checks.
        canaries_share: How much of the canaries' sum the releases contain, and its standard error, if that is known.
    """

    record: NoiseRecord
    noise_multipliers: Floats
    level: float
    canaries_share: tuple[float, float] | None = None

    def findings(self) -> list[Finding]:
        """Return what all checks found. The p-values take all tests of one check into account."""
        if not self.record.counts.any():
            return []
        repeats = _repeats(self)
        findings = [*_size(self, fresh=not repeats), *repeats, *_copies(self, fresh=not repeats)]
        _, rows, rounding = self.rows
        # Missing and repeated noise has another shape, too.
        findings = findings or shape_findings(rows, float(rounding.max()), self.level)
        return [*findings, *_too_large(self)]

    @property
    def is_low_everywhere(self) -> bool:
        """Whether every block has less than the claimed noise over all rounds."""
        return bool((self.by_block <= self.level).all())

    @cached_property
    def energies(self) -> tuple[Floats, Floats]:
        """Energy of each block in each round in units of the claimed variance, and its dimensions, (rounds, blocks)."""
        record, seen = self.record, self.record.counts > 0
        noise = self.bin_noise[seen][:, None]
        dimensions: Floats = np.multiply.outer(record.counts[seen], record.block_sizes).astype(np.float64)
        rounding = record.rounding[seen][:, None] / noise
        return _with_rounding(record.energies[seen] / noise**2, dimensions, rounding), dimensions

    @cached_property
    def by_block(self) -> Floats:
        """The p-value of each block over all rounds, adjusted for all tests of its check, (blocks,)."""
        energies, dimensions = self.energies
        p_values: Floats = (
            _SIZE_TESTS * energies.shape[1] * energy_p_value(energies.sum(axis=0), dimensions.sum(axis=0))
        )
        return p_values

    @property
    def low_tensors(self) -> Bools:
        """Which tensors have a block with too little noise, (tensors,)."""
        low = self.record.tensor_of_block[self.by_block <= self.level]
        return np.isin(np.arange(len(self.record.layers.names)), low)

    @property
    def bin_noise(self) -> Floats:
        """The smallest noise multiplier of each bin of rounds, (bins,)."""
        bins = np.array([self.record.bin_of(round) for round in range(self.record.rounds)])
        least = np.full(self.record.bins, np.inf)
        np.minimum.at(least, bins, self.noise_multipliers)
        return least

    @property
    def rows(self) -> tuple[Ints, Floats, Floats]:
        """Sampled rounds in order, their updates in standard deviations, and the rounding of each."""
        record = self.record
        order = np.argsort(record.sampled)[np.sum(record.sampled < 0) :]
        rounds = record.sampled[order]
        noise = self.noise_multipliers[rounds]
        rounding = np.array([record.rounding[record.bin_of(round)] for round in rounds.tolist()]) / noise
        return rounds, record.samples[order].astype(np.float64) / noise[:, None], rounding


def _with_rounding(energy: Floats, dimensions: Floats, rounding: Floats | float) -> Floats:
    """Return the largest energy before rounding: it moved a vector of k numbers by at most rounding · √k."""
    return np.square(np.sqrt(np.maximum(energy, 0.0)) + rounding * np.sqrt(dimensions))


# Is there enough noise?


def _size(claim: ClaimedNoise, *, fresh: bool) -> list[Finding]:
    """Return tensors, parts of tensors and rounds with less energy than the claimed noise has.

    Where noise repeats, only the first round counts: others have the same noise, which may be small by chance.
    """
    record, level = claim.record, claim.level
    energies, dimensions = claim.energies
    by_block, blocks = claim.by_block, energies.shape[1]
    if not fresh:
        energies, dimensions = energies[:1], dimensions[:1]
        by_block = _SIZE_TESTS * blocks * energy_p_value(energies[0], dimensions[0])
    by_round = _SIZE_TESTS * len(energies) * energy_p_value(energies.sum(axis=1), dimensions.sum(axis=1))
    by_both = _SIZE_TESTS * energies.size * energy_p_value(energies, dimensions)
    low_blocks, low_rounds = by_block <= level, by_round <= level
    findings = [
        Finding(
            check=Check.PLACES,
            # Any of blocks² runs of blocks might have been picked, so the bound holds for all of them together.
            sentence=f"{name} "
            + _less(noise_at_most(energies[:, a:b].sum(), dimensions[:, a:b].sum(), level / blocks**2))
            + _same_factor(claim, energies, dimensions),
            p_value=float(by_block[a:b].max()),
        )
        for name, a, b in _ranges(record, low_blocks)
    ]
    rounds = np.flatnonzero(record.counts > 0)[: len(energies)]
    if low_rounds.any() and not low_rounds.all():
        share = max(
            noise_at_most(energies[t].sum(), dimensions[t].sum(), level / len(energies))
            for t in np.flatnonzero(low_rounds)
        )
        have = "has" if low_rounds.sum() == 1 else "have"
        findings.append(
            Finding(
                check=Check.PLACES,
                sentence=f"{list_rounds(rounds[low_rounds], _LISTED).capitalize()} {have} {_less(share)}",
                p_value=float(by_round[low_rounds].max()),
            )
        )
    odd = (by_both <= level) & ~low_blocks & ~low_rounds[:, None]
    tensors = record.tensor_of_block
    for tensor in np.unique(tensors[odd.any(axis=0)])[:_LISTED]:
        cells = odd & (tensors == tensor)
        where = list_rounds(rounds[cells.any(axis=1)], _LISTED)
        sentence = f"{_subject(record.layers.names[tensor])} lacks the claimed noise in {where}"
        findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=float(by_both[cells].max())))
    # Rounds without noise have many numbers near zero, too.
    return findings if low_rounds.any() or not fresh else findings + _near_zero(claim)


def _same_factor(claim: ClaimedNoise, energies: Floats, dimensions: Floats) -> str:
    """Ask about the divisor if all tensors and rounds are smaller by about the same factor; empty if they are not."""
    shares = [np.sqrt(energies.sum(axis=axis) / dimensions.sum(axis=axis)) for axis in (0, 1)]
    share = float(np.sqrt(energies.sum() / dimensions.sum()))
    alike = all(np.abs(part / share - 1).max() < _ALIKE for part in shares) if share > 0 else False
    if not alike or share > 1 / _LEAST_FACTOR:
        return ""
    factor, divisor = 1 / share, float(claim.record.divisor[0])
    if claim.canaries_share is not None:
        canaries, error = claim.canaries_share
        if canaries - share > _TOLD_APART * error:  # they are not smaller by the same factor, so noise is missing
            return ""
    if divisor > 1 and abs(factor / divisor - 1) < _ALIKE:
        return f". All of it is smaller by the divisor, {divisor:g}: perhaps the update was divided twice"
    return (
        f". All of it is smaller by about {factor:.3g}: perhaps the sum was divided by {factor * divisor:.3g}, and "
        "divisor= should say so"
    )


def _too_large(claim: ClaimedNoise) -> list[Finding]:
    """Warn if the updates are larger than the claimed noise and clipped clients explain: missing noise would not show.

    As many clients as the divisor says, or twice as many with canaries, have an energy of at most their number squared.
    """
    energies, dimensions = claim.energies
    size, divisor = float(np.sqrt(energies.sum() / dimensions.sum())), float(claim.record.divisor[0])
    per_round = float(dimensions.sum()) / float(claim.record.counts.sum())
    clients = 2 * divisor / (float(claim.bin_noise.min()) * np.sqrt(per_round))
    # A divisor of about 1 says nothing about the number of clients.
    if dimensions.sum() < _LEAST_DIMENSIONS or divisor < _LEAST_FACTOR or size < 2 * (1 + clients):
        return []
    # Where the sum was not divided, noise and clients are larger by the divisor.
    is_sum = 1 - _ALIKE < size / divisor < (1 + _ALIKE) * (1 + clients)
    why = (
        f"about the divisor, so they look like sums that were not divided by {divisor:g}."
        if is_sum
        else "so the noise is larger than claimed, updates are not clipped, or divisor= is wrong."
    )
    sentence = (
        f"The updates are {size:.3g} times as large as the claimed noise, {why} Noise missing in single tensors would "
        "not show."
    )
    return [Finding(check=Check.UNITS, sentence=sentence, refutes=False)]


def _near_zero(claim: ClaimedNoise) -> list[Finding]:
    """Return tensors in which more numbers are near zero than noise allows, and single numbers without noise."""
    record, known = claim.record, claim.low_tensors
    _, rows, rounding = claim.rows
    tensors, findings = record.tensor_of_sample, []
    for width in _WIDTHS:
        counts = np.bincount(tensors, np.sum(np.abs(rows) <= width, axis=0), len(known))
        totals = np.bincount(tensors, minlength=len(known)) * float(len(rows))
        chance = near_zero_p_value(counts, totals, width + float(rounding.max()))
        p_values = _SIZE_TESTS * len(_WIDTHS) * len(known) * chance
        low = (p_values <= claim.level) & ~known
        for tensor in np.flatnonzero(low):
            findings.append(
                Finding(
                    check=Check.PLACES,
                    sentence=f"About {100 * _bare_share(counts[tensor] / totals[tensor], width):.2g}% of the numbers "
                    f"of {record.layers.names[tensor]} have next to no noise",
                    p_value=float(p_values[tensor]),
                )
            )
        known = known | low
    return findings + _single_numbers(claim, known)


def _single_numbers(claim: ClaimedNoise, known: Bools) -> list[Finding]:
    """Return a finding if single numbers lack noise in all rounds: any number, or one of the sample in large models."""
    record = claim.record
    rounds, rows, rounding = claim.rows
    if len(record.squares):
        coordinates, energies = np.arange(record.layers.dim), record.squares / claim.noise_multipliers.min() ** 2
        dimensions = float(record.counts.sum())
    else:
        coordinates, energies, dimensions = record.coordinates, np.sum(rows**2, axis=0), float(len(rounds))
    energies = _with_rounding(energies, np.array(dimensions), float(rounding.max()))
    p_values = _SIZE_TESTS * len(energies) * energy_p_value(energies, dimensions)
    tensors = np.searchsorted(record.layers.starts, coordinates, side="right") - 1
    low = (p_values <= claim.level) & ~known[tensors]
    if not low.any():
        return []
    first = int(np.argmax(low))
    number = int(coordinates[first] - record.layers.starts[tensors[first]])
    sentence = (
        f"{int(low.sum()):,} of {low.size:,} numbers lack the claimed noise in all rounds, such as number {number} of "
        f"{record.layers.names[tensors[first]]}"
    )
    return [Finding(check=Check.PLACES, sentence=sentence, p_value=float(p_values[low].max()))]


def _bare_share(near_zero: float, width: float) -> float:
    """Return the share of numbers without noise, from the share that is near zero: noise puts others there, too."""
    by_chance = float(special.erf(width / np.sqrt(2)))
    return max(0.0, near_zero - by_chance) / (1 - by_chance)


def _less(share: float) -> str:
    """Say that there is less than the claimed noise, with the upper bound on its share if that says more."""
    return "less than the claimed noise" if share > 0.99 else f"at most {share:.2g} of the claimed noise"


def _ranges(record: NoiseRecord, low: Bools) -> list[tuple[str, int, int]]:
    """Return runs of blocks in words: the whole model, tensors, or parts of tensors."""
    if low.all() and len(record.layers.names) > 1:
        return [("All tensors together have", 0, len(low))]
    runs: list[tuple[int, int]] = []
    tensors, names = record.tensor_of_block, []
    for block in np.flatnonzero(low).tolist():
        if runs and runs[-1][1] == block and tensors[runs[-1][0]] == tensors[block]:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    for first, last in runs:
        name, whole = _block_name(record, first, last)
        names.append((f"{_subject(name)} {'has' if whole else 'have'}", first, last))
    return names


def _subject(name: str) -> str:
    """Return a name as a sentence starts with it; names of tensors keep their letters."""
    return THE_UPDATE.capitalize() if name == THE_UPDATE else name


def _block_name(record: NoiseRecord, first: int, last: int) -> tuple[str, bool]:
    """Return blocks of one tensor in words, and whether they are all of it."""
    tensor = int(record.tensor_of_block[first])
    low = int(record.edges[first] - record.layers.starts[tensor])
    high = low + int(record.block_sizes[first:last].sum())
    name = record.layers.names[tensor]
    if high - low == record.layers.sizes[tensor]:
        return name, True
    return f"Numbers {low:,}–{high - 1:,} of {name}", False


# Is it drawn anew in every round?


def _repeats(claim: ClaimedNoise) -> list[Finding]:
    """Return rounds whose noise repeats, or follows from, that of earlier rounds."""
    rounds, rows, rounding = claim.rows
    if len(rounds) < 2:
        return []
    record, families = claim.record, 4  # of tests: pairs, pairs in a tensor, all earlier rounds, their sum
    findings = _repeated_pairs(rounds, rows, rounding, families, claim.level, "The noise of")
    if findings:
        return findings
    if len(rounds) <= _MOST_BY_TENSOR:
        tensors = record.tensor_of_sample
        columns = [np.flatnonzero(tensors == tensor) for tensor in range(len(record.layers.names))]
        tests = families * sum(len(column) >= _LEAST_SAMPLE for column in columns)
        for name, column, low in zip(record.layers.names, columns, claim.low_tensors, strict=True):
            if len(column) >= _LEAST_SAMPLE and not low:  # without noise, what repeats is the signal
                findings += _repeated_pairs(
                    rounds, rows[:, column], rounding, tests, claim.level, f"The noise of {name} in"
                )
    return findings or _innovations(rounds, rows, rounding, families, claim.level)


def _repeated_pairs(
    rounds: Ints, rows: Floats, rounding: Floats, tests: int, level: float, subject: str
) -> list[Finding]:
    """Return a finding if some row is, up to scale, another row and too little else."""
    dimensions = rows.shape[1]
    products, lengths = rows @ rows.T, np.sum(rows**2, axis=1)
    explained = np.tril(products**2 / np.maximum(lengths, 1e-300), -1)  # of row t by row s < t
    source = np.argmax(explained, axis=1)[1:]
    shared = explained.max(axis=1)[1:]
    rest = _with_rounding(lengths[1:] - shared, np.array(float(dimensions)), rounding[1:])
    pairs = len(rounds) * (len(rounds) - 1) / 2
    p_values = np.minimum(1.0, tests * pairs * energy_p_value(rest, dimensions - 1))
    repeated = np.flatnonzero((p_values <= level) & (shared >= _EXPLAINED * lengths[1:]))
    if not len(repeated):
        return []
    first = repeated[0]
    verb = "repeats" if shared[first] >= _REPEATED * lengths[first + 1] else "depends on"
    sentence = f"{subject} round {rounds[first + 1]} {verb} that of round {rounds[source[first]]}"
    if len(repeated) > 1:
        sentence += f", and likewise in {len(repeated) - 1} more rounds"
    return [Finding(check=Check.FRESH, sentence=sentence, p_value=float(p_values[repeated].max()))]


def _innovations(rounds: Ints, rows: Floats, rounding: Floats, families: int, level: float) -> list[Finding]:
    """Return a finding if the noise of rounds follows in part from all earlier rounds together."""
    dimensions = rows.shape[1]
    if 4 * len(rounds) > dimensions:
        return []
    # Row t without its projection on rows 0 … t − 1 has length |R_tt| in the QR decomposition.
    rest = np.square(np.diag(np.linalg.qr(rows.T, mode="r")))
    free = dimensions - np.arange(len(rounds), dtype=np.float64)
    energies = _with_rounding(rest, np.array(float(dimensions)), rounding)
    by_round = families * len(rounds) * energy_p_value(energies, free)
    together = families * float(energy_p_value(energies.sum(), free.sum()))
    p_value = min(1.0, together, float(by_round.min()))
    explained = 1 - rest[1:].sum() / max(np.sum(rows[1:] ** 2), 1e-300)
    # Even independent rounds explain t of the dimensions of round t.
    by_chance = 1 - free[1:].sum() / (dimensions * (len(rounds) - 1))
    if p_value > level or explained - by_chance < _EXPLAINED:
        return []
    return [
        Finding(
            check=Check.FRESH,
            sentence=f"{explained:.0%} of the noise of a round follows from earlier rounds ({by_chance:.0%} by chance)",
            p_value=p_value,
        )
    ]


# Is it independent inside an update?


def _copies(claim: ClaimedNoise, *, fresh: bool) -> list[Finding]:
    """Return tensors whose noise repeats inside the update; pairs of numbers only if the noise is fresh."""
    record = claim.record
    used = int(np.sum(~np.isnan(record.whole[:, -1])))
    if not used:
        return []
    first = np.sort(record.sampled[record.sampled >= 0])[:used]
    noise = claim.noise_multipliers[first][:, None] ** 2
    tested = ~np.isnan(record.copies[:used])
    rest = np.where(tested, record.copies[:used] / noise, 0.0).sum(axis=0)
    whole = np.where(tested, record.whole[:used] / noise, 0.0).sum(axis=0)
    dimensions = (tested * np.maximum(record.pair_dimensions, 0)).sum(axis=0).astype(np.float64)
    rounding = float(np.max(record.rounding)) / float(np.sqrt(noise.min()))
    energies = _with_rounding(rest, dimensions, rounding)
    # Half of the level is for pairs of any numbers.
    p_values = np.minimum(1.0, 2 * len(record.pairs) * energy_p_value(energies, dimensions))
    copied = np.flatnonzero((p_values <= claim.level) & (whole - rest >= _EXPLAINED * whole))
    by_kind: dict[str, list[int]] = {}
    for pair in copied.tolist():
        by_kind.setdefault(record.pairs[pair][0], []).append(pair)
    findings = []
    for kind, pairs in by_kind.items():
        if kind == "lag" and len(by_kind) > 1:
            continue  # the same copies, without a name
        sentence = _copy_sentence(kind, [record.pairs[pair] for pair in pairs], int(record.lag[0]))
        findings.append(Finding(check=Check.INDEPENDENT, sentence=sentence, p_value=float(p_values[pairs].max())))
    # Noise that repeats in all rounds makes any two numbers alike.
    return findings or (_partners(claim) if fresh else [])


def _partners(claim: ClaimedNoise) -> list[Finding]:
    """Return a finding if sampled numbers, wherever they are, get the noise of others."""
    record = claim.record
    _, rows, rounding = claim.rows
    p_value, pairs = pair_p_value(rows, float(rounding.max()))
    if 2 * p_value > claim.level:
        return []
    names = [
        f"number {record.coordinates[i] - record.layers.starts[tensor]:,} of {record.layers.names[tensor]}"
        for i, tensor in zip(pairs[0], record.tensor_of_sample[pairs[0]], strict=True)
    ]
    more = f", and likewise {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
    sentence = f"The noise of {names[0]} follows that of {names[1]}{more}"
    return [Finding(check=Check.INDEPENDENT, sentence=sentence, p_value=2 * p_value)]


def _copy_sentence(kind: str, pairs: Sequence[tuple[str, str, str]], lag: int) -> str:
    names = ", ".join(name for _, name, _ in pairs[:_LISTED])
    names += f" and {len(pairs) - _LISTED} more tensors" if len(pairs) > _LISTED else ""
    if kind == "neighbors":
        return f"Neighboring numbers of {names} get the same noise"
    if kind == "rows":
        return f"The rows of {names} get the same noise"
    if kind == "tensors":
        others = f", and {len(pairs) - 1} more pairs of tensors" if len(pairs) > 1 else ""
        return f"{pairs[0][1]} and {pairs[0][2]} get the same noise{others}"
    return f"The noise of a number and of the one {lag:,} places further on is the same"
