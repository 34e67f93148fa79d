"""Figures of CANIFE's reproductions: histograms of scores, ε along trainings, and numbers by a setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coalmine_reproductions.figures import SERIES, THEORY


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
            ``claimed``, and, if there is noise, ``claim``, the ε of a single round, which is a dashed line. There is
            one panel per data set and claimed ε.
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
        chart.mark_rule(strokeDash=[4, 3], color=THEORY).encode(y="claim:Q"),
        base.mark_rule(opacity=0.5).encode(y=alt.Y("lower:Q", title="ε of one round"), y2="upper:Q"),
        base.mark_point(filled=True, opacity=1).encode(y="epsilon:Q"),
    ).properties(width=180, height=130)
    panels = layers.facet(
        row=alt.Row("data:N", title=None),
        column=alt.Column("claimed:N", title="claimed ε of the training", sort=None),
    )
    return panels.properties(title=title)


def composed_along(rows: Sequence[dict[str, Any]], title: str) -> Any:
    """Draw ε and ε̂ spent so far along trainings, like Figure 1.

    Args:
        rows: Points with ``round``, ``epsilon``, ``what`` ("ε" or "ε̂"), ``data`` and ``claimed``, the ε of the whole
            training. There is one panel per data set.
        title: Title of the figure.
    """
    import altair as alt

    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_line(point=True)
        .encode(
            x=alt.X("round:Q", title="rounds"),
            y=alt.Y("epsilon:Q", title="ε spent so far", scale=alt.Scale(type="log")),
            color=alt.Color("claimed:N", title="claimed ε", sort=None, scale=alt.Scale(range=SERIES)),
            strokeDash=alt.StrokeDash("what:N", title=None),
        )
        .properties(width=220, height=160)
        .facet(column=alt.Column("data:N", title=None))
        .resolve_scale(x="independent")
        .properties(title=title)
    )


def points(
    rows: Sequence[dict[str, Any]], *, x: tuple[str, str], y: tuple[str, str], color: tuple[str, str], title: str
) -> Any:
    """Draw one point per row, like Figure 7.

    Args:
        rows: What is drawn.
        x: Column and title of the horizontal axis.
        y: Column and title of the vertical axis.
        color: Column and title of the colors.
        title: Title of the figure.
    """
    import altair as alt

    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_point(filled=True)
        .encode(
            x=alt.X(f"{x[0]}:Q", title=x[1], scale=alt.Scale(zero=False)),
            y=alt.Y(f"{y[0]}:Q", title=y[1]),
            color=alt.Color(f"{color[0]}:N", title=color[1], scale=alt.Scale(range=SERIES)),
        )
        .properties(width=320, height=220, title=title)
    )


def lines(
    rows: Sequence[dict[str, Any]],
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    color: str | None = None,
    panel: str | None = None,
    log: bool = False,
    title: str,
) -> Any:
    """Draw a number by a setting, like Figures 3c, 5, 8 and 9.

    Args:
        rows: What is drawn.
        x: Column and title of the setting.
        y: Column and title of the number.
        color: Column that separates lines.
        panel: Column that separates panels, each with its own vertical axis.
        log: Whether the setting's axis is logarithmic.
        title: Title of the figure.
    """
    import altair as alt

    scale = alt.Scale(type="log") if log else alt.Scale(zero=False)
    chart = alt.Chart(alt.InlineData(values=list(rows))).mark_line(point=True)
    chart = chart.encode(
        x=alt.X(f"{x[0]}:Q", title=x[1], scale=scale), y=alt.Y(f"{y[0]}:Q", title=y[1], scale=alt.Scale(zero=False))
    )
    if color is not None:
        chart = chart.encode(color=alt.Color(f"{color}:N", sort=None, scale=alt.Scale(range=SERIES)))
    chart = chart.properties(width=260, height=180)
    if panel is None:
        return chart.properties(title=title)
    panels = chart.facet(column=alt.Column(f"{panel}:N", title=None, sort=None)).resolve_scale(y="independent")
    return panels.properties(title=title)
