"""The one-shot audit in a run: one `OneShot` per view, all of the same canaries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidatorFunctionWrapHandler, field_validator

from coalmine.claims import Claim
from coalmine.claims.sampling import FORMS, FixedSize, Sampling, parse_sampling
from coalmine.config import SettingError, Settings
from coalmine.errors import InputError
from coalmine.methods.method import Method
from coalmine.methods.one_shot.scores import SCORES, VIEWS, parse_view
from coalmine.protocol import Audit
from coalmine.results.result import MethodResults, Result
from coalmine.results.verdict import USER, Finding
from coalmine.simulation.settings import TrainingSettings
from coalmine.vectors import flat

if TYPE_CHECKING:
    from torch import nn

    from coalmine.methods.one_shot.audit import OneShot
    from coalmine.simulation.data import Splits
    from coalmine.simulation.rounds import Rounds

_ANY_NUMBER = 1000  # of canaries, where their number is not decided yet and hardly matters


class OneShotSettings(Settings):
    """Random updates as canaries, inserted as extra clients."""

    canaries: int | None = Field(
        None,
        examples=[100],
        ge=1,
        description="expected number of inserted canaries; the same number is held out. By default a quarter of a "
        "round's average, or more if half the noise would go undetected; from 20 to 1,000 (`coalmine plan`)",
    )
    view: tuple[str, ...] = Field(
        ("final",), description=f"what the adversary sees, one or several: {', '.join(VIEWS)}"
    )
    participation: str = Field("clients", description=f"when canaries take part: clients (like the clients), {FORMS}")
    score: str | None = Field(
        None,
        examples=["cosine"],
        description=f"how canaries are scored: {', '.join(SCORES)}; by default the first that supports the view",
    )
    design: Literal["coin-flips", "fixed"] = Field(
        "coin-flips",
        description="coin-flips (each canary is inserted with probability 1/2) or fixed (exactly `canaries` are)",
    )
    family: Literal["hadamard", "orthogonal", "gaussian"] | None = Field(
        None,
        examples=["gaussian"],
        description="hadamard (orthogonal, fast), orthogonal (small models) or gaussian (independent); by default "
        "chosen by the model's size",
    )
    norm: float | None = Field(
        None,
        examples=[1.0],
        gt=0,
        description="norm of the canaries if nothing is clipped, an upper limit otherwise",
    )
    delta: float = Field(1e-5, ge=0, lt=1, description="δ at which ε is stated")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="confidence of bounds and intervals")

    @field_validator("view", mode="wrap")
    @classmethod
    def _check_views(cls, value: object, read: ValidatorFunctionWrapHandler) -> tuple[str, ...]:
        """Check views where their line in the file is known; text may name several."""
        if isinstance(value, str):
            # A comma before a letter starts another view; one before a digit belongs to rounds:3,9.
            value = re.split(r",\s*(?=[a-z])", value)
        views: tuple[str, ...] = read(value)
        for view in views:
            parse_view(view)
        return views

    @field_validator("participation")
    @classmethod
    def _check_participation(cls, value: str) -> str:
        """Check the participation where its line in the file is known."""
        if value != "clients":
            parse_sampling(value)
        return value


class OneShotMethod(Method):
    """Inserts random updates into a training, and returns one result per view."""

    name = "one-shot"
    title = "Random updates as canaries"
    question = "How much does a training reveal about one user, measured with random updates in a single run?"
    description = (
        "Random updates were inserted into the training as extra clients; others, chosen by coin flips, were held out. "
        "In high dimensions a random direction is nearly orthogonal to every client's update, so whatever a release "
        "contains of it comes from the canary. The score of a canary measures how much of it the releases contain."
    )
    reference = "Andrew et al. 2023"
    unit = USER
    settings_type = OneShotSettings
    training_type = TrainingSettings
    options = ("view",)
    init: ClassVar[Mapping[str, Any]] = {"view": ["final-change", "updates"], "delta": 1e-5}

    settings: OneShotSettings
    training: TrainingSettings
    _audits: Sequence[OneShot] = ()

    @classmethod
    def check(cls, run: Any) -> None:
        """Raise if canaries would have no norm."""
        training = run.trainings.get("training")
        if training is not None and training.clip_norm == "none" and run.methods["one-shot"].norm is None:
            raise SettingError(
                "the training clips nothing (clip_norm = none), so the canaries have no norm: set norm in [one-shot]",
                ["one-shot", "norm"],
            )

    @classmethod
    def labels(cls, settings: OneShotSettings) -> Sequence[str]:
        """Return the configured views."""
        return settings.view

    def audits(self, splits: Splits, module: nn.Module) -> Sequence[Audit]:
        """Return one audit per view. The first inserts the canaries, which are drawn and scored on its device."""
        from coalmine.methods.one_shot.audit import OneShot
        from coalmine.simulation.flat import parameter_vector

        settings, training, population = self.settings, self.training, len(splits.train)
        start = flat(parameter_vector(module))
        audits: list[OneShot] = []
        for view in settings.view:
            # Among several views, ``score`` is for those with several releases.
            single = len(settings.view) > 1 and view.startswith("final")
            score = None if single else settings.score
            compared = None if view in ("final", "updates") else start
            if audits:
                audits.append(audits[0].seen_by(view, score=score, initial=compared))
                continue
            first = OneShot(
                start,
                rounds=training.rounds,
                canaries=settings.canaries or _canaries(settings, training, population, len(start)),
                view=view,
                participation=_participation(settings.participation, training, population),
                score=score,
                design=settings.design,
                family=settings.family,
                initial=compared,
                norm=settings.norm,
                seed=training.seed,
            )
            audits.append(first)
        self._audits = audits
        return audits

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return one result per view."""
        from coalmine.simulation.training import Training

        assert isinstance(trained, Training)
        settings, claim = self.settings, None
        if trained.mechanism.private:
            # Canaries are added, so the noise is compared with one clip norm also where the training's own claim is for
            # replacing a client.
            claim = Claim(
                noise_multiplier=trained.mechanism.noise_multiplier,
                sampling=_participation("clients", self.training, len(trained.data)),
                delta=settings.delta,
                adjacency="add-or-remove-one",
            )
        results = []
        for audit in self._audits:
            result = audit.result(delta=settings.delta, confidence=settings.confidence, claim=claim, metrics=metrics)
            used = {name: getattr(audit, name) for name in ("dim", "canaries", "view", "family", "score")}
            results.append(replace(result, claim=claim and trained.claim(settings.delta), config=self.config | used))
        return MethodResults(method=self.name, results=results)

    @classmethod
    def judged(cls, result: Result, statistics: Any) -> tuple[Sequence[str], Sequence[Finding]]:
        """Return the checks of a training and what they found."""
        from coalmine.checks.training import TrainingChecks  # a report needs none of what this imports

        if statistics is None:
            raise InputError("what its checks counted is not stored")
        return TrainingChecks.from_stored(statistics, result.arrays).findings(result.tested, result.claim)


