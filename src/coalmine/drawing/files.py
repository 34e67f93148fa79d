"""What all figures share: colors that tell bounds from estimates from theory, and writing one to a file.

A figure is made from what a run wrote, the JSON of its result and the arrays beside it, so that a run can be drawn long
after it ended. Colors are told apart by people who see red and green alike, on white and on black.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coalmine.errors import InputError

THEORY = "#8a8a8a"
BOUND = "#1f6fb4"
ESTIMATE = "#e08a1e"
SERIES = ("#1f6fb4", "#e08a1e", "#2a9d6e", "#b3559b", "#7a5cc9", "#a7782f")
"""For series that are neither: views, adversaries, regimes."""

FORMATS = (".html", ".svg", ".png")


def save(chart: Any, path: Path) -> Path:
    """Write a figure as its ending says: .svg, .png, or .html that opens without a network."""
    if path.suffix not in FORMATS:
        raise InputError(f"a figure ends in {', '.join(FORMATS)}, got {path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        chart.save(str(path), inline=True)
    elif path.suffix == ".png":
        chart.save(str(path), scale_factor=2)
    else:
        chart.save(str(path))
    return path


def save_in_every_format(charts: dict[str, Any], directory: Path) -> list[Path]:
    """Every figure by its name, in every format."""
    return [save(chart, directory / f"{name}{ending}") for name, chart in charts.items() for ending in FORMATS]
