"""What the scores of one view show: how they lie, how planted canaries are told from others, and ε by threshold.

A threshold can be moved; what is shown there is the ratio of two counted rates, an estimate and never a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.drawing import numbers
from coalmine.drawing.charts import BOUND, ESTIMATE, HELD_OUT, INK, PLANTED, THEORY, Figure, unit
from coalmine.errors import InputError
from coalmine.report.caveats import kinds
from coalmine.results.summary import number
from coalmine.stats import CosineNull, Null, Scores
from coalmine.stats.same_data import epsilon_by_threshold

_PLACES = 120
_EXACT = "their null distribution is exact"


@dataclass(frozen=True, kw_only=True)
class Place:
    """What happens at one threshold. ``epsilon`` is None where no error at all was counted."""

    threshold: float
    tp: int
    fp: int
    epsilon: float | None


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """A view's scores at thresholds that can be moved through; ``start`` is where most guesses are right."""

    name: str
    kinds: tuple[str, str]
    members: int
    nonmembers: int
    places: list[Place]
    start: int
    figures: list[Figure]

    def to_dict(self) -> dict[str, Any]:
        """What the page's script needs."""
        return {
            "kinds": self.kinds,
            "members": self.members,
            "nonmembers": self.nonmembers,
            "places": [[p.threshold, p.tp, p.fp, p.epsilon] for p in self.places],
            "figures": [figure.name for figure in self.figures],
        }


def explorer(name: str, result: Mapping[str, Any], arrays: Mapping[str, Any]) -> Explorer | None:
    """Figures of one view from its scores; None where there are no scores of both kinds."""
    if "members" not in arrays or "nonmembers" not in arrays:
        return None
    try:
        scores = Scores(arrays["members"], arrays["nonmembers"])
    except InputError:
        return None
    null = known_null(result)
    delta = next((e.get("delta") or 0.0 for e in result["estimates"]), 0.0)
    places = _places(scores, delta)
    members, others = scores.members.size, scores.observed.size
    start = int(np.argmax([p.tp / members - p.fp / others for p in places]))
    figures = [
        _histogram(name, kinds(result), scores, null, places[start]),
        _roc(name, result, scores, null, places, start),
        _by_threshold(name, result, places, start),
    ]
    return Explorer(
        name=name,
        kinds=kinds(result),
        members=members,
        nonmembers=others,
        places=places,
        start=start,
        figures=figures,
    )


def known_null(result: Mapping[str, Any]) -> Null | None:
    """The law of a held-out canary's score, where the result rests on it and says that it is exact."""
    exact = next((e for e in result["estimates"] if e["method"] == "exact-null"), None)
    config, planted = result["config"], result["metrics"].get("planted")
    if result["audit"] != "one-shot" or exact is None or _EXACT not in exact.get("assumes", "") or planted is None:
        return None
    # Orthogonal canaries are scored against a release less its components along the other planted ones.
    others = int(planted) - 1 if config.get("family") == "hadamard" else 0
    return CosineNull(int(config["dim"]) - others)


def _places(scores: Scores, delta: float) -> list[Place]:
    """All thresholds from the lowest up, or as many as a slider can take."""
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


def _histogram(name: str, sides: tuple[str, str], scores: Scores, null: Null | None, start: Place) -> Figure:
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
            {"from": _short(a), "to": _short(b), "share": _short(share), "who": who}
            for a, b, share in zip(edges, edges[1:], shares, strict=False)
        ]
    domain, colors = list(sides), [PLANTED, HELD_OUT]
    x = {
        "field": "from",
        "type": "quantitative",
        "title": "score",
        "scale": {"zero": False, "nice": False},
        "axis": {"tickCount": 5},
    }
    share = {"field": "share", "type": "quantitative", "title": "share of canaries", "axis": {"format": "%"}}
    color = {
        "field": "who",
        "type": "nominal",
        "scale": {"domain": domain, "range": colors},
        "legend": {"title": None, "columns": 2},
    }
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "bar", "opacity": 0.6},
            "encoding": {
                "x": x,
                "x2": {"field": "to"},
                "y": {**share, "stack": None},
                "y2": {"datum": 0},
                "color": color,
            },
        }
    ]
    words = f"Those {sides[0]} beside those {sides[1]}" if sides[0] != "canaries" else "Canaries beside references"
    if null is not None:
        fine = np.linspace(edges[0], edges[-1], 121)
        step = float(edges[1] - edges[0])
        expected = [
            {
                "score": _short(t),
                "share": _short(_between(null, float(t) - step / 2, float(t) + step / 2)),
                "law": "exact law",
            }
            for t in fine
        ]
        layers.append(
            {
                "data": {"values": expected},
                "mark": {"type": "line", "strokeDash": [5, 3], "strokeWidth": 2},
                "encoding": {
                    "x": {**x, "field": "score"},
                    "y": share,
                    "stroke": {
                        "field": "law",
                        "type": "nominal",
                        "scale": {"domain": ["exact law"], "range": [INK]},
                        "legend": {"title": None, "symbolType": "stroke"},
                    },
                },
            }
        )
        words += ", and the exact law that these follow"
    layers.append(_threshold_rule(start.threshold))
    spec = unit(data, layers, height=210, more={"params": [{"name": "threshold", "value": start.threshold}]})
    spec["resolve"] = {"scale": {"stroke": "independent"}}
    return Figure(
        name=f"{name}-scores",
        title="Scores.",
        caption=f"{words}. The further apart, the more is told.",
        sentence=(
            f"Histogram of scores: {members.size} {sides[0]} have a median of {np.median(members):.3g}, "
            f"{others.size} {sides[1]} a median of {np.median(others):.3g}."
        ),
        chart=spec,
    )


