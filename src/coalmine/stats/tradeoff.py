"""Privacy claims as trade-off curves, and how likely given counts are under a claim.

A claim says how high a true positive rate any attack may reach at a given false positive rate. All curves here
are symmetric (they hold with members and non-members swapped), as those of every add-or-remove guarantee are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import special

from coalmine.errors import InputError, check_count, check_delta
from coalmine.stats.arrays import Floats

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)
# Mass left out at each end of the integrals below: far under the smallest significance level anyone asks for.
_TAIL = 1e-14


class Curve(Protocol):
    """The highest true positive rate that a claim allows at a false positive rate."""

    def tpr(self, fpr: Floats) -> Floats:
        """Highest TPR at ``fpr`` (any shape)."""
        ...

    def tpr_at_tails(self, log_fpr: Floats, log_tnr: Floats) -> Floats:
        """Highest TPR where FPR and TNR are given as logarithms, however small."""
        ...

    @property
    def kink(self) -> float:
        """The FPR at which integrals over the curve are split."""
        ...


@dataclass(frozen=True)
class ApproximateDP:
    """(ε, δ)-DP: TPR ≤ min(e^ε·FPR + δ, 1 − e^−ε·(1 − FPR − δ)) (Kairouz et al. 2015)."""

    epsilon: float
    delta: float

    def tpr(self, fpr: Floats) -> Floats:
        """Highest TPR at ``fpr`` (any shape)."""
        with np.errstate(over="ignore", invalid="ignore"):
            rising = np.exp(self.epsilon) * fpr + self.delta
            falling = 1 - math.exp(-self.epsilon) * (1 - fpr - self.delta)
        return np.asarray(np.clip(np.fmin(rising, falling), 0, 1))

    def tpr_at_tails(self, log_fpr: Floats, log_tnr: Floats) -> Floats:
        """Highest TPR where FPR and TNR are given as logarithms, however small."""
        with np.errstate(over="ignore"):
            rising = np.exp(self.epsilon + log_fpr) + self.delta
            falling = 1 - np.exp(log_tnr - self.epsilon) + math.exp(-self.epsilon) * self.delta
        return np.clip(np.minimum(rising, falling), 0, 1)

    @property
    def kink(self) -> float:
        """The FPR at which the curve changes its slope."""
        return float((1 - self.delta) * special.expit(-self.epsilon))


@dataclass(frozen=True)
class GaussianDP:
    """μ-GDP: TPR ≤ Φ(Φ⁻¹(FPR) + μ) (Dong, Roth & Su 2019)."""

    mu: float

    def tpr(self, fpr: Floats) -> Floats:
        """Highest TPR at ``fpr`` (any shape)."""
        result: Floats = special.ndtr(special.ndtri(fpr) + self.mu)
        return result

    def tpr_at_tails(self, log_fpr: Floats, log_tnr: Floats) -> Floats:
        """Highest TPR where FPR and TNR are given as logarithms, however small."""
        quantile = np.where(log_fpr < log_tnr, special.ndtri_exp(log_fpr), -special.ndtri_exp(log_tnr))
        result: Floats = special.ndtr(quantile + self.mu)
        return result

    @property
    def kink(self) -> float:
        """The curve is smooth; the point where TPR = 1 − FPR is as good a place as any to split an integral."""
        return float(special.ndtr(-self.mu / 2))


def group_parameters(epsilon: float, delta: float, copies: int) -> tuple[float, float]:
    """What (ε, δ)-DP of one record guarantees for ``copies`` of them: (copies·ε, δ (e^{copies·ε} − 1)/(e^ε − 1)).

    The second is never more than 1, which guarantees nothing.
    """
    if not epsilon >= 0:
        raise InputError(f"epsilon must be at least 0, got {epsilon}")
    delta, copies = check_delta(delta), check_count("copies", copies)
    group = copies * epsilon
    if delta == 0:
        return group, 0.0
    shrink = math.expm1(-group) / math.expm1(-epsilon) if epsilon > 0 else float(copies)
    log_factor = (copies - 1) * epsilon + math.log(shrink)
    return group, min(1.0, delta * math.exp(log_factor)) if log_factor < -math.log(delta) else 1.0


def probability_below(curve: Curve, a1: Floats, b1: Floats, a0: Floats, b0: Floats) -> Floats:
    """P(G ≤ curve(V)) for independent G ~ Beta(a1, b1) and V ~ Beta(a0, b0), elementwise over (k,) arrays.

    One-dimensional quadrature over the narrower of the two, split at the curve's kink. By the curve's symmetry,
    G ≤ curve(V) says the same as 1 − V ≤ curve(1 − G), so that either variable can be the one integrated over.
    """
    narrow = _spread(a1, b1) < _spread(a0, b0)
    a, b = np.where(narrow, b1, a0), np.where(narrow, a1, b0)
    c, d = np.where(narrow, b0, a1), np.where(narrow, a0, b1)
    low, high = special.betaincinv(a, b, _TAIL), special.betainccinv(a, b, _TAIL)
    kink = np.clip(curve.kink, low, high)
    start = np.stack([low, kink], axis=-1)
    width = np.stack([kink - low, high - kink], axis=-1)
    x = start[..., None] + width[..., None] * (_NODES + 1) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        log_density = special.xlogy(a[:, None, None] - 1, x) + special.xlog1py(b[:, None, None] - 1, -x)
        density = np.exp(log_density - special.betaln(a, b)[:, None, None])
    below = special.betainc(c[:, None, None], d[:, None, None], curve.tpr(x))
    total: Floats = np.einsum("kpn,kpn,n,kp->k", density, below, _WEIGHTS, width / 2)
    return np.clip(total, 0, 1)


def _spread(a: Floats, b: Floats) -> Floats:
    """Standard deviation of Beta(a, b) relative to its distance from the nearer end of [0, 1], squared."""
    result: Floats = np.maximum(a, b) / (np.minimum(a, b) * (a + b + 1))
    return result
