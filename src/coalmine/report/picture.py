"""The one picture: what was promised, proved and estimated, for every adversary on one axis.

Bounds that hold and estimates differ in shape, color and words. Rows are grouped by what their ε is about.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coalmine.drawing import numbers
from coalmine.drawing.charts import BOUND, ESTIMATE, INK, LINE, MUTED, PAPER, REFUTED, THEORY, Figure, unit
from coalmine.results.groups import Group, Row

_PROVED = "valid bound: ε is proved to be at least this"
_GUESSED = "estimate, with its interval: may be off either way"
_PROMISED = "promise of theory: ε is at most this"
_ROW, _HEADER = 50, 44
_WIDE = 560
"""From this width on there is room for numbers beside the names."""


def picture(found: Sequence[Group]) -> Figure:
    """Promise, bound and estimate of every adversary on one axis, grouped by what their ε is about."""
    top, texts, bars, marks, intervals, cut = 0.0, [], [], [], [], []
    end = _end(found)
    for group in found:
        top += _HEADER
        texts.append({"y": top - 12, "header": group.title})
        for row in group.rows:
            label, strip = top + 14, top + 31
            texts.append(
                {"y": label, "label": row.adversary, "numbers": f"{row.audit}: {_numbers(row)}", "strip": strip}
            )
            for kind, value in ((_GUESSED, row.estimate), (_PROMISED, row.promise), (_PROVED, row.bound)):
                if value is not None and math.isfinite(value):
                    marks.append({"y": strip, "kind": kind, "epsilon": value, "who": f"{row.audit}: {row.view}"})
            if row.bound is not None and math.isfinite(row.bound):
                bars.append({"y": strip, "zero": 0, "bound": row.bound, "refuted": row.refuted})
            if row.low is not None and row.high is not None and row.high > row.low:
                intervals.append({"y": strip, "low": min(row.low, end), "high": min(row.high, end)})
                cut += [{"y": strip, "end": end}] if row.high > end else []
            top += _ROW
    y = {
        "field": "y",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [0, top], "range": [0, top], "nice": False},
    }
    x = {
        "type": "quantitative",
        # Room for half a mark at both ends: one at ε = 0 stays right of the axis.
        "scale": {"domain": [0, end], "nice": False, "zero": False, "padding": 9},
        "axis": {"title": "ε (smaller is more private)", "tickCount": 8, "orient": "bottom"},
    }
    scale = {"domain": [_PROVED, _GUESSED, _PROMISED]}
    legend = {"title": None, "symbolSize": 120, "symbolStrokeWidth": 2, "orient": "top", "columns": 1}
    layers = [
        _on(
            [t for t in texts if "strip" in t],
            {"type": "rule", "color": LINE, "strokeWidth": 1},
            {"y": y | {"field": "strip"}, "x": {"value": 0}, "x2": {"value": {"expr": "width"}}},
        ),
        _on(
            bars,
            {"type": "bar", "height": 9},
            {
                "y": y,
                "x": x | {"field": "zero"},
                "x2": {"field": "bound"},
                "color": {"condition": {"test": "datum.refuted", "value": REFUTED}, "value": BOUND},
                "opacity": {"condition": {"test": "datum.refuted", "value": 0.8}, "value": 0.28},
            },
        ),
        _on(
            intervals,
            {"type": "rule", "color": ESTIMATE, "strokeWidth": 2},
            {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}},
        ),
        _on(
            cut,
            {"type": "point", "shape": "triangle-right", "size": 70, "filled": True, "color": ESTIMATE, "opacity": 1},
            {"y": y, "x": x | {"field": "end"}},
        ),
        _on(
            marks,
            {"type": "point", "size": 120, "strokeWidth": 2, "opacity": 1},
            {
                "y": y,
                "x": x | {"field": "epsilon"},
                "shape": {
                    "field": "kind",
                    "type": "nominal",
                    "scale": scale
                    | {"range": ["triangle-right", "circle", "M-0.12,-1.1L0.12,-1.1L0.12,1.1L-0.12,1.1Z"]},
                    "legend": legend,
                },
                "fill": {
                    "field": "kind",
                    "type": "nominal",
                    "scale": scale | {"range": [BOUND, PAPER, THEORY]},
                    "legend": legend,
                },
                "stroke": {
                    "field": "kind",
                    "type": "nominal",
                    "scale": scale | {"range": [BOUND, ESTIMATE, THEORY]},
                    "legend": legend,
                },
                "tooltip": [
                    {"field": "who", "type": "nominal", "title": "audit"},
                    {"field": "kind", "type": "nominal", "title": "what it is"},
                    {"field": "epsilon", "type": "quantitative", "title": "ε", "format": ".3f"},
                ],
            },
        ),
        _on(
            [t for t in texts if "header" in t],
            {
                "type": "text",
                "align": "left",
                "fontWeight": 600,
                "fontSize": 13,
                "color": INK,
                "limit": {"expr": "width"},
            },
            {"y": y, "x": {"value": 0}, "text": {"field": "header", "type": "nominal"}},
        ),
        _on(
            [t for t in texts if "label" in t],
            {"type": "text", "align": "left", "fontSize": 12, "color": INK, "limit": {"expr": "width"}},
            {"y": y, "x": {"value": 0}, "text": {"field": "label", "type": "nominal"}},
        ),
        _on(
            [t for t in texts if "label" in t],
            {
                "type": "text",
                "align": "right",
                "fontSize": 12,
                "color": MUTED,
            },
            {"y": y, "x": {"value": {"expr": "width"}}, "text": {"field": "shown", "type": "nominal"}},
        )
        | {"transform": [{"calculate": f"width > {_WIDE} ? datum.numbers : ''", "as": "shown"}]},
    ]
    spec = unit([], layers, height=round(top))
    return Figure(
        name="answer",
        title="Promised, proved, estimated.",
        caption=" ".join(_how_to_read(found, cut=bool(cut))),
        sentence=" ".join(_told(row, group) for group in found for row in group.rows),
        chart=spec,
    )


def _how_to_read(found: Sequence[Group], *, cut: bool) -> Iterator[str]:
    yield "One row for each adversary, grouped by what its ε is about: only rows of one group can be compared."
    if any(row.overshoots for group in found for row in group.rows):
        yield "Estimates may exceed the truth, and so the promise: only a bound refutes it."
    if cut:
        yield "An arrow at the right end: the interval goes on."


def _end(found: Sequence[Group]) -> float:
    """Where the axis ends: all points are on it, long intervals are cut."""
    values = [v for g in found for row in g.rows for v in (row.bound, row.estimate, row.promise)]
    return 1.06 * max([1.0, *(value for value in values if value is not None and math.isfinite(value))])


def _on(data: Sequence[Mapping[str, Any]], mark: Mapping[str, Any], encoding: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": {"values": list(data)}, "mark": mark, "encoding": encoding}


def _numbers(row: Row) -> str:
    parts = [
        ("proved ≥", row.bound),
        ("estimated ≈", row.estimate),
        ("promised ≤", row.promise),
    ]
    shown = [f"{words} {numbers.epsilon(value)}" for words, value in parts if value is not None]
    return ("REFUTED: " if row.refuted else "") + " · ".join(shown)


def _told(row: Row, group: Group) -> str:
    return f"{row.audit}, {row.view}, ε of {group.about}: {_numbers(row)}."
