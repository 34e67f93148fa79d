"""From settings to results: one training, several audits, a directory that survives a kill."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from coalmine.errors import InputError
from coalmine.files import write_json, write_text
from coalmine.methods.secret_sharer.job import SecretSharerMethod
from coalmine.progress import reporting
from coalmine.results.directory import RunDirectory
from coalmine.results.files import merged, write_result
from coalmine.results.result import AuditResult
from coalmine.results.saved import read_part, read_run_directory, read_training_part
from coalmine.runs.methods import CanifeMethod, ExposureMethod, LDPMethod, Method, OneShotMethod, headline
from coalmine.runs.settings import RunSettings
from coalmine.simulation.checkpoint import holds_one
from coalmine.simulation.data import Splits
from coalmine.simulation.rounds import Rounds
from coalmine.simulation.settings import TrainingSettings
from coalmine.simulation.training import Training


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that is done. ``content`` is what ``result.json`` holds, and seconds.

    ``results`` are there for what was computed just now, in the order of ``methods``; what an earlier process of this
    run had found already is in ``content`` alone.
    """

    content: Mapping[str, Any]
    results: Sequence[AuditResult] = ()
    methods: Sequence[Method] = ()
    directory: Path | None = None

    def report(self, path: Path | str) -> Path:
        """Write the run as one page; it reads what the run wrote, and so needs its directory."""
        if self.directory is None:
            raise InputError("a report is made of a run's directory: run with out=, or from a file")
        drawn = importlib.import_module("coalmine.report.page")  # what draws is loaded only where something is drawn
        return write_text(Path(path), drawn.report(read_run_directory(self.directory)))


@dataclass(frozen=True)
class _Group:
    """A training, or none, and the audits that share it."""

    name: str
    settings: TrainingSettings | None
    methods: list[Method]

    def splits(self) -> Splits:
        """The data, with as many users set aside as somebody wants."""
        assert self.settings is not None
        return self.settings.splits(pool_fraction=max(method.pool_fraction for method in self.methods))


