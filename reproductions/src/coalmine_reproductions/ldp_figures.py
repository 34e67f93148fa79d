"""Figures of the LDP audit's reproductions: ε found compared with ε claimed, by adversary, claim and gradient norm.

A filled circle is ε_empirical, an estimate, with a bar for its standard deviation over measurements; a triangle is a
lower bound, each valid by itself; a dashed line is the claim. They are drawn from `Result` objects, so that the
results of a saved run can be drawn too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coalmine.errors import InputError
from coalmine.methods.ldp.settings import VIEWS, adversary_name
from coalmine.results.result import Result
from coalmine_reproductions.figures import SERIES, THEORY

if TYPE_CHECKING:
    import altair

    Chart = altair.LayerChart | altair.FacetChart

ChartRow = Mapping[str, Any]

_MARKS = ("ε_empirical, an estimate (bar: ± std)", "lower bound")
_CLAIM = "claimed ε"
_INK = "#444444"


def chart_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return one row per result; an infinite number, such as ε_empirical if every guess is right, becomes None."""
    rows = []
    for result in results:
        empirical, bound = result["empirical"], result.bound
        mean = _finite(empirical.epsilon)
        rows.append(
            {
                "adversary": adversary_name(result.variant),
                "claimed": result.config["epsilon"],
                "gradient norm": result.config["gradient_norm"],
                "view": result.view,
                "mean": mean,
                "low": mean if empirical.lower is None else empirical.lower,
                "high": mean if empirical.upper is None else empirical.upper,
                "bound": None if bound is None else _finite(bound.epsilon),
            }
        )
    return rows


def adversaries(results: Sequence[Result]) -> Chart:
    """Draw all adversaries at the largest claimed ε, like Figure 1(b) of the paper."""
    import altair as alt

    largest = max(result.config["epsilon"] for result in results)
    rows = [row for row in chart_rows(results) if row["claimed"] == largest]
    names = list(dict.fromkeys(row["adversary"] for row in rows))
    axis = alt.Axis(labelAngle=-25, labelLimit=260)
    x = alt.X("adversary:N", sort=names, title=None, axis=axis, scale=alt.Scale(paddingInner=0.2))
    marks = _dodged(alt, rows, x, alt.Y("value:Q", title="ε", scale=alt.Scale(zero=True)))
    label = f"{_CLAIM}: {largest:g}"
    claim = (
        alt.Chart(alt.InlineData(values=[{"claim": largest, "line": label}]))
        .mark_rule(color=THEORY, strokeWidth=1.5)
        .encode(y="claim:Q", strokeDash=_dashes(alt, label))
    )
    width = max(320, len(names) * (30 + 24 * len({row["view"] for row in rows})))
    title = _title(alt, results, f"all adversaries at ε = {largest:g}")
    return alt.layer(claim, *marks).properties(width=width, height=280, title=title)


def sweep(results: Sequence[Result]) -> Chart:
    """Draw ε found at each claimed ε, one panel per adversary, like Figure 2."""
    import altair as alt

    rows = chart_rows(results)
    names = list(dict.fromkeys(row["adversary"] for row in rows))
    claims = sorted({row["claimed"] for row in rows})
    axis = alt.Axis(labelAngle=0, format="~g")
    x = alt.X("claimed:O", sort=claims, title=_CLAIM, axis=axis, scale=alt.Scale(paddingInner=0.2))
    y = alt.Y("value:Q", title="ε", scale=alt.Scale(zero=True))
    diagonal = (
        alt.Chart()
        .mark_line(color=THEORY, strokeWidth=1.5)
        .encode(x=x, y="claim:Q", strokeDash=_dashes(alt, _CLAIM))
        .transform_filter("isValid(datum.claim)")
    )
    line = [
        {"adversary": name, "claimed": epsilon, "claim": epsilon, "line": _CLAIM}
        for name in names
        for epsilon in claims
    ]
    # Facets share one table, so marks and the line of the claim are rows of the same data.
    layers = alt.layer(
        diagonal, *_dodged(alt, rows, x, y, with_data=False), data=alt.InlineData(values=_marks(rows) + line)
    )
    width = max(180, 18 * len({row["view"] for row in rows}) * len(claims))
    panels = layers.properties(width=width, height=200).facet(
        alt.Facet("adversary:N", sort=names, title=None, header=alt.Header(labelFontWeight="bold")),
        columns=2 if len(names) in (2, 4) else 3,
    )
    return panels.properties(title=_title(alt, results, "ε found at each claimed ε"))


