"""Figures of the LDP audit: ε measured beside ε promised, by adversary, by promise, and by the gradient's norm.

In each of them a filled circle is ε_empirical, which is an estimate, with a bar for its standard deviation over the
measurements; a triangle is a valid bound; and a dashed line is what the mechanism promises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coalmine.drawing.files import SERIES, THEORY
from coalmine.errors import InputError
from coalmine.results.words import adversary

if TYPE_CHECKING:
    import altair

    Chart = altair.LayerChart | altair.FacetChart

Results = Sequence[Mapping[str, Any]]
"""``results`` of a result.json."""

_VIEWS = ("white-box", "black-box", "likelihood-ratio", "parameter-change")
_MARKS = ("ε_empirical, an estimate (bar: ± std)", "valid bound")
_PROMISE = "ε promised"
_INK = "#444444"


def charts(results: Results) -> dict[str, Chart]:
    """All figures that fit the results of an LDP audit, by name."""
    data = str(results[0]["config"].get("data", "own data"))
    found = {"ldp-adversaries": summary(results, data)}
    if len({one["config"]["epsilon"] for one in results}) > 1:
        found["ldp-sweep"] = sweep(results, data)
    if len({one["config"]["gradient_norm"] for one in results} - {None}) > 1:
        found["ldp-norms"] = norms(results, data)
    return found


def rows(results: Results) -> list[dict[str, Any]]:
    """A row for each result: adversary, what was promised, what was measured with its spread, the valid bound.

    What is infinite, as ε_empirical of guesses that are all right, is None.
    """
    found = []
    for result in results:
        config, metrics = result["config"], result["metrics"]
        measured, spread = (_finite(metrics[name]) for name in ("empirical", "empirical_std"))
        bound = next((estimate["epsilon"] for estimate in result["estimates"] if estimate["valid"]), None)
        found.append(
            {
                "adversary": adversary(config),
                "promised": config["epsilon"],
                "gradient norm": config["gradient_norm"],
                "seen by": result["view"],
                "measured": measured,
                "low": None if measured is None else max(0.0, measured - (spread or 0.0)),
                "high": None if measured is None else measured + (spread or 0.0),
                "bound": None if bound is None else _finite(bound),
            }
        )
    return found


def summary(results: Results, data: str) -> Chart:
    """Like Figure 1(b) of Matsumoto et al. (2022): all adversaries at the largest ε promised."""
    import altair as alt

    largest = max(result["config"]["epsilon"] for result in results)
    drawn = [row for row in rows(results) if row["promised"] == largest]
    adversaries = list(dict.fromkeys(row["adversary"] for row in drawn))
    axis = alt.Axis(labelAngle=-25, labelLimit=260)
    x = alt.X("adversary:N", sort=adversaries, title=None, axis=axis, scale=alt.Scale(paddingInner=0.2))
    marks = _dodged(alt, drawn, x, alt.Y("value:Q", title="ε", scale=alt.Scale(zero=True)))
    promise = (
        alt.Chart(alt.InlineData(values=[{"promise": largest, "what": f"{_PROMISE}: {largest:g}"}]))
        .mark_rule(color=THEORY, strokeWidth=1.5)
        .encode(y="promise:Q", strokeDash=_dashes(alt, f"{_PROMISE}: {largest:g}"))
    )
    width = max(320, len(adversaries) * (30 + 24 * len({row["seen by"] for row in drawn})))
    at = f"all adversaries at ε = {largest:g}"
    return alt.layer(promise, *marks).properties(width=width, height=280, title=_title(alt, results, data, at))


def sweep(results: Results, data: str) -> Chart:
    """Like Figure 2: a panel for each adversary, ε measured at each ε promised."""
    import altair as alt

    drawn = rows(results)
    adversaries = list(dict.fromkeys(row["adversary"] for row in drawn))
    promised = sorted({row["promised"] for row in drawn})
    axis = alt.Axis(labelAngle=0, format="~g")
    x = alt.X("promised:O", sort=promised, title=_PROMISE, axis=axis, scale=alt.Scale(paddingInner=0.2))
    y = alt.Y("value:Q", title="ε", scale=alt.Scale(zero=True))
    promise = (
        alt.Chart()
        .mark_line(color=THEORY, strokeWidth=1.5)
        .encode(x=x, y="promise:Q", strokeDash=_dashes(alt, _PROMISE))
        .transform_filter("isValid(datum.promise)")
    )
    line = [
        {"adversary": name, "promised": epsilon, "promise": epsilon, "what": _PROMISE}
        for name in adversaries
        for epsilon in promised
    ]
    layers = alt.layer(
        promise, *_dodged(alt, drawn, x, y, own_data=False), data=alt.InlineData(values=_marks(drawn) + line)
    )
    width = max(180, 18 * len({row["seen by"] for row in drawn}) * len(promised))
    panels = layers.properties(width=width, height=200).facet(
        alt.Facet("adversary:N", sort=adversaries, title=None, header=alt.Header(labelFontWeight="bold")),
        columns=2 if len(adversaries) in (2, 4) else 3,
    )
    return panels.properties(title=_title(alt, results, data, "ε measured at each ε promised"))


def norms(results: Results, data: str) -> Chart:
    """Like Figure 3: ε measured by the norm of the dummy gradient, a color for each promise, a panel for each view."""
    import altair as alt

    own = [result for result in results if result["config"]["gradient_norm"] is not None]
    if not own:
        raise InputError("a figure of norms needs results of the dummy gradient")
    drawn = rows(own)
    promised = sorted({row["promised"] for row in drawn})
    views = [view for view in _VIEWS if any(row["seen by"] == view for row in drawn)]
    clip = float(own[0]["config"]["norm"])
    lines = [
        {"seen by": view, "promised": epsilon, "promise": epsilon, "what": "the promise itself"}
        for view in views
        for epsilon in promised
    ]
    colors = [SERIES[i % len(SERIES)] for i in range(len(promised))]
    room = alt.Scale(domain=[0, 1.06 * max(row["gradient norm"] for row in drawn)], nice=False)
    base = alt.Chart().encode(
        x=alt.X("gradient norm:Q", title=f"norm of the gradient (clip norm L = {clip:g})", scale=room),
        color=alt.Color(
            "promised:O",
            title=_PROMISE,
            scale=alt.Scale(domain=promised, range=colors),
            legend=alt.Legend(symbolOpacity=1),
        ),
    )
    y = alt.Y("value:Q", title="ε", scale=alt.Scale(zero=True))
    there = f"datum.mark == '{_MARKS[0]}'"
    layers = alt.layer(
        alt.Chart()
        .mark_rule(strokeWidth=1.5)
        .encode(y="promise:Q", color="promised:O", strokeDash=_dashes(alt, "the promise itself"))
        .transform_filter("isValid(datum.promise)"),
        base.mark_line(strokeWidth=1, opacity=0.5).encode(y=y).transform_filter(there),
        base.mark_rule().encode(y=alt.Y("low:Q", title="ε"), y2="high:Q").transform_filter(there),
        base.mark_point(filled=True, size=45, opacity=1)
        .encode(y=y, shape=_shapes(alt), tooltip=_tooltip(alt, "gradient norm:Q"))
        .transform_filter(there),
        # Bounds lie just below the estimates: beside them they are seen.
        base.mark_point(filled=True, size=45, opacity=1, xOffset=7)
        .encode(y=y, shape=_shapes(alt), tooltip=_tooltip(alt, "gradient norm:Q"))
        .transform_filter(f"datum.mark == '{_MARKS[1]}'"),
        data=alt.InlineData(values=_marks(drawn) + lines),
    )
    panels = layers.properties(width=330, height=240).facet(
        alt.Facet("seen by:N", sort=views, title=None, header=alt.Header(labelFontWeight="bold")),
        columns=min(2, len(views)),
    )
    return panels.properties(title=_title(alt, own, data, "dummy gradients by their norm"))


def _finite(value: Any) -> float | None:
    """A number of a result.json, None for ``"inf"``."""
    return float(value) if math.isfinite(float(value)) else None


def _marks(drawn: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each circle and each triangle; ``slot`` is its place beside the others, so that none hides another."""
    found = []
    for row in drawn:
        for mark, value in zip(_MARKS, (row["measured"], row["bound"]), strict=True):
            if value is not None:
                place = f"{_VIEWS.index(row['seen by'])}{_MARKS.index(mark)}"
                bar = {} if mark == _MARKS[0] else {"low": None, "high": None}
                found.append({**row, **bar, "mark": mark, "value": value, "slot": place})
    return found


