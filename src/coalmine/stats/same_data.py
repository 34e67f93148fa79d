"""Estimators that pick the best threshold on the very scores they evaluate it on, as papers often do.

Picking the best of many thresholds makes the result too large, and its interval too narrow. Both estimators are here
for comparison with published figures and are never valid bounds; `coalmine.stats.simultaneous` is.
"""

from __future__ import annotations

import numpy as np

from coalmine.arrays import Floats, Ints
from coalmine.errors import check_confidence, check_delta
from coalmine.stats.epsilon import Estimate
from coalmine.stats.rates import (
    epsilon_from_counts,
    epsilon_from_log_rates,
    rate_bounds,
)
from coalmine.stats.scores import Scores

_SAME_DATA = "the threshold had been fixed in advance, which it was not"


_PART = 1 << 18  # thresholds whose ε is computed at once: ten million together would take a gigabyte


def epsilon_by_threshold(scores: Scores, *, delta: float) -> tuple[Floats, Floats]:
    """Return every distinct threshold from the highest down, and the ε of the rates observed there.

    A ratio whose denominator was counted as 0 carries no information and is skipped; ε is infinite only at a threshold
    that makes no error at all.
    """
    check_delta(delta)
    thresholds, tp, fp = scores.all_counts
    parts = [_observed_epsilon(scores, tp[i : i + _PART], fp[i : i + _PART], delta) for i in range(0, tp.size, _PART)]
    return thresholds, np.concatenate(parts)


def _observed_epsilon(scores: Scores, tp: Ints, fp: Ints, delta: float) -> Floats:
    """Return the ε of the rates with these numbers of true and false positives."""
    fn = scores.members.size - tp
    with np.errstate(divide="ignore"):
        log_tpr, log_fnr = np.log(tp / scores.members.size), np.log(fn / scores.members.size)
        log_fpr = np.log(fp / scores.observed.size)
        log_tnr = np.log1p(-fp / scores.observed.size)
    # A numerator of −∞ disables a ratio.
    perfect = (fp == 0) & (fn == 0)
    return epsilon_from_log_rates(
        np.where((fp > 0) | perfect, log_tpr, -np.inf),
        log_fnr,
        log_fpr,
        np.where((fn > 0) | perfect, log_tnr, -np.inf),
        delta,
    )


def best_threshold(scores: Scores, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Compute the largest plug-in ε over all thresholds, as CANIFE does (Maddock et al., 2023, Algorithm 2).

    An estimate, biased upward, because the threshold is chosen on the scores that it is evaluated on. For the same
    reason its Clopper–Pearson interval is too narrow: it would be right only for a threshold fixed in advance.

    Args:
        scores: Scores of members and of observed non-members.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Nominal confidence of the two-sided interval, in [0.5, 1).

    Returns:
        The estimate with its threshold; infinite only if that threshold makes no error at all.

    Raises:
        InputError: If ``delta`` or ``confidence`` is out of range, or the scores have a known null.

    Example:
        >>> estimate = best_threshold(Scores([0.5, 3.0, 4.0], [0.0, 1.0, 2.0]), delta=0.0)
        >>> round(estimate.epsilon, 3), estimate.threshold, estimate.valid  # ln(TNR / FNR) = ln 3
        (1.099, 3.0, False)
    """
    check_confidence(confidence)
    thresholds, epsilon = epsilon_by_threshold(scores, delta=delta)
    threshold = float(thresholds[int(np.argmax(epsilon))])
    interval = epsilon_from_counts(scores.counts(threshold), delta=delta, confidence=(1 + confidence) / 2)
    return Estimate(
        method="best-threshold",
        epsilon=float(np.max(epsilon)),
        lower=interval.lower,
        upper=interval.upper,
        confidence=confidence,
        delta=delta,
        threshold=threshold,
        assumes=_SAME_DATA,
        few_scores=scores.few,
    )


def published_lower_bound(scores: Scores, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Compute the one-shot paper's ε_lo: Jeffreys bounds at the best threshold (Andrew et al., 2023, Section 5).

    Despite its name it is not a valid bound, since the threshold is chosen on the same scores: at a nominal confidence
    of 95% it exceeds the true ε in about a fifth of audits. Use `simultaneous` for a valid bound.

    Args:
        scores: Scores of members and of non-members, or with a known null; then the false positive rate is exact.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Nominal confidence, in [0.5, 1).

    Returns:
        The estimate with its threshold.

    Raises:
        InputError: If ``delta`` or ``confidence`` is out of range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(rng.normal(1, 1, 500), rng.normal(0, 1, 500))
        >>> published_lower_bound(scores, delta=1e-5).valid
        False
    """
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    if scores.null is not None:
        thresholds = np.unique(scores.members)
        tp = scores.members.size - np.searchsorted(scores.members, thresholds, side="left")
        log_fpr, log_tnr = scores.null.log_sf(thresholds), scores.null.log_cdf(thresholds)
    else:
        # The best rates are at corners of the ROC curve's hull, so no other threshold needs to be tried. As in the
        # paper, each of the two error rates gets the full significance.
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
