"""Pairs of score distributions whose ε is known: members' and non-members' scores of simulated audits."""

import numpy as np

from coalmine.stats import Scores, epsilon_gdp


def gaussian(mu):
    """Scores N(μ, 1) against N(0, 1); ε as a function of δ."""
    return (
        lambda rng, m, n: Scores(rng.normal(mu, 1, m), rng.normal(0, 1, n)),
        lambda delta: float(epsilon_gdp(mu, delta)),
    )


def laplace(epsilon):
    """The Laplace mechanism: tight at every threshold above the shift when δ = 0."""
    return (
        lambda rng, m, n: Scores(rng.laplace(epsilon, 1, m), rng.laplace(0, 1, n)),
        lambda delta: epsilon,
    )


def randomized_response(epsilon, delta, *, ties=False):
    """The least favorable pair for (ε, δ)-DP: memberships given away with probability δ, right bits otherwise.

    Scores with the same symbol are tied, or in random order.
    """
    q = 1 / (1 + np.exp(-epsilon))

    def side(rng, size, member):
        right = rng.random(size) < q
        symbol = np.where(right == member, 1.0, 0.0)
        symbol = np.where(rng.random(size) < delta, 2.0 if member else -1.0, symbol)
        return symbol if ties else symbol + rng.random(size) / 2

    return (
        lambda rng, m, n: Scores(side(rng, m, True), side(rng, n, False)),
        lambda at: epsilon if at == delta else None,
    )
