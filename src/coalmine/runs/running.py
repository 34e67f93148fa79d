"""From settings to results: trainings with their audits, in a resumable run directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coalmine.errors import InputError, Terminated, check_kind
from coalmine.files import write_json, write_text
from coalmine.methods import registry
from coalmine.methods.method import Method
from coalmine.progress import reporting, shown_if_slow
from coalmine.reading import read_json
from coalmine.results.directory import RunDirectory
from coalmine.results.files import envelope, write_content, write_method_results
from coalmine.results.manifest import PROVENANCE
from coalmine.results.provenance import provenance
from coalmine.results.result import MethodResults
from coalmine.results.saved import read_extras, read_part, read_results, read_run_directory, read_training_part
from coalmine.results.showing import Results
from coalmine.runs.settings import TRAINING, RunSettings, read_run
from coalmine.runs.termination import Termination
from coalmine.threads import single_thread

if TYPE_CHECKING:
    from torch import nn

    from coalmine.simulation.data import Splits
    from coalmine.simulation.rounds import Rounds
    from coalmine.simulation.settings import TrainingSettings

QUALITY = ("accuracy", "recall@1", "perplexity", "loss")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished run.

    Args:
        methods: The results of each method, in the order they ran.
        content: What ``result.json`` holds.
        directory: The run directory, or None if nothing was kept.
    """

    methods: Sequence[MethodResults]
    content: Mapping[str, Any]
    directory: Path | None = None

    @property
    def results(self) -> Results:
        """The results of all methods."""
        return Results(result for method in self.methods for result in method.results)

    def report(self, path: Path | str) -> Path:
        """Write the run's report as one HTML file.

        Raises:
            InputError: If the run has no directory, which the report is drawn from.
        """
        from coalmine.report.page import report  # altair is loaded only to draw

        if self.directory is None:
            raise InputError("a report is drawn from a run directory: call run with out=, or run a file")
        page = report(read_run_directory(self.directory, scores=True))
        with RunDirectory(self.directory).recording():  # the page may be in the run directory
            return write_text(Path(path), page)


Watch = Callable[[int, Mapping[str, float]], object]
"""Called with the number of a round and what is known after it, by name."""


@shown_if_slow()
def run(settings: RunSettings | Path | str, *, out: Path | str | None = None, watch: Watch | None = None) -> Finished:
    """Train with all audits, and return their results. A run that was stopped continues.

    Args:
        settings: A settings file (`coalmine init` writes one) or `RunSettings`.
        out: Run directory. By default, ``runs/NAME`` for a file NAME.toml, and nothing is kept for `RunSettings`.
        watch: Called after each round, such as `coalmine.integrations.tracking.Tracker.log_round`.

    Raises:
        InputError: If settings are wrong, or the directory holds another run.

    Example:
        >>> from coalmine.methods.ldp.settings import LDPSettings
        >>> finished = run(RunSettings(methods={"ldp": LDPSettings(trials=200, crafter=("dummy-gradient",))}))
        >>> any(result.refuted for result in finished.results)
        False
    """
    check_kind("settings", settings, (RunSettings, Path, str), "the path of a settings file, or RunSettings")
    directory = None if out is None else Path(out)
    if not isinstance(settings, RunSettings):
        path = Path(settings)
        settings, directory = read_run(path), directory or directory_for(path)
    return _Run(settings, None if directory is None else RunDirectory(directory), watch).finished()


def directory_for(file: Path) -> Path:
    """Return the default run directory of a settings file."""
    return Path("runs") / file.stem


@dataclass(frozen=True)
class _Group:
    """The jobs that share a training, or that need none."""

    table: str | None
    settings: TrainingSettings | None
    jobs: dict[str, Method]

    def splits(self) -> Splits:
        """Return the data, with as many users set aside as any job wants."""
        assert self.settings is not None
        with _naming(self.table):
            return self.settings.splits(pool_fraction=max(job.pool_fraction for job in self.jobs.values()))

    def build(self, splits: Splits, audits: bool) -> Rounds:
        """Return the training, with or without the audits."""
        assert self.settings is not None
        module = self.module(splits)
        added: list[Any] = []
        for name, job in self.jobs.items() if audits else ():
            with _naming(name):
                added += job.audits(splits, module)
        with _naming(self.table):
            special = (job.build_training(splits, module, added) for job in self.jobs.values())
            return next((training for training in special if training is not None), None) or self.settings.training(
                splits, module, added
            )

    def module(self, splits: Splits) -> nn.Module:
        """Return the model."""
        assert self.settings is not None
        with _naming(self.table):
            return self.settings.module(splits)


