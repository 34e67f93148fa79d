"""The direction to score a round's noisy sum in: the canary's own, or the likelihood ratio's.

A round's sum is Gaussian noise, the canary's update if it is there, and the others'. If these have the second moment Σ
each, the sum of n of them under Poisson sampling has the covariance n Σ (nearly: n Σ less a share that vanishes with
the sampling rate). The most powerful linear score is then along (n Σ + σ² I)⁻¹ u, for the canary's update u. With the
pool's m updates U, Σ ≈ Uᵀ U / m, and by Woodbury's identity it is, up to a factor,

    w = u − Uᵀ (λ I + U Uᵀ)⁻¹ U u,    λ = m σ² / n :

one m × m system in place of a d × d matrix. λ is the noise's share: without noise, w leaves the pool's span altogether.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coalmine.errors import InputError, check_number, check_positive
from coalmine.methods.canife.pool import Pool
from coalmine.protocol import Vector

# Of the largest eigenvalue: what is smaller is rounding.
_ROUNDING = 1e-12

# So small a share of an update outside the pool's span is rounding, too.
_SPANNED = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreDirection:
    """A unit vector, what it gives of the canary's update, and the score's expected deviation over that.

    ``signal`` is ⟨vector, u⟩, in the same unit as u. ``effective_sigma`` is the standard deviation that the score of a
    round without the canary is expected to have, over ``signal``: separating the two is then like telling N(0, σ²) from
    N(1, σ²). It is foretold for clients that are not in the pool, by leaving out each of the pool's in turn; a canary
    that was itself designed on the pool makes it too small. ``ridge`` is λ, in squared clip norms.
    """

    vector: Vector
    signal: float
    effective_sigma: float
    ridge: float


def plain_direction(update: Vector, pool: Pool, *, noise_multiplier: float, cohort: float) -> ScoreDirection:
    """The direction of the canary's ``update`` itself (Maddock et al. 2023): λ is infinite."""
    unit, length = _unit(update, pool)
    noise, cohort = _checked(noise_multiplier, cohort)
    square = float(pool.dots(unit[None]).square().mean()) * cohort + (noise * pool.clip_norm) ** 2
    return ScoreDirection(
        vector=unit.float().numpy(), signal=length, effective_sigma=math.sqrt(square) / length, ridge=math.inf
    )


def likelihood_ratio_direction(
    update: Vector, pool: Pool, *, noise_multiplier: float, cohort: float, ridge: float | None = None
) -> ScoreDirection:
    """The likelihood ratio's direction for the canary's ``update``.

    ``noise_multiplier`` is the noise on the sum in clip norms, ``cohort`` the number of clients expected in a round.
    ``ridge`` is λ in squared clip norms, m σ²/n unless another is asked for; without any noise, next to nothing.
    """
    unit, length = _unit(update, pool)
    noise, cohort = _checked(noise_multiplier, cohort)
    values, vectors = pool.spectrum
    least = max(len(pool) * noise**2 / cohort, _ROUNDING * float(values[-1]))
    ridge = least if ridge is None else check_positive("ridge", ridge)
    inverse = (vectors / (values + ridge)) @ vectors.T
    dots = pool.dots(unit[None])[0] / pool.clip_norm
    weights = inverse @ dots
    along = 1 - float(dots @ weights)  # ⟨w, û⟩
    if along <= _SPANNED:
        raise InputError("the canary's update lies in the span of the pool's: no score tells it from theirs")
    # ⟨w, uᵢ⟩ of each client with w made without it, as in ridge regression: no client is needed for it but the pool's.
    left_out = weights / inverse.diagonal()
    square = along - ridge * float(weights @ weights)  # ‖w‖²
    variance = cohort * float(left_out.square().mean()) + noise**2 * square
    whole = unit - pool.combined(weights[None])[0] / pool.clip_norm
    size = float(whole.norm())
    return ScoreDirection(
        vector=(whole / size).float().numpy(),
        signal=float(whole @ unit) / size * length,
        effective_sigma=math.sqrt(variance) / along * pool.clip_norm / length,
        ridge=ridge,
    )


def held_out_sigma(direction: ScoreDirection, held_out: Pool, *, noise_multiplier: float, cohort: float) -> float:
    """The effective σ of scores along ``direction`` in rounds of clients like ``held_out``, who are not in the pool."""
    noise, cohort = _checked(noise_multiplier, cohort)
    vector = torch.from_numpy(direction.vector).double()
    square = cohort * float(held_out.dots(vector[None]).square().mean())
    square += (noise * held_out.clip_norm) ** 2 * float(vector @ vector)
    return math.sqrt(square) / direction.signal


def _unit(update: Vector, pool: Pool) -> tuple[Tensor, float]:
    vector = np.asarray(update)
    if vector.shape != (pool.dim,):
        raise InputError(f"the canary's update must have the shape ({pool.dim},) of the pool's, got {vector.shape}")
    found = torch.from_numpy(vector.astype(np.float64))
    length = float(found.norm())
    if not (math.isfinite(length) and length > 0):
        raise InputError(f"the canary's update must be finite and not zero, got the norm {length}")
    return found / length, length


def _checked(noise_multiplier: float, cohort: float) -> tuple[float, float]:
    if not (check_number("noise_multiplier", noise_multiplier) >= 0 and math.isfinite(noise_multiplier)):
        raise InputError(f"noise_multiplier must be at least 0, got {noise_multiplier}")
    return float(noise_multiplier), check_positive("cohort", cohort)
