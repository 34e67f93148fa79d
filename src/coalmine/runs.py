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
from coalmine.audits.canife_result import CanifeResult
from coalmine.audits.result import AuditResult, file_name
from coalmine.config.canife import CanifeSettings
from coalmine.config.one_shot import OneShotSettings
from coalmine.config.training import TrainingSettings
from coalmine.errors import InputError
from coalmine.fl.checkpoint import holds_one
from coalmine.fl.flat import parameter_vector
from coalmine.fl.rounds import Progress, Rounds
from coalmine.fl.training import Training
from coalmine.sampling import AtMost, Sampling

ForTraining = Callable[[Training], Progress | None]
"""Gives what to call after each round of a training."""

_HEADLINE = ("accuracy", "recall@1", "perplexity", "loss")


def run_one_shot(
    training: TrainingSettings,
    settings: OneShotSettings,
    *,
    baseline: bool = False,
    out: Path | None = None,
    progress: ForTraining = lambda training: None,
) -> list[AuditResult]:
    """Train with canaries, and say what was found: a result for each view.

    With ``baseline`` the same training is run without canaries too, to see what they cost in accuracy. With ``out`` the
    run is checkpointed there, and goes on from its checkpoint where there is one. ``progress`` is asked for what to
    call after each round of a training.
    """
    splits = training.splits()
    module = training.module(splits)
    audits = settings.audits(training, parameter_vector(module).numpy(), len(splits.train))
    trained, timing = _run(training.training(splits, module, audits), out, progress)
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


def run_canife(
    training: TrainingSettings,
    settings: CanifeSettings,
    *,
    out: Path | None = None,
    progress: ForTraining = lambda training: None,
) -> list[CanifeResult]:
    """Train with CANIFE's adversaries, and say what each found.

    With ``out`` the run is checkpointed there, and goes on from its checkpoint where there is one.
    """
    if training.clip == "none":
        raise InputError("CANIFE's canaries are as long as the clip norm: set clip to a norm")
    splits = settings.splits(training)
    module = training.module(splits)
    audits = settings.audits(training, splits, module)
    trained = training.training(splits, module, audits)
    sampling = _sampling(trained)
    theory = trained.theory(settings.delta, sampling=sampling) if trained.mechanism.private else None
    trained, timing = _run(trained, out, progress)
    results = []
    for audit in audits:
        found = audit.result(
            delta=settings.delta,
            confidence=settings.confidence,
            noise_multiplier=trained.mechanism.noise_multiplier,
            sampling=sampling,
            theory=theory,
            metrics=headline(trained),
        )
        config = (
            training.to_dict()
            | settings.to_dict()
            | {
                "every": audit.every,
                "trials": audit.trials,
                "maker": repr(audit.canaries),
            }
        )
        results.append(replace(found, timing=timing | dict(found.timing), config=config))
    if out is not None:
        save(results, out)
        for found in results:
            _save_arrays(found.arrays, out / f"trials-{file_name(found.view)}.npz")
    return results


def _sampling(trained: Training) -> Sampling:
    """By which this training is accounted: where cohorts have no analysis, an upper bound."""
    terms = len(trained.data), trained.rounds, trained.seed
    try:
        return trained.cohorts.sampling(*terms)
    except InputError:
        return AtMost(trained.cohorts.exposures(*terms))


def _run(trained: Training, out: Path | None, progress: ForTraining) -> tuple[Training, dict[str, float]]:
    """Train, from a checkpoint where there is one, and say how long it took where there is none."""
    start = time.perf_counter()
    checkpoints = None if out is None else out / "checkpoint"
    resumed = checkpoints is not None and holds_one(checkpoints)
    trained.run(checkpoints=checkpoints, progress=progress(trained))
    return trained, {} if resumed else {"train_s": time.perf_counter() - start}


def headline(training: Rounds) -> dict[str, float]:
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
        _save_arrays(scores, directory / f"scores-{file_name(result.view)}.npz")
    content = {"schema": 1, "coalmine": __version__, **results_to_dict(results)}
    text = directory / "result.partial.json"
    text.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    text.replace(directory / "result.json")


def _save_arrays(arrays: Mapping[str, Any], path: Path) -> None:
    """Whole, or not at all."""
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **arrays)
    partial.replace(path)
