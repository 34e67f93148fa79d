"""Attacks on the noise of a mechanism: each predicts it where a canary is, from where it is known.

An attack sees all outputs, the coins of the pilot and where canaries were placed, but no coin of a test call. What it
predicts there depends on the pilot and on coordinates without a canary only, so that the scores of a mechanism with
independent noise are independent (docs/mechanism.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coalmine.arrays import Array, Bools, Floats, Ints
from coalmine.methods.mechanism.calls import Calls

WEAK = 0.85
"""Share of the average noise below which a part of it counts as weak."""

CORRELATED = 0.5
"""Correlation from which on one part of the noise counts as a copy of another."""

SIZE_RANK = 10
"""Rank of the attack on the size of the noise: any other one says more about a bug."""

_NEGLIGIBLE = 0.02  # noise that hides no update, whatever else is wrong with it
_SURE = 6.0  # standard errors beyond which a correlation is taken for real
_LOCAL = 64  # coordinates that share a local estimate of the noise
_LAGS = 4  # neighbors on each side
_LINKED = 0.6  # correlation in the second half of the pilot that confirms a pair of coordinates
_LARGEST_TABLE = 20_000
_BINS = 400


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
        rank: How directly the sentence names a bug: of several checks that fail, the lowest one speaks.
    """

    name: str
    scores: Floats
    sentence: str
    chosen: Bools | None = None
    mean: Floats | float = 0.0
    scale: Floats | None = None
    rank: int = 9


def gaussian_scores(calls: Calls, mean: Floats | float, scale: Floats | float, chosen: Bools | None = None) -> Floats:
    """Return the log-likelihood ratios of targets for normal noise of this mean and scale, shape (k,)."""
    pick = slice(None) if chosen is None else chosen
    floor = max(1e-6 * calls.size, calls.tolerance, 1e-12)
    values = calls.values[calls.targets][pick]
    result: Floats = values * (calls.gap[pick] - mean) / np.maximum(scale, floor) ** 2
    return result


def size_attack(calls: Calls) -> Attack:
    """Compare outputs with the average size of the noise."""
    if calls.size == 0:
        return Attack("size of the noise", gaussian_scores(calls, 0.0, 0.0), "There is no noise.", rank=0)
    sentence = f"The noise has a standard deviation of {calls.size:.3g} for updates of norm 1"
    if calls.size < _NEGLIGIBLE:
        sentence = f"There is hardly any noise: its standard deviation is {calls.size:.3g} for updates of norm 1."
        return Attack("size of the noise", gaussian_scores(calls, 0.0, calls.size), sentence, rank=0)
    return Attack("size of the noise", gaussian_scores(calls, 0.0, calls.size), sentence, rank=SIZE_RANK)


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
    return Attack("shape of the noise", scores, _shape_sentence(calls.size, noise, inserted), rank=8)


def _shape_sentence(size: float, noise: Floats, inserted: Bools) -> str:
    """Say how the noise differs from noise that is normal and the same everywhere; empty if it does not."""
    if size == 0:
        return ""
    beside, there = noise[~inserted].std(), noise[inserted].std()
    if min(there, beside) < WEAK * max(there, beside):
        return (
            f"The noise depends on the input: {there:.3g} where there is an update, {beside:.3g} where there is none."
        )
    furthest = float(np.abs(noise).max()) / size
    # The largest of n normal values is about that large, and hardly ever a fifth smaller.
    if furthest < 0.8 * np.sqrt(2 * np.log(noise.size)):
        return f"The noise never exceeds {furthest:.2g} standard deviations."
    if noise.min() >= 0 or noise.max() <= 0:
        return f"The noise is never {'negative' if noise.min() >= 0 else 'positive'}."
    central = float(np.mean(np.abs(noise) < 0.1 * size))
    if central > 0.16:  # 0.08 for normal noise, 0.13 for Laplace noise
        return f"{100 * central:.2g}% of the noise is smaller than a tenth of its standard deviation."
    return ""


