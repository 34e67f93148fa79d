"""All charts of the report, as Vega-Lite specifications: the page draws them with Vega, notebooks with altair.

A chart is data in, specification out; titles, captions and descriptions are in the templates. Colors are CSS variables
of the page (``var(--bound)``), so that its style sheet decides between light, dark and print. A chart outside the page
gets the light ones (`as_altair`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.errors import InputError
from coalmine.files import write_whole
from coalmine.results import summary as words
from coalmine.results.result import Result, from_json
from coalmine.results.tables import Group, epsilons
from coalmine.stats import CosineNull, Null
from coalmine.stats.nulls import parse_null
from coalmine.stats.scores import epsilon_by_threshold

Spec = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""

Rows = Sequence[Mapping[str, Any]]
"""A table of data, one mapping per row."""

COLORS = {
    "paper": ("#ffffff", "#14181d"),
    "ink": ("#1b2330", "#e7eaee"),
    "muted": ("#55606e", "#a9b2bd"),
    "line": ("#dde2e8", "#343b45"),
    "claim": ("#4b5563", "#c3c9d1"),
    "bound": ("#1760a8", "#76b5f2"),
    "estimate": ("#b45309", "#f0a85a"),
    "inserted": ("#0f766e", "#4fd1c0"),
    "held-out": ("#7b8494", "#8d96a3"),
    "refuted": ("#b3261e", "#ff8f86"),
}
"""The page's colors by name: on a light and on a dark background. Tests check their contrast."""

PAPER, INK, MUTED, LINE, CLAIM, BOUND, ESTIMATE, INSERTED, HELD_OUT, REFUTED = (f"var(--{name})" for name in COLORS)

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', sans-serif"
_HERE = "here"  # the data source of the threshold that the reader has chosen; page.js replaces its row


# Building blocks


def chart(data: Rows, layers: Sequence[Spec], *, height: float, **more: Any) -> Spec:
    """Return layers over one table, as wide as their container, with the legend above."""
    return {
        "data": {"values": list(data)},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {"legend": {"orient": "top", "direction": "horizontal", "columns": 1, "offset": 6}},
        "layer": list(layers),
        **more,
    }


def layer(mark: str, style: Mapping[str, Any], *, data: Rows | None = None, name: str = "", **channels: Any) -> Spec:
    """Return one layer: a mark with its style, and what each channel (x, y, color, …) shows.

    Args:
        mark: Kind of mark, such as ``"line"``.
        style: Properties of the mark.
        data: A table of its own, if not that of the whole chart.
        name: Name of that table, if the page's script changes it.
        channels: The channels.
    """
    source: Spec = {} if data is None else {"data": {"values": list(data), **({"name": name} if name else {})}}
    return {**source, "mark": {"type": mark, **style}, "encoding": channels}


def number(field: str, title: str | None = None, **more: Any) -> Spec:
    """Return a channel that shows a number."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def kinds(values: Mapping[str, Any], **legend: Any) -> Spec:
    """Return a channel that shows the field ``kind`` by a value of its own, such as a color, with a legend."""
    scale = {"domain": list(values), "range": list(values.values())}
    return {"field": "kind", "type": "nominal", "scale": scale, "legend": {"title": None, **legend}}


def short(value: float) -> float:
    """Round to what a chart can show, to keep the page small."""
    return float(f"{value:.5g}")


def theme() -> Spec:
    """Return the theme of all charts: no background, quiet axes, the page's font."""
    text = {"labelFont": _FONT, "titleFont": _FONT, "titleColor": MUTED, "titleFontWeight": "normal"}
    quiet = {"domainColor": LINE, "tickColor": LINE, "gridColor": LINE, "gridOpacity": 0.7}
    sizes = {"labelFontSize": 11, "titleFontSize": 12, "labelOverlap": "greedy", "labelSeparation": 8}
    return {
        "background": "transparent",
        "aria": False,  # the container of a figure carries its description
        "font": _FONT,
        "view": {"stroke": None},
        "text": {"color": INK, "font": _FONT, "fontSize": 12},
        "title": {"color": INK, "subtitleColor": MUTED, "font": _FONT, "anchor": "start", "fontSize": 13},
        "axis": {**text, **quiet, **sizes, "labelColor": MUTED},
        "header": {**text, "labelColor": INK},
        "legend": {**text, "labelColor": INK, "labelFontSize": 12, "labelLimit": 300},
    }


# The evidence: claim, lower bound and best guess of every adversary


