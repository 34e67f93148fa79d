"""Attacks on the noise of a mechanism: each predicts it where a canary is, from where it is known.

An attack sees all outputs, the coins of the pilot and where canaries were placed, but no coin of a test call. What it
predicts there depends on the pilot and on coordinates without a canary only, so that the scores of a mechanism with
independent noise are independent (docs/mechanism.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.methods.mechanism.calls import Calls
from coalmine.results.finding import Check
from coalmine.stats.noise_tests import near_zero_p_value

WEAK = 0.9
"""Share of the noise elsewhere below which a part of it counts as weak, if that is plain."""

SIZE_RANK = 10
"""Rank of the attack on the size of the noise: any other one says more about a bug."""

NEGLIGIBLE = 0.02
"""Noise of this size hides no update, whatever else is wrong with it."""

PLAIN = 14.0
"""Gain in log-likelihood that noise of one size shows with a probability of about 1e-6."""

_HIDES_LESS = "The noise hides updates of one coordinate less than claimed"
_ENOUGH = 0.98  # share of the claimed noise that does not count as too small
_BY_CHANCE = 1e-6  # probability below which normal noise does not look like this by chance
_LARGEST_TABLE = 20_000
_FEW_VALUES = 2**20  # samplers in single precision take more different values than this
_ALIGNED = 0.05  # share of all pairs of equal values: so many at one distance are no coincidence
_BINS = 400
_NARROW = 1e-9


@dataclass(frozen=True, eq=False)
class Attack:
    """Scores of the test canaries, and what the attacker exploited.

    Args:
        name: Name of the check.
        scores: Log-likelihood ratio of each chosen target, shape (k,).
        sentence: What is wrong with the noise if the check fails, in words; empty if it looks as elsewhere.
        chosen: Which targets, or None for all.
        mean: Predicted noise of each chosen target, or 0.
        scale: Predicted standard deviation of what the prediction misses, shape (k,), or None if nothing is predicted.
        elsewhere: Which targets the sentence is not about, or None if it is about all.
        usual: Standard deviation of the noise there.
        rank: How directly the sentence names a bug: of several checks that fail, the lowest one speaks.
    """

    name: str
    scores: Floats
    sentence: str
    chosen: Bools | None = None
    mean: Floats | float = 0.0
    scale: Floats | None = None
    elsewhere: Bools | None = None
    usual: float = 0.0
    rank: int = 9


def gaussian_scores(calls: Calls, mean: Floats | float, scale: Floats | float, chosen: Bools | None = None) -> Floats:
    """Return the log-likelihood ratios of targets for normal noise of this mean and scale, shape (k,)."""
    pick = slice(None) if chosen is None else chosen
    floor = max(1e-6 * calls.size, calls.tolerance, 1e-12)
    values = calls.values[calls.targets][pick]
    result: Floats = values * (calls.gap[pick] - mean) / np.maximum(scale, floor) ** 2
    return result


def scale_gain(power: Floats, count: Floats, usual: float, spread: float) -> Floats:
    """Return the log-likelihood that sets of values gain by scales of their own, over one scale for all, any shape.

    Args:
        power: Sum of squares of each set.
        count: Number of values in each.
        usual: Mean square of all values.
        spread: Variance of their squares over that of normal values (see `Calls.spread`): with heavy tails, sums of
            squares differ more by chance.
    """
    ratio = np.maximum(power / np.maximum(count, 1) / usual, 1e-12)
    gain: Floats = np.where(count > 0, count * (ratio - 1 - np.log(ratio)) / 2 / spread, 0.0)
    return gain


def size_attack(calls: Calls) -> Attack:
    """Compare outputs with the average size of the noise."""
    if calls.size == 0:
        return Attack(Check.SIZE, gaussian_scores(calls, 0.0, 0.0), "There is no noise.", rank=0)
    if calls.size < NEGLIGIBLE:
        sentence = f"There is hardly any noise: its standard deviation is {calls.size:.3g} for updates of norm 1."
        return Attack(Check.SIZE, gaussian_scores(calls, 0.0, calls.size), sentence, rank=0)
    return Attack(Check.SIZE, gaussian_scores(calls, 0.0, calls.size), _HIDES_LESS, rank=SIZE_RANK)


def too_small(size: float, needed: float | None) -> str:
    """Say that noise is too small on the whole, from its size and that of Gaussian noise that keeps the claim."""
    if needed is not None and size >= _ENOUGH * needed:
        return f"{_HIDES_LESS}, although its standard deviation of {size:.3g} is large enough for Gaussian noise"
    sentence = f"The noise is too small everywhere: its standard deviation is {size:.3g} for updates of norm 1"
    if needed is None:
        return sentence
    return f"{sentence}, {size / needed:.2g} of the {needed:.3g} that Gaussian noise takes to keep the claim"


def shape_attack(calls: Calls) -> Attack:
    """Compare outputs with the distribution of the noise in the pilot, with and without a canary.

    The noise of inserted canaries may differ from that elsewhere, if a mechanism makes it depend on its input.
    """
    rows, columns = calls.pilot, calls.first == 0
    noise = calls.noise[rows][:, columns]
    inserted = (calls.canary & calls.inserted)[rows][:, columns]
    with_canary, without = _Density(noise[inserted]), _Density(noise[~inserted])
    values, output = calls.values[calls.targets], calls.released[calls.targets]
    scores = with_canary.log_at(output - values) - without.log_at(output)
    # A histogram is coarse: a little of the smooth score orders the targets within its bins.
    scores = scores + 0.01 * np.tanh(gaussian_scores(calls, 0.0, calls.size))
    sentence = _shape_sentence(calls, noise, inserted)
    # Noise that depends on the input looks weaker at some places or in some calls as well.
    return Attack(Check.SHAPE, scores, sentence, rank=2 if "input" in sentence else 8)


def _shape_sentence(calls: Calls, noise: Floats, inserted: Bools) -> str:
    """Say how the noise differs from noise that is normal and the same everywhere; empty if it does not."""
    size = calls.size
    if size == 0:
        return ""
    beside, there = noise[~inserted].std(), noise[inserted].std()
    power = np.array([np.sum(noise[~inserted] ** 2), np.sum(noise[inserted] ** 2)])
    count = np.array([np.sum(~inserted), np.sum(inserted)])
    gain = scale_gain(power, count, float(power.sum()) / noise.size, calls.spread).sum()
    if min(there, beside) < WEAK * max(there, beside) and gain > PLAIN:
        return (
            f"The noise depends on the input: {there:.3g} where there is an update, {beside:.3g} where there is none."
        )
    furthest = float(np.abs(noise).max()) / size
    if noise.size * np.log(special.erf(furthest / np.sqrt(2))) < np.log(_BY_CHANCE):
        return f"The noise never exceeds {furthest:.2g} standard deviations."
    if (noise.min() >= 0 or noise.max() <= 0) and 0.5**noise.size < _BY_CHANCE:
        return f"The noise is never {'negative' if noise.min() >= 0 else 'positive'}."
    near = int(np.sum(np.abs(noise) < 0.1 * size))
    central = near / noise.size
    # 0.08 for normal noise, 0.13 for Laplace noise
    if central > 0.16 and float(near_zero_p_value(near, noise.size, 0.1)) < _BY_CHANCE:
        return f"{100 * central:.2g}% of the noise is smaller than a tenth of its standard deviation."
    return ""


class _Density:
    """A histogram with bins that hold equally many values, and nearly nothing beyond the largest and smallest."""

    def __init__(self, values: Floats) -> None:
        bins = max(2, min(_BINS, values.size // 50))
        self._edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1))) if values.size else np.zeros(1)
        spread = float(np.ptp(self._edges)) or 1.0
        if self._edges.size == 1 and values.size:  # a single value, as of no noise: a narrow bin of its own
            self._edges = self._edges + np.array([-_NARROW, _NARROW])
        counts = np.histogram(values, self._edges)[0] if self._edges.size > 1 else np.zeros(0)
        width = np.diff(self._edges)
        outside = np.log(1 / (values.size + 1) / spread)
        with np.errstate(divide="ignore"):
            inside = np.log((counts + 0.5) / (values.size + 1) / width) if width.size else np.zeros(0)
        self._log = np.concatenate([[outside], inside, [outside]])

    def log_at(self, points: Floats) -> Floats:
        """Return the logarithm of the density."""
        result: Floats = self._log[np.searchsorted(self._edges, points, side="right")]
        return result


def value_attack(calls: Calls) -> Attack | None:
    """Look for exact values of the noise that also occur elsewhere: a table, a grid, noise that is used again."""
    return _table_attack(calls) or _reuse_attack(calls)


def _table_attack(calls: Calls) -> Attack | None:
    """Look for values that occurred in the first half of the pilot: a shuffled vector, a coarse grid."""
    columns = calls.first == 0
    pilot = calls.noise[calls.pilot][:, columns]
    half = max(1, pilot.shape[0] // 2)
    grid = 4 * calls.tolerance
    seen, counts = np.unique(np.round(pilot[:half].ravel() / grid), return_counts=True)
    table = np.sort(seen[np.argsort(-counts, kind="stable")[:_LARGEST_TABLE]]) * grid
    checked, shift = pilot[half:], calls.values[calls.pilot][:, columns][half:]
    rate, chance = float(_in_table(table, checked, grid).mean()), float(_in_table(table, checked + shift, grid).mean())
    if rate < 3 * chance + 50 / checked.size:
        return None
    weight = np.log(rate / max(chance, 1 / checked.size))
    values, output = calls.values[calls.targets], calls.released[calls.targets]
    signs = _in_table(table, output - values, grid).astype(np.float64) - _in_table(table, output, grid)
    scores = weight * signs + 0.01 * np.tanh(gaussian_scores(calls, 0.0, calls.size))
    top = float(counts.max() / counts.sum())
    sentence = _repetition(rate)
    if seen.size < min(1000, checked.size / 20):
        sentence = f"The noise takes only {seen.size:,} different values."
    elif top > 0.001:
        value = float(seen[np.argmax(counts)]) * grid
        sentence = f"In {100 * top:.3g}% of the places the noise is exactly {value:.3g}."
    return Attack(Check.VALUES, scores, sentence, rank=7)


def _reuse_attack(calls: Calls) -> Attack | None:
    """Look for outputs that equal the noise of another call or coordinate, bit for bit: noise that is used again.

    The output at a held-out canary is the noise itself. Comparing bits needs no tolerance, so even in single
    precision few of a million values are equal by chance.
    """
    silent = calls.known & (calls.inputs == 0)
    noise, inserted = calls.outputs[silent], calls.outputs[calls.known & (calls.inputs != 0)]
    if noise.size == 0 or inserted.size == 0:
        return None
    order = np.argsort(noise, kind="stable")
    same = np.diff(noise[order]) == 0
    repeated = np.append(same, False) | np.append(False, same)
    rate, chance = float(repeated.mean()), float(np.isin(inserted, noise).mean())
    if rate < 3 * chance + 50 / noise.size:
        return None
    if _are_coincidences(order[:-1][same], order[1:][same], silent):
        return None
    weight = np.log(rate / max(chance, 1 / inserted.size))
    scores = -weight * np.isin(calls.outputs[calls.targets], noise)
    scores = scores + 0.01 * np.tanh(gaussian_scores(calls, 0.0, calls.size))
    return Attack(Check.VALUES, scores, _repetition(rate), rank=7)


def _are_coincidences(first: Ints, second: Ints, places: Bools) -> bool:
    """Return whether equal values look like chance: spread evenly, and as rare as among millions of values.

    Samplers in single precision that transform one uniform number, such as JAX's, take about 2²³ different values, of
    which some occur twice. Noise that is read from a buffer again stands the same number of calls and coordinates
    later.

    Args:
        first: Numbers of the first of each two equal values, among the places.
        second: Numbers of the second ones.
        places: Where the values stand, shape (t, n).
    """
    call, column = np.nonzero(places)
    different = call.size**2 / (2 * first.size)  # values to choose from, if two are equal as often as they are here
    later = (call[second] - call[first]) * 2 * places.shape[1] + column[second] - column[first]
    common = int(np.unique(later, return_counts=True)[1].max())
    return different > _FEW_VALUES and common < _ALIGNED * first.size


def _repetition(rate: float) -> str:
    """Say which share of the values of the noise occurred more than once."""
    return f"The noise repeats itself: {100 * rate:.3g}% of its values occurred in other calls, to the last digit."


def _in_table(table: Floats, points: Floats, reach: float) -> Bools:
    """Return which points are close to an entry of a sorted table."""
    after = np.searchsorted(table, points)
    below = np.abs(points - table[np.maximum(after - 1, 0)])
    above = np.abs(table[np.minimum(after, table.size - 1)] - points)
    result: Bools = np.minimum(below, above) <= reach
    return result


def column_scales(calls: Calls) -> Floats:
    """Return the standard deviation of the noise at each coordinate, from where it is known, shape (n,)."""
    count = np.sum(calls.known, axis=0)
    # Half an observation of the average keeps few observations from looking like no noise by chance.
    few = 0.5 * (count < 30)
    power = np.sum(calls.squares, axis=0)
    power = power + few * calls.size**2 * (power > 0)
    result: Floats = np.sqrt(power / np.maximum(count + few, 1))
    return np.where(count > 0, result, calls.size)


def coordinate_attack(calls: Calls) -> Attack:
    """Use the size of the noise at each coordinate."""
    scale = column_scales(calls)[calls.targets[1]]
    return Attack(Check.PLACES, gaussian_scores(calls, 0.0, scale), "", scale=scale)
