"""CANIFE's per-round accounting: from estimates of single rounds to an ε of the whole training.

Maddock, Sablayrolles & Stock (2023), Algorithm 2: GetNoise is `noise_from_round_epsilon`, GetPrivacy `compose_rounds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coalmine.claims.accountants import check_accountant
from coalmine.claims.calibration import noise_for
from coalmine.claims.claim import Claim
from coalmine.claims.sampling import EveryRound, FixedSize, Poisson, Sampling
from coalmine.errors import InputError, check_count, check_delta, check_nonnegative, check_positive

_MAX_NOISE_LEVELS = 16


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
    if check_delta(delta) == 0:
        raise InputError("delta must be in (0, 1) to turn an epsilon into Gaussian noise, got 0")
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
    accountant = check_accountant(accountant, sampling)
    at = check_delta(delta) if round_delta is None else round_delta
    check_positive("sensitivity", sensitivity)
    noise = {epsilon: noise_from_round_epsilon(epsilon, at, inversion) / sensitivity for epsilon, _ in rounds_epsilon}
    schedule = [(noise[epsilon], check_count("rounds", rounds, least=0)) for epsilon, rounds in rounds_epsilon]
    if isinstance(sampling, Poisson | FixedSize):
        schedule = _grouped(schedule)
    return Claim(noise_schedule=schedule, sampling=sampling, delta=delta, accountant=accountant).epsilon


def _grouped(schedule: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the schedule, regardless of order, with at most 16 noise levels: accounting time is linear in them."""
    rounds: dict[float, int] = {}
    for noise, count in schedule:
        rounds[noise] = rounds.get(noise, 0) + count
    levels = sorted(noise for noise, count in rounds.items() if count and 0 < noise < math.inf)
    if len(levels) <= _MAX_NOISE_LEVELS:
        return list(rounds.items())
    grouped = [(noise, count) for noise, count in rounds.items() if count and noise in (0, math.inf)]
    size = -(-len(levels) // _MAX_NOISE_LEVELS)
    for start in range(0, len(levels), size):
        group = levels[start : start + size]
        count = sum(rounds[noise] for noise in group)
        # The noise with the same mean 1/σ² composes to the same ε without sampling. With sampling the error is of
        # second order in how much the levels of the group differ.
        grouped.append((math.sqrt(count / sum(rounds[noise] / noise**2 for noise in group)), count))
    return grouped
