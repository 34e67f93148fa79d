"""What does a claim allow? Privacy claims as trade-off curves, and the probability of observed counts under them.

A claim limits the true positive rate that any attack can reach at a given false positive rate (Dong, Roth & Su, 2019).
All curves here are symmetric: they hold with members and non-members swapped, as for every add-or-remove guarantee. One
that covers two curves, for adding and for removing a client, names them as its `directions`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from scipy import special

from coalmine.arrays import Floats
from coalmine.errors import check_count, check_delta, check_nonnegative
from coalmine.stats.scores import largest

NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
# Quantiles at which integrals are cut, from either end. The mass beyond the first is dropped: it is far below the
# smallest significance level in use.
_LEVELS = np.array([1e-14, 1e-6, 0.02, 0.5])
_NOTICEABLE = 0.1  # change of a curve's logarithmic slope at which integrals are split


class Curve(Protocol):
    """A claim, as the highest true positive rate that it allows at each false positive rate."""

    def tpr(self, fpr: Floats) -> Floats:
        """Return the highest TPR at each ``fpr``, any shape."""
        ...

    def tpr_at_tails(self, log_fpr: Floats, log_tnr: Floats) -> Floats:
        """Return the highest TPR from ln FPR and ln TNR, accurate however small the rates are."""
        ...

    def fpr(self, tpr: Floats) -> Floats:
        """Return the lowest FPR at each ``tpr``, any shape: the inverse of `tpr`."""
        ...

    @property
    def kinks(self) -> Floats:
        """FPRs at which integrals over the curve are split."""
        ...

    @property
    def kink(self) -> float:
        """FPR at which TPR = 1 − FPR, where the two halves of a symmetric curve meet: by default the first kink."""
        return float(self.kinks[0])

    @property
    def directions(self) -> tuple[Curve, ...]:
        """The curves of which one holds: first that of members who were added. By default only the curve itself."""
        return (self,)


@dataclass(frozen=True)
class ApproximateDP(Curve):
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

    def fpr(self, tpr: Floats) -> Floats:
        """Return the lowest FPR at each ``tpr``, any shape: the inverse of `tpr`."""
        with np.errstate(over="ignore", invalid="ignore"):
            low = math.exp(-self.epsilon) * (tpr - self.delta)
            high = 1 - self.delta - np.exp(self.epsilon) * (1 - tpr)
        return np.asarray(np.clip(np.fmax(low, high), 0, 1))

    @property
    def kinks(self) -> Floats:
        """The FPR at which the curve changes its slope, and TPR = 1 − FPR."""
        return np.array([(1 - self.delta) * special.expit(-self.epsilon)])


@dataclass(frozen=True)
class GaussianDP(Curve):
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

    def fpr(self, tpr: Floats) -> Floats:
        """Return the lowest FPR at each ``tpr``, any shape: the inverse of `tpr`."""
        result: Floats = special.ndtr(special.ndtri(tpr) - self.mu)
        return result

    @property
    def kinks(self) -> Floats:
        """The FPR at which TPR = 1 − FPR; the curve is smooth, so any split would do."""
        return np.array([special.ndtr(-self.mu / 2)])


class PrivacyProfile(Curve):
    """The claim of (ε, δ)-DP for many pairs at once, as an accountant makes it: its δ at every ε.

    The curve is the lower envelope of the curves of all pairs. It lies above the curve of the mechanism that was
    accounted for, and approaches it as the pairs get denser, so tests of it are conservative.

    Args:
        epsilons: Ascending ε, at least 0, shape (k,).
        deltas: The δ at each ε, falling, shape (k,).

    Example:
        >>> profile = PrivacyProfile(np.array([0.0, 1.0]), np.array([0.3, 0.1]))
        >>> profile.tpr(np.array([0.1, 0.2])).round(4)
        array([0.3718, 0.5   ])
    """

    @classmethod
    def of_both(cls, epsilons: Floats, removing: Floats, adding: Floats) -> Self:
        """Return the profile with the larger δ of two directions, which are kept as its `directions`.

        Args:
            epsilons: Ascending ε, at least 0, shape (k,).
            removing: The δ at each ε of members against non-members, falling, shape (k,).
            adding: The δ of non-members against members.
        """
        both = cls(epsilons, np.maximum(removing, adding))
        one, other = cls(epsilons, removing), cls(epsilons, adding)
        one._swapped, other._swapped, both._directions = other, one, (one, other)
        return both

    def __init__(self, epsilons: Floats, deltas: Floats) -> None:
        # The profile with members and non-members swapped limits the half of the curve where FPRs are large.
        self._swapped = self
        self._directions: tuple[Curve, ...] = (self,)
        # Where rounding disturbs the fall of δ, the larger neighbor is the safe one.
        deltas = np.clip(np.maximum.accumulate(deltas[::-1])[::-1], 0, 1)
        self.epsilons, self.deltas = epsilons, deltas
        # On the left half TPR = e^ε·FPR + δ, so each pair gives an upper limit on the FPR at which TPR = 1 − FPR.
        self._middle = float(np.max((1 - deltas) * special.expit(-epsilons)))
        # Only pairs whose lines e^ε·FPR + δ touch the lower envelope matter: drop the others, for all at once, until
        # none is left. Corners are where each of them meets the next.
        while True:
            with np.errstate(divide="ignore"):
                # ln of (δ − δ') / (e^ε' − e^ε), without overflow
                log_corners = np.log(-np.diff(deltas)) - epsilons[1:] - np.log(-np.expm1(-np.diff(epsilons)))
            # A line that meets the next one before the previous one is nowhere the lowest.
            keep = np.concatenate([[True], log_corners[1:] < log_corners[:-1], [True]])
            if keep.all():
                break
            epsilons, deltas = epsilons[keep], deltas[keep]
        self._touching, self._log_corners = (epsilons, deltas), log_corners

    def tpr(self, fpr: Floats) -> Floats:
        """Return the highest TPR at each ``fpr``, any shape."""
        with np.errstate(divide="ignore"):
            rising = self._rising(np.log(fpr))
        return np.clip(np.minimum(rising, 1 - self._swapped._left(1 - np.asarray(fpr))), 0, 1)

    def tpr_at_tails(self, log_fpr: Floats, log_tnr: Floats) -> Floats:
        """Return the highest TPR from ln FPR and ln TNR, accurate however small the rates are."""
        return np.clip(np.minimum(self._rising(log_fpr), 1 - self._swapped._left(np.exp(log_tnr))), 0, 1)

    def fpr(self, tpr: Floats) -> Floats:
        """Return the lowest FPR at each ``tpr``, any shape: the inverse of `tpr`."""
        with np.errstate(divide="ignore"):
            falling = 1 - self._swapped._rising(np.log1p(-np.asarray(tpr)))
        return np.clip(np.maximum(self._left(tpr), falling), 0, 1)

    @property
    def directions(self) -> tuple[Curve, ...]:
        """The curves of members who were added and of those who were removed if they differ, otherwise only itself."""
        return self._directions

    @cached_property
    def kinks(self) -> Floats:
        """The FPR at which TPR = 1 − FPR, and those at which the slope changes noticeably: few if pairs are dense."""
        halves = []
        for half in (self, self._swapped):
            halves.append(np.exp(half._log_corners[np.diff(half._touching[0]) > _NOTICEABLE]))
        return np.concatenate([[self._middle], halves[0], 1 - self._swapped.tpr(halves[1])])

    def _rising(self, log_fpr: Floats) -> Floats:
        """Return min over the pairs of e^ε·FPR + δ."""
        epsilons, deltas = self._touching
        # Any pair gives a valid limit, so picking a neighbor of the best one by rounding does no harm.
        pair = np.searchsorted(-self._log_corners, -np.asarray(log_fpr))
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(epsilons[pair] + log_fpr) + deltas[pair])

    def _left(self, tpr: Floats) -> Floats:
        """Return max over the pairs of e^−ε·(TPR − δ), the inverse of `_rising`."""
        epsilons, deltas = self._touching
        corners = np.exp(epsilons[:-1] + self._log_corners) + deltas[:-1]
        pair = np.searchsorted(-corners, -np.asarray(tpr))
        return np.asarray(np.exp(-epsilons[pair]) * (tpr - deltas[pair]))


@dataclass(frozen=True)
class GroupCurve(Curve):
    """The claim for several copies of a record: the curve of one copy applied once for each (Dong, Roth & Su, 2019).

    Args:
        curve: The claim for one copy.
        copies: Number of copies, at least 1.

    Example:
        >>> one, three = GaussianDP(mu=1.0), GaussianDP(mu=3.0)
        >>> bool(np.isclose(GroupCurve(one, 3).tpr(np.array(0.1)), three.tpr(np.array(0.1))))
        True
    """

    curve: Curve
    copies: int

    def tpr(self, fpr: Floats) -> Floats:
        """Return the highest TPR at each ``fpr``, any shape."""
        for _ in range(self.copies):
            fpr = self.curve.tpr(fpr)
        return fpr

    def tpr_at_tails(self, log_fpr: Floats, log_tnr: Floats) -> Floats:
        """Return the highest TPR from ln FPR and ln TNR, accurate however small the rates are."""
        rate = self.curve.tpr_at_tails(log_fpr, log_tnr)
        for _ in range(self.copies - 1):
            rate = self.curve.tpr(rate)
        return rate

    def fpr(self, tpr: Floats) -> Floats:
        """Return the lowest FPR at each ``tpr``, any shape: the inverse of `tpr`."""
        for _ in range(self.copies):
            tpr = self.curve.fpr(tpr)
        return tpr

    @cached_property
    def kink(self) -> float:
        """FPR at which TPR = 1 − FPR."""
        return 1 - largest(lambda x: x - float(self.tpr(np.array(1 - x))) if x <= 1 else math.inf)

    @cached_property
    def kinks(self) -> Floats:
        """FPRs that some copy's curve maps to a kink of the next one's."""
        kinks = [self.curve.kinks]
        for _ in range(self.copies - 1):
            kinks.append(self.curve.fpr(kinks[-1]))
        return np.concatenate(kinks)


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


class BetaPair:
    """k independent pairs G ~ Beta(a1, b1) and V ~ Beta(a0, b0); all parameters have shape (k,)."""

    def __init__(self, a1: Floats, b1: Floats, a0: Floats, b0: Floats) -> None:
        # By the symmetry of the curves, G ≤ curve(V) is equivalent to 1 − V ≤ curve(1 − G), so either variable can be
        # integrated over: the relatively narrower one. Compared are squared standard deviations relative to the
        # distance from the nearer end of [0, 1].
        spread1 = np.maximum(a1, b1) / (np.minimum(a1, b1) * (a1 + b1 + 1))
        spread0 = np.maximum(a0, b0) / (np.minimum(a0, b0) * (a0 + b0 + 1))
        narrow = spread1 < spread0
        self._integrated = np.where(narrow, b1, a0), np.where(narrow, a1, b0)
        self._other = np.where(narrow, b0, a1), np.where(narrow, a0, b1)
        self._quantiles, self._other_quantiles = quantiles(*self._integrated), quantiles(*self._other)

    def probability_below(self, curve: Curve) -> Floats:
        """Return P(G ≤ curve(V)) for every pair, shape (k,); of two directions the larger.

        One-dimensional Gauss–Legendre quadrature over the relatively narrower of the two variables. The pieces end at
        its quantiles, where the other variable's distribution function changes, and at the curve's kinks.
        """
        # Each direction is the mirror image of the other, so both are integrated over whichever variable is narrower.
        both = zip(curve.directions, reversed(curve.directions), strict=True)
        return np.asarray(np.max([self._below(one, other) for one, other in both], axis=0))

    def _below(self, curve: Curve, mirrored_curve: Curve) -> Floats:
        """Return the integral over the narrower variable for one direction."""
        quantiles = self._quantiles
        mirrored = 1 - mirrored_curve.tpr(1 - self._other_quantiles)
        kinks = np.tile(curve.kinks, (len(quantiles), 1))
        edges = np.concatenate([quantiles, mirrored, kinks], axis=1)
        edges = np.clip(edges, quantiles.min(axis=1)[:, None], quantiles.max(axis=1)[:, None])
        # Substituting x = sin² t makes even Beta(½, ½) smooth.
        t = np.sort(np.arcsin(np.sqrt(edges)), axis=-1)
        width = np.diff(t, axis=-1)
        angle = t[:, :-1, None] + width[..., None] * (NODES + 1) / 2
        sine, cosine = np.sin(angle), np.cos(angle)
        a, b, c, d = (parameter[:, None, None] for parameter in (*self._integrated, *self._other))
        with np.errstate(divide="ignore"):
            log_density = special.xlogy(2 * a - 1, sine) + special.xlogy(2 * b - 1, cosine) - special.betaln(a, b)
        below = special.betainc(c, d, curve.tpr(sine**2))
        # dx = 2 sin t cos t dt, and each piece of the rule has the weight width/2.
        total: Floats = np.einsum("kpn,kpn,n,kp->k", np.exp(log_density), below, WEIGHTS, width)
        return np.clip(total, 0, 1)


def quantiles(a: Floats, b: Floats) -> Floats:
    """Return quantiles of Beta(a, b) from one negligible tail to the other, shape (k, 8)."""
    a, b = a[:, None], b[:, None]
    return np.concatenate([special.betaincinv(a, b, _LEVELS), special.betainccinv(a, b, _LEVELS)], axis=1)
