"""The noise of a training's updates: whether the claimed noise is in what `NoiseRecord` holds of them.

`noise_findings` asks: is there enough noise, everywhere, drawn anew each time, independent and normal? Each test uses
one of two lemmas (docs/checks.md). In a subspace fixed before the noise of a round is drawn, the update has at least
the energy of the claimed noise, whatever the clients sent. And whatever is picked by what was released, the canaries
there are at most as large as noise of the claimed size lets them be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from coalmine.arrays import Bools, Floats, Ints
from coalmine.checks.update_record import THE_UPDATE, NoiseRecord
from coalmine.checks.update_shares import NoiseFloor, evened
from coalmine.results.summary import list_rounds, plural
from coalmine.results.verdict import Check, Finding
from coalmine.stats.exact_tests import best_seed, energy_p_value, near_zero_p_value, noise_at_most

NOISE_CHECKS = (Check.PLACES, Check.FRESH, Check.INDEPENDENT, Check.SHAPE)

# Families of tests of the size: blocks, tensors in single rounds, numbers near zero, single numbers; and of repeats:
# updates, tensors, updates without news, seeds.
_SIZE_TESTS, _FRESH_TESTS = 4, 4
_UNCOMMON = 0.01  # probability of an energy, over the number of blocks, below which it is of another size
_NEAR = 0.1  # standard deviations of the claimed noise that count as near zero
_LISTED = 3
_MOST = 0.8  # of the coordinates
# A copy explains at least this share of the energy. Where it does not, the noise is missing rather than copied.
_EXPLAINED = 0.2
_REPEATED = 0.6  # share from which on noise is said to repeat other noise rather than to depend on it
_FROZEN = 0.95  # share from which on what a server carries over from earlier releases is hardly the reason
# Standard errors from 0 within which the canaries' share of the releases is none, and at which it would show.
_LOOKS_LIKE_NOTHING, _WOULD_SHOW = 3.0, 6.0
_LEAST_SAMPLE = 8
_MOST_BY_TENSOR = 1024  # rounds up to which repeats are looked for in each tensor
_SEEDED_ROUNDS = 4  # rounds whose noise is compared with that of small seeds
_TAILS = (0.5, 0.25, 0.1, 0.03, 0.01, 0.003)  # shares of the numbers, the largest or the smallest
_SUBJECTS = {THE_UPDATE: "The update"}  # names that a sentence does not start with as they are


@dataclass(frozen=True, eq=False, kw_only=True)
class ClaimedNoise:
    """The record of a training beside the noise that it claims.

    Args:
        record: What was recorded, of at least one round.
        floor: The claimed noise in the record, at least.
        level: Significance of each of the checks.
        sampled: Sampled rounds in order.
        rows: Their updates in standard deviations of the claimed noise, 0 where that is unknown, (sampled, numbers).
        rounding: How far rounding may have moved the numbers of each, (sampled,).
    """

    record: NoiseRecord
    floor: NoiseFloor
    level: float
    sampled: Ints
    rows: Floats
    rounding: Floats


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
    energies, dimensions = in_variances(record, floor.typical)
    low = _SIZE_TESTS * energies.shape[1] * energy_p_value(energies.sum(axis=0), dimensions.sum(axis=0)) <= level
    slots = record.rounds()
    bins = record.bin_of_round[record.sampled[slots]]
    noise = floor.typical[bins][:, record.tensor_of_sample]
    judged = np.where(noise > 0, noise, np.inf)
    claim = ClaimedNoise(
        record=record, floor=floor, level=level, sampled=record.sampled[slots], rows=record.updates[slots] / judged,
        rounding=np.asarray(record.rounding[bins] / judged.min(axis=1)),
    )  # fmt: skip
    # Noise that repeats in all rounds may be small by chance in all of them together, but not in a single one. So noise
    # is missing if blocks with most of the numbers have too little, and so in the first round already.
    at_first = _SIZE_TESTS * energies.shape[1] * energy_p_value(energies[0], dimensions[0]) <= level
    if float(record.block_sizes[low & at_first].sum()) > record.layers.dim / 2:
        return size_findings(claim, energies, dimensions, even_noise, clips)
    repeats = repeat_findings(claim)
    if repeats and not any(finding.refutes for finding in repeats):
        return repeats + shape_findings(claim)  # momentum after the noise makes both, and may hide what it is made of
    # Of repeated noise only the first round counts: others have the same, which may be small by chance.
    once = 1 if repeats else None
    findings = size_findings(claim, energies[:once], dimensions[:once], even_noise, clips)
    findings += [*repeats, *copy_findings(claim)]
    if not (findings or record.processed) and floor.length > 1:  # else canaries that are too long look like bare places
        return [Finding(check=Check.SENSITIVITY, sentence=_too_long(floor.length), p_value=level)]
    return findings or shape_findings(claim)  # missing and repeated noise has another shape, too


def in_variances(record: NoiseRecord, noise: Floats) -> tuple[Floats, Floats]:
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


def size_findings(
    claim: ClaimedNoise, energies: Floats, dimensions: Floats, even_noise: bool, clips: bool
) -> list[Finding]:
    """Return tensors, parts of tensors and rounds with less energy than the claimed noise has.

    Args:
        claim: The training.
        energies: Energy of each block in each round in units of the claimed variance, (rounds, blocks).
        dimensions: Dimensions of these energies, (rounds, blocks).
        even_noise: Whether no tensor may have less noise than others.
        clips: Whether canaries went through the training's clipping.
    """
    record, level, findings = claim.record, claim.level, list[Finding]()
    by_block = _SIZE_TESTS * energies.shape[1] * energy_p_value(energies.sum(axis=0), dimensions.sum(axis=0))
    # A single round is judged by its own share of the canaries, tensor by tensor.
    once, numbers = (
        np.add.reduceat(terms[: len(energies)], np.searchsorted(record.edges, record.layers.starts), axis=1)
        for terms in in_variances(record, claim.floor.of_round)
    )
    by_round = _SIZE_TESTS * once.size * energy_p_value(once, numbers)
    certain, odd = by_block <= level, by_round <= level
    low_rounds = odd @ record.layers.sizes > record.layers.dim / 2
    if low_rounds.any() and not low_rounds.all():
        # Where the other rounds have enough noise, it is these rounds that lack it, not the tensors.
        rest = energies[~low_rounds].sum(axis=0), dimensions[~low_rounds].sum(axis=0)
        enough = (_SIZE_TESTS * energies.shape[1] * energy_p_value(*rest) > level).all()
        certain = certain & ~(enough & (rest[0].sum() >= rest[1].sum()))
    low_blocks = certain
    if certain.any():
        # Blocks of a few numbers cannot lack noise for certain. By the noise that is most likely, it is missing
        # everywhere if all others are nearer to those without than to the claim, or might be like these by chance.
        floor, freedom = claim.floor, np.maximum(dimensions.sum(axis=0), 1)
        slack = floor.typical.max(axis=0) / np.maximum(floor.likely, 1e-300)
        likely = np.minimum(slack, 1)[record.tensor_of_block] ** 2 * energies.sum(axis=0)
        found = likely[certain].sum() / freedom[certain].sum()
        alike = stats.chi2.sf(likely / max(found, 1e-300), freedom) >= _UNCOMMON / certain.size
        # Where all tensors have the same noise, what clients send may hide that it is missing in a few small ones.
        most = even_noise and record.block_sizes[certain].sum() > _MOST * record.layers.dim
        known = record.block_sizes[dimensions.any(axis=0)].sum() > record.layers.dim / 2
        if most or (known and (certain | alike | (likely / freedom <= (1 + found) / 2)).all()):
            low_blocks = np.ones_like(certain)
        for words, is_whole, run in _runs(record, low_blocks):
            # Any of blocks² runs of blocks might have been picked, so the bound holds for all of them together.
            share = noise_at_most(energies[:, run].sum(), dimensions[:, run].sum(), level / certain.size**2)
            verb = "are" if words.endswith("have") else "is"
            sentence, check = f"{words} {_less(share)}" + f", or {verb} not clipped" * clips, Check.PLACES
            length = claim.floor.length
            if low_blocks.all() and length > 1:
                # The noise is compared with the canaries, which are too long if the stated divisor is right.
                check, sentence = Check.SENSITIVITY, _too_long(length)
            elif is_whole and not (even_noise or low_blocks.all()):
                # With a clip norm per tensor, noise in proportion to it keeps the claim.
                sentence += ", if one clip norm covers all tensors; otherwise pass noise_per_layer"
            p_value = float(by_block[run][certain[run]].max())
            place = words.removesuffix(" has") if is_whole and len(record.layers.names) > 1 else ""
            findings.append(Finding(check=check, sentence=sentence, p_value=p_value, where=place))
    rounds = np.flatnonzero(record.counts > 0)[: len(energies)]
    if low_rounds.any() and not low_rounds.all():
        low = np.where(odd, once, 0)[low_rounds].sum(axis=1), np.where(odd, numbers, 0)[low_rounds].sum(axis=1)
        share = max(noise_at_most(*one, level / once.size) for one in zip(*low, strict=True))
        have = "has" if low_rounds.sum() == 1 else "have"
        sentence = f"{list_rounds(rounds[low_rounds], _LISTED).capitalize()} {have} {_less(share)}"
        p_value = float(by_round.min(axis=1)[low_rounds].max())
        findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=p_value))
    odd &= ~low_rounds[:, None]
    odd[:, record.tensor_of_block[low_blocks]] = False
    for tensor in np.flatnonzero(odd.any(axis=0))[:_LISTED]:
        name, when = record.layers.names[tensor], list_rounds(rounds[odd[:, tensor]], _LISTED)
        sentence = f"{_SUBJECTS.get(name, name)} lacks the claimed noise in {when}"
        p_value = float(by_round[odd[:, tensor], tensor].max())
        findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=p_value, where=name))
    # What lacks noise has many numbers near zero, too, and noise that repeats may be near zero in all rounds by chance.
    return findings if findings or len(energies) < np.count_nonzero(record.counts) else _near_zero(claim)


def _near_zero(claim: ClaimedNoise) -> list[Finding]:
    """Return tensors in which more numbers are near zero than noise allows, and single numbers without noise."""
    record, rows, level = claim.record, claim.rows, claim.level
    home, rounding, findings = record.tensor_of_sample, float(claim.rounding.max()), list[Finding]()
    near = (np.abs(rows) <= _NEAR) & (rows != 0)
    counts, totals = (np.bincount(home, terms.sum(axis=0)) for terms in (near, rows != 0))
    p_values = _SIZE_TESTS * len(counts) * near_zero_p_value(counts, totals, _NEAR + rounding)
    low = p_values <= level
    by_chance = float(special.erf(_NEAR / np.sqrt(2)))  # noise puts some numbers near zero, too
    for tensor in np.flatnonzero(low):
        bare = max(0.0, counts[tensor] / totals[tensor] - by_chance) / (1 - by_chance)
        name = record.layers.names[tensor]
        sentence = f"About {100 * bare:.2g}% of the coordinates of {name} have next to no noise"
        findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=float(p_values[tensor]), where=name))
    # Single numbers that lack noise in all rounds: any number, or one of the sample in large models.
    coordinates, energies, dimensions = record.coordinates, np.sum(rows**2, axis=0), np.sum(rows != 0, axis=0)
    if len(record.squares):
        # The energies are of all rounds, so none may have unknown noise.
        noise = np.repeat(claim.floor.typical[record.counts > 0].min(axis=0), record.layers.sizes)
        coordinates, energies = np.arange(record.layers.dim), record.squares / np.where(noise > 0, noise, np.inf) ** 2
        dimensions = np.where(noise > 0, record.released, 0)
    energies = with_rounding(energies, dimensions, rounding)
    p_values = _SIZE_TESTS * len(energies) * energy_p_value(energies, dimensions)
    tensors = np.searchsorted(record.layers.starts, coordinates, side="right") - 1
    bare_numbers = (p_values <= level) & ~low[tensors]
    if bare_numbers.any():
        first = int(coordinates[int(np.argmax(bare_numbers))])
        where, _ = record.layers.name_of_stretch(first, first)
        verb, such_as = ("lacks", ":") if bare_numbers.sum() == 1 else ("lack", ", such as")
        count = f"{int(bare_numbers.sum()):,} of {bare_numbers.size:,}"
        sentence = f"{count} coordinates {verb} the claimed noise in all rounds{such_as} {where}"
        findings.append(Finding(check=Check.PLACES, sentence=sentence, p_value=float(p_values[bare_numbers].max())))
    return findings


def _too_long(length: float) -> str:
    """Say that canaries count for more than one clip norm."""
    return (
        f"Canaries count for at least {length:.3g} clip norms, by the stated divisor: look at clipping, weights and "
        "what happens to the sum before the noise"
    )


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


def missing_canaries(record: NoiseRecord, noise_multiplier: float) -> list[Finding]:
    """Return a warning if no canary shows up where, beside the claimed noise alone, they would."""
    errors = np.sqrt(np.sum(record.canaries * record.news / record.layers.sizes))
    found = abs(record.products.sum()) / max(errors, 1e-300)
    if math.sqrt(record.canaries.sum()) / noise_multiplier < _WOULD_SHOW or found > _LOOKS_LIKE_NOTHING:
        return []
    sentence = (
        "No canary shows up in any release, so nothing can be said about the noise. Either they are not in the sum "
        "that is released (planted.total, in a loop of your own), or much more than the claimed noise hides them"
    )
    return [Finding(check=Check.CANARIES_SHOW, sentence=sentence, refutes=False)]


# Is it drawn anew?


def repeat_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return rounds whose noise is, up to scale, that of an earlier round and too little else: in all, or a tensor."""
    rows, home, level = claim.rows, claim.record.tensor_of_sample, claim.level
    if len(rows) < 2:
        return []

    # Where a round has too little energy beside its canaries, with all that it shares, noise is missing, and what
    # repeats is the signal.
    record, bins = claim.record, claim.record.bin_of_round[claim.sampled]
    noise = np.maximum(claim.floor.typical, claim.floor.of_round)[bins][:, home]
    known, planted = noise > 0, record.planted[record.rounds()]
    updates = np.divide(record.updates[record.rounds()], noise, where=known, out=np.zeros_like(noise))
    canaries = np.divide(planted, noise, where=known & (updates != 0), out=np.zeros_like(noise))

    def bare(columns: Bools) -> Bools:
        part, signal = updates[:, columns], canaries[:, columns]
        along = np.sum(part * signal, axis=1) ** 2 / np.maximum(np.sum(signal**2, axis=1), 1e-300)
        rest = np.maximum(np.sum(part**2, axis=1) - along, 0.0)
        return len(rows) * energy_p_value(rest, np.maximum(np.count_nonzero(part, axis=1) - 1, 0)) <= level

    if findings := _seeded(claim) or _frozen(claim, bare(home >= 0)):
        return findings
    large = np.bincount(home) >= _LEAST_SAMPLE
    parts = [("The noise of", home >= 0, 1)]
    for tensor in np.flatnonzero(large if len(rows) <= _MOST_BY_TENSOR else ()):
        parts.append((f"The noise of {claim.record.layers.names[tensor]} in", home == tensor, int(np.sum(large))))
    findings = []
    for subject, columns, tests in parts:
        source, share, rest, degrees = _explained(rows[:, columns])
        pairs = len(rows) * (len(rows) - 1) / 2
        p_values = energy_p_value(with_rounding(rest, degrees + 1, claim.rounding[1:]), degrees)
        p_values = np.minimum(1.0, _FRESH_TESTS * tests * pairs * p_values)
        repeated = np.flatnonzero((p_values <= level) & (share >= _EXPLAINED) & ~(bare(home >= 0) | bare(columns))[1:])
        if len(repeated):
            findings.append(_repeats(subject, claim, repeated, source, share, float(p_values[repeated].max())))
            if columns.all():  # then no tensor need be named
                break
    return findings


