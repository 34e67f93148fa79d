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

from coalmine.arrays import Array
from coalmine.errors import InputError
from coalmine.files import write_whole
from coalmine.results import summary as words
from coalmine.results.result import Result, from_json
from coalmine.results.tables import Group
from coalmine.stats.nulls import Null, parse_null
from coalmine.stats.scores import Scores, epsilon_by_threshold

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


_TEXT = {"labelFont": _FONT, "titleFont": _FONT, "titleColor": MUTED, "titleFontWeight": "normal"}
_QUIET = {"domainColor": LINE, "tickColor": LINE, "gridColor": LINE, "gridOpacity": 0.7}
_SIZES = {"labelFontSize": 11, "titleFontSize": 12, "labelOverlap": "greedy", "labelSeparation": 8}

THEME: Spec = {
    "background": "transparent",
    "aria": False,  # the container of a figure carries its description
    "font": _FONT,
    "view": {"stroke": None},
    "text": {"color": INK, "font": _FONT, "fontSize": 12},
    "title": {"color": INK, "subtitleColor": MUTED, "font": _FONT, "anchor": "start", "fontSize": 13},
    "axis": {**_TEXT, **_QUIET, **_SIZES, "labelColor": MUTED},
    "header": {**_TEXT, "labelColor": INK},
    "legend": {**_TEXT, "labelColor": INK, "labelFontSize": 12, "labelLimit": 300},
}
"""The theme of all charts: no background, quiet axes, the page's font."""

_LEGEND = {"orient": "top", "direction": "horizontal", "columns": 1, "offset": 6}


def chart(data: Rows, layers: Sequence[Spec], *, height: float, **more: Any) -> Spec:
    """Return layers over one table, as wide as their container, with the legend above."""
    return {
        "data": {"values": list(data)},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {"legend": _LEGEND},
        "layer": list(layers),
        **more,
    }


def layer(mark: str, style: Mapping[str, Any], *, data: Rows | None = None, **channels: Any) -> Spec:
    """Return one layer: a mark with its style, and what each channel (x, y, color, …) shows.

    Args:
        mark: Kind of mark, such as ``"line"``.
        style: Properties of the mark.
        data: A table of its own, if not that of the whole chart.
        channels: The channels.
    """
    source: Spec = {} if data is None else {"data": {"values": list(data)}}
    return {**source, "mark": {"type": mark, **style}, "encoding": channels}


