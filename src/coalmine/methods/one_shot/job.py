"""The one-shot audit's part in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coalmine.claims import Claim
from coalmine.claims.sampling import FixedSize, Sampling, parse_sampling
from coalmine.errors import InputError
from coalmine.methods.job import Job, JobContext
from coalmine.methods.one_shot.audit import OneShot
from coalmine.methods.one_shot.audit_power import AuditPower
from coalmine.methods.one_shot.planning import default_canaries
from coalmine.methods.one_shot.settings import OneShotSettings
from coalmine.methods.one_shot.views import needs_initial
from coalmine.protocol import Audit
from coalmine.results.result import MethodResults, Result
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.training import Training
from coalmine.vectors import AnyVector, flat

if TYPE_CHECKING:
    from torch import nn

    from coalmine.simulation.data import Splits
    from coalmine.simulation.rounds import Rounds
    from coalmine.simulation.settings import TrainingSettings

_ANY_NUMBER = 1000  # of canaries, where their number is not decided yet and hardly matters


class OneShotJob(Job):
    """Inserts random updates into a training, and returns one result per view."""

    def __init__(self, context: JobContext) -> None:
        assert context.training is not None
        self._context = context
        self._audits: list[OneShot] = []

    def audits(self, splits: Splits, module: nn.Module) -> Sequence[Audit]:
        """Return one audit per view. The first inserts the canaries."""
        context = self._context
        assert context.training is not None
        self._audits = build_audits(
            context.settings, context.training, parameter_vector(module), population=len(splits.train)
        )
        return self._audits

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return one result per view."""
        assert isinstance(trained, Training)
        return MethodResults(
            method="one-shot", results=[self._result(audit, trained, metrics) for audit in self._audits]
        )

    def _result(self, audit: OneShot, trained: Training, metrics: Mapping[str, float]) -> Result:
        settings, mechanism, training = self._context.settings, trained.mechanism, self._context.training
        claim = None
        if mechanism.private:
            assert training is not None
            sampling = _participation(settings, training, len(trained.data))
            claim = Claim(noise_multiplier=mechanism.noise_multiplier, sampling=sampling, delta=settings.delta)
        result = audit.result(delta=settings.delta, confidence=settings.confidence, claim=claim, metrics=metrics)
        used = {name: getattr(audit, name) for name in ("dim", "canaries", "view", "family", "score")}
        return replace(result, config=self._context.config | used)


def build_audits(
    settings: OneShotSettings, training: TrainingSettings, initial: AnyVector, *, population: int
) -> list[OneShot]:
    """Return one audit per view.

    Args:
        settings: Settings of the audit.
        training: Settings of the training.
        initial: The model before the first round, (dim,). Canaries are drawn and scored on its device.
        population: Number of clients in the training.
    """
    start = flat(initial)
    first, *others = settings.view
    audit = OneShot(
        dim=start,
        rounds=training.rounds,
        canaries=settings.canaries or _canaries(settings, training, population, len(start)),
        view=first,
        participation=_participation(settings, training, population),
        score=_score(settings, first),
        design=settings.design,
        family=settings.family,
        initial=start if needs_initial(first) else None,
        norm=settings.norm,
        seed=training.seed,
    )
    return [audit] + [
        audit.seen_by(view, score=_score(settings, view), initial=start if needs_initial(view) else None)
        for view in others
    ]


def _canaries(settings: OneShotSettings, training: TrainingSettings, population: int, dim: int) -> int:
    """Return the default number of canaries: what the training can afford, but enough to detect half its noise."""
    participation, rounds = _participation(settings, training, population), training.rounds
    rates = [participation.expected(_ANY_NUMBER, rounds, round) / _ANY_NUMBER for round in range(rounds)]
    power = None
    if training.noise_multiplier > 0 and rounds > 0:
        with suppress(InputError):  # an ε beyond what accountants compute
            claim = Claim(
                noise_multiplier=training.noise_multiplier,
                sampling=participation.accounted(_ANY_NUMBER, rounds),
                rounds=rounds,
                delta=settings.delta,
            )
            claim.curve()
            power = AuditPower(claim=claim, view=settings.view[0], rate=float(np.mean(rates)))
    clients = training.sampling().expected(population, rounds, 0)
    return default_canaries(power, clients=clients, rate=max(rates, default=1.0), dim=dim)


def _score(settings: OneShotSettings, view: str) -> str | None:
    """Return the score of a view. Among several views, ``score`` is for those with several releases."""
    return None if len(settings.view) > 1 and view.startswith("final") else settings.score


def _participation(settings: OneShotSettings, training: TrainingSettings, population: int) -> Sampling:
    """Return the participation, for ``clients`` that of the training's cohorts."""
    if settings.participation != "clients":
        return parse_sampling(settings.participation)
    sampling = training.sampling()
    return FixedSize(sampling.size, population) if isinstance(sampling, FixedSize) else sampling
