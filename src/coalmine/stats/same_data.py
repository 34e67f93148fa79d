"""The threshold that looks best on the very scores it is judged by, as papers publish it. Not valid, and said so."""

from __future__ import annotations

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import check_confidence, check_delta
from coalmine.stats.epsilon import Estimate
from coalmine.stats.rates import (
    epsilon_from_counts,
    epsilon_from_log_rates,
    rate_bounds,
)
from coalmine.stats.scores import Scores

_SAME_DATA = "the threshold had been fixed in advance, which it was not"


def epsilon_by_threshold(scores: Scores, *, delta: float) -> tuple[Floats, Floats]:
    """Every distinct threshold from the highest down, and the ε of the rates counted there: no error bars.

    A ratio whose denominator was counted as 0 says nothing and is passed over; ε is infinite only where a threshold
    makes no error at all.
    """
    check_delta(delta)
    thresholds, tp, fp = scores.all_counts
    fn = scores.members.size - tp
    with np.errstate(divide="ignore"):
        log_tpr, log_fnr = np.log(tp / scores.members.size), np.log(fn / scores.members.size)
        log_fpr = np.log(fp / scores.observed.size)
        log_tnr = np.log1p(-fp / scores.observed.size)
    clean = (fp == 0) & (fn == 0)
    epsilon = epsilon_from_log_rates(
        np.where((fp > 0) | clean, log_tpr, -np.inf),
        log_fnr,
        log_fpr,
        np.where((fn > 0) | clean, log_tnr, -np.inf),
        delta,
    )
    return thresholds, epsilon


def best_threshold(scores: Scores, *, delta: float, confidence: float = 0.95) -> Estimate:
    """The largest plug-in ε over all thresholds, with the Clopper–Pearson interval that it would have on its own.

    As CANIFE does (Maddock et al. 2023, Algorithm 2). The maximum is biased upwards and its interval too narrow: both
    would be right only for a threshold that had been fixed in advance. ``lower`` and ``upper`` together hold
    ``confidence`` of that (two-sided). A ratio whose denominator was counted as 0 says nothing and is passed over; the
    estimate is infinite only where the threshold makes no error at all.
    """
    check_confidence(confidence)
    thresholds, epsilon = epsilon_by_threshold(scores, delta=delta)
    threshold = float(thresholds[int(np.argmax(epsilon))])
    there = epsilon_from_counts(scores.counts(threshold), delta=delta, confidence=(1 + confidence) / 2)
    return Estimate(
        method="best-threshold",
        epsilon=float(np.max(epsilon)),
        lower=there.lower,
        upper=there.upper,
        confidence=confidence,
        delta=delta,
        threshold=threshold,
        assumes=_SAME_DATA,
    )


def published_lower_bound(scores: Scores, *, delta: float, confidence: float = 0.95) -> Estimate:
    """The one-shot paper's ε_lo: Jeffreys bounds at the best threshold of the same data (Andrew et al. 2023, §5).

    With a closed-form null the false positive rate is exact; with observed non-members the whole significance is spent
    on either error rate. Violated in about a fifth of audits at a nominal 5%, so it is no bound; `simultaneous` is.
    """
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    if scores.null is not None:
        thresholds = np.unique(scores.members)
        tp = scores.members.size - np.searchsorted(scores.members, thresholds, side="left")
        log_fpr, log_tnr = scores.null.log_sf(thresholds), scores.null.log_cdf(thresholds)
    else:
        # The best rates are at corners of the ROC hull; all other thresholds need not be tried.
        thresholds, tp, fp = scores.hull_counts
        _, fpr = rate_bounds(fp, scores.observed.size, alpha, "jeffreys")
        with np.errstate(divide="ignore"):
            log_fpr, log_tnr = np.log(fpr), np.log1p(-fpr)
    tpr, _ = rate_bounds(tp, scores.members.size, alpha, "jeffreys")
    with np.errstate(divide="ignore"):
        epsilon = epsilon_from_log_rates(np.log(tpr), np.log1p(-tpr), log_fpr, log_tnr, delta)
    best = int(np.argmax(epsilon))
    return Estimate(
        method="published-lower-bound",
        epsilon=float(epsilon[best]),
        lower=float(epsilon[best]),
        confidence=confidence,
        delta=delta,
        threshold=float(thresholds[best]),
        assumes=_SAME_DATA,
    )
