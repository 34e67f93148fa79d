"""Figures of one result's scores: histogram, ROC curve, and ε by threshold.

The reader can move the threshold. The ε shown there is the ratio of two counted rates: an estimate, never a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from coalmine.drawing import numbers
from coalmine.drawing.charts import (
    BOUND,
    ESTIMATE,
    HELD_OUT,
    INK,
    INSERTED,
    THEORY,
    Figure,
    Spec,
    layer,
    nominal,
    quantitative,
    short,
    unit,
)
from coalmine.results.result import Result
from coalmine.stats import CosineNull, Null, Scores
from coalmine.stats.nulls import parse_null
from coalmine.stats.rates import epsilon_by_threshold

_PLACES = 120
_HEIGHT = 210
_CHOSEN = "chosen threshold"


class Place(NamedTuple):
    """The counts at one threshold. ``epsilon`` is None where it is infinite."""

    threshold: float
    tp: int
    fp: int
    epsilon: float | None


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """A result's scores at thresholds to move through; ``start`` is where TPR − FPR is largest."""

    name: str
    sides: tuple[str, str]
    members: int
    nonmembers: int
    places: list[Place]
    start: int
    figures: list[Figure]

    def to_dict(self) -> dict[str, Any]:
        """Return what the page's script needs."""
        return {
            "sides": self.sides,
            "members": self.members,
            "nonmembers": self.nonmembers,
            "places": self.places,
            "figures": [figure.name for figure in self.figures],
        }


def explorer(name: str, result: Result) -> Explorer | None:
    """Return the figures of a result's scores, or None if it has no scores of both sides."""
    scores = result.scores
    if scores is None or scores.nonmembers is None:
        return None
    null = parse_null(result.null)
    delta = result.estimates[0].delta if result.estimates else 0.0
    places = _places(scores, delta)
    members, nonmembers = scores.members.size, scores.observed.size
    start = int(np.argmax([p.tp / members - p.fp / nonmembers for p in places]))
    return Explorer(
        name=name,
        sides=result.side_names,
        members=members,
        nonmembers=nonmembers,
        places=places,
        start=start,
        figures=[
            _histogram(name, result, scores, null, places[start]),
            _roc(name, result, scores, null, places, start),
            _by_threshold(name, result, places, start),
        ],
    )


def _places(scores: Scores, delta: float) -> list[Place]:
    """Return all thresholds from the lowest up, thinned to what a slider can take."""
    thresholds, epsilons = epsilon_by_threshold(scores, delta=delta)
    _, tp, fp = scores.all_counts
    kept = np.unique(np.linspace(0, thresholds.size - 1, _PLACES).round().astype(int))
    best = int(np.argmax(epsilons))
    kept = np.union1d(kept, [best])[::-1]
    return [
        Place(
            threshold=float(thresholds[i]),
            tp=int(tp[i]),
            fp=int(fp[i]),
            epsilon=float(epsilons[i]) if math.isfinite(epsilons[i]) else None,
        )
        for i in kept
    ]


def _histogram(name: str, result: Result, scores: Scores, null: Null | None, start: Place) -> Figure:
    sides = result.side_names
    members, others = scores.members, scores.observed
    edges = np.linspace(
        float(min(members[0], others[0])),
        float(max(members[-1], others[-1])),
        _bins(min(members.size, others.size)) + 1,
    )
    if edges[0] == edges[-1]:
        edges = np.array([edges[0] - 0.5, edges[0] + 0.5])
    data: list[dict[str, Any]] = []
    for who, values in zip(sides, (members, others), strict=True):
        shares = np.histogram(values, edges)[0] / values.size
        data += [
            {"from": short(a), "to": short(b), "share": short(share), "who": who}
            for a, b, share in zip(edges, edges[1:], shares, strict=False)
        ]
    x = quantitative("from", result.score_name, scale={"zero": False, "nice": False}, axis={"tickCount": 5})
    share = quantitative("share", "share of scores", axis={"format": "%"})
    color = nominal("who", dict(zip(sides, (INSERTED, HELD_OUT), strict=True)), columns=2)
    y = {**share, "stack": None}
    layers = [layer("bar", {"opacity": 0.6}, x=x, x2={"field": "to"}, y=y, y2={"datum": 0}, color=color)]
    caption = f"Scores of members ({sides[0]}) and non-members ({sides[1]})"
    if null is not None:
        step = float(edges[1] - edges[0])
        expected = [
            {"score": short(t), "share": short(_between(null, t - step / 2, t + step / 2)), "law": "exact null"}
            for t in np.linspace(edges[0], edges[-1], 121).tolist()
        ]
        stroke = nominal("law", {"exact null": INK}, symbolType="stroke")
        style = {"strokeDash": [5, 3], "strokeWidth": 2}
        layers.append(layer("line", style, data=expected, x={**x, "field": "score"}, y=share, stroke=stroke))
        caption += ", with the exact null distribution"
    layers.append(
        layer(
            "rule",
            {"strokeWidth": 2},
            data=[{"at": start.threshold, "what": _CHOSEN}],
            transform={"calculate": "threshold", "as": "here"},  # the parameter that the reader moves
            x=quantitative("here"),
            stroke=nominal("what", {_CHOSEN: ESTIMATE}, symbolType="stroke"),
        )
    )
    return Figure(
        name=f"{name}-scores",
        title="Scores.",
        caption=f"{caption}. The less the histograms overlap, the more the release leaks.",
        sentence=(
            f"Histogram of scores: {members.size} {sides[0]} have a median of {np.median(members):.3g}, "
            f"{others.size} {sides[1]} a median of {np.median(others):.3g}."
        ),
        chart=unit(
            data,
            layers,
            height=_HEIGHT,
            params=[{"name": "threshold", "value": start.threshold}],
            resolve={"scale": {"stroke": "independent"}},
        ),
    )


