"""Exposure of canaries: what it is, what it would be by chance, and the ε it speaks of.

m canaries were trained on, n references from the same distribution were not; the lower a loss, the more exposed its
canary (Carlini et al. 2019; Jagielski 2023). Nothing in this file is a confidence bound on ε: for one, give the losses,
or the scores of `scores_from_ranks`, to a bound.
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
    """Rank in 1…n+1 of each canary's loss among the n reference losses: 1 + the number of references below it.

    A reference with the same loss counts a half (``middle``: a constant loss gets the median of random guessing),
    as below (``worst``: against exposure, what a bound needs) or not at all (``best``). Shapes (m,) and (n,) to (m,).
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
    """Exposure in bits, log2(n) − log2(rank), of ranks among n references: from log2(n/(n+1)) to log2(n)."""
    n = check_count("references", references)
    return np.asarray(math.log2(n) - np.log2(_ranks(ranks, n)))


def extrapolated_exposure(canaries: ArrayLike, references: ArrayLike) -> Floats:
    """Exposure beyond log2(n): −log2 of the chance that a new reference has no higher loss, by a skew-normal fit.

    Only as good as the fit, which no reference confirms so far out (Carlini et al. 2019, Section 4.3). Compare it with
    ``RandomGuessing(math.inf, m)``. Shapes (m,) and (n,) to (m,).
    """
    losses = finite_list("canaries", canaries)
    return -SkewNormal.fit(references).logcdf(losses) / LN2


def epsilon_from_exposure(exposure: float, quantile: float = 0.5) -> float:
    """The ε that an exposure at this quantile of the canaries speaks of; a point estimate at δ = 0, not a bound.

    The attack that accepts whatever is as exposed has TPR 1 − quantile and FPR 2^−exposure, so that ε is
    ln 2 · exposure + ln(1 − quantile), or 0 (Jagielski 2023, Section 2.2).
    """
    if not math.isfinite(exposure):
        raise InputError(f"exposure must be a finite number, got {exposure}")
    return max(0.0, LN2 * exposure + math.log1p(-check_probability("quantile", quantile)))


def exposure_for_epsilon(epsilon: float, quantile: float = 0.5) -> float:
    """The exposure at this quantile of the canaries from which `epsilon_from_exposure` gives ``epsilon``."""
    return (_epsilon(epsilon) - math.log1p(-check_probability("quantile", quantile))) / LN2


def low_fpr_epsilon(ranks: ArrayLike, references: int, fpr: float) -> Estimate:
    """ln(TPR/FPR) of the attack that lets k = floor(fpr · n) references pass: a point estimate at δ = 0, not a bound.

    TPR is the share of canaries with rank ≤ 1 + k (the threshold) and FPR is k/n; no canary gives ε = 0. With k = 0
    the quotient would be infinite whatever the canaries, so that fpr · n must be at least 1.
    """
    n = check_count("references", references)
    if not 0 < fpr <= 1:
        raise InputError(f"fpr must be in (0, 1], got {fpr}")
    # A share of n given in decimals, such as 0.29 of 100, must not lose a reference to rounding.
    passing = math.floor(fpr * n * (1 + 1e-12))
    if passing < 1:
        raise InputError(f"fpr * references must be at least 1, got {fpr} * {n}")
    tpr = float(np.mean(_ranks(ranks, n) <= 1 + passing))
    epsilon = max(0.0, math.log(tpr * n / passing)) if tpr > 0 else 0.0
    return Estimate(method="low-fpr", epsilon=epsilon, valid=False, threshold=1.0 + passing)


def per_copy_epsilon(epsilon: float, copies: int) -> float:
    """The ε of one copy of a canary that was planted ``copies`` times, at δ = 0, by group privacy."""
    return _epsilon(epsilon) / check_count("copies", copies)


def calibrate(losses: ArrayLike, reference_model_losses: ArrayLike) -> Floats:
    """Each loss less the mean loss of the same example under models that never saw it (Watson et al. 2021).

    Shapes (n,) and (n,) or (models, n) to (n,). Canaries and references must be calibrated alike.
    """
    raw = finite_list("losses", losses)
    difficulty = finite_array("reference_model_losses", reference_model_losses)
    if difficulty.ndim not in (1, 2) or difficulty.shape[-1] != raw.size or difficulty.size == 0:
        raise InputError(
            f"reference_model_losses must have the shape ({raw.size},) or (models, {raw.size}), got {difficulty.shape}"
        )
    return np.asarray(raw - np.atleast_2d(difficulty).mean(axis=0), dtype=np.float64)


def scores_from_ranks(ranks: ArrayLike, references: int) -> tuple[Floats, Floats]:
    """Scores of canaries (m,) and references (n,), higher for members, in the order that the ranks tell.

    So every bound on scores works on ranks, if they were made with ``ties="worst"``. A half in a rank is taken as a
    tie with one reference. Middle ranks forget how many references tied, and a bound on them does not hold: under a
    constant loss they put every canary ahead of half the references, which would pass for a large ε.
    """
    n = check_count("references", references)
    placed = _ranks(ranks, n)
    if np.any(2 * placed % 1):
        raise InputError(f"ranks must be whole or half numbers, got {placed[2 * placed % 1 != 0].flat[0]}")
    return 0.5 - placed, -np.arange(1.0, n + 1)


def _ranks(values: ArrayLike, references: int) -> Floats:
    array = finite_array("ranks", values)
    if array.size == 0:
        raise InputError(f"ranks must hold at least one rank, got an array of shape {array.shape}")
    wrong = (array < 1) | (array > references + 1)
    if np.any(wrong):
        raise InputError(f"ranks must be in [1, {references + 1}], got {array[wrong].flat[0]}")
    return array


def _epsilon(value: float) -> float:
    if not 0 <= value < math.inf:
        raise InputError(f"epsilon must be a finite number of at least 0, got {value}")
    return float(value)
