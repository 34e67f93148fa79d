"""Attacks that predict the noise from other noise: of other calls, of patterns in common, of other coordinates.

docs/mechanism.md describes them beside the others, which are in `coalmine.methods.mechanism.attacks`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from coalmine.arrays import Array, Bools, Floats, Ints
from coalmine.methods.mechanism.attacks import Attack, column_scales, gaussian_scores
from coalmine.methods.mechanism.calls import Calls
from coalmine.results.finding import Check
from coalmine.results.summary import plural

CORRELATED = 0.5
"""Correlation from which on one part of the noise counts as a copy of another."""

_SURE = 4.0  # standard errors beyond which a correlation is looked at
_BY_CHANCE = 1e-6  # probability that independent noise shows such a correlation between any two calls
_ROWS = 512  # calls that are compared with all others at a time
_LAGS = 4  # neighbors on each side
_BOUND = 3.0  # medians of absolute values, beyond which a value counts as that large
_LINKED = 0.6  # correlation in the second half of the pilot that confirms a pair of coordinates


def repeat_attack(calls: Calls) -> Attack | None:
    """Predict the noise of a call from the most similar other call."""
    twins = _Twins.of(calls)
    partner, linked = twins.partner, twins.likeness != 0
    if not linked[~calls.pilot].any():
        return None
    # Exact copies deserve an exact slope: rounding of the estimate would hide the values of canaries.
    slope = np.where(np.abs(twins.slope - np.round(twins.slope)) < 1e-3, np.round(twins.slope), twins.slope)
    call, column = calls.targets
    usable = linked[call] & calls.known[partner[call], column]
    mean = np.where(usable, slope[call] * calls.noise[partner[call], column], 0.0)
    both = calls.known & calls.known[partner]
    missed = np.where(both, calls.noise - slope[:, None] * calls.noise[partner], 0.0)
    rest = np.sqrt(np.sum(missed**2, axis=1) / np.maximum(both.sum(axis=1) - 1, 1))
    scale = np.where(usable, rest[call], calls.size)
    first = int(np.argmax(np.where(~calls.pilot, np.abs(twins.likeness), -1)))
    twin, likeness = int(partner[first]), float(twins.likeness[first])
    return Attack(
        Check.FRESH,
        gaussian_scores(calls, mean, scale),
        _repeat_sentence(
            calls.number(first), calls.number(twin), float(slope[first]), likeness, int(linked.sum()), linked.size
        ),
        mean=mean,
        scale=scale,
        rank=1 if abs(likeness) > 0.99999 else 3,
    )


@dataclass(frozen=True, eq=False)
class _Twins:
    """The call whose noise is most like that of each call.

    Args:
        partner: Its index, shape (t,).
        likeness: The correlation, or 0 if none of its correlations is beyond chance, shape (t,).
        slope: Factor from the noise of the partner to that of the call, shape (t,).
    """

    partner: Ints
    likeness: Floats
    slope: Floats

    @classmethod
    def of(cls, calls: Calls) -> _Twins:
        """Compare all pairs of calls, some rows of pairs at a time."""
        # Coordinates with little noise would hardly count, and so leave fewer values to compare than there seem to be.
        noise, known = _standardized(calls), calls.known & (column_scales(calls) > 0)
        squares, total, known = noise**2, len(noise), known.astype(np.float32)
        spread = max(1.0, (float(np.mean(squares[known > 0] ** 2)) - 1) / 2) if known.any() else 1.0
        least = _least_correlation(np.arange(noise.shape[1] + 1) / spread, total).astype(np.float32)
        partner, (likeness, slope) = np.zeros(total, dtype=np.int64), np.zeros((2, total))
        for start in range(0, total, _ROWS):
            rows = slice(start, start + _ROWS)
            product, count = noise[rows] @ noise.T, known[rows] @ known.T
            power, others = squares[rows] @ known.T, known[rows] @ squares.T
            each = np.arange(len(product))
            explained = product**2
            both = power * others
            explained[explained <= least[count.astype(np.int32)] * both] = 0
            explained[each, start + each] = 0
            np.divide(explained, both, out=explained, where=explained > 0)
            nearest = explained.argmax(axis=1)
            here = explained[each, nearest] > 0
            across = product[each, nearest].astype(np.float64)
            partner[rows] = nearest
            likeness[rows] = np.where(here, across / np.sqrt(np.maximum(both[each, nearest], 1e-30)), 0.0)
            slope[rows] = np.where(here, across / np.maximum(others[each, nearest], 1e-30), 0.0)
        return cls(partner, likeness, slope)


def _least_correlation(count: Floats, calls: int) -> Floats:
    """Return the square of the correlation that is beyond chance for some pair of calls; 2 if none is.

    Args:
        count: How many values two calls share. Few large values decide about the correlation of heavy-tailed noise, so
            that it has fewer degrees of freedom, and ``count`` is smaller.
        calls: Number of calls.
    """
    # Squares of correlations of independent normal values are beta variables; a few values often look alike.
    pairs = calls**2 / 2
    beyond_chance = 1 - special.betaincinv(np.maximum(count - 1, 1) / 2, 0.5, _BY_CHANCE / pairs)
    plain = np.tanh(_SURE / np.sqrt(np.maximum(count - 3, 1e-9))) ** 2
    least = np.maximum(beyond_chance, plain)
    return np.where(least < 1 - 2e-7, least, 2.0)  # what is closer to 1 is lost in rounding


def _repeat_sentence(call: int, twin: int, slope: float, likeness: float, linked: int, calls: int) -> str:
    """Say how the noise of a call follows from that of another; empty if it hardly does."""
    if abs(likeness) < CORRELATED:
        return ""
    relation = {1.0: "equals that", -1.0: "is the negative of that"}.get(round(slope, 3), f"is {slope:.3g} times that")
    if abs(likeness) < 0.999:
        relation = f"has a correlation of {likeness:.2g} with that"
    linked_calls = f"All {calls:,}" if linked >= calls else f"At least {linked:,} of {calls:,}"
    such = f" {linked_calls} calls have such a twin." if linked > 1 else ""
    return f"The noise of call {call} {relation} of call {twin}.{such}"


def shared_attack(calls: Calls) -> Attack | None:
    """Predict the noise from a few patterns over coordinates that the calls of the pilot have in common."""
    columns = calls.first == 0
    pilot = calls.noise[calls.pilot][:, columns]
    offset = float(pilot.mean())  # one number for all calls and coordinates is no pattern: whoever knows it undoes it
    _, values, vectors = np.linalg.svd(pilot - offset, full_matrices=False)
    # Independent noise of equal size has singular values below this edge (Marchenko & Pastur, 1967).
    edge = np.sqrt(1.5 * np.mean((pilot - offset) ** 2)) * (np.sqrt(pilot.shape[0]) + np.sqrt(pilot.shape[1]))
    strong = int(np.sum(values > edge))
    visible = calls.known & columns & ~calls.pilot[:, None]
    if strong == 0 or calls.size == 0 or 2 * strong > np.median(visible.sum(axis=1)[~calls.pilot]):
        return None
    patterns = vectors[:strong]
    full = np.zeros((strong, columns.size))
    full[:, columns] = patterns
    call, column = calls.targets
    noise, mean, rest = calls.noise - offset, np.zeros(calls.noise.shape), np.full(calls.pilot.size, calls.size)
    for t in np.flatnonzero(~calls.pilot):
        fit, *_ = np.linalg.lstsq(full[:, visible[t]].T, noise[t, visible[t]], rcond=1e-6)
        mean[t] = fit @ full
        missed = noise[t, visible[t]] - mean[t, visible[t]]
        rest[t] = np.sqrt(np.sum(missed**2) / max(int(visible[t].sum()) - strong, 1))
    scale = np.where(columns[column], rest[call], calls.size)
    missed = np.sum((noise - mean)[visible] ** 2) / max(float(np.sum(noise[visible] ** 2)), 1e-300)
    mean += offset
    equal = strong == 1 and float(np.ptp(patterns[0])) < 1e-3 * abs(float(patterns[0].mean()))
    same = "All coordinates get the same noise" if equal else f"The noise is made of {plural(strong, 'pattern')}"
    explained = f", but for {100 * missed:.2g}% of its variance" if missed > 1e-6 else ""
    sentence = f"{same}{explained}." if missed < 1 - CORRELATED**2 else ""
    return Attack(
        Check.INDEPENDENT, gaussian_scores(calls, mean[calls.targets], scale), sentence,
        mean=mean[calls.targets], scale=scale, rank=0 if equal else 2,
    )  # fmt: skip


def copy_attack(calls: Calls) -> Attack | None:
    """Predict the noise at a coordinate from the one that followed it most closely in the first half of the pilot."""
    pilot = _standardized(calls)[calls.pilot]
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
    is_rare = linked.sum() <= 3 + 1e-3 * n
    if is_rare:  # so few may be alike by chance
        linked &= _plainly_alike(pilot[half:], twin)
    if not linked.any():
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
    several = f"All {n:,}" if linked.all() else f"{int(linked.sum()):,} of {n:,}"
    sentence = (
        f"{several} coordinates share their noise with another one, such as coordinate "
        f"{calls.coordinates[j]:,} with {calls.coordinates[twin[j]]:,} (correlation {link[j]:.3g})."
    )
    # A few chance values of heavy-tailed noise are enough for a pair to look alike in a short pilot.
    if linked.mean() < 0.05 and np.median(np.abs(link[linked])) < 0.99:
        sentence = ""
    # Noise that is too small everywhere shows in all targets, and must not be named after the few that share theirs.
    chosen = usable if is_rare else np.ones_like(usable)
    mean, scale = mean[chosen], scale[chosen]
    return Attack(
        Check.INDEPENDENT, gaussian_scores(calls, mean, scale, chosen), sentence, chosen=chosen,
        mean=mean, scale=scale, elsewhere=~chosen if is_rare else None, usual=calls.size, rank=4,
    )  # fmt: skip


def _plainly_alike(noise: Array, twin: Ints) -> Bools:
    """Return which columns are more like their twins than independent noise is by chance, whatever its tails, (n,)."""
    typical = np.median(np.abs(noise), axis=0)
    # Bounded values have correlations like those of normal ones: no two large values decide about them.
    bounded = _normalized(np.clip(noise / np.where(typical > 0, typical, np.inf), -_BOUND, _BOUND))
    likeness = np.sum(bounded * bounded[:, twin], axis=0).astype(np.float64)
    least = 1 - special.betaincinv((len(noise) - 1) / 2, 0.5, _BY_CHANCE / max(twin.size, 1))
    return np.asarray(likeness**2 > min(least, 0.999))


def _standardized(calls: Calls) -> Array:
    """Return the noise in units of its size at each coordinate, in single precision, shape (t, n)."""
    scales = column_scales(calls)
    return (calls.noise / np.where(scales > 0, scales, 1.0)).astype(np.float32)


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
    return Attack(Check.INDEPENDENT, gaussian_scores(calls, mean, scale), sentence, mean=mean, scale=scale, rank=4)


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
