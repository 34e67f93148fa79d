"""Runs of the secret-sharer audit: from settings, or from a model and canaries that are there, to results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from coalmine.accounting import Theory
from coalmine.audits.memorisation import Asking, Memorisation, ask
from coalmine.audits.phrase_search import Track
from coalmine.audits.result import AuditResult
from coalmine.audits.secret_sharer import Unit, phrase_result
from coalmine.audits.user_attack import user_attack
from coalmine.canaries.insertion import Insertion, insert
from coalmine.canaries.phrase_file import read_canaries, write_canaries
from coalmine.config.secret_sharer import SecretSharerSettings
from coalmine.config.training import TrainingSettings, build_model
from coalmine.data import FederatedData, Splits, Task
from coalmine.errors import InputError
from coalmine.fl import Training
from coalmine.fl.rounds import Progress, Rounds
from coalmine.runs import headline, save
from coalmine.stats.arrays import Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class SecretSharerRun:
    """What was found: the canaries' memorisation, and results for each score and unit."""

    memorisation: Memorisation
    results: list[AuditResult]
    users: Ints | None = None
    copies: Ints | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "results": [result.to_dict() for result in self.results],
            "memorisation": self.memorisation.to_dict(self.users, self.copies),
        }


def run_secret_sharer(
    training: TrainingSettings,
    settings: SecretSharerSettings,
    *,
    out: Path | None = None,
    progress: Callable[[Rounds], Progress | None] = lambda training: None,
    track: Track = iter,
) -> SecretSharerRun:
    """Plant phrases, train, ask. With ``out`` the run is checkpointed there and goes on from its checkpoint.

    What is written there is enough to ask again: ``canaries.json``, ``weights.safetensors``.
    """
    asking = settings.asking()
    splits = training.splits()
    data, aside = set_aside(splits.train, settings.reference_share)
    insertion = insert(data, settings.phrases(data, training.seed))
    if settings.users == "shuffled":
        insertion = insertion.shuffled(training.seed)
    start = time.perf_counter()
    trained = settings.training(training, replace(splits, train=insertion.data), training.module(splits))
    trained.run(checkpoints=None if out is None else out / "checkpoint", progress=progress(trained))
    reference = None
    if aside is not None:
        calm = settings.training(training, replace(splits, train=aside), training.module(splits))
        calm.run(checkpoints=None if out is None else out / "reference", progress=progress(calm))
        reference = calm.module()
    seconds = time.perf_counter() - start
    module = trained.module()
    start = time.perf_counter()
    found = ask(module, insertion.phrases, asking, reference=reference, track=track)
    theory = None
    if isinstance(trained, Training) and trained.mechanism.private:
        theory = trained.theory(settings.delta)
    results = _results(found, insertion, settings, theory, headline(trained))
    if settings.users == "natural":
        results.append(_attack(module, reference, insertion, splits, settings, theory))
    timing = {"train_s": seconds, "audit_s": time.perf_counter() - start}
    config = training.to_dict() | settings.to_dict()
    results = [replace(result, timing=timing, config={**config, **result.config}) for result in results]
    run = SecretSharerRun(memorisation=found, results=results, users=insertion.users, copies=insertion.copies)
    if out is not None:
        write_canaries(insertion, out / "canaries.json")
        save_file(
            {name: tensor.contiguous() for name, tensor in module.state_dict().items()}, out / "weights.safetensors"
        )
        save(results, out)
        _write_memorisation(run, out)
    return run


def audit_stored(
    *,
    model: str,
    weights: Path,
    canaries: Path,
    reference: Path | None = None,
    model_settings: dict[str, float] | None = None,
    asking: Asking | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    out: Path | None = None,
    track: Track = iter,
) -> SecretSharerRun:
    """Ask any PyTorch language model after the fact about the canaries of a file.

    ``model`` is ``path.py:function`` or a model of ours, ``weights`` its safetensors file, ``reference`` the weights of
    a model of the same kind that never saw the canaries.
    """
    stored = read_canaries(canaries)
    language, length = stored.canaries.language, stored.canaries.length
    task = Task(
        input_shape=(len(language.context) + length,),
        classes=language.size,
        tokens=language.size,
        per_position=True,
        ignored=0,
    )
    start = time.perf_counter()
    module = _weighted(model, task, weights, model_settings)
    calm = None if reference is None else _weighted(model, task, reference, model_settings)
    found = ask(module, stored.canaries, asking, reference=calm, track=track)
    units: tuple[Unit, ...] = ("phrase",) if stored.users is None else ("user", "phrase")
    results = [
        phrase_result(found, users=stored.users, score=score, unit=unit, delta=delta, confidence=confidence)
        for score in found.possible_scores
        for unit in units
        if not stored.canaries.planted.all()
    ]
    timing = {"audit_s": time.perf_counter() - start}
    results = [replace(result, timing=timing) for result in results]
    run = SecretSharerRun(memorisation=found, results=results, users=stored.users)
    if out is not None:
        save(results, out)
        _write_memorisation(run, out)
    return run


def set_aside(data: FederatedData, share: float) -> tuple[FederatedData, FederatedData | None]:
    """The clients to train on, and the last ``share`` of them for a reference model: no user is in both."""
    if not 0 <= share < 1:
        raise InputError(f"reference_share must be in [0, 1), got {share}")
    first = len(data) - round(share * len(data))
    if first == len(data):
        return data, None
    owners = [name.rpartition("#")[0] or name for name in data.names]
    while 0 < first < len(data) and owners[first] == owners[first - 1]:
        first -= 1
    if not first:
        raise InputError(f"reference_share = {share} leaves nobody to train on")
    return data.subset(range(first)), data.subset(range(first, len(data)))


def _results(
    found: Memorisation,
    insertion: Insertion,
    settings: SecretSharerSettings,
    theory: Theory | None,
    metrics: dict[str, float],
) -> list[AuditResult]:
    if insertion.phrases.planted.all():
        return []
    return [
        phrase_result(
            found,
            users=insertion.users,
            score=score,
            unit=unit,
            delta=settings.delta,
            confidence=settings.confidence,
            theory=theory,
            metrics=metrics,
        )
        for score in found.possible_scores
        for unit in ("user", "phrase")
    ]


def _attack(
    module: nn.Module,
    reference: nn.Module | None,
    insertion: Insertion,
    splits: Splits,
    settings: SecretSharerSettings,
    theory: Theory | None,
) -> AuditResult:
    holders = np.unique(insertion.books[:, 1]).tolist()
    return user_attack(
        module,
        members=insertion.data,
        nonmembers=splits.test,
        own={client: insertion.own(client) for client in holders},
        reference=reference,
        delta=settings.delta,
        confidence=settings.confidence,
        theory=theory,
        seed=insertion.phrases.seed,
    )


def _weighted(model: str, task: Task, weights: Path, settings: dict[str, float] | None) -> nn.Module:
    module = build_model(model, task, settings or {})
    try:
        module.load_state_dict(load_file(weights))
    except FileNotFoundError:
        raise InputError(f"there is no file {weights}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{weights} is not a safetensors file: {error}") from None
    except RuntimeError as error:
        first = " ".join(str(error).split())
        raise InputError(f"{weights} does not fit the model {model}: {first:.300}") from None
    return module


def _write_memorisation(run: SecretSharerRun, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    partial = out / "memorisation.partial"
    partial.write_text(json.dumps(run.to_dict()["memorisation"], indent=1) + "\n", encoding="utf-8")
    partial.replace(out / "memorisation.json")
