"""Figures of the reproductions about exposure: baselines, exposure → ε, and the effect of calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coalmine.drawing.files import SERIES, THEORY

_DECADES = [10**power for power in range(1, 6)]  # labelling every tick would make the labels overlap


def baseline_curves(rows: Sequence[dict[str, Any]]) -> Any:
    """Draw the exposure that random guessing has.

    Args:
        rows: With ``references``, ``exposure`` and ``statistic``.
    """
    import altair as alt

    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_line()
        .encode(
            x=alt.X("references:Q", scale=alt.Scale(type="log"), title="references", axis=alt.Axis(values=_DECADES)),
            y=alt.Y("exposure:Q", title="exposure of a canary that was not memorized"),
            color=alt.Color("statistic:N", title=None, scale=alt.Scale(range=SERIES)),
        )
        .properties(width=420, height=240, title="Random guessing: 1/ln 2, 1 and 2 bits for many references")
    )


def epsilon_curves(rows: Sequence[dict[str, Any]]) -> Any:
    """Draw ε by exposure.

    Args:
        rows: With ``exposure``, ``epsilon`` and ``quantile`` of the canaries that the exposure belongs to.
    """
    import altair as alt

    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_line()
        .encode(
            x=alt.X("exposure:Q", title="exposure at the quantile (bits)"),
            y=alt.Y("epsilon:Q", title="ε (estimate)"),
            color=alt.Color("quantile:N", title="quantile of canaries", scale=alt.Scale(range=SERIES)),
        )
        .properties(width=420, height=240, title="The ε that an exposure stands for")
    )


def exposed_shares(rows: Sequence[dict[str, Any]]) -> Any:
    """Draw the share of canaries above each exposure, beside random guessing.

    Args:
        rows: With ``exposure``, ``share`` and ``scores`` (raw or calibrated, or random guessing, which is dashed).
    """
    import altair as alt

    chart = alt.Chart(alt.InlineData(values=list(rows))).encode(
        x=alt.X("exposure:Q", title="exposure (bits)"), y=alt.Y("share:Q", title="canaries at least as exposed")
    )
    guessing = alt.datum.scores == "random guessing"
    measured = chart.transform_filter(~guessing).mark_line(interpolate="step-after")
    return alt.layer(
        chart.transform_filter(guessing).mark_line(strokeDash=[4, 3], color=THEORY),
        measured.encode(color=alt.Color("scores:N", title="losses", scale=alt.Scale(range=SERIES))),
    ).properties(width=420, height=240, title="Exposure with raw and with calibrated losses; random guessing is dashed")
