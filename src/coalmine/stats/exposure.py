"""Exposure of canaries: what it is, what it would be by chance, and the ε it speaks of.

m canaries were trained on, n references from the same distribution were not; the lower a loss, the more exposed its
canary (Carlini et al. 2019; Jagielski 2023). Nothing in this file is a confidence bound on ε: for one, give the losses,
or the scores of `scores_from_ranks`, to a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from coalmine.errors import InputError, check_confidence, check_count, check_delta, check_positive
from coalmine.stats.estimate import Estimate

FloatArray = NDArray[np.float64]

LN2 = math.log(2)
MAX_SHAPE = 100.0
MIN_FIT = 10


def ranks(
    canaries: ArrayLike, references: ArrayLike, *, ties: Literal["middle", "worst", "best"] = "middle"
) -> FloatArray:
    """Rank in 1…n+1 of each canary's loss among the n reference losses: 1 + the number of references below it.

    A reference with the same loss counts a half (``middle``: a constant loss gets the median of random guessing),
    as below (``worst``: against exposure, what a bound needs) or not at all (``best``). Shapes (m,) and (n,) to (m,).
    """
    losses = _finite("canaries", canaries)
    ordered = np.sort(_finite("references", references))
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


def exposure(ranks: ArrayLike, references: int) -> FloatArray:
    """Exposure in bits, log2(n) − log2(rank), of ranks among n references: from log2(n/(n+1)) to log2(n)."""
    n = _count("references", references)
    return np.asarray(math.log2(n) - np.log2(_ranks(ranks, n)))


def extrapolated_exposure(canaries: ArrayLike, references: ArrayLike) -> FloatArray:
    """Exposure beyond log2(n): −log2 of the chance that a new reference has no higher loss, by a skew-normal fit.

    Only as good as the fit, which no reference confirms so far out (Carlini et al. 2019, Section 4.3). Compare it with
    ``RandomGuessing(math.inf, m)``. Shapes (m,) and (n,) to (m,).
    """
    losses = _finite("canaries", canaries)
    return -SkewNormal.fit(references).logcdf(losses) / LN2


@dataclass(frozen=True)
class SkewNormal:
    """The skew-normal law, density 2/scale · φ(z) Φ(shape · z) at z = (x − location)/scale (Azzalini 1985)."""

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
        """Maximum likelihood among the shapes in ±`MAX_SHAPE`: without a limit the best shape can be infinite.

        For a fixed shape the problem is concave in (1/scale, location/scale), so only the shape needs a search. The
        search is over the skewness, in which the likelihood has no false stationary point at the normal law.
        """
        from scipy.optimize import minimize_scalar  # noqa: PLC0415 (slow to import)

        losses = _finite("references", references)
        if losses.size < MIN_FIT:
            raise InputError(f"a skew-normal fit needs at least {MIN_FIT} references, got {losses.size}")
        low, high = float(losses.min()), float(losses.max())
        spread = high - low
        if not 0 < spread < math.inf:
            raise InputError(
                f"references must differ, and by a finite amount, for a skew-normal fit, got {losses.size} losses "
                f"from {low} to {high}"
            )
        unit = (losses - low) / spread
        mean, deviation = float(unit.mean()), float(unit.std())
        x = (unit - mean) / deviation

        grid = np.linspace(-1, 1, 7) * _skewness(MAX_SHAPE)
        costs = [_best_given_skewness(x, skewness)[0] for skewness in grid]
        best = int(np.argmin(costs))
        found = minimize_scalar(
            lambda skewness: _best_given_skewness(x, skewness)[0],
            bounds=(grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]),
            method="bounded",
            options={"xatol": 1e-8},
        )
        skewness = float(found.x if found.fun < costs[best] else grid[best])
        _, inverse_scale, shift = _best_given_skewness(x, skewness)
        location = low + spread * (mean + deviation * shift / inverse_scale)
        return cls(location, spread * deviation / inverse_scale, _shape(skewness)[0])

    def logpdf(self, x: ArrayLike) -> FloatArray:
        """Log density at ``x``."""
        z = (np.asarray(x, dtype=np.float64) - self.location) / self.scale
        constant = LN2 - math.log(self.scale) - math.log(2 * math.pi) / 2
        return np.asarray(constant - z * z / 2 + special.log_ndtr(self.shape * z))

    def logcdf(self, x: ArrayLike) -> FloatArray:
        """Log of P(X ≤ x), to about 1e-13 of itself however far ``x`` lies in the lower tail."""
        z = (np.asarray(x, dtype=np.float64) - self.location) / self.scale
        # |Z| is half-normal whatever the shape, so the other three quadrants of (z, shape) follow without cancellation
        # from a non-negative shape at −|z|.
        tail = _log_lower_tail(np.abs(z), abs(self.shape))
        if self.shape >= 0:
            return np.where(z <= 0, tail, np.minimum(np.log(special.erf(np.abs(z) / math.sqrt(2)) + np.exp(tail)), 0))
        both = LN2 + special.log_ndtr(-np.abs(z))
        return np.where(z <= 0, both + np.log1p(-np.exp(tail - both)), np.log1p(-np.exp(tail)))


def random_mean(references: float) -> float:
    """Expected exposure of a canary that was not memorised, exact; ``math.inf`` references give 1/ln 2."""
    n = _references(references)
    if n == math.inf:
        return 1 / LN2
    return float(math.log2(n) - special.gammaln(n + 2) / (n + 1) / LN2)


def random_quantile(references: float, probability: float) -> float:
    """The least e such that a canary that was not memorised has exposure ≤ e with at least this probability."""
    n, p = _references(references), _probability("probability", probability)
    if n == math.inf:
        return -math.log1p(-p) / LN2
    # The quotient, not the rounded product, says whether `count` of the n + 1 equally likely ranks are enough.
    count = max(math.ceil(p * (n + 1)) - 1, 1)
    while count / (n + 1) < p:
        count += 1
    return math.log2(n) - math.log2(n + 2 - count)


@dataclass(frozen=True, kw_only=True)
class OrderStatistic:
    """Exposure of the ``position``-th most exposed of m canaries that share n references, when none was memorised.

    Exact: canaries and references are then exchangeable, and the number of references ahead is beta-binomial. Loss
    ties are left out. ``references`` may be ``math.inf``; the time is linear in it otherwise.
    """

    references: float
    canaries: int
    position: int

    def __post_init__(self) -> None:
        _references(self.references)
        _count("canaries", self.canaries)
        if _count("position", self.position) > self.canaries:
            raise InputError(f"position must be at most the {self.canaries} canaries, got {self.position}")

    def mean(self) -> float:
        """Expected exposure."""
        if self.references == math.inf:
            return float(special.digamma(self.canaries + 1) - special.digamma(self.position)) / LN2
        ahead = self._ahead()
        return float(math.log2(self.references) - ahead @ np.log2(np.arange(1, ahead.size + 1)))

    def quantile(self, probability: float) -> float:
        """The least e such that the exposure is ≤ e with at least this probability."""
        p = _probability("probability", probability)
        if self.references == math.inf:
            return float(-np.log2(special.betainccinv(self.position, self.canaries - self.position + 1, p)))
        ahead = self._ahead()
        # Each tail is summed from its own end, so that far quantiles are right; the slack forgives rounding where a
        # probability is met exactly, as a median is by symmetry.
        if p < 0.5:
            rank = ahead.size - np.searchsorted(np.cumsum(ahead[::-1]), p * (1 - 1e-9))
        else:
            rank = 1 + np.searchsorted(np.cumsum(ahead), (1 - p) * (1 + 1e-9), side="right")
        return math.log2(self.references) - math.log2(rank)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Holds the exposure with at least this probability; at most half of the rest lies on either side."""
        tail = (1 - check_confidence(confidence)) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def _ahead(self) -> FloatArray:
        """Probabilities of 0…n references ahead, shape (n + 1,)."""
        n, after = int(self.references), self.canaries - self.position
        k = np.arange(n + 1.0)
        log = special.gammaln(k + self.position) - special.gammaln(k + 1)
        log = log + (special.gammaln(k + after + 1) - special.gammaln(k + 1))[::-1]
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class RandomGuessing:
    """What exposures look like when nothing was memorised: m canaries exchangeable with n shared references.

    ``mean``, ``median`` and ``quantile`` are those of any one canary (Jagielski 2023, Section 2.1). What m canaries
    give scatters around them: compare a most exposed canary with ``order_statistic(1)``, and the median exposure of
    all canaries with ``sample_median_mean`` and ``sample_median_interval``. ``references`` may be ``math.inf``.
    """

    references: float
    canaries: int = 1

    def __post_init__(self) -> None:
        _references(self.references)
        _count("canaries", self.canaries)

    def mean(self) -> float:
        """Expected exposure of one canary, and of the average over all of them."""
        return random_mean(self.references)

    def median(self) -> float:
        """Median exposure of one canary: about 1."""
        return random_quantile(self.references, 0.5)

    def quantile(self, probability: float) -> float:
        """Quantile of the exposure of one canary: about −log2(1 − probability)."""
        return random_quantile(self.references, probability)

    def order_statistic(self, position: int) -> OrderStatistic:
        """Law of the exposure of the ``position``-th most exposed canary."""
        return OrderStatistic(references=self.references, canaries=self.canaries, position=position)

    def sample_median_mean(self) -> float:
        """Expected median of the m exposures; of an even number, the mean of the two in the middle."""
        return (self._upper_middle().mean() + self._lower_middle().mean()) / 2

    def sample_median_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Holds the median of the m exposures with at least this probability, and both middle ones of an even m."""
        tail = (1 - check_confidence(confidence)) / 2
        return self._lower_middle().quantile(tail), self._upper_middle().quantile(1 - tail)

    def _upper_middle(self) -> OrderStatistic:
        return self.order_statistic((self.canaries + 1) // 2)

    def _lower_middle(self) -> OrderStatistic:
        return self.order_statistic(self.canaries // 2 + 1)


def epsilon_from_exposure(exposure: float, quantile: float = 0.5) -> float:
    """The ε that an exposure at this quantile of the canaries speaks of; a point estimate at δ = 0, not a bound.

    The attack that accepts whatever is as exposed has TPR 1 − quantile and FPR 2^−exposure, so that ε is
    ln 2 · exposure + ln(1 − quantile), or 0 (Jagielski 2023, Section 2.2).
    """
    if not math.isfinite(exposure):
        raise InputError(f"exposure must be a finite number, got {exposure}")
    return max(0.0, LN2 * exposure + math.log1p(-_probability("quantile", quantile)))


def exposure_for_epsilon(epsilon: float, quantile: float = 0.5) -> float:
    """The exposure at this quantile of the canaries from which `epsilon_from_exposure` gives ``epsilon``."""
    return (_epsilon(epsilon) - math.log1p(-_probability("quantile", quantile))) / LN2


def low_fpr_epsilon(ranks: ArrayLike, references: int, fpr: float) -> Estimate:
    """ln(TPR/FPR) of the attack that lets k = floor(fpr · n) references pass: a point estimate at δ = 0, not a bound.

    TPR is the share of canaries with rank ≤ 1 + k (the threshold) and FPR is k/n; no canary gives ε = 0. With k = 0
    the quotient would be infinite whatever the canaries, so that fpr · n must be at least 1.
    """
    n = _count("references", references)
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
    return _epsilon(epsilon) / _count("copies", copies)


def group_parameters(epsilon: float, delta: float, copies: int) -> tuple[float, float]:
    """What (ε, δ)-DP of one record guarantees for ``copies`` of them: (copies·ε, δ (e^{copies·ε} − 1)/(e^ε − 1)).

    The second is never more than 1, which guarantees nothing.
    """
    epsilon, delta, copies = _epsilon(epsilon), check_delta(delta), _count("copies", copies)
    group = copies * epsilon
    if delta == 0:
        return group, 0.0
    shrink = math.expm1(-group) / math.expm1(-epsilon) if epsilon > 0 else float(copies)
    log_factor = (copies - 1) * epsilon + math.log(shrink)
    return group, min(1.0, delta * math.exp(log_factor)) if log_factor < -math.log(delta) else 1.0


def calibrate(losses: ArrayLike, reference_model_losses: ArrayLike) -> FloatArray:
    """Each loss less the mean loss of the same example under models that never saw it (Watson et al. 2021).

    Shapes (n,) and (n,) or (models, n) to (n,). Canaries and references must be calibrated alike.
    """
    raw = _finite("losses", losses)
    difficulty = _array("reference_model_losses", reference_model_losses)
    if difficulty.ndim not in (1, 2) or difficulty.shape[-1] != raw.size or difficulty.size == 0:
        raise InputError(
            f"reference_model_losses must have the shape ({raw.size},) or (models, {raw.size}), got {difficulty.shape}"
        )
    return np.asarray(raw - np.atleast_2d(difficulty).mean(axis=0), dtype=np.float64)


def scores_from_ranks(ranks: ArrayLike, references: int) -> tuple[FloatArray, FloatArray]:
    """Scores of canaries (m,) and references (n,), higher for members, in the order that the ranks tell.

    So every bound on scores works on ranks, if they were made with ``ties="worst"``. A half in a rank is taken as a
    tie with one reference. Middle ranks forget how many references tied, and a bound on them does not hold: under a
    constant loss they put every canary ahead of half the references, which would pass for a large ε.
    """
    n = _count("references", references)
    placed = _ranks(ranks, n)
    if np.any(2 * placed % 1):
        raise InputError(f"ranks must be whole or half numbers, got {placed[2 * placed % 1 != 0].flat[0]}")
    return 0.5 - placed, -np.arange(1.0, n + 1)


def _skewness(shape: float) -> float:
    mean = math.sqrt(2 / math.pi) * shape / math.hypot(1, shape)
    return (4 - math.pi) / 2 * (mean / math.sqrt(1 - mean**2)) ** 3


def _shape(skewness: float) -> tuple[float, float]:
    """Shape of the skew-normal law with this skewness, and the mean of its standard form."""
    ratio = float(np.cbrt(2 * skewness / (4 - math.pi)))
    mean = ratio / math.hypot(1, ratio)
    return mean / math.sqrt(2 / math.pi - mean**2), mean


def _best_given_skewness(x: FloatArray, skewness: float) -> tuple[float, float, float]:
    """Least mean negative log-likelihood (constants dropped) of standardised ``x``, 1/scale and location/scale there.

    Newton's method with step halving: the cost is convex, and smooth.
    """
    shape, mean = _shape(skewness)

    def cost(inverse_scale: float, shift: float) -> float:
        if inverse_scale <= 0:
            return math.inf
        z = inverse_scale * x - shift
        return float(np.mean(z * z / 2 - special.log_ndtr(shape * z))) - math.log(inverse_scale)

    # The moments of x are 0 and 1: start at the law that has them.
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


def _log_lower_tail(distance: FloatArray, shape: float) -> FloatArray:
    """log P(Z ≤ −distance) of the standard law, for ``distance`` and ``shape`` of at least 0.

    With c = distance·√(1 + shape²) and δ = shape/√(1 + shape²) it is
    φ(c)/√(1 + shape²) · ∫ exp(−cv − v²/2) erfcx(δ(c + v)/√2) dv over v > 0, of which the integrand falls from its
    start within a few 1/(1 + c), for every shape: one Gauss rule serves them all.
    """
    root = math.hypot(1, shape)
    c = distance * root
    total = np.zeros_like(c)
    for node, weight in zip(*_gauss_rule(), strict=True):
        v = node / (1 + c)
        total += weight * np.exp(-v * (c + v / 2)) * special.erfcx(shape / root * (c + v) / math.sqrt(2))
    return np.asarray(np.log(total / (1 + c)) - c * c / 2 - math.log(2 * math.pi) / 2 - math.log(root))


@cache
def _gauss_rule() -> tuple[FloatArray, FloatArray]:
    """64 Gauss–Legendre nodes on (0, 40): beyond, the integrand is below e^−38 of its start."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return 20 * (nodes + 1), 20 * weights


