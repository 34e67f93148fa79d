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
from coalmine.checks.update_shares import NoiseFloor
from coalmine.results.summary import list_rounds, plural
from coalmine.results.verdict import Check, Finding
from coalmine.stats.exact_tests import energy_p_value, near_zero_p_value, noise_at_most

NOISE_CHECKS = (Check.PLACES, Check.FRESH, Check.INDEPENDENT, Check.SHAPE)

# Families of tests of the size: blocks, rounds, blocks in single rounds, numbers near zero, single numbers.
_SIZE_TESTS = 5
_UNCOMMON = 0.01  # probability of an energy, over the number of blocks, below which it is of another size
_WIDTHS = (0.1, 0.001)  # standard deviations of the claimed noise that count as near zero
_LISTED = 3
# A copy explains at least this share of the energy. Where it does not, the noise is missing rather than copied.
_EXPLAINED = 0.2
_REPEATED = 0.6  # share from which on noise is said to repeat other noise rather than to depend on it
_FROZEN = 0.95  # share from which on what a server carries over from earlier releases is hardly the reason
# Standard errors from 0 within which the canaries' share of the releases is none, and at which it would show.
_LOOKS_LIKE_NOTHING, _WOULD_SHOW = 3.0, 6.0
_LEAST_SAMPLE = 8
_MOST_BY_TENSOR = 1024  # rounds up to which repeats are looked for in each tensor
# Shape: half of the range and the width of one place where values are counted, in standard deviations, and how much of
# the range the likeliest places may fill.
_RANGE, _PLACE = 5.0, 0.05
_MEASURES = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
_SUBJECTS = {THE_UPDATE: "The update"}  # names that a sentence does not start with as they are
_COPIES = {"neighbors": "Neighboring coordinates of ", "rows": "The rows of ", "tensors": "", "update": "Parts of "}


@dataclass(frozen=True, eq=False, kw_only=True)
class ClaimedNoise:
    """The record of a training beside the noise that it claims.

    Args:
        record: What was recorded, of at least one round.
        floor: The claimed noise in the record, at least.
        level: Significance of each of the checks.
        energies: Energy of each block in each round in units of the claimed variance, (rounds, blocks).
        dimensions: Dimensions of these energies, (rounds, blocks).
        by_block: The p-value of each block over all rounds, adjusted for all tests of its check, (blocks,).
        low_tensors: Which tensors have a block with too little noise, (tensors,).
        sampled: Sampled rounds in order.
        rows: Their updates, (sampled, coordinates).
        row_noise: The claimed noise in these, (sampled, coordinates).
        row_rounding: How far rounding may have moved the numbers of each, (sampled,).
    """

    record: NoiseRecord
    floor: NoiseFloor
    level: float
    energies: Floats
    dimensions: Floats
    by_block: Floats
    low_tensors: Bools
    sampled: Ints
    rows: Floats
    row_noise: Floats
    row_rounding: Floats


def noise_findings(
    record: NoiseRecord, floor: NoiseFloor, level: float, *, even_noise: bool = False, clips: bool = False
) -> list[Finding]:
    """Return what all checks found.

    The p-values take all tests of one check into account.

    Args:
        record: What was recorded, of at least one round.
        floor: The claimed noise in it, at least.
        level: Significance of each of the checks.
        even_noise: Whether the claim states the noise of every tensor, so that none may have less.
        clips: Whether canaries went through the training's clipping, and may be too long.
    """
    energies, dimensions = _in_variances(record, floor.typical)
    blocks = energies.shape[1]
    by_block = _SIZE_TESTS * blocks * energy_p_value(energies.sum(axis=0), dimensions.sum(axis=0))
    low = by_block <= level
    order = np.argsort(record.sampled)[np.sum(record.sampled < 0) :]
    sampled = record.sampled[order]
    bins = record.bin_of_round[sampled]
    claim = ClaimedNoise(
        record=record, floor=floor, level=level, energies=energies, dimensions=dimensions,
        by_block=by_block, low_tensors=np.isin(np.arange(len(record.layers.names)), record.tensor_of_block[low]),
        sampled=sampled, rows=record.samples[order].astype(np.float64),
        row_noise=floor.typical[bins][:, record.tensor_of_sample], row_rounding=record.rounding[bins],
    )  # fmt: skip
    # Noise that repeats in all rounds may be small by chance in all of them together, but not in a single one. So noise
    # is missing if blocks with most of the numbers have too little, and so in the first round already.
    at_first = _SIZE_TESTS * blocks * energy_p_value(energies[0], dimensions[0])
    missing = low & (at_first <= level)
    is_missing = float(record.block_sizes[missing].sum()) > record.layers.dim / 2
    repeats = [] if is_missing else repeat_findings(claim)  # without noise, what repeats is the signal
    if repeats and not any(finding.refutes for finding in repeats):
        return repeats  # where news of rounds are correlated, the canaries' share in them is too large
    enough = claim
    if repeats:
        # Only the first round counts then: others have the same noise, which may be small by chance.
        enough = replace(claim, energies=energies[:1], dimensions=dimensions[:1], by_block=at_first)
    findings = size_findings(enough, even_noise, clips, fresh=not repeats)
    if not is_missing:
        findings += [*repeats, *copy_findings(claim)]
        # Missing and repeated noise has another shape, too.
        if not findings:
            # The tensor with the most numbers has the most precise limit, and mixed with others it says less.
            home = record.tensor_of_sample
            largest = home == np.argmax(np.bincount(home, (claim.row_noise > 0).sum(axis=0)))
            findings = shape_findings(claim.rows[:, largest], claim.row_noise[:, largest], _row_rounding(claim), level)
    return findings


