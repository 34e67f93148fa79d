"""The first picture: claim, lower bound and best guess of every adversary on one axis.

Bounds and estimates differ in shape, color and words. Rows are grouped by unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coalmine.drawing import numbers
from coalmine.drawing.charts import BOUND, ESTIMATE, INK, LINE, MUTED, PAPER, REFUTED, THEORY, Figure, unit
from coalmine.results.groups import Group
from coalmine.results.result import AuditResult
from coalmine.results.verdict import Verdict

_BOUND = "lower bound: ε is at least this"
_GUESS = "best guess and interval (an estimate)"
_CLAIM = "claimed ε: at most this"
_ROW, _HEADER = 50, 44
_WIDE = 700
"""From this width on there is room for numbers beside the names."""


def picture(groups: Sequence[Group]) -> Figure:
    """Return the figure of all results, grouped by unit."""
    top, texts, bars, marks, intervals, cut = 0.0, [], [], [], [], []
    end = _end(groups)
    for group in groups:
        top += _HEADER
        texts.append({"y": top - 12, "header": group.title})
        for result in group.results:
            label, strip = top + 14, top + 31
            numbers_text = f"{result.method}: {_numbers(result)}"
            texts.append({"y": label, "label": result.adversary, "numbers": numbers_text, "strip": strip})
            claim, bound, guess = _figures(result)
            for kind, value in ((_GUESS, guess), (_CLAIM, claim), (_BOUND, bound)):
                if value is not None and math.isfinite(value):
                    marks.append(
                        {"y": strip, "kind": kind, "epsilon": value, "who": f"{result.method}: {result.label}"}
                    )
            if bound is not None and math.isfinite(bound):
                bars.append({"y": strip, "zero": 0, "bound": bound, "refuted": result.verdict is Verdict.REFUTED})
            best = result.best_guess
            if best is not None and best.lower is not None and best.upper is not None and best.upper > best.lower:
                intervals.append({"y": strip, "low": min(best.lower, end), "high": min(best.upper, end)})
                cut += [{"y": strip, "end": end}] if best.upper > end else []
            top += _ROW
    y = {
        "field": "y",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [0, top], "range": [0, top], "nice": False},
    }
    x = {
        "type": "quantitative",
        # Half a mark of padding at both ends, so that one at ε = 0 is drawn whole.
        "scale": {"domain": [0, end], "nice": False, "zero": False, "padding": 9},
        "axis": {"title": "ε (smaller is more private)", "tickCount": 8, "orient": "bottom"},
    }
    scale = {"domain": [_BOUND, _GUESS, _CLAIM]}
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
                    {"field": "who", "type": "nominal", "title": "method"},
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
        title="ε: claimed, lower bound and best guess.",
        caption=" ".join(_how_to_read(groups, cut=bool(cut))),
        sentence=" ".join(_described(result, group) for group in groups for result in group.results),
        chart=spec,
    )


def _how_to_read(groups: Sequence[Group], *, cut: bool) -> Iterator[str]:
    yield "One row per adversary, grouped by unit: only rows of the same group are comparable."
    if any(_overshoots(result) for group in groups for result in group.results):
        yield "An estimate above the claim does not refute it; only a lower bound does."
    if cut:
        yield "An arrow at the right end means that the interval continues."


def _overshoots(result: AuditResult) -> bool:
    """Whether the best guess exceeds the claim."""
    claim, _, guess = _figures(result)
    return claim is not None and guess is not None and guess > claim


def _end(groups: Sequence[Group]) -> float:
    """Return where the axis ends: all points are on it, long intervals are cut."""
    values = [value for group in groups for result in group.results for value in _figures(result)]
    return 1.06 * max([1.0, *(value for value in values if value is not None and math.isfinite(value))])


def _figures(result: AuditResult) -> tuple[float | None, float | None, float | None]:
    """Return the claim, the lower bound and the best guess of a result."""
    return (
        None if result.theory is None else result.theory.epsilon,
        None if result.decisive is None else result.decisive.epsilon,
        None if result.best_guess is None else result.best_guess.epsilon,
    )


def _on(data: Sequence[Mapping[str, Any]], mark: Mapping[str, Any], encoding: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": {"values": list(data)}, "mark": mark, "encoding": encoding}


def _numbers(result: AuditResult) -> str:
    claim, bound, guess = _figures(result)
    parts = [("lower bound ≥", bound), ("best guess ≈", guess), ("claimed ≤", claim)]
    shown = [f"{words} {numbers.epsilon(value)}" for words, value in parts if value is not None]
    return ("REFUTED: " if result.verdict is Verdict.REFUTED else "") + " · ".join(shown)


def _described(result: AuditResult, group: Group) -> str:
    return f"{result.method}, {result.label}, {group.title}: {_numbers(result)}."