def number(field: str, title: str | None = None, **more: Any) -> Spec:
    """Return a channel that shows a number."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def kinds(channels: str, looks: Mapping[str, Sequence[Any]], rows: Rows, **legend: Any) -> Spec:
    """Return channels that show the field ``kind``, such as ``"shape color"``, with a legend.

    Args:
        channels: Names of the channels.
        looks: What each kind looks like in each of the channels, in the order of the legend.
        rows: The data. Kinds that are not in it are left out of the legend.
        legend: Properties of the legend.
    """
    present = {row["kind"] for row in rows}
    shown = [kind for kind in looks if kind in present]
    encoding = {}
    for i, channel in enumerate(channels.split()):
        scale = {"domain": shown, "range": [looks[kind][i] for kind in shown]}
        encoding[channel] = {"field": "kind", "type": "nominal", "scale": scale, "legend": {"title": None, **legend}}
    return encoding


def table(**columns: Any) -> list[Spec]:
    """Return columns as rows; a single value stands for a whole column.

    Rows that lack a number are left out, and so are those with an infinite one, which JSON cannot write.
    """
    arrays = np.broadcast_arrays(*map(np.asarray, columns.values()))
    rows = []
    for values in zip(*map(np.ndarray.tolist, arrays), strict=True):
        if not {None, math.inf, -math.inf}.intersection(values):
            rows.append(dict(zip(columns, values, strict=True)))
    return rows


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
    described: list[str] = []
    top = 0
    for group in groups:
        top += _HEADER
        headers.append({"y": top - 12, "text": group.title})
        for result in group.results:
            strip = top + 31
            top += _ROW
            claim, bound, guess, low, high = result.numbers.values()
            who, kind, prefix = f"{result.method}: {result.label}", _BOUND, ""
            if result.refuted:
                kind, prefix = _REFUTED, "REFUTED: "
            if not result.about_claim:  # what is not about the claimed ε is not put beside it
                claim = None
            marks += table(kind=[_GUESS, _CLAIM, kind], epsilon=[guess, claim, bound], y=strip, who=who)
            bars += table(epsilon=[bound], y=strip, zero=0, refuted=result.refuted)
            if low is not None and high is not None:
                intervals.append({"y": strip, "low": low, "epsilon": high})
            parts = (("lower bound ≥", bound), ("best guess ≈", guess), ("claimed ≤", claim))
            listed = [f"{what} {words.number(value)}" for what, value in parts if value is not None]
            numbers = prefix + " · ".join(listed)
            labels.append({"y": strip - 17, "strip": strip, "text": words.adversary(result)})
            labels[-1]["numbers"] = f"{result.method}: {numbers}"
            described.append(f"{result.method}, {result.label}, {group.title}: {numbers}.")

    # All points are on the axis, and intervals unless they would squeeze the points: those are cut, with an arrow.
    farthest = max([1.0, *(mark["epsilon"] for mark in marks)])
    highs = np.array([row["epsilon"] for row in intervals])
    end = 1.06 * float(highs[highs <= _LONGEST * farthest].max(initial=farthest))
    arrows = [{"y": row["y"], "epsilon": end} for row in intervals if row["epsilon"] > end]
    for row in intervals:
        row["low"], row["epsilon"] = min(row["low"], end), min(row["epsilon"], end)

    # Rows are placed in pixels: every row has a line of text above its marks.
    y = number("y", axis=None, scale={"domain": [0, top], "range": [0, top], "nice": False})
    # Half a mark of padding at both ends, so that one at ε = 0 is drawn whole.
    scale = {"domain": [0, end], "nice": False, "zero": False, "padding": 9}
    x = number("epsilon", "ε (smaller is more private)", scale=scale, axis={"tickCount": 8, "orient": "bottom"})
    looks = kinds("shape fill stroke", _LOOKS, marks, symbolSize=120, symbolStrokeWidth=2)
    names = [{"field": "who", "title": "method"}, {"field": "kind", "title": "what it is"}]
    looks["tooltip"] = [*names, number("epsilon", "ε", format=".3f")]
    left = {"align": "left", "color": INK, "limit": {"expr": "width"}}
    text = {"field": "text", "type": "nominal"}
    # Without room for the numbers beside every label, as on phones, there are none: the table has them.
    needed = _CHARACTER * max((len(row["text"]) + len(row["numbers"]) + 3 for row in labels), default=0)
    fitting = {"calculate": f"width > {needed:.0f} ? datum.numbers : ''", "as": "text"}
    right, at_right = {"align": "right", "color": MUTED}, {"value": {"expr": "width"}}
    red = {"condition": {"test": "datum.refuted", "value": REFUTED}, "value": BOUND}
    strong = {"condition": {"test": "datum.refuted", "value": 0.8}, "value": 0.28}
    arrow = {"shape": "triangle-right", "size": 70, "filled": True, "color": ESTIMATE, "opacity": 1}
    mark = {"size": 120, "strokeWidth": 2, "opacity": 1}
    at_low, to_end = {**x, "field": "low"}, {"field": "epsilon"}
    layers = [
        layer("rule", {"color": LINE}, data=labels, y={**y, "field": "strip"}, x={"value": 0}, x2=at_right),
        layer("bar", {"height": 9}, data=bars, y=y, x={**x, "field": "zero"}, x2=to_end, color=red, opacity=strong),
        layer("rule", {"color": ESTIMATE, "strokeWidth": 2}, data=intervals, y=y, x=at_low, x2=to_end),
        layer("point", arrow, data=arrows, y=y, x=x),
        layer("point", mark, data=marks, y=y, x=x, **looks),
        layer("text", {**left, "fontWeight": 600, "fontSize": 13}, data=headers, y=y, x={"value": 0}, text=text),
        layer("text", left, data=labels, y=y, x={"value": 0}, text=text),
        {**layer("text", right, data=labels, y=y, x=at_right, text=text), "transform": [fitting]},
    ]
    # For the caption and for readers who do not see the chart.
    return chart([], layers, height=top, usermeta={"cut": bool(arrows)}, description=" ".join(described))


# The scores of one result, with a threshold to move


_STEPS = 120  # thresholds that the slider can take
_HEIGHT = 210
_DOT = {"size": 90, "filled": True, "color": ESTIMATE, "opacity": 1}  # the threshold that the reader has chosen
_LINES = {  # color and dashes
    "counted": (INSERTED, [1, 0]),
    "chance": (HELD_OUT, [2, 3]),
    "claim allows": (CLAIM, [1, 0]),
    "exact null": (INK, [5, 3]),
    "estimate": (ESTIMATE, [1, 0]),
    "lower bound": (BOUND, [1, 0]),
    "claim": (CLAIM, [6, 4]),
}


class ScoreCharts:
    """Histogram, ROC curve and ε by threshold of a result's scores, for thresholds that the reader moves through.

    The ε at a threshold is the log-ratio of two counted rates: an estimate, never a bound.

    Args:
        result: A result.
        scores: Its scores, of members and non-members.
    """

    def __init__(self, result: Result, scores: Scores) -> None:
        self.result, self.scores = result, scores
        self.null: Null | None = parse_null(result.null)
        self.members, self.nonmembers = scores.members.size, scores.observed.size
        delta = result.estimates[0].delta if result.estimates else 0.0
        thresholds, by_threshold = epsilon_by_threshold(scores, delta=delta)
        _, tp, fp = scores.all_counts
        # Thinned to what a slider can take, but always with the largest ε; from the lowest threshold up.
        kept = np.unique(np.linspace(0, thresholds.size - 1, _STEPS).round().astype(int))
        kept = np.union1d(kept, [int(np.argmax(by_threshold))])[::-1]
        missing: Any = None  # a logarithmic axis has no place for a rate of 0, and JSON none for infinity
        columns: dict[str, Array] = {
            "threshold": thresholds,
            "tp": tp,
            "fp": fp,
            "tpr": np.where(tp > 0, tp / self.members, missing),
            "fpr": np.where(fp > 0, fp / self.nonmembers, missing),
            "epsilon": np.where(np.isfinite(by_threshold), by_threshold, missing),
        }
        rows = zip(*(column[kept].tolist() for column in columns.values()), strict=True)
        self.places = [dict(zip(columns, row, strict=True)) for row in rows]
        # Youden's J: where the two sides are furthest apart.
        self.start = int(np.argmax((tp / self.members - fp / self.nonmembers)[kept]))
        self._here: Spec = {"data": {"values": [self.places[self.start]], "name": _HERE}}

    def histogram(self) -> Spec:
        """Return the histograms of both sides, with the null distribution where it is known."""
        members, others = self.scores.members, self.scores.observed
        bins = min(28, max(6, round(1.5 * math.sqrt(min(members.size, others.size)))))
        edges = np.histogram_bin_edges(np.concatenate([members, others]), bins)
        data: list[Spec] = []
        for kind, values in zip(self.result.side_names, (members, others), strict=True):
            shares = np.histogram(values, edges)[0] / values.size
            data += table(score=edges[:-1], to=edges[1:], share=shares, kind=kind)
        x = number("score", self.result.score_name, scale={"zero": False, "nice": False}, axis={"tickCount": 5})
        y = number("share", "share of scores", axis={"format": "%"}, stack=None)
        looks = dict(zip(self.result.side_names, ((INSERTED,), (HELD_OUT,)), strict=True))
        color = kinds("color", looks, data, columns=2)
        layers = [layer("bar", {"opacity": 0.6}, x=x, x2={"field": "to"}, y=y, y2={"datum": 0}, **color)]
        if self.null is not None:
            # The share that a bar from t on has in expectation, P(t ≤ null < t + width), drawn at its middle.
            starts = np.linspace(edges[0], edges[-2], 121)
            ends = np.minimum(starts + edges[1] - edges[0], edges[-1])
            shares = np.exp(self.null.log_cdf(ends)) - np.exp(self.null.log_cdf(starts))
            expected = table(score=(starts + ends) / 2, share=shares.clip(min=0), kind="exact null")
            stroke = kinds("stroke", {"exact null": (INK,)}, expected, symbolType="stroke")
            layers.append(layer("line", {"strokeDash": [5, 3]}, data=expected, x=x, y=y, **stroke))
        layers.append(layer("rule", {"strokeWidth": 2, "color": ESTIMATE}, x={**x, "field": "threshold"}) | self._here)
        return chart(data, layers, height=_HEIGHT, resolve={"scale": {"stroke": "independent"}})

    def roc(self) -> Spec:
        """Return TPR against FPR on logarithmic axes, with what the claim allows."""
        floor = 10.0 ** math.floor(math.log10(0.6 / max(self.members, self.nonmembers)))
        ticks = np.geomspace(floor, 1, round(-math.log10(floor)) + 1).tolist()
        axis = {"values": ticks, "format": "~%"}
        x = number("fpr", "false positive rate", scale={"type": "log", "domain": [floor, 1], "nice": False}, axis=axis)
        # A little room above 100%: a claim that allows everything has its line there.
        scale = {"type": "log", "domain": [floor, 1.25], "nice": False}
        y = number("tpr", "true positive rate", scale=scale, axis=axis)
        lines = [{**place, "kind": "counted"} for place in self.places]
        lines += table(fpr=[floor, 1.0], tpr=[floor, 1.0], kind="chance")
        allowed: list[Spec] = []
        claim = self.result.tested
        if claim is not None and math.isfinite(claim.epsilon):
            # (ε, δ)-DP allows TPR ≤ min(e^ε · FPR + δ, 1 − e^−ε (1 − δ − FPR)) (Kairouz, Oh & Viswanath, 2015).
            fpr = np.geomspace(floor, 1, 80)
            rising = np.exp(min(claim.epsilon, 700)) * fpr + claim.delta
            falling = 1 - np.exp(-claim.epsilon) * (1 - claim.delta - fpr)
            allowed = table(fpr=fpr, tpr=np.minimum(rising, falling).clip(max=1), kind="claim allows")
        if self.null is not None:
            thresholds = np.array([place["threshold"] for place in self.places])
            exact = np.exp(self.null.log_sf(thresholds)).clip(min=floor / 10)
            lines += table(fpr=exact, tpr=[place["tpr"] for place in self.places], kind="exact null")
        lines += allowed
        shade, line = {"opacity": 0.16, "color": CLAIM, "clip": True}, {"strokeWidth": 1.75, "clip": True}
        looks = kinds("color strokeDash", _LINES, lines, columns=2, symbolType="stroke")
        layers = [
            layer("area", shade, data=allowed, x=x, y=y, y2={"datum": floor}),
            layer("line", line, x=x, y=y, order={"field": "threshold"}, **looks),
            layer("point", _DOT, x=x, y=y) | self._here,
        ]
        return chart(lines, layers, height=_HEIGHT)

    def by_threshold(self) -> Spec:
        """Return the estimated ε at each threshold, with the lower bound and the claim."""
        x = number("threshold", "threshold", scale={"zero": False, "nice": False}, axis={"tickCount": 5})
        y = number("epsilon", "ε")
        bound, tested = self.result.numbers["lower_bound"], self.result.tested
        levels = table(kind=["lower bound", "claim"], epsilon=[bound, None if tested is None else tested.epsilon])
        estimates = [{**place, "kind": "estimate"} for place in self.places]
        looks = kinds("color strokeDash", _LINES, [*estimates, *levels], columns=3, symbolType="stroke")
        layers = [
            layer("line", {"strokeWidth": 1.5}, x=x, y=y, **looks),
            layer("rule", {"strokeWidth": 2}, data=levels, y=y, **looks),
            layer("point", _DOT, x=x, y=y) | self._here,
        ]
        return chart(estimates, layers, height=_HEIGHT)


# Charts that methods fill with their data


_POINTS = {  # shape and color
    "lower bound": ("triangle-up", BOUND),
    "lower bound, claim refuted": ("triangle-up", REFUTED),
    "best guess": ("circle", ESTIMATE),
}


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
    # Numbers among names are names, too. So are those of several runs, which stand side by side.
    numeric = all(isinstance(row["x"], int | float) for row in (*rows, *claims))
    numeric = numeric and (square or len({row["x"] for row in rows}) == len(rows))
    if not numeric:
        rows, claims = ([{**row, "x": str(row["x"])} for row in several] for several in (rows, claims))
    marks: list[Spec] = []
    intervals: list[Spec] = []
    seen: list[Any] = []
    for row in rows:
        shared = {"x": row["x"], "about": row.get("about", ""), "run": seen.count(row["x"])}
        seen.append(row["x"])
        bound = "lower bound, claim refuted" if row.get("refuted") else "lower bound"
        marks += table(kind=[bound, "best guess"], epsilon=[row["bound"], row["estimate"]], **shared)
        intervals += table(low=[row.get("low")], epsilon=[row.get("high")], **shared)
    places = list(dict.fromkeys(row["x"] for row in (*rows, *claims)))
    claimed, found = [row["claim"] for row in claims], [row["epsilon"] for row in (*marks, *intervals)]
    top = 1.05 * max([1.0, *claimed, *found])
    # From 0 on, and logarithmic above 1 where claims are large: they grow fast as noise shrinks.
    scale = {"domain": [-0.03 * top, top], "nice": False, "type": "symlog" if top > 20 else "linear"}
    up = number("epsilon", y, scale=scale)
    if square:
        across = number("x", x, scale=scale, axis={"tickCount": 6})
    elif numeric:
        wide = 0 < 8 * min(places) <= max(places)
        axis = {"grid": False, "values": places, "labelExpr": "format(datum.value, '~g')"}
        # The padding keeps marks at the ends from being cut off.
        domain = {"zero": False, "nice": False, "padding": 25, "type": "log" if wide else "linear"}
        across = number("x", x, scale=domain, axis=axis)
    else:
        across = {"field": "x", "type": "nominal", "title": x, "sort": places, "axis": {"labelAngle": 0}}
        across["scale"] = {"paddingInner": 0.6, "paddingOuter": 0.3}
    looks = kinds("shape color", _POINTS, marks, columns=3)
    beside: Spec = {} if numeric or square else {"xOffset": {"field": "run", "type": "nominal"}}
    looks["tooltip"] = [{"field": "about"}, {"field": "kind"}, number("epsilon", "ε", format=".3f")]
    dashed = {"strokeDash": [6, 4], "color": CLAIM, "strokeWidth": 2, "point": {"color": CLAIM, "size": 20}}
    rule, dot = {"color": ESTIMATE, "strokeWidth": 2}, {"filled": True, "size": 80, "opacity": 0.9}
    at_claim = {**up, "field": "claim"}
    # The name of the line stands at its higher end, above the line.
    falls = bool(claims) and claimed[0] >= claimed[-1]
    away = 60 if beside else 8
    end = {"align": "left", "dx": away} if falls else {"align": "right", "dx": -away}
    name, named = {**end, "dy": -10, "color": CLAIM}, claims[:1] if falls else claims[-1:]
    layers = [
        layer("line", dashed, data=claims, x=across, y=at_claim),
        layer("rule", rule, data=intervals, x=across, y={**up, "field": "low"}, y2={"field": "epsilon"}, **beside),
        layer("point", dot, x=across, y=up, **looks, **beside),
        layer("text", name, data=named, x=across, y=at_claim, text={"value": "claimed ε"}),
    ]
    return chart(marks, layers, height=height)


def by_setting(panels: Mapping[str, Sequence[tuple[Any, str, Result]]], *, x: str) -> dict[str, Spec]:
    """Return a chart for each panel: bound and best guess of every run by a setting, with the claim's curve.

    A panel without any bound or best guess is left out, and so is a claim that is not about what the canaries show.

    Args:
        panels: The results of each panel, by its title: value of the setting, name of the run, and result.
        x: The setting.
    """
    specs = {}
    for title, runs in panels.items():
        rows = []
        deltas = {result.bound.delta for _, _, result in runs if result.bound is not None}
        y = f"ε at δ = {deltas.pop():g}" if len(deltas) == 1 else "ε"
        claims: dict[Any, float] = {}
        for value, name, result in runs:
            numbers = [None if number == math.inf else number for number in result.numbers.values()]
            row: dict[str, Any] = dict(zip(("claim", "bound", "estimate", "low", "high"), numbers, strict=True))
            rows.append({"x": value, "about": name, "refuted": result.refuted, **row})
            if (
                row["claim"] is not None and result.about_claim
            ):  # the largest of all runs with this value, which usually claim the same
                claims[value] = max(row["claim"], claims.get(value, 0.0))
        line = [{"x": value, "claim": claim} for value, claim in claims.items()]
        if any(row["bound"] is not None or row["estimate"] is not None for row in rows):
            specs[f"ε against {x}: {title}"] = points(rows, x=x, y=y, claims=line, height=240)
    if not specs:
        raise InputError("there is nothing to plot: the runs have neither bounds nor best guesses")
    return specs


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
    rounds = [entry["round"] + 1 for entry in history]
    drawn = table(round=rounds, value=[from_json(entry.get(field)) for entry in history])
    if len(drawn) < 2:
        return None
    style = {"color": INSERTED, "strokeWidth": 2, "point": len(drawn) < 30 and {"color": INSERTED, "size": 30}}
    x, y = number("round", "round", axis={"tickMinStep": 1}), number("value", title, scale={"zero": False})
    return chart(drawn, [layer("line", style, x=x, y=y)], height=180)


# Outside the page


def as_altair(specs: Mapping[str, Spec]) -> Any:
    """Return charts below one another by their titles as one altair chart, on white, with the light colors."""
    import altair  # loaded only to draw

    parts = []
    for title, spec in specs.items():
        part = {**spec, "title": title, "width": 640}  # only a page has a container that decides the width
        del part["config"], part["autosize"]
        parts.append(part)
    content = parts[0] if len(parts) == 1 else {"vconcat": parts}
    settings = {**THEME, "legend": {**THEME["legend"], **_LEGEND}, "background": "#ffffff"}
    text = json.dumps({"padding": 12, **content, "config": settings}).replace(_FONT, "sans-serif")
    text = text.replace(f', "name": "{_HERE}"', "")  # nothing moves, and names must be unique
    for name, (light, _) in COLORS.items():
        text = text.replace(f"var(--{name})", light)
    return altair.Chart.from_dict(json.loads(text))


FORMATS = (".html", ".svg", ".png", ".pdf")
"""File endings of charts; an .html file opens offline."""


def save(figure: Any, path: Path) -> Path:
    """Write an altair chart in the format of the file's ending.

    Raises:
        InputError: If the ending is none of `FORMATS`.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"a figure file must end in {', '.join(FORMATS)}, got {path.name!r}")
    options: dict[str, Spec] = {".html": {"inline": True}, ".png": {"scale_factor": 2}}
    ending = path.suffix.removeprefix(".")
    return write_whole(
        path, lambda temporary: figure.save(str(temporary), format=ending, **options.get(path.suffix, {}))
    )