def _roc(name: str, result: Result, scores: Scores, null: Null | None, places: list[Place], start: int) -> Figure:
    m, n = scores.members.size, scores.observed.size
    floor = 10.0 ** math.floor(math.log10(0.6 / max(m, n)))
    counted = [
        {"i": i, "fpr": p.fp / n, "tpr": p.tp / m, "what": "counted"} for i, p in enumerate(places) if p.fp and p.tp
    ]
    axes: dict[str, dict[str, Any]] = {
        "scale": {"type": "log", "domain": [floor, 1], "nice": False},
        "axis": {"values": [10.0**k for k in range(round(math.log10(floor)), 1)], "format": "~%"},
    }
    x = quantitative("fpr", "false positive rate", **axes)
    # A little room above 100%: a claim that allows everything has its line there.
    y = quantitative("tpr", "true positive rate", **{**axes, "scale": {**axes["scale"], "domain": [floor, 1.25]}})
    layers: list[dict[str, Any]] = []
    claim, notes = result.claim, ""
    if claim is not None and math.isfinite(claim.epsilon):
        style = {"opacity": 0.16, "line": {"color": THEORY, "strokeWidth": 1.5}, "clip": True, "color": THEORY}
        allowed = _allowed(claim.epsilon, claim.delta, floor)
        layers.append(layer("area", style, data=allowed, x=x, y=y, y2={"datum": floor}))
        notes = (
            f" Shaded: what the claim of {numbers.at_most(claim.epsilon)} allows. Single points above it can be "
            "chance; the lower bound accounts for that."
        )
    chance = [{"fpr": t, "tpr": t} for t in (floor, 1.0)]
    layers.append(layer("line", {"strokeDash": [2, 3], "color": HELD_OUT}, data=chance, x=x, y=y))
    if null is not None:
        fpr = np.exp(null.log_sf(np.array([p.threshold for p in places])))
        exact = [
            {"fpr": short(max(float(f), floor / 10)), "tpr": p.tp / m} for f, p in zip(fpr, places, strict=True) if p.tp
        ]
        style = {"strokeDash": [5, 3], "color": INK, "strokeWidth": 1.5, "clip": True}
        layers.append(layer("line", style, data=exact, x=x, y=y, order={"field": "fpr"}))
        notes += " Long dashes: FPR from the exact null distribution instead of counts."
    style = {"color": INSERTED, "strokeWidth": 2, "clip": True}
    layers += [layer("line", style, x=x, y=y, order={"field": "i"}), *_current_place(x, y)]
    layers.append(_roc_legend(x, y, claim=bool(notes) and claim is not None, exact=null is not None))
    return Figure(
        name=f"{name}-roc",
        title="ROC curve.",
        caption=f"True positive rate against false positive rate, both logarithmic; dotted: chance.{notes}",
        sentence=(
            f"ROC curve with logarithmic axes: area under the curve {scores.auroc:.3f}; TPR "
            f"{numbers.percent(float(scores.tpr_at(0.01)))} at 1% FPR.{notes}"
        ),
        chart=unit(counted, layers, height=_HEIGHT, params=[{"name": "place", "value": start}]),
    )


