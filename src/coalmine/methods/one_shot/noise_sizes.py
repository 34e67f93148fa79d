"""Is there enough noise: on every tensor, in every round, on every number? docs/checks.md has the tests."""

from __future__ import annotations

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats
from coalmine.methods.one_shot.claimed_noise import SIZE_TESTS, ClaimedNoise, low_everywhere, with_rounding
from coalmine.methods.one_shot.noise_record import THE_UPDATE, NoiseRecord
from coalmine.results.finding import Check, Finding
from coalmine.results.summary import list_rounds
from coalmine.stats.noise_tests import energy_p_value, near_zero_p_value, noise_at_most

# Numbers within this many standard deviations of the claimed noise count as near zero.
_WIDTHS = (0.1, 0.001)
_LISTED = 3
_ONE_CLIP_NORM = ", if one clip norm covers all tensors; otherwise pass noise_per_layer"
_ALIKE = 0.15  # relative difference up to which factors count as the same
_LEAST_FACTOR = 3.0  # by which everything is smaller if it was divided by a number of clients
_TOLD_APART = 6  # standard errors
_LEAST_DIMENSIONS = 50  # in which noise of the claimed size is never twice as large by chance (p < 1e-17)


def size_findings(claim: ClaimedNoise, *, fresh: bool) -> list[Finding]:
    """Return tensors, parts of tensors and rounds with less energy than the claimed noise has.

    Where noise repeats, only the first round counts: others have the same noise, which may be small by chance.
    """
    record, level = claim.record, claim.level
    energies, dimensions = claim.energies
    by_block, blocks = claim.by_block, energies.shape[1]
    if not fresh:
        energies, dimensions = energies[:1], dimensions[:1]
        by_block = SIZE_TESTS * blocks * energy_p_value(energies[0], dimensions[0])
    by_round = SIZE_TESTS * len(energies) * energy_p_value(energies.sum(axis=1), dimensions.sum(axis=1))
    by_both = SIZE_TESTS * energies.size * energy_p_value(energies, dimensions)
    certain, low_rounds = by_block <= level, by_round <= level
    everywhere = low_everywhere(certain, energies.sum(axis=0), dimensions.sum(axis=0))
    low_blocks = np.ones_like(certain) if everywhere else certain
    findings = [
        Finding(
            check=Check.PLACES,
            # Any of blocks² runs of blocks might have been picked, so the bound holds for all of them together.
            sentence=f"{name} "
            + _less(noise_at_most(energies[:, a:b].sum(), dimensions[:, a:b].sum(), level / blocks**2))
            + (_same_factor(claim, energies, dimensions) or _assumption(claim, low_blocks, a, b)),
            p_value=float(by_block[a:b][certain[a:b]].max()),
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


def _assumption(claim: ClaimedNoise, low: Bools, first: int, last: int) -> str:
    """Return on what condition a whole tensor, but not all of them, with little noise is a bug; empty for others.

    With a clip norm per tensor, noise in proportion to it keeps the claim (docs/checks.md).
    """
    is_part = _name(claim.record, first, last)[1]
    return "" if claim.even_noise or low.all() or is_part else _ONE_CLIP_NORM


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


def too_large(claim: ClaimedNoise) -> list[Finding]:
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
        else "so the noise is larger than claimed, updates are not clipped, divisor= is wrong, or models were given as "
        "updates."
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
        p_values = SIZE_TESTS * len(_WIDTHS) * len(known) * chance
        low = (p_values <= claim.level) & ~known
        for tensor in np.flatnonzero(low):
            findings.append(
                Finding(
                    check=Check.PLACES,
                    sentence=f"About {100 * _bare_share(counts[tensor] / totals[tensor], width):.2g}% of the "
                    f"coordinates of {record.layers.names[tensor]} have next to no noise",
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
    energies = with_rounding(energies, np.array(dimensions), float(rounding.max()))
    p_values = SIZE_TESTS * len(energies) * energy_p_value(energies, dimensions)
    tensors = np.searchsorted(record.layers.starts, coordinates, side="right") - 1
    low = (p_values <= claim.level) & ~known[tensors]
    if not low.any():
        return []
    first = int(np.argmax(low))
    where, _ = record.layers.name_of_stretch(int(coordinates[first]), int(coordinates[first]))
    lack = "coordinates lacks" if low.sum() == 1 else "coordinates lack"
    sentence = (
        f"{int(low.sum()):,} of {low.size:,} {lack} the claimed noise in all rounds"
        f"{': ' if low.sum() == 1 else ', such as '}{where}"
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
        name, several = _name(record, first, last)
        names.append((f"{name} {'have' if several else 'has'}", first, last))
    return names


def _name(record: NoiseRecord, first: int, last: int) -> tuple[str, bool]:
    """Return what a run of blocks is called at the start of a sentence, and whether that is a plural."""
    start = int(record.edges[first])
    name, several = record.layers.name_of_stretch(start, start + int(record.block_sizes[first:last].sum()) - 1)
    return (name[:1].upper() + name[1:] if several else _subject(name)), several


def _subject(name: str) -> str:
    """Return a name as a sentence starts with it; names of tensors keep their letters."""
    return THE_UPDATE.capitalize() if name == THE_UPDATE else name
