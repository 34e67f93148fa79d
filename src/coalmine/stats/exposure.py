"""Exposure of canaries, the ε that it suggests, its distribution for canaries that were not memorized, and conversions.

The exposure of a canary is log2(n) − log2(rank) of its loss among n references from the same distribution that were
held out of training; the lower the loss, the more exposed the canary (Carlini et al., 2019; Jagielski, 2023). Nothing
in this module is a confidence bound on ε: for one, pass the losses, or the scores of `scores_from_ranks`, to
`coalmine.stats.simultaneous`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import Floats, finite_array, finite_list
from coalmine.errors import InputError, check_confidence, check_count, check_probability
from coalmine.stats.scores import Estimate

LN2 = math.log(2)
MAX_SHAPE = 100.0
MIN_FIT = 10

# A Gauss–Legendre rule on (0, 40), beyond which the integrand of the skew-normal tail is below e^−38 of its start.
_NODES, _WEIGHTS = 20 * (1 + np.polynomial.legendre.leggauss(64)[0]), 20 * np.polynomial.legendre.leggauss(64)[1]


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
    tied = {"middle": 0.5, "worst": 1.0, "best": 0.0}
    if ties not in tied:
        raise InputError(f'ties must be "middle", "worst" or "best", got {ties!r}')
    return 1 + below + tied[ties] * (not_above - below)


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
        InputError: If the quantile is out of range.

    Example:
        >>> round(epsilon_from_exposure(5.0), 3)  # 4 ln 2
        2.773
    """
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
    if not 1 / n <= fpr * (1 + 1e-12) <= 1 + 1e-12:
        raise InputError(f"fpr must be in (0, 1], and at least one over the {n} references, got {fpr}")
    # Rounding must not lose a reference: 0.29 * 100 < 29.
    flagged = math.floor(fpr * n * (1 + 1e-12))
    tpr = float(np.mean(_ranks(ranks, n) <= 1 + flagged))
    epsilon = max(0.0, math.log(tpr * n / flagged)) if tpr > 0 else 0.0
    return Estimate(method="low-fpr", epsilon=epsilon, valid=False, threshold=1.0 + flagged)


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
    wrong = (array < 1) | (array > references + 1)
    if np.any(wrong):
        raise InputError(f"ranks must be in [1, {references + 1}], got {array[wrong].flat[0]}")
    return array


