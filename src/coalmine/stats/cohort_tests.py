"""Tests of who took part: is a rate of participation the claimed one, and do sizes vary as they should?

Each test is a bet that is fair, or worse than fair, if the claim is true: the bettor's capital is then at least 1/p
with a probability of at most p, however long one watches (Ville's inequality), so p is one over the capital. The
proofs are in docs/checks.md. No simulation is needed, and memory does not grow with the number of rounds.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from coalmine.stats.noise_tests import LEAST_P_VALUE

# Share of the capital that bets on a round as large as the one before; the rest is kept.
_STAKE = 0.9


def rate_p_value(hits: int, trials: int, rate: float) -> float:
    """Return a p-value for clients who took part in ``hits`` of ``trials`` opportunities: too often for a rate?

    Valid if each opportunity, given all that happened in earlier rounds, is taken with a probability of at most
    ``rate``, and those of one round either independently (Poisson sampling) or as a draw without replacement (fixed
    size). Which clients are watched may depend on earlier rounds, and some of them may have left. The bet is a
    likelihood ratio, averaged over larger rates with the Beta(½, ½) distribution.

    Args:
        hits: How many opportunities were taken.
        trials: How many there were.
        rate: The largest probability that is claimed.

    Example:
        >>> rate_p_value(20, 120, rate=0.25), rate_p_value(30, 30, rate=0.25) < 1e-15
        (1.0, True)
    """
    misses = trials - hits
    if not hits or rate >= 1:
        return 1.0
    if rate <= 0:
        return LEAST_P_VALUE
    with np.errstate(divide="ignore"):
        larger = np.log(special.betaincc([hits + 0.5, 0.5], [misses + 0.5, 0.5], rate))
    capital = special.betaln(hits + 0.5, misses + 0.5) + larger[0] - special.betaln(0.5, 0.5) - larger[1]
    capital -= hits * math.log(rate) + misses * math.log1p(-rate)
    return float(max(LEAST_P_VALUE, math.exp(min(0.0, -capital))))


def repeated_size_gain(size: int, before: int, population: int, rate: float) -> float:
    """Return the log of what a bet on a cohort as large as the one before wins, or loses, in a round.

    If each client takes part independently with a probability of its own of at most ``rate``, as under Poisson sampling
    with clients who drop out or have left, the expected factor is at most 1. The p-value for rounds whose sizes are too
    much alike is exp(−Σ gains), at most 1.

    Args:
        size: Clients in this round.
        before: Clients in the round before.
        population: Number of clients overall.
        rate: The largest probability to take part that is claimed.

    Example:
        >>> gains = [repeated_size_gain(30, 30, population=120, rate=0.25)] * 5
        >>> math.exp(-sum(gains)) < 1e-4
        True
    """
    if size != before or not 0 < rate < 1:
        return math.log(1 - _STAKE)
    # The chance of a size is linear in each client's probability, so it is largest if each has 0 or the whole rate; of
    # the numbers of clients with the whole rate, at this one.
    clients = min(population, math.floor(size / rate + 1e-9))
    log_choose = -math.log(clients + 1) - special.betaln(clients - size + 1, size + 1)
    log_chance = log_choose + size * math.log(rate) + (clients - size) * math.log1p(-rate)
    return float(math.log(1 - _STAKE + _STAKE * math.exp(min(-log_chance, 600.0))))
