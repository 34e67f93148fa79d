"""From settings to results: training runs with their audits, in a resumable run directory.

`run` prepares all methods, so that wrong settings are refused before anything is trained. Methods that audit the same
training share it: each puts its canaries into the data and adds its audits, then the training runs once. What is
finished is written at once: checkpoints of the training, scores, and a part for each method. A run that was killed
reads these back, so it gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from coalmine.errors import InputError, check_kind, naming
from coalmine.files import read_json, read_text, write_json
from coalmine.methods import registry
from coalmine.methods.method import Method
from coalmine.parallel import single_thread
from coalmine.progress import reporting, shown_if_slow
from coalmine.protocol import words_for
from coalmine.results.directory import PROVENANCE, RESULT, RunDirectory
from coalmine.results.io import (
    MANIFEST,
    check_manifest,
    provenance,
    read_extras,
    read_results,
    refusing_damage,
    results_to_dict,
    write_manifest,
    write_scores,
)
from coalmine.results.result import MethodResults, Results
from coalmine.runs.settings import TRAINING, RunSettings, run_from_text

if TYPE_CHECKING:
    from coalmine.simulation.data import Splits
    from coalmine.simulation.rounds import Rounds
    from coalmine.simulation.settings import TrainingSettings

RUNS = Path("runs")
"""By default, a settings file NAME.toml has its run directory in here, by its name."""

QUALITY = ("accuracy", "recall@1", "perplexity", "loss")
_LIVE = 10  # how often along a training audits say what they see so far

# Called with the number of a round and what is known after it, by name.
Watch = Callable[[int, Mapping[str, float]], object]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished run.

    Args:
        methods: The results of each method, in the order they ran.
        results: The results of all methods.
        content: What ``result.json`` holds.
        directory: The run directory, or None if nothing was kept.
    """

    methods: Sequence[MethodResults]
    results: Results
    content: Mapping[str, Any]
    directory: Path | None = None


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
    if not isinstance(settings, RunSettings):
        path = Path(settings)
        settings, out = run_from_text(read_text(path), str(path)), out or RUNS / path.stem
    # Every run has a directory, if only until it ends. The lock is held for the whole run, and its state is recorded
    # however the run ends.
    with TemporaryDirectory(prefix="coalmine-") as scratch:
        directory = RunDirectory(Path(out or scratch))
        with directory.claimed(settings.to_toml()):
            if (directory.path / MANIFEST).is_file():
                check_manifest(directory.path)  # a finished run is read, not computed again
            finished = _Run(settings, directory, watch).finished()
    return replace(finished, directory=directory.path if out else None)


def check(settings: RunSettings) -> None:
    """Build all that the settings describe and train nothing: a name of data, a model or a bug may be wrong."""
    with TemporaryDirectory(prefix="coalmine-") as scratch:
        for group in _Run(settings, RunDirectory(Path(scratch)), None).groups():
            if group.settings is not None:
                group.ready()


