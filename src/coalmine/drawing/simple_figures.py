"""Plain figures of the audits' own quantities: ε along rounds, memorized phrases, adversaries, the training curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from coalmine.drawing import numbers
from coalmine.drawing.charts import BOUND, ESTIMATE, INK, INSERTED, LINE, THEORY, Figure, unit
from coalmine.results.summary import line, number

Result = Mapping[str, Any]


def memorized(memorization: Mapping[str, Any], name: str) -> Figure:
    """How many phrases of each configuration the model has memorized, p_u across and p_e up."""
    data = [
        {
            "p_u": f"{c['p_u']:g}",
            "p_e": f"{c['p_e']:g}",
            "share": c["random_sampling"] / max(1, c["canaries"]),
            "words": f"{c['random_sampling']} of {c['canaries']}",
            "more": f"{c['beam_search']} extracted · {c['median_exposure']:.1f} bits",
        }
        for c in memorization["configurations"]
    ]
    x = {
        "field": "p_u",
        "type": "ordinal",
        "title": "p_u: share of users who hold it",
        "axis": {"labelAngle": 0},
        "sort": None,
    }
    y = {"field": "p_e", "type": "ordinal", "title": "p_e: share of their examples", "sort": "descending"}
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "rect", "color": ESTIMATE, "stroke": LINE, "strokeWidth": 1},
            "encoding": {
                "x": x,
                "y": y,
                "fillOpacity": {
                    "field": "share",
                    "type": "quantitative",
                    "scale": {"domain": [0, 1], "range": [0.06, 0.75]},
                    "legend": None,
                },
            },
        },
        {
            "mark": {"type": "text", "dy": -8, "fontSize": 14, "fontWeight": 600, "color": INK},
            "encoding": {"x": x, "y": y, "text": {"field": "words", "type": "nominal"}},
        },
        {
            "mark": {"type": "text", "dy": 10, "fontSize": 11, "color": INK},
            "encoding": {"x": x, "y": y, "text": {"field": "more", "type": "nominal"}},
        },
    ]
    told = "; ".join(f"p_u {d['p_u']}, p_e {d['p_e']}: {d['words']}, {d['more']}" for d in data)
    among = memorization.get("references")
    likelier = "every random phrase it was ranked among" if among is None else f"all {among:,} random phrases"
    return Figure(
        name=name,
        title="Memorized phrases.",
        caption=f"How many of each kind are memorized: likelier to the model than {likelier}. Below, how many are "
        "extracted, that is, the first answer of a beam search, and the median exposure.",
        sentence=f"Heat map of memorized phrases, extracted phrases and median exposure: {told}.",
        chart=unit(data, layers, height=max(190, 70 * len({d["p_e"] for d in data}))),
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


def training_curve(history: Sequence[Mapping[str, Any]], name: str) -> list[Figure]:
    """The loss of clients in training, and how good the model is, by round."""
    found = []
    quality = next((m for m in ("accuracy", "recall@1") if any(m in h for h in history)), None)
    for field, words in (("train_loss", "loss of the clients"), (quality, f"{quality} on test data")):
        values = [
            {"round": h["round"] + 1, "value": _finite(h[field])} for h in history if field is not None and field in h
        ]
        values = [v for v in values if v["value"] is not None]
        if len(values) < 2:  # a point is no curve, and the table has it
            continue
        spec = unit(
            values,
            [
                {
                    "mark": {
                        "type": "line",
                        "color": INSERTED,
                        "strokeWidth": 2,
                        "point": len(values) < 30 and {"color": INSERTED, "size": 30},
                    },
                    "encoding": {
                        "x": {"field": "round", "type": "quantitative", "title": "round", "axis": {"tickMinStep": 1}},
                        "y": {"field": "value", "type": "quantitative", "title": words, "scale": {"zero": False}},
                    },
                }
            ],
            height=180,
        )
        found.append(
            Figure(
                name=f"{name}-{'loss' if field == 'train_loss' else 'quality'}",
                title=f"{words[:1].upper()}{words[1:]}.",
                caption="By round, with canaries.",
                sentence=f"{words} by round: {values[0]['value']:.4g} at first, {values[-1]['value']:.4g} in the end.",
                chart=spec,
            )
        )
    return found


def _finite(value: object) -> float | None:
    if value is None:
        return None
    found = number(value)
    return found if math.isfinite(found) else None
