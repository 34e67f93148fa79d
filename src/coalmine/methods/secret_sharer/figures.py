"""Figures for ``--figures``: memorized canaries by configuration, exposures, and the paper's regimes compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coalmine.drawing.files import SERIES, THEORY
from coalmine.errors import InputError
from coalmine.results.result import MethodResults

if TYPE_CHECKING:
    import altair

    Chart = altair.LayerChart | altair.FacetChart

_TESTS = {"random_sampling": "memorized (random sampling)", "beam_search": "extracted (beam search)"}
_INSERTED, _HELD_OUT, _CHANCE = "inserted", "held out", "random guessing"


def charts(method_results: MethodResults) -> dict[str, Chart]:
    """Return all figures of a run's results by name, drawn from its ``memorization`` document."""
    memorization: Mapping[str, Any] = method_results.extras.get("memorization") or {}
    title = _run_title(method_results)
    figures: dict[str, Chart] = {}
    if memorization.get("configurations"):
        figures["secret-sharer-memorized"] = memorized(memorization, title)
    if memorization.get("canaries"):
        figures["secret-sharer-exposure"] = exposure(memorization, title)
    return figures


def memorized(memorization: Mapping[str, Any], title: str) -> Chart:
    """Return a heat map per test, p_u by p_e: how many canaries of each configuration are memorized."""
    import altair as alt

    configurations = memorization["configurations"]
    data = [
        {
            "p_u": f"{row['p_u']:.3g}",
            "p_e": f"{100 * row['p_e']:.3g}%",
            "test": name,
            "memorized": row[key],
            "canaries": row["canaries"],
            "share": row[key] / row["canaries"],
            "text": f"{row[key]} of {row['canaries']}",
        }
        for row in configurations
        for key, name in _TESTS.items()
    ]
    users = list(dict.fromkeys(f"{p:.3g}" for p in sorted({row["p_u"] for row in configurations})))
    examples = list(
        dict.fromkeys(f"{100 * p:.3g}%" for p in sorted({row["p_e"] for row in configurations}, reverse=True))
    )
    base = alt.Chart(alt.InlineData(values=data)).encode(
        x=alt.X("p_u:N", sort=users, title="p_u: share of users who hold it", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("p_e:N", sort=examples, title="p_e: share of their examples"),
    )
    cells = base.mark_rect(stroke="#b5b5b5", strokeWidth=1).encode(
        color=alt.Color(
            "share:Q",
            title="share",
            scale=alt.Scale(domain=[0, 1], range=["#f2f2f2", SERIES[0]]),
            legend=alt.Legend(format="%", values=[0, 0.5, 1]),
        ),
        tooltip=["test:N", "p_u:N", "p_e:N", "memorized:Q", "canaries:Q"],
    )
    counts = base.mark_text().encode(
        text="text:N", color=alt.condition("datum.share > 0.6", alt.value("white"), alt.value("black"))
    )
    layers = alt.layer(cells, counts).properties(width=max(200, 62 * len(users)), height=max(150, 42 * len(examples)))
    facet = alt.Facet("test:N", sort=list(_TESTS.values()), title=None)
    return layers.facet(facet, columns=2).properties(title=f"Canaries memorized and extracted. {title}")


def exposure(memorization: Mapping[str, Any], title: str) -> Chart:
    """Return the share of canaries above each exposure: inserted, held out, and random guessing, which has 2^−e."""
    import altair as alt

    top = math.log2(memorization["references"])
    data = [{"exposure": e, "share": 2.0**-e, "of": _CHANCE} for e in np.linspace(0, top, 200).tolist()]
    for name, inserted in ((_INSERTED, True), (_HELD_OUT, False)):
        exposures = sorted(
            (max(0.0, c["exposure"]) for c in memorization["canaries"] if c["planted"] == inserted), reverse=True
        )
        points = {e: (i + 1) / len(exposures) for i, e in enumerate(exposures)}
        if points:
            # A curve drops after each canary's exposure and ends at the largest one that can be measured.
            end = (top, sum(e > top - 1e-6 for e in exposures) / len(exposures))
            curve = [(0.0, 1.0), *sorted(points.items()), end]
            data += [{"exposure": e, "share": share, "of": name} for e, share in curve]
    names = [name for name in (_INSERTED, _HELD_OUT, _CHANCE) if any(row["of"] == name for row in data)]
    colors = {_INSERTED: SERIES[0], _HELD_OUT: SERIES[1], _CHANCE: THEORY}
    base = alt.Chart(alt.InlineData(values=data)).encode(
        x=alt.X("exposure:Q", title="exposure in bits, at least", scale=alt.Scale(domain=[0, top], nice=False)),
        y=alt.Y("share:Q", title="share of canaries", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        color=alt.Color("of:N", title=None, scale=alt.Scale(domain=names, range=[colors[name] for name in names])),
        tooltip=["of:N", alt.Tooltip("exposure:Q", format=".2f"), alt.Tooltip("share:Q", format=".1%")],
    )
    lines = base.mark_line(interpolate="step-before").transform_filter(f"datum.of != '{_CHANCE}'")
    chance = base.mark_line(strokeDash=[4, 3]).transform_filter(f"datum.of == '{_CHANCE}'")
    return alt.layer(chance, lines).properties(width=420, height=260, title=f"Exposure. {title}")


def regimes(table: Mapping[str, Any]) -> Chart:
    """Return how many canaries each training regime of a reproduced table memorizes; circles are the paper's counts.

    Args:
        table: Title, columns and rows, as ``coalmine reproduce secret-sharer-table-1 --out DIR`` writes them.

    Raises:
        InputError: If it is not one of the secret-sharer tables.
    """
    import altair as alt

    columns: Sequence[str] = table["columns"]
    if columns[1:2] != ["paper: RS"] or "ours: RS" not in columns:
        raise InputError(f"regimes are drawn from a table of the secret-sharer paper, got {table['title']!r}")
    ours = columns.index("ours: RS")
    data = [
        {"setting": row[0], "method": name, "ours": int(row[ours + shift]), "paper": int(row[1 + shift])}
        for row in table["rows"]
        for shift, name in ((0, "random sampling"), (2, "beam search"))
    ]
    methods = ["random sampling", "beam search"]
    base = alt.Chart(alt.InlineData(values=data)).encode(
        y=alt.Y("setting:N", sort=[row[0] for row in table["rows"]], title=None, axis=alt.Axis(labelLimit=260)),
        yOffset=alt.YOffset("method:N", sort=methods),
        color=alt.Color("method:N", title=None, scale=alt.Scale(domain=methods, range=list(SERIES[:2]))),
        tooltip=["setting:N", "method:N", "ours:Q", "paper:Q"],
    )
    bars = base.mark_bar().encode(x=alt.X("ours:Q", title="canaries memorized; circles: the paper's"))
    paper = base.mark_point(size=45, strokeWidth=2, fill="white", opacity=1).encode(
        x="paper:Q", color=alt.value("#222222")
    )
    return alt.layer(bars, paper).properties(width=420, height=alt.Step(14), title=table["title"])


def _run_title(method_results: MethodResults) -> str:
    """Return data and regime of the training, or nothing for a stored model."""
    config = next((result.config for result in method_results.results if "regime" in result.config), None)
    return "" if config is None else f"{config['data']}, {config['regime']}, {config['users']} users"
