"""The files of results: ``result.json``, and ``scores-METHOD-VIEW.npz`` for each result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from coalmine import __version__
from coalmine.errors import InputError, check_kind, did_you_mean
from coalmine.files import remove, write_arrays, write_json
from coalmine.results.manifest import PROVENANCE, RESULT, Manifest
from coalmine.results.provenance import provenance
from coalmine.results.result import MethodResults, Result

SCHEMA = 2
"""Version of the result format; ``schema.json`` describes it."""


FACTS = ("data", "users", "model", "utility", "use", "curator", "released", "auditor")
"""What nobody but the owner of a training knows: its data, the people in it, the model, how well that works, what it is
for, who curates the data, what is released, and who made the audit."""


def envelope(results: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """Return the one shape of all JSON that coalmine writes: schema, version, results, and what else there is."""
    return {"schema": SCHEMA, "coalmine": __version__, "results": [dict(result) for result in results], **more}


def results_to_dict(results: Sequence[Result], **more: Any) -> dict[str, Any]:
    """Return results as they are written to ``result.json`` and printed by ``--json``."""
    return envelope([result.to_dict() for result in results], **more)


def save(
    results: Result | Sequence[Result],
    directory: Path | str,
    *,
    facts: Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> None:
    """Write results to a directory that ``coalmine report``, ``check`` and ``compare`` read.

    Args:
        results: One result or several.
        directory: Where to write ``result.json`` and the scores. It is created if needed.
        facts: What the report and the model card should say of the training, by the names in `FACTS`.
        overwrite: Whether to replace the results that an earlier `save` wrote there.

    Raises:
        InputError: If the directory holds a run, or results and ``overwrite`` is False, if two results have the same
            method, view and variant, or if a fact is unknown.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from coalmine import audit_mechanism
        >>> result = audit_mechanism(lambda total: total, dim=500, canaries=20)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     save(result, directory)
        ...     sorted(path.name for path in Path(directory).iterdir())
        ['manifest.sha256', 'provenance.json', 'result.json', 'scores-mechanism-release.npz']
    """
    several = [results] if isinstance(results, Result) else list(results)
    for result in several:
        check_kind("a result", result, Result, "an Result, or a list of them")
    _check_names(several)
    stated = checked_facts(facts or {})
    directory = Path(directory)
    if (directory / "run.json").exists():
        raise InputError(f"{directory} holds a run, whose results would be overwritten: choose another directory")
    if (directory / RESULT).exists() and not overwrite:
        raise InputError(
            f"{directory} holds results, which would be overwritten: choose another directory, or pass overwrite=True"
        )
    manifest = Manifest.read(directory) or Manifest(directory, {})
    with manifest.recording():
        # The verdict goes first: a kill in between leaves no old verdict beside new scores.
        for name in [RESULT, *manifest.digests]:
            remove(directory / name)
        for result in several:
            write_scores(result, directory)
        write_json(directory / PROVENANCE, provenance())
        by = {"auditor": stated.pop("auditor")} if "auditor" in stated else {}
        write_content(results_to_dict(several, **by, **({"facts": stated} if stated else {})), directory)


def checked_facts(facts: Mapping[str, object]) -> dict[str, str]:
    """Return facts as texts.

    Raises:
        InputError: If the name of one is not in `FACTS`.
    """
    for name in facts:
        if name not in FACTS:
            raise InputError(f"unknown fact {name!r}. {did_you_mean(name, FACTS)}")
    return {name: str(value) for name, value in facts.items()}


def write_method_results(results: MethodResults, directory: Path) -> None:
    """Write a method's scores, arrays and extra documents."""
    _check_names(results.results)
    for result in results.results:
        write_scores(result, directory)
    for name, document in results.extras.items():
        write_json(directory / f"{name}.json", document)


def _check_names(results: Sequence[Result]) -> None:
    """Refuse results whose scores would be one file, here or where case does not count."""
    taken: dict[str, Result] = {}
    for result in results:
        same = taken.setdefault(result.file_stem.casefold(), result)
        if same is not result:
            raise InputError(
                f"the results {same.label!r:.60} and {result.label!r:.60} of {result.method} would have the same file, "
                f"{scores_path(result, Path()).name:.100}: give them another view or variant"
            )


def write_content(content: Mapping[str, Any], directory: Path) -> None:
    """Write ``result.json``.

    Seconds are left out, so that a run gives the same bytes however often it was stopped. They are in the log.
    """
    results = [{key: value for key, value in result.items() if key != "timing"} for result in content["results"]]
    write_json(directory / RESULT, {**content, "results": results})


def write_scores(result: Result, directory: Path) -> None:
    """Write a result's scores, which ``coalmine estimate`` reads too, and its further arrays."""
    if result.scores is not None:
        scores: dict[str, npt.ArrayLike] = {"members": result.scores.members}
        if result.scores.nonmembers is not None:
            scores["nonmembers"] = result.scores.nonmembers
        write_arrays(scores_path(result, directory), scores)
    if result.arrays:
        write_arrays(arrays_path(result, directory), dict(result.arrays))


def scores_path(result: Result, directory: Path) -> Path:
    """Return the path of a result's scores."""
    return directory / f"scores-{result.file_stem}.npz"


def arrays_path(result: Result, directory: Path) -> Path:
    """Return the path of a result's further arrays."""
    return directory / f"arrays-{result.file_stem}.npz"
