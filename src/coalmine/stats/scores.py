"""`Scores` go into every estimator and an `Estimate` comes out; in between, what counts and rates show about ε.

(ε, δ)-DP limits the true positive rate of every attack in terms of its false positive rate (Kairouz, Oh & Viswanath,
2015). Turning that around, the rates observed at a threshold give a lower bound on ε once their sampling error is
accounted for, provided that the threshold was fixed before the scores were seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import Floats, Ints, finite_list
from coalmine.errors import InputError, check_confidence, check_count, check_delta
from coalmine.stats.nulls import Null

INDEPENDENT = "the scores are independent of one another and members were picked at random among exchangeable canaries"
COIN_FLIPS = "each canary was inserted by its own fair coin flip"
GAUSSIAN = "the mechanism is Gaussian (its trade-off curve is that of two shifted normal distributions)"

_HALVINGS = 10  # enough to correct for about a thousand bounds that are tested together


@dataclass(frozen=True)
class Estimate:
    """An estimate of ε at δ, or a lower bound on it, with the assumptions it rests on.

    If ``valid`` is True, ``lower`` is a confidence bound for every mechanism: provided that ``assumes`` holds, it
    exceeds the true ε at ``delta`` with probability at most ``1 - confidence``. Its ``epsilon`` is then that bound.
    Every other result is an estimate: informative, but never a bound.

    No field bounds the mechanism's ε from above, and no audit can: a better attack may exist.

    Attributes:
        method: Name of the estimator, one of `coalmine.stats.METHODS` or an estimator of an audit.
        epsilon: The value to report.
        lower: Lower end of the confidence interval.
        upper: Upper end of the interval for what *this attack at this threshold* shows.
        confidence: Confidence level of ``lower`` and ``upper``.
        delta: The δ at which ε is stated.
        valid: Whether ``lower`` is a bound for every mechanism, as described above.
        threshold: The score at or above which canaries are guessed to be members, if the method uses one.
        assumes: What must hold for ``valid``, in words.
        stricter: Pairs (confidence, lower) at higher confidences, for bounds that are tested together.
        doubtful: Whether a check of the assumptions failed, so that the estimate should not be relied on.
        few_scores: Whether it rests on too few scores to stand for a result, or to check its assumptions.

    Raises:
        ValueError: If a number is negative or NaN, or a valid bound has no ``lower`` or another ``epsilon``.

    Example:
        >>> Estimate("simultaneous", 1.2, 1.2, delta=1e-5, confidence=0.95, valid=True, assumes=INDEPENDENT).valid
        True
        >>> Estimate("plug-in", 2.5, delta=1e-5).valid
        False
    """

    method: str
    epsilon: float
    lower: float | None = None
    upper: float | None = None
    confidence: float | None = None
    delta: float = 0.0
    valid: bool = False
    threshold: float | None = None
    assumes: str = ""
    stricter: tuple[tuple[float, float], ...] = ()
    doubtful: bool = False
    few_scores: bool = False

    def __post_init__(self) -> None:
        ends = np.array([self.epsilon, self.lower or 0.0, self.upper or 0.0])
        if not np.all(ends >= 0):
            raise ValueError(f"ε of {self.method} and its ends must be at least 0, got {ends}")
        if self.valid and (self.epsilon != self.lower or self.confidence is None):
            raise ValueError(f"{self.method} is marked as a valid bound without a confidence or a lower end at its ε")

    def with_stricter(self, lower_at: Callable[[float], float | None]) -> Self:
        """Return this bound together with its values at higher confidences, each of which halves the significance.

        Args:
            lower_at: Computes the lower bound at a confidence; None counts as 0.
        """
        assert self.confidence is not None
        levels = [1 - (1 - self.confidence) / 2**halvings for halvings in range(1, _HALVINGS + 1)]
        return replace(self, stricter=tuple((level, lower_at(level) or 0.0) for level in levels))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary, in which an infinite ε is the string ``"inf"``."""
        record = asdict(self)
        # Fields that are seldom set are left out of results in which they are not.
        for name in ("stricter", "doubtful", "few_scores"):
            if not record[name]:
                del record[name]
        if self.stricter:
            record["stricter"] = [[level, "inf" if lower == math.inf else lower] for level, lower in self.stricter]
        return {name: "inf" if value == math.inf else value for name, value in record.items()}


