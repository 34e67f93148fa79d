"""What the battery could not have found: the share of the claimed noise that too few canaries cannot tell from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.methods.mechanism.battery import SHAPE_SHARE, SIZE_SHARE
from coalmine.methods.mechanism.calls import LEAST, MOST
from coalmine.results.noise_shares import HALF_THE_NOISE, POWER, RATIO, detectable_share, exponent_of
from coalmine.stats.guess_tests import guess_p_value
from coalmine.stats.tradeoff import ApproximateDP, Curve

_DRAWS = 5  # simulated batteries; four of them must refute the claim
_ENOUGH = (30_000, 240_000)  # canaries with which most claims are tested well; fewer are faster to simulate
_MANY = 1_000_000  # canaries that are simulated only once


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
        'The 3,000 canaries would have found noise below 0.39 of the claime'
    """
    # Tests often make the same claim about many mechanisms.
    return _weakness(claim, noise_multiplier, canaries, rate)  # type: ignore[arg-type]  # curves have a hash


@lru_cache(maxsize=64)
def _weakness(claim: Curve, noise_multiplier: float | None, canaries: int, rate: float) -> str:
    draw = _simulated(claim, noise_multiplier)
    if draw is None:
        return ""
    scores, level = draw

    def power(exponent: int, canaries: int = canaries) -> float:
        refuted, draws = 0, 1 if canaries > _MANY else _DRAWS
        for seed in range(draws):
            refuted += guess_p_value(*scores(RATIO**exponent, canaries, seed), claim) <= level * rate
            if seed + 1 - refuted > (1 - POWER) * draws + 1e-9:
                break  # the others are too few to reach the power
        return refuted / draws

    half = exponent_of(HALF_THE_NOISE)
    # More canaries refute what fewer do.
    if any(power(half, several) >= POWER for several in (*(n for n in _ENOUGH if n < canaries), canaries)):
        return ""
    share = detectable_share(power)
    if share is None:
        return f"The {canaries:,} canaries are too few to find noise that is too small, and half of it would pass"
    found = f"noise below {share:.2g} of the claimed (80% power)"
    return f"The {canaries:,} canaries would have found {found}, and half of it would pass"


def _simulated(
    claim: Curve, noise_multiplier: float | None
) -> tuple[Callable[[float, int, int], tuple[Floats, Bools]], float] | None:
    """Return how to draw scores and coins for a share of the noise, and the share of the rate that their test has."""
    if noise_multiplier is None and not (isinstance(claim, ApproximateDP) and claim.delta == 0 and claim.epsilon > 0):
        return None  # no mechanism that adds noise keeps such a claim

    def scores(share: float, canaries: int, seed: int) -> tuple[Floats, Bools]:
        rng = np.random.default_rng(seed)
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
