"""Colors of figures, and writing them to files. Red-green color blindness leaves them distinguishable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coalmine.report.charts import FORMATS, save

THEORY = "#8a8a8a"
BOUND = "#1f6fb4"
ESTIMATE = "#e08a1e"
SERIES = ("#1f6fb4", "#e08a1e", "#2a9d6e", "#b3559b", "#7a5cc9", "#a7782f")
"""Colors of other series, such as views or adversaries."""


def save_in_every_format(charts: dict[str, Any], directory: Path) -> list[Path]:
    """Write every figure in every format and return the paths."""
    return [save(chart, directory / f"{name}{ending}") for name, chart in charts.items() for ending in FORMATS]
