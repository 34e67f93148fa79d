"""Exposure of canaries from losses or ranks, compared with random guessing, and the ε it implies (Jagielski 2023).

`coalmine.stats.exposure` has the formulas; this module reads a table of losses or ranks and makes a result of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.methods.estimates import simultaneous_bound
from coalmine.results.result import Result
from coalmine.results.verdict import SCORES, Unit
from coalmine.scorefile import ScoreTable, two_groups
from coalmine.stats import Estimate, Scores
from coalmine.stats import exposure as ex
from coalmine.stats.random_guessing import RandomGuessing

_LOW_FPRS = (0.1, 0.01, 0.001)


def exposure_result(
    table: ScoreTable,
    *,
    references: int | None = None,
    delta: float = 0.0,
    confidence: float = 0.95,
    copies: int = 1,
    calibrate: bool = False,
    unit: Unit = SCORES,
) -> Result:
    """Return the exposures of canaries, their summary compared with random guessing, and the evidence about ε.

    The lower bound is valid if the canaries were picked at random among exchangeable candidates and their losses do not
    influence each other. The other figures are point estimates at δ = 0.

    Args:
        table: Columns ``loss`` and ``canary`` (1/0), or ``canaries`` and ``references`` (losses), or ``rank``, which is
            1 + the number of references whose loss is not higher. `coalmine.scorefile.read_table` reads a file.
        references: Number of references that ranks are among.
        delta: δ at which the lower bound is stated.
        confidence: Confidence of the lower bound and of the intervals for random guessing.
        copies: Number of times that each canary was inserted. ε is that of one copy, by group privacy.
        calibrate: Whether to subtract the column ``reference_loss``, the loss under a model without the canaries.
        unit: Whose privacy ε is about.

    Returns:
        A result whose scores are minus the ranks, and whose ``details`` hold the numbers of ``canaries`` and
        ``references``, the summary ``rows`` and all ``exposures`` in bits.

    Raises:
        InputError: If columns are missing or hold wrong values, or the arguments do not fit them.

    Example:
        >>> result = exposure_result(ScoreTable("ranks", {"rank": [1, 1, 2, 900]}), references=1000)
        >>> [round(exposure, 2) for exposure in result.details["exposures"]]
        [9.97, 9.97, 8.97, 0.15]
        >>> round(result["median-exposure"].epsilon, 2)
        5.87
    """
    extrapolated = None
    if table.has("rank"):
        ranks, n = _stored_ranks(table, references, calibrate)
        worst = ranks
    else:
        if references is not None:
            raise InputError(
                f"references = {references} needs a column of ranks; {table.source} has losses, whose references "
                "are counted: leave it out"
            )
        canaries, others = _losses(table, calibrate)
        # Ties count half in the exposure, and against the canary in what the bound rests on.
        ranks, worst = ex.ranks(canaries, others), ex.ranks(canaries, others, ties="worst")
        n = others.size
        extrapolated = _largest_extrapolated(canaries, others)
    exposures = ex.exposure(ranks, n)
    scores = Scores(*ex.scores_from_ranks(worst, n))
    terms: dict[str, Any] = {"delta": delta, "confidence": confidence, "copies": copies}
    estimates, top = _evidence(scores, ranks, tied=table.has("rank"), **terms)
    return Result(
        method="exposure",
        view="ranks",
        unit=unit,
        adversary="ranks canaries by their loss among references",
        score_name="minus rank",
        side_names=("canaries", "references"),
        seed=0,
        estimates=estimates,
        scores=scores,
        ceiling=top,
        metrics={"inserted": float(exposures.size), "held_out": float(n)},
        config={"score": "rank", "source": table.source},
        recipe={**terms, "tied": table.has("rank")},
        arrays={"ranks": ranks},
        details={
            "canaries": int(exposures.size),
            "references": int(n),
            "rows": _summary_rows(exposures, extrapolated, RandomGuessing(n, exposures.size), confidence),
            "exposures": exposures.tolist(),
        },
    )


def recomputed(result: Result) -> Result:
    """Return a result with its estimates computed again from its scores and ranks."""
    assert result.scores is not None
    estimates, top = _evidence(result.scores, result.arrays["ranks"], **result.recipe)
    return replace(result, estimates=estimates, ceiling=top)


def _evidence(
    scores: Scores, ranks: Floats, *, delta: float, confidence: float, copies: int, tied: bool
) -> tuple[list[Estimate], float | None]:
    """Return the bound, the point estimates and the ceiling; ``tied`` if a file's ranks count ties against canaries."""
    bound, top = simultaneous_bound(scores, delta=delta, confidence=confidence, copies=copies)
    ties = "; ties were ranked against the canary" if tied else ""
    threshold = None if bound.threshold is None else 0.5 - bound.threshold  # as a rank
    bound = replace(bound, threshold=threshold, assumes=f"{bound.assumes}{ties}")
    references = scores.observed.size
    return [bound, *_point_estimates(ranks, ex.exposure(ranks, references), references, copies)], top


