"""The skew-normal distribution: maximum likelihood fit to losses, and its lower tail to any distance.

Used to extrapolate exposure beyond the number of references (Carlini et al., 2019, Section 4.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import Floats, finite_list
from coalmine.errors import InputError, check_positive

LN2 = math.log(2)
MAX_SHAPE = 100.0
MIN_FIT = 10


@dataclass(frozen=True)
class SkewNormal:
    """The skew-normal distribution: density 2/scale · φ(z) Φ(shape · z) at z = (x − location)/scale (Azzalini 1985)."""

    location: float
    scale: float
    shape: float

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)
        for name in ("location", "shape"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"{name} must be a finite number, got {getattr(self, name)}")

    @classmethod
    def fit(cls, references: ArrayLike) -> Self:
        """Return the maximum likelihood fit among shapes within ±`MAX_SHAPE`.

        Without a limit the most likely shape can be infinite. For a fixed shape the log-likelihood is concave in
        (1/scale, location/scale), so only the shape needs a search. The search is over the skewness, in which the
        likelihood has no spurious stationary point at the normal distribution.
        """
        from scipy.optimize import minimize_scalar  # slow to import

        losses = finite_list("references", references)
        if losses.size < MIN_FIT:
            raise InputError(f"a skew-normal fit needs at least {MIN_FIT} references, got {losses.size}")
        low, high = float(losses.min()), float(losses.max())
        spread = high - low
        if not 0 < spread < math.inf:
            raise InputError(
                f"a skew-normal fit needs references that differ, and by a finite amount, got {losses.size} losses "
                f"from {low} to {high}"
            )
        unit = (losses - low) / spread
        mean, deviation = float(unit.mean()), float(unit.std())
        x = (unit - mean) / deviation

        grid = np.linspace(-1, 1, 7) * _skewness(MAX_SHAPE)
        costs = [_best_given_skewness(x, skewness)[0] for skewness in grid]
        best = int(np.argmin(costs))
        refined = minimize_scalar(
            lambda skewness: _best_given_skewness(x, skewness)[0],
            bounds=(grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]),
            method="bounded",
            options={"xatol": 1e-8},
        )
        skewness = float(refined.x if refined.fun < costs[best] else grid[best])
        _, inverse_scale, shift = _best_given_skewness(x, skewness)
        location = low + spread * (mean + deviation * shift / inverse_scale)
        return cls(location, spread * deviation / inverse_scale, _shape(skewness)[0])

    def logcdf(self, x: ArrayLike) -> Floats:
        """Return ln P(X ≤ x), with a relative accuracy of about 1e-13 however far ``x`` is in the lower tail."""
        z = (np.asarray(x, dtype=np.float64) - self.location) / self.scale
        # |Z| is half-normal for every shape. So the values for the other three sign combinations of z and shape follow
        # from the tail of the non-negative shape at −|z|, without cancellation.
        tail = _log_lower_tail(np.abs(z), abs(self.shape))
        if self.shape >= 0:
            return np.where(z <= 0, tail, np.minimum(np.log(special.erf(np.abs(z) / math.sqrt(2)) + np.exp(tail)), 0))
        both = LN2 + special.log_ndtr(-np.abs(z))
        return np.where(z <= 0, both + np.log1p(-np.exp(tail - both)), np.log1p(-np.exp(tail)))


def _skewness(shape: float) -> float:
    """Return the skewness of a shape."""
    mean = math.sqrt(2 / math.pi) * shape / math.hypot(1, shape)
    return (4 - math.pi) / 2 * (mean / math.sqrt(1 - mean**2)) ** 3


def _shape(skewness: float) -> tuple[float, float]:
    """Return the shape with this skewness, and the mean of its standard form."""
    ratio = float(np.cbrt(2 * skewness / (4 - math.pi)))
    mean = ratio / math.hypot(1, ratio)
    return mean / math.sqrt(2 / math.pi - mean**2), mean


def _best_given_skewness(x: Floats, skewness: float) -> tuple[float, float, float]:
    """Return the least mean negative log-likelihood of standardized ``x``, with 1/scale and location/scale there.

    Constants are dropped. Newton's method with step halving, since the cost is convex and smooth.
    """
    shape, mean = _shape(skewness)

    def cost(inverse_scale: float, shift: float) -> float:
        if inverse_scale <= 0:
            return math.inf
        z = inverse_scale * x - shift
        return float(np.mean(z * z / 2 - special.log_ndtr(shape * z))) - math.log(inverse_scale)

    # x has mean 0 and variance 1: start at the distribution with these moments.
    at = np.array([math.sqrt(1 - mean**2), -mean])
    value = cost(*at)
    for _ in range(100):
        z = at[0] * x - at[1]
        mills = math.sqrt(2 / math.pi) / special.erfcx(-shape * z / math.sqrt(2))
        slope = z - shape * mills
        bend = 1 + shape * mills * (shape * z + mills) * shape
        gradient = np.array([np.mean(slope * x) - 1 / at[0], -np.mean(slope)])
        cross = -np.mean(bend * x)
        hessian = np.array([[np.mean(bend * x * x) + 1 / at[0] ** 2, cross], [cross, np.mean(bend)]])
        step = np.linalg.solve(hessian, gradient)
        decrement = float(gradient @ step)
        if decrement < 1e-15:
            break
        size = 1.0
        while (tried := cost(*(at - size * step))) > value - size * decrement / 4 and size > 1e-9:
            size /= 2
        at, value = at - size * step, tried
    return value, float(at[0]), float(at[1])


def _log_lower_tail(distance: Floats, shape: float) -> Floats:
    """Return ln P(Z ≤ −distance) of the standard form, for ``distance`` and ``shape`` of at least 0.

    With c = distance·√(1 + shape²) and δ = shape/√(1 + shape²) the probability is
    φ(c)/√(1 + shape²) · ∫ exp(−cv − v²/2) erfcx(δ(c + v)/√2) dv over v > 0. For every shape the integrand decays within
    a few 1/(1 + c), so one Gauss rule serves all.
    """
    root = math.hypot(1, shape)
    c = distance * root
    total = np.zeros_like(c)
    for node, weight in zip(*_gauss_rule(), strict=True):
        v = node / (1 + c)
        total += weight * np.exp(-v * (c + v / 2)) * special.erfcx(shape / root * (c + v) / math.sqrt(2))
    return np.asarray(np.log(total / (1 + c)) - c * c / 2 - math.log(2 * math.pi) / 2 - math.log(root))


@cache
def _gauss_rule() -> tuple[Floats, Floats]:
    """Return 64 Gauss–Legendre nodes and weights on (0, 40), beyond which the integrand is below e^−38 of its start."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return 20 * (nodes + 1), 20 * weights
