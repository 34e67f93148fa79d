"""The first picture: claim, lower bound and best guess of every adversary on one axis.

Bounds and estimates differ in shape, color and words. Rows are grouped by unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coalmine.drawing import numbers
from coalmine.drawing.charts import (
    BOUND,
    ESTIMATE,
    INK,
    LINE,
    MUTED,
    PAPER,
    REFUTED,
    THEORY,
    Figure,
    Spec,
    layer,
    nominal,
    quantitative,
    unit,
)
from coalmine.results.result import Result
from coalmine.results.tables import Group, epsilons

_BOUND = "lower bound: ε is at least this"
_REFUTED = "lower bound where the claim is refuted"
_GUESS = "best guess and interval (an estimate)"
_CLAIM = "claimed ε: at most this"
_ROW, _HEADER = 50, 44
_LONGEST = 2.5
"""Intervals that end beyond this many times the largest point are cut."""
_CHARACTER = 6.6
"""Width of a character of a label in pixels, on average and rounded up."""

Row = tuple[float, Result]
"""A result, and how far down its strip is."""


def picture(groups: Sequence[Group]) -> Figure:
    """Return the figure of all results, grouped by unit."""
    top = 0.0
    headers, rows = [], []
    for group in groups:
        top += _HEADER
        headers.append({"y": top - 12, "header": group.title})
        for result in group.results:
            rows.append((top + 31, result))
            top += _ROW
    end = _end(groups)
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
    return Figure(
        name="answer",
        title="ε: claimed, lower bound and best guess.",
        caption=" ".join(_how_to_read(groups, end)),
        sentence=" ".join(_described(result, group) for group in groups for result in group.results),
        chart=unit([], [*_evidence(rows, x, y, end), *_labels(headers, rows, y)], height=round(top)),
    )


def _evidence(rows: Sequence[Row], x: Spec, y: Spec, end: float) -> list[dict[str, Any]]:
    """Return the layers of the strips: bars up to the bounds, intervals of the guesses, and a mark for each number."""
    bars, intervals, cut, marks = [], [], [], []
    for strip, result in rows:
        claim, bound, guess = epsilons(result)
        who = f"{result.method}: {result.label}"
        marks += [
            {"y": strip, "kind": kind, "epsilon": value, "who": who}
            for kind, value in ((_GUESS, guess), (_CLAIM, claim), (_REFUTED if result.refuted else _BOUND, bound))
            if value is not None and math.isfinite(value)
        ]
        if bound is not None and math.isfinite(bound):
            bars.append({"y": strip, "zero": 0, "bound": bound, "refuted": result.refuted})
        best = result.best_guess
        if best is not None and best.lower is not None and best.upper is not None and best.upper > best.lower:
            intervals.append({"y": strip, "low": min(best.lower, end), "high": min(best.upper, end)})
            cut += [{"y": strip, "end": end}] if best.upper > end else []

    def at(field: str) -> dict[str, Any]:
        return {**x, "field": field}

    def by_kind(bound: str, refuted: str, guess: str, claim: str) -> dict[str, Any]:
        legend = {"symbolSize": 120, "symbolStrokeWidth": 2, "orient": "top", "columns": 1}
        looks = {_BOUND: bound, _REFUTED: refuted, _GUESS: guess, _CLAIM: claim}
        if all(mark["kind"] != _REFUTED for mark in marks):
            del looks[_REFUTED]
        return nominal("kind", looks, **legend)

    lines = {"y": {**y, "field": "strip"}, "x": {"value": 0}, "x2": {"value": {"expr": "width"}}}
    interval = {"color": ESTIMATE, "strokeWidth": 2}
    arrow = {"shape": "triangle-right", "size": 70, "filled": True, "color": ESTIMATE, "opacity": 1}

    return [
        layer("rule", {"color": LINE, "strokeWidth": 1}, data=_texts(rows), **lines),
        layer(
            "bar",
            {"height": 9},
            data=bars,
            y=y,
            x=at("zero"),
            x2={"field": "bound"},
            color={"condition": {"test": "datum.refuted", "value": REFUTED}, "value": BOUND},
            opacity={"condition": {"test": "datum.refuted", "value": 0.8}, "value": 0.28},
        ),
        layer("rule", interval, data=intervals, y=y, x=at("low"), x2={"field": "high"}),
        layer("point", arrow, data=cut, y=y, x=at("end")),
        layer(
            "point",
            {"size": 120, "strokeWidth": 2, "opacity": 1},
            data=marks,
            y=y,
            x=at("epsilon"),
            shape=by_kind("triangle-right", "triangle-right", "circle", "M-0.12,-1.1L0.12,-1.1L0.12,1.1L-0.12,1.1Z"),
            fill=by_kind(BOUND, REFUTED, PAPER, THEORY),
            stroke=by_kind(BOUND, REFUTED, ESTIMATE, THEORY),
            tooltip=[
                {"field": "who", "type": "nominal", "title": "method"},
                {"field": "kind", "type": "nominal", "title": "what it is"},
                quantitative("epsilon", "ε", format=".3f"),
            ],
        ),
    ]


def _labels(headers: Sequence[Mapping[str, Any]], rows: Sequence[Row], y: Spec) -> list[dict[str, Any]]:
    """Return the layers of texts: a header for each group, and a label and the numbers for each row."""
    left = {"align": "left", "color": INK, "limit": {"expr": "width"}}
    header, label, shown = ({"field": name, "type": "nominal"} for name in ("header", "label", "shown"))
    return [
        layer("text", {**left, "fontWeight": 600, "fontSize": 13}, data=headers, y=y, x={"value": 0}, text=header),
        layer("text", {**left, "fontSize": 12}, data=_texts(rows), y=y, x={"value": 0}, text=label),
        layer(
            "text",
            {"align": "right", "fontSize": 12, "color": MUTED},
            data=_texts(rows),
            transform={"calculate": f"width > {_wide(rows)} ? datum.numbers : ''", "as": "shown"},
            y=y,
            x={"value": {"expr": "width"}},
            text=shown,
        ),
    ]


def _wide(rows: Sequence[Row]) -> int:
    """Return from which width on there is room for the numbers of all rows beside their labels."""
    longest = max((len(text["label"]) + len(text["numbers"]) for text in _texts(rows)), default=0)
    return round(_CHARACTER * (longest + 3))


def _texts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {"y": strip - 17, "label": result.adversary, "numbers": f"{result.method}: {_numbers(result)}", "strip": strip}
        for strip, result in rows
    ]


def _how_to_read(groups: Sequence[Group], end: float) -> Iterator[str]:
    yield "One row per adversary, grouped by unit: only rows of the same group are comparable."
    results = [result for group in groups for result in group.results]
    if any(_overshoots(result) for result in results):
        yield "An estimate above the claim does not refute it by itself; the test of the claim decides."
    if any(result.best_guess is not None and (result.best_guess.upper or 0.0) > end for result in results):
        yield "An arrow at the right end means that the interval continues."


def _overshoots(result: Result) -> bool:
    """Whether the best guess exceeds the claim."""
    claim, _, guess = epsilons(result)
    return claim is not None and guess is not None and guess > claim


def _end(groups: Sequence[Group]) -> float:
    """Return where the axis ends: all points are on it, and intervals unless they would squeeze the points."""
    results = [result for group in groups for result in group.results]
    values = [value for result in results for value in epsilons(result)]
    points = max([1.0, *(value for value in values if value is not None and math.isfinite(value))])
    ends = [result.best_guess.upper or 0.0 for result in results if result.best_guess is not None]
    return 1.06 * max([points, *(end for end in ends if end <= _LONGEST * points)])


def _numbers(result: Result) -> str:
    claim, bound, guess = epsilons(result)
    parts = [("lower bound ≥", bound), ("best guess ≈", guess), ("claimed ≤", claim)]
    shown = [f"{words} {numbers.epsilon(value)}" for words, value in parts if value is not None]
    return ("REFUTED: " if result.refuted else "") + " · ".join(shown)


def _described(result: Result, group: Group) -> str:
    return f"{result.method}, {result.label}, {group.title}: {_numbers(result)}."