def _explained(rows: Floats) -> tuple[Ints, Floats, Floats, Floats]:
    """Compare each row but the first with all before it.

    Args:
        rows: Numbers of each round, 0 where they are not judged or were not released, (rounds, numbers).

    Returns:
        Which row before is most similar, the share of the energy that it explains, what it leaves, and the dimensions
        of that; each (rounds - 1,).
    """
    lengths = np.sum(rows**2, axis=1)
    explained = np.tril((rows @ rows.T) ** 2 / np.maximum(lengths, 1e-300), -1)[1:]  # of row t by row s < t
    shared, lengths = explained.max(axis=1), lengths[1:]
    degrees = np.count_nonzero(rows[1:], axis=1) - 1.0
    return explained.argmax(axis=1), shared / np.maximum(lengths, 1e-300), np.maximum(lengths - shared, 0.0), degrees


def _seeded(claim: ClaimedNoise) -> list[Finding]:
    """Return rounds whose noise comes from different small seeds of the usual generators.

    A generator that is seeded once, as in tests, gives the numbers of its seed in the first round alone.
    """
    seeds: dict[str, int] = {}
    worst = 0.0
    for round, row in list(zip(claim.sampled, claim.rows, strict=True))[:_SEEDED_ROUNDS]:
        guess = best_seed(row[row != 0], claim.record.coordinates[row != 0])
        p_value = 1.0 if guess is None else _FRESH_TESTS * _SEEDED_ROUNDS * guess.p_value(1.0)
        if guess is not None and p_value <= claim.level and guess.rest <= (1 - _EXPLAINED) * guess.length**2:
            seeds.setdefault(guess.name, int(round))
            worst = max(worst, p_value)
    if len(seeds) < 2:
        return []
    examples = " and ".join(f"that of {name} in round {round}" for name, round in list(seeds.items())[:2])
    return [Finding(check=Check.FRESH, sentence=f"The noise comes from small seeds: it is {examples}", p_value=worst)]


