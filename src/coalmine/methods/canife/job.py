"""CANIFE's part in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.settings import CanifeSettings
from coalmine.methods.job import Job, JobContext
from coalmine.protocol import Audit
from coalmine.results.result import MethodResults, Result
from coalmine.simulation.data import Splits
from coalmine.simulation.rounds import Rounds
from coalmine.simulation.settings import TrainingSettings
from coalmine.simulation.training import Training


class CanifeJob(Job):
    """Audits the training with one `Canife` per adversary."""

    def __init__(self, context: JobContext) -> None:
        assert context.training is not None
        self._settings: CanifeSettings = context.settings
        self._training: TrainingSettings = context.training
        self._config = context.config
        self._audits: list[Canife] = []
        self.pool_fraction = self._settings.pool_fraction

    def audits(self, splits: Splits, module: nn.Module) -> Sequence[Audit]:
        """Return one audit per adversary."""
        self._audits = self._settings.audits(self._training, splits, module)
        return self._audits

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return two results per adversary: for a single round, and for the rounds composed."""
        assert isinstance(trained, Training)
        sampling = trained.sampling.accounted(len(trained.data), trained.rounds)
        claim = trained.claim(self._settings.delta, sampling=sampling) if trained.mechanism.private else None
        results: list[Result] = []
        for audit in self._audits:
            result = audit.result(
                delta=self._settings.delta,
                confidence=self._settings.confidence,
                noise_multiplier=trained.mechanism.noise_multiplier,
                sampling=sampling,
                claim=claim,
                metrics=metrics,
            )
            resolved: dict[str, Any] = {"every": audit.every, "trials": audit.trials, "maker": repr(audit.canaries)}
            result = replace(result, config=self._config | resolved)
            composed = result.composed_result()
            results += [result] if composed is None else [result, composed]
        return MethodResults(method="canife", results=results)
