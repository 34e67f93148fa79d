"""What each method does in a run: what it changes in the data, what it plants, what it finds in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from coalmine.accounting.sampling import AtMost, Sampling
from coalmine.errors import InputError
from coalmine.files import write_arrays
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.result import CanifeResult
from coalmine.methods.canife.settings import CanifeSettings
from coalmine.methods.exposure.audit import ExposureReport, exposure_report
from coalmine.methods.exposure.settings import ExposureSettings
from coalmine.methods.one_shot.audit import OneShot
from coalmine.methods.one_shot.settings import OneShotSettings
from coalmine.protocol import Audit
from coalmine.results.files import write_scores
from coalmine.results.result import AuditResult, file_name
from coalmine.scorefile import Table, read_table
from coalmine.simulation.data import Splits
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.rounds import Rounds
from coalmine.simulation.settings import TrainingSettings
from coalmine.simulation.training import Training

_HEADLINE = ("accuracy", "recall@1", "perplexity", "loss")


class Method(ABC):
    """One audit of a run."""

    name: ClassVar[str]
    pool_fraction: float = 0.0
    """Share of the users that it wants set aside."""

    def planted(self, splits: Splits) -> Splits:
        """The data with what it plants in them."""
        return splits

    def audits(self, splits: Splits, module: nn.Module) -> Sequence[Audit]:
        """What takes part in the training."""
        return ()

    @abstractmethod
    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> list[AuditResult]:
        """What it found, after the training; ``metrics`` say how good the model is."""

    @property
    def meaning(self) -> str | None:
        """What all results say together, where that is more than what each says."""
        return None

    def write(self, results: Sequence[AuditResult], directory: Path) -> None:
        """Write its scores, and whatever a figure needs besides."""
        for result in results:
            write_scores(result, directory)


@dataclass
class OneShotMethod(Method):
    """Random updates as extra clients."""

    name = "one-shot"
    training: TrainingSettings
    settings: OneShotSettings
    planted_audits: list[OneShot] = field(default_factory=list)

    def audits(self, splits: Splits, module: nn.Module) -> Sequence[Audit]:
        """One for each view."""
        start = parameter_vector(module).numpy()
        self.planted_audits = self.settings.audits(self.training, start, len(splits.train))
        return self.planted_audits

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> list[AuditResult]:
        """A result for each view."""
        assert isinstance(trained, Training)
        delta, results = self.settings.delta, []
        for audit in self.planted_audits:
            theory = None
            if trained.mechanism.private:
                theory = audit.theory(noise_multiplier=trained.mechanism.noise_multiplier, delta=delta)
            found = audit.result(delta=delta, confidence=self.settings.confidence, theory=theory, metrics=metrics)
            used = {name: getattr(audit, name) for name in ("dim", "canaries", "view", "family", "score")}
            config = self.training.to_dict() | self.settings.to_dict() | used
            results.append(replace(found, config=config))
        return results


@dataclass
class CanifeMethod(Method):
    """Crafted samples, looked for in single rounds."""

    name = "canife"
    training: TrainingSettings
    settings: CanifeSettings
    adversaries: list[Canife] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings.check_pool()
        self.pool_fraction = self.settings.pool_fraction
        if self.training.clip_norm == "none":
            raise InputError("CANIFE's canaries are as long as the clip norm: set clip_norm to a number")

    def audits(self, splits: Splits, module: nn.Module) -> Sequence[Audit]:
        """One for each adversary."""
        self.adversaries = self.settings.audits(self.training, splits, module)
        return self.adversaries

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> list[AuditResult]:
        """A result for each adversary."""
        assert isinstance(trained, Training)
        sampling = _sampling(trained)
        theory = trained.theory(self.settings.delta, sampling=sampling) if trained.mechanism.private else None
        results: list[AuditResult] = []
        for audit in self.adversaries:
            found = audit.result(
                delta=self.settings.delta,
                confidence=self.settings.confidence,
                noise_multiplier=trained.mechanism.noise_multiplier,
                sampling=sampling,
                theory=theory,
                metrics=metrics,
            )
            used = {"every": audit.every, "trials": audit.trials, "maker": repr(audit.canaries)}
            results.append(replace(found, config=self.training.to_dict() | self.settings.to_dict() | used))
        return results

    def write(self, results: Sequence[AuditResult], directory: Path) -> None:
        """Scores, and every trial."""
        super().write(results, directory)
        for result in results:
            assert isinstance(result, CanifeResult)
            write_arrays(directory / f"trials-{file_name(result.view)}.npz", result.arrays)


@dataclass
class ExposureMethod(Method):
    """Ranks of canaries among references: of a file, or of the phrases of this run."""

    name = "exposure"
    settings: ExposureSettings
    phrases: Any = None
    """The secret-sharer method of this run, whose losses are read where there is no file."""
    report: ExposureReport | None = None

    def __post_init__(self) -> None:
        if self.settings.file is not None:
            self._table()  # so that a file that cannot be read is refused before a training, not after it

    def _table(self) -> Table:
        if self.settings.file is not None:
            return read_table(Path(self.settings.file))
        planted, twins = self.phrases.found.scores("loss")
        return Table("the phrases of this run", {"canaries": -planted, "references": -twins}, 0)

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> list[AuditResult]:
        """One result."""
        settings = self.settings
        self.report = exposure_report(
            self._table(),
            references=settings.references,
            delta=settings.delta,
            confidence=settings.confidence,
            copies=settings.copies,
            calibrated=settings.calibrate,
        )
        return [self.report.result(settings.to_dict())]


def headline(training: Rounds) -> dict[str, float]:
    """How good the model is in the end."""
    last: Mapping[str, float] = training.history[-1] if training.history else {}
    return {name: float(last[name]) for name in _HEADLINE if name in last}


def _sampling(trained: Training) -> Sampling:
    """By which this training is accounted: where cohorts have no analysis, an upper bound."""
    terms = len(trained.data), trained.rounds, trained.seed
    try:
        return trained.cohorts.sampling(*terms)
    except InputError:
        return AtMost(trained.cohorts.exposures(*terms))
