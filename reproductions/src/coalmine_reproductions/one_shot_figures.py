"""Figures 1 and 2 of the one-shot paper, drawn from our trainings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from coalmine.arrays import Floats
from coalmine.drawing.files import BOUND, ESTIMATE, SERIES, THEORY

_POINTS = 160


def densities(cosines: Mapping[tuple[float, int], Floats]) -> Any:
    """Draw the densities of the cosines, a panel per noise multiplier and a curve per number of repetitions.

    Args:
        cosines: By noise multiplier and repetitions, in units of the null's standard deviation.
    """
    import altair as alt

    low = min(-4.0, *(float(values.min()) for values in cosines.values()))
    high = max(4.0, *(float(values.max()) for values in cosines.values()))
    places = np.linspace(low, high, _POINTS)
    rows = [
        {"noise": f"noise {noise:g}", "repetitions": str(times), "cosine": float(x), "density": float(y)}
        for (noise, times), values in cosines.items()
        for x, y in zip(places, stats.gaussian_kde(values)(places), strict=True)
    ]
    rows += [
        {"noise": f"noise {noise:g}", "repetitions": "null", "cosine": float(x), "density": float(stats.norm.pdf(x))}
        for noise in dict.fromkeys(noise for noise, _ in cosines)
        for x in places
    ]
    names = ["null", *dict.fromkeys(str(times) for _, times in cosines)]
    colors = ["black", *SERIES[: len(names) - 1]]
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line()
        .encode(
            x=alt.X("cosine:Q", title="cosine × √d"),
            y=alt.Y("density:Q"),
            color=alt.Color("repetitions:N", scale=alt.Scale(domain=names, range=colors), sort=names),
        )
        .properties(width=240, height=200)
        .facet(column=alt.Column("noise:N", title=None))
    )


def epsilon_bars(epsilons: Mapping[tuple[float, int], Mapping[str, float]]) -> Any:
    """Draw ε_est as bars and ε_lo as ticks, by repetitions, a panel with a scale of its own per noise multiplier.

    Args:
        epsilons: By noise multiplier and repetitions, with ``estimate``, ``published`` and ``bound``. The valid lower
            bound is a gray tick, which the paper does not have.
    """
    import altair as alt

    rows = [
        {"noise": f"noise {noise:g}", "repetitions": times}
        | {key: cell[key] for key in ("estimate", "published", "bound")}
        for (noise, times), cell in epsilons.items()
    ]
    chart = alt.Chart().encode(x=alt.X("repetitions:O", title="repetitions of each canary"))
    bars = chart.mark_bar(color=BOUND).encode(
        y=alt.Y("estimate:Q", title="ε_est (bar), ε_lo, valid lower bound (ticks)")
    )
    published = chart.mark_tick(color=ESTIMATE, thickness=3, width=20).encode(y="published:Q")
    valid = chart.mark_tick(color=THEORY, thickness=3, width=12).encode(y="bound:Q")
    return (
        alt.layer(bars, published, valid, data=alt.InlineData(values=rows))
        .properties(width=180, height=200)
        .facet(column=alt.Column("noise:N", title=None))
        .resolve_scale(y="independent")
    )
