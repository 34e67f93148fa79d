"""A run read from its directory, by whoever reports, compares or checks it. NumPy only: nothing is computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from coalmine.audits.result import file_name
from coalmine.errors import InputError
from coalmine.files import read_arrays, read_json
from coalmine.runs.directory import RunDirectory
from coalmine.runs.files import SCHEMA


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
    def memorisation(self) -> dict[str, Any] | None:
        """What the model remembers of each phrase, where there are some."""
        path = self.path / "memorisation.json"
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
        about = directory.about()
        if not (directory.path / "result.json").is_file():
            state, message = about.get("state"), about.get("message")
            raise InputError(
                f"the run in {path} has no results yet ({state}{f': {message}' if message else ''}); `coalmine resume "
                f"{path}` goes on with it"
            )
    content = read_json(directory.path / "result.json")
    schema = content.get("schema")
    if schema != SCHEMA:
        raise InputError(
            f"{directory.path / 'result.json'} has schema {schema!r:.40} (coalmine {content.get('coalmine')!s:.30}); "
            f"this version reads schema {SCHEMA}"
        )
    results = content.get("results", [content])
    _check(results, directory.path / "result.json")
    return SavedRun(path=directory.path, content=content, results=results)


def _check(results: object, path: Path) -> None:
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
        theory = result.get("theory")
        if theory is not None and not (isinstance(theory, dict) and _is_epsilon(theory.get("epsilon"))):
            raise InputError(f"{path}: result {i} has a theory without an ε")


_NEEDED: dict[str, tuple[type, ...]] = {
    "audit": (str,),
    "view": (str,),
    "estimates": (list,),
    "meaning": (str,),
    "metrics": (dict,),
    "config": (dict,),
    "warnings": (list,),
}


def _is_epsilon(value: object) -> bool:
    if value == "inf":
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
