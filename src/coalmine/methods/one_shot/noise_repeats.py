"""Is noise drawn anew in every round, and for every number of an update? docs/checks.md has the tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coalmine.arrays import Bools, Floats, Ints
from coalmine.methods.one_shot.claimed_noise import ClaimedNoise, with_rounding
from coalmine.methods.one_shot.noise_patterns import pair_p_value
from coalmine.results.finding import Check, Finding
from coalmine.results.summary import plural
from coalmine.stats.noise_tests import energy_p_value

# A copy explains at least this share of the energy. Where it does not, the noise is missing rather than copied.
_EXPLAINED = 0.2
_REPEATED = 0.6
_LEAST_SAMPLE = 8
_MOST_BY_TENSOR = 1024  # rounds up to which repeats are looked for in each tensor
_LISTED = 3


def repeat_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return rounds whose noise repeats, or follows from, that of earlier rounds."""
    rounds, rows, rounding = claim.rows
    if len(rounds) < 2:
        return []
    record, families = claim.record, 4  # of tests: pairs, pairs in a tensor, all earlier rounds, their sum
    # Where a round has too little energy with all that it shares, noise is missing, and what repeats is the signal.
    bare = len(rounds) * energy_p_value(np.sum(rows**2, axis=1), rows.shape[1]) <= claim.level
    findings = _repeated_pairs(rounds, rows, rounding, bare, families, claim.level, "The noise of")
    if findings:
        return findings
    if len(rounds) <= _MOST_BY_TENSOR:
        tensors = record.tensor_of_sample
        columns = [np.flatnonzero(tensors == tensor) for tensor in range(len(record.layers.names))]
        tests = families * sum(len(column) >= _LEAST_SAMPLE for column in columns)
        for name, column, low in zip(record.layers.names, columns, claim.low_tensors, strict=True):
            if len(column) >= _LEAST_SAMPLE and not low:  # without noise, what repeats is the signal
                findings += _repeated_pairs(
                    rounds, rows[:, column], rounding, bare, tests, claim.level, f"The noise of {name} in"
                )
    return findings or _innovations(rounds, rows, rounding, families, claim.level)


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


def _innovations(rounds: Ints, rows: Floats, rounding: Floats, families: int, level: float) -> list[Finding]:
    """Return a finding if the noise of rounds follows in part from all earlier rounds together.

    Rounds beyond a quarter of the dimensions would leave too little that does not follow from others by chance, so long
    trainings are looked at in stretches.
    """
    stretch = rows.shape[1] // 4
    if stretch < 2:  # nothing is earlier than a single round
        return []
    starts = range(0, len(rounds), stretch)
    tests = [
        _innovation(rows[start : start + stretch], rounding[start : start + stretch], families * len(starts), level)
        for start in starts
    ]
    p_value, explained, by_chance = min(tests, key=lambda test: test[0])
    if p_value > level:
        return []
    looked_at = f", looked at {stretch:,} rounds at a time" if len(starts) > 1 else ""
    return [
        Finding(
            check=Check.FRESH,
            sentence=f"{explained:.0%} of the noise of a round follows from earlier rounds ({by_chance:.0%} by chance"
            f"{looked_at})",
            p_value=p_value,
        )
    ]


def _innovation(rows: Floats, rounding: Floats, tests: int, level: float) -> tuple[float, float, float]:
    """Return the p-value of a stretch of rounds, the share that follows from earlier ones, and that share by chance."""
    count, dimensions = rows.shape
    # Row t without its projection on rows 0 … t − 1 has length |R_tt| in the QR decomposition.
    rest = np.square(np.diag(np.linalg.qr(rows.T, mode="r")))
    free = dimensions - np.arange(count, dtype=np.float64)
    energies = with_rounding(rest, np.array(float(dimensions)), rounding)
    by_round = tests * count * energy_p_value(energies, free)
    together = tests * float(energy_p_value(energies.sum(), free.sum()))
    whole = float(np.sum(rows[1:] ** 2))
    explained = 1 - rest[1:].sum() / max(whole, 1e-300)
    # Even independent rounds explain t of the dimensions of round t.
    by_chance = 1 - free[1:].sum() / max(dimensions * (count - 1), 1)
    # Noise that is missing does not follow from earlier rounds.
    low = float(energy_p_value(whole, dimensions * (count - 1))) <= level
    if low or explained - by_chance < _EXPLAINED:
        return 1.0, explained, by_chance
    return min(1.0, together, float(by_round.min())), explained, by_chance


# Is it independent inside an update?


def copy_findings(claim: ClaimedNoise, *, fresh: bool) -> list[Finding]:
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
    energies = with_rounding(rest, dimensions, rounding)
    # Half of the level is for pairs of any numbers.
    p_values = np.minimum(1.0, 2 * len(record.pairs) * energy_p_value(energies, dimensions))
    # Where a half has too little energy by itself, noise is missing, and what is copied is the signal.
    low = len(record.pairs) * energy_p_value(whole, dimensions) <= claim.level
    copied = np.flatnonzero((p_values <= claim.level) & (whole - rest >= _EXPLAINED * whole) & ~low)
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
        f"coordinate {record.coordinates[i] - record.layers.starts[tensor]:,} of {record.layers.names[tensor]}"
        for i, tensor in zip(pairs[0], record.tensor_of_sample[pairs[0]], strict=True)
    ]
    more = f", and likewise in {plural(len(pairs) - 1, 'more pair')}" if len(pairs) > 1 else ""
    sentence = f"The noise of {names[0]} follows that of {names[1]}{more}"
    return [Finding(check=Check.INDEPENDENT, sentence=sentence, p_value=2 * p_value)]


def _copy_sentence(kind: str, pairs: Sequence[tuple[str, str, str]], lag: int) -> str:
    names = ", ".join(name for _, name, _ in pairs[:_LISTED])
    names += f" and {len(pairs) - _LISTED} more tensors" if len(pairs) > _LISTED else ""
    if kind == "neighbors":
        return f"Neighboring coordinates of {names} get the same noise"
    if kind == "rows":
        return f"The rows of {names} get the same noise"
    if kind == "tensors":
        others = f", and {len(pairs) - 1} more pairs of tensors" if len(pairs) > 1 else ""
        return f"{pairs[0][1]} and {pairs[0][2]} get the same noise{others}"
    return f"Coordinates that are {lag:,} apart get the same noise"
