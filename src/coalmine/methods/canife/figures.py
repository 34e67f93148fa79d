"""Figures of a CANIFE audit, from what it wrote: ``result.json`` and ``trials-VIEW.npz``.

Blue are bounds that hold, orange estimates, gray what theory promises; dotted lines are ceilings, beyond which so few
trials cannot show anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.arrays import Arrays
from coalmine.drawing.files import BOUND, ESTIMATE, SERIES, THEORY, save_in_every_format
from coalmine.drawing.pictures import is_picture, png_uri
from coalmine.errors import InputError
from coalmine.results.result import file_name

Result = Mapping[str, Any]

_WIDTH, _HEIGHT = 560, 280
_WITH, _WITHOUT = SERIES[3], SERIES[2]

# What is drawn of each stretch of rounds: its name in the legend, the method's in the result, color, shape.
_FIGURES = (
    ("Gaussian shift (estimate)", "gaussian-shift", "#f0bd80", "diamond"),
    ("best threshold (estimate, as published)", "best-threshold", ESTIMATE, "circle"),
    ("valid bound", None, BOUND, "triangle-up"),
)
_PANELS = 6
_BINS = 24


def charts(result: Result, arrays: Arrays) -> dict[str, Any]:
    """All figures that fit one result, by name; ``arrays`` are those of its ``trials-VIEW.npz``."""
    found: dict[str, Any] = {"canife-rounds": rounds(result), "canife-scores": scores(result, arrays)}
    if result["composed"]:
        found["canife-composed"] = composed(result)
    if any(one["kind"] == "image" for one in canaries(result, arrays)):
        found["canife-canaries"] = pictures(result, arrays)
    return found


def rounds(result: Result) -> Any:
    """Like the paper's figures 1 and 4: ε of one round along the training, beside what theory promises of one round.

    A bar is as long as the rounds that an estimate stands for; its interval is near their middle. An interval or a
    figure without an end goes to the edge.
    """
    import altair as alt

    rows, ends = _rows(result)
    if not rows:
        raise InputError("the result has no estimate of a single round to draw")
    theory = _theory(result["theory"])
    shown = [row["epsilon"] for row in rows] + [end["epsilon"] for end in ends]
    shown += [row["upper"] for row in rows if row["upper"] is not None] + ([theory] if theory else [])
    top = 1.08 * max(number for number in shown if math.isfinite(number))
    for row in rows:
        row["upper"] = None if row["upper"] is None else min(row["upper"], top)
        row["epsilon"] = min(row["epsilon"], top)
    names = [name for name, *_ in _FIGURES if any(row["figure"] == name for row in rows)]
    colors = {name: color for name, _, color, _ in _FIGURES}
    shapes = {name: shape for name, _, _, shape in _FIGURES}
    axis = alt.Y("epsilon:Q", title="ε of one round", scale=alt.Scale(domain=[-0.02 * top, top], nice=False))
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        color=alt.Color(
            "figure:N",
            title=None,
            sort=names,
            scale=alt.Scale(domain=names, range=[colors[name] for name in names]),
            legend=alt.Legend(orient="top", labelLimit=300),
        ),
    )
    layers = [
        base.mark_rule(strokeWidth=2).encode(x=_rounds_axis(alt, "from"), x2="to:Q", y=axis),
        base.mark_rule(strokeWidth=1.2, opacity=0.7)
        .encode(x="middle:Q", y="lower:Q", y2="upper:Q")
        .transform_filter("isValid(datum.upper)"),
        base.mark_point(filled=True, size=65, opacity=1).encode(
            x="middle:Q",
            y="epsilon:Q",
            shape=alt.Shape("figure:N", title=None, sort=names, scale=_listed(alt, names, shapes)),
            tooltip=["figure:N", "from:Q", "to:Q", *(_three(alt, n) for n in ("epsilon", "lower", "upper"))],
        ),
        alt.Chart(alt.InlineData(values=ends))
        .mark_rule(strokeDash=[2, 3], strokeWidth=1.5)
        .encode(x="from:Q", x2="to:Q", y="epsilon:Q", color=alt.Color("color:N", scale=None)),
    ]
    promise = [_promise(theory, rows[-1]["to"])] if theory else []
    layers += [_rule(alt, row) for row in promise]
    layers.append(_names(alt, _apart([*ends[-2:], *promise], gap=0.05 * top)))
    return _titled(alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT), result, "ε of one round")


def scores(result: Result, arrays: Arrays) -> Any:
    """Like figure 3: histograms of the scores with the canary and without, with the normal curves that fit them.

    A panel for each estimate, of up to six of them: the first, the last and some between.
    """
    import altair as alt

    values, present, when = arrays["comparable"], arrays["present"].astype(bool), arrays["round"]
    starts = sorted({int(start) for start in when.tolist()})
    chosen = [
        starts[i] for i in np.unique(np.linspace(0, len(starts) - 1, min(_PANELS, len(starts))).round()).astype(int)
    ]
    picked = np.isin(when, chosen)
    edges = np.histogram_bin_edges(values[picked], _BINS)
    bars, curves, order = [], [], []
    for start in chosen:
        named, here = f"from round {start}", when == start
        order.append(named)
        for side in (False, True):
            some = values[here][present[here] == side]
            if not some.size:
                continue
            density, _ = np.histogram(some, edges, density=True)
            what = {"panel": named, "canary": "with the canary" if side else "without"}
            bars += [
                what | {"left": float(a), "right": float(b), "density": float(d), "zero": 0}
                for a, b, d in zip(edges, edges[1:], density, strict=False)
                if d
            ]
            std = float(some.std(ddof=1)) if some.size > 1 else 0.0
            if std:
                at = np.linspace(edges[0], edges[-1], 121)
                height = np.exp(-((at - some.mean()) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))
                curves += [what | {"score": float(x), "density": float(y)} for x, y in zip(at, height, strict=True)]
    color = alt.Color(
        "canary:N",
        title=None,
        scale=alt.Scale(domain=["without", "with the canary"], range=[_WITHOUT, _WITH]),
        legend=alt.Legend(orient="top"),
    )
    # One source for both: the panels of a facet share their data.
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
    return _titled(layers, result, "scores of single rounds")


def composed(result: Result) -> Any:
    """Like figure 4(c): ε̂ of the whole training by each way to it, beside what theory promises of the training."""
    import altair as alt

    theory = _theory(result["training_theory"])
    rows = [
        {
            "from": "ceiling of rates" if one["method"] == "ceiling" else one["method"],
            "way": "exact" if one["inversion"] == "exact" else "RDP, as in the paper",
            "epsilon": one["epsilon"],
            "zero": 0,
        }
        for one in result["composed"]
        if one["epsilon"] != "inf"
    ]
    order = list(dict.fromkeys(row["from"] for row in rows))
    end = 1.1 * max([0.1, *(row["epsilon"] for row in rows), *([theory] if theory else [])])
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("from:N", sort=order, title=None, axis=alt.Axis(labelLimit=200)),
        yOffset=alt.YOffset("way:N"),
        color=alt.condition("datum.from == 'ceiling of rates'", alt.value(THEORY), alt.value(ESTIMATE)),
    )
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        x=alt.X("epsilon:Q", title="ε of the whole training", scale=alt.Scale(domain=[0, end], nice=False)),
        shape=alt.Shape("way:N", title=None, legend=alt.Legend(orient="top", symbolFillColor=ESTIMATE)),
        tooltip=["from:N", "way:N", _three(alt, "epsilon")],
    )
    layers = [base.mark_rule(strokeWidth=1.5, opacity=0.5).encode(x="zero:Q", x2="epsilon:Q"), points]
    layers.append(
        base.mark_text(align="left", dx=9, fontSize=11).encode(x="epsilon:Q", text=alt.Text("epsilon:Q", format=".1f"))
    )
    if theory:
        at = alt.Chart(alt.InlineData(values=[{"epsilon": theory, "text": f"theory {theory:.3g}"}]))
        layers.append(at.mark_rule(color=THEORY, strokeDash=[6, 3], strokeWidth=2).encode(x="epsilon:Q"))
        layers.append(
            at.mark_text(color=THEORY, baseline="bottom", fontSize=11).encode(
                x="epsilon:Q", y=alt.value(-4), text="text:N"
            )
        )
    chart = alt.layer(*layers).properties(width=_WIDTH, height=46 * len(order))
    return _titled(chart, result, "ε of the whole training, estimated: none of these is a bound")


def adversaries(results: Sequence[Result]) -> dict[str, Any]:
    """Several adversaries of one training: each one's figures along it, and how well each sees its canaries."""
    import altair as alt

    rows, sigmas = [], []
    for result in results:
        for row in _rows(result)[0]:
            if row["figure"] != _FIGURES[0][0] and math.isfinite(row["epsilon"]):
                rows.append(row | {"adversary": result["view"]})
        for design in result["designs"]:
            known = [value for value in design["effective_sigma"] if value is not None]
            if known:
                sigmas.append({"adversary": result["view"], "round": design["round"], "sigma": float(np.median(known))})
    if not rows:
        raise InputError("no adversary has an estimate of a single round to draw")
    views = [result["view"] for result in results]
    color = alt.Color(
        "adversary:N",
        title=None,
        sort=views,
        scale=alt.Scale(domain=views, range=[SERIES[i % len(SERIES)] for i in range(len(views))]),
        legend=alt.Legend(orient="top", columns=2, labelLimit=300),
    )
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=_rounds_axis(alt, "middle"), color=color)
    kinds = [name for name, *_ in _FIGURES[1:]]
    layers = [
        base.mark_line(strokeWidth=1.5, opacity=0.6).encode(y="epsilon:Q", strokeDash=_dashes(alt, kinds)),
        base.mark_point(filled=True, size=60, opacity=1).encode(
            y=alt.Y("epsilon:Q", title="ε of one round", scale=alt.Scale(domainMin=0)),
            shape=alt.Shape(
                "figure:N",
                title=None,
                scale=_listed(alt, kinds, {name: shape for name, _, _, shape in _FIGURES}),
                legend=alt.Legend(orient="top", columns=1, labelLimit=300),
            ),
            tooltip=["adversary:N", "figure:N", "from:Q", _three(alt, "epsilon")],
        ),
    ]
    theory = _theory(results[0]["theory"])
    if theory:
        layers += _line(alt, _promise(theory, max(row["to"] for row in rows)))
    drawn = alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT)
    found = {"canife-adversaries": _titled(drawn, {"view": "all adversaries"}, "ε of one round")}
    if sigmas:
        seen = alt.Chart(alt.InlineData(values=sigmas)).encode(x=_rounds_axis(alt, "round"), color=color)
        lines = [
            seen.mark_line(point=alt.OverlayMarkDef(size=50, filled=True)).encode(
                y=alt.Y("sigma:Q", title="effective σ of a score, foretold", scale=alt.Scale(domainMin=0)),
                tooltip=["adversary:N", "round:Q", _three(alt, "sigma")],
            )
        ]
        noise = (results[0]["theory"] or {}).get("noise_multiplier")
        if noise:
            end = max(row["round"] for row in sigmas)
            lines += _line(alt, _promise(noise, end) | {"text": f"perfect: {noise:.3g}"})
        drawn = alt.layer(*lines).properties(width=_WIDTH, height=_HEIGHT)
        found["canife-sigma"] = _titled(drawn, {"view": "all adversaries"}, "how well canaries are seen")
    return found