_BOUND, _REFUTED = "lower bound: ε is at least this", "lower bound where the claim is refuted"
_GUESS, _CLAIM = "best guess and interval (an estimate)", "claimed ε: at most this"
_BAR = "M-0.12,-1.1L0.12,-1.1L0.12,1.1L-0.12,1.1Z"  # an upright bar as an SVG path
_LOOKS = {  # shape, fill and stroke
    _BOUND: ("triangle-right", BOUND, BOUND),
    _REFUTED: ("triangle-right", REFUTED, REFUTED),
    _GUESS: ("circle", PAPER, ESTIMATE),
    _CLAIM: (_BAR, CLAIM, CLAIM),
}
_ROW, _HEADER = 50, 44  # heights in pixels
_LONGEST = 2.5  # intervals that end beyond this many times the largest point are cut, so that points stay apart
_CHARACTER = 6.6  # width of a character of a label in pixels, on average and rounded up


def evidence(groups: Sequence[Group]) -> Spec:
    """Return claim, lower bound and best guess of all results on one axis, grouped by unit."""
    headers: list[Spec] = []
    labels: list[Spec] = []
    bars: list[Spec] = []
    intervals: list[Spec] = []
    marks: list[Spec] = []
    top = 0
    for group in groups:
        top += _HEADER
        headers.append({"y": top - 12, "text": group.title})
        for result in group.results:
            strip = top + 31
            top += _ROW
            about = f"{result.method}: {in_numbers(result)}"
            labels.append({"y": strip - 17, "strip": strip, "text": result.adversary, "numbers": about})
            claim, bound, guess = epsilons(result)
            bound_kind = _REFUTED if result.refuted else _BOUND
            for kind, epsilon in ((_GUESS, guess), (_CLAIM, claim), (bound_kind, bound)):
                # JSON has no infinity.
                if epsilon is None or not math.isfinite(epsilon):
                    continue
                who = f"{result.method}: {result.label}"
                marks.append({"y": strip, "kind": kind, "epsilon": epsilon, "who": who})
                if kind == bound_kind:
                    bars.append({"y": strip, "zero": 0, "epsilon": epsilon, "refuted": result.refuted})
            best = result.best_guess
            if best is not None and best.lower is not None and best.upper is not None:
                intervals.append({"y": strip, "low": best.lower, "epsilon": best.upper})

    # All points are on the axis, and intervals unless they would squeeze the points: those are cut, with an arrow.
    farthest = max([1.0, *(mark["epsilon"] for mark in marks)])
    end = 1.06 * max([farthest, *(row["epsilon"] for row in intervals if row["epsilon"] <= _LONGEST * farthest)])
    arrows = [{"y": row["y"], "epsilon": end} for row in intervals if row["epsilon"] > end]
    for row in intervals:
        row["low"], row["epsilon"] = min(row["low"], end), min(row["epsilon"], end)

    # Rows are placed in pixels: every row has a line of text above its marks.
    y = number("y", axis=None, scale={"domain": [0, top], "range": [0, top], "nice": False})
    # Half a mark of padding at both ends, so that one at ε = 0 is drawn whole.
    scale = {"domain": [0, end], "nice": False, "zero": False, "padding": 9}
    x = number("epsilon", "ε (smaller is more private)", scale=scale, axis={"tickCount": 8, "orient": "bottom"})
    shown = [kind for kind in _LOOKS if any(mark["kind"] == kind for mark in marks)]
    legend = {"symbolSize": 120, "symbolStrokeWidth": 2}
    shape, fill, stroke = (kinds({kind: _LOOKS[kind][i] for kind in shown}, **legend) for i in range(3))
    names = [{"field": "who", "title": "method"}, {"field": "kind", "title": "what it is"}]
    tooltip = [*names, number("epsilon", "ε", format=".3f")]
    left = {"align": "left", "color": INK, "limit": {"expr": "width"}}
    text = {"field": "text", "type": "nominal"}
    # Without room for the numbers beside every label, as on phones, there are none: the table has them.
    needed = _CHARACTER * max((len(row["text"]) + len(row["numbers"]) + 3 for row in labels), default=0)
    fitting = {"calculate": f"width > {needed:.0f} ? datum.numbers : ''", "as": "text"}
    numbers = layer("text", {"align": "right", "color": MUTED}, data=labels, y=y, x={"value": {"expr": "width"}})
    across: Spec = {"x": {"value": 0}, "x2": {"value": {"expr": "width"}}}
    red = {"condition": {"test": "datum.refuted", "value": REFUTED}, "value": BOUND}
    strong = {"condition": {"test": "datum.refuted", "value": 0.8}, "value": 0.28}
    arrow = {"shape": "triangle-right", "size": 70, "filled": True, "color": ESTIMATE, "opacity": 1}
    mark = {"size": 120, "strokeWidth": 2, "opacity": 1}
    looks: Spec = {"shape": shape, "fill": fill, "stroke": stroke, "tooltip": tooltip}
    at_low, to_end = {**x, "field": "low"}, {"field": "epsilon"}
    layers = [
        layer("rule", {"color": LINE}, data=labels, y={**y, "field": "strip"}, **across),
        layer("bar", {"height": 9}, data=bars, y=y, x={**x, "field": "zero"}, x2=to_end, color=red, opacity=strong),
        layer("rule", {"color": ESTIMATE, "strokeWidth": 2}, data=intervals, y=y, x=at_low, x2=to_end),
        layer("point", arrow, data=arrows, y=y, x=x),
        layer("point", mark, data=marks, y=y, x=x, **looks),
        layer("text", {**left, "fontWeight": 600, "fontSize": 13}, data=headers, y=y, x={"value": 0}, text=text),
        layer("text", left, data=labels, y=y, x={"value": 0}, text=text),
        {**numbers, "transform": [fitting], "encoding": {**numbers["encoding"], "text": text}},
    ]
    return chart([], layers, height=top, usermeta={"cut": bool(arrows)})  # for the caption


