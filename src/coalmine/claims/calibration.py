"""Noise calibration: the least noise multiplier that reaches a given ε."""

from __future__ import annotations

import math

from coalmine.claims.accountants import (
    MAX_PLD_EPSILON,
    check_accountant,
    event_epsilon,
    extent_of,
    new_accountant,
    pld_step,
    quiet,
)
from coalmine.claims.sampling import MAX_NOISE, MIN_NOISE, Sampling
from coalmine.errors import InputError, check_count, check_delta, check_nonnegative

# How much coarser PLD's grid may be during the search.
_COARSER = 8


def noise_for(*, epsilon: float, sampling: Sampling, rounds: int, delta: float, accountant: str | None = None) -> float:
    """Compute the least noise multiplier for which a `Claim` claims at most ``epsilon``.

    Args:
        epsilon: The ε to reach, at least 0; infinity needs no noise.
        sampling: How clients take part in rounds.
        rounds: Number of training rounds.
        delta: The δ to reach, in (0, 1).
        accountant: One of `ACCOUNTANTS`; by default the tightest that supports ``sampling``.

    Returns:
        The noise multiplier, to about 3 digits (fewer near ε = 0); a `Claim` never claims more than ``epsilon`` for it.

    Raises:
        InputError: If an argument is out of range, or no noise multiplier up to 10⁶ reaches ``epsilon``.

    Example:
        >>> from coalmine.claims import EveryRound
        >>> round(noise_for(epsilon=1.0, sampling=EveryRound(), rounds=1, delta=1e-5, accountant="rdp"), 2)
        4.05
    """
    import dp_accounting as dp

    check_nonnegative("epsilon", epsilon)
    accountant = check_accountant(accountant, sampling)
    rounds = check_count("rounds", rounds, least=0)
    if epsilon == math.inf or isinstance(sampling.event([(1.0, rounds)])[0], dp.NoOpDpEvent):
        return 0.0
    if check_delta(delta) == 0:
        raise InputError(f"no Gaussian noise gives an epsilon of {epsilon} at delta 0: delta must be in (0, 1)")

    def grid(noise: float) -> tuple[float, float]:
        if accountant != "pld":
            return 0.0, 0.0
        event, neighbors = sampling.event([(noise, rounds)])
        extent = extent_of(event, neighbors)
        return extent, pld_step(event, extent, _COARSER)

    def claimed(noise: float) -> float:
        return event_epsilon(*sampling.event([(noise, rounds)]), delta, accountant, _COARSER)

    # RDP is fast and asks for slightly more noise than PLD, so it gives PLD's search its starting point.
    high = 1.0
    if accountant == "pld":
        high = noise_for(epsilon=epsilon, sampling=sampling, rounds=rounds, delta=delta, accountant="rdp")
    while claimed(high) > epsilon:
        high *= 2
        if high > MAX_NOISE:
            raise InputError(
                f"epsilon {epsilon} at delta {delta} cannot be reached by the {accountant} accountant with a noise "
                f"multiplier up to {MAX_NOISE:g}: use a larger epsilon or delta, or fewer rounds"
            )
    low = high / 2
    while low >= MIN_NOISE and grid(low)[0] <= MAX_PLD_EPSILON and claimed(low) <= epsilon:
        low, high = low / 2, low
    if low < MIN_NOISE or grid(low)[0] > MAX_PLD_EPSILON:
        return high  # almost any noise suffices, for example because δ exceeds the probability of ever taking part
    low *= 0.9  # on the finer grid that fits `high`, `low` itself might just suffice
    neighbors, step = sampling.event([(high, rounds)])[1], grid(high)[1]
    with quiet():
        noise = float(
            dp.calibrate_dp_mechanism(
                lambda: new_accountant(accountant, neighbors, step),
                lambda noise: sampling.event([(noise, rounds)])[0],
                max(epsilon, 1e-9),  # at 0 the search would accept any sufficient noise instead of the least
                delta,
                dp.ExplicitBracketInterval(low, high),
                tol=1e-5 * low,
            )
        )
    # a `Claim` uses a finer grid fitted to this noise, so its last digits may differ.
    while event_epsilon(*sampling.event([(noise, rounds)]), delta, accountant) > epsilon:
        noise *= 1 + 1e-5
    return noise
