"""Plain figures of the audits' own quantities: ε along rounds, memorized phrases, adversaries, the training curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from coalmine.drawing import numbers
from coalmine.drawing.charts import BOUND, ESTIMATE, INK, INSERTED, LINE, THEORY, Figure, unit
from coalmine.results.summary import line, number

Result = Mapping[str, Any]


def rounds(result: Result, name: str) -> Figure:
    """ε̂ᵣ of CANIFE along the rounds with its interval, the valid bound of each, and the promise of one round."""
    data = []
    for period in result["rounds"]:
        by = {e["method"]: e for e in period["estimates"]}
        shown = by.get("best-threshold")
        bound = next((e for e in period["estimates"] if e["valid"]), None)
        data.append(
            {
                "round": period["round"],
                "estimate": None if shown is None else _finite(shown["epsilon"]),
                "low": None if shown is None else _finite(shown["lower"]),
                "high": None if shown is None else _finite(shown["upper"]),
                "bound": None if bound is None else _finite(bound["lower"]),
            }
        )
    names = ["valid bound", "estimate by best-threshold, with its interval"]
    shape = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": names, "range": ["triangle-up", "circle"]},
        "legend": {"title": None},
    }
    color = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": names, "range": [BOUND, ESTIMATE]},
        "legend": {"title": None},
    }
    theory = result.get("theory")
    promised = None if theory is None else _finite(theory["epsilon"])
    # Marks at the first and the last round, and at ε = 0, are drawn whole.
    edge = max(1, data[-1]["round"] - data[0]["round"]) / 12
    values = [promised, *(d[name] for d in data for name in ("high", "estimate", "bound"))]
    top = max([1.0, *(value for value in values if value is not None)])
    x = {
        "field": "round",
        "type": "quantitative",
        "title": "round",
        "axis": {"values": [d["round"] for d in data], "grid": False},
        "scale": {"domain": [data[0]["round"] - edge, data[-1]["round"] + edge], "nice": False},
    }
    y = {
        "type": "quantitative",
        "title": "ε of one round",
        "scale": {"domain": [-0.03 * top, 1.05 * top], "nice": False},
    }
    points = [
        {"round": d["round"], "kind": kind, "value": d[field]}
        for d in data
        for kind, field in ((names[0], "bound"), (names[1], "estimate"))
        if d[field] is not None
    ]
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": [] if promised is None else [{"value": promised}]},
            "mark": {"type": "rule", "strokeDash": [6, 4], "color": THEORY, "strokeWidth": 2},
            "encoding": {"y": {**y, "field": "value"}},
        },
        {
            "mark": {"type": "rule", "color": ESTIMATE, "strokeWidth": 2},
            "transform": [{"filter": "isValid(datum.low) && isValid(datum.high)"}],
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "data": {"values": points},
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {"x": x, "y": {**y, "field": "value"}, "shape": shape, "color": color},
        },
    ]
    told = "; ".join(
        f"from round {d['round']}: estimate {numbers.epsilon(d['estimate'])}, bound {numbers.epsilon(d['bound'])}"
        for d in data[:12]
    )
    return Figure(
        name=name,
        title="ε of single rounds along the training.",
        caption="Intervals are those that a threshold fixed in advance would have. Dashed: the promise of one round.",
        sentence=f"ε of one round along the training. {told}.",
        chart=unit(data, layers, height=240),
    )


def adversaries(results: Sequence[Result], name: str) -> list[Figure]:
    """A panel for each adversary of the LDP audit: ε shown over ε promised, by what is seen."""
    crafters = list(dict.fromkeys(str(r["config"].get("crafter")) for r in results))
    promised = [number(r["config"]["epsilon"]) for r in results]
    span = {"domain": [0, 1.1 * max(promised)], "nice": False}
    return [
        _panel(crafter, [r for r in results if str(r["config"].get("crafter")) == crafter], span, f"{name}-{i + 1}")
        for i, crafter in enumerate(crafters)
    ]


def _panel(crafter: str, results: Sequence[Result], span: Mapping[str, Any], name: str) -> Figure:
    points: list[dict[str, Any]] = []
    diagonal: list[dict[str, Any]] = []
    for result in results:
        epsilon = number(result["config"]["epsilon"])
        bound, estimate = _finite(line(result).bound), _finite(result["metrics"].get("empirical"))
        diagonal.append({"promised": epsilon, "value": epsilon})
        points += [
            {"promised": epsilon, "value": value, "kind": kind, "seen": str(result["view"])}
            for kind, value in (("valid bound", bound), ("estimate", estimate))
            if value is not None
        ]
    x = {"field": "promised", "type": "quantitative", "title": "ε promised", "scale": span}
    y = {"field": "value", "type": "quantitative", "title": "ε shown", "scale": span}
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": [{"promised": 0, "value": 0}, *diagonal]},
            "mark": {"type": "line", "strokeDash": [6, 4], "color": THEORY, "strokeWidth": 2, "clip": True},
            "encoding": {"x": x, "y": y},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.9, "clip": True},
            "encoding": {
                "x": x,
                "y": y,
                "shape": {
                    "field": "kind",
                    "type": "nominal",
                    "scale": {"domain": ["valid bound", "estimate"], "range": ["triangle-up", "circle"]},
                    "legend": {"title": None, "columns": 2},
                },
                "color": {
                    "field": "kind",
                    "type": "nominal",
                    "scale": {"domain": ["valid bound", "estimate"], "range": [BOUND, ESTIMATE]},
                    "legend": {"title": None, "columns": 2},
                },
                "tooltip": [
                    {"field": f, "type": t}
                    for f, t in (("seen", "nominal"), ("kind", "nominal"), ("value", "quantitative"))
                ],
            },
        },
    ]
    best = max(
        (p["value"] / p["promised"] for p in points if p["kind"] == "valid bound" and p["promised"]), default=0.0
    )
    return Figure(
        name=name,
        title=f"{crafter}.",
        caption="Dashed: all of the promise.",
        sentence=f"{crafter}: of {len(results)} bounds the largest shows {100 * best:.0f}% of what was promised.",
        chart=unit(points, layers, height=190),
    )


def _finite(value: object) -> float | None:
    if value is None:
        return None
    found = number(value)
    return found if math.isfinite(found) else None