def in_numbers(result: Result) -> str:
    """Return claim, bound and guess of a result in one line."""
    claim, bound, guess = epsilons(result)
    parts = [("lower bound ≥", bound), ("best guess ≈", guess), ("claimed ≤", claim)]
    shown = [f"{what} {words.number(value)}" for what, value in parts if value is not None]
    return ("REFUTED: " if result.refuted else "") + " · ".join(shown)


# The scores of one result, with a threshold to move


_STEPS = 120  # thresholds that the slider can take
_HEIGHT = 210
_DOT = {"size": 90, "filled": True, "color": ESTIMATE, "opacity": 1}  # the threshold that the reader has chosen


class ScoreCharts:
    """Histogram, ROC curve and ε by threshold of a result's scores, for thresholds that the reader moves through.

    The ε at a threshold is the log-ratio of two counted rates: an estimate, never a bound.

    Args:
        result: A result with scores of members and non-members.
    """

    def __init__(self, result: Result) -> None:
        scores = result.scores
        assert scores is not None
        assert scores.nonmembers is not None
        self.result, self.scores = result, scores
        self.null: Null | None = parse_null(result.null)
        self.members, self.nonmembers = scores.members.size, scores.observed.size
        thresholds, epsilons = epsilon_by_threshold(scores, delta=result.estimates[0].delta if result.estimates else 0)
        _, tp, fp = scores.all_counts
        # Thinned to what a slider can take, but always with the largest ε; from the lowest threshold up.
        kept = np.unique(np.linspace(0, thresholds.size - 1, _STEPS).round().astype(int))
        kept = np.union1d(kept, [int(np.argmax(epsilons))])[::-1]
        self.places = [
            {
                "threshold": float(thresholds[i]),
                "tp": int(tp[i]),
                "fp": int(fp[i]),
                # A logarithmic axis has no place for a rate of 0, and JSON none for infinity.
                "tpr": int(tp[i]) / self.members or None,
                "fpr": int(fp[i]) / self.nonmembers or None,
                "epsilon": short(float(epsilons[i])) if math.isfinite(epsilons[i]) else None,
            }
            for i in kept
        ]
        # Youden's J: where the two sides are furthest apart.
        self.start = int(np.argmax([(place["tpr"] or 0) - (place["fpr"] or 0) for place in self.places]))
        self._here: Spec = {"data": [self.places[self.start]], "name": _HERE}

    def histogram(self) -> Spec:
        """Return the histograms of both sides, with the null distribution where it is known."""
        members, others = self.scores.members, self.scores.observed
        low, high = min(members[0], others[0]), max(members[-1], others[-1])
        bins = min(28, max(6, round(1.5 * math.sqrt(min(members.size, others.size)))))
        edges = np.linspace(low, high, bins + 1) if low < high else np.array([low - 0.5, low + 0.5])
        data: list[Spec] = []
        for kind, values in zip(self.result.side_names, (members, others), strict=True):
            shares = np.histogram(values, edges)[0] / values.size
            for start, end, share in zip(edges, edges[1:], shares, strict=False):
                data.append({"score": short(start), "to": short(end), "share": short(share), "kind": kind})
        x = number("score", self.result.score_name, scale={"zero": False, "nice": False}, axis={"tickCount": 5})
        y = number("share", "share of scores", axis={"format": "%"}, stack=None)
        color = kinds(dict(zip(self.result.side_names, (INSERTED, HELD_OUT), strict=True)), columns=2)
        layers = [layer("bar", {"opacity": 0.6}, x=x, x2={"field": "to"}, y=y, y2={"datum": 0}, color=color)]
        if self.null is not None:
            # The share that a bar centered at t has in expectation: P(t - step/2 ≤ null < t + step/2).
            centers, half = np.linspace(edges[0], edges[-1], 121), (edges[1] - edges[0]) / 2
            ends = np.stack([centers - half, centers + half])
            if isinstance(self.null, CosineNull):
                ends = ends.clip(-1, 1)
            below = np.exp(self.null.log_cdf(ends))
            shares = np.maximum(below[1] - below[0], 0)
            expected = []
            for center, share in zip(centers, shares, strict=True):
                expected.append({"score": short(center), "share": short(share), "kind": "exact null"})
            stroke = kinds({"exact null": INK}, symbolType="stroke")
            layers.append(layer("line", {"strokeDash": [5, 3]}, data=expected, x=x, y=y, stroke=stroke))
        here = {**x, "field": "threshold"}
        layers.append(layer("rule", {"strokeWidth": 2, "color": ESTIMATE}, x=here, **self._here))
        return chart(data, layers, height=_HEIGHT, resolve={"scale": {"stroke": "independent"}})

    def roc(self) -> Spec:
        """Return TPR against FPR on logarithmic axes, with what the claim allows."""
        floor = 10.0 ** math.floor(math.log10(0.6 / max(self.members, self.nonmembers)))
        ticks = [10.0**k for k in range(round(math.log10(floor)), 1)]
        axis = {"values": ticks, "format": "~%"}
        x = number("fpr", "false positive rate", scale={"type": "log", "domain": [floor, 1], "nice": False}, axis=axis)
        # A little room above 100%: a claim that allows everything has its line there.
        scale = {"type": "log", "domain": [floor, 1.25], "nice": False}
        y = number("tpr", "true positive rate", scale=scale, axis=axis)
        looks = {"counted": (INSERTED, [1, 0]), "chance": (HELD_OUT, [2, 3])}
        lines = [{**place, "kind": "counted"} for place in self.places if place["fpr"] and place["tpr"]]
        lines += [{"fpr": t, "tpr": t, "kind": "chance"} for t in (floor, 1.0)]
        layers: list[Spec] = []
        claim = self.result.claim
        if claim is not None and math.isfinite(claim.epsilon):
            allowed = _most_allowed(claim.epsilon, claim.delta, floor)
            looks["claim allows"] = CLAIM, [1, 0]
            lines += [{**row, "kind": "claim allows"} for row in allowed]
            style = {"opacity": 0.16, "color": CLAIM, "clip": True}
            layers.append(layer("area", style, data=allowed, x=x, y=y, y2={"datum": floor}))
        if self.null is not None:
            looks["exact null"] = INK, [5, 3]
            exact = np.exp(self.null.log_sf(np.array([place["threshold"] for place in self.places])))
            for fpr, place in zip(exact.tolist(), self.places, strict=True):
                lines.append({"fpr": short(max(fpr, floor / 10)), "tpr": place["tpr"], "kind": "exact null"})
        style = {"strokeWidth": 1.75, "clip": True}
        layers.append(layer("line", style, x=x, y=y, order={"field": "threshold"}, **_stroke(looks, columns=2)))
        layers.append(layer("point", _DOT, x=x, y=y, **self._here))
        return chart(lines, layers, height=_HEIGHT)

    def by_threshold(self) -> Spec:
        """Return the estimated ε at each threshold, with the lower bound and the claim."""
        x = number("threshold", "threshold", scale={"zero": False, "nice": False}, axis={"tickCount": 5})
        y = number("epsilon", "ε")
        looks = {"estimate": (ESTIMATE, [1, 0])}
        lines = []
        for kind, level, color, dash in (
            ("lower bound", self.result.bound, BOUND, [1, 0]),
            ("claim", self.result.claim, CLAIM, [6, 4]),
        ):
            if level is not None and math.isfinite(level.epsilon):
                looks[kind] = color, dash
                lines.append({"epsilon": level.epsilon, "kind": kind})
        channels = _stroke(looks, columns=3)
        layers = [
            layer("line", {"strokeWidth": 1.5}, x=x, y=y, **channels),
            layer("rule", {"strokeWidth": 2}, data=lines, y=y, **channels),
            layer("point", _DOT, x=x, y=y, **self._here),
        ]
        return chart([{**place, "kind": "estimate"} for place in self.places], layers, height=_HEIGHT)


