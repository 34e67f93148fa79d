"""Checks that look for a pattern of the noise in the first rounds and test it in the later ones: its shape, and copies.

A pattern is fixed before the noise of the later rounds is drawn, so it is one test, however many were compared to find
it. docs/checks.md has the proofs.
"""

from __future__ import annotations

import math

import numpy as np

from coalmine.arrays import Floats, Ints
from coalmine.results.finding import Check, Finding
from coalmine.stats.noise_tests import energy_p_value, near_zero_p_value

# In standard deviations of the claimed noise: half of the range, and the width of one place, where values are counted.
_RANGE, _PLACE = 5.0, 0.05
# How much of the range the likeliest places may fill.
_MEASURES = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0)
# How many pairs of numbers are tested together, likeliest first.
_PAIRS = (1, 8, 64)
_LEAST_ROUNDS, _MOST_ROUNDS = 4, 64  # that choose pairs: fewer show nothing, more show nothing new
_EXPLAINED = 0.5


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


def closest_pairs(rows: Floats) -> tuple[Ints, Floats]:
    """Return disjoint pairs of columns that are most alike, likeliest first, and the combination of each that is least.

    Args:
        rows: Sampled numbers of each round, (rounds, numbers).

    Returns:
        Columns, (pairs, 2), and unit vectors of the same shape: their combination has the least energy in these rows.
    """
    columns = rows.astype(np.float32)
    columns /= np.maximum(np.linalg.norm(columns, axis=0), 1e-30)
    likeness = np.abs(columns.T @ columns)
    np.fill_diagonal(likeness, 0)
    partners = np.argmax(likeness, axis=1)
    used: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for column in np.argsort(-likeness[np.arange(len(partners)), partners], kind="stable").tolist():
        pair = (column, int(partners[column]))
        if len(pairs) < _PAIRS[-1] and not used & set(pair):
            pairs.append(pair)
            used |= set(pair)
    chosen = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    parts = rows[:, chosen]
    _, vectors = np.linalg.eigh(np.einsum("tpi,tpj->pij", parts, parts))
    return chosen, vectors[:, :, 0]


def pair_p_value(rows: Floats, rounding: float) -> tuple[float, Ints]:
    """Return the p-value of the claim that no number's noise is that of another, and the pairs that disprove it.

    Args:
        rows: Sampled numbers of each round in standard deviations of the claimed noise, (rounds, numbers).
        rounding: How far rounding may have moved each number, in the same units.
    """
    half = min(len(rows) // 2, _MOST_ROUNDS)
    if half < _LEAST_ROUNDS or rows.shape[1] < 2:
        return 1.0, np.zeros((0, 2), dtype=np.int64)
    pairs, vectors = closest_pairs(rows[:half])
    parts = rows[half:, pairs]
    combined = np.abs(np.einsum("tpi,pi->tp", parts, vectors)) + math.sqrt(2) * rounding
    rest, whole = np.sum(combined**2, axis=0), np.sum(parts**2, axis=(0, 2)) / 2
    tests = []
    for count in _PAIRS:
        energy, dimensions = float(rest[:count].sum()), len(parts) * len(rest[:count])
        # Without noise there is nothing to copy: the check of the size sees that.
        copied = energy <= (1 - _EXPLAINED) * whole[:count].sum() and whole[:count].sum() >= dimensions / 2
        tests.append((len(_PAIRS) * float(energy_p_value(energy, dimensions)) if copied else 1.0, pairs[:count]))
    p_value, copies = min(tests, key=lambda test: test[0])
    return min(1.0, p_value), copies
