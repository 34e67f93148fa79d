"""From settings to results: one training, several audits, a directory that survives a kill."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coalmine.audits.result import AuditResult
from coalmine.config.run import RunSettings
from coalmine.errors import InputError
from coalmine.files import write_json, write_text
from coalmine.fl.checkpoint import holds_one
from coalmine.fl.rounds import Rounds
from coalmine.fl.training import Training
from coalmine.progress import reporting
from coalmine.runs.directory import RunDirectory
from coalmine.runs.files import merged, write_result
from coalmine.runs.methods import CanifeMethod, ExposureMethod, LDPMethod, Method, OneShotMethod, headline
from coalmine.runs.phrases import SecretSharerMethod
from coalmine.runs.saved import read_part, read_run_directory, read_training_part


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


@dataclass
class _Run:
    """A run while it goes on."""

    settings: RunSettings
    directory: RunDirectory | None = None
    timing: dict[str, float] = field(default_factory=dict)

    def methods(self) -> list[Method]:
        """The audits asked for, in the order in which they are told."""
        given, training = self.settings, self.settings.training
        found: list[Method] = []
        if given.one_shot is not None and training is not None:
            found.append(OneShotMethod(training, given.one_shot))
        if given.canife is not None and training is not None:
            found.append(CanifeMethod(training, given.canife))
        sharer = None
        if given.secret_sharer is not None and training is not None:
            out = None if self.directory is None else self.directory.path
            sharer = SecretSharerMethod(training, given.secret_sharer, out)
            found.append(sharer)
        if given.ldp is not None:
            found.append(LDPMethod(given.ldp))
        if given.exposure is not None:
            found.append(ExposureMethod(given.exposure, sharer if given.exposure.file is None else None))
        return found

    def trained(self, methods: Sequence[Method]) -> Rounds:
        """The training with all canaries, done."""
        settings = self.settings.training
        assert settings is not None
        splits = settings.splits(pool_fraction=max(method.pool_fraction for method in methods))
        for method in methods:
            splits = method.planted(splits)
        module = settings.module(splits)
        audits = [audit for method in methods for audit in method.audits(splits, module)]
        sharer = self.settings.secret_sharer
        build = settings.training if sharer is None else lambda *parts: sharer.training(settings, *parts)
        training = build(splits, module, audits)
        self.go_through(training, "training", None if self.directory is None else self.directory.checkpoint)
        return training

    def baseline(self, methods: Sequence[Method]) -> dict[str, float]:
        """How good the model is without canaries."""
        settings = self.settings.training
        assert settings is not None
        splits = settings.splits(pool_fraction=max(method.pool_fraction for method in methods))
        plain = settings.training(splits, settings.module(splits))
        self.go_through(plain, "baseline", None if self.directory is None else self.directory.path / "baseline")
        return {f"{name} without canaries": value for name, value in headline(plain).items()}

    def go_through(self, training: Rounds, what: str, checkpoints: Path | None) -> None:
        """Train to the end, from a checkpoint where there is one."""
        start, resumed = time.perf_counter(), checkpoints is not None and holds_one(checkpoints)
        with reporting(what, training.rounds) as advance:

            def progress(measured: Mapping[str, float]) -> None:
                done = int(measured["round"]) + 1
                live = [words for audit in training.audits if (words := audit.live()) is not None]
                advance(done, "; ".join(live))
                if self.directory is not None:
                    self.directory.log("round", what=what, rounds=training.rounds, live=live, **measured)

            training.run(
                checkpoints=checkpoints, checkpoint_every=self.settings.run.checkpoint_every, progress=progress
            )
        if not resumed:
            self.timing[f"{what}_s"] = time.perf_counter() - start

    def found(self, methods: Sequence[Method], *, again: bool) -> tuple[dict[str, Any], list[AuditResult]]:
        """What all audits found; those that are done already are read, unless they are wanted ``again``."""
        stored = {} if again else {m.name: read_part(path) for m in methods if (path := self._part(m)).is_file()}
        if any(isinstance(m, ExposureMethod) and m.phrases is not None and m.name not in stored for m in methods):
            stored.pop("secret-sharer", None)  # whose losses it needs
        results: list[AuditResult] = []
        about, metrics, trained = self._training_facts(methods, stored)
        if about is None and self.settings.training is not None:
            trained = self.trained(methods)
            metrics = headline(trained)
            if self.settings.run.baseline:
                metrics |= self.baseline(methods)
            about = _about(trained, metrics)
            self._keep("training", about)
        parts = []
        for method in methods:
            if method.name in stored:
                parts.append(stored[method.name])
                continue
            start = time.perf_counter()
            fresh = method.results(trained, metrics)
            timing = {"train_s": self.timing["training_s"]} if "training_s" in self.timing else {}
            fresh = [replace(result, timing=timing | {"audit_s": time.perf_counter() - start} | dict(result.timing))
                     for result in fresh]  # fmt: skip
            if self.directory is not None:
                method.write(fresh, self.directory.path)
            part = {"results": [result.to_dict() for result in fresh], "meaning": method.meaning}
            self._keep(method.name, part)
            parts.append(part)
            results += fresh
        return _content(methods, parts, about, self.settings), results

    def _training_facts(
        self, methods: Sequence[Method], stored: Mapping[str, Any]
    ) -> tuple[dict[str, Any] | None, dict[str, float], Rounds | None]:
        """What is known of a training whose audits are all done: then it need not be run, or loaded, again."""
        path = None if self.directory is None else self.directory.part("training")
        needed = [m.name for m in methods if m.name not in stored and not isinstance(m, LDPMethod)]
        if path is None or needed or not path.is_file():
            return None, {}, None
        about = read_training_part(path)
        return about, about["metrics"], None

    def _part(self, method: Method) -> Path:
        return Path() if self.directory is None else self.directory.part(method.name)

    def _keep(self, name: str, content: Mapping[str, Any]) -> None:
        if self.directory is not None:
            write_json(self.directory.part(name), content)
            self.directory.log("found", part=name, **self.timing)


def run(settings: RunSettings, *, out: Path | None = None, again: bool = False) -> Finished:
    """Do what the settings say. With ``out`` it is a run directory, and a run that was stopped there goes on.

    ``again`` computes the audits anew from a training that is done, where their results are wanted as objects.
    """
    directory = None if out is None else RunDirectory(out)
    going = _Run(settings, directory)
    with nullcontext() if directory is None else directory.claimed(settings.to_toml()):
        methods = going.methods()
        content, results = going.found(methods, again=again)
        if directory is not None:
            write_result(content, directory.path)
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
    methods: Sequence[Method],
    parts: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any] | None,
    settings: RunSettings,
) -> dict[str, Any]:
    results = [result for part in parts for result in part["results"]]
    if not results:
        raise InputError("the audits found nothing to report: plant canaries, and hold some out")
    meanings = {
        method.name: part["meaning"] for method, part in zip(methods, parts, strict=True) if part.get("meaning")
    }
    content = merged(results)
    if settings.run.title:
        content["title"] = settings.run.title
    if meanings:
        content["meanings"] = meanings
    if about is not None:
        content["training"] = dict(about)
    return content