def _stroke(looks: Mapping[str, tuple[str, list[int]]], *, columns: int) -> Spec:
    """Return the channels of lines by kind: each has a color and a pattern of dashes."""
    legend = {"columns": columns, "symbolType": "stroke"}
    colors, dashes = ({kind: look[i] for kind, look in looks.items()} for i in (0, 1))
    return {"color": kinds(colors, **legend), "strokeDash": kinds(dashes, **legend)}


def _most_allowed(epsilon: float, delta: float, floor: float) -> list[Spec]:
    """Return the largest TPR that (ε, δ)-DP allows at each FPR: min(e^ε · FPR + δ, 1 − e^−ε (1 − δ − FPR))."""
    fpr = np.geomspace(floor, 1, 80)
    rising = np.exp(min(epsilon, 700)) * fpr + delta
    falling = 1 - np.exp(-epsilon) * (1 - delta - fpr)
    most = np.minimum(np.minimum(rising, falling), 1)
    return [{"fpr": short(f), "tpr": short(t)} for f, t in zip(fpr.tolist(), most.tolist(), strict=True)]


# Charts that methods fill with their data


def points(rows: Rows, *, x: str, y: str, claims: Rows = (), height: float = 200, square: bool = False) -> Spec:
    """Return lower bounds and estimates along some axis, with the claim as a dashed line.

    Args:
        rows: ``x`` (a number or a name), ``bound`` and ``estimate``; where known also the estimate's interval ``low``
            and ``high``, whether the claim is ``refuted``, and ``about``, what a mark is of. None for what is missing
            or infinite.
        x: Title of the horizontal axis.
        y: Title of the vertical axis.
        claims: ``x`` and ``claim`` along the line.
        height: Height in pixels.
        square: Whether both axes are ε and have the same scale.
    """
    marks = []
    for row in rows:
        bound = "refuting bound" if row.get("refuted") else "lower bound"
        for kind, epsilon in ((bound, row["bound"]), ("estimate", row["estimate"])):
            if epsilon is not None:
                marks.append({"x": row["x"], "epsilon": epsilon, "kind": kind, "about": row.get("about", "")})
    intervals = [row for row in rows if row.get("low") is not None and row.get("high") is not None]
    places = list(dict.fromkeys(row["x"] for row in (*rows, *claims)))
    values = [mark["epsilon"] for mark in marks] + [row["claim"] for row in claims] + [row["high"] for row in intervals]
    top = 1.05 * max([1.0, *values, *(places if square else ())])
    # From 0 on, and logarithmic above 1 where claims are large: they grow fast as noise shrinks.
    scale = {"domain": [-0.03 * top, top], "nice": False, "type": "symlog" if top > 20 else "linear"}
    up = number("epsilon", y, scale=scale)
    if square:
        across = number("x", x, scale=scale, axis={"tickCount": 6})
    elif all(isinstance(place, int | float) for place in places):
        low, high = min(places), max(places)
        wide = low > 0 and high >= 8 * low
        # The margins keep marks at the ends from being cut off; on a logarithmic axis they are factors.
        factor = (high / low) ** (1 / 12) if wide else 1.0
        margin = 0.0 if wide else (high - low or 1) / 12
        ends = [low / factor - margin, high * factor + margin]
        axis = {"grid": False, "values": places, "labelExpr": "format(datum.value, '~g')"}
        domain = {"domain": ends, "nice": False, "type": "log" if wide else "linear"}
        across = number("x", x, scale=domain, axis=axis)
    else:
        across = {"field": "x", "type": "nominal", "title": x, "sort": places, "axis": {"labelAngle": 0}}
    present = {mark["kind"] for mark in marks}
    shapes = {"lower bound": "triangle-up", "refuting bound": "triangle-up", "estimate": "circle"}
    colors = {"lower bound": BOUND, "refuting bound": REFUTED, "estimate": ESTIMATE}
    looks: Spec = {
        "shape": kinds({kind: shape for kind, shape in shapes.items() if kind in present}, columns=3),
        "color": kinds({kind: color for kind, color in colors.items() if kind in present}, columns=3),
        "tooltip": [{"field": "about"}, {"field": "kind"}, number("epsilon", "ε", format=".3f")],
    }
    dashed = {"strokeDash": [6, 4], "color": CLAIM, "strokeWidth": 2, "point": {"color": CLAIM, "size": 20}}
    rule, dot = {"color": ESTIMATE, "strokeWidth": 2}, {"filled": True, "size": 80, "opacity": 0.9}
    layers = [
        layer("line", dashed, data=claims, x=across, y={**up, "field": "claim"}),
        layer("rule", rule, data=intervals, x=across, y={**up, "field": "low"}, y2={"field": "high"}),
        layer("point", dot, x=across, y=up, **looks),
    ]
    return chart(marks, layers, height=height)


