"""The figure of a sweep: ε against a setting, with the claim's curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coalmine.drawing.charts import (
    BOUND,
    ESTIMATE,
    INK,
    PAPER,
    REFUTED,
    THEORY,
    Figure,
    layer,
    nominal,
    quantitative,
    short,
    standalone,
    unit,
)
from coalmine.errors import InputError
from coalmine.results.tables import epsilons

if TYPE_CHECKING:
    from coalmine.runs.sweep import Sweep, SweptResult

_CLAIM = "claimed ε: at most this"
_BOUND = "lower bound of one run: ε is at least this"
_REFUTED = "lower bound of a run that refutes its claim"
_GUESS = "best guess and interval (an estimate)"
_APART = 7  # pixels between the runs of a value
_LABEL = "format(datum.value, '~g')"  # as a format of the axis, "~g" would show 10 as 1e+1 on some scales
_TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def figure(sweep: Sweep) -> Any:
    """Return the altair chart of a sweep.

    Raises:
        InputError: If there is nothing to draw.
    """
    import altair  # loaded only to draw

    first = next(iter(sweep.axes))
    panels: dict[str, list[SweptResult]] = {}
    for row in sweep.rows:
        others = [f"{name} = {value}" for name, value in row.point.items() if name not in (first, "seed")]
        panels.setdefault(", ".join([row.result.method, row.result.label, *others]), []).append(row)
    if not panels:
        raise InputError("there is nothing to plot: the runs have no results")
    figures = [_panel(sweep, first, title, rows, legend=i == 0) for i, (title, rows) in enumerate(panels.items())]
    return altair.Chart.from_dict(standalone(figures))


def _panel(sweep: Sweep, axis: str, title: str, rows: Sequence[SweptResult], *, legend: bool) -> Figure:
    name = axis.rpartition(".")[2].replace("_", " ")
    points = [_point(row, axis) for row in rows]
    values = [number for point in points for number in point.values() if isinstance(number, float)]
    x, y = _x_axis(sweep.axes[axis], name), _y_axis(max([1.0, *values]))
    kinds = [kind for kind in (_CLAIM, _BOUND, _REFUTED, _GUESS) if any(kind in point for point in points)]
    # Runs of the same value stand beside one another, in the order of their seeds.
    beside: dict[Any, list[dict[str, Any]]] = {}
    for point in points:
        beside.setdefault(point["x"], []).append(point)
    width = max(map(len, beside.values()))
    columns = [
        ([points[i] for points in beside.values() if i < len(points)], _APART * (i - (width - 1) / 2))
        for i in range(width)
    ]
    layers = _curve(beside, x, y)
    for column, shift in columns:
        layers += _evidence(column, shift, x, y)
    layers.append(_legend(kinds, x, y, visible=legend))
    return Figure(
        name=f"sweep-{title}",
        title=f"ε against {name}: {title}",
        caption="The line connects the accountant's claims for each value. Every run has its own bound and interval.",
        sentence=f"ε against {name} for {title}.",
        chart=unit([], layers, height=240),
    )


def _point(row: SweptResult, axis: str) -> dict[str, Any]:
    """Return what is drawn of one result: numbers as floats, by the words of the legend."""
    from coalmine.runs.sweep import as_number

    claim, bound, guess = epsilons(row.result)
    best = row.result.best_guess
    kinds = {_CLAIM: claim, _REFUTED if row.result.refuted else _BOUND: bound, _GUESS: guess}
    interval = {} if best is None else {"low": best.lower, "high": best.upper}
    shown = {k: short(v) for k, v in {**kinds, **interval}.items() if v is not None and math.isfinite(v)}
    return {"x": as_number(row.point[axis]), "run": row.directory.name, **shown}


def _x_axis(texts: Sequence[str], title: str) -> dict[str, Any]:
    from coalmine.runs.sweep import as_number

    values = [as_number(text) for text in texts]
    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) < len(values):
        return {"field": "x", "type": "nominal", "sort": list(values), "title": title, "axis": {"labelAngle": 0}}
    wide = min(numbers) > 0 and max(numbers) >= 4 * min(numbers)
    scale = {"type": "log" if wide else "linear", "zero": False, "nice": False, "padding": 30}
    return quantitative("x", title, scale=scale, axis={"values": numbers, "labelExpr": _LABEL, "grid": False})


def _y_axis(largest: float) -> dict[str, Any]:
    """Return an axis that shows 0 and is logarithmic from about 1 on, since claims grow fast as noise shrinks."""
    end = 1.1 * largest
    scale = {"type": "symlog", "domain": [0, end], "nice": False}
    axis = {"values": [tick for tick in _TICKS if tick <= end], "labelExpr": _LABEL}
    return {"type": "quantitative", "scale": scale, "axis": axis, "title": "ε"}


def _curve(beside: Mapping[Any, Sequence[Mapping[str, Any]]], x: Any, y: Any) -> list[dict[str, Any]]:
    """Return the claim's line: at each value the largest claim of its runs, which usually are the same."""
    claims = [
        {"x": value, "claim": max(point[_CLAIM] for point in points if _CLAIM in point)}
        for value, points in beside.items()
        if any(_CLAIM in point for point in points)
    ]
    encoding = {"x": x, "y": {**y, "field": "claim"}}
    dots = {"size": 30, "filled": True, "color": THEORY, "opacity": 1}
    return [
        layer("line", {"color": THEORY, "strokeWidth": 2}, data=claims, **encoding),
        layer("point", dots, data=claims, **encoding, tooltip=[quantitative("claim", "claimed ε")]),
    ]


