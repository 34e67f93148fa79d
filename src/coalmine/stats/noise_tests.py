"""Tests for missing, repeated and copied Gaussian noise that hold whatever the signal under the noise is.

Both rest on a lemma of docs/checks.md. Let x = s + g, where g has independent normal entries of variance at least 1 and
is independent of s. In a subspace of k dimensions that is fixed before g is drawn, |x|² is stochastically at least χ²
with k degrees of freedom; and an entry lies within ``width`` of any fixed number with a probability of at most that of
a standard normal variable to lie within ``width`` of 0.
"""

from __future__ import annotations

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
