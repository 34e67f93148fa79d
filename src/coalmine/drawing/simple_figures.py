"""Plain figures of the audits' own quantities: ε along rounds, memorized phrases, adversaries, the training curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from coalmine.drawing import numbers
from coalmine.drawing.charts import BOUND, ESTIMATE, INK, INSERTED, LINE, THEORY, Figure, unit
from coalmine.results.summary import number

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
