"""The secret-sharer audit in a run, and of a model and canaries that are there already."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialized
from torch import nn

from coalmine.accounting import Theory
from coalmine.arrays import Ints
from coalmine.errors import InputError
from coalmine.files import write_json, write_whole
from coalmine.methods.secret_sharer.audit import Unit, phrase_result
from coalmine.methods.secret_sharer.insertion import Insertion, insert
from coalmine.methods.secret_sharer.memorization import Asking, Memorization, ask
from coalmine.methods.secret_sharer.phrase_file import read_canaries, write_canaries
from coalmine.methods.secret_sharer.settings import SecretSharerSettings
from coalmine.methods.secret_sharer.user_attack import persons, user_attack
from coalmine.progress import reporting, track
from coalmine.results.files import save
from coalmine.results.result import AuditResult
from coalmine.runs.methods import Method
from coalmine.seeds import generator
from coalmine.simulation import Training
from coalmine.simulation.data import FederatedData, Splits, Task
from coalmine.simulation.rounds import Rounds
from coalmine.simulation.settings import TrainingSettings, build_model


@dataclass(frozen=True, kw_only=True, eq=False)
class SecretSharerRun:
    """What was found: the canaries' memorization, and results for each score and unit."""

    memorization: Memorization
    results: list[AuditResult]
    users: Ints | None = None
    copies: Ints | None = None

    @property
    def without_epsilon(self) -> str:
        """Why the phrases give no ε, where they do not."""
        if not self.memorization.canaries.planted.all():
            return ""
        return (
            "There is no ε of the phrases: all of them were planted, and without some that were not (twins) nothing "
            "tells how likely a model finds such phrases anyway."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "results": [result.to_dict() for result in self.results],
            "memorization": self.memorization.to_dict(self.users, self.copies),
        }


@dataclass
class SecretSharerMethod(Method):
    """Phrases that users share: planted in the data, asked of the final model."""

    name = "secret-sharer"
    training: TrainingSettings
    settings: SecretSharerSettings
    out: Path | None = None
    insertion: Insertion | None = None
    splits: Splits | None = None
    aside: FederatedData | None = None
    module: nn.Module | None = None
    found: Memorization | None = None

    def __post_init__(self) -> None:
        asking, length = self.settings.asking(), self.settings.length  # wrong ones are refused before a training
        if asking.prefix >= length:
            raise InputError(f"the prefix of {asking.prefix} words is not shorter than the canaries, of {length}")

    def planted(self, splits: Splits) -> Splits:
        """Users' examples replaced by phrases, after some users were set aside for a reference model."""
        data, self.aside = set_aside(splits.train, self.settings.reference_share, seed=self.training.seed)
        insertion = insert(data, self.settings.phrases(data, self.training.seed))
        self.insertion = insertion.shuffled(self.training.seed) if self.settings.users == "shuffled" else insertion
        self.splits = replace(splits, train=self.insertion.data)
        return self.splits

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> list[AuditResult]:
        """A result for each score and unit, and one of the attack on users."""
        assert trained is not None
        assert self.insertion is not None
        assert self.splits is not None
        reference = self._reference()
        self.module = trained.module()
        start = time.perf_counter()
        self.found = ask(
            self.module,
            self.insertion.phrases,
            self.settings.asking(),
            reference=reference,
            track=lambda work: track(work, "ranking phrases"),
        )
        theory = None
        if isinstance(trained, Training) and trained.mechanism.private:
            theory = trained.theory(self.settings.delta)
        results = _results(self.found, self.insertion, self.settings, theory, metrics)
        if _has_persons(self.insertion):
            results.append(_attack(self.module, reference, self.insertion, self.splits, self.settings, theory))
        timing = {"audit_s": time.perf_counter() - start}
        config = self.training.to_dict() | self.settings.to_dict()
        return [replace(result, timing=timing, config={**config, **result.config}) for result in results]

    def _reference(self) -> nn.Module | None:
        """A model that never saw a canary, trained on the users set aside."""
        if self.aside is None or self.splits is None:
            return None
        module = self.training.module(self.splits)
        calm = self.settings.training(self.training, replace(self.splits, train=self.aside), module)
        with reporting("reference model", calm.rounds) as advance:
            calm.run(
                checkpoints=None if self.out is None else self.out / "reference",
                progress=lambda measured: advance(int(measured["round"]) + 1, ""),
            )
        return calm.module()

    @property
    def run(self) -> SecretSharerRun:
        """What was found of the phrases themselves."""
        assert self.found is not None
        assert self.insertion is not None
        return SecretSharerRun(
            memorization=self.found, results=[], users=self.insertion.users, copies=self.insertion.copies
        )

    @property
    def meaning(self) -> str | None:
        """Why there is no ε of the phrases, where there is none."""
        return self.run.without_epsilon or None if self.found is not None else None

    def write(self, results: Sequence[AuditResult], directory: Path) -> None:
        """Scores, every canary, and what is needed to ask again: ``canaries.json``, ``weights.safetensors``."""
        super().write(results, directory)
        assert self.insertion is not None
        assert self.module is not None
        write_canaries(self.insertion, directory / "canaries.json")
        weights = {name: tensor.contiguous() for name, tensor in self.module.state_dict().items()}
        write_whole(directory / "weights.safetensors", lambda path: path.write_bytes(serialized(weights)))
        _write_memorization(self.run, directory)


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
    found = ask(module, stored.canaries, asking, reference=calm, track=lambda work: track(work, "ranking phrases"))
    units: tuple[Unit, ...] = ("phrase",) if stored.users is None else ("user", "phrase")
    results = [
        phrase_result(found, users=stored.users, score=score, unit=unit, delta=delta, confidence=confidence)
        for score in found.possible_scores
        for unit in units
        if not stored.canaries.planted.all()
    ]
    timing = {"audit_s": time.perf_counter() - start}
    results = [replace(result, timing=timing) for result in results]
    run = SecretSharerRun(memorization=found, results=results, users=stored.users)
    if out is not None:
        save(results, out)
        _write_memorization(run, out)
    return run


