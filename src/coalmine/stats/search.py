"""The largest parameter for which something still holds."""

from __future__ import annotations

import math
from collections.abc import Callable


def largest(
    holds: Callable[[float], bool], *, floor: float = 0.0, start: float = 1.0, relative: float = 1e-10
) -> float:
    """The largest x ≥ ``floor`` with ``holds(x)``, for a ``holds`` that is true up to some point and false after it.

    ``floor`` where it does not hold there, infinity where it always does (beyond 10³⁰⁰). Any other answer holds itself:
    rounding goes down, so that a bound found this way stays a bound.
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
