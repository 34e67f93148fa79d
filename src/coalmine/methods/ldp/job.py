"""The LDP audit's part in a run. It needs no training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coalmine.methods.job import Job
from coalmine.methods.ldp.settings import LDPSettings
from coalmine.methods.ldp.tables import summary
from coalmine.results.result import MethodResults

if TYPE_CHECKING:
    from coalmine.simulation.rounds import Rounds


@dataclass(frozen=True)
class LDPJob(Job):
    """Runs the audit that the settings describe."""

    settings: LDPSettings

    def __post_init__(self) -> None:
        # Refuses a wrong crafter or mechanism before the trainings of other methods, not after them.
        self.settings.mechanisms()
        self.settings.crafters()

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return one result per crafter, claimed ε and view."""
        audited = self.settings.audit().run()
        settings = self.settings.to_dict()
        results = [replace(result, config=settings | dict(result.config)) for result in audited]
        return MethodResults(method="ldp", results=results, summary=summary(results))
