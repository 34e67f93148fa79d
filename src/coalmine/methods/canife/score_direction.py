"""The direction along which a round's noisy sum is scored: the canary's own, or that of the likelihood ratio.

A round's sum is Gaussian noise, the canary's update if it takes part, and the other clients' updates. If each of these
has the second moment Σ, the sum of n of them under Poisson sampling has covariance n Σ (up to a term that vanishes with
the sampling rate). The most powerful linear score is then along (n Σ + σ² I)⁻¹ u, where u is the canary's update
(appendix A of Maddock et al. 2023, which takes u itself because the inverse seems infeasible). With the m updates U of
the pool, Σ ≈ Uᵀ U / m, and by Woodbury's identity the direction is, up to a factor,

    w = u − Uᵀ (λ I + U Uᵀ)⁻¹ U u,    λ = m σ² / n :

an m × m system instead of a d × d inverse. λ weighs the noise: without noise, w is orthogonal to the pool's span.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coalmine.errors import InputError
from coalmine.methods.canife.pool import Pool
from coalmine.protocol import Vector

# Relative to the largest eigenvalue: anything smaller is rounding error.
_ROUNDING = 1e-12

# A smaller share of an update outside the pool's span is rounding error, too.
_SPAN_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreDirection:
    """A direction to score rounds along, and how well it shows the canary.

    Args:
        vector: Unit vector (d,).
        signal: ⟨vector, u⟩: by how much the canary's presence shifts ⟨sum, vector⟩, in the unit of u.
        effective_sigma: Expected standard deviation of a round's score without the canary, over ``signal``. Detecting
            the canary is then like telling N(0, σ²) from N(1, σ²). The value is for clients outside the pool, by
            leave-one-out; it is too optimistic for a canary that was designed on this pool.
    """

    vector: Vector
    signal: float
    effective_sigma: float


def plain_direction(update: Vector, pool: Pool, *, noise_multiplier: float, cohort: float) -> ScoreDirection:
    """Return the direction of the canary's update itself, as in the paper (λ = ∞).

    Args:
        update: The canary's update (d,).
        pool: Updates of mock clients, from which ``effective_sigma`` is computed.
        noise_multiplier: Noise on the sum, in clip norms.
        cohort: Number of clients expected in a round.

    Returns:
        The unit vector with its signal and expected noise.

    Raises:
        InputError: If the update is zero or not finite.
    """
    values, length = _measured(update, pool)
    dots = pool.dots(values[None]) / length
    variance = float(dots.square().mean()) * cohort + (noise_multiplier * pool.clip_norm) ** 2
    return ScoreDirection(
        vector=(values / length).float().numpy(),
        signal=length,
        effective_sigma=math.sqrt(variance) / length,
    )


def likelihood_ratio_direction(update: Vector, pool: Pool, *, noise_multiplier: float, cohort: float) -> ScoreDirection:
    """Return the direction of the likelihood ratio between rounds with and without the canary.

    Args:
        update: The canary's update (d,).
        pool: Updates of mock clients.
        noise_multiplier: Noise on the sum, in clip norms.
        cohort: Number of clients expected in a round.

    Returns:
        The unit vector with its signal and expected noise.

    Raises:
        InputError: If the update is zero or not finite, or if it lies in the span of the pool's, so that no score
            tells them apart.

    Example:
        >>> import torch
        >>> pool = Pool.of([torch.eye(3)[:2]], clip_norm=1.0)
        >>> update = np.array([0.6, 0.0, 0.8], dtype=np.float32)
        >>> direction = likelihood_ratio_direction(update, pool, noise_multiplier=0.1, cohort=2)
        >>> direction.vector.round(3).tolist(), round(direction.signal, 3)
        ([0.007000000216066837, 0.0, 1.0], 0.804)
    """
    values, length = _measured(update, pool)
    eigenvalues, eigenvectors = pool.spectrum
    ridge = max(
        len(pool) * noise_multiplier**2 / cohort, _ROUNDING * float(eigenvalues[-1])
    )  # λ, in squared clip norms
    inverse = (eigenvectors / (eigenvalues + ridge)) @ eigenvectors.T
    dots = pool.dots(values[None])[0] / (length * pool.clip_norm)
    weights = inverse @ dots
    along = 1 - float(dots @ weights)  # ⟨w, û⟩
    if along <= _SPAN_TOLERANCE:
        raise InputError(
            "the canary's update lies in the span of the pool's updates, so no score tells it from theirs: use fewer "
            "mock clients, or another canary"
        )
    # ⟨w₋ᵢ, uᵢ⟩ for each mock client i, with w₋ᵢ computed without it: as in ridge regression, leave-one-out is free.
    left_out = weights / inverse.diagonal()
    square = along - ridge * float(weights @ weights)  # ‖w‖²
    variance = cohort * float(left_out.square().mean()) + noise_multiplier**2 * square
    whole = values - pool.combined(weights[None])[0] * (length / pool.clip_norm)
    size = float(whole.norm())
    signal = float(whole @ values) / size
    return ScoreDirection(
        vector=(whole / size).float().numpy(),
        signal=signal,
        effective_sigma=math.sqrt(variance) / along * pool.clip_norm / length,
    )


def _measured(update: Vector, pool: Pool) -> tuple[Tensor, float]:
    """Return the canary's update in float64, and its norm."""
    vector = np.asarray(update)
    values = torch.from_numpy(np.ascontiguousarray(vector)).double()
    length = float(values.norm())
    if not (math.isfinite(length) and length > 0):
        raise InputError(f"the canary's update must be finite and not zero, got norm {length}")
    return values, length