def norms(results: Sequence[Result]) -> Chart:
    """Draw ε by the norm of the dummy gradient, one color per claim and one panel per view, like Figure 3.

    Raises:
        InputError: If there is no result of a dummy gradient.
    """
    import altair as alt

    dummies = [result for result in results if result.config["gradient_norm"] is not None]
    if not dummies:
        raise InputError("the figure of norms needs results of dummy-gradient, and there are none")
    rows = chart_rows(dummies)
    claims = sorted({row["claimed"] for row in rows})
    views = [view for view in VIEWS if any(row["view"] == view for row in rows)]
    clip_norm = float(dummies[0].config["clip_norm"])
    lines = [
        {"view": view, "claimed": epsilon, "claim": epsilon, "line": "the claim itself"}
        for view in views
        for epsilon in claims
    ]
    colors = [SERIES[i % len(SERIES)] for i in range(len(claims))]
    room = alt.Scale(domain=[0, 1.06 * max(row["gradient norm"] for row in rows)], nice=False)
    base = alt.Chart().encode(
        x=alt.X("gradient norm:Q", title=f"norm of the gradient (clip norm L = {clip_norm:g})", scale=room),
        color=alt.Color(
            "claimed:O",
            title=_CLAIM,
            scale=alt.Scale(domain=claims, range=colors),
            legend=alt.Legend(symbolOpacity=1),
        ),
    )
    y = alt.Y("value:Q", title="ε", scale=alt.Scale(zero=True))
    is_estimate, is_bound = (f"datum.mark == '{mark}'" for mark in _MARKS)
    layers = alt.layer(
        alt.Chart()
        .mark_rule(strokeWidth=1.5)
        .encode(y="claim:Q", color="claimed:O", strokeDash=_dashes(alt, "the claim itself"))
        .transform_filter("isValid(datum.claim)"),
        base.mark_line(strokeWidth=1, opacity=0.5).encode(y=y).transform_filter(is_estimate),
        base.mark_rule().encode(y=alt.Y("low:Q", title="ε"), y2="high:Q").transform_filter(is_estimate),
        base.mark_point(filled=True, size=45, opacity=1)
        .encode(y=y, shape=_shapes(alt), tooltip=_tooltip(alt, "gradient norm:Q"))
        .transform_filter(is_estimate),
        # Bounds lie just below the estimates and would be hidden by them, so they are moved to the side.
        base.mark_point(filled=True, size=45, opacity=1, xOffset=7)
        .encode(y=y, shape=_shapes(alt), tooltip=_tooltip(alt, "gradient norm:Q"))
        .transform_filter(is_bound),
        data=alt.InlineData(values=_marks(rows) + lines),
    )
    panels = layers.properties(width=330, height=240).facet(
        alt.Facet("view:N", sort=views, title=None, header=alt.Header(labelFontWeight="bold")),
        columns=min(2, len(views)),
    )
    return panels.properties(title=_title(alt, dummies, "dummy gradients by norm"))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _marks(rows: Sequence[ChartRow]) -> list[dict[str, Any]]:
    """Return one row per circle and per triangle; ``slot`` puts marks side by side, so that none hides another."""
    marks = []
    for row in rows:
        for mark, value in zip(_MARKS, (row["mean"], row["bound"]), strict=True):
            if value is not None:
                slot = f"{VIEWS.index(row['view'])}{_MARKS.index(mark)}"
                bar = {} if mark == _MARKS[0] else {"low": None, "high": None}
                marks.append({**row, **bar, "mark": mark, "value": value, "slot": slot})
    return marks


