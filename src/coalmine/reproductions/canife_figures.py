"""Figures of CANIFE's reproductions: histograms of scores, and ε of single rounds along trainings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coalmine.drawing.files import SERIES, THEORY


def histograms(rows: Sequence[dict[str, Any]], title: str) -> Any:
    """Draw scores of rounds with and without the canary, like Figures 3a and 3b.

    Args:
        rows: One per round, with ``score``, ``round`` ("with" or "without"), ``canary`` and ``noise``. There is one
            panel per canary and noise multiplier.
        title: Title of the figure.
    """
    import altair as alt

    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_bar(opacity=0.6)
        .encode(
            x=alt.X("score:Q", bin=alt.Bin(maxbins=60), title="score (0 without, 1 with the canary)"),
            y=alt.Y("count():Q", stack=None, title="rounds"),
            color=alt.Color("round:N", title="canary", scale=alt.Scale(range=SERIES[:2])),
        )
        .properties(width=300, height=120)
        .facet(row=alt.Row("canary:N", title=None), column=alt.Column("noise:N", title="noise multiplier"))
        .resolve_scale(y="independent")
        .properties(title=title)
    )


def along_trainings(rows: Sequence[dict[str, Any]], title: str) -> Any:
    """Draw ε̂ᵣ with its interval along trainings, like Figures 4a, 4b and 6a.

    Args:
        rows: One per attacked round, with ``round``, ``epsilon``, ``lower``, ``upper``, ``canary``, ``data``,
            ``claimed``, and ``theory``, the ε of a single round, which is a dashed line. There is one panel per data
            set and claimed ε.
        title: Title of the figure.
    """
    import altair as alt

    chart = alt.Chart(alt.InlineData(values=list(rows)))
    base = chart.encode(
        x=alt.X("round:O"),
        xOffset=alt.XOffset("canary:N"),
        color=alt.Color("canary:N", title="canary", scale=alt.Scale(range=SERIES)),
    )
    layers = alt.layer(
        chart.mark_rule(strokeDash=[4, 3], color=THEORY).encode(y="theory:Q"),
        base.mark_rule(opacity=0.5).encode(y=alt.Y("lower:Q", title="ε of one round"), y2="upper:Q"),
        base.mark_point(filled=True, opacity=1).encode(y="epsilon:Q"),
    ).properties(width=180, height=130)
    panels = layers.facet(
        row=alt.Row("data:N", title=None), column=alt.Column("claimed:O", title="claimed ε of the training")
    )
    return panels.properties(title=title)