def _dodged(alt: Any, drawn: Sequence[Mapping[str, Any]], x: Any, y: Any, own_data: bool = True) -> list[Any]:
    """Layers of bars and marks, those of one adversary and promise side by side."""
    views = [view for view in _VIEWS if any(row["seen by"] == view for row in drawn)]
    colors = [SERIES[_VIEWS.index(view)] for view in views]
    data = {"data": alt.InlineData(values=_marks(drawn))} if own_data else {}
    slots = [f"{_VIEWS.index(view)}{mark}" for view in views for mark in range(len(_MARKS))]
    base = alt.Chart(**data).encode(
        x=x,
        xOffset=alt.XOffset("slot:N", scale=alt.Scale(domain=slots, paddingOuter=0.6)),
        color=alt.Color("seen by:N", title="seen by", scale=alt.Scale(domain=views, range=colors)),
    )
    return [
        base.mark_rule().encode(y=alt.Y("low:Q", title="ε"), y2="high:Q").transform_filter("isValid(datum.low)"),
        base.mark_point(filled=True, size=55, opacity=1)
        .encode(y=y, shape=_shapes(alt), tooltip=_tooltip(alt, "adversary:N", "seen by:N"))
        .transform_filter("isValid(datum.value)"),
    ]


def _shapes(alt: Any) -> Any:
    legend = alt.Legend(title=None, symbolFillColor=_INK, symbolStrokeColor=_INK, labelLimit=260)
    return alt.Shape("mark:N", scale=alt.Scale(domain=list(_MARKS), range=["circle", "triangle-up"]), legend=legend)


