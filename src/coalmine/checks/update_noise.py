"""Checks of a training's noise that need no canary: is it there, everywhere, and drawn anew each time?

Each is a test of one lemma (`coalmine.stats.exact_tests`): in a subspace fixed before the noise of a round is drawn,
the update has at least the energy of the claimed noise, whatever the clients sent. docs/checks.md has the proofs.
`noise_findings` compares a `NoiseRecord` with the noise that is claimed.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from coalmine.arrays import Bools, Floats, Ints
from coalmine.checks.update_record import THE_UPDATE, NoiseRecord
from coalmine.results.summary import list_rounds, plural
from coalmine.results.verdict import Check, Finding
from coalmine.stats.exact_tests import energy_p_value, near_zero_p_value, noise_at_most

NOISE_CHECKS = (Check.PLACES, Check.FRESH, Check.INDEPENDENT, Check.SHAPE)

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


class ClaimedNoise:
    """The record of a training beside the noise that it claims.

    Args:
        record: What was recorded, of at least one round.
        noise_multipliers: Claimed noise multiplier of each round, (rounds,).
        level: Significance of each of the checks.
        canaries_share: How much of the canaries' sum the releases contain, and its standard error, if that is known.
        even_noise: Whether the claim states the noise of every tensor, so that none may have less.

    Attributes:
        energies: Energy of each block in each round in units of the claimed variance, (rounds, blocks).
        dimensions: Dimensions of these energies, (rounds, blocks).
        by_block: The p-value of each block over all rounds, adjusted for all tests of its check, (blocks,).
        low_tensors: Which tensors have a block with too little noise, (tensors,).
        low_everywhere: Whether the whole update has less than the claimed noise over all rounds.
        sampled: Sampled rounds in order.
        rows: Their updates in standard deviations of the noise, (sampled, coordinates).
        row_rounding: How far rounding may have moved the numbers of each, (sampled,).
    """

    def __init__(
        self, record: NoiseRecord, noise_multipliers: Floats, level: float,
        canaries_share: tuple[float, float] | None = None, even_noise: bool = False,
    ) -> None:  # fmt: skip
        self.record, self.noise_multipliers, self.level = record, noise_multipliers, level
        self.canaries_share, self.even_noise = canaries_share, even_noise
        # Rounds that share a bin are judged by the smallest noise among them.
        self.bin_noise = np.full(record.bins, np.inf)
        np.minimum.at(self.bin_noise, record.bin_of_round, noise_multipliers)
        seen = record.counts > 0
        noise = self.bin_noise[seen][:, None]
        self.dimensions = np.multiply.outer(record.counts[seen], record.block_sizes).astype(np.float64)
        rounding = record.rounding[seen][:, None] / noise
        self.energies = with_rounding(record.energies[seen] / noise**2, self.dimensions, rounding)
        energies, dimensions = self.energies.sum(axis=0), self.dimensions.sum(axis=0)
        self.by_block: Floats = _SIZE_TESTS * len(energies) * energy_p_value(energies, dimensions)
        low = self.by_block <= level
        self.low_tensors = np.isin(np.arange(len(record.layers.names)), record.tensor_of_block[low])
        self.low_everywhere = low_everywhere(low, energies, dimensions)
        order = np.argsort(record.sampled)[np.sum(record.sampled < 0) :]
        self.sampled = record.sampled[order]
        noise = noise_multipliers[self.sampled]
        self.rows = record.samples[order].astype(np.float64) / noise[:, None]
        self.row_rounding: Floats = record.rounding[record.bin_of_round[self.sampled]] / noise


def noise_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return what all checks found. The p-values take all tests of one check into account."""
    # Noise that repeats in all rounds may be small by chance in all of them together, but not in a single one. So noise
    # is missing if blocks with most of the numbers have too little, and so in the first round already.
    tests = _SIZE_TESTS * claim.energies.shape[1]
    at_first = tests * energy_p_value(claim.energies[0], claim.dimensions[0])
    missing = (claim.by_block <= claim.level) & (at_first <= claim.level)
    if float(claim.record.block_sizes[missing].sum()) > claim.record.layers.dim / 2:  # what repeats is then the signal
        return [*size_findings(claim, fresh=True), *too_large(claim)]
    repeats = repeat_findings(claim)
    findings = [*size_findings(claim, fresh=not repeats), *repeats, *copy_findings(claim)]
    if not findings:  # missing and repeated noise has another shape, too
        findings = shape_findings(claim.rows, float(claim.row_rounding.max()), claim.level)
    return [*findings, *too_large(claim)]