def _roc_legend(x: Spec, y: Spec, *, claim: bool, exact: bool) -> dict[str, Any]:
    """Return a layer without lines that has their legend."""
    lines: dict[str, tuple[str, list[int]]] = {"counted": (INSERTED, [1, 0]), "chance": (HELD_OUT, [2, 3])}
    if claim:
        lines["most that the claim allows"] = THEORY, [1, 0]
    if exact:
        lines["with the exact null"] = INK, [5, 3]
    legend = {"columns": 2, "symbolType": "stroke"}
    color = nominal("what", {what: color for what, (color, _) in lines.items()}, **legend)
    dash = nominal("what", {what: dash for what, (_, dash) in lines.items()}, **legend)
    return layer("line", {}, data=[], x=x, y=y, color=color, strokeDash=dash)


def _by_threshold(name: str, result: Result, places: list[Place], start: int) -> Figure:
    data = [
        {"i": i, "threshold": p.threshold, "epsilon": None if p.epsilon is None else short(p.epsilon)}
        for i, p in enumerate(places)
    ]
    levels = {
        what: level.epsilon
        for what, level in (("lower bound", result.bound), ("claim", result.claim))
        if level is not None and math.isfinite(level.epsilon)
    }
    x = quantitative("threshold", "threshold", scale={"zero": False, "nice": False}, axis={"tickCount": 5})
    y = quantitative("epsilon", "ε")
    colors, dashes = {"estimate": ESTIMATE, "lower bound": BOUND, "claim": THEORY}, {"claim": [6, 4]}
    names = ["estimate", *levels]
    legend = {"columns": 3, "symbolType": "stroke"}
    kinds: dict[str, Any] = {
        "color": nominal("what", {name: colors[name] for name in names}, **legend),
        "strokeDash": nominal("what", {name: dashes.get(name, [1, 0]) for name in names}, **legend),
    }
    lines = [{"value": value, "what": what} for what, value in levels.items()]
    layers = [
        layer("line", {"strokeWidth": 1.5}, transform={"calculate": "'estimate'", "as": "what"}, x=x, y=y, **kinds),
        layer("rule", {"strokeWidth": 2}, data=lines, y=quantitative("value"), **kinds),
        *_current_place(x, y),
    ]
    best = max((p for p in places if p.epsilon is not None), key=lambda p: p.epsilon or 0.0, default=None)
    largest = "infinite everywhere" if best is None else f"the largest is {best.epsilon:.3g} at {best.threshold:.3g}"
    return Figure(
        name=f"{name}-threshold",
        title="ε by threshold.",
        caption="Log-ratio of the counted rates at each threshold: an estimate. Picking the largest overstates ε.",
        sentence=f"Estimated ε at each threshold: {largest}. "
        + " ".join(f"The {what} is {value:.3g}." for what, value in levels.items()),
        chart=unit(data, layers, height=_HEIGHT, params=[{"name": "place", "value": start}]),
    )


def _current_place(x: Spec, y: Spec) -> list[dict[str, Any]]:
    """Return a point at the threshold that the reader has moved to, and a layer without points that has its legend."""
    style = {"size": 90, "filled": True, "color": ESTIMATE, "opacity": 1}
    fill = nominal("what", {_CHOSEN: ESTIMATE}, symbolType="circle", symbolStrokeWidth=0)
    return [
        layer("point", style, transform={"filter": "datum.i == place"}, x=x, y=y),
        layer("point", {"opacity": 1}, data=[], fill=fill),
    ]


def _allowed(epsilon: float, delta: float, floor: float) -> list[dict[str, float]]:
    """Return the largest TPR that (ε, δ)-DP allows at each FPR."""
    fpr = np.geomspace(floor, 1, 80)
    with np.errstate(over="ignore"):
        rising = np.exp(min(epsilon, 700)) * fpr + delta
    falling = 1 - np.exp(-epsilon) * (1 - delta - fpr)
    return [
        {"fpr": short(float(f)), "tpr": short(float(t))}
        for f, t in zip(fpr, np.minimum(np.minimum(rising, falling), 1), strict=True)
    ]


def _between(null: Null, low: float, high: float) -> float:
    """Return P(low ≤ null < high)."""
    ends = np.clip([low, high], -1, 1) if isinstance(null, CosineNull) else np.array([low, high])
    below = np.exp(null.log_cdf(ends))
    return max(0.0, float(below[1] - below[0]))


def _bins(count: int) -> int:
    """Return a number of bins that suits the number of scores."""
    return min(28, max(6, round(1.5 * math.sqrt(count))))
