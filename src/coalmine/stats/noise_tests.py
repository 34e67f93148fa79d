"""Tests of noise, whatever the signal under it is, and of who took part.

The tests for missing, repeated and copied noise rest on a lemma of docs/checks.md. Let x = s + g, where g has
independent normal entries of variance at least 1 and is independent of s. In a subspace of k dimensions that is fixed
before g is drawn, |x|² is stochastically at least χ² with k degrees of freedom; and an entry lies within ``width`` of
any fixed number with a probability of at most that of a standard normal variable to lie within ``width`` of 0.

Each test of participation is a bet that is fair, or worse than fair, if the claim is true: the bettor's capital is then
at least 1/p with a probability of at most p, however long one watches (Ville's inequality), so p is one over the
capital. No simulation is needed, and memory does not grow with the number of rounds.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from coalmine.arrays import Floats

LEAST_P_VALUE = 1e-300
"""Smallest p-value that is returned: 0 would stand for a fact."""


def energy_p_value(energy: ArrayLike, dimensions: ArrayLike) -> Floats:
    """Return the probability, or an upper limit on it, that noise of the claimed size has so little energy.

    Args:
        energy: Squared lengths in the subspace, in units of the claimed variance per coordinate, any shape.
        dimensions: Dimensions of the subspace; the p-value is 1 where it has none.

    Example:
        >>> float(energy_p_value(4.0, 10).round(3))  # P(χ² ≤ 4) with ten degrees of freedom
        0.053
    """
    degrees = np.asarray(dimensions, dtype=np.float64)
    squares = np.maximum(np.asarray(energy, dtype=np.float64), 0.0)
    p_values = special.gammainc(np.maximum(degrees, 1) / 2, squares / 2)
    return np.where(degrees > 0, np.maximum(p_values, LEAST_P_VALUE), 1.0)


def noise_at_most(energy: float, dimensions: float, alpha: float) -> float:
    """Return an upper bound on the share of the claimed noise that is there, at confidence ``1 - alpha``.

    Args:
        energy: Squared length in the subspace, in units of the claimed variance per coordinate.
        dimensions: Dimensions of the subspace.
        alpha: One minus the confidence.

    Example:
        >>> round(noise_at_most(0.09 * 1000, 1000, 0.05), 3)
        0.311
    """
    return float(np.sqrt(energy / (2 * special.gammaincinv(dimensions / 2, alpha))))


def near_zero_p_value(count: ArrayLike, total: ArrayLike, width: float) -> Floats:
    """Return the probability, or an upper limit on it, that noise leaves so many of ``total`` numbers near zero.

    Args:
        count: How many numbers lie within ``width`` of zero.
        total: How many numbers there are.
        width: Width in standard deviations of the claimed noise.

    Example:
        >>> float(near_zero_p_value(2, 3, width=0.1).round(4))  # 3 p² (1 - p) + p³ with p = 0.0797
        0.018
    """
    hits, trials = np.asarray(count, dtype=np.float64), np.asarray(total, dtype=np.float64)
    chance = float(special.erf(width / np.sqrt(2)))
    tails = special.betainc(np.maximum(hits, 1), np.maximum(trials - hits + 1, 1e-9), chance)
    return np.where(hits > 0, np.maximum(tails, LEAST_P_VALUE), 1.0)


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