@dataclass(frozen=True)
class RandomGuessing:
    """Distribution of exposures if nothing was memorized: m canaries exchangeable with n shared references.

    ``mean`` and ``quantile`` are for the canary at a position, 1 being the most exposed; without a position they are
    for a single canary (Jagielski, 2023, Section 2.1). Compare the median exposure of all canaries with
    ``sample_median_mean`` and ``sample_median_interval``. Exact for losses without ties; time is linear in n.

    Args:
        references: Number n of references; `math.inf` is the baseline of extrapolated exposure.
        canaries: Number m of canaries.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> baseline = RandomGuessing(references=1000, canaries=101)
        >>> round(baseline.mean(), 2), round(baseline.median(), 2), round(baseline.mean(position=1), 2)
        (1.43, 1.0, 7.17)
        >>> [round(end, 2) for end in baseline.sample_median_interval()]
        [0.73, 1.32]
    """

    references: float
    canaries: int = 1

    def __post_init__(self) -> None:
        if self.references != math.inf:
            check_count("references", self.references)
        check_count("canaries", self.canaries)

    def mean(self, position: int | None = None) -> float:
        """Return the mean exposure."""
        m, k = (1, 1) if position is None else (self.canaries, position)
        if self.references == math.inf:
            return float(special.digamma(m + 1) - special.digamma(k)) / LN2
        ahead = self._ahead(m, k)
        return float(math.log2(self.references) - ahead @ np.log2(np.arange(1, ahead.size + 1)))

    def median(self) -> float:
        """Return the median exposure of one canary: about 1 bit."""
        return self.quantile(0.5)

    def quantile(self, probability: float, position: int | None = None) -> float:
        """Return the least e such that the exposure is ≤ e with at least this probability."""
        p = check_probability("probability", probability)
        m, k = (1, 1) if position is None else (self.canaries, position)
        if self.references == math.inf:
            return float(-np.log2(special.betainccinv(k, m - k + 1, p)))
        ahead = self._ahead(m, k)
        # Each tail is summed from its own end to keep far quantiles accurate. The slack absorbs rounding where a
        # probability is met exactly, as for a median by symmetry.
        if p < 0.5:
            rank = ahead.size - np.searchsorted(np.cumsum(ahead[::-1]), p * (1 - 1e-9))
        else:
            rank = 1 + np.searchsorted(np.cumsum(ahead), (1 - p) * (1 + 1e-9), side="right")
        return math.log2(self.references) - math.log2(rank)

    def sample_median_mean(self) -> float:
        """Return the mean of the median of the m exposures."""
        return (self.mean((self.canaries + 1) // 2) + self.mean(self.canaries // 2 + 1)) / 2

    def sample_median_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return an interval that contains the median of the m exposures with at least this probability.

        For an even m it contains both of the middle exposures.
        """
        tail = (1 - check_confidence(confidence)) / 2
        return self.quantile(tail, self.canaries // 2 + 1), self.quantile(1 - tail, (self.canaries + 1) // 2)

    def _ahead(self, canaries: int, position: int) -> Floats:
        """Return the probabilities of 0…n references ahead of the canary, which are beta-binomial, shape (n + 1,)."""
        k, after = np.arange(int(self.references) + 1.0), canaries - position
        log = special.gammaln(k + position) - special.gammaln(k + 1)
        log = log + (special.gammaln(k + after + 1) - special.gammaln(k + 1))[::-1]
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class SkewNormal:
    """The skew-normal distribution: density 2/scale · φ(z) Φ(shape · z) at z = (x − location)/scale (Azzalini 1985)."""

    location: float
    scale: float
    shape: float

    @classmethod
    def fit(cls, references: ArrayLike) -> Self:
        """Return the maximum likelihood fit among shapes within ±`MAX_SHAPE`.

        Without a limit the most likely shape can be infinite.
        """
        from scipy.optimize import minimize  # slow to import

        losses = finite_list("references", references)
        low, high = float(losses.min()), float(losses.max())
        spread = high - low
        if losses.size < MIN_FIT or not 0 < spread < math.inf:
            raise InputError(
                f"a skew-normal fit needs at least {MIN_FIT} references that differ, and by a finite amount, got "
                f"{losses.size} losses from {low} to {high}"
            )
        unit = (losses - low) / spread
        mean, deviation = float(unit.mean()), float(unit.std())
        x = (unit - mean) / deviation

        def cost(parameters: Floats) -> tuple[float, Floats]:
            """Return the mean negative log-likelihood without constants, and its gradient."""
            inverse_scale, shift, shape = parameters
            z = inverse_scale * x - shift
            mills = math.sqrt(2 / math.pi) / special.erfcx(-shape * z / math.sqrt(2))  # φ/Φ at shape · z
            slope = z - shape * mills
            value = float(np.mean(z * z / 2 - special.log_ndtr(shape * z))) - math.log(inverse_scale)
            return value, np.array([np.mean(slope * x) - 1 / inverse_scale, -np.mean(slope), -np.mean(mills * z)])

        fits = []
        # The normal distribution is a stationary point for any losses, so searches start on either side of it.
        for shape in (-MAX_SHAPE / 2, -3.0, -1.0, 1.0, 3.0, MAX_SHAPE / 2):
            # x has mean 0 and variance 1: start at the distribution of this shape with these moments.
            location = math.sqrt(2 / math.pi) * shape / math.hypot(1, shape)
            start = np.array([math.sqrt(1 - location**2), -location, shape])
            limits = [(1e-6, None), (None, None), (-MAX_SHAPE, MAX_SHAPE)]
            precision = {"ftol": 1e-15, "gtol": 1e-10, "maxls": 60, "maxiter": 2000}
            fits.append(minimize(cost, start, jac=True, method="L-BFGS-B", bounds=limits, options=precision))
        inverse_scale, shift, shape = min(fits, key=lambda fit: fit.fun).x.tolist()
        location = low + spread * (mean + deviation * shift / inverse_scale)
        return cls(location, spread * deviation / inverse_scale, shape)

    def logcdf(self, x: ArrayLike) -> Floats:
        """Return ln P(X ≤ x), with a relative accuracy of about 1e-13 however far ``x`` is in the lower tail."""
        z = (np.asarray(x, dtype=np.float64) - self.location) / self.scale
        # |Z| is half-normal for every shape. So the values for the other three sign combinations of z and shape follow
        # from the tail of the non-negative shape at −|z|, without cancellation.
        # With c = |z|·√(1 + shape²) and δ = shape/√(1 + shape²), it is φ(c)/√(1 + shape²) times the integral of
        # exp(−cv − v²/2) erfcx(δ(c + v)/√2) over v > 0. For every shape the integrand decays within a few 1/(1 + c), so
        # one Gauss rule serves all.
        shape = abs(self.shape)
        root = math.hypot(1, shape)
        c = np.abs(z) * root
        total = np.zeros_like(c)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            v = node / (1 + c)
            total += weight * np.exp(-v * (c + v / 2)) * special.erfcx(shape / root * (c + v) / math.sqrt(2))
        tail = np.asarray(np.log(total / (1 + c)) - c * c / 2 - math.log(2 * math.pi) / 2 - math.log(root))
        if self.shape >= 0:
            return np.where(z <= 0, tail, np.minimum(np.log(special.erf(np.abs(z) / math.sqrt(2)) + np.exp(tail)), 0))
        both = LN2 + special.log_ndtr(-np.abs(z))
        return np.where(z <= 0, both + np.log1p(-np.exp(tail - both)), np.log1p(-np.exp(tail)))