def largest(margin: Callable[[float], float], *, floor: float = 0.0, relative: float = 1e-10) -> float:
    """Return the largest x ≥ ``floor`` with ``margin(x) ≤ 0``, for a margin that grows with x, by bisection.

    ``floor`` if the margin is already positive there, infinity if it is not beyond 10³⁰⁰. Any other result satisfies
    the condition itself: rounding goes down, so that a confidence bound found this way remains one.

    Args:
        margin: What must not be positive. Infinite values, where only the sign is known, are fine.
        floor: Where to start.
        relative: Relative width at which the bisection stops.
    """
    inside, outside = -math.inf, math.inf  # the condition holds up to here, and fails from there on
    margin_inside, margin_outside = -math.inf, math.inf
    streak = 0  # probes in a row at which it held, or failed if negative
    low, high, x = floor, math.inf, floor
    while x <= 1e300:
        # Whether the condition holds at x is known from earlier evaluations, or found by closing in on the root.
        while inside < x < outside:
            probe, gap = x, outside - inside
            # False position takes far fewer evaluations than halving, unless the margin is flat somewhere.
            if abs(streak) < 4 and math.isfinite(margin_outside - margin_inside):
                share = margin_inside / (margin_inside - margin_outside)
                # A step of at least an eighth of the accuracy crosses the root once an end has come that close.
                least = min(0.5, relative * outside / gap / 8)
                aimed = inside + gap * min(1 - least, max(least, share))
                probe = aimed if inside < aimed < outside else x
            value = margin(probe)
            # An end that stays twice in a row counts half (the Illinois rule), or the other would creep up on the root.
            if value <= 0:
                inside, margin_inside, streak = probe, value, max(streak, 0) + 1
                margin_outside /= 2 if streak > 1 else 1
            else:
                outside, margin_outside, streak = probe, value, min(streak, 0) - 1
                margin_inside /= 2 if streak < -1 else 1
        if x <= inside:
            low = x
        else:
            high = x
        if high == math.inf:  # doubling until it fails, then halving
            x = max(1.0, 2 * low)
        elif high - low > relative * max(high, 1e-3):
            x = (low + high) / 2
        else:
            return low
    return math.inf


