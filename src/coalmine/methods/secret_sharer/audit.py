"""The secret-sharer audit: phrases inserted into users' data, then queries to the final model (Thakkar et al. 2020).

The canaries are in the data and not among the updates, so this audit adds nothing to a round: it waits for the final
model. docs/secret-sharer.md explains the scores and both units of privacy.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coalmine.arrays import Ints
from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods.estimates import normality
from coalmine.methods.secret_sharer.evidence import phrase_evidence, user_evidence
from coalmine.methods.secret_sharer.memorization import Memorization, Probe, measure_memorization
from coalmine.methods.secret_sharer.phrases import PhraseCanaries
from coalmine.protocol import Audit, Release, View
from coalmine.results.result import Result, common_delta
from coalmine.results.verdict import PHRASE, USER
from coalmine.simulation.flat import device_of, moved, parse_device
from coalmine.stats import Scores
from coalmine.stats.exposure import RandomGuessing
from coalmine.vectors import flat, to_numpy

PrivacyUnit = Literal["user", "phrase"]
"""Whose ε: one user's, or that of all users who share a phrase together."""

_SCORES = {
    "exposure": ("exposure in bits", "queries the final model and ranks each phrase among random ones"),
    "loss": ("minus the log-perplexity", "queries the final model and compares losses"),
    "calibrated": (
        "log-perplexity of the reference model minus that of the model",
        "queries the final model and a reference model and compares losses",
    ),
}