@dataclass
class _Run:
    """A run in progress."""

    settings: RunSettings
    directory: RunDirectory
    watch: Watch | None

    def finished(self) -> Finished:
        """Run to the end and write the results; parts that an earlier process finished are read."""
        groups = self.groups()
        # What an earlier process finished: by the names of methods, and by the tables of training runs.
        parts = self.directory.path / "parts"
        earlier = {path.stem: read_json(path) for path in parts.glob("*.json")}
        finished = self._stored(groups, earlier)
        training_runs: dict[str, Any] = {}
        with single_thread():  # sums in another order would change the last bits
            waiting = [group for group in groups if group.settings and not finished.keys() >= group.methods.keys()]
            # Later groups are built first, so that a wrong setting is not found after hours.
            for group in waiting[1:]:
                group.ready()
            for group in groups:
                trained, metrics = None, {}
                if group.settings is not None:
                    # A training is needed again unless all that its methods wanted from it is stored.
                    stored = None if group in waiting else earlier.get(group.table)
                    if stored is None:
                        trained, stored = self._trained(group)
                        write_json(parts / f"{group.table}.json", stored)
                    training_runs[group.table], metrics = stored, stored["metrics"]
                for name, method in group.methods.items():
                    if name in finished:
                        continue
                    try:
                        outcome = method.results(trained, metrics)
                    except InputError as error:  # unlucky coin flips, say: the results of the others are kept
                        finished[name] = MethodResults(
                            method=name, results=[], failure=f"[{name}] has no result: {error}"
                        )
                        continue
                    # A method without a training of its own has audited that of the method that it reads from.
                    read = [one.training for other in method.reads for one in finished[other].results]
                    table = group.table or next(iter(read), "")
                    results = [replace(result, training=table) for result in outcome.results]
                    # Scores first: once its part is there, a method counts as done.
                    write_scores(results, self.directory.path, outcome.extras)
                    contents = [result.to_dict() for result in results]
                    write_json(parts / f"{name}.json", {"results": contents, "summary": outcome.summary})
                    finished[name] = replace(outcome, method=name, results=results)
        return self._written([finished[name] for name in self.settings.methods], training_runs)

    def groups(self) -> list[_Group]:
        """Return the methods by the training they share.

        This prepares all methods, which read their files: a wrong path is reported before anything is trained.
        """
        groups: dict[str, _Group] = {}
        earlier: dict[str, Method] = {}
        for name, settings in self.settings.methods.items():
            kind = registry.get(name)
            table = self.settings.table_of(kind)
            training = self.settings.trainings.get(table)
            with naming(f"[{name}]"):
                method = kind(settings, training=training, directory=self.directory.path, earlier=dict(earlier))
            if not method.needs_training:
                table, training = "", None
            earlier[name] = method
            groups.setdefault(table, _Group(table, training, {})).methods[name] = method
        # Methods without a training come last: they may read what the others found.
        return sorted(groups.values(), key=lambda group: not group.table)

    def _stored(self, groups: Sequence[_Group], parts: Mapping[str, Any]) -> dict[str, MethodResults]:
        """Return the methods whose results are stored, except those that an unfinished method has to read from."""
        methods = {name: method for group in groups for name, method in group.methods.items()}
        needed = set[str]()
        for name, method in methods.items():
            if name not in parts:
                # What a method keeps in memory for others is not stored: it has to be run again.
                needed.update(method.reads)
        stored = {}
        for name in methods:
            if name in parts and name not in needed:
                part = parts[name]
                with refusing_damage(self.directory.path):
                    results = read_results(part["results"], self.directory.path)
                extras = read_extras(self.directory.path, registry.get(name).extras)
                stored[name] = MethodResults(method=name, results=results, summary=part.get("summary"), extras=extras)
        return stored

    def _trained(self, group: _Group) -> tuple[Rounds, dict[str, Any]]:
        """Return the finished training with all canaries, and what results record of it."""
        training = group.ready()
        checkpoints = "checkpoint" if group.table == TRAINING else f"checkpoint-{group.table}"
        metrics = self._train(training, group.table, checkpoints)
        if self.settings.run.baseline:
            # The same data and seed without canaries: the difference in accuracy is what they cost.
            plain = group.build(group.splits(), audits=False)
            without = self._train(plain, f"{group.table} without canaries", f"baseline-{group.table}")
            metrics |= {f"{name} without canaries": value for name, value in without.items()}
        return training, {
            "clients": len(training.data),
            "data_fingerprint": training.data.fingerprint,
            "parameters": training.dim,
            "rounds": training.rounds,
            "private": training.private,
            "metrics": metrics,
            "history": training.history,
        }

    def _train(self, training: Rounds, what: str, checkpoints: str) -> dict[str, float]:
        """Train to the end, from a checkpoint where there is one; return the quality of the model on test data."""
        path, every = self.directory.path / checkpoints, self.settings.run.checkpoint_every
        words = ""
        with reporting(what, training.rounds) as advance:

            def progress(measured: Mapping[str, float]) -> None:
                nonlocal words
                done, figures = int(measured["round"]) + 1, dict[str, float]()
                if done % max(1, training.rounds // _LIVE) == 0:
                    for audit in training.audits:
                        figures |= audit.figures()
                    words = words_for(figures)
                advance(done, words)
                self.directory.log("round", what=what, rounds=training.rounds, figures=figures, **measured)
                if self.watch is not None:
                    measures = {f"{what}/{name}": value for name, value in measured.items() if name != "round"}
                    self.watch(done - 1, measures | figures)

            training.run(checkpoints=path, checkpoint_every=every, progress=progress)
        last: Mapping[str, float] = training.history[-1] if training.history else {}
        return {name: float(last[name]) for name in QUALITY if name in last}

    def _written(self, methods: Sequence[MethodResults], training_runs: Mapping[str, Any]) -> Finished:
        """Return the finished run, its results written."""
        results = [result for method in methods for result in method.results]
        summaries = {method.method: method.summary for method in methods if method.summary}
        if not results and not any(method.extras for method in methods):
            reasons = " ".join([*summaries.values(), *(method.failure for method in methods)]).strip()
            raise InputError(reasons or "the audits have no results: insert canaries, and hold some out")
        options = self.settings.run
        by = {"auditor": options.auditor} if options.auditor else {}
        content = results_to_dict(
            results, title=options.title, **by, summaries=summaries, training_runs=dict(training_runs)
        )
        tables = {**self.settings.trainings, **self.settings.methods}
        origin = provenance({name: table.seed for name, table in tables.items() if hasattr(table, "seed")})
        path = self.directory.path
        if (path / PROVENANCE).is_file():  # a run that was complete before keeps its date
            origin = read_json(path / PROVENANCE)
        write_json(path / PROVENANCE, origin)
        write_json(path / RESULT, content)
        write_manifest(path)
        content["provenance"] = origin
        return Finished(methods=methods, results=Results(results), content=content)


@dataclass(frozen=True)
class _Group:
    """The methods that share a training, or that need none and have no table."""

    table: str
    settings: TrainingSettings | None
    methods: dict[str, Method]

    def splits(self) -> Splits:
        """Return the data, with as many users set aside as any method wants."""
        assert self.settings is not None
        with naming(f"[{self.table}]"):
            return self.settings.splits(pool_fraction=max(method.pool_fraction for method in self.methods.values()))

    def ready(self) -> Rounds:
        """Return the training with all canaries."""
        splits = self.splits()
        for name, method in self.methods.items():
            with naming(f"[{name}]"):
                splits = method.insert(splits)  # each method sees the canaries of those before it
        return self.build(splits, audits=True)

    def build(self, splits: Splits, audits: bool) -> Rounds:
        """Return the training, with or without the audits."""
        assert self.settings is not None
        with naming(f"[{self.table}]"):
            module = self.settings.module(splits)
        added: list[Any] = []
        if audits:
            for name, method in self.methods.items():
                with naming(f"[{name}]"):
                    added += method.audits(splits, module)
        with naming(f"[{self.table}]"):
            for method in self.methods.values():
                special = method.build_training(splits, module, added)
                if special is not None:
                    return special
            return self.settings.training(splits, module, added)