def _stored_ranks(table: ScoreTable, references: int | None, calibrate: bool) -> tuple[Floats, int]:
    """Return the ranks of a file and the number of references."""
    if references is None:
        raise InputError(f"{table.source} has ranks: set references (--references), the number they are among")
    if calibrate:
        raise InputError(f"calibrate needs losses, but {table.source} has ranks: leave it out")
    ranks = table.numbers("rank")
    fractional = np.flatnonzero(ranks != np.round(ranks))
    if fractional.size:
        raise InputError(
            f"{table.source}, row {fractional[0] + table.first_row}: a rank must be a whole number, 1 + the number of "
            f"references whose loss is not higher, got {ranks[fractional[0]]:g}; averaged ranks give no valid bound"
        )
    return ranks, references


def _losses(table: ScoreTable, calibrate: bool) -> tuple[Floats, Floats]:
    """Return the losses of canaries and of references."""
    if calibrate:
        losses = ex.calibrate(table.numbers("loss"), table.numbers("reference_loss"))
        table = ScoreTable(table.source, {"loss": losses, "canary": table.require("canary")}, table.first_row)
    canaries, references = two_groups(table, groups=("canaries", "references"), value="loss", flag="canary")
    assert references is not None
    return canaries, references


def _largest_extrapolated(canaries: Floats, references: Floats) -> float | None:
    """Return the largest exposure by a skew-normal fit, which can exceed log2(n); None if the fit is impossible."""
    try:
        return float(ex.extrapolated_exposure(canaries, references).max())
    except InputError:
        return None


def _summary_rows(
    exposures: Floats, extrapolated: float | None, chance: RandomGuessing, confidence: float
) -> list[dict[str, Any]]:
    """Return summaries of the exposures, each with its value and interval under random guessing (Section 2.1)."""

    def row(name: str, value: float, random: float, interval: tuple[float | None, float | None] = (None, None)) -> Any:
        return {"summary": name, "canaries": value, "random_guessing": random, "low": interval[0], "high": interval[1]}

    largest = chance.order_statistic(1)
    largest_interval = largest.interval(confidence)
    rows = [
        row("mean", float(np.mean(exposures)), chance.mean()),
        row("median", float(np.median(exposures)), chance.median(), chance.sample_median_interval(confidence)),
        row("75th percentile", float(np.quantile(exposures, 0.75)), chance.quantile(0.75)),
        row("largest", float(np.max(exposures)), largest.mean(), largest_interval),
    ]
    if extrapolated is not None:
        rows.append(row("largest, extrapolated", extrapolated, largest.mean(), largest_interval))
    return rows


def _point_estimates(ranks: Floats, exposures: Floats, references: int, copies: int) -> list[Estimate]:
    """Return ε from the median exposure (Section 2.2) and at low false positive rates."""
    median = ex.per_copy_epsilon(ex.epsilon_from_exposure(float(np.median(exposures))), copies)
    estimates = [Estimate("median-exposure", median)]
    for fpr in _LOW_FPRS:
        if fpr * references >= 1:
            whole = ex.low_fpr_epsilon(ranks, references, fpr)
            epsilon = ex.per_copy_epsilon(whole.epsilon, copies)
            estimates.append(Estimate(f"low-fpr-{fpr:g}", epsilon, threshold=whole.threshold))
    return estimates