def _frozen(claim: ClaimedNoise, bare: Bools) -> list[Finding]:
    """Return rounds that repeat another one with all its canaries, so that what is new holds none.

    A server may release again what it released before, as momentum does with a part. What is then new was noised like
    any other round, and contains canaries. If rounds repeat nearly all of another one, and what they add contains much
    less of the canaries than news of the other rounds do, then the noise was reused, and the clients' part was not.
    """
    slots = claim.record.rounds()
    updates, new, planted = (
        rows[slots].astype(np.float64) for rows in (claim.record.updates, claim.record.new, claim.record.planted)
    )
    # Canaries that are the same in all rounds make rounds alike, too, where there is little noise.
    along = np.sum(updates * planted, axis=1) / np.maximum(np.sum(planted**2, axis=1), 1e-300)
    source, share, _, _ = _explained(updates - along[:, None] * planted)
    copied = np.append(False, share >= _FROZEN)
    if not copied.any() or bare.any():
        return []
    earlier = updates[np.append(0, source)]
    factors = np.sum(updates * earlier, axis=1) / np.maximum(np.sum(earlier**2, axis=1), 1e-300)
    added = np.where(copied[:, None], updates - factors[:, None] * earlier, new)
    # Where this has a mean square of 1, its product with canaries has a variance of their energy.
    sizes = np.sqrt(np.maximum(np.mean(added**2, axis=1), 1e-300))
    products = np.sum(added * planted, axis=1) / sizes
    energies = [max(float(np.sum(planted[group] ** 2)), 1e-300) for group in (copied, ~copied)]
    missing = products[~copied].sum() / energies[1] / 2 - products[copied].sum() / energies[0]
    p_value = _FRESH_TESTS * float(stats.norm.sf(missing / math.sqrt(1 / energies[0] + 0.25 / energies[1])))
    if p_value > claim.level:
        return []
    return [_repeats("The noise of", claim, np.flatnonzero(copied[1:]), source, share, p_value)]