def _in_variances(record: NoiseRecord, noise: Floats) -> tuple[Floats, Floats]:
    """Return energies in units of the claimed variance, and their dimensions: none where nothing is known of the noise.

    Args:
        record: The energies.
        noise: The claimed noise of each tensor, (bins, tensors).
    """
    seen = record.counts > 0
    size = noise[seen][:, record.tensor_of_block]
    dimensions = np.where(size > 0, record.numbers[seen], 0.0)
    size = np.where(size > 0, size, np.inf)
    return with_rounding(record.energies[seen] / size**2, dimensions, record.rounding[seen][:, None] / size), dimensions


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
    known = dimensions > 0
    if low[known].all():
        return True
    share = float(energies[low].sum() / dimensions[low].sum())  # of the variance
    if not 0 < share < 1:
        return False
    others, numbers = energies[known & ~low], dimensions[known & ~low]
    common = stats.chi2.sf(others / share, numbers) >= _UNCOMMON / others.size
    # The logarithms of the densities of the energies, without what they share.
    likelier = -numbers.sum() * np.log(share) - others.sum() * (1 / share - 1) > 0
    return bool(common.all() & likelier)


def size_findings(claim: ClaimedNoise, even_noise: bool, clips: bool, *, fresh: bool) -> list[Finding]:
    """Return tensors, parts of tensors and rounds with less energy than the claimed noise has."""
    record, level = claim.record, claim.level
    energies, dimensions, by_block = claim.energies, claim.dimensions, claim.by_block
    # A single round is judged by its own share of the canaries.
    once, numbers = (
        terms[: len(energies)]
        for terms in _in_variances(record, np.multiply.outer(claim.floor.of_round, claim.floor.relative))
    )
    mean_energies, freedom = (terms[: len(energies)] for terms in _by_round(claim))
    by_round = _SIZE_TESTS * len(once) * energy_p_value(mean_energies * freedom, freedom)
    by_both = _SIZE_TESTS * once.size * energy_p_value(once, numbers)
    certain, low_rounds = by_block <= level, by_round <= level
    low_blocks, findings = certain, list[Finding]()
    if certain.any():
        # Compared with each other, tensors are judged by the noise that is most likely.
        slack = claim.floor.slack[record.tensor_of_block] ** 2
        if low_everywhere(certain, slack * energies.sum(axis=0), dimensions.sum(axis=0)):
            low_blocks = np.ones_like(certain)
        for words, is_whole, run in _runs(record, low_blocks):
            # Any of blocks² runs of blocks might have been picked, so the bound holds for all of them together.
            share = noise_at_most(energies[:, run].sum(), dimensions[:, run].sum(), level / certain.size**2)
            sentence, check = f"{words} {_less(share)}" + ", or is not clipped" * clips, Check.PLACES
            length = claim.floor.length
            if low_blocks.all() and length > 1:
                # The noise is compared with the canaries, which are too long if the stated divisor is right.
                check = Check.SENSITIVITY
                sentence = (
                    f"Canaries count for at least {length:.3g} clip norms, by the stated divisor: look at clipping, "
                    "weights and what happens to the sum before the noise"
                )
            elif is_whole and not (even_noise or low_blocks.all()):
                # With a clip norm per tensor, noise in proportion to it keeps the claim.
                sentence += ", if one clip norm covers all tensors; otherwise pass noise_per_layer"
            p_value = float(by_block[run][certain[run]].max())
            place = words.removesuffix(" has") if is_whole else ""
            findings.append(Finding(check=check, sentence=sentence, p_value=p_value, where=place))
    rounds = np.flatnonzero(record.counts > 0)[: len(energies)]
    if low_rounds.any() and not low_rounds.all():
        share = 0.0
        for t in np.flatnonzero(low_rounds):
            share = max(share, noise_at_most(mean_energies[t] * freedom[t], freedom[t], level / len(once)))
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