FEW = 80
"""Fewer scores than this are too few for estimates and for tests of normality.

About 100: fair coins that insert 100 canaries on average insert fewer than 80 in two audits of a thousand.
"""


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
        check_count("the number of members", self.tp + self.fn)
        check_count("the number of non-members", self.fp + self.tn)

    @property
    def members(self) -> int:
        """Number of members, TP + FN."""
        return self.tp + self.fn

    @property
    def nonmembers(self) -> int:
        """Number of non-members, FP + TN."""
        return self.fp + self.tn


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of members and of non-members, or of members and a known null; higher means more likely a member.

    The arrays are copied, sorted in ascending order and read-only.

    Args:
        members: Scores of inserted canaries, shape (m,).
        nonmembers: Scores of held-out canaries, shape (n,). Omit them if ``null`` is given.
        null: Known distribution of a held-out canary's score, instead of ``nonmembers``.

    Attributes:
        few: Whether a side has fewer than `FEW` scores. An estimate from so few stands for nothing: tests of normality
            have little power, and ε is far out in the tail.

    Raises:
        InputError: If a score is not finite, a side is empty, or ``nonmembers`` and ``null`` are both given or both
            missing.

    Example:
        >>> scores = Scores([3.0, 1.0, 2.0], [0.0, 1.5])
        >>> scores.counts(threshold=1.2)
        Counts(tp=2, fn=1, fp=1, tn=1)
        >>> round(scores.auroc, 3)
        0.917
    """

    members: Floats
    nonmembers: Floats | None = None
    null: Null | None = None
    few: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.nonmembers is None) == (self.null is None):
            raise InputError("scores need either non-members or a null distribution, and not both")
        if self.null is not None and not hasattr(self.null, "log_sf"):
            raise InputError(f"null must be a distribution such as CosineNull(1000) or NormalNull(), got {self.null!r}")
        sides = {"members": self.members, "nonmembers": self.nonmembers}
        few = False
        for name, side in sides.items():
            if side is not None:
                ascending = np.sort(finite_list(name, side))
                ascending.flags.writeable = False
                object.__setattr__(self, name, ascending)
                few |= ascending.size < FEW
        object.__setattr__(self, "few", few)

    @property
    def observed(self) -> Floats:
        """Scores of the non-members; raises `InputError` if a known null replaces them."""
        if self.nonmembers is None:
            raise InputError("this needs observed non-members, but the scores have a known null distribution")
        return self.nonmembers

    def counts(self, threshold: float) -> Counts:
        """Return the confusion matrix of guessing "member" for every score ≥ threshold."""
        tp = self.members.size - int(np.searchsorted(self.members, threshold, side="left"))
        fp = self.observed.size - int(np.searchsorted(self.observed, threshold, side="left"))
        return Counts(tp=tp, fn=self.members.size - tp, fp=fp, tn=self.observed.size - fp)

    @cached_property
    def all_counts(self) -> tuple[Floats, Ints, Ints]:
        """Every distinct threshold from the highest down, with TP and FP of "score ≥ threshold".

        Equal scores share a threshold, so no count splits a tie.
        """
        pooled = np.concatenate([self.members, self.observed])
        # Two sorted runs: a stable sort merges them in linear time.
        order = np.argsort(pooled, kind="stable")[::-1]
        pooled, is_member = pooled[order], order < self.members.size
        last_of_tie = np.flatnonzero(np.append(pooled[1:] != pooled[:-1], True))
        tp = np.cumsum(is_member, dtype=np.int64)[last_of_tie]
        return pooled[last_of_tie], tp, last_of_tie + 1 - tp

    @cached_property
    def roc(self) -> tuple[Floats, Floats]:
        """(FPR, TPR) at the corners of the ROC curve's convex hull, from (0, 0) to (1, 1).

        The hull is what an attacker reaches by randomizing between two thresholds.
        """
        _, tp, fp = self.all_counts
        tp, fp = np.append(0, tp), np.append(0, fp)
        corners = np.arange(tp.size)
        # Drop every point at which the curve does not turn right, for all of them at once, until none is left.
        while True:
            dx, dy = np.diff(fp[corners]), np.diff(tp[corners])
            turns = dy[:-1] * dx[1:] > dy[1:] * dx[:-1]
            if turns.all():
                return fp[corners] / self.observed.size, tp[corners] / self.members.size
            corners = corners[np.concatenate([[True], turns, [True]])]

    @property
    def auroc(self) -> float:
        """Area under the convex hull of the ROC curve."""
        fpr, tpr = self.roc
        return float(np.trapezoid(tpr, fpr))

    @property
    def max_accuracy(self) -> float:
        """Highest share of right guesses over all thresholds, among members and non-members together."""
        _, tp, fp = self.all_counts
        right = np.append(0, tp - fp).max() + self.observed.size
        return float(right / (self.members.size + self.observed.size))


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
    if not np.all((tpr >= 0) & (tpr <= 1) & (fpr >= 0) & (fpr <= 1)):
        raise InputError(f"TPR and FPR must be in [0, 1], got {tpr} and {fpr}")
    with np.errstate(divide="ignore"):
        return epsilon_from_log_rates(np.log(tpr), np.log1p(-tpr), np.log(fpr), np.log1p(-fpr), delta)


def epsilon_from_log_rates(
    log_tpr: ArrayLike, log_fnr: ArrayLike, log_fpr: ArrayLike, log_tnr: ArrayLike, delta: float = 0.0
) -> Floats:
    """Compute `epsilon_from_rates` from ln TPR, ln(1 − TPR), ln FPR and ln(1 − FPR), which cannot underflow.

    Example:
        >>> round(float(epsilon_from_log_rates(np.log(0.5), np.log(0.5), -2000.0, 0.0)), 2)
        1999.31
    """
    log_delta = math.log(delta) if check_delta(delta) > 0 else -math.inf
    largest = np.asarray(0.0)
    for right, wrong in ((log_tpr, log_fpr), (log_tnr, log_fnr)):
        log_right, log_wrong = np.asarray(right, dtype=float), np.asarray(wrong, dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            # ln((right − δ)/wrong); a rate that exceeds δ only by rounding error does not exceed it.
            excess = log_right + np.log1p(-np.exp(np.minimum(log_delta - log_right, 0)))
            value = np.where(log_right > log_delta + 1e-13, excess - log_wrong, 0.0)
        largest = np.fmax(largest, value)
    return np.asarray(largest)


def binomial_cdf(successes: ArrayLike, trials: float, rate: float) -> Floats:
    """Return P(Binomial(trials, rate) ≤ successes), elementwise; 0 for negative successes."""
    k = np.asarray(successes, dtype=float)
    inside = special.betaincc(np.maximum(k, 0) + 1, np.maximum(trials - k, 0.5), rate)
    return np.where(k < 0, 0.0, np.where(k >= trials, 1.0, inside))


def rate_bounds(successes: ArrayLike, trials: ArrayLike, significance: float) -> tuple[Floats, Floats]:
    """Compute one-sided Clopper–Pearson bounds on a binomial rate.

    They are exact: for every rate, each of them fails with probability at most ``significance``.

    Args:
        successes: Number of successes, any shape.
        trials: Number of trials, broadcastable to ``successes``.
        significance: Probability with which each of the two bounds may fail.

    Returns:
        Lower and upper bounds, elementwise. Together they are an interval of confidence ``1 - 2 * significance``.

    Example:
        >>> lower, upper = rate_bounds(3, 10, significance=0.05)
        >>> f"{lower:.3f} {upper:.3f}"
        '0.087 0.607'
    """
    k, n = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    # Quantiles of Beta(k, n−k+1) below and Beta(k+1, n−k) above. The maximum only keeps the parameters positive in
    # entries that np.where then replaces.
    lower = np.where(k > 0, special.betaincinv(np.maximum(k, 0.5), n - k + 1, significance), 0.0)
    upper = np.where(k < n, special.betainccinv(k + 1, np.maximum(n - k, 0.5), significance), 1.0)
    return lower, upper


def epsilon_from_counts(
    counts: Counts, *, delta: float = 0.0, confidence: float = 0.95, threshold: float | None = None
) -> Estimate:
    """Compute a lower bound on ε from the counts at one threshold (Jagielski et al., 2020).

    Exact bounds on both error rates, each at half the significance. Valid for every mechanism if the scores are
    independent and the threshold was fixed before they were seen.

    Args:
        counts: Confusion matrix at the threshold.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of ``lower`` alone and of ``upper`` alone, in [0.5, 1). Ask for 0.975 to get a two-sided
            interval of 95%.
        threshold: The threshold, recorded in the result.

    Returns:
        The bound, with the upper end of the interval for what this attack shows.

    Raises:
        InputError: If ``delta`` or ``confidence`` is out of range.

    Example:
        >>> bound = epsilon_from_counts(Counts(tp=300, fn=700, fp=50, tn=950), delta=1e-5)
        >>> bound.valid, round(bound.lower, 3)
        (True, 1.424)
    """
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    tpr_low, tpr_high = rate_bounds(counts.tp, counts.tp + counts.fn, alpha / 2)
    fpr_low, fpr_high = rate_bounds(counts.fp, counts.fp + counts.tn, alpha / 2)
    lower = float(epsilon_from_rates(tpr_low, fpr_high, delta))
    upper = float(epsilon_from_rates(tpr_high, fpr_low, delta))
    assumes = f"{INDEPENDENT}; the threshold was fixed before they were seen"
    return Estimate("clopper-pearson", lower, lower, upper, confidence, delta, True, threshold, assumes)


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
    epsilon = float(epsilon_from_rates(counts.tp / counts.members, counts.fp / counts.nonmembers, delta))
    return Estimate("plug-in", epsilon, delta=delta, threshold=threshold, assumes=INDEPENDENT)


def epsilon_by_threshold(scores: Scores, *, delta: float) -> tuple[Floats, Floats]:
    """Return every distinct threshold from the highest down, and the ε of the rates observed there.

    A ratio whose denominator was counted as 0 carries no information and is skipped; ε is infinite only at a threshold
    that makes no error at all.
    """
    thresholds, tp, fp = scores.all_counts
    fn = scores.members.size - tp
    perfect = (fp == 0) & (fn == 0)
    with np.errstate(divide="ignore"):
        log_tpr, log_fnr = np.log(tp / scores.members.size), np.log(fn / scores.members.size)
        log_fpr, log_tnr = np.log(fp / scores.observed.size), np.log1p(-fp / scores.observed.size)
    # A numerator of −∞ disables a ratio.
    log_tpr = np.where((fp > 0) | perfect, log_tpr, -np.inf)
    log_tnr = np.where((fn > 0) | perfect, log_tnr, -np.inf)
    return thresholds, epsilon_from_log_rates(log_tpr, log_fnr, log_fpr, log_tnr, delta)


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
    return replace(
        interval,
        method="best-threshold",
        epsilon=float(np.max(epsilon)),
        confidence=confidence,
        valid=False,
        threshold=threshold,
        assumes="the threshold had been fixed in advance, which it was not",
        few_scores=scores.few,
    )
