"""Figures in Vega-Lite: their shared theme, their place in the page, and PNG files.

Colors are CSS variables of the page (``var(--bound)``), so its style sheet decides between light, dark and print, and
nothing is drawn twice. A PNG gets the light colors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalmine.drawing.html import Html, tag
from coalmine.files import write_whole

Spec = Mapping[str, Any]

COLORS = {
    "paper": ("#ffffff", "#14181d"),
    "ink": ("#1b2330", "#e7eaee"),
    "muted": ("#55606e", "#a9b2bd"),
    "line": ("#dde2e8", "#343b45"),
    "claim": ("#4b5563", "#c3c9d1"),
    "bound": ("#1760a8", "#76b5f2"),
    "estimate": ("#b45309", "#f0a85a"),
    "inserted": ("#0f766e", "#4fd1c0"),
    "held-out": ("#7b8494", "#8d96a3"),
    "refuted": ("#b3261e", "#ff8f86"),
}
"""The page's colors by name: on a light and on a dark background."""

PAPER, INK, MUTED, LINE, THEORY, BOUND, ESTIMATE, INSERTED, HELD_OUT, REFUTED = (f"var(--{name})" for name in COLORS)

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


def unit(data: Sequence[Mapping[str, Any]], layers: Sequence[Spec], *, height: int, **more: Any) -> dict[str, Any]:
    """Return layers over one table, as wide as their container, with the legend above."""
    return {
        "data": {"values": list(data)},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {"legend": {"orient": "top", "direction": "horizontal", "columns": 1, "offset": 6}},
        "layer": list(layers),
        **more,
    }


def layer(
    mark: str,
    style: Spec,
    *,
    data: Sequence[Mapping[str, Any]] | None = None,
    transform: Spec | None = None,
    **encoding: Any,
) -> dict[str, Any]:
    """Return one layer: a mark with its style, and what each channel (x, y, color, …) shows.

    Args:
        mark: Kind of mark, such as ``"line"``.
        style: Properties of the mark.
        data: A table of its own, if not that of the whole figure.
        transform: Applied to the table first.
        encoding: The channels.
    """
    source: dict[str, Any] = {} if data is None else {"data": {"values": list(data)}}
    if transform is not None:
        source["transform"] = [transform]
    return {**source, "mark": {"type": mark, **style}, "encoding": encoding}


def quantitative(field: str, title: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a channel that shows a number."""
    return {"field": field, "type": "quantitative", **({} if title is None else {"title": title}), **more}


def nominal(field: str, values: Mapping[str, Any], **legend: Any) -> dict[str, Any]:
    """Return a channel that shows a name by a value of its own, such as a color, with a legend."""
    scale = {"domain": list(values), "range": list(values.values())}
    return {"field": field, "type": "nominal", "scale": scale, "legend": {"title": None, **legend}}


def short(value: float) -> float:
    """Round to what a figure can show, to keep the page small."""
    return float(f"{value:.5g}")


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

    png = vl_convert.vegalite_to_png(standalone([figure]), scale=2)
    return write_whole(directory / f"{figure.name}.png", lambda beside: beside.write_bytes(png))


def standalone(figures: Sequence[Figure]) -> dict[str, Any]:
    """Return the Vega-Lite specification of figures below one another, on white and with nothing to move."""
    parts = [_still({"title": figure.title, **figure.spec}) for figure in figures]
    settings = dict(theme())
    for part in parts:
        for name, style in part.pop("config", {}).items():
            settings[name] = {**settings.get(name, {}), **style}
        if part.get("width") == "container":
            part["width"] = _PNG_WIDTH
        part.pop("autosize", None)
    spec = parts[0] if len(parts) == 1 else {"vconcat": parts}
    # The theme's background is that of the page.
    whole = {"padding": 12, **spec, "config": {**settings, "background": "#ffffff"}}
    on_paper: dict[str, Any] = json.loads(_on_paper(whole))
    return on_paper


def _still(spec: Spec) -> dict[str, Any]:
    """Return a specification with the first values of its parameters in place of their names."""

    def fixed(transform: Mapping[str, Any]) -> dict[str, Any]:
        filled = dict(transform)
        for name in ("calculate", "filter"):
            for parameter in spec.get("params", ()):
                if isinstance(filled.get(name), str):
                    filled[name] = re.sub(rf"\b{parameter['name']}\b", repr(parameter["value"]), filled[name])
        return filled

    layers = [{**layer, "transform": [fixed(t) for t in layer["transform"]]} if "transform" in layer else layer
              for layer in spec.get("layer", ())]  # fmt: skip
    kept = {key: value for key, value in spec.items() if key != "params"}
    return {**kept, "layer": layers} if layers else kept


def _on_paper(content: Spec) -> str:
    """Return JSON with the light colors and a font that exists everywhere."""
    text = json.dumps(content).replace(_FONT, "sans-serif")
    for name, (light, _) in COLORS.items():
        text = text.replace(f"var(--{name})", light)
    return text
