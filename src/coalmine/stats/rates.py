"""From error rates and counts to ε, at one threshold chosen in advance."""

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
    """The smallest ε ≥ 0 for which (ε, δ)-DP allows these rates, both ways round (Kairouz et al. 2015).

    max(ln((TPR − δ)/FPR), ln((1 − FPR − δ)/(1 − TPR))), elementwise. Infinite only where no finite ε allows it.
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
    """As `epsilon_from_rates`, from the logarithms of all four rates: right also where a rate underflows."""
    check_delta(delta)
    return np.maximum(_one_way(log_tpr, log_fpr, delta), _one_way(log_tnr, log_fnr, delta))


def _one_way(log_right: ArrayLike, log_wrong: ArrayLike, delta: float) -> Floats:
    """max(0, ln((right − δ)/wrong))."""
    log_right, log_wrong = np.asarray(log_right, dtype=float), np.asarray(log_wrong, dtype=float)
    log_delta = math.log(delta) if delta > 0 else -math.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = log_right + np.log1p(-np.exp(np.minimum(log_delta - log_right, 0)))
        # A rate that exceeds δ by rounding alone does not exceed it.
        value = np.where(log_right > log_delta + 1e-13, excess - log_wrong, 0.0)
    return np.asarray(np.fmax(value, 0.0))


def binomial_cdf(successes: ArrayLike, trials: float, rate: float) -> Floats:
    """P(Binomial(trials, rate) ≤ successes), elementwise; 0 for negative successes."""
    k = np.asarray(successes, dtype=float)
    inside = special.betaincc(np.maximum(k, 0) + 1, np.maximum(trials - k, 0.5), rate)
    return np.where(k < 0, 0.0, np.where(k >= trials, 1.0, inside))


@dataclass(frozen=True)
class Counts:
    """What an attack got right and wrong at one threshold: TP + FN members, FP + TN non-members."""

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
        """TP + FN."""
        return self.tp + self.fn

    @property
    def nonmembers(self) -> int:
        """FP + TN."""
        return self.fp + self.tn

    def plug_in(self, delta: float) -> float:
        """ε of the observed rates themselves: no error bar."""
        return float(epsilon_from_rates(self.tp / self.members, self.fp / self.nonmembers, delta))


def rate_bounds(
    successes: ArrayLike, trials: ArrayLike, significance: float, interval: Interval = "clopper-pearson"
) -> tuple[Floats, Floats]:
    """One-sided lower and upper bound on a rate, each failing with probability ``significance``.

    Clopper–Pearson is exact (it never fails more often); Jeffreys is centered, and fails slightly more often for some
    rates.
    """
    k, n = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    shift = {"clopper-pearson": 0.0, "jeffreys": 0.5}.get(interval)
    if shift is None:
        raise InputError(f"a single rate has the intervals clopper-pearson and jeffreys, got {interval}")
    # Clopper–Pearson: Beta(k, n−k+1) below and Beta(k+1, n−k) above; Jeffreys: Beta(k+½, n−k+½) for both.
    some, rest = np.maximum(k, 0.5), np.maximum(n - k, 0.5)
    lower = np.where(k > 0, special.betaincinv(some + shift, n - k + 1 - shift, significance), 0.0)
    upper = np.where(k < n, special.betainccinv(k + 1 - shift, rest + shift, significance), 1.0)
    return lower, upper


def epsilon_from_counts(
    counts: Counts,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    interval: Interval = "clopper-pearson",
    threshold: float | None = None,
) -> Estimate:
    """ε from the counts at one threshold that was fixed before the scores were seen.

    ``lower`` holds with probability ``confidence`` on its own, and so does ``upper``; for a two-sided interval of 95%
    ask for 97.5%. Only Clopper–Pearson is guaranteed: Jeffreys and Katz-log are approximations, the joint estimate is
    Bayesian.

    * ``clopper-pearson``: exact bounds on both error rates, each at half the significance (Jagielski et al. 2020);
    * ``jeffreys``: the same with Jeffreys bounds (Zanella-Béguelin et al. 2022);
    * ``katz-log``: normal approximation of the log ratio of rates (Lu et al. 2022), Katz et al. 1978;
    * ``joint-beta``: posterior probability of the (ε, δ) region under Jeffreys priors on both rates
      (Zanella-Béguelin et al. 2022), by one-dimensional quadrature.

    ``epsilon`` is the bound where it is valid, and that of the observed rates (`plug_in`) otherwise.
    """
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    try:
        bounds = _BOUNDS[interval]
    except KeyError:
        raise InputError(f"interval must be one of {', '.join(_BOUNDS)}, got {interval}") from None
    lower, upper = bounds(counts, delta, alpha)
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
    """ε of the observed rates themselves: an estimate, above 0 by chance alone."""
    return Estimate("plug-in", counts.plug_in(delta), delta=delta, threshold=threshold, assumes=INDEPENDENT)


def _separate(interval: Interval) -> Callable[[Counts, float, float], tuple[float, float]]:
    def bounds(counts: Counts, delta: float, alpha: float) -> tuple[float, float]:
        tpr_low, tpr_high = rate_bounds(counts.tp, counts.members, alpha / 2, interval)
        fpr_low, fpr_high = rate_bounds(counts.fp, counts.nonmembers, alpha / 2, interval)
        return (
            float(epsilon_from_rates(tpr_low, fpr_high, delta)),
            float(epsilon_from_rates(tpr_high, fpr_low, delta)),
        )

    return bounds


def _katz_log(counts: Counts, delta: float, alpha: float) -> tuple[float, float]:
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
