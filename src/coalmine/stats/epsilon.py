"""What every estimator returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

INDEPENDENT = "the scores are independent of one another and members were picked at random among like canaries"
COIN_FLIPS = "each canary was planted by its own fair coin flip"
GAUSSIAN = "the mechanism is Gaussian (its trade-off curve is that of two shifted normals)"

_HALVINGS = 10  # enough for a thousand bounds to be judged together


@dataclass(frozen=True)
class Estimate:
    """An ε, and what may be believed of it.

    ``valid`` is True only where ``lower`` is a confidence bound that holds whatever the mechanism is: with
    probability at least ``confidence`` it does not exceed the true ε at ``delta``, provided that ``assumes`` is true
    of how the scores came about. ``epsilon`` is then that bound. Everything else is an estimate: informative, and never
    to be called a bound.

    ``upper`` is the upper end of an interval for what this attack at this threshold shows. It never bounds the
    mechanism's ε from above: no audit can, since a better attack may exist.

    ``stricter`` is what ``lower`` is at higher confidences, as pairs: bounds that are judged together need them.
    ``doubtful`` says that a check of what an estimate rests on has failed: it is not to be relied on.
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

    def __post_init__(self) -> None:
        for name in ("epsilon", "lower", "upper"):
            value = getattr(self, name)
            if value is not None and (math.isnan(value) or value < 0):
                raise ValueError(f"{name} of {self.method} must be a number of at least 0, got {value}")
        if self.valid and (self.lower is None or self.confidence is None):
            raise ValueError(f"{self.method} claims to be a valid bound without a lower bound and a confidence")
        if self.valid and self.epsilon != self.lower:
            raise ValueError(f"{self.method} is a valid bound of {self.lower}, so its ε cannot be {self.epsilon}")

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
        """A lower bound, which is then also the ε reported."""
        return cls(method, lower, lower, None, confidence, delta, valid, threshold, assumes)

    def judged(self, again: Callable[[float], float | None]) -> Self:
        """The same bound, with what ``again`` gives at higher confidences: each halves the significance before it."""
        if self.confidence is None:
            raise ValueError(f"{self.method} has no confidence to raise")
        levels = [1 - (1 - self.confidence) / 2**halvings for halvings in range(1, _HALVINGS + 1)]
        return replace(self, stricter=tuple((level, again(level) or 0.0) for level in levels))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; an infinite ε becomes the string ``"inf"``."""
        found = {k: "inf" if v == math.inf else v for k, v in asdict(self).items() if k not in ("stricter", "doubtful")}
        if self.doubtful:
            found["doubtful"] = True
        if self.stricter:
            found["stricter"] = [[level, "inf" if lower == math.inf else lower] for level, lower in self.stricter]
        return found