def _near_zero(claim: ClaimedNoise) -> list[Finding]:
    """Return tensors in which more numbers are near zero than noise allows, and single numbers without noise."""
    record, known, rows, noise = claim.record, claim.low_tensors, claim.rows, claim.row_noise
    tensors, rounding, findings = record.tensor_of_sample, _row_rounding(claim), list[Finding]()
    for width in _WIDTHS:
        near = (np.abs(rows) <= width * noise) & (rows != 0)
        counts = np.bincount(tensors, near.sum(axis=0), len(known))
        totals = np.bincount(tensors, (noise > 0).sum(axis=0), len(known))
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
    coordinates, judged = record.coordinates, noise > 0
    energies = np.sum(np.where(judged, rows / np.where(judged, noise, 1.0), 0.0) ** 2, axis=0)
    dimensions = judged.sum(axis=0).astype(np.float64)
    if len(record.squares):
        coordinates = np.arange(record.layers.dim)
        typical = claim.floor.typical[record.counts > 0]
        least = np.where(typical > 0, typical, np.inf).min(axis=0)
        energies = record.squares / np.repeat(least, record.layers.sizes) ** 2
        dimensions = np.repeat(record.counts[record.counts > 0] @ (typical > 0), record.layers.sizes).astype(np.float64)
    energies = with_rounding(energies, dimensions, rounding)
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


def _by_round(claim: ClaimedNoise) -> tuple[Floats, Floats]:
    """Return the mean energy of a coordinate in each round in units of the claimed variance, and its dimensions.

    Tensors have the weights that they have in the canaries' share, so a factor of their own makes it no smaller than
    the square of the share. The dimensions are those of Satterthwaite's approximation.
    """
    record, floor, seen = claim.record, claim.floor, claim.record.counts > 0
    starts = np.searchsorted(record.edges, record.layers.starts)
    energies, numbers = (np.add.reduceat(terms[seen], starts, axis=1) for terms in (record.energies, record.numbers))
    weights = np.where(numbers > 0, floor.weights[seen], 0.0)
    numbers = np.maximum(numbers, 1)
    known = (floor.of_round[seen] > 0) & (weights.sum(axis=1) > 0)
    noise = np.where(known, floor.of_round[seen], np.inf)
    dimensions = np.where(known, weights.sum(axis=1) ** 2 / np.maximum((weights**2 / numbers).sum(axis=1), 1e-300), 0.0)
    mean = (weights * energies / numbers).sum(axis=1) / noise**2
    return with_rounding(mean, np.ones_like(mean), record.rounding[seen] / noise), dimensions


def _row_rounding(claim: ClaimedNoise) -> float:
    """Return how far rounding may have moved sampled numbers, in standard deviations of the claimed noise."""
    least = np.where(claim.row_noise > 0, claim.row_noise, np.inf).min(axis=1)
    return float((claim.row_rounding / least).max())


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


# Are the canaries there?


def missing_canaries(floor: NoiseFloor) -> list[Finding]:
    """Return a warning if no canary shows up where, beside the claimed noise alone, they would."""
    precision = math.sqrt(float(floor.precision.sum())) / float(floor.noise_multipliers.max())
    if precision < _WOULD_SHOW:
        return []
    share = float(floor.news.sum() / floor.precision.sum())  # of the releases that is claimed noise, by the canaries
    if abs(share) * precision > _LOOKS_LIKE_NOTHING:
        return []
    sentence = (
        "No canary shows up in any release, so nothing can be said about the noise. Either they are not in the sum "
        "that is released (planted.total, in a loop of your own), or much more than the claimed noise hides them"
    )
    return [Finding(check=Check.CANARIES_SHOW, sentence=sentence, refutes=False)]


# Is it drawn anew?