def set_aside(data: FederatedData, share: float, *, seed: int = 0) -> tuple[FederatedData, FederatedData | None]:
    """The clients to train on, and those of a random ``share`` of the users, for a reference model: none is in both.

    At random, since users may stand in an order that means something: those who are left to train on must be like any.
    """
    if not 0 <= share < 1:
        raise InputError(f"reference_share must be in [0, 1), got {share}")
    owners = np.unique([name.rpartition("#")[0] or name for name in data.names], return_inverse=True)[1]
    users = int(owners.max()) + 1
    count = round(share * users)
    if not count:
        return data, None
    if count == users:
        raise InputError(f"reference_share = {share} leaves nobody to train on")
    taken = np.isin(owners, generator(seed, "aside").permutation(users)[:count])
    return data.subset(np.flatnonzero(~taken)), data.subset(np.flatnonzero(taken))


def _results(
    found: Memorization,
    insertion: Insertion,
    settings: SecretSharerSettings,
    theory: Theory | None,
    metrics: Mapping[str, float],
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


def _has_persons(insertion: Insertion) -> bool:
    """Whether there is somebody to attack: a client that is a person's, whom no coin made share a canary."""
    data = insertion.data
    return not data.names[0].startswith("iid-") and len(np.setdiff1d(persons(data), insertion.sharers)) > 0


def _attack(
    module: nn.Module,
    reference: nn.Module | None,
    insertion: Insertion,
    splits: Splits,
    settings: SecretSharerSettings,
    theory: Theory | None,
) -> AuditResult:
    return user_attack(
        module,
        members=insertion.data,
        nonmembers=splits.test,
        without=insertion.sharers,
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


def _write_memorization(run: SecretSharerRun, out: Path) -> None:
    write_json(out / "memorization.json", run.memorization.to_dict(run.users, run.copies))
