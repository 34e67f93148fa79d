"""Runs read back from their directories. NumPy only: nothing is computed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from coalmine.errors import InputError
from coalmine.reading import read_arrays, read_json
from coalmine.results.directory import RunDirectory
from coalmine.results.files import SCHEMA, arrays_path, scores_path
from coalmine.results.finding import Finding
from coalmine.results.manifest import PROVENANCE, RESULT, Manifest, verify
from coalmine.results.result import MethodResults, Result, from_json
from coalmine.results.showing import Results
from coalmine.results.verdict import Verdict
from coalmine.stats import Scores


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """A finished run, read from its directory.

    Args:
        path: The run directory.
        content: What ``result.json`` holds.
        results: Its results, with their scores if these were asked for.
        fingerprint: One digest of all files that the results rest on (`Manifest.fingerprint`).
    """

    path: Path
    content: Mapping[str, Any]
    results: Sequence[Result]
    fingerprint: str = ""

    @property
    def title(self) -> str:
        """The run's title, or its directory's name."""
        return str(self.content.get("title") or self.path.resolve().name)

    @property
    def trainings(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of each training, by name: clients, parameters, rounds, history, metrics."""
        trainings = self.content.get("trainings")
        return trainings if isinstance(trainings, dict) else {}

    @property
    def facts(self) -> Mapping[str, str]:
        """What the owner of the training stated about it, by the names in `coalmine.results.files.FACTS`."""
        facts = self.content.get("facts")
        return {str(name): str(value) for name, value in facts.items()} if isinstance(facts, dict) else {}

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the run's order."""
        return list(dict.fromkeys(result.method for result in self.results))

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Date, versions and seeds, if they were written."""
        path = self.path / PROVENANCE
        return read_json(path) if self.fingerprint and path.is_file() else {}  # results of a Python session have none

    def of(self, method: str, extras: Sequence[str] = ()) -> MethodResults:
        """Return the results of one method, with those of its extra documents that were written."""
        summaries = self.content.get("summaries")
        return MethodResults(
            method=method,
            results=[result for result in self.results if result.method == method],
            summary=summaries.get(method) if isinstance(summaries, dict) else None,
            extras=read_extras(self.path, extras),
        )

    @property
    def config(self) -> str | None:
        """The run's settings as TOML, if they were written."""
        return RunDirectory(self.path).config if (self.path / "config.toml").is_file() else None


def read_run_directory(path: Path | str, *, scores: bool = False, manifest: Manifest | None = None) -> SavedRun:
    """Read a finished run.

    Args:
        path: A run directory, or one that `save` wrote.
        scores: Whether to read scores and further arrays as well.
        manifest: The manifest to go by instead of the directory's own.

    Raises:
        InputError: If the directory holds no results yet, they cannot be read, or a file is not as the manifest says.
    """
    directory = RunDirectory(path)
    if not directory.path.is_dir():
        raise InputError(f"there is no directory {path}")
    if directory.exists:
        directory.about()
        if not (directory.path / RESULT).is_file():
            state, message = directory.standing()
            advice = "wait for it" if state == "running" else f"continue it with `coalmine resume {path}`"
            reason = f"{state}: {message}" if message else state
            raise InputError(f"the run in {path} has no results yet ({reason}); {advice}")
    elif not (directory.path / RESULT).is_file():
        raise InputError(f"{path} holds no coalmine results: {RESULT} is missing")
    manifest = manifest or verify(directory.path)
    content = read_json(directory.path / RESULT)
    schema = content.get("schema")
    if schema != SCHEMA:
        raise InputError(
            f"{directory.path / RESULT} has schema {schema!r:.40} (coalmine {content.get('coalmine')!s:.30}); "
            f"this version reads schema {SCHEMA}"
        )
    check_results(content.get("results"), directory.path / RESULT)
    results = read_results(content["results"], directory.path if scores else None)
    return SavedRun(path=directory.path, content=content, results=results, fingerprint=manifest.fingerprint)


def load(path: Path | str) -> Results:
    """Read the results of a run directory, or of one that `save` wrote, with their scores.

    Args:
        path: The directory.

    Raises:
        InputError: If the directory holds no results yet, or they cannot be read.

    Example:
        >>> import tempfile
        >>> from coalmine import audit_mechanism
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     audit_mechanism(lambda total: total, dim=500, canaries=100, family="gaussian").save(directory)
        ...     load(directory)
        Results([<Result mechanism, release: no claim, ε ≥ 5.51, ε ≈ 11.3 (10.2–12.5)>])
    """
    return Results(read_run_directory(path, scores=True).results)


def read_results(results: Sequence[Mapping[str, Any]], directory: Path | None) -> Results:
    """Return results from their JSON, with scores and arrays if their ``directory`` is given."""
    with refusing_damage(directory or Path()):
        read = [Result.from_dict(result) for result in results]
        return Results(read if directory is None else [_with_arrays(result, directory) for result in read])


def read_extras(directory: Path | None, names: Sequence[str]) -> dict[str, Any]:
    """Return those of a method's extra documents that were written."""
    paths = {} if directory is None else {name: directory / f"{name}.json" for name in names}
    return {name: read_json(path) for name, path in paths.items() if path.is_file()}


def _with_arrays(result: Result, directory: Path) -> Result:
    """Return the result with its scores and arrays, as far as they were written."""
    scores, arrays = scores_path(result, directory), arrays_path(result, directory)
    sides = read_arrays(scores) if scores.is_file() else {}
    return replace(
        result,
        scores=Scores(sides["members"], sides["nonmembers"]) if {"members", "nonmembers"} <= sides.keys() else None,
        arrays=read_arrays(arrays) if arrays.is_file() else {},
    )


