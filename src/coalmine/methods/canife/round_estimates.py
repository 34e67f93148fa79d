"""From the scores of a period of the training to ε of one of its rounds (section 3.4), with what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.errors import NotApplicableError
from coalmine.stats import Estimate, Scores, estimate
from coalmine.stats.epsilon import INDEPENDENT

# The order of reading. Scores of one canary on a frozen model are independent; otherwise only the one-run bound is
# valid, since it needs nothing but fair coin flips.
_INDEPENDENT = ("simultaneous", "one-run", "gdp", "gaussian-shift", "gaussian-fit", "best-threshold")
_DEPENDENT = ("one-run", "simultaneous", "gdp", "gaussian-shift", "gaussian-fit", "best-threshold")
_VIOLATED = "which does not hold here: they share rounds, or the model moved between them"


@dataclass(frozen=True, eq=False)
class Period:
    """The scores behind one estimate.

    Args:
        round: First round that the estimate stands for.
        rounds: Number of rounds that it stands for.
        scores: (trials, canaries), in units of the canary's signal in that trial.
        present: (trials, canaries), whether each canary took part.
        sigma: (trials, canaries), expected standard deviation of the scores; NaN where unknown.
    """

    round: int
    rounds: int
    scores: Floats
    present: Bools
    sigma: Floats

    @property
    def comparable(self) -> Floats:
        """Scores on the scale of the log-likelihood ratio, so that trials with much and little noise can be pooled.

        A score x is N(0, σ²) without the canary and N(1, σ²) with it, so its log-likelihood ratio is (x − ½)/σ². The
        comparable score z has z − ½ = (x − ½) s²/σ², where s is the smallest σ: a trial with little information ends up
        near ½. If all σ are equal or unknown, z = x; likewise if some σ is 0, where likelihood ratios are infinite.
        """
        if not (np.isfinite(self.sigma).all() and self.sigma.min() > 0):
            return self.scores
        return np.asarray(0.5 + (self.scores - 0.5) * (self.sigma.min() / self.sigma) ** 2)

    @property
    def pair(self) -> Scores | None:
        """Comparable scores with and without the canary; None if one of the two is missing."""
        if self.present.all() or not self.present.any():
            return None
        comparable = self.comparable
        return Scores(comparable[self.present], comparable[~self.present])

    @property
    def scored(self) -> Period:
        """The trials that have been scored so far."""
        rows = ~np.isnan(self.scores).any(axis=1)
        return replace(self, scores=self.scores[rows], present=self.present[rows], sigma=self.sigma[rows])

    @property
    def faded(self) -> bool:
        """Whether the median trial has less than a quarter of the best trial's information (1/σ²)."""
        return bool(np.isfinite(self.sigma).all() and np.median(self.sigma) > 2 * self.sigma.min())


def pooled(periods: Sequence[Period]) -> Period:
    """Return all periods as one."""
    return Period(
        0,
        sum(period.rounds for period in periods),
        np.concatenate([period.scores for period in periods]),
        np.concatenate([period.present for period in periods]),
        np.concatenate([period.sigma for period in periods]),
    )


