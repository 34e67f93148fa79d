"""What the battery could not have found: the share of the claimed noise that too few canaries cannot tell from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.methods.mechanism.battery import SHAPE_SHARE, SIZE_SHARE
from coalmine.methods.mechanism.calls import LEAST, MOST
from coalmine.results.claim_test import HALF_THE_NOISE, POWER, RATIO, detectable_share, exponent_of
from coalmine.results.claim_test import LEAST as LEAST_EXPONENT
from coalmine.stats.guess_tests import guess_p_value
from coalmine.stats.tradeoff import ApproximateDP, Curve

# Simulated batteries, and how many of them must refute the claim: to decide if half of the noise is found, to search
# for the largest share that is, and to confirm it. Of the shares in a search, one with lucky draws is chosen, so it is
# confirmed by more draws of its own, 90% of which must refute the claim: with a power of 75%, 1.6% of shares pass.
_PASSES, _DECIDES, _SEARCHES, _CONFIRMS = (5, 5), (20, 16), (10, 8), (40, 36)
_CONFIRMS_MANY, _ONCE = (10, 10), (1, 1)  # where draws are slow
_ENOUGH = (30_000, 240_000)  # canaries with which most claims are tested well; fewer are faster to simulate
_MANY, _MOST = 50_000, 1_000_000  # canaries that are simulated less often, and only once


def weakness(claim: Curve, *, noise_multiplier: float | None, canaries: int, rate: float) -> str:
    """Say what share of the claimed noise the battery can find, if a mechanism with half of it would pass.

    Args:
        claim: The claimed trade-off curve.
        noise_multiplier: Noise multiplier of Gaussian noise that keeps the claim; without one, and without δ, the noise
            is that of the Laplace mechanism.
        canaries: Number of canaries that are guessed.
        rate: False-alarm rate of the battery.

    Returns:
        A sentence, or nothing if half of the noise would be found in four of five runs.

    Example:
        >>> from coalmine.stats.tradeoff import GaussianDP
        >>> weakness(GaussianDP(1.0), noise_multiplier=1.0, canaries=3_000, rate=1e-3)
        ''
        >>> weakness(ApproximateDP(2.0, 1e-5), noise_multiplier=2.0, canaries=3_000, rate=1e-3)[:66]
        'The 3,000 canaries would have found noise below 0.35 of the claime'
    """
    # Tests often make the same claim about many mechanisms.
    return _weakness(claim, noise_multiplier, canaries, rate)  # type: ignore[arg-type]  # curves have a hash


@lru_cache(maxsize=64)
def _weakness(claim: Curve, noise_multiplier: float | None, canaries: int, rate: float) -> str:
    draw = _simulated(claim, noise_multiplier)
    if draw is None:
        return ""
    scores, level = draw
    half = exponent_of(HALF_THE_NOISE)

    @cache
    def refutes(exponent: int, canaries: int, draws: int, needed: int) -> bool:
        """Whether enough simulated batteries refute the claim, from draws of their own for each share and purpose."""
        missed = 0
        for draw in range(draws):
            rng = np.random.default_rng([-exponent, draws, draw])
            missed += guess_p_value(*scores(RATIO**exponent, canaries, rng), claim) > level * rate
            if missed > draws - needed:
                return False
        return True

    # More canaries refute what fewer do, which are faster to simulate.
    if any(refutes(half, several, *_PASSES) for several in _ENOUGH if several < canaries):
        return ""
    is_once = canaries > _MOST
    if refutes(half, canaries, *(_ONCE if is_once else _DECIDES)):
        return ""
    share = detectable_share(
        lambda exponent: float(exponent < half and refutes(exponent, canaries, *(_ONCE if is_once else _SEARCHES)))
    )
    confirms = _ONCE if is_once else _CONFIRMS if canaries <= _MANY else _CONFIRMS_MANY
    while share is not None and not refutes(exponent_of(share), canaries, *confirms):
        share = share / RATIO if exponent_of(share) > LEAST_EXPONENT else None
    if share is None:
        return f"The {canaries:,} canaries are too few to find noise that is too small, and half of it would pass"
    power = "in one simulated run" if is_once else f"{POWER:.0%} power"
    detectable = f"noise below {_rounded_down(share):g} of the claimed ({power})"
    return f"The {canaries:,} canaries would have found {detectable}, and half of it would pass"


def _rounded_down(share: float) -> float:
    """Return the largest number of two digits that is no larger."""
    unit = 10.0 ** (math.floor(math.log10(share)) - 1)
    return round(math.floor(share / unit) * unit, 12)


def _simulated(
    claim: Curve, noise_multiplier: float | None
) -> tuple[Callable[[float, int, np.random.Generator], tuple[Floats, Bools]], float] | None:
    """Return how to draw scores and coins for a share of the noise, and the share of the rate that their test has."""
    if noise_multiplier is None and not (isinstance(claim, ApproximateDP) and claim.delta == 0 and claim.epsilon > 0):
        return None  # no mechanism that adds noise keeps such a claim

    def scores(share: float, canaries: int, rng: np.random.Generator) -> tuple[Floats, Bools]:
        coins, values = rng.random(canaries) < 0.5, rng.uniform(LEAST, MOST, canaries)
        sent = np.where(coins, values, 0.0)
        if noise_multiplier is not None:
            size = share * noise_multiplier
            return values * (sent + size * rng.standard_normal(canaries) - values / 2) / size**2, coins
        assert isinstance(claim, ApproximateDP)
        size = share / claim.epsilon
        released = sent + rng.laplace(0, size, canaries)
        return (np.abs(released) - np.abs(released - values)) / size, coins

    return scores, SHAPE_SHARE if noise_multiplier is None else SIZE_SHARE
