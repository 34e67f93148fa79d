"""Closed-form distributions of a non-member's score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import Floats
from coalmine.errors import InputError, NotApplicableError, check_count, check_number, check_positive


class Null(Protocol):
    """The known distribution of a non-member's score: tails as logarithms, mean and standard deviation.

    The two tails are of P(null ≥ score) and P(null < score); for a continuous distribution < or ≤ makes no difference.
    """

    def log_sf(self, score: ArrayLike) -> Floats:
        """ln P(null ≥ score)."""
        ...

    def log_cdf(self, score: ArrayLike) -> Floats:
        """ln P(null < score)."""
        ...

    @property
    def mean(self) -> float:
        """Mean score of a non-member."""
        ...

    @property
    def std(self) -> float:
        """Standard deviation of a non-member's score."""
        ...


@dataclass(frozen=True)
class NormalNull:
    """Non-members score N(mean, std²)."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(check_number("mean", self.mean)):
            raise InputError(f"mean must be finite, got {self.mean}")
        check_positive("std", self.std)

    def log_sf(self, score: ArrayLike) -> Floats:
        """ln P(null ≥ score)."""
        result: Floats = special.log_ndtr((self.mean - np.asarray(score, dtype=float)) / self.std)
        return result

    def log_cdf(self, score: ArrayLike) -> Floats:
        """ln P(null ≤ score)."""
        result: Floats = special.log_ndtr((np.asarray(score, dtype=float) - self.mean) / self.std)
        return result


@dataclass(frozen=True)
class CosineNull:
    """The cosine between a fixed direction and a random one, uniform on the unit sphere of ℝᵈ, d ≥ 2.

    Exact for every d: P(cos ≥ t) = ½ I₁₋ₜ²((d−1)/2, ½) for t ≥ 0. d = 2 is the arcsine law, d = 3 is uniform, large d
    is close to N(0, 1/d) in the middle and lighter in the tails.
    """

    dim: int

    def __post_init__(self) -> None:
        check_count("dim", self.dim, least=2)

    @property
    def mean(self) -> float:
        """0."""
        return 0.0

    @property
    def std(self) -> float:
        """1/√d, exactly."""
        return 1 / math.sqrt(self.dim)

    def log_sf(self, score: ArrayLike) -> Floats:
        """ln P(cos ≥ score), also where the probability itself underflows."""
        t = np.asarray(score, dtype=float)
        if np.any(np.abs(t) > 1):
            raise InputError(f"a cosine must be in [-1, 1], got {t[np.abs(t) > 1].flat[0]}")
        tail = self._log_tail(np.abs(t))
        with np.errstate(divide="ignore"):
            return np.where(t >= 0, tail, np.log1p(-np.exp(tail)))

    def log_cdf(self, score: ArrayLike) -> Floats:
        """ln P(cos ≤ score)."""
        return self.log_sf(-np.asarray(score, dtype=float))

    def _log_tail(self, t: Floats) -> Floats:
        """ln(½ I_x(a, ½)) with x = 1 − t², a = (d−1)/2.

        Where the incomplete beta function nears underflow, the logarithm of its continued fraction is taken instead.
        """
        a = (self.dim - 1) / 2
        x = (1 - t) * (1 + t)
        with np.errstate(divide="ignore"):
            tail = np.log(special.betainc(a, 0.5, x)) - math.log(2)
            far = tail < -600
            if np.any(far):
                front = a * (np.log1p(-t) + np.log1p(t)) + np.log(t) - math.log(2 * a) - special.betaln(a, 0.5)
                tail = np.where(far, front - np.log(_fraction(a, 0.5, np.where(far, x, 0.0))), tail)
        result: Floats = tail
        return result


@dataclass(frozen=True)
class LargestOfNull:
    """Never below the largest of ``count`` scores that each follow ``each``, however they depend on one another.

    P(largest ≥ t) is at most P(null ≥ t) = min(1, count · P(one ≥ t)). A claim allows more true positives where there
    are more false ones, so bounds on ε that take this null for the true one hold. Its mean and standard deviation say
    nothing of the scores, and are refused.
    """

    each: Null
    count: int

    def __post_init__(self) -> None:
        check_count("count", self.count)

    def log_sf(self, score: ArrayLike) -> Floats:
        """ln P(null ≥ score)."""
        return np.minimum(0.0, self.each.log_sf(score) + math.log(self.count))

    def log_cdf(self, score: ArrayLike) -> Floats:
        """ln P(null < score)."""
        with np.errstate(divide="ignore"):
            return np.log1p(-np.exp(self.log_sf(score)))

    @property
    def mean(self) -> float:
        """Not known."""
        raise NotApplicableError("the mean of the largest of several dependent scores is not known")

    @property
    def std(self) -> float:
        """Not known."""
        raise NotApplicableError("the standard deviation of the largest of several dependent scores is not known")


@dataclass(frozen=True)
class LikelihoodRatioNull:
    """Never below the logarithm of a likelihood ratio where the first hypothesis is true.

    The ratio itself has a mean of at most 1 there, so P(ln ratio ≥ t) is at most P(null ≥ t) = min(1, e⁻ᵗ) by Markov's
    inequality. Mean and standard deviation say nothing of the scores, and are refused.
    """

    def log_sf(self, score: ArrayLike) -> Floats:
        """ln P(null ≥ score)."""
        result: Floats = np.minimum(0.0, -np.asarray(score, dtype=float))
        return result

    def log_cdf(self, score: ArrayLike) -> Floats:
        """ln P(null < score)."""
        with np.errstate(divide="ignore"):
            return np.log(-np.expm1(self.log_sf(score)))

    @property
    def mean(self) -> float:
        """Not known."""
        raise NotApplicableError("the mean of a log-likelihood ratio is not known")

    @property
    def std(self) -> float:
        """Not known."""
        raise NotApplicableError("the standard deviation of a log-likelihood ratio is not known")


def _fraction(a: float, b: float, x: Floats) -> Floats:
    """The continued fraction 1 + d₁/(1 + d₂/(1 + …)) of x^a (1−x)^b / (a B(a, b) I_x(a, b)), by Lentz's method.

    Converges fast for x well below the mean a/(a+b), where the callers need it.
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

    Raises:
        InputError: If the text names none.

    Example:
        >>> parse_null("cosine:1000")
        CosineNull(dim=1000)
    """
    if text is None:
        return None
    kind, _, rest = text.partition(":")
    try:
        if kind == "cosine":
            return CosineNull(check_count("the dimension of a cosine null", float(rest), least=2))
        if kind == "normal":
            return NormalNull(*(float(part) for part in rest.split(","))) if rest else NormalNull()
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"null must be cosine:DIM, normal, or normal:MEAN,STD, got {text!r}")
