"""Figures of a CANIFE audit for ``--figures``, from the ``details`` and ``arrays`` of saved results.

Lower bounds are blue, estimates orange, claims gray. Dotted lines are ceilings: more cannot be shown with this number
of trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coalmine.drawing.files import BOUND, ESTIMATE, SERIES, THEORY
from coalmine.drawing.html import slug
from coalmine.methods.canife.report_section import (
    bound_of,
    composed_by_method,
    crafted_samples,
    estimate_of,
    finite,
    round_claim,
)
from coalmine.results.result import MethodResults, Result, from_json

_WIDTH, _HEIGHT = 560, 280
_PRESENT, _ABSENT = SERIES[3], SERIES[2]

# What is drawn of each period: name in the legend, estimator (None: the first lower bound), color, shape.
_SERIES = (
    ("Gaussian shift (estimate)", "gaussian-shift", "#f0bd80", "diamond"),
    ("best threshold (estimate, as published)", "best-threshold", ESTIMATE, "circle"),
    ("lower bound", None, BOUND, "triangle-up"),
)
_COLORS = {name: color for name, _, color, _ in _SERIES}
_SHAPES = {name: shape for name, _, _, shape in _SERIES}
_PANELS = 6
_BINS = 24


def charts(method_results: MethodResults) -> dict[str, Any]:
    """Return all figures by file name; several adversaries get a directory each, and figures that compare them."""
    adversaries = [result for result in method_results.results if result.details.get("rounds")]
    if len(adversaries) == 1:
        return result_charts(adversaries[0])
    by_name = {
        f"{slug(result.label)}/{name}": chart for result in adversaries for name, chart in result_charts(result).items()
    }
    return by_name | (comparison(adversaries) if adversaries else {})


def result_charts(result: Result) -> dict[str, Any]:
    """Return the figures of one adversary by name."""
    by_name: dict[str, Any] = {"canife-rounds": rounds(result), "canife-scores": scores(result)}
    if result.details["composed"]:
        by_name["canife-composed"] = composed(result)
    if any(sample["kind"] == "image" for sample in crafted_samples(result)):
        by_name["canife-canaries"] = pictures(result)
    return by_name


def rounds(result: Result) -> Any:
    """Draw ε of one round along the training next to the claim for one round (figures 1 and 4 of the paper).

    A bar spans the rounds that an estimate stands for; its interval is near their middle. Infinite values end at the
    edge.
    """
    import altair as alt

    rows, ceilings = _round_rows(result)
    claim = round_claim(result)
    shown = [row["epsilon"] for row in rows] + [row["epsilon"] for row in ceilings]
    shown += [row["upper"] for row in rows if row["upper"] is not None] + ([claim] if claim else [])
    top = 1.08 * max(value for value in shown if math.isfinite(value))
    for row in rows:
        row["upper"] = None if row["upper"] is None else min(row["upper"], top)
        row["epsilon"] = min(row["epsilon"], top)
    names = [name for name, *_ in _SERIES if any(row["figure"] == name for row in rows)]
    y = alt.Y("epsilon:Q", title="ε of one round", scale=alt.Scale(domain=[-0.02 * top, top], nice=False))
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        color=alt.Color(
            "figure:N",
            title=None,
            sort=names,
            scale=_scale(alt, names, _COLORS),
            legend=alt.Legend(orient="top", labelLimit=300),
        ),
    )
    layers = [
        base.mark_rule(strokeWidth=2).encode(x=_rounds_axis(alt, "from"), x2="to:Q", y=y),
        base.mark_rule(strokeWidth=1.2, opacity=0.7)
        .encode(x="middle:Q", y="lower:Q", y2="upper:Q")
        .transform_filter("isValid(datum.upper)"),
        base.mark_point(filled=True, size=65, opacity=1).encode(
            x="middle:Q",
            y="epsilon:Q",
            shape=alt.Shape("figure:N", title=None, sort=names, scale=_scale(alt, names, _SHAPES)),
            tooltip=["figure:N", "from:Q", "to:Q", *(_tooltip(alt, n) for n in ("epsilon", "lower", "upper"))],
        ),
        alt.Chart(alt.InlineData(values=ceilings))
        .mark_rule(strokeDash=[2, 3], strokeWidth=1.5)
        .encode(x="from:Q", x2="to:Q", y="epsilon:Q", color=alt.Color("color:N", scale=None)),
    ]
    claim_lines = [_claim_line(claim, rows[-1]["to"])] if claim else []
    layers += [_rule(alt, row) for row in claim_lines]
    layers.append(_line_labels(alt, _spread_labels([*ceilings[-2:], *claim_lines], gap=0.05 * top)))
    return _titled(alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT), result.label, "ε of one round")


def scores(result: Result) -> Any:
    """Draw histograms of the scores with fitted normal curves, for up to six periods (figure 3 of the paper)."""
    import altair as alt

    arrays = result.arrays
    values, present, period = arrays["comparable"], arrays["present"].astype(bool), arrays["round"]
    starts = sorted({int(start) for start in period.tolist()})
    chosen = [
        starts[i] for i in np.unique(np.linspace(0, len(starts) - 1, min(_PANELS, len(starts))).round()).astype(int)
    ]
    edges = np.histogram_bin_edges(values[np.isin(period, chosen)], _BINS)
    sides = result.side_names
    bars, curves, order = [], [], []
    for start in chosen:
        panel, selected = f"from round {start}", period == start
        order.append(panel)
        for side, name in ((False, sides[1]), (True, sides[0])):
            side_scores = values[selected][present[selected] == side]
            if not side_scores.size:
                continue
            density, _ = np.histogram(side_scores, edges, density=True)
            labels = {"panel": panel, "canary": name}
            bars += [
                labels | {"left": float(a), "right": float(b), "density": float(d), "zero": 0}
                for a, b, d in zip(edges, edges[1:], density, strict=False)
                if d
            ]
            std = float(side_scores.std(ddof=1)) if side_scores.size > 1 else 0.0
            if std:
                x = np.linspace(edges[0], edges[-1], 121)
                height = np.exp(-((x - side_scores.mean()) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))
                curves += [labels | {"score": float(a), "density": float(b)} for a, b in zip(x, height, strict=True)]
    color = alt.Color(
        "canary:N",
        title=None,
        scale=alt.Scale(domain=[sides[1], sides[0]], range=[_ABSENT, _PRESENT]),
        legend=alt.Legend(orient="top"),
    )
    # Bars and curves share one data source, since all layers of a faceted chart must.
    base = alt.Chart().encode(color=color)
    layers = alt.layer(
        base.mark_bar(opacity=0.35, binSpacing=0)
        .encode(
            x=alt.X("left:Q", title="score (0 without the canary, 1 with it)", scale=alt.Scale(zero=False)),
            x2="right:Q",
            y=alt.Y("density:Q", title="density"),
            y2="zero:Q",
        )
        .transform_filter("isValid(datum.left)"),
        base.mark_line(strokeWidth=2).encode(x="score:Q", y="density:Q").transform_filter("isValid(datum.score)"),
        data=alt.InlineData(values=bars + curves),
    ).properties(width=_WIDTH if len(chosen) == 1 else 240, height=_HEIGHT if len(chosen) == 1 else 130)
    if len(chosen) > 1:
        layers = layers.facet(alt.Facet("panel:N", sort=order, title=None), columns=2)
    return _titled(layers, result.label, "scores of single rounds")


def composed(result: Result) -> Any:
    """Draw ε of the whole training by each way of composing rounds, next to its claim (figure 4c of the paper)."""
    import altair as alt

    claim = finite((result.details["training_claim"] or {}).get("epsilon"))
    rows: list[dict[str, Any]] = [
        {"from": "ceiling of rates" if name == "ceiling" else name, "way": way, "epsilon": value, "zero": 0}
        for name, values in composed_by_method(result).items()
        for way, value in zip(("exact", "RDP, as in the paper"), values, strict=True)
        if value is not None and math.isfinite(value)
    ]
    order = list(dict.fromkeys(row["from"] for row in rows))
    end = 1.1 * max([0.1, *(row["epsilon"] for row in rows), *([claim] if claim else [])])
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("from:N", sort=order, title=None, axis=alt.Axis(labelLimit=200)),
        yOffset=alt.YOffset("way:N"),
        color=alt.condition("datum.from == 'ceiling of rates'", alt.value(THEORY), alt.value(ESTIMATE)),
    )
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        x=alt.X("epsilon:Q", title="ε of the whole training", scale=alt.Scale(domain=[0, end], nice=False)),
        shape=alt.Shape("way:N", title=None, legend=alt.Legend(orient="top", symbolFillColor=ESTIMATE)),
        tooltip=["from:N", "way:N", _tooltip(alt, "epsilon")],
    )
    layers = [
        base.mark_rule(strokeWidth=1.5, opacity=0.5).encode(x="zero:Q", x2="epsilon:Q"),
        points,
        base.mark_text(align="left", dx=9, fontSize=11).encode(x="epsilon:Q", text=alt.Text("epsilon:Q", format=".1f")),
    ]
    if claim:
        line = alt.Chart(alt.InlineData(values=[{"epsilon": claim, "text": f"claim {claim:.3g}"}]))
        layers.append(line.mark_rule(color=THEORY, strokeDash=[6, 3], strokeWidth=2).encode(x="epsilon:Q"))
        layers.append(
            line.mark_text(color=THEORY, baseline="bottom", fontSize=11).encode(
                x="epsilon:Q", y=alt.value(-4), text="text:N"
            )
        )
    chart = alt.layer(*layers).properties(width=_WIDTH, height=46 * len(order))
    return _titled(chart, result.label, "ε of the whole training, estimated (no bounds)")


def comparison(results: Sequence[Result]) -> dict[str, Any]:
    """Draw several adversaries of one training: their ε along it, and how well each sees its canaries."""
    import altair as alt

    rows, sigmas = [], []
    for result in results:
        for row in _round_rows(result)[0]:
            if row["figure"] != _SERIES[0][0] and math.isfinite(row["epsilon"]):
                rows.append(row | {"adversary": result.label})
        for design in result.details["designs"]:
            values = [value for value in design["effective_sigma"] if value is not None]
            if values:
                sigma = float(np.median(values))
                sigmas.append({"adversary": result.label, "round": design["round"], "sigma": sigma})
    labels = [result.label for result in results]
    color = alt.Color(
        "adversary:N",
        title=None,
        sort=labels,
        scale=alt.Scale(domain=labels, range=[SERIES[i % len(SERIES)] for i in range(len(labels))]),
        legend=alt.Legend(orient="top", columns=2, labelLimit=300),
    )
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=_rounds_axis(alt, "middle"), color=color)
    names = [name for name, *_ in _SERIES[1:]]
    dashes = alt.StrokeDash("figure:N", title=None, scale=alt.Scale(domain=names, range=[[4, 3], [1, 0]]))
    layers = [
        base.mark_line(strokeWidth=1.5, opacity=0.6).encode(y="epsilon:Q", strokeDash=dashes),
        base.mark_point(filled=True, size=60, opacity=1).encode(
            y=alt.Y("epsilon:Q", title="ε of one round", scale=alt.Scale(domainMin=0)),
            shape=alt.Shape(
                "figure:N",
                title=None,
                scale=_scale(alt, names, _SHAPES),
                legend=alt.Legend(orient="top", columns=1, labelLimit=300),
            ),
            tooltip=["adversary:N", "figure:N", "from:Q", _tooltip(alt, "epsilon")],
        ),
    ]
    claim = round_claim(results[0])
    if claim:
        layers += _labeled_line(alt, _claim_line(claim, max(row["to"] for row in rows)))
    chart = alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT)
    by_name = {"canife-adversaries": _titled(chart, "all adversaries", "ε of one round")}
    if sigmas:
        noise = None if results[0].claim is None else results[0].claim.noise_multiplier
        by_name["canife-sigma"] = _sigma_chart(alt, sigmas, color, noise)
    return by_name


def _sigma_chart(alt: Any, sigmas: Sequence[Mapping[str, Any]], color: Any, noise: float | None) -> Any:
    """Draw the expected effective σ of each adversary's scores; a perfect canary has the noise multiplier."""
    base = alt.Chart(alt.InlineData(values=list(sigmas))).encode(x=_rounds_axis(alt, "round"), color=color)
    layers = [
        base.mark_line(point=alt.OverlayMarkDef(size=50, filled=True)).encode(
            y=alt.Y("sigma:Q", title="expected effective σ of a score", scale=alt.Scale(domainMin=0)),
            tooltip=["adversary:N", "round:Q", _tooltip(alt, "sigma")],
        )
    ]
    if noise:
        end = max(row["round"] for row in sigmas)
        layers += _labeled_line(alt, _claim_line(noise, end) | {"text": f"perfect: {noise:.3g}"})
    chart = alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT)
    return _titled(chart, "all adversaries", "how well canaries can be seen")


