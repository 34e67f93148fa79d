"""Runs: a training with its audits, from settings to results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coalmine import __version__
from coalmine.audits.result import AuditResult
from coalmine.config.one_shot import OneShotSettings
from coalmine.config.training import TrainingSettings
from coalmine.fl.checkpoint import holds_one
from coalmine.fl.flat import parameter_vector
from coalmine.fl.rounds import Progress
from coalmine.fl.training import Training

_HEADLINE = ("accuracy", "recall@1", "perplexity", "loss")


def run_one_shot(
    training: TrainingSettings,
    settings: OneShotSettings,
    *,
    baseline: bool = False,
    out: Path | None = None,
    progress: Callable[[Training], Progress | None] = lambda training: None,
) -> list[AuditResult]:
    """Train with canaries, and say what was found: a result for each view.

    With ``baseline`` the same training is run without canaries too, to see what they cost in accuracy. With ``out`` the
    run is checkpointed there, and goes on from its checkpoint where there is one. ``progress`` is asked for what to
    call after each round of a training.
    """
    splits = training.splits()
    module = training.module(splits)
    audits = settings.audits(training, parameter_vector(module).numpy(), len(splits.train))
    start = time.perf_counter()
    trained = training.training(splits, module, audits)
    checkpoints = None if out is None else out / "checkpoint"
    resumed = checkpoints is not None and holds_one(checkpoints)
    trained.run(checkpoints=checkpoints, progress=progress(trained))
    timing = {} if resumed else {"train_s": time.perf_counter() - start}
    metrics = headline(trained)
    if baseline:
        plain = training.training(splits, training.module(splits))
        plain.run(checkpoints=None if out is None else out / "baseline", progress=progress(plain))
        metrics |= {f"{name} without canaries": value for name, value in headline(plain).items()}
    results = []
    for audit in audits:
        theory = None
        if trained.mechanism.private:
            theory = audit.theory(noise_multiplier=trained.mechanism.noise_multiplier, delta=settings.delta)
        found = audit.result(delta=settings.delta, confidence=settings.confidence, theory=theory, metrics=metrics)
        used = {name: getattr(audit, name) for name in ("dim", "canaries", "view", "family", "score")}
        config = training.to_dict() | settings.to_dict() | used
        results.append(replace(found, timing=timing | dict(found.timing), config=config))
    if out is not None:
        save(results, out)
    return results


def headline(training: Training) -> dict[str, float]:
    """How good the model is in the end."""
    last: Mapping[str, float] = training.history[-1] if training.history else {}
    return {name: float(last[name]) for name in _HEADLINE if name in last}


def results_to_dict(results: Sequence[AuditResult]) -> dict[str, Any]:
    """JSON-ready: one result as it is, several as a list."""
    return results[0].to_dict() if len(results) == 1 else {"results": [result.to_dict() for result in results]}


def save(results: Sequence[AuditResult], directory: Path) -> None:
    """Write ``result.json`` and, for each view, ``scores-VIEW.npz``: each whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    for result in results:
        scores: dict[str, Any] = {"members": result.scores.members}
        if result.scores.nonmembers is not None:
            scores["nonmembers"] = result.scores.nonmembers
        partial = directory / "scores.partial.npz"
        np.savez(partial, **scores)
        partial.replace(directory / f"scores-{result.view.replace(':', '-')}.npz")
    content = {"schema": 1, "coalmine": __version__, **results_to_dict(results)}
    text = directory / "result.partial.json"
    text.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    text.replace(directory / "result.json")
