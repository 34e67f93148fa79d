"""The secret-sharer method in a run: train on data with canaries, or load a trained model, then probe it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError
from coalmine.methods.job import Job, JobContext
from coalmine.methods.secret_sharer.audit import PrivacyUnit, SecretSharer
from coalmine.methods.secret_sharer.phrases import Insertion, PhraseCanaries, insert
from coalmine.methods.secret_sharer.settings import SecretSharerSettings, TextTrainingSettings
from coalmine.methods.secret_sharer.stored_model import load_model, read_canaries, save_weights, write_canaries
from coalmine.methods.secret_sharer.users import first_clients, set_aside, synthetic, user_attack
from coalmine.progress import reporting
from coalmine.protocol import Release
from coalmine.results.result import MethodResults, Result
from coalmine.simulation import CentralTraining, Training
from coalmine.simulation.data import FederatedData, Splits
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.rounds import Rounds
from coalmine.simulation.settings import TrainingSettings

if TYPE_CHECKING:
    from coalmine.claims import Claim
    from coalmine.protocol import Audit

_NOTHING_HELD_OUT = (
    "The phrases give no ε: all of them were inserted, and without held-out ones (twins) there is no telling how "
    "likely the model finds such phrases anyway."
)


def build_job(context: JobContext) -> PhraseJob:
    """Return the job that trains a model, or the one for a stored model if the settings name its weights."""
    return SecretSharerJob(context) if context.settings.model_weights is None else StoredModelJob(context)


class PhraseJob(Job):
    """What both jobs share: a memorization of phrases, and results for every score and unit."""

    def __init__(self, context: JobContext) -> None:
        self.settings: SecretSharerSettings = context.settings
        self.training: TrainingSettings = context.training or TextTrainingSettings()
        self.audit: SecretSharer | None = None

    def losses(self) -> tuple[Floats, Floats]:
        """Return the log-perplexities of inserted and of held-out phrases in nats, for other methods of the run."""
        if self.audit is None:
            raise InputError("the phrases of secret-sharer were not scored in this run: run it before exposure")
        inserted, held_out = self.audit.memorization().scores("loss")
        return -inserted, -held_out

    def _phrase_results(
        self,
        module: nn.Module,
        reference: nn.Module | None,
        canaries: PhraseCanaries,
        users: Ints | None,
        most_users: int | None,
        claim: Claim | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> list[Result]:
        """Probe a trained model, and return one result per score and unit; none if no phrase was held out."""
        self.audit = SecretSharer(
            module,
            canaries=canaries,
            users=users,
            most_users=most_users,
            prefix=self.settings.prefix,
            references=self.settings.references,
            limit=self.settings.limit or None,
            width=self.settings.width,
            reference=reference,
        )
        self.audit.observe(Release(round=0, kind="model", vector=parameter_vector(module)))
        memorization = self.audit.memorization()
        if canaries.inserted.all():
            return []
        units: tuple[PrivacyUnit, ...] = ("phrase",) if users is None else ("user", "phrase")
        return [
            self.audit.result(
                score=score,
                unit=unit,
                delta=self.settings.delta,
                confidence=self.settings.confidence,
                claim=claim,
                metrics=metrics,
            )
            for score in memorization.score_names
            for unit in units
        ]

    def _method_results(
        self, results: Sequence[Result], *, copies: Ints | None = None, config: Mapping[str, Any], seconds: float
    ) -> MethodResults:
        """Return the results with settings and time, and the memorization next to them."""
        assert self.audit is not None
        return MethodResults(
            method="secret-sharer",
            results=[
                replace(result, timing={"audit_s": seconds}, config={**config, **result.config}) for result in results
            ],
            summary=_NOTHING_HELD_OUT if self.audit.canaries.inserted.all() else None,
            extras={"memorization": self.audit.memorization().to_dict(self.audit.users, copies)},
        )


class SecretSharerJob(PhraseJob):
    """Inserts phrases into the data, and probes the model trained on it."""

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        if self.settings.prefix >= self.settings.length:
            raise InputError(
                f"prefix = {self.settings.prefix} must be shorter than the canaries, which have "
                f"{self.settings.length} words"
            )
        self.directory, self.config = context.directory, context.config
        self.insertion: Insertion | None = None
        self._splits: Splits | None = None
        self._aside: FederatedData | None = None
        self._module: nn.Module | None = None

    def insert(self, splits: Splits) -> Splits:
        """Set users aside for a reference model, and replace examples of the others by canaries."""
        data, self._aside = set_aside(splits.train, self.settings.reference_share, seed=self.training.seed)
        insertion = insert(data, self.settings.phrases(data, self.training.seed))
        self.insertion = insertion.shuffled(self.training.seed) if self.settings.users == "shuffled" else insertion
        self._splits = replace(splits, train=self.insertion.data)
        return self._splits

    def build_training(self, splits: Splits, module: nn.Module, audits: Sequence[Audit] = ()) -> Rounds | None:
        """Return central training if the settings ask for it."""
        training = self.training
        if self.settings.regime == "federated":
            return None
        if training.clip_norm != "none" or training.noise_multiplier:
            raise InputError(
                f"central training neither clips nor adds noise: remove clip_norm = {training.clip_norm} and "
                f"noise_multiplier = {training.noise_multiplier:g}, or set regime to federated"
            )
        return CentralTraining(
            model=module,
            data=splits.train,
            test=splits.test,
            rounds=training.rounds,
            steps=self.settings.steps,
            batch_size=self.settings.batch_size,
            optimizer=training.client.rule(),
            order="shuffled" if self.settings.users == "shuffled" else "by-user",
            evaluate_every=training.evaluate_every,
            audits=audits,
            seed=training.seed,
        )

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return one result per score and unit, and one of the attack on users."""
        assert trained is not None
        assert self.insertion is not None
        assert self._splits is not None
        insertion, settings = self.insertion, self.settings
        reference = self._reference_model(self._splits)
        self._module = trained.module()
        start = time.perf_counter()
        claim = None
        if isinstance(trained, Training) and trained.mechanism.private:
            claim = trained.claim(settings.delta)
        results = self._phrase_results(
            self._module, reference, insertion.phrases, insertion.users, insertion.most_users, claim, metrics
        )
        if _has_users_without_canaries(insertion):
            attack = user_attack(
                self._module,
                members=insertion.data,
                nonmembers=self._splits.test,
                without=insertion.sharers,
                reference=reference,
                delta=settings.delta,
                confidence=settings.confidence,
                claim=claim,
                seed=insertion.phrases.seed,
            )
            results = [*results[:2], attack, *results[2:]]  # after both views of the exposure
        seconds = time.perf_counter() - start
        return self._method_results(results, copies=insertion.copies, config=self.config, seconds=seconds)

    def write(self, directory: Path) -> None:
        """Write ``canaries.json`` and ``weights.safetensors``, which a later audit of the same model reads."""
        assert self.insertion is not None
        assert self._module is not None
        write_canaries(self.insertion, directory / "canaries.json")
        save_weights(self._module, directory / "weights.safetensors")

    def _reference_model(self, splits: Splits) -> nn.Module | None:
        """Return a model trained on the users set aside, who hold no canaries; None if there are none."""
        if self._aside is None:
            return None
        module, aside = self.training.module(splits), replace(splits, train=self._aside)
        training = self.build_training(aside, module) or self.training.training(aside, module)
        with reporting("reference model", training.rounds) as advance:
            training.run(
                checkpoints=None if self.directory is None else self.directory / "reference",
                progress=lambda measured: advance(int(measured["round"]) + 1, ""),
            )
        return training.module()


class StoredModelJob(PhraseJob):
    """Probes a trained model for the canaries of a file; no training is run."""

    needs_training = False

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        settings = self.settings
        if settings.model_weights is None or settings.canaries is None:
            raise InputError("a trained model is audited with both model_weights and canaries: set both")
        self.canaries, self.users, self.most_users = read_canaries(Path(settings.canaries))
        self.weights = Path(settings.model_weights)

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return one result per score and unit."""
        start = time.perf_counter()
        canaries, settings = self.canaries, self.settings
        module, reference = load_model(self.training, canaries, self.weights), None
        if settings.reference_weights is not None:
            reference = load_model(self.training, canaries, Path(settings.reference_weights))
        results = self._phrase_results(module, reference, canaries, self.users, self.most_users)
        stored = ("model_weights", "canaries", "reference_weights")
        config = {"model": self.training.model} | {name: getattr(settings, name) for name in stored}
        return self._method_results(results, config=config, seconds=time.perf_counter() - start)


def _has_users_without_canaries(insertion: Insertion) -> bool:
    """Return whether there are users to attack: real ones, and not selected as a sharer of any canary."""
    data = insertion.data
    return not synthetic(data) and len(np.setdiff1d(first_clients(data), insertion.sharers)) > 0
