"""Scores of a stretch of the training → ε of one of its rounds, with all that limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.errors import NotApplicableError
from coalmine.stats import Estimate, Scores, estimate
from coalmine.stats.epsilon import INDEPENDENT

# Scores of one canary on a frozen model are independent; the bound for one run asks for no such thing.
_INDEPENDENT = ("simultaneous", "one-run", "gdp", "gaussian-shift", "gaussian-fit", "best-threshold")
_DEPENDENT = ("one-run", "simultaneous", "gdp", "gaussian-shift", "gaussian-fit", "best-threshold")
_NOT_QUITE = "which is not so here: they share rounds, or the model moved between them"


@dataclass(frozen=True, eq=False)
class Period:
    """The scores (trials, canaries) of one estimate, whether each canary was there, and the rounds it stands for.

    Scores are in units of the signal of the canary in that trial, ``sigma`` their expected standard deviations.
    """

    round: int
    rounds: int
    scores: Floats
    present: Bools
    sigma: Floats

    @property
    def comparable(self) -> Floats:
        """Scores z that can be compared where some canaries show more than others: affine in the likelihood ratio.

        A score x, N(0, σ²) without the canary and N(1, σ²) with it, has the log-likelihood ratio (x − ½)/σ². So
        z − ½ = (x − ½) s²/σ², with s the least σ: a trial that can tell little comes out near ½. Where all σ are the
        same, or not known, z = x; so it is where some σ is 0, without noise, and likelihood ratios are infinite.
        """
        if not (np.isfinite(self.sigma).all() and self.sigma.min() > 0):
            return self.scores
        return np.asarray(0.5 + (self.scores - 0.5) * (self.sigma.min() / self.sigma) ** 2)

    @property
    def faded(self) -> bool:
        """Whether most trials show far less than the best: they have less than a quarter of its information."""
        return bool(np.isfinite(self.sigma).all() and np.median(self.sigma) > 2 * self.sigma.min())


@dataclass(frozen=True, kw_only=True)
class RoundEstimate:
    """ε of a single round, as estimated for the ``rounds`` rounds from round ``round`` on.

    ``estimates`` begin with the bound to quote. ``ceiling`` is the largest that bound could be with so many scores,
    ``rate_ceiling`` the largest finite ε that their rates could have (``best-threshold``); the Gaussian fits have
    none. Of the scores (`Period.comparable`) 0 is expected without the canary and 1 with it, or between where they
    can tell less.
    """

    round: int
    rounds: int
    estimates: Sequence[Estimate]
    scores: Scores | None
    ceiling: float | None
    rate_ceiling: float | None
    accuracy: float | None

    @property
    def bound(self) -> Estimate | None:
        """The first bound that holds."""
        return next((e for e in self.estimates if e.valid), None)

    def epsilon(self, method: str) -> float | None:
        """The figure of a method, None where it did not apply."""
        return next((e.epsilon for e in self.estimates if e.method == method), None)

    @property
    def with_canary(self) -> tuple[int, float, float]:
        """Number, mean and standard deviation of the scores with the canary."""
        return _moments(None if self.scores is None else self.scores.members)

    @property
    def without_canary(self) -> tuple[int, float, float]:
        """Number, mean and standard deviation of the scores without the canary."""
        return _moments(None if self.scores is None else self.scores.observed)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the scores."""
        sides = {"with": self.with_canary, "without": self.without_canary}
        return {
            "round": self.round,
            "rounds": self.rounds,
            "estimates": [e.to_dict() for e in self.estimates],
            "ceiling": self.ceiling,
            "rate_ceiling": self.rate_ceiling,
            "attack_accuracy": self.accuracy,
            **{
                f"{name}_{what}": None if isinstance(value, float) and math.isnan(value) else value
                for name, side in sides.items()
                for what, value in zip(("scores", "mean", "std"), side, strict=True)
            },
        }


def round_estimate(period: Period, *, independent: bool, delta: float, confidence: float) -> RoundEstimate:
    """All figures of one period; none where coins left nothing to compare."""
    comparable = period.comparable
    members, nonmembers = comparable[period.present], comparable[~period.present]
    if not members.size or not nonmembers.size:
        return RoundEstimate(
            round=period.round,
            rounds=period.rounds,
            estimates=(),
            scores=None,
            ceiling=None,
            rate_ceiling=None,
            accuracy=None,
        )
    scores = Scores(members, nonmembers)
    found = _estimates(members, nonmembers, independent, delta, confidence)
    m, n = members.size, nonmembers.size
    # What the bound to quote would be of scores that separate perfectly.
    apart = _estimates(np.arange(n, n + m, dtype=float), np.arange(n, dtype=float), independent, delta, confidence)
    return RoundEstimate(
        round=period.round,
        rounds=period.rounds,
        estimates=found,
        scores=scores,
        ceiling=next((e.epsilon for e in apart if e.valid), None),
        rate_ceiling=rate_ceiling(m, n, delta),
        accuracy=scores.max_accuracy,
    )


def _estimates(
    members: Floats, nonmembers: Floats, independent: bool, delta: float, confidence: float
) -> list[Estimate]:
    found = []
    for method in _INDEPENDENT if independent else _DEPENDENT:
        try:
            found += estimate(
                members, nonmembers, delta=delta, confidence=confidence, design="coin-flips", methods=[method]
            )
        except NotApplicableError:
            continue
    if independent:
        return found
    return [
        replace(e, valid=False, assumes=e.assumes.replace(INDEPENDENT, f"{INDEPENDENT}, {_NOT_QUITE}"))
        if INDEPENDENT in e.assumes
        else e
        for e in found
    ]


def rate_ceiling(members: int, nonmembers: int, delta: float) -> float:
    """The largest finite ε that rates of so many scores can give: one error of one kind, none of the other."""
    return max(0.0, math.log(max(members, nonmembers)) + math.log1p(-delta))


def _moments(side: Floats | None) -> tuple[int, float, float]:
    if side is None or not side.size:
        return 0, math.nan, math.nan
    return side.size, float(side.mean()), float(side.std(ddof=1)) if side.size > 1 else math.nan