@dataclass
class _Run:
    """A run in progress."""

    settings: RunSettings
    directory: RunDirectory | None = None
    watch: Watch | None = None
    timing: dict[str, float] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    """The training that each method audited, also where it reads from another method."""
    termination: Termination = field(default_factory=Termination)

    def finished(self) -> Finished:
        """Run to the end and write the results."""
        claim = nullcontext() if self.directory is None else self.directory.claimed(self.settings.to_toml())
        with self.termination.watched(), claim:
            methods, content = self._all_results()
            origin = self._provenance()
            if self.path is not None:
                write_content(content, self.path)
        return Finished(methods=methods, content={**content, "provenance": origin}, directory=self.path)

    def _provenance(self) -> dict[str, Any]:
        """Return when and with what the results were computed; of a run that was complete before, as written then."""
        tables = {**self.settings.trainings, **self.settings.methods}
        seeds = {name: table.seed for name, table in tables.items() if hasattr(table, "seed")}
        if self.path is None:
            return provenance(seeds)
        path = self.path / PROVENANCE
        if not path.is_file():
            write_json(path, provenance(seeds))
        return read_json(path)

    @property
    def path(self) -> Path | None:
        """The run directory, or None if nothing is kept."""
        return None if self.directory is None else self.directory.path

    def _groups(self) -> list[_Group]:
        """Return the jobs by the training they share."""
        groups: dict[str | None, _Group] = {}
        jobs: dict[str, Method] = {}
        for name, settings in self.settings.methods.items():
            method = registry.get(name)
            table = self.settings.table_of(method)
            training = None if table is None else self.settings.trainings[table]
            with _naming(name):
                job = method(settings, training=training, directory=self.path, earlier=dict(jobs))
            if not job.needs_training:
                table, training = None, None
            jobs[name] = job
            groups.setdefault(table, _Group(table, training, {})).jobs[name] = job
        # Methods without a training come last: they may read what the others found.
        return sorted(groups.values(), key=lambda group: group.table is None)

    def _all_results(self) -> tuple[list[MethodResults], dict[str, Any]]:
        """Compute the results of all methods; parts that an earlier process finished are read."""
        groups = self._groups()
        with single_thread():  # torch is loaded by now, if a job needs it
            return self._results_of(groups)

    def _results_of(self, groups: Sequence[_Group]) -> tuple[list[MethodResults], dict[str, Any]]:
        """Compute the results of all groups, and what ``result.json`` holds."""
        done = self._done(groups)
        _check_models([group for group in groups if not all(name in done for name in group.jobs)])
        methods: dict[str, MethodResults] = {}
        trainings: dict[str, dict[str, Any]] = {}
        for group in groups:
            trained, about = None, None
            if group.table is not None:
                if all(name in done for name in group.jobs):
                    about = self._read(group.table, read_training_part)
                if about is None:
                    trained, about = self._trained(group)
                    self._keep(group.table, about)
                trainings[group.table] = about
            for name, job in group.jobs.items():
                if name in done:
                    methods[name] = done[name]
                    continue
                metrics = {} if about is None else about["metrics"]
                methods[name] = self._results(name, job, group, trained, metrics)
                part = methods[name]
                self._keep(name, {"results": [r.to_dict() for r in part.results], "summary": part.summary})
        ordered = [methods[name] for name in self.settings.methods]
        return ordered, self._content(ordered, trainings)

    def _done(self, groups: Sequence[_Group]) -> dict[str, MethodResults]:
        """Return the methods whose results are stored, except those that an unfinished job has to read from."""
        jobs = {name: job for group in groups for name, job in group.jobs.items()}
        parts = {name: part for name in jobs if (part := self._read(name, read_part)) is not None}
        needed = {read for name, job in jobs.items() if name not in parts for read in job.reads}
        path = self.path
        return {
            name: MethodResults(
                method=name,
                results=read_results(part["results"], path),
                summary=part.get("summary"),
                extras=read_extras(path, registry.get(name).extras),
            )
            for name, part in parts.items()
            if name not in needed and path is not None
        }

    def _results(
        self, name: str, job: Method, group: _Group, trained: Rounds | None, metrics: Mapping[str, float]
    ) -> MethodResults:
        start = time.perf_counter()
        method_results = job.results(trained, metrics)
        timing = {"audit_s": time.perf_counter() - start}
        if group.table in self.timing:
            timing["train_s"] = self.timing[group.table]
        table = group.table or next((self.tables[read] for read in job.reads if read in self.tables), "")
        self.tables[name] = table
        results = [
            replace(result, training=table, timing=timing | dict(result.timing)) for result in method_results.results
        ]
        method_results = replace(method_results, method=name, results=results)
        if self.path is not None:
            write_method_results(method_results, self.path)
            job.write(self.path)
        return method_results

    def _trained(self, group: _Group) -> tuple[Rounds, dict[str, Any]]:
        """Return the finished training with all canaries, and what results record of it."""
        assert group.table is not None
        splits = group.splits()
        for name, job in group.jobs.items():
            with _naming(name):
                splits = job.insert(splits)
        training = group.build(splits, audits=True)
        self._train(training, group.table, "checkpoint" if group.table == TRAINING else f"checkpoint-{group.table}")
        metrics = quality(training)
        if self.settings.run.baseline:
            plain = group.build(group.splits(), audits=False)
            self._train(plain, f"{group.table} without canaries", f"baseline-{group.table}")
            metrics |= {f"{name} without canaries": value for name, value in quality(plain).items()}
        return training, {
            "clients": len(training.data),
            "data_fingerprint": training.data.fingerprint,
            "parameters": training.dim,
            "rounds": training.rounds,
            "private": training.private,
            "metrics": metrics,
            "history": training.history,
        }

    def _train(self, training: Rounds, what: str, checkpoints: str) -> None:
        """Train to the end, from a checkpoint where there is one."""
        from coalmine.simulation.rounds import holds_checkpoint  # torch

        path = None if self.path is None else self.path / checkpoints
        start, resumed = time.perf_counter(), path is not None and holds_checkpoint(path)
        live: list[str] = []
        with reporting(what, training.rounds) as advance:

            def progress(measured: Mapping[str, float]) -> None:
                nonlocal live
                done, figures = int(measured["round"]) + 1, dict[str, float]()
                if done % max(1, training.rounds // 20) == 0:
                    live = [words for audit in training.audits if (words := audit.live()) is not None]
                    figures = {name: value for audit in training.audits for name, value in audit.figures().items()}
                advance(done, "; ".join(live))
                if self.directory is not None:
                    facts = {"what": what, "rounds": training.rounds, "live": live, "figures": figures}
                    self.directory.log("round", **facts, **measured)
                if self.watch is not None:
                    quality = {f"{what}/{name}": value for name, value in measured.items() if name != "round"}
                    self.watch(done - 1, quality | figures)
                if self.termination.requested:
                    if path is not None:
                        training.save(path)
                    finished = f"{done} of {training.rounds} rounds of {what}"
                    raise Terminated(f"stopped by SIGTERM after {finished}{'' if path is None else ', all saved'}")

            with self.termination.deferred():
                training.run(checkpoints=path, checkpoint_every=self.settings.run.checkpoint_every, progress=progress)
        if not resumed:
            self.timing[what] = time.perf_counter() - start

    def _content(self, methods: Sequence[MethodResults], trainings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what ``result.json`` holds."""
        results = [result.to_dict() for method in methods for result in method.results]
        if not results and not any(method.extras for method in methods):
            reasons = " ".join(method.summary for method in methods if method.summary)
            raise InputError(reasons or "the audits have no results: insert canaries, and hold some out")
        summaries = {method.method: method.summary for method in methods if method.summary}
        by = {"auditor": self.settings.run.auditor} if self.settings.run.auditor else {}
        return envelope(results, title=self.settings.run.title, **by, summaries=summaries, trainings=dict(trainings))

    def _read(self, name: str, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any] | None:
        path = None if self.directory is None else self.directory.part(name)
        return read(path) if path is not None and path.is_file() else None

    def _keep(self, name: str, content: Mapping[str, Any]) -> None:
        if self.directory is not None:
            write_json(self.directory.part(name), content)
            self.directory.log("found", part=name)


def _check_models(groups: Sequence[_Group]) -> None:
    """Build the models of all trainings but the first, so that a wrong setting is not found after hours of training."""
    for group in [group for group in groups if group.settings is not None][1:]:
        group.module(group.splits())


@contextmanager
def _naming(table: str | None) -> Iterator[None]:
    """Name the table of settings in the errors that they lead to: a run has several that share names of settings."""
    try:
        yield
    except InputError as error:
        raise InputError(f"[{table}] {error}") from error


def quality(training: Rounds) -> dict[str, float]:
    """Return the quality of the final model on test data."""
    last: Mapping[str, float] = training.history[-1] if training.history else {}
    return {name: float(last[name]) for name in QUALITY if name in last}