def canaries(result: Result, arrays: Arrays) -> list[dict[str, Any]]:
    """The last canaries: of ``kind`` image with ``png`` (a ``data:`` address), text with ``text``, or numbers.

    Each has its ``target``, None in language models, and a ``caption``.
    """
    found = []
    for i, one in enumerate(result["canaries"]):
        target = one["target"]
        shown: dict[str, Any] = {
            "kind": one["kind"],
            "target": target,
            "caption": f"canary {i + 1}" if target is None else f"canary {i + 1}, as class {target}",
        }
        if one["kind"] == "text":
            shown["text"] = one["text"]
        elif is_picture(tuple(one["shape"])):
            span = None if one["range"] is None else (float(one["range"][0]), float(one["range"][1]))
            shown |= {"kind": "image", "png": png_uri(arrays["inputs"][i], span)}
        found.append(shown)
    return found


def pictures(result: Result, arrays: Arrays) -> Any:
    """The last canaries as pictures."""
    import altair as alt

    shown = [one for one in canaries(result, arrays) if one["kind"] == "image"]
    if not shown:
        raise InputError("the canaries are no pictures: canaries() gives them as texts")
    panels = [
        alt.Chart(alt.InlineData(values=[{"png": one["png"]}]))
        .mark_image(width=112, height=112)
        .encode(url="png:N", x=alt.value(56), y=alt.value(56))
        .properties(width=112, height=112, title=alt.TitleParams(one["caption"], fontSize=11, fontWeight="normal"))
        for one in shown
    ]
    grid = alt.concat(*panels, columns=min(6, len(panels)), spacing=14).configure_view(stroke=None)
    return _titled(grid, result, "the last canaries")


