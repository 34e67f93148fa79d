"""Audits in experiment trackers: MLflow, TensorBoard and Weights & Biases.

A `Tracker` takes numbers during training, and the results with their report at the end.
docs/integrations.md has examples.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from coalmine.config import dotted
from coalmine.errors import InputError, did_you_mean
from coalmine.files import parse_toml, read_text, write_text
from coalmine.protocol import Audit
from coalmine.report.page import report
from coalmine.results.directory import LOG
from coalmine.results.io import SavedRun, read_run_directory, unsaved
from coalmine.results.result import Result
from coalmine.results.tables import grouped, results_markdown

__all__ = ["Tracker", "log_run", "tracker"]


@dataclass(kw_only=True)
class Tracker:
    """A run in an experiment tracker, open until the end of the ``with`` block. `tracker` makes one by name.

    Names of numbers are METHOD/VIEW/NUMBER: along the training ``epsilon_estimate`` and, where one holds at every
    moment, ``lower_bound``; at the end ``claimed_epsilon``, ``lower_bound`` and ``best_guess`` with
    ``best_guess_lower`` and ``best_guess_upper``. Infinity is left out.

    Args:
        numbers: Logs finite numbers by name, at a round.
        setting: Logs the name and the text of a setting.
        verdict: Logs the name and the verdict of a result.
        attach: Attaches a file by its name and content: ``report.html`` or ``results.md``.
        close: Ends the run.
        place: Where the run is: an address or a directory.
    """

    numbers: Callable[[Mapping[str, float], int], Any]
    setting: Callable[[str, str], Any]
    verdict: Callable[[str, str], Any]
    attach: Callable[[str, str], Any]
    close: Callable[[], Any]
    place: str = ""
    last_round: int = 0

    def __enter__(self) -> Self:
        """Return the tracker itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, whatever happened."""
        self.close()

    def watch(self, audit: Audit, round: int) -> None:
        """Log what an audit shows so far; call it after ``observe`` with the round, from 0."""
        self.log_round(round, audit.figures())

    def log_round(self, round: int, values: Mapping[str, Any]) -> None:
        """Log numbers by name after a round, from 0; anything but a finite number is left out.

        `coalmine.run` takes this method as ``watch``.
        """
        finite = {}
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                finite[_name(name)] = float(value)
        # Results come after the last round, where the trackers' charts end.
        self.last_round = max(self.last_round, round)
        self.numbers(finite, round)

    def log(
        self, results: Result | Sequence[Result], *, title: str = "", settings: Mapping[str, str] | None = None
    ) -> None:
        """Log final results and attach their report.

        Args:
            results: One result or several.
            title: Title of the report.
            settings: Settings of the training by name.
        """
        several = [results] if isinstance(results, Result) else list(results)
        if not several:
            raise InputError("there are no results to log")
        self._log(unsaved(several, title or "Privacy audit"), settings or {})

    def _log(self, run: SavedRun, settings: Mapping[str, str]) -> None:
        for name, text in settings.items():
            self.setting(_name(name), text)
        self.verdict("verdict", grouped(run.results)[0].verdict.value)
        for result in run.results:
            prefix = f"{result.method}/{result.label}"
            numbers = {f"{prefix}/{name}": value for name, value in result.numbers.items()}
            self.log_round(self.last_round, numbers)
            self.verdict(_name(f"{prefix}/verdict"), result.verdict.value)
        self.attach("results.md", results_markdown(run.results))
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
    log = run.path / LOG
    text = read_text(log) if rounds and log.is_file() else ""  # results that were saved from Python have no log
    events: dict[int, dict[str, Any]] = {}
    for line in text.splitlines():
        with suppress(ValueError):  # half written by a process that was killed
            event = json.loads(line)
            if event["event"] == "round":
                # A round that was repeated after a stop counts once, as the last time.
                facts = {f"{event['what']}/{name}": event[name] for name in event.keys() - {"round", "rounds"}}
                events.setdefault(event["round"], {}).update(facts | event.get("figures", {}))
    for round, values in sorted(events.items()):
        tracker.log_round(round, values)
    tracker._log(run, dict(dotted(parse_toml(run.config or "", run.path / "config.toml"))))


def _name(name: str) -> str:
    """Return a name with only those characters that all backends take."""
    return re.sub(r"[^A-Za-z0-9_./ -]+", "-", name.replace("ε = ", "eps-").replace(", ", "-"))


def tracker(to: str, *, where: Path | str | None = None, project: str = "coalmine", name: str | None = None) -> Tracker:
    """Return a tracker by the name of its backend.

    A run of MLflow or of Weights & Biases that is active already is used, and left open.

    Args:
        to: ``"mlflow"``, ``"tensorboard"`` or ``"wandb"``.
        where: MLflow's tracking URI, or the directory for files.
        project: MLflow's experiment, or the project of Weights & Biases.
        name: Name of a new run.

    Raises:
        InputError: If there is no such backend, or it is not installed.
    """
    # Before the import, which would only say that there is no such package.
    if to not in _BACKENDS:
        raise InputError(f"there is no tracker {to!r}. {did_you_mean(to, _BACKENDS)}")
    try:
        package = importlib.import_module(to)
    except ImportError as error:
        raise InputError(f"{to} is not installed: pip install 'coalmine[{to}]'") from error
    return _BACKENDS[to](package, where, project, name)


def _mlflow(mlflow: Any, where: Path | str | None, project: str, name: str | None) -> Tracker:
    """Return a tracker for MLflow: settings are parameters, verdicts are tags."""
    active = mlflow.active_run()
    # mlflow-skinny has no database, so its default store would fail.
    if where is None and not mlflow.is_tracking_uri_set() and importlib.util.find_spec("sqlalchemy") is None:
        where = "mlruns"
    uri = None if active or where is None else str(where)
    if uri is not None and "://" not in uri and uri != "databricks":
        # MLflow wants a confirmation that files are meant. A directory was asked for, or there is nothing else.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        uri = Path(uri).resolve().as_uri()
    # A client instead of the functions of the module: those would change where the user's own runs go.
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = active
    if run is None:
        known = client.get_experiment_by_name(project)
        number = client.create_experiment(project) if known is None else known.experiment_id
        run = client.create_run(number, run_name=name)
    run_id = run.info.run_id

    def numbers(values: Mapping[str, float], round: int) -> None:
        for key, value in values.items():
            client.log_metric(run_id, key, value, step=round)

    return Tracker(
        numbers=numbers,
        setting=lambda key, text: client.log_param(run_id, key, text[:500]),  # what every MLflow server takes
        verdict=lambda key, text: client.set_tag(run_id, key, text),
        attach=lambda file, text: client.log_text(run_id, text, file),
        close=lambda: None if active else client.set_terminated(run_id),
        place=str(run.info.artifact_uri).removesuffix("/artifacts"),
    )


def _tensorboard(_: Any, where: Path | str | None, project: str, name: str | None) -> Tracker:
    """Return a tracker for TensorBoard, whose report is a file beside the event files."""
    from torch.utils.tensorboard import SummaryWriter

    directory = Path(where or "tensorboard") / (name or "")
    writer: Any = SummaryWriter(str(directory))

    def numbers(values: Mapping[str, float], round: int) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, round)

    return Tracker(
        numbers=numbers,
        setting=lambda key, text: writer.add_text(f"settings/{key}", text),
        verdict=writer.add_text,
        attach=lambda file, text: write_text(directory / file, text),
        close=writer.close,
        place=str(directory),
    )


def _wandb(wandb: Any, where: Path | str | None, project: str, name: str | None) -> Tracker:
    """Return a tracker for Weights & Biases, offline unless WANDB_MODE says otherwise; ``wandb sync`` uploads."""
    active = wandb.run
    if active is None:
        directory = Path(where or ".")
        directory.mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        wandb.init(project=project, name=name, dir=str(directory), mode=mode)
    run: Any = wandb.run

    def attach(file: str, text: str) -> None:
        if file.endswith(".html"):  # a panel; the Markdown says the same
            run.log({Path(file).stem: wandb.Html(text, inject=False)})

    return Tracker(
        numbers=lambda values, round: run.log(dict(values), step=round),
        setting=lambda key, text: run.config.update({key: text}),
        verdict=lambda key, text: run.summary.update({key: text}),
        attach=attach,
        close=lambda: None if active else run.finish(),
        place=str(run.dir),
    )


_BACKENDS = {"mlflow": _mlflow, "tensorboard": _tensorboard, "wandb": _wandb}
