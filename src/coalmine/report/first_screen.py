"""How private is it? In words, in three numbers, and in one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coalmine.report import numbers
from coalmine.report.drawing import BOUND, ESTIMATE, INK, LINE, MUTED, THEORY, Figure, placed, unit
from coalmine.report.html import Html, joined, paragraphs, table, tag
from coalmine.report.promises import Group, Row, together

_PROVED = "valid bound: ε is proved to be at least this"
_GUESSED = "estimate, with its interval: may be off either way"
_PROMISED = "promise of theory: ε is at most this"
_ROW, _HEADER = 50, 44


def answer(found: Sequence[Group], warnings: int) -> tuple[Html, Figure]:
    """The first screen, and its picture."""
    figure = picture(found)
    refuted = any(row.refuted for group in found for row in group.rows)
    promised = any(row.promise is not None for group in found for row in group.rows)
    kind = "refuted" if refuted else "kept" if promised else "open"
    parts = [
        tag(
            "div",
            {"class": f"verdict {kind}"},
            tag("p", {"class": "headline"}, headline(found)),
            paragraphs([sentence(group) for group in found]),
        ),
        _tiles(found[0]),
        placed(figure),
        _table(found),
        paragraphs([_confidence(found), _carefully(warnings)]),
    ]
    return joined(parts), figure


def headline(found: Sequence[Group]) -> str:
    """The verdict in one line."""
    refuted = [row for group in found for row in group.rows if row.refuted]
    if refuted:
        return "Promise refuted: more leaks than was promised."
    judged = [row for group in found for row in group.bounds if row.promise is not None]
    if judged:
        return "Nothing found contradicts the promise." if len(found) == 1 else "Nothing found contradicts the promises."
    return "No promise was made: read what is proved, and what is estimated."


def sentence(group: Group) -> str:
    """What is promised and what is proved of one thing, in words."""
    where, best = group.about, group.strongest
    promises = sorted({row.promise for row in group.rows if row.promise is not None})
    text = f"Of {where}: " + _promised(promises, group)
    if best is None:
        return f"{text} No bound was computed; there are estimates only."
    if not best.bound:
        return f"{text} No adversary proves any leak."
    at = f" of the ε ≤ {numbers.epsilon(best.promise)} promised to it" if len(promises) > 1 and best.promise else ""
    text += (
        f" The strongest evidence found: an adversary who {best.adversary} proves ε ≥ {numbers.epsilon(best.bound)}{at} "
        f"({_confident(best)})."
    )
    if best.refuted:
        return f"{text} That refutes the promise: the noise, the clipping or the accounting has a bug."
    if promises:
        return f"{text} Nothing contradicts the {'promise' if len(promises) == 1 else 'promises'}."
    return text


def _promised(promises: Sequence[float], group: Group) -> str:
    if not promises:
        return "theory promises nothing."
    who = "the mechanism" if group.key == "report" else "the accountant"
    if math.isinf(promises[-1]):
        return f"{who} gives no finite promise."
    if len(promises) == 1:
        return f"{who} promises ε ≤ {numbers.epsilon(promises[0])}."
    return (
        f"{who} promises ε ≤ {numbers.epsilon(promises[0])} to ε ≤ {numbers.epsilon(promises[-1])}, each adversary or "
        "setting its own."
    )


def _confident(row: Row) -> str:
    return f"{100 * (row.confidence or 0):g}% confidence"


def _tiles(group: Group) -> Html:
    """Promise, proof and guess of the first group, large."""
    best = group.strongest
    promises = [row.promise for row in group.rows if row.promise is not None]
    promise = best.promise if best is not None and best.promise is not None else max(promises, default=None)
    delta = next((row.delta for row in group.rows if row.delta is not None), None)
    at = "" if delta is None else f" (δ = {delta:g})"
    guessed = best if best is not None and best.estimate is not None else None
    interval = (
        f", interval {numbers.epsilon(guessed.low)} to {numbers.epsilon(guessed.high)}"
        if guessed is not None and guessed.low is not None and guessed.high is not None
        else ""
    )
    tiles = [
        ("promise", "Promised", "–" if promise is None else f"ε ≤ {numbers.epsilon(promise)}", f"by theory{at}"),
        (
            "bound",
            "Proved",
            "–" if best is None else f"ε ≥ {numbers.epsilon(best.bound)}",
            "" if best is None else f"valid bound, {_confident(best)}, {best.audit}, {best.view}",
        ),
        (
            "estimate",
            "Estimated",
            "–" if guessed is None else f"ε ≈ {numbers.epsilon(guessed.estimate)}",
            "" if guessed is None else f"no bound: {guessed.estimate_method}, the same adversary{interval}",
        ),
    ]
    odds = []
    if best is not None and best.bound:
        odds = [
            tag(
                "p",
                None,
                f"In odds: what this adversary sees makes some accusation at least {numbers.times(best.bound)} times as "
                "likely against somebody who took part as against somebody who did not"
                + (
                    f"; the promise allows {numbers.times(promise)} times."
                    if promise is not None and math.isfinite(promise)
                    else "."
                ),
            )
        ]
    return joined(
        [
            tag(
                "dl",
                {"class": "tiles", "aria-label": f"Of {group.about}"},
                *(
                    tag(
                        "div",
                        {"class": kind},
                        tag("dt", None, name),
                        tag("dd", {"class": "value"}, value),
                        tag("dd", {"class": "small"}, words),
                    )
                    for kind, name, value, words in tiles
                ),
            ),
            *odds,
        ]
    )


def _table(found: Sequence[Group]) -> Html:
    rows = [
        [
            f"{row.audit}: {row.view}",
            row.adversary,
            group.about,
            "–" if row.promise is None else f"≤ {numbers.epsilon(row.promise)}",
            "–" if row.bound is None else f"≥ {numbers.epsilon(row.bound)}",
            "–" if row.estimate is None else f"≈ {numbers.epsilon(row.estimate)}",
            row.verdict,
        ]
        for group in found
        for row in group.rows
    ]
    columns = ["audit: view", "an adversary who", "ε of", "promised", "proved", "estimated", "verdict"]
    return table("Every adversary in numbers", columns, rows)


def _confidence(found: Sequence[Group]) -> str:
    """What the confidence of each bound comes to for all: the largest of several is a selection."""
    bounds = [row for group in found if group.key != "report" for row in group.bounds]
    text = ""
    if len(bounds) > 1:
        each = {row.confidence for row in bounds}
        own = f"{100 * (bounds[0].confidence or 0):g}%" if len(each) == 1 else "its own"
        text = (
            f"Each bound holds with {own} confidence by itself. Here are {len(bounds)}: all of them hold together with at "
            f"least {100 * together(bounds):.0f}%, so read the largest with that in mind."
        )
    if any(group.key == "report" for group in found):
        text += (
            " Bounds on local reports are shown for each view where they come closest to their promise; a promise counts "
            "as refuted only by bounds that hold for all reports together."
        )
    return text.strip()


def _carefully(warnings: int) -> str:
    if not warnings:
        return ""
    return f"There {'is one warning' if warnings == 1 else f'are {warnings} warnings'} on how these figures came about: see the audits."


def picture(found: Sequence[Group]) -> Figure:
    """Promise, bound and estimate of every adversary on one axis, grouped by what their ε is about."""
    top, texts, bars, marks, intervals = 0.0, [], [], [], []
    end = _end(found)
    for group in found:
        top += _HEADER
        texts.append({"y": top - 12, "header": group.title})
        for row in group.rows:
            label, strip = top + 14, top + 31
            texts.append({"y": label, "label": f"{row.adversary} ({row.audit})", "numbers": _numbers(row), "strip": strip})
            for kind, value in ((_PROVED, row.bound), (_GUESSED, row.estimate), (_PROMISED, row.promise)):
                if value is not None and math.isfinite(value):
                    marks.append({"y": strip, "kind": kind, "epsilon": value, "who": f"{row.audit}: {row.view}"})
            if row.bound is not None and math.isfinite(row.bound):
                bars.append({"y": strip, "zero": 0, "bound": row.bound})
            if row.low is not None and row.high is not None and row.high > row.low:
                intervals.append({"y": strip, "low": min(row.low, end), "high": min(row.high, end)})
            top += _ROW
    y = {"field": "y", "type": "quantitative", "axis": None, "scale": {"domain": [0, top], "range": [0, top], "nice": False}}
    x = {
        "type": "quantitative",
        "scale": {"domain": [0, end], "nice": False},
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
            {"type": "bar", "height": 9, "color": BOUND, "opacity": 0.28},
            {"y": y, "x": x | {"field": "zero"}, "x2": {"field": "bound"}},
        ),
        _on(
            intervals,
            {"type": "rule", "color": ESTIMATE, "strokeWidth": 2},
            {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}},
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
                    "scale": scale | {"range": ["triangle-right", "circle", "M-0.12,-1.1L0.12,-1.1L0.12,1.1L-0.12,1.1Z"]},
                    "legend": legend,
                },
                "fill": {
                    "field": "kind",
                    "type": "nominal",
                    "scale": scale | {"range": [BOUND, "var(--paper)", THEORY]},
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
            {"type": "text", "align": "left", "fontWeight": 600, "fontSize": 13, "color": INK, "limit": {"expr": "width"}},
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
                "opacity": {"expr": "width > 560 ? 1 : 0"},
            },
            {"y": y, "x": {"value": {"expr": "width"}}, "text": {"field": "numbers", "type": "nominal"}},
        ),
    ]
    spec = unit([], layers, height=round(top))
    return Figure(
        name="answer",
        title="Promised, proved, estimated.",
        caption="One row for each adversary, grouped by what its ε is about: only rows of one group can be compared.",
        sentence=" ".join(_told(row, group) for group in found for row in group.rows),
        spec=spec,
    )


def _end(found: Sequence[Group]) -> float:
    """Where the axis ends: all points are on it, long intervals are cut."""
    values = [v for g in found for row in g.rows for v in (row.bound, row.estimate, row.promise)]
    return 1.06 * max([1.0, *(value for value in values if value is not None and math.isfinite(value))])


def _on(data: list[dict[str, object]], mark: dict[str, object], encoding: dict[str, object]) -> dict[str, object]:
    return {"data": {"values": data}, "mark": mark, "encoding": encoding}


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
