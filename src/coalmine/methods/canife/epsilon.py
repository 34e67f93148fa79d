"""From scores to ε: of one round (section 3.4 of the paper), and of all rounds composed (Algorithm 2, appendix C.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from coalmine import claims
from coalmine.arrays import Bools, Floats
from coalmine.claims.sampling import SENSITIVITY, AtMost, Sampling
from coalmine.errors import InputError, NotApplicableError
from coalmine.stats import Estimate, Scores, SequentialBound, estimate
from coalmine.stats.scores import INDEPENDENT

# The order of reading. Scores of one canary on a frozen model are independent; otherwise only the one-run bound is
# valid, since it needs nothing but fair coin flips.
_INDEPENDENT = ("simultaneous", "one-run", "gdp", "gaussian-shift", "gaussian-fit", "best-threshold")
_DEPENDENT = ("one-run", "simultaneous", "gdp", "gaussian-shift", "gaussian-fit", "best-threshold")
_VIOLATED = "which does not hold here: they share rounds, or the model moved between them"

# How ε̂ᵣ becomes a noise multiplier (GetNoise of Algorithm 2), and the accountant that composes it (GetPrivacy; None is
# the tightest for the sampling).
_INVERSIONS = {"exact": ("exact", None), "paper": ("rdp", "rdp")}

# Estimators whose ε of one round is composed, and how. "ceiling" is what rates at their ceiling would compose to. The
# paper's way is computed for the paper's estimator only.
_COMPOSED = {
    "best-threshold": ("exact", "paper"),
    "gaussian-shift": ("exact",),
    "gdp": ("exact",),
    "ceiling": ("exact", "paper"),
}

End = Literal["epsilon", "lower", "upper"]

# What is composed of each estimator: its ε, and for the one whose intervals cover as often as they say also their ends.
_ENDS: Mapping[str, Sequence[End]] = {"gaussian-shift": ("epsilon", "lower", "upper")}


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
    def faded(self) -> bool:
        """Whether the median trial has less than a quarter of the best trial's information (1/σ²)."""
        return bool(np.isfinite(self.sigma).all() and np.median(self.sigma) > 2 * self.sigma.min())


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
    """

    round: int
    rounds: int
    estimates: Sequence[Estimate] = ()
    scores: Scores | None = None
    ceiling: float | None = None
    rate_ceiling: float | None = None

    def epsilon(self, method: str, end: End = "epsilon") -> float | None:
        """Return the ε of an estimator, or an end of its interval; None if it did not apply."""
        return next((getattr(e, end) for e in self.estimates if e.method == method), None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the scores themselves, ready for JSON."""
        content: dict[str, Any] = {
            "round": self.round,
            "rounds": self.rounds,
            "estimates": [e.to_dict() for e in self.estimates],
            "ceiling": self.ceiling,
            "rate_ceiling": self.rate_ceiling,
            "attack_accuracy": None if self.scores is None else self.scores.max_accuracy,
        }
        for side in ("with", "without"):
            count, mean, std = self.moments(side == "with")
            content |= {f"{side}_scores": count, f"{side}_mean": mean, f"{side}_std": std}
        return content

    def moments(self, present: bool) -> tuple[int, float | None, float | None]:
        """Return number, mean and standard deviation of the scores with or without the canary; None where unknown."""
        if self.scores is None:
            return 0, None, None
        scores = self.scores.members if present else self.scores.observed
        return scores.size, float(scores.mean()), float(scores.std(ddof=1)) if scores.size > 1 else None


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
    m, n = scores.members.size, scores.observed.size
    # The quoted bound at its largest: from this many scores, perfectly separated.
    perfect = Scores(np.arange(n, n + m, dtype=float), np.arange(n, dtype=float))
    at_best = _estimates(perfect, independent, delta, confidence)
    return RoundEstimate(
        round=period.round,
        rounds=period.rounds,
        estimates=_estimates(scores, independent, delta, confidence),
        scores=scores,
        ceiling=next((e.epsilon for e in at_best if e.valid), None),
        rate_ceiling=rate_ceiling(m, n, delta),
    )


def _estimates(scores: Scores, independent: bool, delta: float, confidence: float) -> list[Estimate]:
    """Return the estimates that apply; those that need independent scores are not valid without."""
    estimates: list[Estimate] = []
    terms: dict[str, Any] = {"delta": delta, "confidence": confidence, "design": "coin-flips"}
    for method in _INDEPENDENT if independent else _DEPENDENT:
        try:
            (one,) = estimate(scores.members, scores.observed, methods=[method], **terms)
        except NotApplicableError:
            continue
        if not independent and INDEPENDENT in one.assumes:
            one = replace(one, valid=False, assumes=one.assumes.replace(INDEPENDENT, f"{INDEPENDENT}, {_VIOLATED}"))
        estimates.append(one)
    return estimates