def _canaries(settings: OneShotSettings, training: TrainingSettings, population: int, dim: int) -> int:
    """Return the default number of canaries: what the training can afford, but enough to detect half its noise."""
    from coalmine.methods.one_shot.planning import AuditPower, default_canaries

    participation, rounds = _participation(settings.participation, training, population), training.rounds
    rates = [participation.expected(_ANY_NUMBER, rounds, round) / _ANY_NUMBER for round in range(rounds)]
    clients = parse_sampling(training.cohort).expected(population, rounds, 0)
    afforded: Any = {"clients": clients, "rate": max(rates, default=1.0), "dim": dim}
    if training.noise_multiplier > 0 and rounds > 0:
        with suppress(InputError):  # an ε beyond what accountants compute
            claim = Claim(
                noise_multiplier=training.noise_multiplier,
                sampling=participation.accounted(_ANY_NUMBER, rounds),
                rounds=rounds,
                delta=settings.delta,
            )
            power = AuditPower(claim=claim, view=settings.view[0], rate=float(np.mean(rates)))
            return default_canaries(power, **afforded)
    return default_canaries(None, **afforded)


def _participation(setting: str, training: TrainingSettings, population: int) -> Sampling:
    """Return who takes part in which round, for ``clients`` as the training draws its clients."""
    if setting != "clients":
        return parse_sampling(setting)
    sampling = parse_sampling(training.cohort)
    return FixedSize(sampling.size, population) if isinstance(sampling, FixedSize) else sampling
