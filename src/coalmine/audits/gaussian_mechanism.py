"""One-shot audit of a single Gaussian mechanism (Andrew et al. 2023, Section 3), simulated exactly.

k random unit vectors of ℝᵈ are summed, N(0, σ²) noise is added to each coordinate, and each canary's score is its
cosine with the result.
"""

from __future__ import annotations

import numpy as np

from coalmine.errors import InputError, check_count
from coalmine.stats.arrays import Floats


def canary_cosines(*, dim: int, canaries: int, sigma: float, rng: np.random.Generator) -> Floats:
    """The k cosines of one simulated audit, drawn from their exact joint distribution; k·(k+1)/2 + O(k) numbers.

    No d-vector is made. The Gram matrix of k Gaussian vectors is Wishart, so its triangular factor can be drawn
    directly (Bartlett 1933): L below is the canaries' coordinates in an orthonormal basis of their span. The noise has
    k independent coordinates in that basis, and a χ² length outside of it.
    """
    d, k = check_count("dim", dim), check_count("canaries", canaries)
    if k > d:
        raise InputError(f"there can be at most dim = {d} canaries, got {k}")
    if not sigma >= 0:
        raise InputError(f"sigma must be at least 0, got {sigma}")
    coordinates = np.tril(rng.standard_normal((k, k)), -1)
    coordinates[np.diag_indices(k)] = np.sqrt(rng.chisquare(d - np.arange(k)))
    coordinates /= np.linalg.norm(coordinates, axis=1, keepdims=True)
    inside = coordinates.sum(axis=0) + sigma * rng.standard_normal(k)
    outside = sigma**2 * rng.chisquare(d - k) if d > k else 0.0
    result: Floats = coordinates @ inside / np.sqrt(inside @ inside + outside)
    return result
