"""Standalone figures: their colors, and writing them to files.

Figures are drawn from what a run wrote, so that a run can be drawn long after it ended. The colors are distinguishable
with red-green color blindness, on white and on black.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coalmine.errors import InputError

THEORY = "#8a8a8a"
BOUND = "#1f6fb4"
ESTIMATE = "#e08a1e"
SERIES = ("#1f6fb4", "#e08a1e", "#2a9d6e", "#b3559b", "#7a5cc9", "#a7782f")
"""Colors of other series, such as views or adversaries."""

FORMATS: dict[str, dict[str, Any]] = {".html": {"inline": True}, ".svg": {}, ".png": {"scale_factor": 2}}
"""How a figure is written, by the file's ending; an .html file opens offline."""


def check_format(path: Path) -> None:
    """Raise if a figure cannot be written to a file with this ending."""
    if path.suffix not in FORMATS:
        raise InputError(f"a figure file must end in {', '.join(FORMATS)}, got {path.name!r}")


def save(chart: Any, path: Path) -> Path:
    """Write a figure in the format of the file's ending: .svg, .png, or .html that opens offline."""
    check_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.save(str(path), **FORMATS[path.suffix])
    return path


def save_in_every_format(charts: dict[str, Any], directory: Path) -> list[Path]:
    """Write every figure in every format and return the paths."""
    return [save(chart, directory / f"{name}{ending}") for name, chart in charts.items() for ending in FORMATS]
