"""The direction to score a round's noisy sum in: the canary's own, or the likelihood ratio's.

A round's sum is Gaussian noise, the canary's update if it is there, and the others'. If these have the second moment Σ
each, the sum of n of them under Poisson sampling has the covariance n Σ (nearly: n Σ less a share that vanishes with
the sampling rate). The most powerful linear score is then along (n Σ + σ² I)⁻¹ u, for the canary's update u. With the
pool's m updates U, Σ ≈ Uᵀ U / m, and by Woodbury's identity it is, up to a factor,

    w = u − Uᵀ (λ I + U Uᵀ)⁻¹ U u,    λ = m σ² / n :

one m × m system in place of a d × d matrix. λ is the noise's share; a larger one trusts the pool less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coalmine.canaries.pool import Pool
from coalmine.errors import InputError, check_number, check_positive
from coalmine.seam import Vector

# Candidates for λ, from the noise's share upwards.
_RIDGES = 40


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
    update: Vector,
    pool: Pool,
    *,
    noise_multiplier: float,
    cohort: float,
    ridge: float | Literal["noise", "leave-one-out"] = "leave-one-out",
) -> ScoreDirection:
    """The likelihood ratio's direction for the canary's ``update``, noise of ``noise_multiplier`` clip norms, and
    ``cohort`` clients expected in a round.

    ``ridge`` is λ in squared clip norms; "noise" is m σ²/n; "leave-one-out" is what has the smallest
    ``effective_sigma``, from there upwards: new clients also move along directions that no client of the pool took.
    """
    unit, length = _unit(update, pool)
    noise, cohort = _checked(noise_multiplier, cohort)
    square = pool.clip_norm**2
    values, vectors = torch.linalg.eigh(pool.gram / square)
    values = values.clamp(min=0)
    dots = pool.dots(unit[None])[0] / pool.clip_norm
    least = len(pool) * noise**2 / cohort
    if ridge == "leave-one-out":
        top = max(float(values[-1]), least) * 1e3
        lowest = max(least, float(values[-1]) * 1e-12)
        candidates = np.geomspace(lowest, top, _RIDGES).tolist()
    elif ridge == "noise":
        candidates = [max(least, float(values[-1]) * 1e-12)]
    else:
        candidates = [check_positive("ridge", ridge)]
    chosen, best, weights = 0.0, math.inf, dots
    for candidate in candidates:
        inverse = (vectors / (values + candidate)) @ vectors.T
        found = inverse @ dots
        # Of ⟨w, uᵢ⟩ with w made without client i, as in ridge regression; the mean of their squares is n Σ along w.
        left_out = found / inverse.diagonal()
        along = 1 - float(dots @ found)  # ⟨w, û⟩
        norm = along - candidate * float(found @ found)  # ‖w‖² = ⟨w, û⟩ − λ ‖found‖²
        variance = cohort * float(left_out.square().mean()) + noise**2 * norm
        sigma = math.sqrt(max(variance, 0.0)) / along * pool.clip_norm / length if along > 0 else math.inf
        if sigma < best:
            chosen, best, weights = candidate, sigma, found
    if math.isinf(best):
        raise InputError("the canary's update lies in what the pool's span: no score can tell it from theirs")
    whole = unit - pool.combined(weights[None])[0] / pool.clip_norm
    size = float(whole.norm())
    return ScoreDirection(
        vector=(whole / size).float().numpy(),
        signal=float(whole @ unit) / size * length,
        effective_sigma=best,
        ridge=chosen,
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
