"""The noise of a training's updates: whether the claimed noise is in what `NoiseRecord` holds of them.

`noise_findings` asks: is there enough noise, everywhere, drawn anew each time, independent and normal? Each test uses
one lemma (`coalmine.stats.exact_tests`): in a subspace fixed before the noise of a round is drawn, the update has at
least the energy of the claimed noise, whatever the clients sent. docs/checks.md has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
_SUBJECTS = {THE_UPDATE: "The update"}  # names that a sentence does not start with as they are
_COPIES = {"neighbors": "Neighboring coordinates of ", "rows": "The rows of ", "tensors": "", "update": "Parts of "}


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
            place = words.removesuffix(" has") if is_whole else ""
            findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=p_value, where=place))
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
        name, when = record.layers.names[tensor], list_rounds(rounds[cells.any(axis=1)], _LISTED)
        sentence, p_value = (
            f"{_SUBJECTS.get(name, name)} lacks the claimed noise in {when}",
            float(by_both[cells].max()),
        )
        findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=p_value, where=name))
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
            p_value = float(p_values[tensor])
            findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=p_value, where=name))
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
    dimensions = used * np.maximum(record.lengths - 1, 0).astype(np.float64)
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
