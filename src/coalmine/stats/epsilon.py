"""`Estimate`, the result of every estimator, and the search that turns tests of a claim into a lower bound on ε."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

INDEPENDENT = "the scores are independent of one another and members were picked at random among exchangeable canaries"
COIN_FLIPS = "each canary was inserted by its own fair coin flip"
GAUSSIAN = "the mechanism is Gaussian (its trade-off curve is that of two shifted normal distributions)"

_HALVINGS = 10  # enough to correct for about a thousand bounds that are tested together


@dataclass(frozen=True)
class Estimate:
    """An estimate of ε at δ, or a lower bound on it, with the assumptions it rests on.

    If ``valid`` is True, ``lower`` is a confidence bound for every mechanism: provided that ``assumes`` holds, it
    exceeds the true ε at ``delta`` with probability at most ``1 - confidence``. Its ``epsilon`` is then that bound.
    Every other result is an estimate: informative, but never a bound.

    No field bounds the mechanism's ε from above, and no audit can: a better attack may exist.

    Attributes:
        method: Name of the estimator, one of `coalmine.stats.METHODS` or an estimator of an audit.
        epsilon: The value to report.
        lower: Lower end of the confidence interval.
        upper: Upper end of the interval for what *this attack at this threshold* shows.
        confidence: Confidence level of ``lower`` and ``upper``.
        delta: The δ at which ε is stated.
        valid: Whether ``lower`` is a bound for every mechanism, as described above.
        threshold: The score at or above which canaries are guessed to be members, if the method uses one.
        assumes: What must hold for ``valid``, in words.
        stricter: Pairs (confidence, lower) at higher confidences, for bounds that are tested together.
        doubtful: Whether a check of the assumptions failed, so that the estimate should not be relied on.
        few_scores: Whether it rests on too few scores to stand for a result, or to check its assumptions.

    Raises:
        ValueError: If a number is negative or NaN, or a valid bound has no ``lower`` or another ``epsilon``.

    Example:
        >>> Estimate.bound("simultaneous", 1.2, delta=1e-5, confidence=0.95, assumes=INDEPENDENT).valid
        True
        >>> Estimate("plug-in", 2.5, delta=1e-5).valid
        False
    """

    method: str
    epsilon: float
    lower: float | None = None
    upper: float | None = None
    confidence: float | None = None
    delta: float = 0.0
    valid: bool = False
    threshold: float | None = None
    assumes: str = ""
    stricter: tuple[tuple[float, float], ...] = ()
    doubtful: bool = False
    few_scores: bool = False

    def __post_init__(self) -> None:
        for name in ("epsilon", "lower", "upper"):
            value = getattr(self, name)
            if value is not None and (math.isnan(value) or value < 0):
                raise ValueError(f"{name} of {self.method} must be at least 0, got {value}")
        if self.valid and (self.epsilon != self.lower or self.confidence is None):
            raise ValueError(f"{self.method} is marked as a valid bound without a confidence or a lower end at its ε")

    @classmethod
    def bound(
        cls,
        method: str,
        lower: float,
        *,
        delta: float,
        confidence: float,
        assumes: str,
        threshold: float | None = None,
        valid: bool = True,
    ) -> Self:
        """Return a lower bound, which is also the reported ε."""
        return cls(method, lower, lower, None, confidence, delta, valid, threshold, assumes)

    def with_stricter(self, lower_at: Callable[[float], float | None]) -> Self:
        """Return this bound together with its values at higher confidences, each of which halves the significance.

        Args:
            lower_at: Computes the lower bound at a confidence; None counts as 0.
        """
        assert self.confidence is not None
        levels = [1 - (1 - self.confidence) / 2**halvings for halvings in range(1, _HALVINGS + 1)]
        return replace(self, stricter=tuple((level, lower_at(level) or 0.0) for level in levels))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary, in which an infinite ε is the string ``"inf"``."""
        record = asdict(self)
        # Fields that are seldom set are left out of results in which they are not.
        for name in ("stricter", "doubtful", "few_scores"):
            if not record[name]:
                del record[name]
        if self.stricter:
            record["stricter"] = [[level, "inf" if lower == math.inf else lower] for level, lower in self.stricter]
        return {name: "inf" if value == math.inf else value for name, value in record.items()}


def largest(margin: Callable[[float], float], *, floor: float = 0.0, relative: float = 1e-10) -> float:
    """Return the largest x ≥ ``floor`` with ``margin(x) ≤ 0``, for a margin that grows with x, by bisection.

    ``floor`` if the margin is already positive there, infinity if it is not beyond 10³⁰⁰. Any other result satisfies
    the condition itself: rounding goes down, so that a confidence bound found this way remains one.

    Args:
        margin: What must not be positive. Infinite values, where only the sign is known, are fine.
        floor: Where to start.
        relative: Relative width at which the bisection stops.
    """
    inside, outside = -math.inf, math.inf  # the condition holds up to here, and fails from there on
    margin_inside, margin_outside = -math.inf, math.inf
    streak = 0  # probes in a row at which it held, or failed if negative

    def holds(x: float) -> bool:
        """Whether the condition holds at x: known from earlier evaluations, or found by closing in on the root."""
        nonlocal inside, outside, margin_inside, margin_outside, streak
        while inside < x < outside:
            probe, gap = x, outside - inside
            # False position takes far fewer evaluations than halving, unless the margin is flat somewhere.
            if abs(streak) < 4 and math.isfinite(margin_outside - margin_inside):
                share = margin_inside / (margin_inside - margin_outside)
                # A step of at least an eighth of the accuracy crosses the root once an end has come that close.
                least = min(0.5, relative * outside / gap / 8)
                aimed = inside + gap * min(1 - least, max(least, share))
                probe = aimed if inside < aimed < outside else x
            value = margin(probe)
            # An end that stays twice in a row counts half (the Illinois rule), or the other would creep up on the root.
            if value <= 0:
                inside, margin_inside, streak = probe, value, max(streak, 0) + 1
                margin_outside /= 2 if streak > 1 else 1
            else:
                outside, margin_outside, streak = probe, value, min(streak, 0) - 1
                margin_inside /= 2 if streak < -1 else 1
        return x <= inside

    if not holds(floor):
        return floor
    low, high = floor, max(1.0, 2 * floor)
    while holds(high):
        low, high = high, 2 * high
        if high > 1e300:
            return math.inf
    while high - low > relative * max(high, 1e-3):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
