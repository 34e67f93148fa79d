"""Figures in Vega-Lite: their shared theme, their place in the page, and PNG files.

Colors are CSS variables of the page (``var(--bound)``), so its style sheet decides between light, dark and print, and
nothing is drawn twice. A PNG gets the light colors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalmine.drawing.html import Html, tag
from coalmine.files import write_whole

Spec = Mapping[str, Any]

PAPER, INK, MUTED, LINE = "var(--paper)", "var(--ink)", "var(--muted)", "var(--line)"
THEORY, BOUND, ESTIMATE = "var(--theory)", "var(--bound)", "var(--estimate)"
INSERTED, HELD_OUT = "var(--inserted)", "var(--held-out)"
REFUTED = "var(--refuted)"

LIGHT = {
    "--paper": "#ffffff",
    "--ink": "#1b2330",
    "--muted": "#55606e",
    "--line": "#dde2e8",
    "--theory": "#4b5563",
    "--bound": "#1760a8",
    "--estimate": "#b45309",
    "--inserted": "#0f766e",
    "--held-out": "#7b8494",
    "--refuted": "#b3261e",
}
"""The page's colors on a light background."""

DARK = {
    "--paper": "#14181d",
    "--ink": "#e7eaee",
    "--muted": "#a9b2bd",
    "--line": "#343b45",
    "--theory": "#c3c9d1",
    "--bound": "#76b5f2",
    "--estimate": "#f0a85a",
    "--inserted": "#4fd1c0",
    "--held-out": "#8d96a3",
    "--refuted": "#ff8f86",
}
"""The page's colors on a dark background."""

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', sans-serif"
_PNG_WIDTH = 640


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the report.

    Args:
        name: Unique name, for its anchor and its PNG file.
        title: Title, ending in a period.
        caption: How to read it.
        sentence: What it shows, for readers who cannot see it.
        chart: A Vega-Lite specification as a dictionary, or an altair chart.
    """

    name: str
    title: str
    caption: str
    sentence: str
    chart: Any

    @property
    def spec(self) -> Spec:
        """The Vega-Lite specification; the theme replaces an altair chart's own configuration."""
        if isinstance(self.chart, Mapping):
            return self.chart
        return {key: value for key, value in self.chart.to_dict().items() if key != "config"}


def unit(
    data: Sequence[Mapping[str, Any]], layers: Sequence[Spec], *, height: int, more: Spec | None = None
) -> dict[str, Any]:
    """Return layers over one table, as wide as their container, with the legend above."""
    return {
        "data": {"values": list(data)},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {"legend": {"orient": "top", "direction": "horizontal", "columns": 1, "offset": 6}},
        "layer": list(layers),
        **(more or {}),
    }


def theme() -> dict[str, Any]:
    """Return the theme of all figures: no background, quiet axes, the page's font."""
    text = {"labelFont": _FONT, "titleFont": _FONT}
    return {
        "background": "transparent",
        "aria": False,
        "font": _FONT,
        "view": {"stroke": None},
        "text": {"color": INK, "font": _FONT, "fontSize": 12},
        "title": {"color": INK, "subtitleColor": MUTED, "font": _FONT, "anchor": "start", "fontSize": 13},
        "axis": {
            **text,
            "labelColor": MUTED,
            "titleColor": MUTED,
            "titleFontWeight": "normal",
            "labelFontSize": 11,
            "titleFontSize": 12,
            "domainColor": LINE,
            "tickColor": LINE,
            "gridColor": LINE,
            "gridOpacity": 0.7,
            "labelOverlap": "greedy",
            "labelSeparation": 8,
        },
        "header": {**text, "labelColor": INK, "titleColor": MUTED},
        "legend": {
            **text,
            "labelColor": INK,
            "titleColor": MUTED,
            "titleFontWeight": "normal",
            "labelFontSize": 12,
            "labelLimit": 300,
        },
    }


def placed(figure: Figure) -> Html:
    """Return the figure's container in the page, where a script draws it."""
    return tag(
        "figure",
        None,
        tag("figcaption", None, tag("strong", None, figure.title), " ", tag("span", None, figure.caption)),
        tag("div", {"class": "drawing", "id": f"figure-{figure.name}", "role": "img", "aria-label": figure.sentence}),
    )


def write_png(figure: Figure, directory: Path) -> Path:
    """Write the figure as ``NAME.png`` on white and return the path."""
    import vl_convert  # loaded only to draw

    spec = {"background": "#ffffff", "padding": 12, "title": figure.title, **figure.spec}
    if spec.get("width") == "container":
        spec |= {"width": _PNG_WIDTH, "autosize": {"type": "pad"}}
    text, settings = _on_paper(spec), _on_paper(theme())
    png = vl_convert.vegalite_to_png(json.loads(text), scale=2, config=json.loads(settings))
    return write_whole(directory / f"{figure.name}.png", lambda beside: beside.write_bytes(png))


def _on_paper(content: Spec) -> str:
    """Return JSON with the light colors and a font that exists everywhere."""
    text = json.dumps(content).replace(_FONT, "sans-serif")
    for name, color in LIGHT.items():
        text = text.replace(f"var({name})", color)
    return text