class _Density:
    """A histogram with bins that hold equally many values, and nearly nothing beyond the largest and smallest."""

    def __init__(self, values: Floats) -> None:
        bins = max(2, min(_BINS, values.size // 50))
        self._edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1))) if values.size else np.zeros(1)
        counts = np.histogram(values, self._edges)[0] if self._edges.size > 1 else np.zeros(0)
        width = np.diff(self._edges)
        spread = max(float(np.ptp(self._edges)), 1e-12)
        outside = np.log(1 / (values.size + 1) / spread)
        with np.errstate(divide="ignore"):
            inside = np.log((counts + 0.5) / (values.size + 1) / width) if width.size else np.zeros(0)
        self._log = np.concatenate([[outside], inside, [outside]])

    def log_at(self, points: Floats) -> Floats:
        """Return the logarithm of the density."""
        result: Floats = self._log[np.searchsorted(self._edges, points, side="right")]
        return result


def value_attack(calls: Calls) -> Attack | None:
    """Look for exact values of the noise that were seen before: a table, a shuffled vector, a coarse grid."""
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
    sentence = f"The noise repeats itself: {100 * rate:.3g}% of its values occurred in other calls, to the last digit."
    if seen.size < min(1000, checked.size / 20):
        sentence = f"The noise takes only {seen.size:,} different values."
    elif top > 0.001:
        value = float(seen[np.argmax(counts)]) * grid
        sentence = f"In {100 * top:.3g}% of the places the noise is exactly {value:.3g}."
    return Attack("values of the noise", scores, sentence, rank=7)


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
    power = np.sum(calls.noise**2, axis=0) + few * calls.size**2 * (np.sum(calls.noise**2, axis=0) > 0)
    result: Floats = np.sqrt(power / np.maximum(count + few, 1))
    return np.where(count > 0, result, calls.size)


def coordinate_attack(calls: Calls) -> Attack:
    """Use the size of the noise at each coordinate."""
    scale = column_scales(calls)[calls.targets[1]]
    return Attack("noise at every coordinate", gaussian_scores(calls, 0.0, scale), "", scale=scale)


