"""How large the claimed noise is in what a training releases, by the share of the canaries in the same release.

Whatever turns the noisy sum into a release keeps no larger a share of the canaries than of the noise (docs/checks.md),
so the noise of a release is at least the canaries' share of it times the claimed noise. `noise_floor` bounds that from
below by what `NoiseRecord` holds. `carried_over` measures where the lemma needs help: news that are correlated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from coalmine.arrays import Floats, Ints
from coalmine.checks.update_record import LAGS, NoiseRecord


class NoiseFloor(NamedTuple):
    """Lower limits on the claimed noise in what was recorded, 0 where nothing is known.

    Args:
        noise_multipliers: Claimed noise multiplier of each round, (bins,).
        typical: In each tensor and round, by the share of all rounds together, (bins, tensors).
        of_round: In each tensor and round, by the share of this round alone, (bins, tensors).
        likely: The noise of each tensor that is most likely, which is no limit, (tensors,).
        carried: How many times more of the canaries than of the noise news may contain, at least 1.
        length: How many clip norms a canary counts for in the sum, at least, by the stated divisor; 0 if unknown.
    """

    noise_multipliers: Floats
    typical: Floats
    of_round: Floats
    likely: Floats
    carried: float
    length: float


def evened(rows: Floats, tensors: Ints) -> Floats:
    """Return rows in which the numbers of each tensor have mean 0 and a mean square of 1, or are all zero.

    Args:
        rows: Numbers of each round, (rounds, numbers).
        tensors: The tensor of each number, ascending, (numbers,).
    """
    starts = np.searchsorted(tensors, np.arange(tensors[-1] + 1))
    counts = np.bincount(tensors)
    rows = rows - (np.add.reduceat(rows, starts, axis=1) / counts)[:, tensors]
    squares = np.add.reduceat(rows**2, starts, axis=1) / counts
    return np.asarray(rows / np.sqrt(np.maximum(squares, 1e-300))[:, tensors])


def carried_over(rows: Floats, rounds: Ints) -> float:
    """Return how many times more of the canaries than of the noise the news of rounds contain.

    If news are Σ hₖ xₜ₋ₖ of noisy sums x, the same canaries in all rounds have the gain Σ hₖ, and noise has √Σ hₖ². The
    ratio of their squares is the long-run variance over the variance: one plus twice the correlations at all lags.

    Args:
        rows: News of each round, (rounds, numbers).
        rounds: Their rounds, ascending, (rounds,).

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 5000))
        >>> round(carried_over(x, np.arange(40)), 1), round(carried_over(x[1:] + x[:-1], np.arange(39)), 1)
        (1.0, 1.4)
    """
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    # The first rounds are less all that was before them, so nothing is carried over.
    later = np.flatnonzero(rounds > LAGS)
    correlations = []
    for lag in range(1, min(4 * LAGS, len(rounds) - 1) + 1):
        pairs = later[later >= lag]
        if len(pairs):
            correlations.append(float(np.mean(np.sum(rows[pairs] * rows[pairs - lag], axis=1))))
    # What is in all rounds alike comes from the clients. A moving average of m rounds, less what three rounds before
    # explain, has correlations up to m + 2 rounds apart; the longest lags only show what clients send.
    usual = max(0.0, min(correlations, default=0.0))
    longer = sum((each - usual) / max(1 - usual, 1e-9) for each in correlations[: 2 * LAGS])
    return float(np.sqrt(max(1.0, 1 + 2 * longer)))


def noise_floor(record: NoiseRecord, noise_multipliers: Floats, level: float) -> NoiseFloor:
    """Bound the claimed noise in the releases from below, or return it where nothing happened to them after the noise.

    All limits hold together with probability 1 - ``level``. The error of a share is everything else in the release,
    which has a random direction to the canaries: a t-test of linear regression.

    Args:
        record: The releases, and how much of the canaries they contain.
        noise_multipliers: Claimed noise multiplier of each bin of rounds, (bins,).
        level: Significance of all limits together.
    """
    sizes, (bins, tensors) = record.layers.sizes, record.products.shape
    slots, home = record.rounds(), record.tensor_of_sample
    new, planted = record.new[slots].astype(np.float64), record.planted[slots].astype(np.float64)
    carried = carried_over(evened(new, home), record.sampled[slots])
    quantiles = stats.t.isf(level / (tensors * (bins + 1)), np.maximum(sizes - 1, 1))

    def limit(products: Floats, canaries: Floats, variances: Floats) -> Floats:
        lower = np.maximum(products - quantiles * np.sqrt(variances), 0.0)
        return np.where(sizes > 1, lower / np.maximum(canaries, 1e-300) / carried, 0.0)

    # The products of canaries with news in units of the claimed noise, and the variances of these products.
    noise = noise_multipliers[:, None]
    products, canaries = noise * record.products, record.canaries
    explained = record.products**2 / np.maximum(canaries, 1e-300)
    variances = noise**2 * canaries * np.maximum(record.news - explained, 0.0) / sizes
    of_round = limit(products, canaries, variances)
    # A few rounds in which noise is missing for certain say nothing about the others.
    starts = np.searchsorted(record.edges, record.layers.starts)
    energies, numbers = (np.add.reduceat(terms, starts, axis=1) for terms in (record.energies, record.numbers))
    present = canaries.any(axis=1)
    usual = present & (of_round**2 * numbers <= energies).all(axis=1)
    if 2 * usual.sum() < present.sum():
        usual = present
    total, energy = products[usual].sum(axis=0), np.maximum(canaries[usual].sum(axis=0), 1e-300)
    # Where the same canaries are in many rounds, what clients send may have a product with them that adds up. The
    # sampled numbers show by how much.
    share = record.products[usual].sum(axis=0) / energy
    errors = (new - share[home] * planted) * planted
    together = np.bincount(home, np.sum(errors, axis=0) ** 2, tensors)
    apart = np.bincount(home, np.sum(errors**2, axis=0), tensors)
    excess = np.maximum(1.0, together / np.maximum(apart, 1e-300))
    by_tensor = limit(total, energy, excess * variances[usual].sum(axis=0))
    largest = int(np.argmax(energy))
    # A server may scale rounds differently, but not where nothing happens after the noise.
    shares = of_round[:, largest] if record.processed else np.full(bins, by_tensor[largest])
    lengths = shares / noise_multipliers * record.norms
    length = float(np.median(lengths[present])) if present.any() else 0.0
    if not record.processed:
        known = np.where(record.norms > 0, noise_multipliers / np.maximum(record.norms, 1e-300), 0.0)
        everywhere = np.tile(known[:, None], tensors)
        return NoiseFloor(
            noise_multipliers=noise_multipliers, typical=everywhere, of_round=everywhere, likely=everywhere.max(axis=0),
            carried=1.0, length=length,
        )  # fmt: skip
    return NoiseFloor(
        noise_multipliers=noise_multipliers,
        typical=np.multiply.outer(1.0 * usual, by_tensor),
        of_round=of_round,
        likely=total / energy,
        carried=carried,
        length=length,
    )
