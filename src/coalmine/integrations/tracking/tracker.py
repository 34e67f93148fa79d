"""What is logged, whatever the backend: numbers along the training, then results and their report."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from coalmine.config.settings import flat
from coalmine.errors import InputError
from coalmine.protocol import Audit
from coalmine.reading import parse_json, parse_toml, read_text
from coalmine.report.page import report, unsaved
from coalmine.results.directory import LOG
from coalmine.results.io import SavedRun, read_run_directory
from coalmine.results.result import Result
from coalmine.results.tables import evidence_numbers, grouped, results_markdown


class Tracker(ABC):
    """A run in an experiment tracker, open until the end of the ``with`` block.

    A backend defines how numbers, settings and files are written. Names of numbers are METHOD/VIEW/NUMBER: along the
    training ``epsilon_estimate`` and, where one holds at every moment, ``lower_bound``; at the end ``claimed_epsilon``,
    ``lower_bound`` and ``best_guess`` with ``best_guess_lower`` and ``best_guess_upper``. Infinity is left out.
    """

    last_round = 0

    @abstractmethod
    def numbers(self, values: Mapping[str, float], round: int) -> None:
        """Log finite numbers by name, at a round."""

    @abstractmethod
    def settings(self, texts: Mapping[str, str]) -> None:
        """Log settings by name."""

    @abstractmethod
    def verdicts(self, texts: Mapping[str, str]) -> None:
        """Log the overall verdict, and that of each result."""

    @abstractmethod
    def attach(self, name: str, text: str) -> None:
        """Attach a file: ``report.html``, ``results.json`` or ``results.md``."""

    @abstractmethod
    def close(self) -> None:
        """End the run, if it was started here."""

    def __enter__(self) -> Self:
        """Return the tracker itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, whatever happened."""
        self.close()

    def watch(self, audit: Audit, round: int) -> None:
        """Log what an audit shows so far; call it after ``observe``.

        Args:
            audit: The audit.
            round: Number of the round, from 0.
        """
        self.log_round(round, audit.figures())

    def log_round(self, round: int, values: Mapping[str, Any]) -> None:
        """Log numbers by name after a round. `coalmine.run` takes this as ``watch``.

        Args:
            round: Number of the round, from 0.
            values: The numbers. What is no finite number is left out.
        """
        finite = {_name(name): float(value) for name, value in values.items() if _is_finite(value)}
        self.last_round = max(self.last_round, round)
        if finite:
            self.numbers(finite, round)

    def log(
        self,
        results: Result | Sequence[Result],
        *,
        title: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Log final results, with the report and the results as files.

        Args:
            results: One result or several.
            title: Title of the report.
            settings: Settings of the training by name.
        """
        several = [results] if isinstance(results, Result) else list(results)
        if not several:
            raise InputError("there are no results to log")
        with unsaved(several, title or "Privacy audit") as run:
            self._log(run, {**_settings(run), **(settings or {})})

    def _log(self, run: SavedRun, settings: Mapping[str, str]) -> None:
        for result in run.results:
            prefix = f"{result.method}/{result.label}"
            numbers = {f"{prefix}/{name}": value for name, value in evidence_numbers(result).items()}
            self.log_round(self.last_round, numbers)
        if settings:
            self.settings({_name(name): text for name, text in settings.items()})
        each = {_name(f"{result.method}/{result.label}/verdict"): result.verdict.value for result in run.results}
        self.verdicts({"verdict": grouped(run.results)[0].verdict.value, **each})
        self.attach("results.md", results_markdown(run.results))
        self.attach("results.json", _json(run))
        self.attach("report.html", report(run))


def log_run(directory: Path | str, tracker: Tracker, *, rounds: bool = True) -> None:
    """Log a finished run: the numbers of each round, its settings, results and report.

    Args:
        directory: A run directory, or one that `coalmine.results.save` wrote.
        tracker: Where to log it.
        rounds: Whether to log the numbers of the rounds too. False if they were logged along the training.

    Raises:
        InputError: If the directory holds no results yet, or they cannot be read.
    """
    run = read_run_directory(directory, scores=True)
    for round, values in _rounds(run.path / LOG) if rounds else ():
        tracker.log_round(round, values)
    tracker._log(run, _settings(run))


def _settings(run: SavedRun) -> dict[str, str]:
    """Return the settings of a run, or what the audits of a Python session were told, with the claim and the facts."""
    if run.config is not None:
        return dict(flat(parse_toml(run.config, run.path / "config.toml")))
    settings = dict(run.facts)
    for result in run.results:
        claim = {} if result.claim is None else result.claim.to_dict()
        known = {**{f"claim.{name}": claim[name] for name in claim}, **result.config}
        for name, value in known.items():
            if value not in (None, "", [], {}, ()):
                settings.setdefault(f"{result.method}.{name}", str(value))
    return settings


def _rounds(log: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the numbers of each round from a run's log. Rounds that were repeated after a stop count once."""
    rounds: dict[int, dict[str, Any]] = {}
    for line in read_text(log).splitlines() if log.is_file() else ():
        try:
            event = parse_json(line, log)
        except InputError:
            continue  # half written by a process that was killed
        if not isinstance(event, dict) or event.get("event") != "round" or not isinstance(event.get("round"), int):
            continue
        facts = {f"{event.get('what')}/{name}": value for name, value in event.items() if name not in _NOT_NUMBERS}
        figures = event.get("figures")
        rounds.setdefault(event["round"], {}).update(facts | (figures if isinstance(figures, dict) else {}))
    yield from sorted(rounds.items())


_NOT_NUMBERS = {"time", "event", "what", "round", "rounds", "live", "figures"}


def _json(run: SavedRun) -> str:
    from coalmine.files import json_text

    return json_text(dict(run.content)) + "\n"


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _name(name: str) -> str:
    """Return a name with only those characters that all backends take."""
    return re.sub(r"[^A-Za-z0-9_./ -]+", "-", name.replace("ε = ", "eps-").replace(", ", "-"))