def repeat_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return rounds whose noise is, up to scale, that of an earlier round and too little else: in all, or a tensor."""
    rounds, home, level = claim.sampled, claim.record.tensor_of_sample, claim.level
    if len(rounds) < 2:
        return []
    judged = claim.row_noise > 0
    rows = np.where(judged, claim.rows / np.where(judged, claim.row_noise, 1.0), 0.0)
    rounding = np.divide(
        claim.row_rounding, claim.row_noise.max(axis=1), where=judged.any(axis=1), out=np.zeros(len(rows))
    )
    sizes = np.bincount(home, minlength=len(claim.low_tensors))
    large = sizes >= _LEAST_SAMPLE
    parts = [("The noise of", home >= 0, 2)]
    for tensor in np.flatnonzero(large & ~claim.low_tensors if len(rounds) <= _MOST_BY_TENSOR else ()):
        name = claim.record.layers.names[tensor]
        parts.append((f"The noise of {name} in", home == tensor, 2 * int(np.sum(large))))
    findings = _frozen(claim)
    if findings:
        return findings
    # Where a round has too little energy with all that it shares, noise is missing, and what repeats is the signal.
    bare = len(rounds) * energy_p_value(np.sum(rows**2, axis=1), np.count_nonzero(rows, axis=1)) <= level
    for subject, columns, tests in parts:
        p_values, source, share = _explained(rows[:, columns], rounding)
        p_values = np.minimum(1.0, 2 * tests * p_values)
        repeated = np.flatnonzero((p_values <= level) & (share >= _EXPLAINED) & ~bare[1:])
        if not len(repeated):
            continue
        p_value = float(p_values[repeated].max())
        findings.append(_repeats(subject, claim, repeated, source, share, p_value))
        if columns.all():  # then no tensor need be named
            break
    return findings


def _explained(rows: Floats, rounding: Floats) -> tuple[Floats, Ints, Floats]:
    """Compare each row but the first with all before it.

    Args:
        rows: Numbers of each round in standard deviations of the claimed noise, 0 where they are not judged or were
            not released, (rounds, numbers).
        rounding: How far rounding may have moved each, (rounds,).

    Returns:
        The p-value of what the most similar row before leaves of each, for all pairs; which row that is; and the share
        of the energy that it explains; each (rounds - 1,).
    """
    lengths = np.sum(rows**2, axis=1)
    explained = np.tril((rows @ rows.T) ** 2 / np.maximum(lengths, 1e-300), -1)  # of row t by row s < t
    source, shared = np.argmax(explained, axis=1)[1:], explained.max(axis=1)[1:]
    degrees = np.count_nonzero(rows[1:], axis=1).astype(np.float64)
    rest = with_rounding(np.maximum(lengths[1:] - shared, 0.0), degrees, rounding[1:])
    pairs = len(rows) * (len(rows) - 1) / 2
    return pairs * energy_p_value(rest, degrees - 1), source, shared / np.maximum(lengths[1:], 1e-300)


def _frozen(claim: ClaimedNoise) -> list[Finding]:
    """Return rounds that repeat another one with all its canaries, so that what is new holds none.

    A server may release again what it released before, as momentum does with a part. What is then new was noised like
    any other round, and contains canaries. If rounds repeat nearly all of another one, and their news contain much less
    of the canaries than those of the other rounds do, then the noise was reused, and the clients' part was not.
    """
    whole, floor, bins = claim.floor.whole, claim.floor, claim.record.bin_of_round[claim.sampled]
    noise = np.where(whole[bins] > 0, whole[bins], np.inf)
    rows = claim.rows / noise[:, None]
    p_values, source, share = _explained(rows, claim.row_rounding / noise)
    # Without noise, it is the signal that repeats.
    bare = len(bins) * energy_p_value(np.sum(rows**2, axis=1), np.count_nonzero(rows, axis=1)) <= claim.level
    copied = (share >= _FROZEN) & (4 * p_values <= claim.level) & ~bare[1:]
    if not copied.any():
        return []
    repeats, others = bins[1:][copied], np.append(bins[0], bins[1:][~copied])
    new, usual = (floor.news[these].sum() / max(floor.precision[these].sum(), 1e-300) for these in (repeats, others))
    # In units of the claimed noise multiplier, a product with canaries has a variance of 1 over their energy.
    noise_multiplier = float(floor.noise_multipliers.max())
    error = noise_multiplier * math.sqrt(
        1 / max(floor.precision[repeats].sum(), 1e-300) + 0.25 / max(floor.precision[others].sum(), 1e-300)
    )
    p_value = 4 * max(float(p_values[copied].max()), float(stats.norm.sf((usual / 2 - new) / error)))
    if p_value > claim.level:
        return []
    return [_repeats("The noise of", claim, np.flatnonzero(copied), source, share, p_value)]


def _repeats(subject: str, claim: ClaimedNoise, repeated: Ints, source: Ints, share: Floats, p_value: float) -> Finding:
    """Return the finding that rounds repeat others."""
    first, rounds = repeated[0], claim.sampled
    verb = "repeats" if share[first] >= _REPEATED else "depends on"
    sentence = f"{subject} round {rounds[first + 1]} {verb} that of round {rounds[source[first]]}"
    if len(repeated) > 1:
        sentence += f", and likewise in {plural(len(repeated) - 1, 'more round')}"
    # A server that releases averages of rounds makes them depend on one another, but hardly repeats any.
    refutes = bool(share[repeated].max() >= _REPEATED)
    return Finding(check=Check.FRESH, sentence=sentence, p_value=p_value, refutes=refutes)


# Is it independent inside an update?


def copy_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return tensors whose noise repeats inside the update."""
    record, pairs, level = claim.record, claim.record.pairs, claim.level
    if not pairs:
        return []
    used = int(np.count_nonzero(~np.isnan(record.whole[:, -1])))
    typical = claim.floor.typical[record.bin_of_round[claim.sampled[:used]]]
    starts, sizes = record.layers.starts, record.layers.sizes
    noise, dimensions = np.full((used, len(pairs)), np.inf), np.zeros(len(pairs))
    for number, pair in enumerate(pairs):
        # What is tested is the largest tensor in the first half.
        inside = np.flatnonzero((starts < pair.first.stop) & (starts >= (pair.first.start or 0)))
        largest = inside[np.argmax(sizes[inside])]
        known = typical[:, largest] > 0
        noise[known, number] = typical[known, largest]
        dimensions[number] = known.sum() * max(0.0, record.lengths[number] * sizes[largest] / sizes[inside].sum() - 1)
    rest = (record.copies[:used] / noise**2).sum(axis=0)
    whole = (record.whole[:used] / noise**2).sum(axis=0)
    rounding = float((np.max(record.rounding) / noise).max(initial=0.0))
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


