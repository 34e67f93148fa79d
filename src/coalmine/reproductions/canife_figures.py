"""Figures of CANIFE's reproductions: histograms of scores, and ε of single rounds along trainings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coalmine.drawing.files import SERIES, THEORY


def histograms(rows: Sequence[dict[str, Any]], title: str) -> Any:
    """Like Figures 3a and 3b: scores of rounds with and without the canary, a panel for each ``canary`` and ``noise``.

    Rows hold ``score``, ``round`` ("with" or "without"), ``canary`` and ``noise``.
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
    """Like Figures 4a, 4b and 6a: ε̂ᵣ with its interval over rounds, a panel for each ``data`` and ``promised`` ε.

    Rows hold ``round``, ``epsilon``, ``lower``, ``upper``, ``canary``, ``data``, ``promised``, and ``theory``: that of
    a single round, a dashed line.
    """
    import altair as alt

    every = alt.Chart(alt.InlineData(values=list(rows)))
    base = every.encode(
        x=alt.X("round:O"),
        xOffset=alt.XOffset("canary:N"),
        color=alt.Color("canary:N", title="canary", scale=alt.Scale(range=SERIES)),
    )
    layers = alt.layer(
        every.mark_rule(strokeDash=[4, 3], color=THEORY).encode(y="theory:Q"),
        base.mark_rule(opacity=0.5).encode(y=alt.Y("lower:Q", title="ε of one round"), y2="upper:Q"),
        base.mark_point(filled=True, opacity=1).encode(y="epsilon:Q"),
    ).properties(width=180, height=130)
    panels = layers.facet(row=alt.Row("data:N", title=None), column=alt.Column("promised:O", title="ε of the training"))
    return panels.properties(title=title)
