"""Privacy claims as trade-off curves, and the probability of observed counts under a claim.

A claim limits the true positive rate that any attack can reach at a given false positive rate (Dong, Roth & Su, 2019).
All curves here are symmetric: they hold with members and non-members swapped, as for every add-or-remove guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy import special

from coalmine.arrays import Floats, Ints
from coalmine.errors import check_count, check_delta, check_nonnegative

NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
# Quantiles at which integrals are cut, from either end. The mass beyond the first is dropped: it is far below the
# smallest significance level in use.
_LEVELS = np.array([1e-14, 1e-6, 0.02, 0.5])


class Curve(Protocol):
    """A claim, as the highest true positive rate that it allows at each false positive rate."""

    def tpr(self, fpr: Floats) -> Floats:
        """Return the highest TPR at each ``fpr``, any shape."""
        ...

    def tpr_at_tails(self, log_fpr: Floats, log_tnr: Floats) -> Floats:
        """Return the highest TPR from ln FPR and ln TNR, accurate however small the rates are."""
        ...

    @property
    def kink(self) -> float:
        """FPR at which integrals over the curve are split."""
        ...


@dataclass(frozen=True)
class ApproximateDP:
    """The claim of (ε, δ)-DP: TPR ≤ min(e^ε·FPR + δ, 1 − e^−ε·(1 − FPR − δ)) (Kairouz, Oh & Viswanath, 2015).

    Args:
        epsilon: The claimed ε, at least 0.
        delta: The claimed δ, in [0, 1).

    Example:
        >>> float(ApproximateDP(epsilon=math.log(4), delta=0.1).tpr(np.array(0.1)))
        0.5
    """

    epsilon: float
    delta: float

    def tpr(self, fpr: Floats) -> Floats:
        """Return the highest TPR at each ``fpr``, any shape."""
        with np.errstate(over="ignore", invalid="ignore"):
            rising = np.exp(self.epsilon) * fpr + self.delta
            falling = 1 - math.exp(-self.epsilon) * (1 - fpr - self.delta)
        return np.asarray(np.clip(np.fmin(rising, falling), 0, 1))

    def tpr_at_tails(self, log_fpr: Floats, log_tnr: Floats) -> Floats:
        """Return the highest TPR from ln FPR and ln TNR, accurate however small the rates are."""
        with np.errstate(over="ignore"):
            rising = np.exp(self.epsilon + log_fpr) + self.delta
            falling = 1 - np.exp(log_tnr - self.epsilon) + math.exp(-self.epsilon) * self.delta
        return np.clip(np.minimum(rising, falling), 0, 1)

    @property
    def kink(self) -> float:
        """FPR at which the curve changes its slope."""
        return float((1 - self.delta) * special.expit(-self.epsilon))


@dataclass(frozen=True)
class GaussianDP:
    """The claim of μ-GDP, met by the Gaussian mechanism: TPR ≤ Φ(Φ⁻¹(FPR) + μ) (Dong, Roth & Su, 2019).

    Args:
        mu: The parameter μ, at least 0: sensitivity over noise.

    Example:
        >>> round(float(GaussianDP(mu=1.0).tpr(np.array(0.01))), 4)
        0.0924
    """

    mu: float

    def tpr(self, fpr: Floats) -> Floats:
        """Return the highest TPR at each ``fpr``, any shape."""
        result: Floats = special.ndtr(special.ndtri(fpr) + self.mu)
        return result

    def tpr_at_tails(self, log_fpr: Floats, log_tnr: Floats) -> Floats:
        """Return the highest TPR from ln FPR and ln TNR, accurate however small the rates are."""
        quantile = np.where(log_fpr < log_tnr, special.ndtri_exp(log_fpr), -special.ndtri_exp(log_tnr))
        result: Floats = special.ndtr(quantile + self.mu)
        return result

    @property
    def kink(self) -> float:
        """FPR at which TPR = 1 − FPR; the curve is smooth, so any split would do."""
        return float(special.ndtr(-self.mu / 2))


def group_parameters(epsilon: float, delta: float, copies: int) -> tuple[float, float]:
    """Compute the group privacy of several copies of a record from the (ε, δ)-DP of one.

    (k·ε, δ (e^{kε} − 1)/(e^ε − 1)) for k copies. The second value is capped at 1, which guarantees nothing.

    Args:
        epsilon: ε for one copy, at least 0.
        delta: δ for one copy, in [0, 1).
        copies: Number of copies of the record, at least 1.

    Returns:
        ε and δ for all copies together.

    Raises:
        InputError: If an argument is out of range.

    Example:
        >>> group_parameters(1.0, 0.0, copies=3)
        (3.0, 0.0)
    """
    check_nonnegative("epsilon", epsilon)
    delta, copies = check_delta(delta), check_count("copies", copies)
    group = copies * epsilon
    if delta == 0:
        return group, 0.0
    # In logarithms, since e^{kε} overflows long before the capped δ is reached.
    shrink = math.expm1(-group) / math.expm1(-epsilon) if epsilon > 0 else float(copies)
    log_factor = (copies - 1) * epsilon + math.log(shrink)
    return group, min(1.0, delta * math.exp(log_factor)) if log_factor < -math.log(delta) else 1.0


@dataclass(frozen=True, eq=False)
class BetaPair:
    """k independent pairs G ~ Beta(a1, b1) and V ~ Beta(a0, b0); all parameters have shape (k,)."""

    a1: Floats
    b1: Floats
    a0: Floats
    b0: Floats

    def probability_below(self, curve: Curve, indices: Ints | None = None) -> Floats:
        """Return P(G ≤ curve(V)) for the pairs at ``indices``, or for all of them.

        One-dimensional Gauss–Legendre quadrature over the relatively narrower of the two variables. The pieces end at
        its quantiles, where the other variable's distribution function changes, and at the curve's kink.
        """
        pick = slice(None) if indices is None else indices
        a, b, c, d, quantiles, other_quantiles = (array[pick] for array in self._prepared)
        mirrored = 1 - curve.tpr(1 - other_quantiles)
        kink = np.full((a.size, 1), curve.kink)
        edges = np.clip(
            np.concatenate([quantiles, mirrored, kink], axis=1),
            quantiles.min(axis=1)[:, None],
            quantiles.max(axis=1)[:, None],
        )
        # Substituting x = sin² t makes even Beta(½, ½) smooth.
        t = np.sort(np.arcsin(np.sqrt(edges)), axis=-1)
        width = np.diff(t, axis=-1)
        angle = t[:, :-1, None] + width[..., None] * (NODES + 1) / 2
        sine, cosine = np.sin(angle), np.cos(angle)
        a, b, c, d = (parameter[:, None, None] for parameter in (a, b, c, d))
        with np.errstate(divide="ignore"):
            log_density = special.xlogy(2 * a - 1, sine) + special.xlogy(2 * b - 1, cosine) - special.betaln(a, b)
        below = special.betainc(c, d, curve.tpr(sine**2))
        # dx = 2 sin t cos t dt, and each piece of the rule has the weight width/2.
        total: Floats = np.einsum("kpn,kpn,n,kp->k", np.exp(log_density), below, WEIGHTS, width)
        return np.clip(total, 0, 1)

    @cached_property
    def _prepared(self) -> tuple[Floats, ...]:
        """Parameters of the integration variable and of the other one, and the quantiles of both.

        By the symmetry of the curves, G ≤ curve(V) is equivalent to 1 − V ≤ curve(1 − G), so either variable can be
        the integration variable.
        """
        narrow = _spread(self.a1, self.b1) < _spread(self.a0, self.b0)
        a, b = np.where(narrow, self.b1, self.a0), np.where(narrow, self.a1, self.b0)
        c, d = np.where(narrow, self.b0, self.a1), np.where(narrow, self.a0, self.b1)
        return a, b, c, d, quantiles(a, b), quantiles(c, d)


def quantiles(a: Floats, b: Floats) -> Floats:
    """Return quantiles of Beta(a, b) from one negligible tail to the other, shape (k, 8)."""
    a, b = a[:, None], b[:, None]
    return np.concatenate([special.betaincinv(a, b, _LEVELS), special.betainccinv(a, b, _LEVELS)], axis=1)


def _spread(a: Floats, b: Floats) -> Floats:
    """Return the squared standard deviation of Beta(a, b) relative to its distance from the nearer end of [0, 1]."""
    result: Floats = np.maximum(a, b) / (np.minimum(a, b) * (a + b + 1))
    return result
