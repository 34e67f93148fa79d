"""One-shot audit of a single application of a mechanism (Andrew et al. 2023, Section 3), or of a simulated one.

k random unit vectors of ℝᵈ are summed, the mechanism makes the sum noisy (the Gaussian one by N(0, σ²) on each
coordinate), and each canary's score is its cosine with the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coalmine.accounting import Theory
from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count
from coalmine.methods.estimates import canary_estimates, normality
from coalmine.methods.one_shot.evidence import lengths
from coalmine.methods.one_shot.updates import check_room, family_for, update_canaries
from coalmine.protocol import Vector
from coalmine.results.result import AuditResult, common_delta
from coalmine.seeds import generator
from coalmine.stats import CosineNull
from coalmine.usercode import said

Mechanism = Callable[[Vector], npt.ArrayLike]
"""From the sum of updates, each at most 1 long, to what is released."""


def gaussian_mechanism(sigma: float, seed: int) -> Mechanism:
    """A mechanism that adds N(0, ``sigma``²) to each coordinate."""
    if not sigma >= 0:
        raise InputError(f"sigma must be at least 0, got {sigma}")

    def noisy(total: Vector) -> Vector:
        noise = generator(seed, "noise").standard_normal(total.size, dtype=np.float32)
        return total + np.float32(sigma) * noise

    return noisy


def audit_mechanism(
    mechanism: Callable[[Vector], object],
    *,
    dim: int,
    canaries: int = 1000,
    family: str | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    theory: Theory | None = None,
    seed: int = 0,
) -> AuditResult:
    """Apply ``mechanism`` once to a sum of ``canaries`` unit vectors, and say what ε its result speaks of.

    As many canaries are held out. ``mechanism`` may be any function from a float32 vector to one of the same length.
    ``family`` is ``hadamard`` or ``gaussian``, by the dimension if not given; ``delta`` that of ``theory``, or 1e-5.
    """
    start = time.perf_counter()
    delta = common_delta(delta, theory)
    count = 2 * check_count("canaries", canaries)
    family = family or family_for(check_count("dim", dim, least=2), count)
    check_room(family, dim, count)
    updates = update_canaries(family, dim=dim, count=count, seed=seed)
    members = np.zeros(count, dtype=bool)
    members[generator(seed, "insertion").permutation(count)[:canaries]] = True
    try:
        released = np.asarray(mechanism(updates.total(members)))
    except Exception as error:
        raise InputError(f"the mechanism failed: {said(error)}") from error
    if released.shape != (updates.dim,) or released.dtype.kind not in "fiu":
        raise InputError(
            f"the mechanism must return {updates.dim} numbers in a row, got {released.dtype} of shape {released.shape}"
        )
    silent = not released.any()
    if silent:  # whoever sees nothing can look anywhere, and bounds hold whatever an adversary makes of a release
        released = generator(seed, "noise").standard_normal(updates.dim)
    norm = float(np.linalg.norm(released.astype(np.float64)))
    if not norm < np.inf:
        raise InputError(f"what the mechanism returned must be finite, got a norm of {norm}")
    dots = updates.dots(released.astype(np.float32))
    cosines = dots / lengths(dots, norm, members, orthonormal=updates.orthonormal)
    null = CosineNull(updates.dim - (canaries - 1 if updates.orthonormal else 0))
    estimates, scores, top = canary_estimates(
        cosines[members],
        cosines[~members],
        null=null,
        signs=family == "hadamard",
        design="fixed",
        delta=delta,
        confidence=confidence,
    )
    test, warnings = normality(cosines[members], "planted")
    warnings += ["the mechanism returned nothing but zeros, which tell nobody anything"] * silent
    return AuditResult(
        audit="gaussian",
        view="release",
        seed=seed,
        estimates=estimates,
        scores=scores,
        theory=theory,
        ceiling=top,
        warnings=warnings,
        metrics={"planted": float(canaries), "held_out": float(canaries), **test},
        timing={"audit_s": time.perf_counter() - start},
        config={"dim": updates.dim, "canaries": canaries, "family": family, "score": "cosine"},
    )


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
