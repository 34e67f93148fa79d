"""The files of results: ``result.json`` and, for each view, ``scores-VIEW.npz``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from coalmine import __version__
from coalmine.files import write_arrays, write_json
from coalmine.results.result import AuditResult, file_name

SCHEMA = 1


def results_to_dict(results: Sequence[AuditResult]) -> dict[str, Any]:
    """JSON-ready: one result as it is, several as a list."""
    return merged([result.to_dict() for result in results])


def merged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One result as it is, several as a list."""
    return dict(results[0]) if len(results) == 1 else {"results": [dict(result) for result in results]}


def save(results: Sequence[AuditResult], directory: Path) -> None:
    """Write ``result.json`` and, for each view, ``scores-VIEW.npz``: each whole or not at all."""
    for result in results:
        write_scores(result, directory)
    write_result(results_to_dict(results), directory)


def write_result(content: Mapping[str, Any], directory: Path) -> None:
    """Write ``result.json``, with the schema and the version.

    Seconds are left out, so that the same run gives the same bytes however often it was stopped: they are in the log.
    """
    write_json(directory / "result.json", {"schema": SCHEMA, "coalmine": __version__, **_timeless(content)})


def write_scores(result: AuditResult, directory: Path) -> None:
    """Write ``scores-VIEW.npz``, which ``coalmine estimate`` reads."""
    scores: dict[str, npt.ArrayLike] = {"members": result.scores.members}
    if result.scores.nonmembers is not None:
        scores["nonmembers"] = result.scores.nonmembers
    write_arrays(directory / f"scores-{file_name(result.view)}.npz", scores)


def _timeless(content: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in content.items() if key != "timing"}
    if "results" in found:
        found["results"] = [_timeless(result) for result in found["results"]]
    return found
