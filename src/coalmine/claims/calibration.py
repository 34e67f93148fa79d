"""From ε to noise: the least noise multiplier that reaches an ε, and CANIFE's accounting of single rounds.

Maddock, Sablayrolles & Stock (2023), Algorithm 2: GetNoise is `noise_from_round_epsilon`, GetPrivacy `compose_rounds`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from coalmine.claims.accountants import (
    MAX_PLD_EPSILON,
    check_accountant,
    event_epsilon,
    extent_of,
    new_accountant,
    pld_step,
    quiet,
)
from coalmine.claims.claim import Claim
from coalmine.claims.sampling import MAX_NOISE, MIN_NOISE, EveryRound, FixedSize, Poisson, Sampling
from coalmine.errors import (
    InputError,
    check_count,
    check_delta,
    check_nonnegative,
    check_positive,
    check_probability,
)

# How much coarser PLD's grid may be during the search.
_COARSER = 8
_MAX_NOISE_LEVELS = 16  # of which rounds are composed, since accounting time is linear in them


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
    check_probability("delta", delta)  # no Gaussian noise gives a finite ε at δ = 0

    def claimed(noise: float) -> float:
        return event_epsilon(*sampling.event([(noise, rounds)]), delta, accountant, _COARSER)

    def fits(noise: float) -> bool:
        """Whether an accountant can tell the ε of so little noise."""
        extent = extent_of(*sampling.event([(noise, rounds)])) if accountant == "pld" else 0.0
        return extent <= MAX_PLD_EPSILON

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
    while low >= MIN_NOISE and fits(low) and claimed(low) <= epsilon:
        low, high = low / 2, low
    if low < MIN_NOISE or not fits(low):
        return high  # almost any noise suffices, for example because δ exceeds the probability of ever taking part
    low *= 0.9  # on the finer grid that fits `high`, `low` itself might just suffice
    event, neighbors = sampling.event([(high, rounds)])
    step = pld_step(event, extent_of(event, neighbors), _COARSER) if accountant == "pld" else 0.0
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


def round_epsilon(*, noise_multiplier: float, delta: float, accountant: str = "exact") -> float:
    """Compute the ε of a single round for a client known to take part in it: CANIFE's εᵣ.

    Args:
        noise_multiplier: Standard deviation of the noise on the sum over the clip norm, at least 0.
        delta: The δ at which ε is stated, in [0, 1).
        accountant: ``"exact"`` for the Gaussian mechanism's own curve (Balle & Wang, 2018), ``"rdp"`` for the value
            that CANIFE reports, or another of `ACCOUNTANTS`.

    Returns:
        The ε of the round.

    Raises:
        InputError: If an argument is out of range or the accountant is unknown.

    Example:
        >>> round(round_epsilon(noise_multiplier=1.0, delta=0.01), 4)
        2.3178
    """
    if accountant == "exact":
        import dp_accounting as dp

        check_nonnegative("noise_multiplier", noise_multiplier)
        return float(dp.get_epsilon_gaussian(noise_multiplier, check_delta(delta)))
    return Claim(noise_multiplier=noise_multiplier, rounds=1, delta=delta, accountant=accountant).epsilon


def noise_from_round_epsilon(epsilon: float, delta: float, inversion: str = "exact") -> float:
    """Compute the noise multiplier at which a single round is (ε, δ)-DP: CANIFE's GetNoise, from ε̂ᵣ to σ̂ᵣ.

    Args:
        epsilon: The ε of one round, at least 0; 0 means infinite noise, infinity none.
        delta: The δ of one round, in (0, 1).
        inversion: ``"exact"`` inverts the Gaussian mechanism's own curve. ``"rdp"`` is the paper's way, which
            overestimates the noise, so that the composed ε̂ is usually too low.

    Returns:
        The noise multiplier.

    Raises:
        InputError: If an argument is out of range or the inversion is unknown.

    Example:
        >>> round(noise_from_round_epsilon(1.0, 0.01), 4)
        1.8779
    """
    check_nonnegative("epsilon", epsilon)
    check_probability("delta", delta)  # no Gaussian noise gives a finite ε at δ = 0
    if inversion not in ("exact", "rdp"):
        raise InputError(f"inversion must be exact or rdp, got {inversion!r}")
    if epsilon == 0:
        return math.inf
    if inversion == "rdp":
        return noise_for(epsilon=epsilon, sampling=EveryRound(), rounds=1, delta=delta, accountant="rdp")
    import dp_accounting as dp

    return float(dp.get_sigma_gaussian(epsilon, delta))


def compose_rounds(
    rounds_epsilon: Sequence[tuple[float, int]],
    *,
    sampling: Sampling,
    delta: float,
    round_delta: float | None = None,
    inversion: str = "exact",
    accountant: str | None = None,
    sensitivity: float = 1.0,
) -> float:
    """Compose estimates of single rounds into an ε̂ of the training: CANIFE's GetPrivacy (Algorithm 2).

    An estimate, not a bound, even if the per-round values are bounds: it assumes Gaussian noise and is as good as they
    are. Above 16 distinct noise levels under random sampling, neighboring ones are merged.

    Args:
        rounds_epsilon: Pairs (ε̂ᵣ, number of rounds it stands for), in the order of the training.
        sampling: How clients take part in rounds.
        delta: The δ at which the composed ε̂ is stated, in [0, 1).
        round_delta: The δ of the ε̂ᵣ, by default ``delta``; the paper uses 1/n for n attack scores.
        inversion: How ε̂ᵣ becomes noise, see `noise_from_round_epsilon`.
        accountant: One of `ACCOUNTANTS`; by default the tightest that supports ``sampling``.
        sensitivity: How far the neighbors of ``sampling`` move the sum, if those of ε̂ᵣ move it by 1: 2 if the former
            replace a client (`FixedSize`) and the latter add one.

    Returns:
        The composed ε̂.

    Raises:
        InputError: If there are no pairs, or an argument is out of range.

    Example:
        >>> from coalmine.claims import Epochs
        >>> round(compose_rounds([(1.0, 10), (2.0, 10)], sampling=Epochs(2), delta=1e-5), 2)
        2.3
    """
    if len(rounds_epsilon) == 0:
        raise InputError("rounds_epsilon must hold at least one pair (epsilon, rounds), got none")
    check_positive("sensitivity", sensitivity)
    at = check_delta(delta) if round_delta is None else round_delta
    noise = {epsilon: noise_from_round_epsilon(epsilon, at, inversion) / sensitivity for epsilon, _ in rounds_epsilon}
    schedule = [(noise[epsilon], check_count("rounds", rounds, least=0)) for epsilon, rounds in rounds_epsilon]
    if isinstance(sampling, Poisson | FixedSize):
        schedule = _grouped(schedule)
    return Claim(noise_schedule=schedule, sampling=sampling, delta=delta, accountant=accountant).epsilon


def _grouped(schedule: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the schedule, regardless of order, with at most 16 noise levels: accounting time is linear in them."""
    rounds: Counter[float] = Counter()
    for noise, count in schedule:
        rounds[noise] += count
    grouped = [(noise, rounds[noise]) for noise in (0.0, math.inf) if rounds[noise]]
    levels = sorted(noise for noise in rounds if rounds[noise] and 0 < noise < math.inf)
    if len(levels) <= _MAX_NOISE_LEVELS:
        return list(rounds.items())
    size = -(-len(levels) // _MAX_NOISE_LEVELS)
    for start in range(0, len(levels), size):
        group = levels[start : start + size]
        count = sum(rounds[noise] for noise in group)
        # The noise with the same mean 1/σ² composes to the same ε without sampling. With sampling the error is of
        # second order in how much the levels of the group differ.
        grouped.append((math.sqrt(count / sum(rounds[noise] / noise**2 for noise in group)), count))
    return grouped
