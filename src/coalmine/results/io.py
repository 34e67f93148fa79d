"""The files of results, written and read: ``result.json``, ``scores-METHOD-VIEW.npz`` for each result, a manifest.

``manifest.json`` has the SHA-256 digest of every file that results rest on. A reader refuses a directory whose files
differ from it, so damage and careless edits never pass for results. Whoever can change a file can change the manifest
too: that is why the gate (`coalmine.runs.recompute`) computes estimates and verdicts again instead of reading them.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import coalmine
from coalmine.errors import InputError, did_you_mean
from coalmine.files import read_arrays, read_json, read_text, write_json, write_whole
from coalmine.results.directory import CONFIG, PROVENANCE, REPORT, RESULT, RUN, RunDirectory
from coalmine.results.result import MethodResults, Result, Results, environment
from coalmine.stats import Scores
from coalmine.stats.nulls import parse_null

# Version of the result format; schema.json describes it.
SCHEMA = 3

MANIFEST = "manifest.json"

# What nobody but the owner of a training knows: its data, the people in it, the model, how well that works, what it is
# for, who curates the data, what is released, and who made the audit. The label is for `coalmine compare --group-by`.
FACTS = ("data", "users", "model", "utility", "use", "curator", "released", "auditor", "label")


def results_to_dict(results: Sequence[Result], **more: Any) -> dict[str, Any]:
    """Return the one shape of all JSON that coalmine writes: schema, version, results, and what else there is."""
    contents = [result.to_dict() for result in results]
    return {"schema": SCHEMA, "coalmine": coalmine.__version__, "results": contents, **more}


def write_results(
    results: Sequence[Result], directory: Path, facts: Mapping[str, object] | None, overwrite: bool
) -> None:
    """Do what ``save`` of results does."""
    stated = _stated(facts)
    if (directory / RUN).exists():
        raise InputError(f"{directory} holds a run, whose results would be overwritten: choose another directory")
    if (directory / RESULT).exists():
        if not overwrite:
            raise InputError(
                f"{directory} holds results, which would be overwritten: choose another directory, or pass "
                "overwrite=True"
            )
        # The manifest goes first: a kill in between leaves nothing that passes for results.
        for name in (MANIFEST, REPORT, *digests(directory)):  # a report would be of the results before
            (directory / name).unlink(missing_ok=True)
    write_scores(results, directory)
    write_json(directory / PROVENANCE, provenance())
    write_json(directory / RESULT, results_to_dict(results, **stated))
    write_manifest(directory)


def _stated(facts: Mapping[str, object] | None) -> dict[str, Any]:
    """Return what the owner of a training stated as ``result.json`` has it."""
    texts = {name: str(value) for name, value in (facts or {}).items()}
    for name in texts:
        if name not in FACTS:
            raise InputError(f"unknown fact {name!r}. {did_you_mean(name, FACTS)}")
    stated: dict[str, Any] = {}
    if "auditor" in texts:
        stated["auditor"] = texts.pop("auditor")
    if texts:
        stated["facts"] = texts
    return stated


def unsaved(results: Sequence[Result], title: str, facts: Mapping[str, object] | None = None) -> SavedRun:
    """Return results of a Python session as a run, which a report is drawn from without writing anything.

    Args:
        results: The results.
        title: Title of the run.
        facts: What the report should say of the training, by the names in `FACTS`.
    """
    content = {"title": title, "coalmine": coalmine.__version__, **_stated(facts)}
    return SavedRun(path=Path(), content=content, results=results, provenance=provenance())


def write_scores(results: Sequence[Result], directory: Path, extras: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Write the scores of results, which ``coalmine estimate`` reads too, their further arrays, and extra documents."""
    files: dict[str, Mapping[str, Any]] = {}
    taken: dict[str, Result] = {}
    for result in results:
        # Where case does not count, names that differ in it alone are one file.
        same = taken.setdefault(result.file_stem.casefold(), result)
        if same is not result:
            raise InputError(
                f"the results {same.label!r:.60} and {result.label!r:.60} of {result.method} would have the same file, "
                f"scores-{result.file_stem:.80}.npz: give them another view or variant"
            )
        if result.scores is not None:
            sides = {"members": result.scores.members}
            if result.scores.nonmembers is not None:
                sides["nonmembers"] = result.scores.nonmembers
            files[f"scores-{result.file_stem}.npz"] = sides
        if result.arrays:
            files[f"arrays-{result.file_stem}.npz"] = result.arrays
    for name, arrays in files.items():
        content = io.BytesIO()  # not the file's name, to which NumPy would append .npz
        np.savez_compressed(content, **arrays)
        write_whole(directory / name, partial(Path.write_bytes, data=content.getvalue()))
    for name, document in extras.items():
        write_json(directory / f"{name}.json", document)


