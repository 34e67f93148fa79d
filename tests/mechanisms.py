"""Simulated audits with a known ε. Each function returns how to draw scores, and the true ε as a function of δ."""

import numpy as np

from coalmine.stats import Scores, epsilon_gdp


def gaussian(mu):
    """The Gaussian mechanism: scores N(μ, 1) against N(0, 1)."""
    return (
        lambda rng, m, n: Scores(rng.normal(mu, 1, m), rng.normal(0, 1, n)),
        lambda delta: float(epsilon_gdp(mu, delta)),
    )


def laplace(epsilon):
    """The Laplace mechanism: at δ = 0 every threshold above the shift attains ε."""
    return (
        lambda rng, m, n: Scores(rng.laplace(epsilon, 1, m), rng.laplace(0, 1, n)),
        lambda delta: epsilon,
    )


def randomized_response(epsilon, delta, *, ties=False):
    """The least favorable scores for (ε, δ)-DP: membership revealed with probability δ, randomized response otherwise.

    Scores with the same outcome are tied if ``ties``, otherwise in random order.
    """
    q = 1 / (1 + np.exp(-epsilon))

    def side(rng, size, member):
        right = rng.random(size) < q
        outcome = np.where(right == member, 1.0, 0.0)
        outcome = np.where(rng.random(size) < delta, 2.0 if member else -1.0, outcome)
        return outcome if ties else outcome + rng.random(size) / 2

    return (
        lambda rng, m, n: Scores(side(rng, m, True), side(rng, n, False)),
        lambda at: epsilon if at == delta else None,
    )
