"""The figure of a sweep: ε against its first setting, a panel for each method, view and value of the others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from coalmine.errors import InputError
from coalmine.report import charts
from coalmine.results.tables import epsilons

if TYPE_CHECKING:
    from coalmine.runs.sweep import Sweep


def figure(sweep: Sweep) -> Any:
    """Return the altair chart of a sweep.

    Raises:
        InputError: If there is nothing to draw.
    """
    from coalmine.runs.sweep import as_number

    first = next(iter(sweep.axes))
    name = first.rpartition(".")[2].replace("_", " ")
    panels: dict[str, list[dict[str, Any]]] = {}
    for row in sweep.rows:
        result = row.result
        others = [f"{key} = {value}" for key, value in row.point.items() if key not in (first, "seed")]
        claim, bound, guess = epsilons(result)
        best = result.best_guess
        numbers = {"claim": claim, "bound": bound, "estimate": guess}
        numbers |= {"low": None if best is None else best.lower, "high": None if best is None else best.upper}
        finite = {key: value if value is not None and math.isfinite(value) else None for key, value in numbers.items()}
        about = {"x": as_number(row.point[first]), "about": row.directory.name, "refuted": result.refuted}
        panels.setdefault(", ".join([result.method, result.label, *others]), []).append({**about, **finite})
    if not panels:
        raise InputError("there is nothing to plot: the runs have no results")
    specs = {}
    for title, rows in panels.items():
        # At each value the largest claim of its runs, which usually are the same.
        largest: dict[Any, float] = {}
        for point in rows:
            if point["claim"] is not None:
                largest[point["x"]] = max(point["claim"], largest.get(point["x"], 0.0))
        line = [{"x": x, "claim": claim} for x, claim in largest.items()]
        specs[f"ε against {name}: {title}"] = charts.points(rows, x=name, y="ε", claims=line, height=240)
    return charts.as_altair(specs)
