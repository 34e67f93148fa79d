"""The guarantee that a training claims for canaries, who may take part in another way than its clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coalmine.arrays import Ints
from coalmine.claims.sampling import AtMost, EveryRound, Sampling


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