def _array(name: str, values: ArrayLike) -> FloatArray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers, got {values!r:.80}") from error
    if not np.all(np.isfinite(array)):
        bad = array[~np.isfinite(array)].flat[0]
        raise InputError(f"{name} must be finite, got {bad} among {array.size} values")
    return array


def _finite(name: str, values: ArrayLike) -> FloatArray:
    array = _array(name, values)
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"{name} must be one row of at least one loss, got an array of shape {array.shape}")
    return array


def _ranks(values: ArrayLike, references: int) -> FloatArray:
    array = _array("ranks", values)
    if array.size == 0:
        raise InputError(f"ranks must hold at least one rank, got an array of shape {array.shape}")
    wrong = (array < 1) | (array > references + 1)
    if np.any(wrong):
        raise InputError(f"ranks must be in [1, {references + 1}], got {array[wrong].flat[0]}")
    return array


def _count(name: str, value: float) -> int:
    if not math.isfinite(value):
        raise InputError(f"{name} must be a whole number of at least 1, got {value}")
    return check_count(name, value)  # type: ignore[arg-type]


def _references(value: float) -> float:
    return math.inf if value == math.inf else _count("references", value)


def _probability(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise InputError(f"{name} must be in (0, 1), got {value}")
    return float(value)


def _epsilon(value: float) -> float:
    if not 0 <= value < math.inf:
        raise InputError(f"epsilon must be a finite number of at least 0, got {value}")
    return float(value)