def _threshold_rule(threshold: float) -> dict[str, Any]:
    """A line at the threshold that the reader moves."""
    return {
        "data": {"values": [{"at": threshold}]},
        "mark": {"type": "rule", "color": ESTIMATE, "strokeWidth": 2},
        "transform": [{"calculate": "threshold", "as": "here"}],
        "encoding": {"x": {"field": "here", "type": "quantitative"}},
    }


def _roc(
    name: str, result: Mapping[str, Any], scores: Scores, null: Null | None, places: list[Place], start: int
) -> Figure:
    m, n = scores.members.size, scores.observed.size
    floor = 10.0 ** math.floor(math.log10(0.6 / max(m, n)))
    counted = [
        {"i": i, "fpr": p.fp / n, "tpr": p.tp / m, "what": "counted"} for i, p in enumerate(places) if p.fp and p.tp
    ]
    axis = {"values": [10.0**k for k in range(round(math.log10(floor)), 1)], "format": "~%"}
    x = {
        "field": "fpr",
        "type": "quantitative",
        "title": "false positive rate",
        "scale": {"type": "log", "domain": [floor, 1], "nice": False},
        "axis": axis,
    }
    y = {**x, "field": "tpr", "title": "true positive rate"}
    layers: list[dict[str, Any]] = []
    theory, words = result.get("theory"), ""
    if theory is not None and math.isfinite(number(theory["epsilon"])):
        limit = number(theory["epsilon"])
        layers.append(
            {
                "data": {"values": _allowed(limit, float(theory.get("delta") or 0.0), floor)},
                "mark": {
                    "type": "area",
                    "opacity": 0.16,
                    "line": {"color": THEORY, "strokeWidth": 1.5},
                    "clip": True,
                    "color": THEORY,
                },
                "encoding": {"x": x, "y": y, "y2": {"datum": floor}},
            }
        )
        allowed = f"The shaded region is what {numbers.at_most(limit)} allows"
        words = f" {allowed}; whether points above it refute it, the valid bound says."
    chance = [{"fpr": t, "tpr": t} for t in (floor, 1.0)]
    layers.append(
        {
            "data": {"values": chance},
            "mark": {"type": "line", "strokeDash": [2, 3], "color": HELD_OUT},
            "encoding": {"x": x, "y": y},
        }
    )
    if null is not None:
        fpr = np.exp(null.log_sf(np.array([p.threshold for p in places])))
        exact = [
            {"fpr": _short(max(float(f), floor / 10)), "tpr": p.tp / m}
            for f, p in zip(fpr, places, strict=True)
            if p.tp
        ]
        layers.append(
            {
                "data": {"values": exact},
                "mark": {"type": "line", "strokeDash": [5, 3], "color": INK, "strokeWidth": 1.5, "clip": True},
                "encoding": {"x": x, "y": y, "order": {"field": "fpr"}},
            }
        )
        words += " Dashed: false positives by the exact law, not by counting."
    layers += [
        {
            "mark": {"type": "line", "color": PLANTED, "strokeWidth": 2, "clip": True},
            "encoding": {"x": x, "y": y, "order": {"field": "i"}},
        },
        {
            "mark": {"type": "point", "size": 90, "filled": True, "color": ESTIMATE, "opacity": 1},
            "transform": [{"filter": "datum.i == place"}],
            "encoding": {"x": x, "y": y},
        },
    ]
    spec = unit(counted, layers, height=210, more={"params": [{"name": "place", "value": start}]})
    at = float(scores.tpr_at(0.01))
    return Figure(
        name=f"{name}-roc",
        title="Told apart.",
        caption=f"Rightly accused over wrongly accused, by threshold; dotted: chance.{words}",
        sentence=(
            f"ROC curve in logarithmic axes: area {scores.auroc:.3f}; where 1% are wrongly accused, "
            f"{numbers.percent(at)} are rightly.{words}"
        ),
        chart=spec,
    )