def _dashes(alt: Any, what: str) -> Any:
    """A dashed line, in the legend as well."""
    legend = alt.Legend(title=None, symbolType="stroke", symbolStrokeColor=THEORY, symbolStrokeWidth=2, symbolSize=300)
    return alt.StrokeDash("what:N", scale=alt.Scale(domain=[what], range=[[5, 3]]), legend=legend)


def _tooltip(alt: Any, *fields: str) -> list[Any]:
    return [*fields, alt.Tooltip("promised:Q", title=_PROMISE), "mark:N", alt.Tooltip("value:Q", format=".3f")]


def _title(alt: Any, results: Results, data: str, what: str) -> Any:
    """What is drawn, of what, and from how many trials."""
    config, bound = results[0]["config"], results[0]["estimates"][0]
    mechanisms = ", ".join(dict.fromkeys(str(result["config"]["mechanism"]) for result in results))
    measured = f"{config['trials']:,} trials"
    if config["measurements"] > 1:
        measured += f" in each of {config['measurements']} measurements"
    if config["clients"] > 1:
        measured += f", {config['clients']} clients"
    lines = [f"{measured}; δ = {bound['delta']:g}; each bound at {100 * bound['confidence']:g}% confidence"]
    drawn = rows(results)
    if any(row["bound"] is not None and row["bound"] > (row["measured"] or math.inf) for row in drawn):
        lines.append("ε_empirical is of one threshold; a bound looks at extreme scores as well, and may exceed it")
    if any(row["measured"] is None for row in drawn):
        lines.append("an ε_empirical that is infinite, as where every guess is right, is not drawn")
    return alt.TitleParams(
        f"LDP audit of {mechanisms} on {data}: {what}", subtitle=lines, anchor="start", subtitleColor=_INK, offset=12
    )
