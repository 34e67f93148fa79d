"""The secret-sharer audit: phrases planted in users' data, then the final model is asked (Thakkar et al. 2020).

Phrases are in the data and not among the updates: this audit plants nothing in a round, it waits for the final model.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coalmine.accounting import Theory
from coalmine.arrays import Ints
from coalmine.errors import InputError
from coalmine.methods.estimates import canary_estimates, neighbors_apart, normality
from coalmine.methods.secret_sharer.memorization import Asking, Memorization, ask
from coalmine.methods.secret_sharer.phrase_search import Track
from coalmine.methods.secret_sharer.phrases import PhraseCanaries
from coalmine.protocol import Audit, Release, View
from coalmine.results.result import AuditResult
from coalmine.stats import Estimate, Scores, ceiling, simultaneous
from coalmine.stats.exposure import epsilon_from_exposure, per_copy_epsilon
from coalmine.stats.random_guessing import RandomGuessing

Unit = Literal["user", "phrase"]
"""Whose ε: one user's, or that of all users who share a phrase together."""


class SecretSharer(Audit):
    """Waits for the final model and asks it about ``canaries``, which are in the data that is trained on.

    ``module`` is the model that is trained, whatever its weights; it is not changed. ``users`` is how many users hold
    each canary; without it there is no ε of one user. ``reference`` is a model that never saw a canary, to calibrate.
    """

    views = (View("model", every=None),)

    def __init__(
        self,
        *,
        canaries: PhraseCanaries,
        module: nn.Module,
        users: Ints | None = None,
        asking: Asking | None = None,
        reference: nn.Module | None = None,
        track: Track = iter,
    ) -> None:
        self.canaries, self.users, self.asking = canaries, users, asking or Asking()
        self._module, self._reference, self._track = module, reference, track
        self._model: npt.NDArray[np.float32] | None = None
        self._found: Memorization | None = None
        self._seconds = 0.0

    def observe(self, release: Release) -> None:
        """Keep the final model."""
        if release.trial is None:
            self._model, self._found = np.array(release.vector, dtype=np.float32), None

    def memorization(self) -> Memorization:
        """What the final model says of every canary; it is asked once."""
        if self._found is None:
            if self._model is None:
                raise InputError("the final model was never observed: call observe with what the last round released")
            start = time.perf_counter()
            module = _with_parameters(self._module, self._model)
            self._found = ask(module, self.canaries, self.asking, reference=self._reference, track=self._track)
            self._seconds = time.perf_counter() - start
        return self._found

    def result(
        self,
        *,
        score: str = "exposure",
        unit: Unit = "user",
        delta: float = 1e-5,
        confidence: float = 0.95,
        theory: Theory | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> AuditResult:
        """ε by one of the scores, for one user or for all who share a phrase; ``theory`` goes with one user."""
        found = phrase_result(
            self.memorization(),
            users=self.users,
            score=score,
            unit=unit,
            delta=delta,
            confidence=confidence,
            theory=theory,
            metrics=metrics,
        )
        return replace(found, timing={"audit_s": self._seconds})

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """The final model, once it was seen."""
        return {"model": np.zeros(0, dtype=np.float32) if self._model is None else self._model}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to what ``state`` gave."""
        self._model, self._found = (np.array(state["model"]) if len(state["model"]) else None), None

    def __repr__(self) -> str:
        return f"SecretSharer({len(self.canaries)} phrases, seed {self.canaries.seed})"


def _with_parameters(module: nn.Module, vector: npt.NDArray[np.float32]) -> nn.Module:
    """A copy of the module with the parameters of a release."""
    found = copy.deepcopy(module)
    values = torch.tensor(vector)
    trained = [parameter for parameter in found.parameters() if parameter.requires_grad]
    if sum(parameter.numel() for parameter in trained) != len(values):
        raise InputError(f"the final model has {len(values)} parameters, which is not what the audit's module has")
    with torch.no_grad():
        for parameter, part in zip(trained, values.split([p.numel() for p in trained]), strict=True):
            parameter.copy_(part.view_as(parameter))
    return found


def phrase_result(
    memorization: Memorization,
    *,
    users: Ints | None = None,
    score: str = "exposure",
    unit: Unit = "user",
    delta: float = 1e-5,
    confidence: float = 0.95,
    theory: Theory | None = None,
    metrics: Mapping[str, float] | None = None,
) -> AuditResult:
    """ε from what a model said of planted phrases and of their twins.

    The ε of a phrase is that of all its users together. For one user it is divided by group privacy: by as many as hold
    the most widespread canary, and twice as many where ``theory`` is for adding or removing a user, since a user who
    shares a phrase is there either way, with other examples.
    """
    canaries = memorization.canaries
    members, nonmembers = memorization.scores(score)
    if not len(nonmembers):
        raise InputError("there are no twins to compare the planted canaries with: draw phrases with twins=1 or more")
    if unit == "phrase":
        estimates, scores, top = canary_estimates(
            members,
            nonmembers,
            null=None,
            signs=False,
            design=canaries.design,
            delta=delta,
            confidence=confidence,
        )
        whose = "ε is that of all users who share a phrase together"
        estimates = [replace(e, assumes=f"{e.assumes}; {whose}") if e.valid else e for e in estimates]
        theory, warnings = None, normality(members, "planted")[1]
    elif unit == "user":
        copies, warnings = _group(users, canaries, theory), []
        scores = Scores(members, nonmembers)

        def bound_at(confidence: float) -> Estimate:
            return simultaneous(scores, delta=delta, confidence=confidence, design=canaries.design, copies=copies)

        bound = bound_at(confidence).judged(lambda level: bound_at(level).lower)
        whose = f"no phrase was shared by more than {int(np.max(users))} users" if users is not None else ""
        estimates = [replace(bound, assumes=f"{bound.assumes}; {whose}")]
        top = ceiling(
            len(members), len(nonmembers), delta=delta, confidence=confidence, design=canaries.design, copies=copies
        )
        median = float(np.median(memorization.sampled.exposures[canaries.planted]))
        estimates.append(Estimate("median-exposure", per_copy_epsilon(epsilon_from_exposure(median), copies)))
    else:
        raise InputError(f"the unit must be user or phrase, got {unit!r}")
    return AuditResult(
        audit="secret-sharer",
        view=f"{score}:{unit}",
        seed=canaries.seed,
        estimates=estimates,
        scores=scores,
        theory=theory,
        ceiling=top,
        warnings=warnings,
        metrics={**_metrics(memorization), **(metrics or {})},
        config={"score": score, "unit": unit, "length": canaries.length, **vars(memorization.asking)},
    )


def _group(users: Ints | None, canaries: PhraseCanaries, theory: Theory | None) -> int:
    if users is None:
        raise InputError("how many users hold each canary is not known, so there is no ε of one user: ask for a phrase")
    return neighbors_apart(max(1, int(np.max(users[canaries.planted]))), theory)


def _metrics(memorization: Memorization) -> dict[str, float]:
    planted = memorization.canaries.planted
    exposures = memorization.sampled.exposures
    chance = RandomGuessing(memorization.sampled.references, int(planted.sum()))
    low, high = chance.sample_median_interval()
    found = {
        "planted": float(planted.sum()),
        "held_out": float((~planted).sum()),
        "memorized": float(memorization.memorized.sum()),
        "extracted": float(memorization.found.sum()),
        "median exposure": float(np.median(exposures[planted])),
        "median exposure at random": chance.sample_median_mean(),
        "95% of random medians, from": low,
        "95% of random medians, to": high,
    }
    if not planted.all():
        found["median exposure of twins"] = float(np.median(exposures[~planted]))
    return found
