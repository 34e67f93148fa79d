"""Figures of the LDP audit: ε measured over ε promised, a panel for each adversary; all adversaries at one ε; norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coalmine.audits.result import AuditResult
from coalmine.errors import InputError
from coalmine.report.figures import save_in_every_format

if TYPE_CHECKING:
    import altair

    Chart = altair.LayerChart | altair.FacetChart

_COLOURS = {
    "theory": "#999999",
    "white-box": "#1f5fa8",
    "black-box": "#d9730d",
    "likelihood-ratio": "#2a8f5d",
    "parameter-change": "#a03f8f",
}


def rows(results: Sequence[AuditResult]) -> list[dict[str, Any]]:
    """A row for each result: adversary, what was promised, what was measured with its spread, the valid bound."""
    found = []
    for result in results:
        bound, spread = result.bound, result.metrics["empirical_std"]
        measured = result.metrics["empirical"] if math.isfinite(result.metrics["empirical"]) else None
        found.append(
            {
                "adversary": result.config["crafter"],
                "promised": result.config["epsilon"],
                "gradient norm": result.config["gradient_norm"],
                "seen by": result.view,
                "measured": measured,
                "low": None if measured is None else max(0.0, measured - spread),
                "high": None if measured is None else measured + spread,
                "bound": None if bound is None else bound.epsilon,
            }
        )
    return found


def sweep(results: Sequence[AuditResult], title: str) -> Chart:
    """Like Figure 2 of Matsumoto et al. (2022): a panel for each adversary, ε measured over ε promised.

    Lines are ε_empirical (an estimate, mean and standard deviation of the measurements), triangles the valid bounds.
    """
    import altair as alt

    data = rows(results)
    promised = sorted({row["promised"] for row in data})
    adversaries = list(dict.fromkeys(row["adversary"] for row in data))
    theory = [
        {"adversary": adversary, "promised": epsilon, "seen by": "theory", "measured": epsilon}
        for adversary in adversaries
        for epsilon in promised
    ]
    base = alt.Chart(alt.InlineData(values=data + theory)).encode(
        x=alt.X("promised:Q", title="ε promised"), color=_colour(alt, data)
    )
    layers = alt.layer(
        base.mark_line().encode(
            y=alt.Y("measured:Q", title="ε measured"),
            strokeDash=alt.condition("datum['seen by'] == 'theory'", alt.value([4, 3]), alt.value([1, 0])),
        ),
        base.mark_point(filled=True, size=30)
        .encode(
            y="measured:Q",
            tooltip=[
                "seen by:N",
                "promised:Q",
                alt.Tooltip("measured:Q", format=".3f"),
                alt.Tooltip("bound:Q", format=".3f"),
            ],
        )
        .transform_filter("datum['seen by'] != 'theory'"),
        base.mark_rule().encode(y="low:Q", y2="high:Q").transform_filter("datum['seen by'] != 'theory'"),
        base.mark_point(shape="triangle-up", size=45).encode(y="bound:Q").transform_filter("isValid(datum.bound)"),
    ).properties(width=210, height=170)
    facet = alt.Facet("adversary:N", sort=adversaries, title=None)
    return layers.facet(facet, columns=3).properties(title=title)


def summary(results: Sequence[AuditResult], title: str) -> Chart:
    """Like Figure 1(b): all adversaries at the largest ε promised, a point for each distinguisher, theory as a line."""
    import altair as alt

    largest = max(result.config["epsilon"] for result in results)
    data = [row for row in rows(results) if row["promised"] == largest]
    adversaries = list(dict.fromkeys(row["adversary"] for row in data))
    base = alt.Chart(alt.InlineData(values=data)).encode(
        x=alt.X("adversary:N", sort=adversaries, title=None, axis=alt.Axis(labelAngle=-30)),
        xOffset=alt.XOffset("seen by:N", sort=list(_COLOURS)),
        color=_colour(alt, data),
    )
    line = alt.Chart(alt.InlineData(values=[{"promised": largest}])).mark_rule(
        strokeDash=[4, 3], color=_COLOURS["theory"]
    )
    return alt.layer(
        line.encode(y="promised:Q"),
        base.mark_rule().encode(y="low:Q", y2="high:Q"),
        base.mark_point(filled=True, size=70).encode(y=alt.Y("measured:Q", title=f"ε measured, {largest:g} promised")),
        base.mark_point(shape="triangle-up", size=50).encode(y="bound:Q"),
    ).properties(width=420, height=260, title=title)


def norms(results: Sequence[AuditResult], title: str) -> Chart:
    """Like Figure 3: ε measured over the norm of the dummy gradient, a line for each ε promised."""
    import altair as alt

    data = [row for row in rows(results) if row["gradient norm"] is not None and row["seen by"] == "white-box"]
    if not data:
        raise InputError("a figure of norms needs results of the dummy gradient in the white-box view")
    base = alt.Chart(alt.InlineData(values=data)).encode(
        x=alt.X("gradient norm:Q", title="norm of the gradient"), color=alt.Color("promised:O", title="ε promised")
    )
    return alt.layer(
        base.mark_line(point=True).encode(y=alt.Y("measured:Q", title="ε measured")),
        base.mark_point(shape="triangle-up", size=50).encode(y="bound:Q"),
    ).properties(width=420, height=260, title=title)


def _colour(alt: Any, data: Sequence[dict[str, Any]]) -> Any:
    seen = [name for name in _COLOURS if name == "theory" or any(row["seen by"] == name for row in data)]
    return alt.Color(
        "seen by:N", title="seen by", scale=alt.Scale(domain=seen, range=[_COLOURS[name] for name in seen])
    )


def save_all(results: Sequence[AuditResult], data: str, directory: Path) -> list[Path]:
    """Every figure that fits the results, in every format."""
    many = len({result.config["epsilon"] for result in results}) > 1
    charts: dict[str, Any] = {"ldp-adversaries": summary(results, f"LDP audit: {data}")}
    if many:
        charts["ldp-sweep"] = sweep(results, f"LDP audit: {data}")
    if len({result.config["gradient_norm"] for result in results} - {None}) > 1:
        charts["ldp-norms"] = norms(results, f"LDP audit: {data}")
    return save_in_every_format(charts, directory)