class SecretSharer(Audit):
    """Audits a training of a language model with phrases inserted into users' data (Thakkar et al. 2020).

    Train on the data of `coalmine.methods.secret_sharer.insertion.insert`, with this audit among the training's audits
    or by handing it the final model through `observe`. Inserted and held-out phrases are exchangeable, which is what
    makes the lower bound valid as long as their scores do not influence each other. If a fair coin decided about each
    phrase (the design ``"coin-flips"``), the quoted bound holds even if they do.

    Args:
        canaries: Inserted and held-out phrases.
        module: The model that is trained, with any weights. It is not changed.
        users: Number of users that hold each canary, shape (canaries,), `Insertion.users` as a rule. Without it there
            is no ε of one user.
        most_users: Largest number of users that could hold a canary, whichever of them had been inserted:
            `Insertion.most_users`. By default the largest of ``users``.
        probe: How to probe the model.
        reference: A model that saw none of the canaries, to calibrate losses with.
        device: Where the final model is probed; where the module is if None.

    Raises:
        InputError: If there is no such device.

    Example:
        >>> from coalmine.methods.secret_sharer.insertion import insert
        >>> from coalmine.methods.secret_sharer.phrases import Language, draw_phrases, grid
        >>> from coalmine.simulation import models
        >>> from coalmine.simulation.data import generated_text
        >>> from coalmine.simulation.flat import parameter_vector
        >>> data = generated_text(users=20, sentences=10, vocabulary_size=100, positions=8).train
        >>> canaries = draw_phrases(Language.of(data), configurations=grid([0.2], [1.0]), each=4)
        >>> insertion = insert(data, canaries)
        >>> model = models.build("word-lstm", data.task, embedding=4, units=4)
        >>> audit = SecretSharer(canaries=canaries, module=model, users=insertion.users, probe=Probe(references=500))
        >>> final = parameter_vector(model).numpy()  # as if training on insertion.data had changed nothing
        >>> audit.observe(0, model=final)
        >>> audit.result(unit="phrase").bound.epsilon
        0.0
    """

    views = (View("model", every=None),)

    def __init__(
        self,
        *,
        canaries: PhraseCanaries,
        module: nn.Module,
        users: Ints | None = None,
        most_users: int | None = None,
        probe: Probe | None = None,
        reference: nn.Module | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.canaries, self.users, self.probe = canaries, users, probe or Probe()
        self.most_users = most_users
        # A copy only if it has to move: a device that does not exist is an error now, not after the training.
        self._module, self._reference = moved(module, device), reference
        if self._module is not None:
            parse_device(device_of(self._module))
        self._model: npt.NDArray[np.float32] | None = None
        self._memorization: Memorization | None = None
        self._seconds = 0.0

    def record(self, release: Release) -> None:
        """Keep the final model."""
        if release.trial is None:
            self._model, self._memorization = np.array(to_numpy(flat(release.vector))), None

    def memorization(self) -> Memorization:
        """Return what the final model says about every canary; it is probed once.

        Raises:
            InputError: If no final model was observed, or it does not fit the module.
        """
        if self._memorization is None:
            if self._model is None:
                raise InputError("the final model was never observed: call observe with the last round's release")
            start = time.perf_counter()
            module = _with_parameters(self._module, self._model)
            self._memorization = measure_memorization(module, self.canaries, self.probe, reference=self._reference)
            self._seconds = time.perf_counter() - start
        return self._memorization

    def result(
        self,
        *,
        claim: Claim | None = None,
        delta: float | None = None,
        confidence: float = 0.95,
        metrics: Mapping[str, float] | None = None,
        score: str = "exposure",
        unit: PrivacyUnit = "user",
    ) -> Result:
        """Return the evidence about ε from one score, for one user or for all users who share a phrase.

        The ε of a phrase is that of all its users together. For one user, group privacy divides it: by the number of
        users who could hold the most widespread canary, and by twice that if ``claim`` is about adding or removing a
        user, since a sharer takes part with or without the phrase, only with other examples. With coin flips, bound and
        claim test hold however canaries influence one another (docs/simultaneous-bound.md, Theorem 5).

        Args:
            score: ``"exposure"``, ``"loss"`` or, with a reference model, ``"calibrated"``.
            unit: ``"user"`` or ``"phrase"``.
            delta: δ at which ε is stated: that of ``claim`` by default, else 1e-5.
            confidence: Confidence of bounds and intervals.
            claim: The claimed guarantee of one user; it does not apply to a phrase.
            metrics: Numbers to keep with the result, such as the model's perplexity.

        Raises:
            InputError: If no final model was observed, no phrase was held out, the score is not available, or the
                numbers of users are missing for the unit ``"user"``.
        """
        memorization, canaries, users = self.memorization(), self.canaries, self.users
        members, nonmembers = memorization.scores(score)
        if not len(nonmembers):
            raise InputError(
                "no phrase was held out to compare the inserted ones with: draw phrases with twins=1 or more"
            )
        terms: dict[str, Any] = {
            "delta": common_delta(delta, claim),
            "confidence": confidence,
            "design": canaries.design,
        }
        if unit == "phrase":
            claim, warnings = None, normality(members, "inserted")[1]
            evidence = phrase_evidence(Scores(members, nonmembers), **terms)
        elif unit == "user":
            if users is None:
                raise InputError(
                    "one user's ε needs the number of users that hold each canary: pass users, or ask for "
                    'unit="phrase"'
                )
            warnings = []
            most = int(np.max(users)) if self.most_users is None else self.most_users
            exposures = memorization.sampled.exposures[canaries.inserted]
            evidence = user_evidence(Scores(members, nonmembers), exposures, claim, most_users=most, **terms)
        else:
            raise InputError(f"unit must be user or phrase, got {unit!r}")
        score_name, adversary = _SCORES[score]
        return Result(
            method="secret-sharer",
            view=f"{score}:{unit}",
            unit=USER if unit == "user" else PHRASE,
            adversary=adversary,
            score_name=score_name,
            seed=canaries.seed,
            estimates=evidence.estimates,
            scores=evidence.scores,
            claim=claim,
            claim_test=evidence.claim_test,
            ceiling=evidence.ceiling,
            recipe=evidence.recipe,
            warnings=warnings,
            timing={"audit_s": self._seconds},
            metrics={**_metrics(memorization), **(metrics or {})},
            config={"score": score, "unit": unit, "length": canaries.length, **vars(memorization.probe)},
        )

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return the final model, empty before it was observed."""
        return {"model": np.zeros(0, dtype=np.float32) if self._model is None else self._model}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to a state that `state` returned."""
        self._model, self._memorization = (np.array(state["model"]) if len(state["model"]) else None), None

    def __repr__(self) -> str:
        return f"SecretSharer({len(self.canaries)} phrases, seed {self.canaries.seed})"


def _metrics(memorization: Memorization) -> dict[str, float]:
    """Return counts, and the median exposure compared with random guessing."""
    inserted = memorization.canaries.inserted
    exposures = memorization.sampled.exposures
    chance = RandomGuessing(memorization.sampled.references, int(inserted.sum()))
    low, high = chance.sample_median_interval()
    metrics = {
        "inserted": float(inserted.sum()),
        "held_out": float((~inserted).sum()),
        "memorized": float(memorization.memorized.sum()),
        "extracted": float(memorization.extracted.sum()),
        "median exposure": float(np.median(exposures[inserted])),
        "median exposure at random": chance.sample_median_mean(),
        "95% of random medians, from": low,
        "95% of random medians, to": high,
    }
    if not inserted.all():
        metrics["median exposure, held out"] = float(np.median(exposures[~inserted]))
    return metrics


def _with_parameters(module: nn.Module, vector: npt.NDArray[np.float32]) -> nn.Module:
    """Return a copy of the module with the parameters of a release."""
    copied = copy.deepcopy(module)
    parameters = [parameter for parameter in copied.parameters() if parameter.requires_grad]
    expected = sum(parameter.numel() for parameter in parameters)
    if expected != len(vector):
        raise InputError(f"the final model has {len(vector)} parameters, but the audit's module has {expected}")
    torch.nn.utils.vector_to_parameters(torch.tensor(vector, device=device_of(copied)), parameters)
    return copied
