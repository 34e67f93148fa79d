"""The secret-sharer section of the report: a heat map, the best-remembered phrases, then every view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coalmine.drawing import numbers
from coalmine.drawing.charts import ESTIMATE, INK, LINE, Figure, placed, unit
from coalmine.drawing.html import Html, joined, paragraphs, table, tag
from coalmine.drawing.sections import Part, Section, method_section, result_part
from coalmine.methods.registry import get
from coalmine.results.result import MethodResults, Result, from_json

_SHOWN_PHRASES = 12
_GROUP_PRIVACY = "Its scores are those of the phrases; the ε of one user follows from it by group privacy."


def section(method_results: MethodResults) -> Section:
    """Return the section of the report."""
    memorization = method_results.extras.get("memorization")
    figures = [] if not memorization else [memorized(memorization, "secret-sharer-memorized")]
    lead = [
        paragraphs([method_results.summary or ""]),
        tag("div", {"class": "narrow"}, *map(placed, figures)),
        Html("") if not memorization else _phrase_table(memorization),
    ]
    views = [_view_part(result, i) for i, result in enumerate(method_results.results)]
    return method_section(get("secret-sharer"), [Part(html=joined(lead), figures=figures), *views])


def _view_part(result: Result, place: int) -> Part:
    """Return one view; the scores behind a user's ε are drawn with the phrases', whose ε they show."""
    if result.view.endswith(":user"):
        return result_part(replace(result, scores=None), place, note=_GROUP_PRIVACY)
    return result_part(result, place)


def memorized(memorization: Mapping[str, Any], name: str) -> Figure:
    """Return a heat map, p_u by p_e: how many phrases of each configuration the model has memorized."""
    data = [
        {
            "p_u": f"{c['p_u']:g}",
            "p_e": f"{c['p_e']:g}",
            "share": c["random_sampling"] / max(1, c["canaries"]),
            "memorized": f"{c['random_sampling']} of {c['canaries']}",
            "details": f"{c['beam_search']} extracted · {c['median_exposure']:.1f} bits",
        }
        for c in memorization["configurations"]
    ]
    x = {
        "field": "p_u",
        "type": "ordinal",
        "title": "p_u: share of users who hold it",
        "axis": {"labelAngle": 0},
        "sort": None,
    }
    y = {"field": "p_e", "type": "ordinal", "title": "p_e: share of their examples", "sort": "descending"}
    opacity = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "range": [0.06, 0.75]},
        "legend": None,
    }
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "rect", "color": ESTIMATE, "stroke": LINE, "strokeWidth": 1},
            "encoding": {"x": x, "y": y, "fillOpacity": opacity},
        },
        {
            "mark": {"type": "text", "dy": -8, "fontSize": 14, "fontWeight": 600, "color": INK},
            "encoding": {"x": x, "y": y, "text": {"field": "memorized", "type": "nominal"}},
        },
        {
            "mark": {"type": "text", "dy": 10, "fontSize": 11, "color": INK},
            "encoding": {"x": x, "y": y, "text": {"field": "details", "type": "nominal"}},
        },
    ]
    cells = "; ".join(f"p_u {d['p_u']}, p_e {d['p_e']}: {d['memorized']}, {d['details']}" for d in data)
    references = memorization.get("references")
    references_text = "every random phrase" if references is None else f"all {references:,} random phrases"
    return Figure(
        name=name,
        title="Memorized phrases.",
        caption=f"Memorized: the model finds the phrase likelier than {references_text}. Below: how many are "
        "extracted, that is, the first result of a beam search, and the median exposure.",
        sentence=f"Heat map of memorized phrases, extracted phrases and median exposure: {cells}.",
        chart=unit(data, layers, height=max(190, 70 * len({d["p_e"] for d in data}))),
    )


def _phrase_table(memorization: Mapping[str, Any]) -> Html:
    """Return the inserted phrases with the highest exposure."""
    inserted = [c for c in memorization.get("canaries", ()) if c["planted"]]
    if not inserted:
        return Html("")
    inserted.sort(key=lambda c: -from_json(c["exposure"] if c["exposure"] is not None else 0.0))
    rows = [
        [
            str(c["phrase"]),
            f"{c['p_u']:g}",
            f"{c['p_e']:g}",
            numbers.metric(c.get("users", "–")),
            numbers.metric(c.get("copies", "–")),
            "–" if c["exposure"] is None else f"{from_json(c['exposure']):.1f}",
            "yes" if c.get("rank") == 1 and c.get("among") == memorization.get("references") else "no",
            "yes" if c.get("extracted") else "no",
        ]
        for c in inserted[:_SHOWN_PHRASES]
    ]
    columns = ["phrase", "p_u", "p_e", "users", "copies", "exposure (bits)", "memorized", "extracted"]
    return table(f"The inserted phrases with the highest exposure ({len(rows)} of {len(inserted)})", columns, rows)