def with_rounding(energy: Floats, dimensions: Floats, rounding: Floats | float) -> Floats:
    """Return the largest energy before rounding: it moved a vector of k numbers by at most rounding · √k."""
    return np.square(np.sqrt(np.maximum(energy, 0.0)) + rounding * np.sqrt(dimensions))


# Is there enough of it?


def low_everywhere(low: Bools, energies: Floats, dimensions: Floats) -> bool:
    """Whether noise is missing everywhere: in some blocks for certain, and the others look like these.

    Blocks of a few numbers cannot lack noise for certain. They look like the others if each has an energy that is
    common with as little noise, and if that much noise explains all of them better than the claimed noise does.

    Args:
        low: Which blocks have less than the claimed noise, (blocks,).
        energies: Energy of each block in units of the claimed variance, (blocks,).
        dimensions: Their dimensions, (blocks,).
    """
    if low.all() or not low.any():
        return bool(low.any())
    share = float(energies[low].sum() / dimensions[low].sum())  # of the variance
    if not 0 < share < 1:
        return False
    others, numbers = energies[~low], dimensions[~low]
    common = bool((stats.chi2.sf(others / share, numbers) >= _UNCOMMON / others.size).all())
    # The logarithms of the densities of the energies, without what they share.
    likelier = -numbers.sum() * np.log(share) - others.sum() * (1 / share - 1) > 0
    return common and bool(likelier)


def size_findings(claim: ClaimedNoise, *, fresh: bool) -> list[Finding]:
    """Return tensors, parts of tensors and rounds with less energy than the claimed noise has.

    Where noise repeats, only the first round counts: others have the same noise, which may be small by chance.
    """
    record, level = claim.record, claim.level
    energies, dimensions, by_block = claim.energies, claim.dimensions, claim.by_block
    blocks = energies.shape[1]
    if not fresh:
        energies, dimensions = energies[:1], dimensions[:1]
        by_block = _SIZE_TESTS * blocks * energy_p_value(energies[0], dimensions[0])
    by_round = _SIZE_TESTS * len(energies) * energy_p_value(energies.sum(axis=1), dimensions.sum(axis=1))
    by_both = _SIZE_TESTS * energies.size * energy_p_value(energies, dimensions)
    certain, low_rounds = by_block <= level, by_round <= level
    low_blocks = certain
    if low_everywhere(certain, energies.sum(axis=0), dimensions.sum(axis=0)):
        low_blocks = np.ones_like(certain)
    findings = []
    if low_blocks.any():
        about = _same_factor(claim, energies, dimensions)
        for name, is_whole, a, b in _runs(record, low_blocks):
            # Any of blocks² runs of blocks might have been picked, so the bound holds for all of them together.
            share = noise_at_most(energies[:, a:b].sum(), dimensions[:, a:b].sum(), level / blocks**2)
            sentence = f"{name} {_less(share)}{about}"
            if not about and is_whole and not (claim.even_noise or low_blocks.all()):
                # With a clip norm per tensor, noise in proportion to it keeps the claim.
                sentence += ", if one clip norm covers all tensors; otherwise pass noise_per_layer"
            p_value = float(by_block[a:b][certain[a:b]].max())
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
        where = list_rounds(rounds[cells.any(axis=1)], _LISTED)
        sentence = f"{_subject(record.layers.names[tensor])} lacks the claimed noise in {where}"
        findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=float(by_both[cells].max())))
    if fresh and not low_rounds.any():  # rounds without noise have many numbers near zero, too
        findings += _near_zero(claim)
    return findings