@contextmanager
def refusing_damage(directory: Path) -> Iterator[None]:
    """Turn errors that a damaged file of a run leads to into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"a file in {directory} is damaged ({reason:.200}): run the audit again") from error


def read_part(path: Path) -> dict[str, Any]:
    """Return what a method of an unfinished run has written.

    Raises:
        InputError: If the file is damaged.
    """
    part = read_json(path)
    try:
        check_results(part.get("results"), path)
        if not isinstance(part.get("summary", ""), str | None):
            raise InputError(f"{path}: the summary is not a text")
    except InputError as error:
        raise InputError(f"{error}; delete the file to compute it again") from None
    return part


def read_training_part(path: Path) -> dict[str, Any]:
    """Return what is known of a finished training, refusing a damaged file as `read_part` does."""
    training = read_json(path)
    metrics = training.get("metrics")
    values = {name: from_json(value) for name, value in metrics.items()} if isinstance(metrics, dict) else {"": None}
    if not all(isinstance(value, float) or _is_number(value) for value in values.values()):
        raise InputError(f"{path} has no readable metrics; delete the file to compute it again")
    return {**training, "metrics": values}


def check_results(results: object, path: Path) -> None:
    """Refuse results that lack what every reader needs."""
    if not isinstance(results, list) or not results:
        raise InputError(f"{path} has no list of results")
    for i, result in enumerate(results):
        if not isinstance(result, dict):
            raise InputError(f"{path}: result {i} is not an object")
        for kind, keys in _NEEDED.items():
            for key in keys:
                if not isinstance(result.get(key), kind):
                    raise InputError(f"{path}: result {i} has no readable {key}")
        if result["verdict"] not in list(Verdict):
            raise InputError(f"{path}: result {i} has an unknown verdict {result['verdict']!r:.40}")
        if len(result["side_names"]) != 2:
            raise InputError(f"{path}: result {i} must name two sides, got {len(result['side_names'])}")
        for estimate in result["estimates"]:
            _check_estimate(estimate, f"{path}: result {i}")
        if not all(map(_is_finding, result["findings"])):
            raise InputError(f"{path}: result {i} has an unreadable finding")
        claim = result.get("claim")
        if claim is not None and not (isinstance(claim, dict) and _is_claim(claim)):
            raise InputError(f"{path}: result {i} has a claim without ε and δ")
        test = result.get("claim_test")
        if isinstance(test, dict) and not (test.get("p_value") is None or _is_share(test["p_value"])):
            raise InputError(f"{path}: result {i} has a claim test whose p-value is not between 0 and 1")
        for name in ("ceiling", "joint_bound"):
            if result.get(name) is not None and not _is_epsilon(result[name]):
                raise InputError(f"{path}: result {i}: {name} must be a number of at least 0")


def _check_estimate(estimate: object, where: str) -> None:
    """Refuse an estimate without a method, with an ε that is not a number, or a bound without its terms."""
    if not isinstance(estimate, dict) or not isinstance(estimate.get("method"), str):
        raise InputError(f"{where} has an estimate without a method")
    where = f"{where}, {estimate['method']:.40}"
    if not _is_epsilon(estimate.get("epsilon")) or not isinstance(estimate.get("valid"), bool):
        raise InputError(f"{where}: ε must be a number of at least 0")
    if any(estimate.get(key) is not None and not _is_epsilon(estimate[key]) for key in ("lower", "upper")):
        raise InputError(f"{where}: an end of the interval is not a number of at least 0")
    if not _is_number(estimate.get("delta", 0.0)):
        raise InputError(f"{where}: δ is not a number")
    if estimate["valid"] and not _is_bound(estimate):
        raise InputError(f"{where}: a lower bound needs δ and a confidence")


def _is_claim(claim: Mapping[str, Any]) -> bool:
    """Whether a stored claim has an ε and a δ."""
    return _is_epsilon(claim.get("epsilon")) and _is_number(claim.get("delta")) and 0 <= claim["delta"] < 1


def _is_finding(finding: object) -> bool:
    """Whether a stored finding has a sentence, a p-value, and all other fields."""
    if not isinstance(finding, dict) or set(finding) != {f.name for f in fields(Finding)}:
        return False
    texts = (finding["check"], finding["sentence"], finding["example"])
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(finding["refutes"], bool)
        and _is_share(finding["p_value"])
    )


_LARGEST = 1e300  # an integer of hundreds of digits is not a float

# What every reader of a result needs, by type.
_NEEDED: dict[type, tuple[str, ...]] = {
    str: ("method", "view", "variant", "training", "unit", "adversary", "score_name", "odds", "verdict", "summary"),
    int: ("seed",),
    list: ("side_names", "estimates", "warnings", "checks", "findings"),
    dict: ("metrics", "config", "details"),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_share(value: object) -> bool:
    return _is_number(value) and 0 <= value <= 1  # type: ignore[operator]


def _is_epsilon(value: object) -> bool:
    return value == "inf" or (_is_number(value) and value >= 0)  # type: ignore[operator]


def _is_bound(estimate: Mapping[str, Any]) -> bool:
    """Whether a bound states its δ and the confidences it holds with."""
    stricter = estimate.get("stricter", [])
    if not isinstance(stricter, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in stricter):
        return False
    levels = [(estimate.get("confidence"), estimate["epsilon"]), *stricter]
    shares = [estimate.get("delta"), *(level for level, _ in levels)]
    return all(_is_number(share) and 0 <= share < 1 for share in shares) and all(_is_epsilon(e) for _, e in levels)
