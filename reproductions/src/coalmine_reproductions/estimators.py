"""Estimators that papers print but that are never the ones to quote: none of them is a valid lower bound.

They are here to recompute published figures. `coalmine.stats.simultaneous` and `coalmine.stats.epsilon_from_counts` are
valid.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import integrate, special

from coalmine.errors import check_confidence, check_delta
from coalmine.stats import Counts, Estimate, Scores
from coalmine.stats.scores import epsilon_from_log_rates, epsilon_from_rates, largest


def published_lower_bound(scores: Scores, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Compute the one-shot paper's ε_lo: Jeffreys bounds at the best threshold (Andrew et al., 2023, Section 5).

    Despite its name it is not a valid bound, since the threshold is chosen on the same scores: at a nominal confidence
    of 95% it exceeds the true ε in about a fifth of audits.

    Args:
        scores: Scores of members and of non-members, or with a known null; then the false positive rate is exact.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Nominal confidence, in [0.5, 1). As in the paper, each of the two rates gets all of it.

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
    members = np.sort(scores.members)
    if scores.null is not None:
        thresholds = np.unique(members)
        log_fpr, log_tnr = scores.null.log_sf(thresholds), scores.null.log_cdf(thresholds)
    else:
        observed = np.sort(scores.observed)
        thresholds = np.unique(np.concatenate([members, observed]))
        false_positives = observed.size - np.searchsorted(observed, thresholds, side="left")
        _, fpr = _jeffreys_rate(false_positives, observed.size, alpha)
        with np.errstate(divide="ignore"):
            log_fpr, log_tnr = np.log(fpr), np.log1p(-fpr)
    true_positives = members.size - np.searchsorted(members, thresholds, side="left")
    tpr, _ = _jeffreys_rate(true_positives, members.size, alpha)
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
        assumes="the threshold had been fixed in advance, which it was not",
    )


def jeffreys(counts: Counts, *, delta: float = 0.0, confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval for ε from Jeffreys bounds on both rates (Zanella-Béguelin et al., 2022).

    Each rate gets half the significance. Slightly too narrow for some rates.

    Example:
        >>> lower, upper = jeffreys(Counts(tp=300, fn=700, fp=50, tn=950))
        >>> round(lower, 4)
        1.4348
    """
    alpha = 1 - check_confidence(confidence)
    tpr_low, tpr_high = _jeffreys_rate(counts.tp, counts.members, alpha / 2)
    fpr_low, fpr_high = _jeffreys_rate(counts.fp, counts.nonmembers, alpha / 2)
    lower = epsilon_from_rates(tpr_low, fpr_high, check_delta(delta))
    return float(lower), float(epsilon_from_rates(tpr_high, fpr_low, delta))


def katz_log(counts: Counts, *, delta: float = 0.0, confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval for ε from the normal approximation of the log ratio of rates (Katz et al., 1978).

    Lu et al. (2022) audit with it. The larger of the intervals for ln((TPR − δ)/FPR) and ln((TNR − δ)/FNR).

    Example:
        >>> lower, upper = katz_log(Counts(tp=300, fn=700, fp=50, tn=950))
        >>> round(lower, 4)
        1.5515
    """
    check_delta(delta)
    z = float(special.ndtri(check_confidence(confidence)))
    lowest, highest = 0.0, 0.0
    for right, wrong, rights, wrongs in (
        (counts.tp, counts.fp, counts.members, counts.nonmembers),
        (counts.tn, counts.fn, counts.nonmembers, counts.members),
    ):
        rate = right / rights
        if rate <= delta:
            continue  # the ratio shows nothing
        if wrong == 0:
            highest = math.inf
            continue
        # The variance of ln(rate − δ) by the delta method; δ = 0 gives Katz's formula.
        variance = rate * (1 - rate) / (rights * (rate - delta) ** 2) + 1 / wrong - 1 / wrongs
        center = math.log(rate - delta) - math.log(wrong / wrongs)
        lowest = max(lowest, center - z * math.sqrt(variance))
        highest = max(highest, center + z * math.sqrt(variance))
    return lowest, highest


def joint_beta(counts: Counts, *, delta: float = 0.0, confidence: float = 0.95) -> tuple[float, float]:
    """Return the credible interval of Zanella-Béguelin et al. (2022) for ε.

    The ends are the ε whose (ε, δ) region has posterior probability 1 − confidence and confidence, under Jeffreys
    priors on both rates. It depends on its prior.

    Example:
        >>> lower, upper = joint_beta(Counts(tp=300, fn=700, fp=50, tn=950))
        >>> round(lower, 4)
        1.5568
    """
    check_delta(delta)
    tpr_posterior = (counts.tp + 0.5, counts.fn + 0.5)
    fpr_posterior = (counts.fp + 0.5, counts.tn + 0.5)

    def probability(epsilon: float) -> float:
        # P(TPR ≤ the highest that (ε, δ)-DP allows at this FPR), integrated over the quantiles u of the FPR, in which
        # its density is flat. Splitting at the kink of the allowed curve keeps both pieces smooth.
        def below(u: float) -> float:
            fpr = special.betaincinv(*fpr_posterior, u)
            allowed = min(math.exp(epsilon) * fpr + delta, 1 - math.exp(-epsilon) * (1 - fpr - delta), 1.0)
            return float(special.betainc(*tpr_posterior, allowed))

        kink = float(special.betainc(*fpr_posterior, (1 - delta) * special.expit(-epsilon)))
        total = 0.0
        for ends in ((0, kink), (kink, 1)):
            # Without any error the posterior is singular, of which full_output keeps quad from warning: the ε found
            # is still right to six digits.
            total += integrate.quad(below, *ends, epsabs=1e-11, limit=200, full_output=1)[0]
        return total

    level = check_confidence(confidence)
    return largest(lambda e: probability(e) - (1 - level)), largest(lambda e: probability(e) - level)


def _jeffreys_rate(successes: object, trials: int, significance: float) -> tuple[np.ndarray, np.ndarray]:
    """Return Jeffreys bounds on binomial rates: quantiles of Beta(k + ½, n − k + ½), but 0 at k = 0 and 1 at k = n."""
    k = np.asarray(successes, dtype=float)
    lower = np.where(k > 0, special.betaincinv(k + 0.5, trials - k + 0.5, significance), 0.0)
    upper = np.where(k < trials, special.betainccinv(k + 0.5, trials - k + 0.5, significance), 1.0)
    return lower, upper