def save_all(results: Sequence[tuple[Result, Arrays]], directory: Path) -> list[Path]:
    """Every figure that fits the results, in every format; several results get a directory each."""
    paths = []
    for result, arrays in results:
        place = directory if len(results) == 1 else directory / file_name(result["view"])
        paths += save_in_every_format(charts(result, arrays), place)
    if len(results) > 1:
        paths += save_in_every_format(adversaries([result for result, _ in results]), directory)
    return paths


def _rows(result: Result) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row for each figure of each stretch, and one for each ceiling."""
    rows, ends = [], []
    for stretch in result["rounds"]:
        found = {one["method"]: one for one in stretch["estimates"]}
        valid = next((one for one in stretch["estimates"] if one["valid"]), None)
        first, last = stretch["round"], stretch["round"] + stretch["rounds"]
        where = {"from": first, "to": last}
        for place, (name, method, _, _) in enumerate(_FIGURES):
            where["middle"] = first + (last - first) * (0.4 + 0.1 * place)
            one = valid if method is None else found.get(method)
            if one is None:
                continue
            lower, upper = (None, None) if method is None else (_number(one["lower"]), _number(one["upper"]))
            rows.append(where | {"figure": name, "epsilon": _number(one["epsilon"]), "lower": lower, "upper": upper})
        for name, text, color in (("rate_ceiling", "of rates", ESTIMATE), ("ceiling", "of the bound", BOUND)):
            if stretch[name] is not None:
                ends.append(where | {"epsilon": stretch[name], "text": f"ceiling {text}", "color": color})
    return rows, ends


def _number(value: float | str | None) -> Any:
    return math.inf if value == "inf" else value


def _theory(theory: Mapping[str, Any] | None) -> float | None:
    return None if theory is None or theory["epsilon"] == "inf" else float(theory["epsilon"])


def _promise(epsilon: float, end: float) -> dict[str, Any]:
    return {"epsilon": epsilon, "label": epsilon, "text": f"theory {epsilon:.3g}", "to": end, "color": THEORY}


def _line(alt: Any, row: Mapping[str, Any]) -> list[Any]:
    """A dashed line across the figure, named at its right end."""
    return [_rule(alt, row), _names(alt, [row])]


def _rule(alt: Any, row: Mapping[str, Any]) -> Any:
    base = alt.Chart(alt.InlineData(values=[row]))
    return base.mark_rule(color=THEORY, strokeDash=[6, 3], strokeWidth=2).encode(y="epsilon:Q")


def _apart(rows: Sequence[Mapping[str, Any]], gap: float) -> list[dict[str, Any]]:
    """The same rows with places for their names that are ``gap`` apart at least, from the lowest up."""
    found: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: float(row["epsilon"])):
        least = found[-1]["label"] + gap if found else -math.inf
        found.append(dict(row) | {"label": max(float(row["epsilon"]), least)})
    return found


def _names(alt: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """What lines are, written at their right ends."""
    base = alt.Chart(alt.InlineData(values=list(rows)))
    return base.mark_text(align="left", dx=5, fontSize=11).encode(
        x="to:Q", y="label:Q", text="text:N", color=alt.Color("color:N", scale=None)
    )


def _rounds_axis(alt: Any, name: str) -> Any:
    return alt.X(f"{name}:Q", title="round", axis=alt.Axis(grid=False), scale=alt.Scale(domainMin=0, nice=False))


def _listed(alt: Any, names: Sequence[str], values: Mapping[str, str]) -> Any:
    return alt.Scale(domain=list(names), range=[values[name] for name in names])


def _dashes(alt: Any, kinds: Sequence[str]) -> Any:
    return alt.StrokeDash("figure:N", title=None, scale=alt.Scale(domain=list(kinds), range=[[4, 3], [1, 0]]))


def _three(alt: Any, name: str) -> Any:
    return alt.Tooltip(f"{name}:Q", format=".3f")


def _titled(chart: Any, result: Result, text: str) -> Any:
    return chart.properties(title=f"CANIFE, {result['view']}: {text}")