def provenance(seeds: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return date, versions and seeds of results that are complete now.

    The date is in a file of its own, since ``result.json`` has the same bytes however often a run was stopped.
    """
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "coalmine": coalmine.__version__, **environment(), "seeds": dict(seeds or {})}


def digests(directory: Path) -> dict[str, str]:
    """Return the SHA-256 digest of each file that results rest on: results, settings, scores, a method's documents."""
    patterns = [RESULT, PROVENANCE, "scores-*.npz", "arrays-*.npz"]
    if (directory / RUN).is_file():  # all of the directory is ours
        patterns = ["*.json", "*.npz", "*.toml"]
    found = {}
    for pattern in patterns:
        for path in directory.glob(pattern):
            # run.json changes when a finished run is resumed; hidden files are not complete yet.
            if path.name not in (RUN, MANIFEST) and not path.name.startswith("."):
                with path.open("rb") as file:
                    found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return dict(sorted(found.items()))


def write_manifest(directory: Path) -> None:
    """Write the digests of all files as they are now, when all others are written."""
    write_json(directory / MANIFEST, digests(directory))


def check_manifest(directory: Path) -> str:
    """Return one digest of all files that results rest on.

    Raises:
        InputError: If there is no manifest, or a file was changed, removed or added since it was written.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise InputError(f"{directory} has no {MANIFEST}, so its results are not complete: run the audit again")
    stored, found = read_json(path), digests(directory)
    changed = {name: "was changed" for name, digest in found.items() if stored.get(name) != digest}
    changed |= dict.fromkeys(found.keys() - stored.keys(), "was added")
    changed |= dict.fromkeys(stored.keys() - found.keys(), "is missing")
    for name in sorted(changed):
        raise InputError(
            f"{directory / name} {changed[name]} after coalmine wrote {MANIFEST}: restore it, or run the audit again "
            "in another directory"
        )
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """A finished run, read from its directory.

    Args:
        path: The run directory.
        content: What ``result.json`` holds.
        results: Its results, with their scores if these were asked for.
        fingerprint: One digest of all files that the results rest on.
        provenance: Date, versions and seeds, if they were written.
        config: The run's settings as TOML, if they were written.

    Attributes:
        title: The run's title, or its directory's name.
        training_runs: What is known of each training, by name: clients, parameters, rounds, history, metrics.
        facts: What the owner of the training stated about it, by the names in `FACTS`.
        methods: Names of the methods, in the run's order.
    """

    path: Path
    content: Mapping[str, Any]
    results: Sequence[Result]
    fingerprint: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    config: str | None = None
    title: str = field(init=False)
    training_runs: Mapping[str, Mapping[str, Any]] = field(init=False)
    facts: Mapping[str, str] = field(init=False)
    methods: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        derived = {
            "title": str(self.content.get("title") or self.path.resolve().name),
            "training_runs": self.content.get("training_runs", {}),
            "facts": self.content.get("facts", {}),
            "methods": list(dict.fromkeys(result.method for result in self.results)),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def of(self, method: str, extras: Sequence[str] = ()) -> MethodResults:
        """Return the results of one method, with those of its extra documents that were written."""
        return MethodResults(
            method=method,
            results=[result for result in self.results if result.method == method],
            summary=(self.content.get("summaries") or {}).get(method),
            # Without a fingerprint, nothing was written.
            extras=read_extras(self.path, extras if self.fingerprint else ()),
        )


def read_run_directory(path: Path | str, *, scores: bool = False, as_stored: bool = False) -> SavedRun:
    """Read a finished run.

    Args:
        path: A run directory, or one that `save` wrote.
        scores: Whether to read scores and further arrays as well.
        as_stored: Whether to believe the stored ε of claims, like all other stored numbers. Computing it again takes
            a second, which only what judges results needs.

    Raises:
        InputError: If the directory holds no results yet, they cannot be read, or a file is not as the manifest says.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise InputError(f"{path} is a file, not a run" if directory.is_file() else f"there is no directory {path}")
    is_run = (directory / RUN).is_file()
    if not (directory / RESULT).is_file():
        if not is_run:
            raise InputError(f"{path} holds no coalmine results: {RESULT} is missing")
        state, message = RunDirectory(directory).standing()
        advice = "wait for it" if state == "running" else f"continue it with `coalmine resume {path}`"
        reason = ": ".join(filter(None, [state, message]))
        raise InputError(f"the run in {path} has no results yet ({reason}); {advice}")
    fingerprint = check_manifest(directory)
    content = read_json(directory / RESULT)
    if content.get("schema") != SCHEMA:
        raise InputError(
            f"{directory / RESULT} has schema {content.get('schema')!r:.40} (coalmine "
            f"{content.get('coalmine')!s:.30}); this version reads schema {SCHEMA}"
        )
    with refusing_damage(directory):
        stored = content["results"]
        if as_stored:
            stored = copy.deepcopy(stored)
            for holder in [*stored, *(result["claim_test"] for result in stored)]:
                if holder is not None and holder["claim"] is not None:
                    holder["claim"]["stated"] = True
        results = read_results(stored, directory if scores else None)
    origin = directory / PROVENANCE
    return SavedRun(
        path=directory,
        content=content,
        results=results,
        fingerprint=fingerprint,
        provenance=read_json(origin) if origin.is_file() else {},
        config=read_text(directory / CONFIG) if is_run else None,
    )


def load(path: Path | str) -> Results:
    """Read the results of a run directory, or of one that ``save`` of results wrote, with their scores.

    Args:
        path: The directory.

    Raises:
        InputError: If the directory holds no results yet, or they cannot be read.

    Example:
        >>> import tempfile
        >>> from coalmine import check_mechanism
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     check_mechanism(lambda total: total, dim=500, canaries=100).save(directory)
        ...     load(directory)
        Results([<Result mechanism, release: no claim, ε ≥ 1.22e+06, ε ≈ ∞ (3.11–∞)>])
    """
    return Results(read_run_directory(path, scores=True).results)


def read_results(contents: Sequence[Mapping[str, Any]], directory: Path | None) -> list[Result]:
    """Return results from their JSON, with scores and arrays if their ``directory`` is given."""
    results = [Result.from_dict(content) for content in contents]
    if directory is None:
        return results
    complete = []
    for result in results:
        stored: dict[str, Any] = {}
        path = directory / f"scores-{result.file_stem}.npz"
        sides = read_arrays(path) if path.is_file() else {}
        null = None if "nonmembers" in sides else parse_null(result.null)
        if "nonmembers" in sides or (sides and null is not None):
            stored["scores"] = Scores(sides["members"], sides.get("nonmembers"), null)
        path = directory / f"arrays-{result.file_stem}.npz"
        if path.is_file():
            stored["arrays"] = read_arrays(path)
        complete.append(replace(result, **stored))
    return complete


def read_extras(directory: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return those of a method's extra documents that were written."""
    extras = {}
    for name in names:
        path = directory / f"{name}.json"
        if path.is_file():
            extras[name] = read_json(path)
    return extras


@contextmanager
def refusing_damage(directory: Path) -> Iterator[None]:
    """Turn errors that a damaged file, or one of another version, leads to into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{directory} was made by another version of coalmine, or a file in it is damaged ({reason:.200}): run the "
            "audit again"
        ) from error
