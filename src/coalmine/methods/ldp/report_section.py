"""The LDP audit's part of the report: one panel per adversary, and a table of all lower bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from coalmine.drawing import numbers
from coalmine.drawing.charts import BOUND, ESTIMATE, THEORY, Figure, placed, unit
from coalmine.drawing.html import Html, joined, paragraphs, table, tag
from coalmine.drawing.sections import Part, warning_list
from coalmine.methods.ldp.settings import adversary_name
from coalmine.methods.ldp.tables import summary
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import share_of_claim

_KINDS = ("lower bound", "estimate")


def report_part(method_results: MethodResults) -> Part:
    """Return the summary, the panels, the table of lower bounds and the warnings."""
    results = method_results.results
    panels = adversary_panels(results)
    warnings = dict.fromkeys(str(warning) for result in results for warning in result.warnings)
    html = joined(
        [
            paragraphs([method_results.summary or summary(results)]),
            tag("div", {"class": "panels"}, *map(placed, panels)),
            _bound_table(results),
            warning_list(list(warnings)),
        ]
    )
    return Part(html=html, figures=panels)


def adversary_panels(results: Sequence[Result]) -> list[Figure]:
    """Return one panel per adversary: ε found against ε claimed."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(adversary_name(result.variant), []).append(result)
    largest = max(float(result.config["epsilon"]) for result in results)
    scale = {"domain": [0, 1.1 * largest], "nice": False}
    return [_panel(name, group, scale, f"ldp-{i + 1}") for i, (name, group) in enumerate(groups.items())]


def _panel(adversary: str, results: Sequence[Result], scale: Mapping[str, Any], name: str) -> Figure:
    points = [
        {"claimed": float(result.config["epsilon"]), "value": value, "kind": kind, "view": result.view}
        for result in results
        for kind, value in zip(_KINDS, (result.joint_bound, result.metrics["empirical"]), strict=True)
        if value is not None and math.isfinite(value)
    ]
    diagonal = [{"claimed": x, "value": x} for x in (0.0, *(float(result.config["epsilon"]) for result in results))]
    x = {"field": "claimed", "type": "quantitative", "title": "claimed ε", "scale": scale}
    y = {"field": "value", "type": "quantitative", "title": "ε found", "scale": scale}
    legend = {"field": "kind", "type": "nominal", "legend": {"title": None, "columns": 2}}
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": diagonal},
            "mark": {"type": "line", "strokeDash": [6, 4], "color": THEORY, "strokeWidth": 2, "clip": True},
            "encoding": {"x": x, "y": y},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.9, "clip": True},
            "encoding": {
                "x": x,
                "y": y,
                "shape": {**legend, "scale": {"domain": _KINDS, "range": ["triangle-up", "circle"]}},
                "color": {**legend, "scale": {"domain": _KINDS, "range": [BOUND, ESTIMATE]}},
                "tooltip": [
                    {"field": field, "type": kind}
                    for field, kind in (("view", "nominal"), ("kind", "nominal"), ("value", "quantitative"))
                ],
            },
        },
    ]
    largest = max(share_of_claim(result) for result in results)
    return Figure(
        name=name,
        title=f"{adversary}.",
        caption="Dashed: all of the claimed ε.",
        sentence=f"{adversary}: the largest of {len(results)} lower bounds shows {100 * largest:.0f}% of its claim.",
        chart=unit(points, layers, height=190),
    )


def _bound_table(results: Sequence[Result]) -> Html:
    """Return all joint lower bounds, with ε_empirical next to each."""
    views = list(dict.fromkeys(result.view for result in results))
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        bound, estimate = numbers.epsilon(result.joint_bound), numbers.epsilon(result.metrics["empirical"])
        text = f"≥ {bound} (≈ {estimate}){' refuted' if result.refuted else ''}"
        cells.setdefault(result.variant, {})[result.view] = text
    rows = [[variant, *(by_view.get(view, "–") for view in views)] for variant, by_view in cells.items()]
    caption = "Lower bounds that hold jointly; the paper's estimate in parentheses"
    return table(caption, ["adversary", *views], rows)
