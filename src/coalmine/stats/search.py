"""The largest parameter for which something still holds."""

from __future__ import annotations

import math
from collections.abc import Callable


def largest(holds: Callable[[float], bool], *, start: float = 1.0, relative: float = 1e-10) -> float:
    """The largest x ≥ 0 with ``holds(x)``, for a ``holds`` that is true up to some point and false after it.

    0 where it never holds, infinity where it always does (beyond 10³⁰⁰). The answer always holds itself: rounding
    goes down, so that a bound found this way stays a bound.
    """
    if not holds(0.0):
        return 0.0
    low, high = 0.0, start
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
