"""Bisection for the largest parameter at which a condition still holds."""

from __future__ import annotations

import math
from collections.abc import Callable


def largest(
    holds: Callable[[float], bool], *, floor: float = 0.0, start: float = 1.0, relative: float = 1e-10
) -> float:
    """Return the largest x ≥ ``floor`` with ``holds(x)``, for a condition that holds up to some point and fails beyond.

    ``floor`` if the condition already fails there, infinity if it still holds beyond 10³⁰⁰. Any other result satisfies
    the condition itself: rounding goes down, so that a confidence bound found this way remains one.
    """
    if not holds(floor):
        return floor
    low, high = floor, max(start, 2 * floor)
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