def _dodged(alt: Any, rows: Sequence[ChartRow], x: Any, y: Any, with_data: bool = True) -> list[Any]:
    """Return layers of bars and marks, those of the same adversary and claim side by side."""
    views = [view for view in VIEWS if any(row["view"] == view for row in rows)]
    colors = [SERIES[VIEWS.index(view)] for view in views]
    data = {"data": alt.InlineData(values=_marks(rows))} if with_data else {}
    slots = [f"{VIEWS.index(view)}{mark}" for view in views for mark in range(len(_MARKS))]
    base = alt.Chart(**data).encode(
        x=x,
        xOffset=alt.XOffset("slot:N", scale=alt.Scale(domain=slots, paddingOuter=0.6)),
        color=alt.Color("view:N", title="view", scale=alt.Scale(domain=views, range=colors)),
    )
    return [
        base.mark_rule().encode(y=alt.Y("low:Q", title="ε"), y2="high:Q").transform_filter("isValid(datum.low)"),
        base.mark_point(filled=True, size=55, opacity=1)
        .encode(y=y, shape=_shapes(alt), tooltip=_tooltip(alt, "adversary:N", "view:N"))
        .transform_filter("isValid(datum.value)"),
    ]


def _shapes(alt: Any) -> Any:
    legend = alt.Legend(title=None, symbolFillColor=_INK, symbolStrokeColor=_INK, labelLimit=260)
    return alt.Shape("mark:N", scale=alt.Scale(domain=list(_MARKS), range=["circle", "triangle-up"]), legend=legend)


def _dashes(alt: Any, label: str) -> Any:
    """Return a dashed line with a legend."""
    legend = alt.Legend(title=None, symbolType="stroke", symbolStrokeColor=THEORY, symbolStrokeWidth=2, symbolSize=300)
    return alt.StrokeDash("line:N", scale=alt.Scale(domain=[label], range=[[5, 3]]), legend=legend)


def _tooltip(alt: Any, *fields: str) -> list[Any]:
    return [*fields, alt.Tooltip("claimed:Q", title=_CLAIM), "mark:N", alt.Tooltip("value:Q", format=".3f")]


def _title(alt: Any, results: Sequence[Result], what: str) -> Any:
    """Return a title that names the mechanism and data, with the trials and what to be careful with below."""
    config, bound = results[0].config, results[0].estimates[0]
    mechanisms = ", ".join(dict.fromkeys(str(result.config["mechanism"]) for result in results))
    trials = _trials_text(config) + (f", {config['clients']} clients" if config["clients"] > 1 else "")
    confidence = f"{100 * (bound.confidence or 0):g}% confidence"
    lines = [f"{trials}; δ = {bound.delta:g}; each lower bound at {confidence}"]
    rows = chart_rows(results)
    if any(row["bound"] is not None and row["bound"] > (row["mean"] or math.inf) for row in rows):
        lines.append("a lower bound may exceed ε_empirical: it also tests the extreme scores, not a single threshold")
    if any(row["mean"] is None for row in rows):
        lines.append("an infinite ε_empirical, as when every guess is right, is not drawn")
    title = f"LDP audit of {mechanisms} on {config.get('data', 'your data')}: {what}"
    return alt.TitleParams(title, subtitle=lines, anchor="start", subtitleColor=_INK, offset=12)


def _trials_text(config: Mapping[str, object]) -> str:
    """Describe the number of trials, such as "10,000 trials in each of 3 measurements"."""
    text = f"{config['trials']:,} trials"
    return f"{text} in each of {config['measurements']} measurements" if config["measurements"] != 1 else text
