"""Numbers of a release that have one value most of the time: without noise, or with noise of few values.

A standard deviation says little about them: a sign has no scale, and discrete noise on a coarse grid may have one value
in a dozen draws. So they are judged by probabilities, which needs nothing but the claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coalmine.arrays import Bools, Floats

# Draws to find out whether a number has noise, at most.
_MOST_DRAWS = 300

# Half of what one client may move the release by, over its noise, that two similar clients may differ by.
_SIMILAR = 1 / 8


def shortened(noise_multiplier: float) -> float:
    """Return the share by which the update of a similar client is shorter."""
    return _SIMILAR * min(1.0, noise_multiplier)


def proportional(moved: Floats, similar: Floats, noise_multiplier: float) -> Bools:
    """Return which numbers move less for a similar client, by about as much as its update is shorter.

    A number on a grid moves by whole steps. Those that differ by so little are many, and two clients that differ by one
    step are as similar, for the noise, as two whose updates do.

    Args:
        moved: How the release moves with the client.
        similar: How it moves with a client whose update is shorter by `shortened`.
        noise_multiplier: The claimed noise multiplier.
    """
    difference = np.abs(moved - similar)
    return np.asarray((difference > 0) & (difference <= 2 * shortened(noise_multiplier) * np.abs(moved)))


def largest_chance(noise_multiplier: float) -> float:
    """Return how often a number may have one value with a client and another without it, at most.

    Let a value have the probabilities p and q with and without the client. Gaussian noise, and discrete Gaussian noise,
    of noise multiplier z has a Kullback–Leibler divergence of at most 1/(2z²) in both directions, whatever follows
    (Bun and Steinke, 2016, Lemma 2.4; Canonne, Kamath and Steinke, 2020, Theorem 4). Let m = min(p, 1 − q) > ½.
    Then (2m − 1) log(m / (1 − m)) ≤ kl(p, q) ≤ 1/(2z²). A draw has the value on one side only with at most the
    probability m, however the two sides depend on each other.

    Example:
        >>> [round(largest_chance(z), 3) for z in (0.5, 1.0, 4.0)]
        [0.917, 0.74, 0.562]
    """
    allowed = 1 / (2 * noise_multiplier**2)
    # By bisection in t = log(m / (1 − m)), where 2m − 1 = tanh(t/2); t · tanh(t/2) > t − 1.
    low, high = 0.0, allowed + 1
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.tanh(middle / 2) < allowed else (low, middle)
    return 1 / (1 + math.exp(-high))


@dataclass(frozen=True)
class Alone:
    """Numbers that keep a value on one side which they never have on the other.

    Args:
        places: Which they are, (dim,).
        decided: Whether more draws could be made, or none were needed, to find out.
        p_value: Probability that any number does so if the claim holds.
    """

    places: Bools
    decided: bool = True
    p_value: float = 1.0


def alone(
    run: Callable[[int], tuple[Floats, Floats] | None],
    values: tuple[Floats, Floats],
    suspects: tuple[Bools, Bools],
    *,
    noise_multiplier: float,
    rate: float,
    first_draw: int,
    close: Floats | float = 0.0,
) -> Alone:
    """Find out, by new draws, which suspects have a value on one side only.

    Suspects are chosen before the draws that judge them, so only their number counts.

    Args:
        run: Function from a random draw to the releases of both sides; None if there is none.
        values: The value of each number on each side, (dim,).
        suspects: Numbers that may keep their value of this side, and never have it on the other, (dim,).
        noise_multiplier: The claimed noise multiplier, for one side in place of the other.
        rate: The p-value to reach.
        first_draw: The first draw to use.
        close: How far apart equal values may be by rounding.
    """
    left, tests = [one.copy() for one in suspects], int(sum(one.sum() for one in suspects))
    if not tests:
        return Alone(left[0])
    chance = largest_chance(noise_multiplier)
    needed = math.ceil(math.log(tests / rate) / -math.log(chance)) if chance < 1 else _MOST_DRAWS + 1
    if needed > _MOST_DRAWS:
        return Alone(np.zeros_like(left[0]), decided=False)
    for draw in range(first_draw, first_draw + needed):
        sides = run(draw)
        if sides is None:
            return Alone(np.zeros_like(left[0]), decided=False)
        for index, (here, there) in enumerate((sides, sides[::-1])):
            left[index] &= np.abs(here - values[index]) <= close
            left[index] &= np.abs(there - values[index]) > close
        if not (left[0].any() or left[1].any()):
            break
    return Alone(left[0] | left[1], p_value=tests * chance**needed)