def _repeats(subject: str, claim: ClaimedNoise, repeated: Ints, source: Ints, share: Floats, p_value: float) -> Finding:
    """Return the finding that rounds repeat others."""
    first, rounds = repeated[0], claim.sampled
    verb = "repeats" if share[first] >= _REPEATED else "depends on"
    sentence = f"{subject} round {rounds[first + 1]} {verb} that of round {rounds[source[first]]}"
    if len(repeated) > 1:
        sentence += f", and likewise in {plural(len(repeated) - 1, 'more round')}"
    # A server that releases averages of rounds makes them depend on one another, but hardly repeats any.
    refutes = bool(share[repeated].max() >= _REPEATED) or not claim.record.processed
    return Finding(check=Check.FRESH, sentence=sentence, p_value=p_value, refutes=refutes)


# Is it independent inside an update?


def copy_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return tensors whose noise repeats inside the update."""
    record, pairs, level = claim.record, claim.record.pairs, claim.level
    if not pairs:
        return []
    used = int(np.count_nonzero(~np.isnan(record.whole[:, -1])))
    noise = claim.floor.typical[record.bin_of_round[claim.sampled[:used]]][:, [pair.tensor for pair in pairs]]
    dimensions = np.sum(noise > 0, axis=0) * np.maximum(0.0, record.lengths - 1)
    noise = np.where(noise > 0, noise, np.inf)
    rest, whole = (np.sum(terms[:used] / noise**2, axis=0) for terms in (record.copies, record.whole))
    rounding = float((np.max(record.rounding) / noise).max(initial=0.0))
    p_values = len(pairs) * energy_p_value(with_rounding(rest, dimensions, rounding), dimensions)
    # Where a half has too little energy by itself, noise is missing, and what is copied is the signal.
    low = len(pairs) * energy_p_value(whole, dimensions) <= level
    copied = np.flatnonzero((p_values <= level) & (whole - rest >= _EXPLAINED * whole) & ~low)
    named: dict[str, list[int]] = {}
    for number in copied.tolist():
        pair, (place, mirrored) = pairs[number], record.places[number].tolist()
        start = ""
        if pair.second is None:
            row = math.prod(record.layers.shapes[pair.name][1:])
            start = {1: "Neighboring coordinates of ", row: "The rows of "}.get(0 if mirrored else place, "Parts of ")
        named.setdefault(start, []).append(number)
    findings = []
    for start, group in named.items():
        names, more = ", ".join(pairs[number].name for number in group[:_LISTED]), len(group) - _LISTED
        sentence = f"{start}{names}{f' and {more} more' * (more > 0)} get the same noise"
        p_value = float(min(1.0, p_values[group].max()))
        findings.append(Finding(check=Check.INDEPENDENT, sentence=sentence, p_value=p_value))
    return findings


# Is it normal?


def shape_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return a finding if what was released tells more of the canaries than normal noise of the claimed size lets it.

    Noise that is bounded, or has one sign, shows what is beside it where it ends, and noise that is mostly tiny where
    it is tiny. Whatever is picked by what was released, such as the largest hundredth of the numbers, the canaries
    there add up to at most Σc²/z · φ(Φ⁻¹(p)) on average, where p is the share of Σc² that was picked.
    """
    record, slots = claim.record, claim.record.rounds()
    noise = claim.floor.noise_multipliers[record.bin_of_round[claim.sampled]]
    canaries = record.planted[slots] / noise[:, None]
    news = evened(record.new[slots].astype(np.float64), record.tensor_of_sample)
    ranks, number = np.argsort(np.argsort(news, axis=1, kind="stable"), axis=1), news.shape[1]
    best = Finding(check=Check.SHAPE, sentence="", p_value=1.0)
    for share in _TAILS:
        for side, name in ((1.0, "largest"), (-1.0, "smallest")):
            picked = ((ranks if side > 0 else number - 1 - ranks) >= (1 - share) * number) & (record.new[slots] != 0)
            # The canaries have random signs, and are the same in many rounds.
            by_number = side * np.sum(canaries * picked, axis=0)
            energy = max(float(np.sum(canaries**2)), 1e-300)
            tail = float(stats.norm.pdf(stats.norm.isf(np.sum(canaries**2, where=picked) / energy)))
            most, error = claim.floor.carried * energy * tail, max(float(np.linalg.norm(by_number)), 1e-300)
            p_value = 2 * len(_TAILS) * float(stats.norm.sf((by_number.sum() - most) / error))
            if most > 0 and p_value < best.p_value:
                sentence = (
                    f"The {name} {share:.3g} of the coordinates show {by_number.sum() / most:.2g} times as much of the "
                    "canaries as Gaussian noise of the claimed size lets any of them show: the noise has another shape"
                )
                best = Finding(check=Check.SHAPE, sentence=sentence, p_value=p_value)
    return [best] if best.p_value <= claim.level else []
