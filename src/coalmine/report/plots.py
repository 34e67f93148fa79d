"""Charts of results for notebooks and papers: the figures of the report, as altair charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coalmine.drawing.charts import Figure, standalone
from coalmine.errors import InputError, did_you_mean
from coalmine.report.page import section_of
from coalmine.report.picture import picture
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import grouped

KINDS = ("epsilon", "roc", "scores", "rounds")
"""The charts that `plot` draws."""

_NEEDS = {
    "roc": "scores of inserted and held-out canaries",
    "scores": "scores of inserted and held-out canaries",
    "rounds": "estimates along the training, which only CANIFE makes",
}


def plot(results: Sequence[Result], kind: str = "epsilon") -> Any:
    """Return an altair chart of results.

    Args:
        results: One result or more.
        kind: One of `KINDS`.

    Raises:
        InputError: If there is no such kind, or no result has what it shows.
    """
    if kind not in KINDS:
        raise InputError(f"there is no plot {kind!r}. {did_you_mean(kind, KINDS)}")
    if not results:
        raise InputError("there are no results to plot")
    figures = _figures(results, kind)
    if not figures:
        raise InputError(f"there is nothing to plot: {kind} needs {_NEEDS[kind]}")
    import altair  # loaded only to draw

    return altair.Chart.from_dict(standalone(figures))


def _figures(results: Sequence[Result], kind: str) -> list[Figure]:
    if kind == "epsilon":
        return [picture(grouped(results))]
    return [
        replace(figure, title=f"{figure.title.rstrip('.')}: {result.method}, {result.label}")
        for result in results
        for figure in section_of(MethodResults(method=result.method, results=[result])).figures
        if figure.name.endswith(f"-{kind}")
    ]