def rate_ceiling(members: int, nonmembers: int, delta: float) -> float:
    """Return the largest finite ε that the rates of this many scores can show: a single error of one kind.

    Example:
        >>> round(rate_ceiling(50, 50, delta=0.01), 2)  # the paper's 100 trials
        3.9
    """
    return max(0.0, math.log(max(members, nonmembers)) + math.log1p(-delta))


def anytime_bound(periods: Sequence[Period], delta: float) -> SequentialBound:
    """Return the bound on ε of one round that holds at every moment of the trials (docs/proofs.md).

    Each trial has its own coin, and given everything before it a round's sum is as private as the claim says. So trials
    of different periods can be used together, although the model moved between them.
    """
    bound = SequentialBound(delta=delta)
    for period in periods:
        # The log-likelihood ratio of N(1, σ²) and N(0, σ²) makes trials with different σ comparable, and needs none of
        # the later trials.
        known = np.isfinite(period.sigma) & (period.sigma > 0)
        ratios = (period.scores - 0.5) / np.where(known, period.sigma, 1.0) ** 2
        bound.update(period.present, np.where(known, ratios, period.scores))
    return bound


@dataclass(frozen=True, kw_only=True)
class Composed:
    """ε of all rounds, composed from the ε̂ᵣ of each: an estimate as good as these are, never a bound.

    Args:
        method: Estimator of the ε̂ᵣ; ``"ceiling"`` for the largest value that rates could compose to.
        inversion: ``"exact"`` uses the trade-off curve of the Gaussian mechanism and the tightest accountant,
            ``"paper"`` RDP for both, which mostly gives less.
        epsilon: The composed ε.
        lower: The lower ends of the intervals of all ε̂ᵣ composed, if these have intervals that cover as often as they
            say (``gaussian-shift``, exact inversion). With ``upper``, an interval of an estimate, not a bound; wide,
            since all rounds err in the same direction at its ends.
        upper: The upper ends composed.
    """

    method: str
    inversion: str
    epsilon: float
    lower: float | None = None
    upper: float | None = None


def compose(periods: Sequence[RoundEstimate], *, sampling: Sampling, delta: float) -> tuple[list[Composed], list[str]]:
    """Compose single rounds to ε of the whole training; return it by every way, and warnings.

    Each ε̂ᵣ stands for the rounds of its period. The infinite ε of perfectly separated scores counts as its ceiling. A
    period without estimates takes those of the period before (at the beginning, of the one after).

    Args:
        periods: Estimates along the training, in order.
        sampling: How clients take part, which amplifies their privacy.
        delta: The δ of both the rounds and the training.
    """
    composed: list[Composed] = []
    warnings: list[str] = []
    for method, inversions in _COMPOSED.items():
        for inversion in inversions:
            epsilons: dict[str, float] = {}
            try:
                for end in _ENDS.get(method, ("epsilon",)):
                    series = _epsilon_series(periods, method, end)
                    if series is not None:
                        epsilons[end] = _composed_epsilon(series, sampling, delta, inversion)
            except InputError as reason:
                warnings.append(f"{method} is not composed ({inversion}): {reason}")
                continue
            if epsilons:
                composed.append(Composed(method=method, inversion=inversion, **epsilons))
    return composed, warnings


def _epsilon_series(periods: Sequence[RoundEstimate], method: str, end: End) -> list[tuple[float, int]] | None:
    """Return (ε̂ᵣ, rounds) along the training, or an end of each interval; None if a period with scores has none."""
    values: list[float | None] = []
    for period in periods:
        value = period.rate_ceiling if method == "ceiling" else period.epsilon(method, end)
        if value == math.inf and method == "best-threshold":
            value = period.rate_ceiling
        if value is None and period.scores is not None:
            return None
        values.append(value)
    known = [value for value in values if value is not None]
    if not known:
        return None
    series, last = [], known[0]
    for value, period in zip(values, periods, strict=True):
        last = last if value is None else value
        series.append((last, period.rounds))
    return series


def _composed_epsilon(series: list[tuple[float, int]], sampling: Sampling, delta: float, name: str) -> float:
    """Return ε of all rounds of a series of (ε̂ᵣ, rounds), by one of the inversions."""
    inversion, accountant = _INVERSIONS[name]
    if isinstance(sampling, AtMost):
        # A client listed m times in a round moves the sum m times as far, which counts as m² rounds. The rounds by
        # which that exceeds the training are taken at the largest ε̂ᵣ.
        missing = sampling.times - sum(rounds for _, rounds in series)
        if missing > 0:
            series = [*series, (max(epsilon for epsilon, _ in series), missing)]
    return claims.compose_rounds(
        series,
        sampling=sampling,
        delta=delta,
        inversion=inversion,
        accountant=accountant,
        sensitivity=SENSITIVITY[sampling.adjacency],  # a canary is added, but clients may be replaced
    )
