"""The exposure audit: canaries' losses or ranks of one's own → exposure, its baselines, ε (Jagielski 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.results import words
from coalmine.results.result import AuditResult
from coalmine.scorefile import Table, two_groups
from coalmine.stats import Estimate, Scores, ceiling, simultaneous
from coalmine.stats import exposure as ex
from coalmine.stats.random_guessing import RandomGuessing


@dataclass(frozen=True)
class Row:
    """One summary of the exposures, what random guessing gives on average, and between what it falls."""

    summary: str
    canaries: float
    random_guessing: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ExposureReport:
    """Exposures of all canaries, summaries beside random guessing, and ε."""

    source: str
    canaries: int
    references: int
    exposures: list[float]
    rows: list[Row]
    estimates: list[Estimate]
    scores: Scores
    ceiling: float

    @property
    def meaning(self) -> str:
        """What it says, in words."""
        return words.meaning(self.estimates, self.ceiling)

    def result(self, config: Mapping[str, Any]) -> AuditResult:
        """As other audits give it: minus the ranks are the scores."""
        return AuditResult(
            audit="exposure",
            view="ranks",
            seed=0,
            estimates=self.estimates,
            scores=self.scores,
            ceiling=self.ceiling,
            metrics={"planted": float(self.canaries), "held_out": float(self.references)},
            config={"score": "rank", "source": self.source, **config},
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "canaries": self.canaries,
            "references": self.references,
            "summary": [asdict(row) for row in self.rows],
            "estimates": [estimate.to_dict() for estimate in self.estimates],
            "meaning": self.meaning,
            "exposures": self.exposures,
        }


def exposure_report(
    table: Table,
    *,
    references: int | None = None,
    delta: float = 0.0,
    confidence: float = 0.95,
    copies: int = 1,
    calibrated: bool = False,
) -> ExposureReport:
    """Exposure of the canaries in a file of losses (or of ranks among ``references``), and the ε they speak of.

    ``calibrated`` subtracts the column ``reference_loss``; ``copies`` is how often each canary was planted.
    """
    if table.has("rank"):
        ranks, worst, n = _given_ranks(table, references, calibrated)
        beyond = None
    else:
        if references is not None:
            raise InputError("--references goes with a column of ranks; with losses the references are counted")
        canaries, others = _losses(table, calibrated)
        ranks, worst = ex.ranks(canaries, others), ex.ranks(canaries, others, ties="worst")
        n = others.size
        beyond = _extrapolated(canaries, others)
    exposures = ex.exposure(ranks, n)
    rows = _summary(exposures, RandomGuessing(n, exposures.size), confidence)
    if beyond is not None:
        rows.append(replace(rows[-1], summary="largest, extrapolated", canaries=float(beyond.max())))
    scores = Scores(*ex.scores_from_ranks(worst, n))

    def bound_at(confidence: float) -> Estimate:
        return simultaneous(scores, delta=delta, confidence=confidence, copies=copies)

    bound = bound_at(confidence).judged(lambda level: bound_at(level).lower)
    rank = None if bound.threshold is None else 0.5 - bound.threshold
    ties = "; ties were ranked against the canary" if table.has("rank") else ""
    bound = replace(bound, threshold=rank, assumes=f"{bound.assumes}{ties}")
    estimates = [bound, *_point_estimates(ranks, exposures, n, copies)]
    top = ceiling(exposures.size, n, delta=delta, confidence=confidence, copies=copies)
    return ExposureReport(table.source, exposures.size, n, exposures.tolist(), rows, estimates, scores, top)


def _given_ranks(table: Table, references: int | None, calibrated: bool) -> tuple[Floats, Floats, int]:
    if references is None:
        raise InputError(f"{table.source} has ranks: say with --references among how many references")
    if calibrated:
        raise InputError("--calibrate needs losses; the file has ranks")
    ranks = table.numbers("rank")
    broken = np.flatnonzero(ranks != np.round(ranks))
    if broken.size:
        raise InputError(
            f"{table.source}, row {broken[0] + table.first_row}: a rank must be a whole number, 1 + the number of"
            f" references whose loss is not higher, got {ranks[broken[0]]:g}; averaged ranks give no bound that holds"
        )
    return ranks, ranks, references


def _losses(table: Table, calibrated: bool) -> tuple[Floats, Floats]:
    if calibrated:
        losses = ex.calibrate(table.numbers("loss"), table.numbers("reference_loss"))
        table = Table(table.source, {"loss": losses, "canary": table.require("canary")}, table.first_row)
    canaries, references = two_groups(table, groups=("canaries", "references"), value="loss", flag="canary")
    assert references is not None
    return canaries, references


def _extrapolated(canaries: Floats, references: Floats) -> Floats | None:
    """Exposure beyond log2(n) by a fitted skew-normal, where the references allow a fit."""
    try:
        return ex.extrapolated_exposure(canaries, references)
    except InputError:
        return None


def _summary(exposures: Floats, chance: RandomGuessing, confidence: float) -> list[Row]:
    largest = chance.order_statistic(1)
    return [
        Row("mean", float(np.mean(exposures)), chance.mean()),
        Row(
            "median",
            float(np.median(exposures)),
            chance.median(),
            *chance.sample_median_interval(confidence),
        ),
        Row("75th percentile", float(np.quantile(exposures, 0.75)), chance.quantile(0.75)),
        Row("largest", float(np.max(exposures)), largest.mean(), *largest.interval(confidence)),
    ]


def _point_estimates(ranks: Floats, exposures: Floats, references: int, copies: int) -> Sequence[Estimate]:
    median = ex.per_copy_epsilon(ex.epsilon_from_exposure(float(np.median(exposures))), copies)
    found = [Estimate("median-exposure", median)]
    for fpr in (0.1, 0.01, 0.001):
        if fpr * references >= 1:
            raw = ex.low_fpr_epsilon(ranks, references, fpr)
            found.append(
                Estimate(f"low-fpr-{fpr:g}", ex.per_copy_epsilon(raw.epsilon, copies), threshold=raw.threshold)
            )
    return found
