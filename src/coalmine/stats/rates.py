"""From error rates and counts to ε, at one threshold that was fixed before the scores were seen.

(ε, δ)-DP limits the true positive rate of every attack in terms of its false positive rate (Kairouz, Oh & Viswanath,
2015). Turning that around, observed rates give a lower bound on ε once their sampling error is accounted for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_confidence, check_count, check_delta
from coalmine.stats.epsilon import INDEPENDENT, Estimate
from coalmine.stats.search import largest
from coalmine.stats.tradeoff import ApproximateDP, BetaPair

Interval = Literal["clopper-pearson", "jeffreys", "katz-log", "joint-beta"]


def epsilon_from_rates(tpr: ArrayLike, fpr: ArrayLike, delta: float = 0.0) -> Floats:
    """Compute the smallest ε for which (ε, δ)-DP allows an attack with these exact rates.

    max(0, ln((TPR − δ)/FPR), ln((1 − FPR − δ)/(1 − TPR))), by Kairouz, Oh & Viswanath (2015). The rates are taken as
    exact; for counts use `epsilon_from_counts`.

    Args:
        tpr: True positive rates in [0, 1], any shape.
        fpr: False positive rates in [0, 1], broadcastable to ``tpr``.
        delta: The δ at which ε is stated, in [0, 1).

    Returns:
        ε, elementwise; infinite only if no finite ε allows the rates.

    Raises:
        InputError: If a rate or ``delta`` is out of range.

    Example:
        >>> round(float(epsilon_from_rates(0.8, 0.1)), 4)  # ln 8
        2.0794
        >>> float(epsilon_from_rates(0.8, 0.0))
        inf
    """
    tpr, fpr = np.asarray(tpr, dtype=float), np.asarray(fpr, dtype=float)
    for name, rate in (("TPR", tpr), ("FPR", fpr)):
        if not np.all((rate >= 0) & (rate <= 1)):
            raise InputError(f"{name} must be in [0, 1], got {rate}")
    with np.errstate(divide="ignore"):
        return epsilon_from_log_rates(np.log(tpr), np.log1p(-tpr), np.log(fpr), np.log1p(-fpr), delta)


def epsilon_from_log_rates(
    log_tpr: ArrayLike, log_fnr: ArrayLike, log_fpr: ArrayLike, log_tnr: ArrayLike, delta: float = 0.0
) -> Floats:
    """Compute `epsilon_from_rates` from logarithms, accurate even where a rate itself would underflow.

    Args:
        log_tpr: ln TPR, any shape.
        log_fnr: ln(1 − TPR).
        log_fpr: ln FPR.
        log_tnr: ln(1 − FPR).
        delta: The δ at which ε is stated, in [0, 1).

    Returns:
        ε, elementwise.

    Raises:
        InputError: If ``delta`` is out of range.

    Example:
        >>> round(float(epsilon_from_log_rates(np.log(0.5), np.log(0.5), -2000.0, 0.0)), 2)
        1999.31
    """
    check_delta(delta)
    return np.maximum(_one_way(log_tpr, log_fpr, delta), _one_way(log_tnr, log_fnr, delta))


def _one_way(log_right: ArrayLike, log_wrong: ArrayLike, delta: float) -> Floats:
    """Return max(0, ln((right − δ)/wrong))."""
    log_right, log_wrong = np.asarray(log_right, dtype=float), np.asarray(log_wrong, dtype=float)
    log_delta = math.log(delta) if delta > 0 else -math.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = log_right + np.log1p(-np.exp(np.minimum(log_delta - log_right, 0)))
        # A rate that exceeds δ only by rounding error does not exceed it.
        value = np.where(log_right > log_delta + 1e-13, excess - log_wrong, 0.0)
    return np.asarray(np.fmax(value, 0.0))


def binomial_cdf(successes: ArrayLike, trials: float, rate: float) -> Floats:
    """Return P(Binomial(trials, rate) ≤ successes), elementwise; 0 for negative successes."""
    k = np.asarray(successes, dtype=float)
    inside = special.betaincc(np.maximum(k, 0) + 1, np.maximum(trials - k, 0.5), rate)
    return np.where(k < 0, 0.0, np.where(k >= trials, 1.0, inside))


@dataclass(frozen=True)
class Counts:
    """Confusion matrix of an attack at one threshold.

    Args:
        tp: Members guessed to be members.
        fn: Members guessed to be non-members.
        fp: Non-members guessed to be members.
        tn: Non-members guessed to be non-members.

    Raises:
        InputError: If a count is negative or not whole, or there are no members or no non-members.

    Example:
        >>> counts = Counts(tp=300, fn=700, fp=50, tn=950)
        >>> counts.members, counts.nonmembers
        (1000, 1000)
    """

    tp: int
    fn: int
    fp: int
    tn: int

    def __post_init__(self) -> None:
        for name in ("tp", "fn", "fp", "tn"):
            check_count(name, getattr(self, name), least=0)
        if self.members == 0 or self.nonmembers == 0:
            raise InputError(f"counts need at least one member and one non-member, got {self}")

    @property
    def members(self) -> int:
        """Number of members, TP + FN."""
        return self.tp + self.fn

    @property
    def nonmembers(self) -> int:
        """Number of non-members, FP + TN."""
        return self.fp + self.tn

    def plug_in(self, delta: float) -> float:
        """Return the ε of the observed rates, ignoring sampling error."""
        return float(epsilon_from_rates(self.tp / self.members, self.fp / self.nonmembers, delta))


def rate_bounds(
    successes: ArrayLike, trials: ArrayLike, significance: float, interval: Interval = "clopper-pearson"
) -> tuple[Floats, Floats]:
    """Compute one-sided confidence bounds on a binomial rate.

    Clopper–Pearson bounds are exact: for every rate, each fails with probability at most ``significance``. Jeffreys
    bounds fail with about that probability on average over rates, and slightly more often for some.

    Args:
        successes: Number of successes, any shape.
        trials: Number of trials, broadcastable to ``successes``.
        significance: Probability with which each of the two bounds may fail.
        interval: ``"clopper-pearson"`` or ``"jeffreys"``.

    Returns:
        Lower and upper bounds, elementwise. Together they are an interval of confidence ``1 - 2 * significance``.

    Raises:
        InputError: If ``interval`` is neither of the two.

    Example:
        >>> lower, upper = rate_bounds(3, 10, significance=0.05)
        >>> f"{lower:.3f} {upper:.3f}"
        '0.087 0.607'
    """
    k, n = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    shift = {"clopper-pearson": 0.0, "jeffreys": 0.5}.get(interval)
    if shift is None:
        raise InputError(f"interval must be clopper-pearson or jeffreys for a single rate, got {interval!r}")
    # Clopper–Pearson: Beta(k, n−k+1) below and Beta(k+1, n−k) above; Jeffreys: Beta(k+½, n−k+½) for both. The
    # maximum only keeps the parameters positive in entries that np.where then replaces.
    hits, misses = np.maximum(k, 0.5), np.maximum(n - k, 0.5)
    lower = np.where(k > 0, special.betaincinv(hits + shift, n - k + 1 - shift, significance), 0.0)
    upper = np.where(k < n, special.betainccinv(k + 1 - shift, misses + shift, significance), 1.0)
    return lower, upper


def epsilon_from_counts(
    counts: Counts,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    interval: Interval = "clopper-pearson",
    threshold: float | None = None,
) -> Estimate:
    """Compute an interval for ε from the counts at one threshold.

    Assumes independent scores, and a threshold that was fixed before the scores were seen. Only ``clopper-pearson``
    is then a lower bound; the other intervals are approximations or Bayesian:

    * ``clopper-pearson``: exact bounds on both error rates, each at half the significance (Jagielski et al., 2020).
    * ``jeffreys``: the same with Jeffreys bounds (Zanella-Béguelin et al., 2022).
    * ``katz-log``: normal approximation of the log ratio of rates (Katz et al., 1978; Lu et al., 2022).
    * ``joint-beta``: posterior probability of the (ε, δ) region under Jeffreys priors on both rates
      (Zanella-Béguelin et al., 2022).

    Args:
        counts: Confusion matrix at the threshold.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of ``lower`` alone and of ``upper`` alone, in [0.5, 1). Ask for 0.975 to get a two-sided
            interval of 95%.
        interval: One of the four intervals above.
        threshold: The threshold, recorded in the result.

    Returns:
        The interval. Its ``epsilon`` is the lower bound if that is valid, otherwise the ε of the observed rates.

    Raises:
        InputError: If ``interval`` is unknown, or ``delta`` or ``confidence`` is out of range.

    Example:
        >>> bound = epsilon_from_counts(Counts(tp=300, fn=700, fp=50, tn=950), delta=1e-5)
        >>> bound.valid, round(bound.lower, 3)
        (True, 1.424)
    """
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    if interval not in _BOUNDS:
        raise InputError(f"interval must be one of {', '.join(_BOUNDS)}, got {interval!r}")
    lower, upper = _BOUNDS[interval](counts, delta, alpha)
    valid = interval == "clopper-pearson"
    return Estimate(
        method=interval,
        epsilon=lower if valid else counts.plug_in(delta),
        lower=lower,
        upper=upper,
        confidence=confidence,
        delta=delta,
        valid=valid,
        threshold=threshold,
        assumes=f"{INDEPENDENT}; the threshold was fixed before they were seen",
    )


def plug_in(counts: Counts, *, delta: float = 0.0, threshold: float | None = None) -> Estimate:
    """Compute the ε of the observed rates, ignoring sampling error.

    An estimate without error bars: it exceeds 0 by chance alone, and is infinite if an error was never observed.

    Args:
        counts: Confusion matrix at one threshold.
        delta: The δ at which ε is stated, in [0, 1).
        threshold: The threshold, recorded in the result.

    Returns:
        The estimate, never valid as a bound.

    Raises:
        InputError: If ``delta`` is out of range.

    Example:
        >>> round(plug_in(Counts(tp=300, fn=700, fp=50, tn=950)).epsilon, 3)  # ln 6
        1.792
    """
    return Estimate("plug-in", counts.plug_in(delta), delta=delta, threshold=threshold, assumes=INDEPENDENT)


def _separate(interval: Interval) -> Callable[[Counts, float, float], tuple[float, float]]:
    """Return a function that bounds both rates, each at half the significance, and converts them to ε."""

    def bounds(counts: Counts, delta: float, alpha: float) -> tuple[float, float]:
        tpr_low, tpr_high = rate_bounds(counts.tp, counts.members, alpha / 2, interval)
        fpr_low, fpr_high = rate_bounds(counts.fp, counts.nonmembers, alpha / 2, interval)
        return (
            float(epsilon_from_rates(tpr_low, fpr_high, delta)),
            float(epsilon_from_rates(tpr_high, fpr_low, delta)),
        )

    return bounds


def _katz_log(counts: Counts, delta: float, alpha: float) -> tuple[float, float]:
    """Return the larger of the Katz intervals for ln((TPR − δ)/FPR) and ln((TNR − δ)/FNR)."""
    z = -float(special.ndtri(alpha))
    ends = []
    for right, wrong, rights, wrongs in (
        (counts.tp, counts.fp, counts.members, counts.nonmembers),
        (counts.tn, counts.fn, counts.nonmembers, counts.members),
    ):
        rate = right / rights
        if rate <= delta:
            ends.append((0.0, 0.0))
        elif wrong == 0:
            ends.append((0.0, math.inf))
        else:
            # The variance of ln(rate − δ) by the delta method; δ = 0 gives Katz's formula.
            variance = rate * (1 - rate) / (rights * (rate - delta) ** 2) + 1 / wrong - 1 / wrongs
            center = math.log(rate - delta) - math.log(wrong / wrongs)
            ends.append((center - z * math.sqrt(variance), center + z * math.sqrt(variance)))
    return max(0.0, *(low for low, _ in ends)), max(0.0, *(high for _, high in ends))


def _joint_beta(counts: Counts, delta: float, alpha: float) -> tuple[float, float]:
    """Return the ε whose (ε, δ) region has posterior probability α, and the one with 1 − α."""
    cells = (counts.tp, counts.fn, counts.fp, counts.tn)
    rates = BetaPair(*(np.array([cell + 0.5]) for cell in cells))

    def posterior(epsilon: float) -> float:
        return float(rates.probability_below(ApproximateDP(epsilon, delta))[0])

    return (
        largest(lambda epsilon: posterior(epsilon) <= alpha),
        largest(lambda epsilon: posterior(epsilon) <= 1 - alpha),
    )


_BOUNDS: dict[Interval, Callable[[Counts, float, float], tuple[float, float]]] = {
    "clopper-pearson": _separate("clopper-pearson"),
    "jeffreys": _separate("jeffreys"),
    "katz-log": _katz_log,
    "joint-beta": _joint_beta,
}
