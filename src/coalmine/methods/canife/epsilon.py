"""From scores to ε: of one round (section 3.4 of the paper), and of all rounds composed (Algorithm 2, appendix C.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from coalmine import claims
from coalmine.arrays import Bools, Floats
from coalmine.claims.sampling import SENSITIVITY, AtMost, Sampling
from coalmine.errors import InputError, NotApplicableError
from coalmine.stats import Estimate, Scores, SequentialBound, epsilon_gdp, estimate
from coalmine.stats.gaussian import moments
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

Series = list[tuple[float, int]]
"""Pairs (ε of a round, number of rounds it stands for), along the training."""


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
    def separation(self) -> float | None:
        """How far scores with the canary are expected to lie from those without, in σ; None where that is unknown."""
        if not (np.isfinite(self.sigma).all() and self.sigma.min() > 0):
            return None
        return float(np.sqrt(np.mean(self.sigma**-2.0)))

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

    def epsilon(self, method: str) -> float | None:
        """Return the ε of an estimator, or None if it did not apply."""
        return next((e.epsilon for e in self.estimates if e.method == method), None)

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
        lower: With ``upper``, the interval of the estimate for the estimator whose intervals cover as often as they say
            (``gaussian-shift``, exact inversion; `shift_series`). Not a bound.
        upper: Its upper end.
    """

    method: str
    inversion: str
    epsilon: float
    lower: float | None = None
    upper: float | None = None


def compose(periods: Sequence[RoundEstimate], *, sampling: Sampling, delta: float) -> tuple[list[Composed], list[str]]:
    """Compose single rounds to ε of the whole training; return it by every way, and warnings.

    Each ε̂ᵣ stands for the rounds of its period. The infinite ε of perfectly separated scores counts as its ceiling. A
    period without scores takes the estimates of the period before (at the beginning, of the one after).

    Args:
        periods: Estimates along the training, in order.
        sampling: How clients take part, which amplifies their privacy.
        delta: The δ of both the rounds and the training.
    """
    composed: list[Composed] = []
    warnings: list[str] = []
    scored, waiting = [], 0
    for period in periods:
        if period.scores is not None:
            scored.append(replace(period, rounds=period.rounds + waiting))
            waiting = 0
        elif scored:
            scored[-1] = replace(scored[-1], rounds=scored[-1].rounds + period.rounds)
        else:
            waiting += period.rounds
    for method, inversions in _COMPOSED.items():
        series = _epsilon_series(scored, method)
        if not series:
            continue
        for inversion in inversions:
            all_series = shift_series(scored, delta) if method == "gaussian-shift" else {"epsilon": series}
            try:
                ends = {end: _composed_epsilon(one, sampling, delta, inversion) for end, one in all_series.items()}
            except InputError as reason:
                warnings.append(f"{method} is not composed ({inversion}): {reason}")
                continue
            composed.append(Composed(method=method, inversion=inversion, **ends))
    return composed, warnings


def _epsilon_series(periods: Sequence[RoundEstimate], method: str) -> Series | None:
    """Return (ε̂ᵣ, rounds) along the training; None if a period has none."""
    series = []
    for period in periods:
        value = period.rate_ceiling if method == "ceiling" else period.epsilon(method)
        if value == math.inf and method == "best-threshold":
            value = period.rate_ceiling
        if value is None:
            return None
        series.append((value, period.rounds))
    return series


def shift_series(periods: Sequence[RoundEstimate], delta: float) -> dict[str, Series]:
    """Return the ε̂ᵣ of ``gaussian-shift`` corrected for composition, and those at both ends of an interval.

    Rounds compose by the sum Λ of their μ², and squares of estimates are too large by their variances. An estimate of
    one round is right on average, so the variance of the others is subtracted. All rounds are then changed by one
    factor. With Q = Σ μ̂² and Λ in units of the variance, √(Q − (k−1)/2) of k rounds has a standard deviation of about
    1 around √(Λ + (k−1)/2), however large Λ is: the interval.

    Args:
        periods: At least one, all with scores and that estimate.
        delta: The δ of the estimates.

    Returns:
        Pairs (ε, rounds) under the names ``epsilon``, ``lower`` and ``upper``.
    """
    estimated = [next(e for e in period.estimates if e.method == "gaussian-shift") for period in periods]
    rounds = np.array([period.rounds for period in periods])
    if len(periods) == 1:  # its own interval, which is exact
        return {end: [(getattr(estimated[0], end), int(rounds[0]))] for end in ("epsilon", "lower", "upper")}
    sides = [period.scores for period in periods if period.scores is not None]
    (mean0, std0), (mean1, std1) = np.moveaxis(np.array([moments(scores) for scores in sides]), 0, 2)
    m, n = np.array([(scores.members.size, scores.observed.size) for scores in sides]).T
    shrunk = np.maximum(0, n - 3) / (n - 1)  # the mean of σ²/s² for n normal scores is the inverse
    square = rounds * shrunk * ((mean1 - mean0) / std0) ** 2
    variance = rounds * (shrunk * (std1 / std0) ** 2 / m + 1 / n)
    # A large μ̂² varies by more, since the standard deviation is estimated too.
    stretch = math.sqrt(1 + square @ (square / (2 * (n - 1))) / max(square @ variance, 1e-300))
    # Rounds with different variances count as fewer with equal ones (Satterthwaite).
    unit = variance @ variance / variance.sum()
    half = (variance.sum() / unit - 1) / 2
    length = math.sqrt(max(0.0, square.sum() / unit - half))
    z = stretch * special.ndtri((1 + (estimated[0].confidence or 0.0)) / 2)
    series = {}
    for end, moved in (("epsilon", length), ("lower", length - z), ("upper", length + z)):
        total = unit * max(0.0, max(0.0, moved) ** 2 - half)
        epsilons = epsilon_gdp(np.sqrt(square / rounds * total / max(square.sum(), 1e-300)), delta)
        series[end] = list(zip(epsilons.tolist(), rounds.tolist(), strict=True))
    return series


def _composed_epsilon(series: Series, sampling: Sampling, delta: float, name: str) -> float:
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