def local_attack(calls: Calls) -> Attack:
    """Use the size of the noise in each call, and in each stretch of coordinates of a call."""
    starts = np.arange(0, calls.coordinates.size, _LOCAL)
    power = np.add.reduceat(calls.noise**2, starts, axis=1)
    count = np.add.reduceat(calls.known.astype(np.float64), starts, axis=1)
    per_call = power.sum(axis=1, keepdims=True) / np.maximum(count.sum(axis=1, keepdims=True), 1)
    scale = np.sqrt((power + 2 * per_call) / (count + 2))[calls.targets[0], calls.targets[1] // _LOCAL]
    scale = np.where(power[calls.targets[0], calls.targets[1] // _LOCAL] == 0, 0.0, scale)
    sentence, rank = _schedule_sentence(np.sqrt(per_call[:, 0]), calls.number(0)), 6
    # Half of the usual noise is out of the question for a stretch of normal noise, of which some 16 values are known.
    if not sentence and np.mean(scale < 0.5 * np.median(scale)) > 0.002:
        sentence, rank = "Stretches of coordinates carry less noise than others, in changing places.", 8
    return Attack("noise in every call", gaussian_scores(calls, 0.0, scale), sentence, scale=scale, rank=rank)


def _schedule_sentence(sizes: Floats, first_call: int) -> str:
    """Say how the noise changes from call to call, if it does, from its size in each."""
    usual = float(np.median(sizes))
    weakest = int(sizes.argmin())
    if sizes[weakest] >= WEAK * usual:
        return ""
    quarter = max(1, sizes.size // 4)
    first, last = float(np.median(sizes[:quarter])), float(np.median(sizes[-quarter:]))
    if min(first, last) < WEAK * max(first, last):
        ratio, names = (last / first, ("last", "first")) if last < first else (first / last, ("first", "last"))
        return f"The noise of the {names[0]} calls is {ratio:.2g} of that of the {names[1]}."
    weak = np.flatnonzero(sizes < WEAK * usual)
    much = "no noise" if sizes[weakest] < 1e-3 * usual else f"{sizes[weakest] / usual:.2g} of the usual noise"
    if weak.size == 1:
        return f"Call {weakest + first_call} has {much}."
    steps = np.unique(np.diff(weak))
    rhythm = f", every {steps[0]} calls" if steps.size == 1 and steps[0] > 1 else ""
    several = f"{weak.size:,} of {sizes.size:,} calls have less noise than usual{rhythm}"
    return f"{several}; call {weakest + first_call} has {much}."


def repeat_attack(calls: Calls) -> Attack | None:
    """Predict the noise of a call from the most similar other call."""
    noise, known = calls.noise.astype(np.float32), calls.known.astype(np.float32)
    product, power, count = noise @ noise.T, (noise**2) @ known.T, known @ known.T
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.nan_to_num(product / np.sqrt(power * power.T))
    np.fill_diagonal(correlation, 0)
    sure = np.arctanh(np.clip(np.abs(correlation), 0, 1 - 1e-7)) * np.sqrt(np.maximum(count - 3, 0)) > _SURE
    strength = np.where(sure, np.abs(correlation), 0)
    partner = strength.argmax(axis=1)
    each = np.arange(partner.size)
    linked = strength[each, partner] > 0
    if not linked[~calls.pilot].any():
        return None
    slope = np.where(linked, product[each, partner] / np.maximum(power.T[each, partner], 1e-30), 0.0).astype(np.float64)
    # Exact copies deserve an exact slope: rounding of the estimate would hide the values of canaries.
    slope = np.where(np.abs(slope - np.round(slope)) < 1e-3, np.round(slope), slope)
    call, column = calls.targets
    usable = linked[call] & calls.known[partner[call], column]
    mean = np.where(usable, slope[call] * calls.noise[partner[call], column], 0.0)
    both = calls.known & calls.known[partner]
    missed = np.where(both, calls.noise - slope[:, None] * calls.noise[partner], 0.0)
    rest = np.sqrt(np.sum(missed**2, axis=1) / np.maximum(both.sum(axis=1) - 1, 1))
    scale = np.where(usable, rest[call], calls.size)
    first = int(np.argmax(np.where(~calls.pilot, strength[each, partner], -1)))
    twin, likeness = int(partner[first]), float(correlation[first, partner[first]])
    return Attack(
        "fresh noise in every call",
        gaussian_scores(calls, mean, scale),
        _repeat_sentence(
            calls.number(first), calls.number(twin), float(slope[first]), likeness, int(linked.sum()), linked.size
        ),
        mean=mean,
        scale=scale,
        rank=1 if abs(likeness) > 0.99999 else 3,
    )


def _repeat_sentence(call: int, twin: int, slope: float, likeness: float, linked: int, calls: int) -> str:
    """Say how the noise of a call follows from that of another; empty if it hardly does."""
    if abs(likeness) < CORRELATED:
        return ""
    relation = {1.0: "equals that", -1.0: "is the negative of that"}.get(round(slope, 3), f"is {slope:.3g} times that")
    if abs(likeness) < 0.999:
        relation = f"has a correlation of {likeness:.2g} with that"
    such = f" {linked:,} of {calls:,} calls have such a twin." if linked > 1 else ""
    return f"The noise of call {call} {relation} of call {twin}.{such}"


def shared_attack(calls: Calls) -> Attack | None:
    """Predict the noise from a few patterns over coordinates that the calls of the pilot have in common."""
    columns = calls.first == 0
    pilot = calls.noise[calls.pilot][:, columns]
    rows, width = pilot.shape
    if width < 2 * rows or calls.size == 0:
        return None
    values, vectors = np.linalg.eigh(pilot @ pilot.T / width)
    # Independent noise of equal size has eigenvalues below this edge (Marchenko & Pastur, 1967).
    edge = 1.5 * np.mean(values) * (1 + np.sqrt(rows / width)) ** 2
    strong = np.flatnonzero(values > edge)
    if strong.size == 0:
        return None
    patterns = vectors[:, strong].T @ pilot / np.sqrt(np.maximum(values[strong], 1e-300) * width)[:, None]
    full = np.zeros((strong.size, columns.size))
    full[:, columns] = patterns
    call, column = calls.targets
    mean, rest = np.zeros(calls.noise.shape), np.full(calls.pilot.size, calls.size)
    for t in np.flatnonzero(~calls.pilot):
        visible = calls.known[t] & columns
        fit, *_ = np.linalg.lstsq(full[:, visible].T, calls.noise[t, visible], rcond=1e-6)
        mean[t] = fit @ full
        missed = calls.noise[t, visible] - mean[t, visible]
        rest[t] = np.sqrt(np.sum(missed**2) / max(int(visible.sum()) - strong.size, 1))
    scale = np.where(columns[column], rest[call], calls.size)
    visible = calls.known & columns & ~calls.pilot[:, None]
    missed = np.sum((calls.noise - mean)[visible] ** 2) / max(float(np.sum(calls.noise[visible] ** 2)), 1e-300)
    equal = strong.size == 1 and float(np.ptp(patterns[0])) < 1e-3 * abs(float(patterns[0].mean()))
    same = (
        "All coordinates get the same noise"
        if equal
        else f"The noise is made of {strong.size:,} pattern{'s' * (strong.size > 1)}"
    )
    explained = f", up to {100 * missed:.2g}% of its variance" if missed > 1e-6 else ""
    sentence = f"{same}{explained}." if missed < 1 - CORRELATED**2 else ""
    return Attack(
        "independent coordinates", gaussian_scores(calls, mean[calls.targets], scale), sentence,
        mean=mean[calls.targets], scale=scale, rank=0 if equal else 2,
    )  # fmt: skip


def copy_attack(calls: Calls) -> Attack | None:
    """Predict the noise at a coordinate from the one that followed it most closely in the first half of the pilot."""
    pilot = calls.noise[calls.pilot].astype(np.float32)
    half = pilot.shape[0] // 2
    if half < 6:
        return None
    first, second = _normalized(pilot[:half]), _normalized(pilot[half:])
    n = pilot.shape[1]
    twin = np.zeros(n, dtype=np.int64)
    for start in range(0, n, 512):
        block = slice(start, min(start + 512, n))
        likeness = np.abs(first[:, block].T @ first)
        likeness[np.arange(likeness.shape[0]), np.arange(block.start, block.stop)] = 0
        twin[block] = likeness.argmax(axis=1)
    link = np.sum(second * second[:, twin], axis=0).astype(np.float64)
    active = int(np.sum(np.any(second != 0, axis=1)))
    linked = np.abs(link) > np.clip(4 / np.sqrt(max(active, 1)), _LINKED, 0.999)
    if linked.sum() <= 3 + 1e-3 * n:
        return None
    both = calls.noise[calls.pilot]
    slope = np.sum(both * both[:, twin], axis=0) / np.maximum(np.sum(both[:, twin] ** 2, axis=0), 1e-300)
    slope = np.where(np.abs(slope - np.round(slope)) < 1e-4, np.round(slope), slope)
    rest = np.sqrt(np.mean((both - slope * both[:, twin]) ** 2, axis=0))
    call, column = calls.targets
    usable = linked[column] & calls.known[call, twin[column]]
    mean = np.where(usable, slope[column] * calls.noise[call, twin[column]], 0.0)
    scale = np.where(usable, rest[column], calls.size)
    j = int(np.argmax(np.abs(link)))
    sentence = (
        f"{int(linked.sum()):,} of {n:,} coordinates share their noise with another one, such as coordinate "
        f"{calls.coordinates[j]:,} with {calls.coordinates[twin[j]]:,} (correlation {link[j]:.3g})."
    )
    return Attack(
        "independent coordinates", gaussian_scores(calls, mean, scale), sentence, mean=mean, scale=scale, rank=4
    )


def _normalized(columns: Array) -> Array:
    """Return the columns with norm 1, or 0."""
    norms = np.linalg.norm(columns, axis=0)
    return np.asarray(columns / np.where(norms > 0, norms, 1))


def neighbor_attack(calls: Calls) -> Attack | None:
    """Predict the noise at a coordinate from the nearest ones without a canary, as for smoothed or summed noise."""
    scales = column_scales(calls)
    safe = np.where(scales > 0, scales, 1)
    pilot = calls.noise[calls.pilot] / safe
    positions = calls.coordinates
    correlations = np.zeros(2 * _LAGS + 1)
    correlations[0] = 1
    for lag in range(1, 2 * _LAGS + 1):
        adjacent = (positions[lag:] - positions[:-lag] == lag) & (calls.first[lag:] + calls.first[:-lag] == 0)
        products = (pilot[:, lag:] * pilot[:, :-lag])[:, adjacent]
        if products.size == 0:
            return None
        correlations[lag] = products.mean()
        if lag == 1:
            error = 1 / np.sqrt(products.size)
    correlations = np.clip(correlations, -0.99999, 0.99999) + np.eye(1, correlations.size)[0] * 1e-5
    if np.abs(correlations[1:]).max() < 8 * error:
        return None
    left, right = _nearest_known(calls, -1), _nearest_known(calls, 1)
    standardized = calls.noise / safe
    call, column = calls.targets
    a, b = left[calls.targets], right[calls.targets]
    weights, rests = _kriging(correlations)
    n = positions.size
    before = np.where(a > 0, standardized[call, np.maximum(column - a, 0)], 0.0)
    after = np.where(b > 0, standardized[call, np.minimum(column + b, n - 1)], 0.0)
    mean = (weights[a, b, 0] * before + weights[a, b, 1] * after) * safe[column]
    scale = np.sqrt(rests[a, b]) * scales[column]
    lag = 1 + int(np.abs(correlations[1:]).argmax())
    apart = "Neighboring coordinates" if lag == 1 else f"Coordinates {lag} apart"
    sentence = f"{apart} have noise with a correlation of {correlations[lag]:.2g}."
    if abs(correlations[lag]) < 0.3:
        sentence = ""
    return Attack(
        "independent coordinates", gaussian_scores(calls, mean, scale), sentence, mean=mean, scale=scale, rank=4
    )


def _nearest_known(calls: Calls, side: int) -> Ints:
    """Return the distance to the nearest coordinate with known noise on one side, 0 if beyond `_LAGS`, (t, n)."""
    n = calls.coordinates.size
    nearest = np.zeros(calls.known.shape, dtype=np.int64)
    for lag in range(_LAGS, 0, -1):
        columns = np.arange(lag, n) if side < 0 else np.arange(n - lag)
        other = columns + side * lag
        adjacent = calls.coordinates[columns] - calls.coordinates[other] == -side * lag
        visible = calls.known[:, other] & adjacent
        nearest[:, columns] = np.where(visible, lag, nearest[:, columns])
    return nearest


def _kriging(correlations: Floats) -> tuple[Floats, Floats]:
    """Return weights of the left and right neighbor at each pair of distances, and the variance that they miss."""
    weights, rest = np.zeros((_LAGS + 1, _LAGS + 1, 2)), np.ones((_LAGS + 1, _LAGS + 1))
    for a in range(_LAGS + 1):
        for b in range(_LAGS + 1):
            between = correlations[a + b] if a and b else 0.0
            covariance = np.array([[correlations[0], between], [between, correlations[0]]])
            towards = np.array([correlations[a] if a else 0.0, correlations[b] if b else 0.0])
            weights[a, b] = np.linalg.solve(covariance, towards)
            rest[a, b] = max(1 - float(weights[a, b] @ towards), 1e-6)
    return weights, rest