@dataclass(frozen=True, kw_only=True)
class RoundEstimate:
    """ε of a single round, estimated for a period of the training.

    Args:
        round: First round of the period.
        rounds: Number of rounds in it.
        estimates: Bounds and estimates, the bound to quote first; none if coin flips left nothing to compare.
        scores: Comparable scores with and without the canary (about 1 and 0).
        ceiling: Largest value the quoted bound could reach with this number of scores.
        rate_ceiling: Largest finite ε that rates of this many scores can show (``best-threshold``). Gaussian fits have
            no such limit.
        accuracy: Accuracy of the best threshold.
    """

    round: int
    rounds: int
    estimates: Sequence[Estimate] = ()
    scores: Scores | None = None
    ceiling: float | None = None
    rate_ceiling: float | None = None
    accuracy: float | None = None

    @property
    def bound(self) -> Estimate | None:
        """The first lower bound."""
        return next((e for e in self.estimates if e.valid), None)

    def epsilon(self, method: str, end: Literal["epsilon", "lower", "upper"] = "epsilon") -> float | None:
        """Return the ε of an estimator, or an end of its interval; None if it did not apply."""
        return next((getattr(e, end) for e in self.estimates if e.method == method), None)

    @property
    def with_canary(self) -> tuple[int, float, float]:
        """Number, mean and standard deviation of the scores with the canary."""
        return _moments(None if self.scores is None else self.scores.members)

    @property
    def without_canary(self) -> tuple[int, float, float]:
        """Number, mean and standard deviation of the scores without the canary."""
        return _moments(None if self.scores is None else self.scores.observed)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the scores, ready for JSON."""
        sides = {"with": self.with_canary, "without": self.without_canary}
        return {
            "round": self.round,
            "rounds": self.rounds,
            "estimates": [e.to_dict() for e in self.estimates],
            "ceiling": self.ceiling,
            "rate_ceiling": self.rate_ceiling,
            "attack_accuracy": self.accuracy,
            **{
                f"{name}_{quantity}": None if isinstance(value, float) and math.isnan(value) else value
                for name, side in sides.items()
                for quantity, value in zip(("scores", "mean", "std"), side, strict=True)
            },
        }


def round_estimate(period: Period, *, independent: bool, delta: float, confidence: float) -> RoundEstimate:
    """Return all estimates for one period.

    Args:
        period: Its scores.
        independent: Whether the scores are independent of one another: one canary on a frozen model.
        delta: The δ of all estimates.
        confidence: Confidence of bounds and intervals.
    """
    scores = period.pair
    if scores is None:
        return RoundEstimate(round=period.round, rounds=period.rounds)
    members, nonmembers = scores.members, scores.observed
    m, n = members.size, nonmembers.size
    # The quoted bound at its largest: from this many scores, perfectly separated.
    perfect = _estimates(np.arange(n, n + m, dtype=float), np.arange(n, dtype=float), independent, delta, confidence)
    return RoundEstimate(
        round=period.round,
        rounds=period.rounds,
        estimates=_estimates(members, nonmembers, independent, delta, confidence),
        scores=scores,
        ceiling=next((e.epsilon for e in perfect if e.valid), None),
        rate_ceiling=rate_ceiling(m, n, delta),
        accuracy=scores.max_accuracy,
    )


def _estimates(
    members: Floats, nonmembers: Floats, independent: bool, delta: float, confidence: float
) -> list[Estimate]:
    """Return the estimates that apply; those that need independent scores are not valid without."""
    estimates = []
    for method in _INDEPENDENT if independent else _DEPENDENT:
        try:
            estimates += estimate(
                members, nonmembers, delta=delta, confidence=confidence, design="coin-flips", methods=[method]
            )
        except NotApplicableError:
            continue
    if independent:
        return estimates
    return [
        replace(e, valid=False, assumes=e.assumes.replace(INDEPENDENT, f"{INDEPENDENT}, {_VIOLATED}"))
        if INDEPENDENT in e.assumes
        else e
        for e in estimates
    ]


def rate_ceiling(members: int, nonmembers: int, delta: float) -> float:
    """Return the largest finite ε that the rates of this many scores can show: a single error of one kind.

    Example:
        >>> round(rate_ceiling(50, 50, delta=0.01), 2)  # the paper's 100 trials
        3.9
    """
    return max(0.0, math.log(max(members, nonmembers)) + math.log1p(-delta))


def _moments(scores: Floats | None) -> tuple[int, float, float]:
    if scores is None or not scores.size:
        return 0, math.nan, math.nan
    return scores.size, float(scores.mean()), float(scores.std(ddof=1)) if scores.size > 1 else math.nan