def _evidence(points: Sequence[Mapping[str, Any]], shift: float, x: Any, y: Any) -> list[dict[str, Any]]:
    """Return the marks of one run of each value, moved aside by so many pixels."""

    def at(field: str) -> dict[str, Any]:
        return {**y, "field": field}

    def marks(kind: str) -> dict[str, Any]:
        about = [{"field": "run", "type": "nominal"}, quantitative("value", kind, format=".3f")]
        data = [{"x": p["x"], "value": p[kind], "run": p["run"]} for p in points if kind in p]
        style = {**_STYLES[kind], "xOffset": shift}
        return layer("point", style, data=data, x=x, y=at("value"), tooltip=about)

    rules = [{"x": p["x"], "low": p["low"], "high": p["high"]} for p in points if "low" in p and "high" in p]
    interval = {"color": ESTIMATE, "strokeWidth": 1.5, "xOffset": shift}
    return [
        layer("rule", interval, data=rules, x=x, y=at("low"), y2={"field": "high"}),
        *(marks(kind) for kind in (_GUESS, _BOUND, _REFUTED)),
    ]


_MARK = {"size": 70, "opacity": 1, "strokeWidth": 1.5}
_STYLES: dict[str, dict[str, Any]] = {
    _CLAIM: {"shape": "stroke", "fill": THEORY, "stroke": THEORY},
    _BOUND: {**_MARK, "shape": "triangle-up", "fill": BOUND, "stroke": BOUND},
    _REFUTED: {**_MARK, "shape": "triangle-up", "fill": REFUTED, "stroke": REFUTED},
    _GUESS: {**_MARK, "shape": "circle", "fill": PAPER, "stroke": ESTIMATE},
}


def _legend(kinds: Sequence[str], x: Any, y: Any, *, visible: bool) -> dict[str, Any]:
    """Return a layer without marks that has the legend of all kinds in the panel."""
    style = {"symbolSize": 90, "symbolStrokeWidth": 2, "orient": "top", "columns": 2, "labelColor": INK}

    def channel(name: str) -> dict[str, Any]:
        by_kind = nominal("kind", {kind: _STYLES[kind][name] for kind in kinds}, **style)
        return by_kind if visible else {**by_kind, "legend": None}

    channels = {name: channel(name) for name in ("shape", "fill", "stroke")}
    return layer("point", {}, data=[], x=x, y={**y, "field": "value"}, **channels)