def _by_threshold(name: str, result: Mapping[str, Any], places: list[Place], start: int) -> Figure:
    data = [
        {"i": i, "threshold": p.threshold, "epsilon": None if p.epsilon is None else _short(p.epsilon)}
        for i, p in enumerate(places)
    ]
    lines: list[dict[str, Any]] = []
    bound = next((e for e in result["estimates"] if e["valid"]), None)
    theory = result.get("theory")
    if bound is not None and bound.get("lower") is not None:
        lines.append({"value": number(bound["lower"]), "what": "valid bound"})
    if theory is not None:
        lines.append({"value": number(theory["epsilon"]), "what": "promise"})
    lines = [line for line in lines if math.isfinite(line["value"])]
    x = {
        "field": "threshold",
        "type": "quantitative",
        "title": "threshold",
        "scale": {"zero": False, "nice": False},
        "axis": {"tickCount": 5},
    }
    y = {"field": "epsilon", "type": "quantitative", "title": "ε"}
    names = ["estimate", *(str(line["what"]) for line in lines)]
    colors, dashes = {"estimate": ESTIMATE, "valid bound": BOUND, "promise": THEORY}, {"promise": [6, 4]}
    color = {
        "field": "what",
        "type": "nominal",
        "scale": {"domain": names, "range": [colors[name] for name in names]},
        "legend": {"title": None, "columns": 3, "symbolType": "stroke"},
    }
    dash = {
        "field": "what",
        "type": "nominal",
        "scale": {"domain": names, "range": [dashes.get(name, [1, 0]) for name in names]},
        "legend": {"title": None, "columns": 3, "symbolType": "stroke"},
    }
    layers: list[dict[str, Any]] = [
        {
            "transform": [{"calculate": "'estimate'", "as": "what"}],
            "mark": {"type": "line", "strokeWidth": 1.5},
            "encoding": {"x": x, "y": y, "color": color, "strokeDash": dash},
        },
        {
            "data": {"values": lines},
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {"y": {"field": "value", "type": "quantitative"}, "color": color, "strokeDash": dash},
        },
        {
            "mark": {"type": "point", "size": 90, "filled": True, "color": ESTIMATE, "opacity": 1},
            "transform": [{"filter": "datum.i == place"}],
            "encoding": {"x": x, "y": y},
        },
    ]
    spec = unit(data, layers, height=210, more={"params": [{"name": "place", "value": start}]})
    best = max((p for p in places if p.epsilon is not None), key=lambda p: p.epsilon or 0.0, default=None)
    largest = "no threshold shows any" if best is None else f"the largest is {best.epsilon:.3g} at {best.threshold:.3g}"
    return Figure(
        name=f"{name}-threshold",
        title="ε by threshold.",
        caption="The ratio of counted rates at each threshold: an estimate. Choosing the largest overstates it.",
        sentence=f"Estimated ε at each threshold: {largest}. "
        + " ".join(f"The {line['what']} is {line['value']:.3g}." for line in lines),
        chart=spec,
    )


def _allowed(epsilon: float, delta: float, floor: float) -> list[dict[str, float]]:
    """The largest true positive rate that (ε, δ) allows at each false positive rate."""
    fpr = np.geomspace(floor, 1, 80)
    with np.errstate(over="ignore"):
        one = np.exp(min(epsilon, 700)) * fpr + delta
    other = 1 - np.exp(-epsilon) * (1 - delta - fpr)
    return [
        {"fpr": _short(float(f)), "tpr": _short(float(t))}
        for f, t in zip(fpr, np.minimum(np.minimum(one, other), 1), strict=True)
    ]


def _between(null: Null, low: float, high: float) -> float:
    """P(low ≤ null < high), of a cosine."""
    below = np.exp(null.log_cdf(np.clip([low, high], -1, 1)))
    return max(0.0, float(below[1] - below[0]))


def _bins(count: int) -> int:
    """Few where there are few scores."""
    return min(28, max(6, round(1.5 * math.sqrt(count))))


def _short(value: float) -> float:
    """As many digits as a figure shows."""
    return float(f"{value:.5g}")
