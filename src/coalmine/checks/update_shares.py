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

_PRECISE = 1 / 64  # relative error from which on a group of rounds is judged by its own share


class NoiseFloor(NamedTuple):
    """Lower limits on the claimed noise in what was recorded, 0 where nothing is known.

    Args:
        noise_multipliers: Claimed noise multiplier of each round, (bins,).
        typical: In each tensor and round, by the share of all rounds that are like it, (bins, tensors).
        slack: What ``typical`` is of the noise that is most likely, in each tensor, (tensors,).
        of_round: In each tensor and round, by the share of this round alone, (bins, tensors).
        carried: How many times more of the canaries than of the noise news may contain, at least 1.
        length: How many clip norms a canary counts for in the sum, at least, by the stated divisor; 0 if unknown.
    """

    noise_multipliers: Floats
    typical: Floats
    slack: Floats
    of_round: Floats
    carried: float
    length: float


def evened(rows: Floats, tensors: Ints) -> Floats:
    """Return rows in which the numbers of each tensor have a mean square of 1, or are all zero.

    Args:
        rows: Numbers of each round, (rounds, numbers).
        tensors: The tensor of each number, ascending, (numbers,).
    """
    starts = np.searchsorted(tensors, np.arange(tensors[-1] + 1))
    squares = np.add.reduceat(rows**2, starts, axis=1) / np.bincount(tensors)
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
    return float(np.sqrt(max(1.0, 1 + 2 * sum(each - usual for each in correlations[: 2 * LAGS]))))


def noise_floor(record: NoiseRecord, noise_multipliers: Floats, level: float) -> NoiseFloor:
    """Bound the claimed noise in the releases from below.

    All limits hold together with probability 1 - ``level``. The error of a share is everything else in the release,
    which has a random direction to the canaries: a t-test of linear regression.

    Args:
        record: The releases, and how much of the canaries they contain.
        noise_multipliers: Claimed noise multiplier of each bin of rounds, (bins,).
        level: Significance of all limits together.
    """
    sizes, (bins, tensors) = record.layers.sizes, record.products.shape
    slots = record.rounds()
    rounds, home = record.sampled[slots], record.tensor_of_sample
    new, planted = record.new[slots].astype(np.float64), record.planted[slots].astype(np.float64)
    carried = carried_over(evened(new, home), rounds)
    level_of_each = level / (tensors + 2 * bins)

    def limit(products: Floats, canaries: Floats, variances: Floats, degrees: Floats | float) -> Floats:
        lower = products - stats.t.isf(level_of_each, np.maximum(degrees, 1)) * np.sqrt(variances)
        known = (canaries > 0) & (np.asarray(degrees) > 0)
        return np.where(known, np.maximum(lower, 0.0) / np.where(known, canaries, 1.0) / carried, 0.0)

    # The products of canaries with news in units of the claimed noise, and the variances of these products.
    noise = noise_multipliers[:, None]
    products, canaries = noise * record.products, record.canaries
    explained = record.products**2 / np.maximum(canaries, 1e-300)
    variances = noise**2 * canaries * np.maximum(record.news - explained, 0.0) / sizes
    present = canaries.sum(axis=1)
    of_round = limit(products.sum(axis=1), present, variances.sum(axis=1), record.layers.dim - 1)
    # A few rounds in which noise is missing for certain say nothing about the others.
    released = np.sqrt(record.energies.sum(axis=1) / np.maximum(record.numbers.sum(axis=1), 1))
    usual = (present > 0) & (of_round <= released)
    if 2 * usual.sum() < np.count_nonzero(present):
        usual = present > 0
    total, energy = products[usual].sum(axis=0), canaries[usual].sum(axis=0)
    # Where the same canaries are in many rounds, what clients send may have a product with them that adds up. The
    # sampled numbers show by how much.
    share = record.products[usual].sum(axis=0) / np.maximum(energy, 1e-300)
    errors = (new - share[home] * planted) * planted
    together = np.bincount(home, np.sum(errors, axis=0) ** 2, tensors)
    apart = np.bincount(home, np.sum(errors**2, axis=0), tensors)
    excess = np.maximum(1.0, together / np.maximum(apart, 1e-300))
    by_tensor = limit(total, energy, excess * variances[usual].sum(axis=0), np.asarray(sizes - 1.0))
    average = max(float(total.sum() / max(energy.sum(), 1e-300)), 1e-300)
    # Clients send less as they learn, so rounds form groups that are as small as their shares are precise.
    of_rounds = variances.sum(axis=1) * max(1.0, float(together.sum() / max(apart.sum(), 1e-300)))
    groups: list[list[int]] = [[]]
    for t in np.flatnonzero(usual).tolist():
        groups[-1].append(t)
        if np.sqrt(of_rounds[groups[-1]].sum()) < _PRECISE * products[groups[-1]].sum():
            groups.append([])
    if len(groups) > 1:  # the last rounds are too few for a group
        groups[-2:] = [groups[-2] + groups[-1]]
    factors = np.zeros(bins)
    for group in groups:
        terms = (products[group].sum(), present[group].sum(), of_rounds[group].sum())
        factors[group] = 1.0 if len(groups) == 1 else carried * limit(*terms, record.layers.dim - 1) / average
    length, stated = of_round / noise_multipliers * record.norms, record.norms > 0
    return NoiseFloor(
        noise_multipliers=noise_multipliers,
        typical=np.multiply.outer(factors, by_tensor),
        slack=np.minimum(1.0, by_tensor * energy / np.maximum(total, 1e-300)),
        of_round=np.multiply.outer(of_round, np.minimum(1.0, carried * by_tensor / average)),
        carried=carried,
        length=float(np.median(length[stated])) if stated.any() else 0.0,
    )
