"""A run read from its directory, by whoever reports, compares or checks it. NumPy only: nothing is computed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from coalmine.errors import InputError
from coalmine.files import read_arrays, read_json
from coalmine.results.directory import RunDirectory
from coalmine.results.files import SCHEMA
from coalmine.results.result import file_name


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """What a run wrote. ``content`` is ``result.json``, ``results`` its results one by one."""

    path: Path
    content: Mapping[str, Any]
    results: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """What it is called: its title, or its directory's name."""
        return str(self.content.get("title") or self.path.resolve().name)

    @property
    def training(self) -> Mapping[str, Any] | None:
        """What is known of the training: clients, parameters, rounds, history, metrics."""
        found = self.content.get("training")
        return found if isinstance(found, dict) else None

    @property
    def meanings(self) -> Mapping[str, str]:
        """What an audit's results say together, by the audit's name, where that is more than what each says."""
        found = self.content.get("meanings")
        return found if isinstance(found, dict) else {}

    def of(self, audit: str) -> list[dict[str, Any]]:
        """The results of one audit."""
        return [result for result in self.results if result["audit"] == audit]

    def scores(self, result: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]] | None:
        """Members' and non-members' scores of a result, where they were written."""
        return self._arrays(f"scores-{file_name(str(result['view']))}.npz")

    def trials(self, result: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]] | None:
        """Every trial of a CANIFE result, where they were written."""
        return self._arrays(f"trials-{file_name(str(result['view']))}.npz")

    @property
    def memorization(self) -> dict[str, Any] | None:
        """What the model remembers of each phrase, where there are some."""
        path = self.path / "memorization.json"
        return read_json(path) if path.is_file() else None

    @property
    def config(self) -> str | None:
        """What was asked for, as TOML, where it was written."""
        directory = RunDirectory(self.path)
        return directory.config if (self.path / "config.toml").is_file() else None

    def _arrays(self, name: str) -> dict[str, npt.NDArray[Any]] | None:
        path = self.path / name
        return read_arrays(path) if path.is_file() else None


def read_run_directory(path: Path | str) -> SavedRun:
    """The results in a directory; refused with a sentence where there are none, or they cannot be read."""
    directory = RunDirectory(path)
    if not directory.path.is_dir():
        raise InputError(f"there is no directory {path}")
    if directory.exists:
        directory.about()
        if not (directory.path / "result.json").is_file():
            state, message = directory.standing()
            after = "wait for it" if state == "running" else f"`coalmine resume {path}` goes on with it"
            why = f"{state}: {message}" if message else state
            raise InputError(f"the run in {path} has no results yet ({why}); {after}")
    content = read_json(directory.path / "result.json")
    schema = content.get("schema")
    if schema != SCHEMA:
        raise InputError(
            f"{directory.path / 'result.json'} has schema {schema!r:.40} (coalmine {content.get('coalmine')!s:.30}); "
            f"this version reads schema {SCHEMA}"
        )
    results = content.get("results", [content])
    check_results(results, directory.path / "result.json")
    return SavedRun(path=directory.path, content=content, results=results)


@contextmanager
def refusing_damage(directory: Path) -> Iterator[None]:
    """Turn what a damaged file of a run leads to into a sentence."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(
            f"a file in {directory} is damaged, so that its report cannot be drawn ({what:.200})"
        ) from error


def read_part(path: Path) -> dict[str, Any]:
    """What an audit of a run that is not done yet has found; a damaged one is refused before anything is made of it."""
    part = read_json(path)
    try:
        check_results(part.get("results"), path)
        if not isinstance(part.get("meaning", ""), str | None):
            raise InputError(f"{path} has a meaning that is no text")
    except InputError as error:
        raise InputError(f"{error}; delete it, and it is computed again") from None
    return part


def read_training_part(path: Path) -> dict[str, Any]:
    """What is known of a training that is done, as above."""
    about = read_json(path)
    metrics = about.get("metrics")
    if not isinstance(metrics, dict) or not all(_is_number(value) for value in metrics.values()):
        raise InputError(f"{path} has no metrics that could be read; delete it, and it is computed again")
    return about


def check_results(results: object, path: Path) -> None:
    """Refuse results that lack what every reader needs."""
    if not isinstance(results, list) or not results:
        raise InputError(f"{path} has no list of results")
    for i, result in enumerate(results):
        if not isinstance(result, dict):
            raise InputError(f"{path}: result {i} is not an object")
        for key, kinds in _NEEDED.items():
            if not isinstance(result.get(key), kinds):
                raise InputError(f"{path}: result {i} has no {key} that could be read")
        for estimate in result["estimates"]:
            if not isinstance(estimate, dict) or not isinstance(estimate.get("method"), str):
                raise InputError(f"{path}: result {i} has an estimate without a method")
            if not _is_epsilon(estimate.get("epsilon")) or not isinstance(estimate.get("valid"), bool):
                raise InputError(f"{path}: result {i}, {estimate['method']:.40}: ε must be a number of at least 0")
            if any(estimate.get(key) is not None and not _is_epsilon(estimate[key]) for key in ("lower", "upper")):
                raise InputError(f"{path}: result {i}, {estimate['method']:.40}: an end of its interval is no number")
            if estimate["valid"] and not _is_bound(estimate):
                raise InputError(f"{path}: result {i}, {estimate['method']:.40}: a bound without δ and confidence")
        if result["metrics"].get("empirical") is not None and not _is_epsilon(result["metrics"]["empirical"]):
            raise InputError(f"{path}: result {i} has an ε_empirical that is no number of at least 0")
        theory = result.get("theory")
        if theory is not None and not (isinstance(theory, dict) and _is_epsilon(theory.get("epsilon"))):
            raise InputError(f"{path}: result {i} has a theory without an ε")


_LARGEST = 1e300  # no whole number of hundreds of digits, which is no float

_NEEDED: dict[str, tuple[type, ...]] = {
    "audit": (str,),
    "view": (str,),
    "estimates": (list,),
    "meaning": (str,),
    "metrics": (dict,),
    "config": (dict,),
    "warnings": (list,),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_epsilon(value: object) -> bool:
    return value == "inf" or (_is_number(value) and value >= 0)  # type: ignore[operator]


def _is_bound(estimate: Mapping[str, Any]) -> bool:
    """Whether a bound says at which δ and with which confidences it holds."""
    stricter = estimate.get("stricter", [])
    if not isinstance(stricter, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in stricter):
        return False
    levels = [(estimate.get("confidence"), estimate["epsilon"]), *stricter]
    shares = [estimate.get("delta"), *(level for level, _ in levels)]
    return all(_is_number(share) and 0 <= share < 1 for share in shares) and all(_is_epsilon(e) for _, e in levels)
