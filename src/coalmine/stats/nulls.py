"""How does a held-out canary score? The null: the distribution of its score where that is known in closed form.

With a known null the false positive rate is computed instead of counted, so the bound on ε is not limited by the
number of held-out canaries (the ``exact-null`` estimator).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_number, check_positive, parse_kind


class Null(Protocol):
    """The known distribution of a non-member's score.

    Tail probabilities are logarithms, since the interesting ones underflow. Implement this protocol to use a
    custom null; bounds stay valid for a null that is stochastically larger than the true one.

    Example:
        >>> from coalmine.stats import estimate
        >>> class UniformNull:
        ...     mean, std = 0.5, 12**-0.5
        ...
        ...     def log_sf(self, score):
        ...         return np.log(1 - np.clip(score, 0, 1 - 1e-12))
        ...
        ...     def log_cdf(self, score):
        ...         return np.log(np.clip(score, 1e-12, 1))
        >>> estimate(np.full(50, 0.99), null=UniformNull())[0].method
        'exact-null'
    """

    def log_sf(self, score: ArrayLike) -> Floats:
        """Return ln P(null ≥ score)."""
        ...

    def log_cdf(self, score: ArrayLike) -> Floats:
        """Return ln P(null < score)."""
        ...

    @property
    def mean(self) -> float:
        """Mean score of a non-member; NaN if only its tails are known, so that there is nothing to fit."""
        ...

    @property
    def std(self) -> float:
        """Standard deviation of a non-member's score; NaN if only its tails are known."""
        ...


@runtime_checkable
class DependentNull(Protocol):
    """A null of scores that are independent only given a random quantity that all of them share."""

    def given_shared(self, score: ArrayLike) -> tuple[Floats, Floats, Floats]:
        """Return tail probabilities given the shared quantity, whose values are divided into parts.

        Args:
            score: Scores, (n,).

        Returns:
            Probabilities of the parts, (parts,); ln P(null ≥ score) and ln P(null < score) given each part, or upper
            and lower bounds on them, (n, parts).
        """
        ...

    def proved_p_value(self, scores: Floats) -> float:
        """Return a p-value for scores that tell nothing, which holds even if this null is only an approximation."""
        ...


