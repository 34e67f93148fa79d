"""Privacy claims as trade-off curves, and how likely given counts are under a claim.

A claim says how high a true positive rate any attack may reach at a given false positive rate. All curves here
are symmetric (they hold with members and non-members swapped), as those of every add-or-remove guarantee are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy import special

from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError, check_count, check_delta

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
# Quantiles at which integrals are cut, from either end. The mass beyond the first is left out: far under the smallest
# significance level that anyone asks for.
_LEVELS = np.array([1e-14, 1e-6, 0.02, 0.5])


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


@dataclass(frozen=True, eq=False)
class BetaPair:
    """Independent G ~ Beta(a1, b1) and V ~ Beta(a0, b0), k pairs of them: all parameters are (k,) arrays."""

    a1: Floats
    b1: Floats
    a0: Floats
    b0: Floats

    def probability_below(self, curve: Curve, which: Ints | None = None) -> Floats:
        """P(G ≤ curve(V)) for the pairs in ``which`` (all where it is None).

        One-dimensional Gauss–Legendre quadrature over the relatively narrower of the two, in pieces that end at its
        own quantiles, where the other's distribution function changes, and at the curve's kink. In x = sin² t even
        Beta(½, ½) is smooth.
        """
        pick = slice(None) if which is None else which
        a, b, c, d, own, other = (array[pick] for array in self._prepared)
        mirrored = 1 - curve.tpr(1 - other)
        kink = np.full((a.size, 1), curve.kink)
        edges = np.clip(
            np.concatenate([own, mirrored, kink], axis=1), own.min(axis=1)[:, None], own.max(axis=1)[:, None]
        )
        t = np.sort(np.arcsin(np.sqrt(edges)), axis=-1)
        width = np.diff(t, axis=-1)
        angle = t[:, :-1, None] + width[..., None] * (_NODES + 1) / 2
        sine, cosine = np.sin(angle), np.cos(angle)
        a, b, c, d = (parameter[:, None, None] for parameter in (a, b, c, d))
        with np.errstate(divide="ignore"):
            log_density = special.xlogy(2 * a - 1, sine) + special.xlogy(2 * b - 1, cosine) - special.betaln(a, b)
        below = special.betainc(c, d, curve.tpr(sine**2))
        # dx = 2 sin t cos t dt, and a piece of the rule has the weight width/2.
        total: Floats = np.einsum("kpn,kpn,n,kp->k", np.exp(log_density), below, _WEIGHTS, width)
        return np.clip(total, 0, 1)

    @cached_property
    def _prepared(self) -> tuple[Floats, ...]:
        """Parameters of the integration variable and of the other, and where to cut.

        By the curves' symmetry, G ≤ curve(V) says the same as 1 − V ≤ curve(1 − G): either variable can be integrated
        over.
        """
        narrow = _spread(self.a1, self.b1) < _spread(self.a0, self.b0)
        a, b = np.where(narrow, self.b1, self.a0), np.where(narrow, self.a1, self.b0)
        c, d = np.where(narrow, self.b0, self.a1), np.where(narrow, self.a0, self.b1)
        return a, b, c, d, _quantiles(a, b), _quantiles(c, d)


def _quantiles(a: Floats, b: Floats) -> Floats:
    """Quantiles of Beta(a, b) from one negligible tail to the other, (k, 8)."""
    a, b = a[:, None], b[:, None]
    return np.concatenate([special.betaincinv(a, b, _LEVELS), special.betainccinv(a, b, _LEVELS)], axis=1)


def _spread(a: Floats, b: Floats) -> Floats:
    """Standard deviation of Beta(a, b) relative to its distance from the nearer end of [0, 1], squared."""
    result: Floats = np.maximum(a, b) / (np.minimum(a, b) * (a + b + 1))
    return result
