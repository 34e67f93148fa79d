"""Test that scores are as often negative as positive, whatever their magnitudes."""

from __future__ import annotations

import numpy as np
from scipy import special

from coalmine.arrays import Floats
from coalmine.stats.ranks import magnitude_ranks


def symmetry_p_value(scores: Floats) -> float:
    """Return a p-value for scores whose signs, given their magnitudes, are independent fair coin flips.

    Among the k scores of largest magnitude, the number of positive ones is then Binomial(k, ½). It is tested for k = m,
    m/2, m/4, … of m scores, and the smallest p-value is multiplied by the number of tests. Nothing is assumed about the
    magnitudes, which may depend on each other in any way.

    Args:
        scores: Scores, (m,). Zeros count as negative, and among equal magnitudes negative ones as larger.

    Returns:
        A p-value that is small if too many of the large scores are positive.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> symmetry_p_value(rng.normal(0, 1, 100)) > 0.05, symmetry_p_value(rng.normal(1, 1, 100)) < 1e-6
        (True, True)
    """
    order = np.lexsort((scores > 0, -np.abs(scores)))
    tested = magnitude_ranks(scores.size)
    positive = np.cumsum(scores[order] > 0)[tested - 1]
    tails = np.where(positive > 0, special.betainc(np.maximum(positive, 1), tested - positive + 1, 0.5), 1.0)
    return float(min(1.0, tested.size * tails.min()))