@dataclass
class _Run:
    """A run while it goes on."""

    settings: RunSettings
    directory: RunDirectory | None = None
    timing: dict[str, float] = field(default_factory=dict)

    def groups(self) -> list[_Group]:
        """Who shares a training."""
        given = self.settings
        first, second, none = (_Group(*terms, []) for terms in (
            ("training", given.training), ("text-training", given.text_training), ("", None)
        ))  # fmt: skip
        if given.one_shot is not None and given.training is not None:
            first.methods.append(OneShotMethod(given.training, given.one_shot))
        if given.canife is not None and given.training is not None:
            first.methods.append(CanifeMethod(given.training, given.canife))
        spoken = first if second.settings is None else second
        sharer = None
        if given.secret_sharer is not None and spoken.settings is not None:
            sharer = SecretSharerMethod(spoken.settings, given.secret_sharer, self._path("."))
            spoken.methods.append(sharer)
        if given.ldp is not None:
            none.methods.append(LDPMethod(given.ldp))
        if given.exposure is not None:
            own = given.exposure.file is not None
            (none if own else spoken).methods.append(ExposureMethod(given.exposure, None if own else sharer))
        return [group for group in (first, second, none) if group.methods]

    def found(self, groups: Sequence[_Group], *, again: bool) -> tuple[dict[str, Any], list[AuditResult]]:
        """What all audits found; those that are done already are read, unless they are wanted ``again``."""
        parts: dict[str, dict[str, Any]] = {}
        abouts: dict[str, dict[str, Any]] = {}
        results: list[AuditResult] = []
        for group in groups:
            stored = {} if again else self._stored(group)
            trained, metrics = None, {}
            if group.settings is not None:
                about = None if len(stored) < len(group.methods) else self._read(group.name, read_training_part)
                if about is None:
                    trained, about = self._trained(group)
                    self._keep(group.name, about)
                abouts[group.name], metrics = about, about["metrics"]
            for method in group.methods:
                if method.name not in stored:
                    fresh = self._results(method, group, trained, metrics)
                    stored[method.name] = {"results": [result.to_dict() for result in fresh]}
                    stored[method.name]["meaning"] = method.meaning
                    self._keep(method.name, stored[method.name])
                    results += fresh
                parts[method.name] = stored[method.name]
        return _content(parts, abouts, self.settings), results

    def _results(
        self, method: Method, group: _Group, trained: Rounds | None, metrics: Mapping[str, float]
    ) -> list[AuditResult]:
        start = time.perf_counter()
        found = method.results(trained, metrics)
        seconds = {"audit_s": time.perf_counter() - start}
        if group.name in self.timing:
            seconds["train_s"] = self.timing[group.name]
        found = [replace(result, timing=seconds | dict(result.timing)) for result in found]
        if self.directory is not None:
            method.write(found, self.directory.path)
        return found

    def _trained(self, group: _Group) -> tuple[Rounds, dict[str, Any]]:
        """The training with all canaries, done, and what is to be known of it."""
        settings, splits = group.settings, group.splits()
        assert settings is not None
        for method in group.methods:
            splits = method.planted(splits)
        module = settings.module(splits)
        audits = [audit for method in group.methods for audit in method.audits(splits, module)]
        sharer = next((m.settings for m in group.methods if isinstance(m, SecretSharerMethod)), None)
        if sharer is None:
            training: Rounds = settings.training(splits, module, audits)
        else:
            training = sharer.training(settings, splits, module, audits)
        self._go_through(training, group.name, _CHECKPOINTS[group.name])
        metrics = headline(training)
        if self.settings.run.baseline:
            splits = group.splits()
            build = settings.training if sharer is None else partial(sharer.training, settings)
            plain = build(splits, settings.module(splits))
            self._go_through(plain, f"{group.name} without canaries", f"baseline-{group.name}")
            metrics |= {f"{name} without canaries": value for name, value in headline(plain).items()}
        return training, _about(training, metrics)

    def _go_through(self, training: Rounds, what: str, checkpoints: str) -> None:
        """Train to the end, from a checkpoint where there is one."""
        path = self._path(checkpoints)
        start, resumed = time.perf_counter(), path is not None and holds_one(path)
        live: list[str] = []
        with reporting(what, training.rounds) as advance:

            def progress(measured: Mapping[str, float]) -> None:
                nonlocal live
                done = int(measured["round"]) + 1
                if done % max(1, training.rounds // 20) == 0:
                    live = [words for audit in training.audits if (words := audit.live()) is not None]
                advance(done, "; ".join(live))
                if self.directory is not None:
                    self.directory.log("round", what=what, rounds=training.rounds, live=live, **measured)

            training.run(checkpoints=path, checkpoint_every=self.settings.run.checkpoint_every, progress=progress)
        if not resumed:
            self.timing[what] = time.perf_counter() - start

    def _stored(self, group: _Group) -> dict[str, dict[str, Any]]:
        found = {m.name: part for m in group.methods if (part := self._read(m.name, read_part)) is not None}
        if any(isinstance(m, ExposureMethod) and m.name not in found for m in group.methods):
            found.pop("secret-sharer", None)  # whose losses it may need
        return found

    def _path(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory.path / name

    def _read(self, name: str, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any] | None:
        path = None if self.directory is None else self.directory.part(name)
        return read(path) if path is not None and path.is_file() else None

    def _keep(self, name: str, content: Mapping[str, Any]) -> None:
        if self.directory is not None:
            write_json(self.directory.part(name), content)
            self.directory.log("found", part=name)


_CHECKPOINTS = {"training": "checkpoint", "text-training": "text-checkpoint"}


def run(settings: RunSettings, *, out: Path | None = None, again: bool = False) -> Finished:
    """Do what the settings say. With ``out`` it is a run directory, and a run that was stopped there goes on.

    ``again`` computes the audits anew from a training that is done, where their results are wanted as objects.
    """
    directory = None if out is None else RunDirectory(out)
    going = _Run(settings, directory)
    with nullcontext() if directory is None else directory.claimed(settings.to_toml()):
        groups = going.groups()
        content, results = going.found(groups, again=again)
        if directory is not None:
            write_result(content, directory.path)
    methods = [method for group in groups for method in group.methods]
    return Finished(content=content, results=results, methods=methods, directory=out)


def _about(trained: Rounds, metrics: Mapping[str, float]) -> dict[str, Any]:
    return {
        "clients": len(trained.data),
        "parameters": trained.dim,
        "rounds": trained.rounds,
        "private": isinstance(trained, Training) and trained.mechanism.private,
        "metrics": dict(metrics),
        "history": trained.history,
    }


def _content(
    parts: Mapping[str, Mapping[str, Any]], abouts: Mapping[str, Mapping[str, Any]], settings: RunSettings
) -> dict[str, Any]:
    results = [result for part in parts.values() for result in part["results"]]
    if not results:
        why = " ".join(str(part["meaning"]) for part in parts.values() if part.get("meaning"))
        raise InputError(why or "the audits found nothing to report: plant canaries, and hold some out")
    content = merged(results)
    if settings.run.title:
        content["title"] = settings.run.title
    meanings = {name: part["meaning"] for name, part in parts.items() if part.get("meaning")}
    if meanings:
        content["meanings"] = meanings
    return content | {name: dict(about) for name, about in abouts.items()}
