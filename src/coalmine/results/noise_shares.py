"""Shares of the claimed noise: which one is excluded, which would be detected, and how many canaries that takes.

A share of 0.5 stands for a training with half the claimed noise multiplier. Less noise means less privacy, so whatever
rejects a share rejects all larger ones, and all searches here are bisections.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

POWER = 0.8
"""The power at which an audit counts as able to detect something."""

HALF_THE_NOISE = 0.5
"""An audit that could not have detected this share of the claimed noise is too weak."""

RATIO = 1.03
"""Shares are powers of this number, so that searches for different things share their curves; 1.03⁰ is the claim."""

LEAST, MOST = -130, 80
"""The exponents that are looked at: from 0.02 to 11 times the claimed noise."""


def exponent_of(share: float) -> int:
    """Return the exponent of the share that is nearest to a share.

    Example:
        >>> exponent_of(1.0), exponent_of(HALF_THE_NOISE)
        (0, -23)
    """
    return round(math.log(share, RATIO))


def first_exponent(holds: Callable[[int], bool], *, near: int = 0, most: int = MOST) -> int | None:
    """Return the smallest exponent for which a condition holds that holds for all larger ones too; None if for none.

    The search starts at a guess and widens from there, since curves of shares far from the claim are the slow ones.

    Args:
        holds: The condition.
        near: The guess.
        most: The largest exponent to look at.

    Example:
        >>> first_exponent(lambda exponent: RATIO**exponent > 0.7)
        -12
    """
    holds = cache(holds)
    low = high = min(near, most)
    step = 4
    while holds(low):
        if low == LEAST:
            return LEAST
        high, low, step = low, max(LEAST, low - step), 2 * step
    while not holds(high):
        if high == most:
            return None
        low, high, step = high, min(most, high + step), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def rejected_share(p_value: Callable[[int], float], alpha: float, *, near: int = 0) -> float | None:
    """Return the smallest share that is rejected: every larger one claims more, so it is rejected too.

    Args:
        p_value: P-value of the claim with a share of its noise, by exponent.
        alpha: Significance.
        near: Exponent at which to start.
    """
    exponent = first_exponent(lambda i: p_value(i) <= alpha, near=near)
    return None if exponent is None else RATIO**exponent


def detectable_share(power: Callable[[int], float]) -> float | None:
    """Return the largest share, at most 1, that is told from the claim with the wanted power; None if there is none.

    Args:
        power: Probability to detect a share, by exponent.

    Example:
        >>> round(detectable_share(lambda exponent: 1 - RATIO**exponent / 2), 2)  # 80% power at a share of 0.4
        0.4
    """
    missed = first_exponent(lambda i: power(i) < POWER, near=exponent_of(0.7), most=0)
    return None if missed == LEAST else RATIO ** ((0 if missed is None else missed) - 1)


def number_needed(count: int, power: Callable[[float], float], *, most: int) -> int | None:
    """Return how many canaries or trials reach the wanted power, within 41% and rounded up to two digits.

    Args:
        count: Their number now, which is too small.
        power: Power with so many times as many.
        most: The largest number worth naming; None is returned beyond it.

    Example:
        >>> number_needed(100, lambda factor: min(1.0, factor / 10), most=10_000)
        800
    """
    # The smallest power of two that reaches it: first in growing steps, since simulating many canaries takes long.
    largest = math.floor(math.log2(most / count))
    low, high = 0, min(1, largest)
    while power(2.0**high) < POWER:
        if high >= largest:
            return None
        low, high = high, min(2 * high, largest)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(2.0**middle) >= POWER else (middle, high)
    smaller = 2.0**high / math.sqrt(2)
    needed = math.ceil(count * (smaller if power(smaller) >= POWER else 2.0**high))
    digits: int = 10 ** max(0, math.floor(math.log10(needed)) - 1)
    return math.ceil(needed / digits) * digits