@dataclass(frozen=True)
class NormalNull:
    """A normal null distribution: non-members score N(mean, std²).

    Args:
        mean: Mean score of a non-member.
        std: Standard deviation of a non-member's score, above 0.

    Raises:
        InputError: If the mean is not finite or the standard deviation is not positive.

    Example:
        >>> float(np.exp(NormalNull(mean=1.0, std=2.0).log_sf(1.0)))
        0.5
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(check_number("mean", self.mean)):
            raise InputError(f"mean must be finite, got {self.mean}")
        check_positive("std", self.std)

    def log_sf(self, score: ArrayLike) -> Floats:
        """Return ln P(null ≥ score)."""
        return np.asarray(special.log_ndtr((self.mean - np.asarray(score, dtype=float)) / self.std))

    def log_cdf(self, score: ArrayLike) -> Floats:
        """Return ln P(null ≤ score)."""
        return np.asarray(special.log_ndtr((np.asarray(score, dtype=float) - self.mean) / self.std))


@dataclass(frozen=True)
class CosineNull:
    """The cosine between a fixed vector and a uniformly random direction in ℝᵈ.

    This is the null of random update canaries (Andrew et al., 2023, Section 3), exact for every d:
    P(cos ≥ t) = ½ I₁₋ₜ²((d−1)/2, ½) for t ≥ 0. It is the arcsine law for d = 2, uniform for d = 3, and for large d
    close to N(0, 1/d) with lighter tails.

    Args:
        dim: Dimension d of the space, at least 2.

    Raises:
        InputError: If ``dim`` is not a whole number of at least 2, or a score is outside [-1, 1].

    Example:
        >>> null = CosineNull(10_000)
        >>> null.std
        0.01
        >>> round(float(null.log_sf(0.5)))  # far beyond the smallest float
        -1443
    """

    dim: int
    mean: float = field(default=0.0, init=False, repr=False)
    std: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # The standard deviation of the cosine is exactly 1/√d.
        object.__setattr__(self, "std", 1 / math.sqrt(check_count("dim", self.dim, least=2)))

    def log_sf(self, score: ArrayLike) -> Floats:
        """Return ln P(cos ≥ score), also where the probability itself underflows."""
        cosine = _cosines(score)
        t = np.abs(cosine)
        # P(cos ≥ t) = ½ I_x(a, ½) with x = 1 − t² and a = (d−1)/2.
        a, x = (self.dim - 1) / 2, (1 - t) * (1 + t)
        with np.errstate(divide="ignore"):
            tail = np.log(special.betainc(a, 0.5, x)) - math.log(2)
            # Near underflow (e^−745) the incomplete beta function loses digits: use the logarithm of its continued
            # fraction instead.
            far = tail < -600
            if np.any(far):
                front = a * (np.log1p(-t) + np.log1p(t)) + np.log(t) - math.log(2 * a) - special.betaln(a, 0.5)
                tail = np.where(far, front - np.log(_fraction(a, 0.5, np.where(far, x, 0.0))), tail)
            return np.asarray(np.where(cosine >= 0, tail, np.log1p(-np.exp(tail))))

    def log_cdf(self, score: ArrayLike) -> Floats:
        """Return ln P(cos ≤ score)."""
        return self.log_sf(-np.asarray(score, dtype=float))


def symmetry_p_value(scores: Floats) -> float:
    """Return a p-value for scores whose signs, given their magnitudes, are independent fair coin flips.

    Among the k scores of largest magnitude, the number of positive ones is then Binomial(k, ½). It is tested for k = m,
    m/2, m/4, … of m scores, and the smallest p-value is multiplied by the number of tests. Nothing is assumed about the
    magnitudes, which may depend on each other in any way.

    Args:
        scores: Scores, (m,). Zeros count as negative, and among equal magnitudes negative ones as larger.

    Returns:
        A p-value that is small if too many of the large scores are positive.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> symmetry_p_value(rng.normal(0, 1, 100)) > 0.05, symmetry_p_value(rng.normal(1, 1, 100)) < 1e-6
        (True, True)
    """
    # Fewer than eight fair coins could not reject anything at the share of the significance that is left to them.
    halvings = np.arange(max(0, int(math.log2(scores.size / 8))) + 1)
    tested = np.unique(np.round(scores.size / 2.0**halvings).astype(np.int64))
    order = np.lexsort((scores > 0, -np.abs(scores)))
    positive = np.cumsum(scores[order] > 0)[tested - 1]
    tails = np.where(positive > 0, special.betainc(np.maximum(positive, 1), tested - positive + 1, 0.5), 1.0)
    return float(min(1.0, tested.size * tails.min()))


@dataclass(frozen=True)
class OrthogonalCosineNull(CosineNull):
    """Cosines of orthonormal canaries with a vector, each after removing the vector's components along the others.

    For canaries in a uniformly random orientation, or a vector in one, these cosines are gᵢ / √(gᵢ² + r²) with
    independent standard normal gᵢ and *one* r, the length of what is orthogonal to all canaries, χ-distributed with
    ``dim`` − 1 degrees of freedom. Each cosine alone follows `CosineNull`. All together share r, and are independent
    only given r, so tests at ranks average over it (`given_shared`).

    For canaries whose orientation is not uniform, only their random signs are certain. A test rejects nothing that
    these alone do not reject (`proved_p_value`), so the false-alarm rate for scores that tell nothing is certain too.

    Args:
        dim: Dimensions that the other canaries leave free, at least 2.

    Raises:
        InputError: If ``dim`` is not a whole number of at least 2, or a score is outside [-1, 1].

    Example:
        >>> null = OrthogonalCosineNull(5000)
        >>> shares, log_sf, _ = null.given_shared([0.03])
        >>> print(f"{np.exp(log_sf[0]) @ shares:.4f}, exactly {np.exp(null.log_sf(0.03)):.4f}")
        0.0170, exactly 0.0169
    """

    def given_shared(self, score: ArrayLike) -> tuple[Floats, Floats, Floats]:
        """Return the probabilities of short intervals of r, and tail probabilities for the worse end of each."""
        # Intervals of a χ variable, a tenth of a standard deviation each; beyond are 1e-15 of the probability.
        ends, half = np.linspace(-8, 8, 161), (self.dim - 1) / 2
        # Quantiles from the nearer tail, where probabilities are accurate.
        lower, upper = special.gammaincinv(half, special.ndtr(ends)), special.gammainccinv(half, special.ndtr(-ends))
        lengths = np.concatenate([[0.0], np.sqrt(2 * np.where(ends < 0, lower, upper)), [np.inf]])
        shares = np.diff(special.ndtr(ends), prepend=0.0, append=1.0)
        t = _cosines(score)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            # A cosine of t takes g = r · t/√(1 − t²). Of an interval, the end that makes this likelier counts.
            needed = t / np.sqrt((1 - t) * (1 + t)) * np.where(t > 0, lengths[:-1], lengths[1:])
        needed = np.where(t == 0, 0.0, needed)
        return shares, special.log_ndtr(-needed), special.log_ndtr(needed)

    # Of the signs alone: given the magnitudes, each score is as often negative as positive.
    proved_p_value = staticmethod(symmetry_p_value)


def _cosines(score: ArrayLike) -> Floats:
    """Return scores as an array, or raise `InputError` if one is no cosine."""
    t = np.asarray(score, dtype=float)
    if np.any(np.abs(t) > 1):
        raise InputError(f"a cosine must be in [-1, 1], got {t[np.abs(t) > 1].flat[0]}")
    return t


@dataclass(frozen=True)
class LargestOfNull:
    """An upper bound on the largest of several scores with the same null, however they depend on one another.

    By the union bound, P(largest ≥ t) ≤ min(1, count · P(score ≥ t)), and this null attains the right-hand side.
    Overstating false positives only weakens the evidence against a claim, so lower bounds on ε stay valid. The mean and
    the standard deviation are unknown, so Gaussian estimators do not apply.

    Args:
        each: Null distribution of one score.
        count: Number of scores of which the largest is taken.

    Example:
        >>> round(float(np.exp(LargestOfNull(NormalNull(), 3).log_sf(2.0))), 4)  # 3 · 0.02275
        0.0683
    """

    each: Null
    count: int
    mean: float = field(default=math.nan, init=False, repr=False, compare=False)
    std: float = field(default=math.nan, init=False, repr=False, compare=False)

    def log_sf(self, score: ArrayLike) -> Floats:
        """Return ln P(null ≥ score)."""
        return np.minimum(0.0, self.each.log_sf(score) + math.log(self.count))

    def log_cdf(self, score: ArrayLike) -> Floats:
        """Return ln P(null < score)."""
        with np.errstate(divide="ignore"):
            return np.log1p(-np.exp(self.log_sf(score)))


@dataclass(frozen=True)
class LikelihoodRatioNull:
    """An upper bound on the log-likelihood ratio of "member" to "non-member" for non-members.

    The ratio has mean at most 1 for non-members, so P(ln ratio ≥ t) ≤ min(1, e⁻ᵗ) by Markov's inequality, and this null
    attains the right-hand side. Lower bounds on ε stay valid. The mean and the standard deviation are unknown, so
    Gaussian estimators do not apply.

    Example:
        >>> float(LikelihoodRatioNull().log_sf(5.0))
        -5.0
    """

    mean: float = field(default=math.nan, init=False, repr=False, compare=False)
    std: float = field(default=math.nan, init=False, repr=False, compare=False)

    def log_sf(self, score: ArrayLike) -> Floats:
        """Return ln P(null ≥ score)."""
        return np.asarray(np.minimum(0.0, -np.asarray(score, dtype=float)))

    def log_cdf(self, score: ArrayLike) -> Floats:
        """Return ln P(null < score)."""
        with np.errstate(divide="ignore"):
            return np.log(-np.expm1(self.log_sf(score)))


def _fraction(a: float, b: float, x: Floats) -> Floats:
    """Return the continued fraction 1 + d₁/(1 + d₂/(1 + …)) of x^a (1−x)^b / (a B(a, b) I_x(a, b)).

    Lentz's method; it converges fast for x well below the mean a/(a+b), which is where it is needed.
    """
    value, c, d = np.ones_like(x), np.ones_like(x), np.zeros_like(x)
    for m in range(10_000):
        even = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        odd = (m + 1) * (b - m - 1) * x / ((a + 2 * m + 1) * (a + 2 * m + 2))
        before = value
        for step in (even, odd):
            d = 1 / (1 + step * d)
            c = 1 + step / c
            value = value * c * d
        if np.all(np.abs(value - before) <= 1e-14 * np.abs(value)):
            break
    return value


def parse_null(text: str | None) -> Null | None:
    """Return the null distribution that a text names: ``cosine:DIM``, ``normal`` or ``normal:MEAN,STD``.

    `null_text` writes three more: ``orthogonal-cosine:DIM``, ``likelihood-ratio`` and ``largest-of:COUNT,NULL``.

    Raises:
        InputError: If the text names none.

    Example:
        >>> parse_null("cosine:1000")
        CosineNull(dim=1000)
    """
    if text is None:
        return None
    kinds: dict[str, Callable[[str], Null]] = {
        "cosine:": lambda rest: CosineNull(check_count("the dimension of a cosine null", float(rest), least=2)),
        "normal": lambda _: NormalNull(),
        "normal:": lambda rest: NormalNull(*map(float, rest.split(",", 1))),
        "orthogonal-cosine:": lambda rest: OrthogonalCosineNull(int(rest)),
        "likelihood-ratio": lambda _: LikelihoodRatioNull(),
        "largest-of:": lambda rest: LargestOfNull(
            parse_null(rest.partition(",")[2]) or NormalNull(), int(rest.partition(",")[0])
        ),
    }
    return parse_kind(text, kinds, f"null must be cosine:DIM, normal, or normal:MEAN,STD, got {text!r}")


_FORMS: dict[type, str] = {
    CosineNull: "cosine:{0.dim}",
    NormalNull: "normal:{0.mean!r},{0.std!r}",
    OrthogonalCosineNull: "orthogonal-cosine:{0.dim}",
    LikelihoodRatioNull: "likelihood-ratio",
}


def null_text(null: Null) -> str | None:
    """Return the text that `parse_null` reads, or None for a distribution of somebody else's.

    Example:
        >>> null_text(LargestOfNull(OrthogonalCosineNull(900), 20))
        'largest-of:20,orthogonal-cosine:900'
    """
    if isinstance(null, LargestOfNull):
        each = null_text(null.each)
        return each and f"largest-of:{null.count},{each}"
    form = _FORMS.get(type(null))
    return form and form.format(null)