def shape_findings(rows: Floats, noise: Floats, rounding: float, level: float) -> list[Finding]:
    """Return a finding if the values of later rounds lie in the likeliest places of earlier ones too often.

    Zeros were not released, and numbers at a limit were cut off, so neither lie in any place.

    Args:
        rows: Sampled numbers of each round, (rounds, numbers).
        noise: Standard deviation of the claimed noise in them, 0 where it is unknown, (rounds, numbers).
        rounding: How far rounding may have moved each number, in standard deviations.
        level: Significance.

    Example:
        >>> rng, ones = np.random.default_rng(0), np.ones((8, 500))
        >>> shape_findings(rng.normal(size=(8, 500)), ones, 0.0, 1e-3)
        []
        >>> [finding] = shape_findings(rng.uniform(-3**0.5, 3**0.5, size=(8, 500)), ones, 0.0, 1e-3)
        >>> finding.sentence.partition(";")[0]
        '100% of the noise lies in places 4 standard deviations wide in all'
    """
    half = len(rows) // 2
    if not half:
        return []
    largest = np.abs(rows).max(axis=1, keepdims=True)
    at_limit = np.abs(rows) == largest
    at_limit &= at_limit.sum(axis=1, keepdims=True) > 1
    values = np.where((noise > 0) & (rows != 0) & ~at_limit, rows, np.inf) / np.where(noise > 0, noise, 1.0)
    edges = np.arange(-_RANGE, _RANGE + _PLACE / 2, _PLACE)
    likeliest = np.argsort(-np.histogram(values[:half], edges)[0], kind="stable")
    counts = np.histogram(values[half:], edges)[0]
    total = int(np.count_nonzero(noise[half:]))
    if not total:
        return []
    findings = []
    for measure in _MEASURES:
        places = likeliest[: round(measure / _PLACE)]
        # Before rounding, a value was in a place that is wider by the rounding on both sides.
        width = len(places) * (_PLACE + 2 * rounding) / 2
        hits = float(counts[places].sum())
        most = math.erf(width / math.sqrt(2))
        sentence = (
            f"{hits / total:.0%} of the noise lies in places {measure:g} standard deviations wide in all; of "
            f"Gaussian noise at most {most:.0%} would, unless the server bends or rounds numbers"
        )
        p_value = min(1.0, len(_MEASURES) * float(near_zero_p_value(hits, total, width)))
        # A server may take the hyperbolic tangent of each number, or two bits of it, and leak no more.
        findings.append(Finding(check=Check.SHAPE, sentence=sentence, p_value=p_value, refutes=False))
    best = min(findings, key=lambda finding: finding.p_value)
    return [best] if best.p_value <= level else []