def pictures(result: Result) -> Any:
    """Draw the last canaries as pictures."""
    import altair as alt

    images = [sample for sample in crafted_samples(result) if sample["kind"] == "image"]
    panels = [
        alt.Chart(alt.InlineData(values=[{"png": image["png"]}]))
        .mark_image(width=112, height=112)
        .encode(url="png:N", x=alt.value(56), y=alt.value(56))
        .properties(width=112, height=112, title=alt.TitleParams(image["caption"], fontSize=11, fontWeight="normal"))
        for image in images
    ]
    grid = alt.concat(*panels, columns=min(6, len(panels)), spacing=14).configure_view(stroke=None)
    return _titled(grid, result.label, "the last canaries")


def _round_rows(result: Result) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a row for each estimate drawn of each period, and one for each ceiling."""
    rows, ceilings = [], []
    for period in result.details["rounds"]:
        first, last = period["round"], period["round"] + period["rounds"]
        span = {"from": first, "to": last}
        for place, (name, method, _, _) in enumerate(_SERIES):
            estimate = bound_of(period) if method is None else estimate_of(period, method)
            if estimate is None:
                continue
            interval = (None, None) if method is None else (estimate["lower"], estimate["upper"])
            lower, upper = map(from_json, interval)
            # Slightly apart, so that intervals do not cover one another.
            middle = first + (last - first) * (0.4 + 0.1 * place)
            epsilon = from_json(estimate["epsilon"])
            rows.append(span | {"middle": middle, "figure": name, "epsilon": epsilon, "lower": lower, "upper": upper})
        for name, text, color in (("rate_ceiling", "of rates", ESTIMATE), ("ceiling", "of the bound", BOUND)):
            if period[name] is not None:
                ceilings.append(span | {"epsilon": period[name], "text": f"ceiling {text}", "color": color})
    return rows, ceilings


def _claim_line(epsilon: float, end: float) -> dict[str, Any]:
    return {"epsilon": epsilon, "label": epsilon, "text": f"claim {epsilon:.3g}", "to": end, "color": THEORY}


def _labeled_line(alt: Any, row: Mapping[str, Any]) -> list[Any]:
    """Return a dashed line across the figure with a label at its right end."""
    return [_rule(alt, row), _line_labels(alt, [row])]


def _rule(alt: Any, row: Mapping[str, Any]) -> Any:
    base = alt.Chart(alt.InlineData(values=[row]))
    return base.mark_rule(color=THEORY, strokeDash=[6, 3], strokeWidth=2).encode(y="epsilon:Q")


def _spread_labels(rows: Sequence[Mapping[str, Any]], gap: float) -> list[dict[str, Any]]:
    """Return the rows with heights for their labels that are at least ``gap`` apart, from the lowest up."""
    spread: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: float(row["epsilon"])):
        lowest = spread[-1]["label"] + gap if spread else -math.inf
        spread.append(dict(row) | {"label": max(float(row["epsilon"]), lowest)})
    return spread


def _line_labels(alt: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the labels of lines at their right ends."""
    base = alt.Chart(alt.InlineData(values=list(rows)))
    return base.mark_text(align="left", dx=5, fontSize=11).encode(
        x="to:Q", y="label:Q", text="text:N", color=alt.Color("color:N", scale=None)
    )


def _rounds_axis(alt: Any, name: str) -> Any:
    return alt.X(f"{name}:Q", title="round", axis=alt.Axis(grid=False), scale=alt.Scale(domainMin=0, nice=False))


def _scale(alt: Any, names: Sequence[str], values: Mapping[str, str]) -> Any:
    return alt.Scale(domain=list(names), range=[values[name] for name in names])


def _tooltip(alt: Any, name: str) -> Any:
    return alt.Tooltip(f"{name}:Q", format=".3f")


def _titled(chart: Any, label: str, text: str) -> Any:
    return chart.properties(title=f"CANIFE, {label}: {text}")
