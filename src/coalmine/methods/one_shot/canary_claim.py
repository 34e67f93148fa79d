"""The guarantee that a training claims for canaries, who may take part in another way than its clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coalmine import accounting
from coalmine.accounting import Theory
from coalmine.accounting.sampling import AtMost, EveryRound, FixedSize, Sampling
from coalmine.arrays import Ints


def sampling_of_known_rounds(present: Callable[[int], Ints], *, count: int, rounds: int) -> Sampling:
    """Return the sampling to account for if the adversary knows the rounds in which each canary takes part.

    Secret sampling does not protect from such an adversary: only the number of rounds counts.

    Args:
        present: Function from a round to the canaries that take part in it.
        count: Number of canaries.
        rounds: Number of rounds.
    """
    times = np.zeros(count, dtype=np.int64)
    for round in range(rounds):
        times[present(round)] += 1
    most = max(1, int(times.max()))
    return EveryRound() if most == rounds else AtMost(most)


def tightest_theory(
    sampling: Sampling, *, noise_multiplier: float, rounds: int, delta: float, accountant: str | None
) -> Theory:
    """Return the guarantee of a sampling scheme with the smallest ε that is proved."""
    # The analysis of fixed-size sampling is loose for large shares, where participation in every round, which is never
    # more private, can have the smaller ε.
    candidates = [sampling, EveryRound()] if isinstance(sampling, FixedSize) else [sampling]
    theories = [
        accounting.theory(
            noise_multiplier=noise_multiplier, sampling=candidate, rounds=rounds, delta=delta, accountant=accountant
        )
        for candidate in candidates
    ]
    return min(theories, key=lambda theory: theory.epsilon)
