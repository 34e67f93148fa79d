"""The mechanism audit's part in a run. It needs no training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from coalmine.methods.job import Job, JobContext
from coalmine.methods.mechanism.audit import audit_mechanism
from coalmine.methods.mechanism.settings import MechanismSettings
from coalmine.results.result import MethodResults

if TYPE_CHECKING:
    from coalmine.simulation.rounds import Rounds


class MechanismJob(Job):
    """Applies a mechanism to canaries and returns one result."""

    def __init__(self, context: JobContext) -> None:
        self._settings: MechanismSettings = context.settings
        self._mechanism = self._settings.mechanism()  # a missing file is reported before any other work

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return the result."""
        settings = self._settings
        result = audit_mechanism(
            self._mechanism,
            dim=settings.coordinates(),
            canaries=settings.canaries,
            family=settings.family,
            delta=settings.delta,
            confidence=settings.confidence,
            claim=settings.stated_claim(),
            calls=settings.calls,
            layers=settings.tensors(),
            clients=settings.clients,
            clip_norm=settings.clip_norm,
            norm=settings.norm,
            seed=settings.seed,
        )
        config = settings.to_dict() | dict(result.config)
        return MethodResults(method="mechanism", results=[replace(result, config=config)])