def heat_map(rows: Rows, *, x: str, y: str) -> Spec:
    """Return a cell for each row: ``x``, ``y``, ``share`` (0 to 1, its shade), ``text`` and ``details`` below it."""
    across = {"field": "x", "type": "nominal", "title": x, "axis": {"labelAngle": 0}, "sort": None}
    up = {"field": "y", "type": "nominal", "title": y, "sort": None}
    shade = number("share", scale={"domain": [0, 1], "range": [0.06, 0.75]}, legend=None)
    large, small = {"dy": -8, "fontSize": 14, "fontWeight": 600, "color": INK}, {"dy": 10, "fontSize": 11, "color": INK}
    layers = [
        layer("rect", {"color": ESTIMATE, "stroke": LINE}, x=across, y=up, fillOpacity=shade),
        layer("text", large, x=across, y=up, text={"field": "text"}),
        layer("text", small, x=across, y=up, text={"field": "details"}),
    ]
    return chart(rows, layers, height=max(190, 70 * len({row["y"] for row in rows})))


def curve(history: Rows, field: str, title: str) -> Spec | None:
    """Return a number of the training by round, or None if there are fewer than two: a table has a single one."""
    values = [(entry["round"] + 1, from_json(entry[field])) for entry in history if entry.get(field) is not None]
    drawn = [{"round": t, "value": value} for t, value in values if value is not None and math.isfinite(value)]
    if len(drawn) < 2:
        return None
    style = {"color": INSERTED, "strokeWidth": 2, "point": len(drawn) < 30 and {"color": INSERTED, "size": 30}}
    x, y = number("round", "round", axis={"tickMinStep": 1}), number("value", title, scale={"zero": False})
    return chart(drawn, [layer("line", style, x=x, y=y)], height=180)


