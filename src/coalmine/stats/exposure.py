"""Exposure of canaries, the ε that it suggests, and conversions between losses, ranks and scores.

The exposure of a canary is log2(n) − log2(rank) of its loss among n references from the same distribution that were
held out of training; the lower the loss, the more exposed the canary (Carlini et al., 2019; Jagielski, 2023). Nothing
in this module is a confidence bound on ε: for one, pass the losses, or the scores of `scores_from_ranks`, to
`coalmine.stats.simultaneous`. Baselines for canaries that were not memorized are in `coalmine.stats.random_guessing`.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from coalmine.arrays import Floats, finite_array, finite_list
from coalmine.errors import InputError, check_count, check_probability
from coalmine.stats.epsilon import Estimate
from coalmine.stats.skew_normal import SkewNormal

LN2 = math.log(2)


def ranks(canaries: ArrayLike, references: ArrayLike, *, ties: Literal["middle", "worst", "best"] = "middle") -> Floats:
    """Rank each canary's loss among the losses of the references: 1 + the number of references below it.

    Args:
        canaries: Losses of inserted canaries, shape (m,).
        references: Losses of held-out references, shape (n,).
        ties: How to count references with the same loss: as one half (``"middle"``, so that a constant loss gets the
            median of random guessing), as below (``"worst"``, which valid bounds need), or not at all (``"best"``).

    Returns:
        Ranks from 1 to n + 1, shape (m,).

    Raises:
        InputError: If a loss is not finite, a side is empty, or ``ties`` is unknown.

    Example:
        >>> ranks([0.5, 2.5], [3.0, 1.0, 2.0])
        array([1., 3.])
    """
    losses = finite_list("canaries", canaries)
    ordered = np.sort(finite_list("references", references))
    below = np.searchsorted(ordered, losses, side="left").astype(np.float64)
    not_above = np.searchsorted(ordered, losses, side="right").astype(np.float64)
    match ties:
        case "middle":
            return 1 + (below + not_above) / 2
        case "worst":
            return 1 + not_above
        case "best":
            return 1 + below
    raise InputError(f'ties must be "middle", "worst" or "best", got {ties!r}')


def exposure(ranks: ArrayLike, references: int) -> Floats:
    """Compute the exposure of ranks among n references, log2(n) − log2(rank).

    Args:
        ranks: Ranks from 1 to n + 1, any shape.
        references: Number n of references.

    Returns:
        Exposures in bits, from log2(n/(n+1)) to log2(n), in the shape of ``ranks``.

    Raises:
        InputError: If a rank is out of range, or ``references`` is not a whole number of at least 1.

    Example:
        >>> exposure([1, 2, 512], references=1024)
        array([10.,  9.,  1.])
    """
    n = check_count("references", references)
    return np.asarray(math.log2(n) - np.log2(_ranks(ranks, n)))


def extrapolated_exposure(canaries: ArrayLike, references: ArrayLike) -> Floats:
    """Extrapolate exposure beyond log2(n) with a skew-normal distribution fitted to the references.

    −log2 of the probability that a new reference has at most the canary's loss (Carlini et al., 2019, Section 4.3). It
    is only as good as the fit, which no reference confirms that far out. ``RandomGuessing(math.inf, m)`` is its
    baseline.

    Args:
        canaries: Losses of inserted canaries, shape (m,).
        references: Losses of at least 10 held-out references that are not all equal, shape (n,).

    Returns:
        Exposures in bits, shape (m,).

    Raises:
        InputError: If a loss is not finite, or the references are too few or all equal.
    """
    losses = finite_list("canaries", canaries)
    return -SkewNormal.fit(references).logcdf(losses) / LN2


def epsilon_from_exposure(exposure: float, quantile: float = 0.5) -> float:
    """Estimate ε at δ = 0 from the exposure at a quantile of the canaries (Jagielski, 2023, Section 2.2).

    The attack that flags everything at least as exposed has TPR 1 − quantile and FPR 2^−exposure, so ε is
    ln 2 · exposure + ln(1 − quantile), or 0 if that is negative. A point estimate, not a bound.

    Args:
        exposure: Exposure in bits, at that quantile.
        quantile: Quantile of the canaries in (0, 1); 0.5 for the median exposure.

    Returns:
        The ε of that attack.

    Raises:
        InputError: If the exposure is not finite or the quantile is out of range.

    Example:
        >>> round(epsilon_from_exposure(5.0), 3)  # 4 ln 2
        2.773
    """
    if not math.isfinite(exposure):
        raise InputError(f"exposure must be a finite number, got {exposure}")
    return max(0.0, LN2 * exposure + math.log1p(-check_probability("quantile", quantile)))


def low_fpr_epsilon(ranks: ArrayLike, references: int, fpr: float) -> Estimate:
    """Estimate ε at δ = 0 as ln(TPR/FPR) of the attack that flags k = floor(fpr · n) references.

    TPR is the share of canaries with rank at most 1 + k, and FPR is k/n. A point estimate, not a bound.

    Args:
        ranks: Ranks of canaries from 1 to n + 1.
        references: Number n of references.
        fpr: Highest false positive rate, in (0, 1] and at least 1/n: with k = 0, ε would be infinite for any canaries.

    Returns:
        The estimate ``"low-fpr"``, with the highest flagged rank as its threshold; 0 if no canary is flagged.

    Raises:
        InputError: If a rank or ``fpr`` is out of range.

    Example:
        >>> round(low_fpr_epsilon([1, 11, 12, 900], references=1000, fpr=0.01).epsilon, 3)  # ln(0.5/0.01)
        3.912
    """
    n = check_count("references", references)
    if not 0 < fpr <= 1:
        raise InputError(f"fpr must be in (0, 1], got {fpr}")
    # Rounding must not lose a reference: 0.29 * 100 < 29.
    flagged = math.floor(fpr * n * (1 + 1e-12))
    if flagged < 1:
        raise InputError(f"fpr * references must be at least 1, got {fpr} * {n}")
    tpr = float(np.mean(_ranks(ranks, n) <= 1 + flagged))
    epsilon = max(0.0, math.log(tpr * n / flagged)) if tpr > 0 else 0.0
    return Estimate(method="low-fpr", epsilon=epsilon, valid=False, threshold=1.0 + flagged)


def per_copy_epsilon(epsilon: float, copies: int) -> float:
    """Return the ε of one copy of a canary that was inserted ``copies`` times: ε/copies, by group privacy at δ = 0."""
    return _epsilon(epsilon) / check_count("copies", copies)


def calibrate(losses: ArrayLike, reference_model_losses: ArrayLike) -> Floats:
    """Subtract from each loss the example's mean loss under models that never saw it (Watson et al., 2021).

    Canaries and references must both be calibrated, with the same models.

    Args:
        losses: Losses under the audited model, shape (n,).
        reference_model_losses: Losses of the same examples under reference models, shape (n,) or (models, n).

    Returns:
        Calibrated losses, shape (n,).

    Raises:
        InputError: If a loss is not finite or the shapes do not match.

    Example:
        >>> calibrate([5.0, 1.0], [[4.0, 1.0], [2.0, 3.0]])
        array([ 2., -1.])
    """
    raw = finite_list("losses", losses)
    difficulty = finite_array("reference_model_losses", reference_model_losses)
    if difficulty.ndim not in (1, 2) or difficulty.shape[-1] != raw.size or difficulty.size == 0:
        raise InputError(
            f"reference_model_losses must have the shape ({raw.size},) or (models, {raw.size}), got {difficulty.shape}"
        )
    return np.asarray(raw - np.atleast_2d(difficulty).mean(axis=0), dtype=np.float64)


def scores_from_ranks(ranks: ArrayLike, references: int) -> tuple[Floats, Floats]:
    """Convert ranks into scores of canaries and references in the same order, higher for members.

    This makes every bound on scores available for ranks, provided that they were computed with ``ties="worst"``. A
    half-integer rank counts as a tie with one reference. Bounds on middle ranks are not valid, because middle ranks
    forget how many references tied: a constant loss would put every canary ahead of half of the references.

    Args:
        ranks: Ranks of canaries from 1 to n + 1, whole or half numbers, shape (m,).
        references: Number n of references.

    Returns:
        Scores of the canaries, shape (m,), and of the references, shape (n,).

    Raises:
        InputError: If a rank is out of range or not a multiple of one half.

    Example:
        >>> scores_from_ranks([1, 3], references=2)
        (array([-0.5, -2.5]), array([-1., -2.]))
    """
    n = check_count("references", references)
    checked = _ranks(ranks, n)
    if np.any(2 * checked % 1):
        raise InputError(f"ranks must be whole or half numbers, got {checked[2 * checked % 1 != 0].flat[0]}")
    return 0.5 - checked, -np.arange(1.0, n + 1)


def _ranks(values: ArrayLike, references: int) -> Floats:
    """Return ranks as an array after checking their range."""
    array = finite_array("ranks", values)
    if array.size == 0:
        raise InputError(f"ranks must hold at least one rank, got an array of shape {array.shape}")
    wrong = (array < 1) | (array > references + 1)
    if np.any(wrong):
        raise InputError(f"ranks must be in [1, {references + 1}], got {array[wrong].flat[0]}")
    return array


def _epsilon(value: float) -> float:
    """Return a finite ε of at least 0."""
    if not 0 <= value < math.inf:
        raise InputError(f"epsilon must be a finite number of at least 0, got {value}")
    return float(value)
