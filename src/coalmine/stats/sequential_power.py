"""Power of tests that may stop at any time, by simulated audits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from coalmine.arrays import Bools, Floats

_DRAWS = 50  # simulated audits
_BLOCK = 250  # trials between two looks at the test


class AnytimeTest(Protocol):
    """A test such as `SequentialTest` or `SequentialBound`."""

    def update(self, coins: ArrayLike, scores: ArrayLike) -> None:
        """Play trials."""

    def refuted(self, confidence: float) -> bool:
        """Return whether the claim has been refuted."""


def reaches_power(
    start: Callable[[], AnytimeTest],
    scores: Callable[[Bools, np.random.Generator], Floats],
    *,
    trials: int,
    power: float,
    confidence: float,
) -> bool:
    """Return whether a test refutes its claim in at least a share ``power`` of 50 simulated audits.

    Args:
        start: Returns a new test of the claim.
        scores: Draws the scores of trials, given their coins.
        trials: Number of trials of an audit.
        power: The wanted power.
        confidence: One minus the false-alarm rate.

    Example:
        >>> from coalmine.stats import SequentialBound
        >>> def randomized_response(coins, rng):  # with ε = 2
        ...     return np.where(rng.random(coins.size) < 1 / (1 + np.exp(-2.0)), coins, ~coins).astype(float)
        >>> settings = {"power": 0.8, "confidence": 0.95}
        >>> reaches_power(lambda: SequentialBound(claim=1.0), randomized_response, trials=250, **settings)
        True
        >>> reaches_power(lambda: SequentialBound(claim=1.0), randomized_response, trials=20, **settings)
        False
    """
    rng, refuted = np.random.default_rng(0), 0
    for draw in range(_DRAWS):
        refuted += _refutes(start(), scores, trials, confidence, rng)
        decided = refuted >= power * _DRAWS or refuted + _DRAWS - draw - 1 < power * _DRAWS
        if decided:
            break
    return refuted >= power * _DRAWS


def _refutes(
    test: AnytimeTest,
    scores: Callable[[Bools, np.random.Generator], Floats],
    trials: int,
    confidence: float,
    rng: np.random.Generator,
) -> bool:
    """Return whether one simulated audit refutes its claim."""
    for begin in range(0, trials, _BLOCK):
        coins = rng.random(min(_BLOCK, trials - begin)) < 0.5
        test.update(coins, scores(coins, rng))
        if test.refuted(confidence):
            return True
    return False
