"""The audit of a single application of a mechanism in a run. It needs no training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from coalmine.methods.mechanism.settings import MechanismSettings
from coalmine.methods.method import Method
from coalmine.results.result import MethodResults, Result
from coalmine.results.verdict import APPLICATION, Unit

if TYPE_CHECKING:
    from coalmine.simulation.rounds import Rounds


class MechanismMethod(Method):
    """Applies a mechanism to canaries and returns one result."""

    name = "mechanism"
    title = "One application of a mechanism"
    question = "Does a mechanism satisfy its claimed ε when applied once, as a black box?"
    description = (
        "Random unit vectors were summed and the sum went through the mechanism once; others were held out. In high "
        "dimensions random directions are nearly orthogonal, so the cosine of a canary with the output shows how much "
        "of it the noise leaves visible. ε is about one update of norm 1 in one application, not a whole training."
    )
    reference = "Andrew et al. 2023, Section 3"
    settings_type = MechanismSettings
    options = tuple(MechanismSettings.model_fields)
    init: ClassVar[Mapping[str, Any]] = {"noise_multiplier": 1.0, "dim": 100_000}

    settings: MechanismSettings

    def prepare(self) -> None:
        """Load the mechanism."""
        self._mechanism = self.settings.mechanism()

    @classmethod
    def check(cls, run: Any) -> None:
        """Raise if no mechanism is named, or a function has two claims."""
        run.methods["mechanism"].check_choice()

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return the result."""
        from coalmine.methods.mechanism.audit import check_mechanism

        settings = self.settings
        result = check_mechanism(
            self._mechanism,
            dim=settings.dim,
            canaries=settings.canaries,
            delta=settings.delta,
            confidence=settings.confidence,
            claim=settings.stated_claim(),
            calls=settings.calls,
            clients=settings.clients,
            clip_norm=settings.clip_norm,
            norm=settings.norm,
            seed=settings.seed,
        )
        return MethodResults(method=self.name, results=[replace(result, config=self.config | dict(result.config))])

    @classmethod
    def unit_of(cls, result: Result) -> Unit:
        """Return one application."""
        return APPLICATION