def _same_factor(claim: ClaimedNoise, energies: Floats, dimensions: Floats) -> str:
    """Ask about the divisor if all tensors and rounds are smaller by about the same factor; empty if they are not."""
    share = float(np.sqrt(energies.sum() / dimensions.sum()))
    if not 0 < share <= 1 / _LEAST_FACTOR:
        return ""
    for axis in (0, 1):
        parts = np.sqrt(energies.sum(axis=axis) / dimensions.sum(axis=axis))
        if np.abs(parts / share - 1).max() >= _ALIKE:
            return ""
    if claim.canaries_share is not None:
        canaries, error = claim.canaries_share
        if canaries - share > _TOLD_APART * error:  # they are not smaller by the same factor, so noise is missing
            return ""
    factor, divisor = 1 / share, float(claim.record.divisor[0])
    if divisor > 1 and abs(factor / divisor - 1) < _ALIKE:
        return f". All of it is smaller by the divisor, {divisor:g}: perhaps the update was divided twice"
    return (
        f". All of it is smaller by about {factor:.3g}: perhaps the sum was divided by {factor * divisor:.3g}, and "
        "divisor= should say so"
    )


def too_large(claim: ClaimedNoise) -> list[Finding]:
    """Warn if the updates are larger than the claimed noise and clipped clients explain: missing noise would not show.

    As many clients as the divisor says, or twice as many with canaries, have an energy of at most their number squared.
    """
    energies, dimensions = claim.energies, claim.dimensions
    size, divisor = float(np.sqrt(energies.sum() / dimensions.sum())), float(claim.record.divisor[0])
    per_round = float(dimensions.sum()) / float(claim.record.counts.sum())
    clients = 2 * divisor / (float(claim.bin_noise.min()) * np.sqrt(per_round))
    # A divisor of about 1 says nothing about the number of clients.
    if dimensions.sum() < _LEAST_DIMENSIONS or divisor < _LEAST_FACTOR or size < 2 * (1 + clients):
        return []
    # Where the sum was not divided, noise and clients are larger by the divisor.
    why = "so the noise is larger than claimed, updates are not clipped, divisor= is wrong, or these are models."
    if 1 - _ALIKE < size / divisor < (1 + _ALIKE) * (1 + clients):
        why = f"about the divisor, so they look like sums that were not divided by {divisor:g}."
    sentence = (
        f"The updates are {size:.3g} times as large as the claimed noise, {why} Noise missing in single tensors would "
        "not show."
    )
    return [Finding(check=Check.UNITS, sentence=sentence, refutes=False)]


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


def _runs(record: NoiseRecord, low: Bools) -> list[tuple[str, bool, int, int]]:
    """Return runs of blocks: what they are called with a verb, whether that is one whole tensor, and where they are."""
    if low.all() and len(record.layers.names) > 1:
        return [("All tensors together have", False, 0, len(low))]
    tensors, runs = record.tensor_of_block, list[list[int]]()
    for block in np.flatnonzero(low).tolist():
        if runs and runs[-1][1] == block and tensors[runs[-1][0]] == tensors[block]:
            runs[-1][1] = block + 1
        else:
            runs.append([block, block + 1])
    named = []
    for first, last in runs:
        start = int(record.edges[first])
        name, several = record.layers.name_of_stretch(start, start + int(record.block_sizes[first:last].sum()) - 1)
        words = f"{name[:1].upper()}{name[1:]} have" if several else f"{_subject(name)} has"
        named.append((words, not several, first, last))
    return named


def _subject(name: str) -> str:
    """Return a name as a sentence starts with it; names of tensors keep their letters."""
    return THE_UPDATE.capitalize() if name == THE_UPDATE else name


# Is it drawn anew?


