"""How far a release moved when one client joined, and how far the claim allows it to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from coalmine.arrays import Floats
from coalmine.results.finding import CHECK_RATE

# Comparisons by statistics share the other half of the rate; see noise.py for the first half.
RATE = CHECK_RATE / 2 / 500
"""False-alarm rate of one comparison by statistics."""


@dataclass(frozen=True, kw_only=True)
class Movement:
    """What happened when one client joined.

    Args:
        length: Distance that the release moved, in its own units; infinite if it is not finite any more.
        deviations: The same in standard deviations of the noise.
        excess: How many times the movement exceeds what is allowed; the claim needs at most 1.
        margin: Factor for the error of the measured noise: exceeded for certain if ``excess · margin`` is above 1.
        exact: Whether the randomness was the same with and without the client. Otherwise ``excess`` is a lower bound.
        scale: Ratio of the noise with the client to that without.
        by_array: Distance that each array of the release moved, if it is known exactly.
        each_number: Distance that each number moved, if it was the same for nearly all.
        unprotected: Coordinates that carry no noise and moved.
        undecided: How many coordinates moved of which it is not known whether they carry noise.
        not_finite: Coordinates that became NaN or infinite.
        refusal: What was raised instead of a release.
        p_value: Probability of such a movement if the noise covers it; 0 where that needs no statistics.
    """

    length: float = 0.0
    deviations: float = 0.0
    excess: float = 0.0
    margin: float = 1.0
    exact: bool = True
    scale: float = 1.0
    by_array: tuple[float, ...] = ()
    each_number: float = 0.0
    unprotected: tuple[int, ...] = ()
    undecided: int = 0
    not_finite: int = 0
    refusal: str = ""
    p_value: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What the claim allows.

    Args:
        noise_multiplier: The claimed noise multiplier; 0 if there is no claim of noise.
        sensitivity: How far one client within the clip norm moves the release, for releases without noise.
        size_released: Whether the size of the noise follows from what is released, so that it shows nothing more.
        order: Order of the norm that distances are measured in, if not in standard deviations of the noise.
    """

    noise_multiplier: float
    sensitivity: float = math.inf
    size_released: bool = False
    order: int = 2

    def length(self, moved: Floats) -> float:
        """Return a distance in the release's own units."""
        return float(np.linalg.norm(moved.ravel(), self.order))
