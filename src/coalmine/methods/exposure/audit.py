"""Exposure of canaries from losses or ranks, compared with random guessing, and the ε it implies (Jagielski 2023).

`coalmine.stats.exposure` has the formulas; this module makes a result of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from coalmine.arrays import Floats, finite_list
from coalmine.errors import InputError
from coalmine.files import ScoreTable, two_groups
from coalmine.methods.estimates import simultaneous_bound
from coalmine.results.result import Result
from coalmine.results.verdict import SCORES, Unit
from coalmine.stats import Estimate, Scores
from coalmine.stats import exposure as ex
from coalmine.stats.exposure import RandomGuessing


class Exposure:
    """Ranks canaries by their loss among references that were never inserted (Jagielski 2023).

    The lower bound is valid if the canaries were picked at random among exchangeable candidates and their losses do not
    influence each other. The other figures are point estimates at δ = 0.

    Args:
        canaries: Losses of the inserted canaries; or their ranks, if ``references`` is a number. A rank is 1 + the
            number of references whose loss is not higher.
        references: Losses of the references, or the number of references that ranks are among.
        copies: Number of times that each canary was inserted. ε is that of one copy, by group privacy.
        source: Where the losses or ranks come from, for the record.

    Raises:
        InputError: If a loss is not finite, or a rank is not a whole number from 1 to ``references + 1``.

    Example:
        >>> result = Exposure([1, 1, 2, 900], 1000).result()
        >>> [round(exposure, 2) for exposure in result.details["exposures"]]
        [9.97, 9.97, 8.97, 0.15]
        >>> round(result["median-exposure"].epsilon, 2)
        5.87
    """

    def __init__(
        self, canaries: ArrayLike, references: ArrayLike, *, copies: int = 1, source: str = "the caller"
    ) -> None:
        self.copies, self.source = copies, source
        self._extrapolated: float | None = None
        self._tied = np.ndim(references) == 0  # ranks of others count ties against the canary
        if self._tied:
            self._ranks = self._worst = finite_list("ranks", canaries)
            self.references = int(references)  # type: ignore[arg-type]
            fractional = self._ranks[self._ranks != np.round(self._ranks)]
            if fractional.size:
                raise InputError(
                    f"a rank must be a whole number, 1 + the number of references whose loss is not higher, got "
                    f"{fractional[0]:g}; averaged ranks give no valid bound"
                )
        else:
            # Ties count half in the exposure, and against the canary in what the bound rests on.
            self._ranks = ex.ranks(canaries, references)
            self._worst = ex.ranks(canaries, references, ties="worst")
            self.references = np.size(references)
            # A skew-normal fit can exceed log2(n). It is impossible for few or equal losses.
            with suppress(InputError):
                self._extrapolated = float(ex.extrapolated_exposure(canaries, references).max())

    @classmethod
    def from_table(
        cls, table: ScoreTable, *, references: int | None = None, calibrate: bool = False, copies: int = 1
    ) -> Exposure:
        """Return the canaries of a file that `coalmine.files.read_table` read.

        Args:
            table: Columns ``loss`` and ``canary`` (1/0), or ``canaries`` and ``references`` (losses), or ``rank``.
            references: Number of references that ranks are among.
            calibrate: Whether to subtract the column ``reference_loss``, the loss under a model without the canaries.
            copies: Number of times that each canary was inserted.

        Raises:
            InputError: If columns are missing or hold wrong values, or the arguments do not fit them.
        """
        if ("rank" in table.columns) != (references is not None):
            raise InputError(
                f"references (--references) is the number that a column of ranks is among, and losses are counted: got "
                f"references = {references} for {table.source} with columns {', '.join(table.columns)}"
            )
        # Suggestion 3: how hard an example is shows in the loss of a model that never saw it.
        if calibrate:
            losses = ex.calibrate(table.numbers("loss"), table.numbers("reference_loss"))
            table = ScoreTable(table.source, {"loss": losses, "canary": table.require("canary")}, table.first_row)
        if references is not None:
            return cls(table.numbers("rank"), references, copies=copies, source=table.source)
        canaries, others = two_groups(table, groups=("canaries", "references"), value="loss", flag="canary")
        assert others is not None
        return cls(canaries, others, copies=copies, source=table.source)

    def result(self, *, delta: float = 0.0, confidence: float = 0.95, unit: Unit = SCORES) -> Result:
        """Return the exposures, their summary compared with random guessing, and the evidence about ε.

        Args:
            delta: δ at which the lower bound is stated.
            confidence: Confidence of the lower bound and of the intervals for random guessing.
            unit: Whose privacy ε is about.

        Returns:
            A result whose scores are minus the ranks, and whose ``details`` hold the numbers of ``canaries`` and
            ``references``, the summary ``rows`` and all ``exposures`` in bits.
        """
        # Exposures count ties half; the scores behind the bound count them against the canary.
        exposures = ex.exposure(self._ranks, self.references)
        scores = Scores(*ex.scores_from_ranks(self._worst, self.references))
        recipe = {"delta": delta, "confidence": confidence, "copies": self.copies, "tied": self._tied}
        estimates, top = evidence(scores, self._ranks, recipe)
        return Result(
            method="exposure",
            view="ranks",
            unit=unit,
            adversary="ranks canaries by their loss among references",
            score_name="minus rank",
            side_names=("canaries", "references"),
            seed=0,  # nothing here is random
            estimates=estimates,
            scores=scores,
            ceiling=top,
            metrics={"inserted": float(exposures.size), "held_out": float(self.references)},
            config={"score": "rank", "source": self.source},
            recipe=recipe,
            arrays={"ranks": self._ranks},
            details={
                "canaries": int(exposures.size),
                "references": int(self.references),
                "rows": self._summary(exposures, confidence),
                "exposures": exposures.tolist(),
            },
        )

    def _summary(self, exposures: Floats, confidence: float) -> list[dict[str, Any]]:
        """Return summaries of the exposures, each with its value and interval under random guessing (Section 2.1)."""
        chance = RandomGuessing(self.references, exposures.size)
        tail, unknown = (1 - confidence) / 2, (None, None)
        largest = (chance.quantile(tail, position=1), chance.quantile(1 - tail, position=1))
        summaries = [
            ("mean", float(np.mean(exposures)), chance.mean(), unknown),
            ("median", float(np.median(exposures)), chance.median(), chance.sample_median_interval(confidence)),
            ("75th percentile", float(np.quantile(exposures, 0.75)), chance.quantile(0.75), unknown),
            ("largest", float(np.max(exposures)), chance.mean(position=1), largest),
        ]
        if self._extrapolated is not None:
            summaries.append(("largest, extrapolated", self._extrapolated, *summaries[-1][2:]))
        names = ("summary", "canaries", "random_guessing", "low", "high")
        return [dict(zip(names, (*row, *interval), strict=True)) for *row, interval in summaries]


def evidence(scores: Scores, ranks: Floats, recipe: Mapping[str, Any]) -> tuple[list[Estimate], float | None]:
    """Return the bound, the point estimates and the ceiling of the bound."""
    copies, references = recipe["copies"], scores.observed.size
    bound, top = simultaneous_bound(scores, delta=recipe["delta"], confidence=recipe["confidence"], copies=copies)
    assumes = bound.assumes + recipe["tied"] * "; ties were ranked against the canary"
    threshold = None if bound.threshold is None else 0.5 - bound.threshold  # as a rank
    # Section 2.2: ε ≥ ln 2 · (median exposure − 1), by TPR = 1/2 at the median canary.
    median = ex.epsilon_from_exposure(float(np.median(ex.exposure(ranks, references))))
    estimates = [
        replace(bound, threshold=threshold, assumes=assumes),
        Estimate("median-exposure", median / copies),
    ]
    # Lower false positive rates show the risk to outliers (Section 2.2, end).
    for fpr in (0.1, 0.01, 0.001):
        if fpr * references >= 1:
            whole = ex.low_fpr_epsilon(ranks, references, fpr)
            estimates.append(Estimate(f"low-fpr-{fpr:g}", whole.epsilon / copies, threshold=whole.threshold))
    return estimates, top