def repeat_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return rounds whose noise repeats that of an earlier round, on the whole or in a tensor."""
    rounds, rows, rounding = claim.sampled, claim.rows, claim.row_rounding
    if len(rounds) < 2:
        return []
    # Where a round has too little energy with all that it shares, noise is missing, and what repeats is the signal.
    bare = len(rounds) * energy_p_value(np.sum(rows**2, axis=1), rows.shape[1]) <= claim.level
    findings = _repeated_pairs(rounds, rows, rounding, bare, 2, claim.level, "The noise of")
    if findings or len(rounds) > _MOST_BY_TENSOR:
        return findings
    sizes = np.bincount(claim.record.tensor_of_sample, minlength=len(claim.low_tensors))
    tests = 2 * int(np.sum(sizes >= _LEAST_SAMPLE))
    for tensor in np.flatnonzero((sizes >= _LEAST_SAMPLE) & ~claim.low_tensors):  # without noise, the signal repeats
        part = rows[:, claim.record.tensor_of_sample == tensor]
        subject = f"The noise of {claim.record.layers.names[tensor]} in"
        findings += _repeated_pairs(rounds, part, rounding, bare, tests, claim.level, subject)
    return findings


def _repeated_pairs(
    rounds: Ints, rows: Floats, rounding: Floats, bare: Bools, tests: int, level: float, subject: str
) -> list[Finding]:
    """Return a finding if some row is, up to scale, another row and too little else.

    Rounds that are ``bare`` of noise do not count.
    """
    dimensions = rows.shape[1]
    products, lengths = rows @ rows.T, np.sum(rows**2, axis=1)
    explained = np.tril(products**2 / np.maximum(lengths, 1e-300), -1)  # of row t by row s < t
    source = np.argmax(explained, axis=1)[1:]
    shared = explained.max(axis=1)[1:]
    rest = with_rounding(lengths[1:] - shared, np.array(float(dimensions)), rounding[1:])
    pairs = len(rounds) * (len(rounds) - 1) / 2
    p_values = np.minimum(1.0, tests * pairs * energy_p_value(rest, dimensions - 1))
    copied = (p_values <= level) & (shared >= _EXPLAINED * lengths[1:])
    repeated = np.flatnonzero(copied & ~bare[1:])
    if not len(repeated):
        return []
    first = repeated[0]
    verb = "repeats" if shared[first] >= _REPEATED * lengths[first + 1] else "depends on"
    sentence = f"{subject} round {rounds[first + 1]} {verb} that of round {rounds[source[first]]}"
    if len(repeated) > 1:
        sentence += f", and likewise in {plural(len(repeated) - 1, 'more round')}"
    return [Finding(check=Check.FRESH, sentence=sentence, p_value=float(p_values[repeated].max()))]


# Is it independent inside an update?


def copy_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return tensors whose noise repeats inside the update."""
    record = claim.record
    if not record.pairs:
        return []
    used = int(np.count_nonzero(~np.isnan(record.whole[:, -1])))
    noise = claim.noise_multipliers[claim.sampled[:used]][:, None] ** 2
    rest = (record.copies[:used] / noise).sum(axis=0)
    whole = (record.whole[:used] / noise).sum(axis=0)
    nothing = np.zeros(record.layers.dim, dtype=np.float32)
    sizes = np.array([len(half) for half, _ in record.halves(nothing)])
    dimensions = used * np.maximum(sizes - 1, 0).astype(np.float64)
    rounding = float(np.max(record.rounding)) / float(np.sqrt(noise.min()))
    p_values = len(record.pairs) * energy_p_value(with_rounding(rest, dimensions, rounding), dimensions)
    # Where a half has too little energy by itself, noise is missing, and what is copied is the signal.
    low = len(record.pairs) * energy_p_value(whole, dimensions) <= claim.level
    copied = np.flatnonzero((p_values <= claim.level) & (whole - rest >= _EXPLAINED * whole) & ~low)
    by_kind: dict[str, list[int]] = {}
    for pair in copied.tolist():
        by_kind.setdefault(record.pairs[pair][0], []).append(pair)
    findings = []
    for kind, pairs in by_kind.items():
        names = ", ".join(record.pairs[pair][1] for pair in pairs[:_LISTED])
        names += f" and {len(pairs) - _LISTED} more tensors" if len(pairs) > _LISTED else ""
        sentence = f"Neighboring coordinates of {names} get the same noise"
        if kind == "rows":
            sentence = f"The rows of {names} get the same noise"
        elif kind == "tensors":
            sentence = "{1} and {2} get the same noise".format(*record.pairs[pairs[0]])
            sentence += f", and {len(pairs) - 1} more pairs of tensors" if len(pairs) > 1 else ""
        p_value = float(min(1.0, p_values[pairs].max()))
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