# Outside the page


def as_altair(specs: Mapping[str, Spec]) -> Any:
    """Return charts below one another by their titles as one altair chart, on white, with the light colors."""
    import altair  # loaded only to draw

    parts = [{**spec, "title": title} for title, spec in specs.items()]
    settings = {**theme(), **parts[0].get("config", {}), "background": "#ffffff"}
    settings["legend"] = {**theme()["legend"], **settings["legend"]}
    for part in parts:
        if part.get("width") == "container":  # which only a page has
            part["width"] = 640
        part.pop("config", None)
        part.pop("autosize", None)
    content = parts[0] if len(parts) == 1 else {"vconcat": parts}
    text = json.dumps({"padding": 12, **content, "config": settings}).replace(_FONT, "sans-serif")
    text = text.replace(f', "name": "{_HERE}"', "")  # nothing moves, and names must be unique
    for name, (light, _) in COLORS.items():
        text = text.replace(f"var(--{name})", light)
    return altair.Chart.from_dict(json.loads(text))


FORMATS = (".html", ".svg", ".png")
"""File endings of charts; an .html file opens offline."""


def save(figure: Any, path: Path) -> Path:
    """Write an altair chart in the format of the file's ending.

    Raises:
        InputError: If the ending is none of `FORMATS`.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"a figure file must end in {', '.join(FORMATS)}, got {path.name!r}")
    options: dict[str, Spec] = {".html": {"inline": True}, ".svg": {}, ".png": {"scale_factor": 2}}
    ending = path.suffix.removeprefix(".")
    return write_whole(path, lambda temporary: figure.save(str(temporary), format=ending, **options[path.suffix]))
