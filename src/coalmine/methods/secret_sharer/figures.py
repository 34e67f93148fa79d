"""Figures of the secret-sharer audit: what was memorized where, how exposed canaries are, regimes compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coalmine.drawing.files import SERIES, THEORY
from coalmine.errors import InputError

if TYPE_CHECKING:
    import altair

    Chart = altair.LayerChart | altair.FacetChart

_METHODS = {"random_sampling": "random sampling", "beam_search": "beam search"}
_FOUND = {"random_sampling": "memorized (random sampling)", "beam_search": "extracted (beam search)"}
_PLANTED, _HELD_OUT, _CHANCE = "planted", "held out", "random guessing"


def charts(result: Mapping[str, Any], memorization: Mapping[str, Any]) -> dict[str, Chart]:
    """Every figure that fits what a run wrote, ``result.json`` and ``memorization.json``, by name."""
    title = _title(result)
    found: dict[str, Chart] = {}
    if memorization["configurations"]:
        found["secret-sharer-memorized"] = memorized(memorization, title)
    if memorization["canaries"]:
        found["secret-sharer-exposure"] = exposure(memorization, title)
    return found


def memorized(memorization: Mapping[str, Any], title: str) -> Chart:
    """A heat map for each method, p_u across and p_e up: how many canaries of each configuration are memorized."""
    import altair as alt

    data = [
        {
            "p_u": f"{row['p_u']:.3g}",
            "p_e": f"{100 * row['p_e']:.3g}%",
            "method": name,
            "memorized": row[key],
            "canaries": row["canaries"],
            "share": row[key] / row["canaries"],
            "text": f"{row[key]} of {row['canaries']}",
        }
        for row in memorization["configurations"]
        for key, name in _FOUND.items()
    ]
    by_frequency = sorted(memorization["configurations"], key=lambda row: (row["p_u"], row["p_e"]))
    users = list(dict.fromkeys(f"{row['p_u']:.3g}" for row in by_frequency))
    examples = list(
        dict.fromkeys(f"{100 * p:.3g}%" for p in sorted({row["p_e"] for row in by_frequency}, reverse=True))
    )
    base = alt.Chart(alt.InlineData(values=data)).encode(
        x=alt.X("p_u:N", sort=users, title="p_u: share of users who hold it", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("p_e:N", sort=examples, title="p_e: of their examples"),
    )
    cells = base.mark_rect(stroke="#b5b5b5", strokeWidth=1).encode(
        color=alt.Color(
            "share:Q",
            title="share",
            scale=alt.Scale(domain=[0, 1], range=["#f2f2f2", SERIES[0]]),
            legend=alt.Legend(format="%", values=[0, 0.5, 1]),
        ),
        tooltip=["method:N", "p_u:N", "p_e:N", "memorized:Q", "canaries:Q"],
    )
    words = base.mark_text().encode(
        text="text:N", color=alt.condition("datum.share > 0.6", alt.value("white"), alt.value("black"))
    )
    layers = alt.layer(cells, words).properties(width=max(200, 62 * len(users)), height=max(150, 42 * len(examples)))
    facet = alt.Facet("method:N", sort=list(_FOUND.values()), title=None)
    return layers.facet(facet, columns=2).properties(title=f"Canaries memorized and extracted. {title}")


def exposure(memorization: Mapping[str, Any], title: str) -> Chart:
    """How many canaries are at least so exposed: planted, held out, and what random guessing gives, 2^−exposure."""
    import altair as alt

    top = math.log2(memorization["references"])
    data = [{"exposure": e, "share": 2.0**-e, "of": _CHANCE} for e in np.linspace(0, top, 200).tolist()]
    for name, planted in ((_PLANTED, True), (_HELD_OUT, False)):
        own = sorted(
            (max(0.0, c["exposure"]) for c in memorization["canaries"] if c["planted"] == planted), reverse=True
        )
        points = {e: (i + 1) / len(own) for i, e in enumerate(own)}
        if points:
            # a curve falls after its canary's exposure, and goes on to where nobody is
            curve = [(0.0, 1.0), *sorted(points.items()), (top, sum(e > top - 1e-6 for e in own) / len(own))]
            data += [{"exposure": e, "share": share, "of": name} for e, share in curve]
    names = [name for name in (_PLANTED, _HELD_OUT, _CHANCE) if any(row["of"] == name for row in data)]
    colors = {_PLANTED: SERIES[0], _HELD_OUT: SERIES[1], _CHANCE: THEORY}
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
    """How many canaries each regime of a reproduced table memorizes, by both methods; the paper's as open circles.

    ``table`` is what ``coalmine reproduce secret-sharer-table-1 --out DIR`` writes: title, columns and rows.
    """
    import altair as alt

    columns: Sequence[str] = table["columns"]
    if columns[1:2] != ["paper: RS"] or "ours: RS" not in columns:
        raise InputError(f"a figure of regimes needs a table of the secret-sharer paper, got {table['title']!r}")
    ours = columns.index("ours: RS")
    data = [
        {"setting": row[0], "method": name, "ours": int(row[ours + shift]), "paper": int(row[1 + shift])}
        for row in table["rows"]
        for shift, name in ((0, "random sampling"), (2, "beam search"))
    ]
    methods = list(_METHODS.values())
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


def _title(result: Mapping[str, Any]) -> str:
    """From the settings of a run, where there are any: a model asked after the fact has none."""
    results: Sequence[Mapping[str, Any]] = result.get("results", [result])
    config = next((found["config"] for found in results if "regime" in found.get("config", {})), None)
    return "" if config is None else f"{config['data']}, {config['regime']}, {config['users']} users"
