"""PrivUnit₂ (Bhowmick, Duchi, Freudiger, Kapoor and Rogers 2018): reports from a smaller cap than half of the sphere.

LDP-SGD is its special case of a cap that is half of the sphere. With the best cap for ε the reports are as exact as any
ε-LDP report of a direction can be, up to lower-order terms (Asi, Feldman and Talwar 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.simulation.mechanisms.local import Normals, Reports, SphereMechanism, normal_lengths


@dataclass(frozen=True, kw_only=True)
class PrivUnit2(SphereMechanism):
    """PrivUnit₂ with the cap that makes the report's mean longest: pure ``epsilon``-LDP.

    Whatever the cap, the chance p to report from it is the largest that ε allows: density inside over density outside
    is e^ε exactly. A gradient's norm is told by a random sign, as in LDP-SGD, and not by a scalar mechanism of its own.
    """

    name: ClassVar[str] = "privunit"

    def cap(self, dim: int) -> tuple[float, float, float]:
        """The best cap for this ε."""
        return best_cap(self.epsilon, dim)

    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """A cosine with the gradient, and a uniform direction orthogonal to it."""
        unit, length = self._direction(gradient)
        cosines = self._cosines(length, unit.size, uniforms)
        single = unit.astype(np.float32)
        np.multiply((normals.values @ single)[:, None], -single, out=out)
        out += normals.values
        scale = np.sqrt(1 - cosines**2) / np.maximum(Normals(out).lengths, 1e-300)
        out *= scale.astype(np.float32)[:, None]
        out += cosines.astype(np.float32)[:, None] * single
        return out

    def projections(self, gradient: npt.ArrayLike, dim: int, rng: np.random.Generator, count: int) -> Floats:
        """The cosine, and r − 1 coordinates of a uniform direction in d − 1 dimensions."""
        unit, length = self._direction(gradient)
        cosines = self._cosines(length, dim, rng.random((3, count)))
        across = rng.standard_normal((count, unit.size))
        across -= np.outer(across @ unit, unit)
        rest = normal_lengths(across, dim - unit.size, rng)
        across *= (np.sqrt(1 - cosines**2) / np.maximum(rest, 1e-300))[:, None]
        return across + np.outer(cosines, unit)

    def server_factor(self, dim: int) -> float:
        """L over the mean cosine of a report with the gradient's direction."""
        least, share, chance = self.cap(dim)
        return self.norm / _mean_cosine(least, share, chance, dim)

    def _cosines(self, length: float, dim: int, uniforms: Floats) -> Floats:
        least, share, chance = self.cap(dim)
        towards = np.where(uniforms[0] < 0.5 + length / 2, 1.0, -1.0)
        in_cap = uniforms[1] < chance
        # The cosine's tail probability is uniform below the cap's share, or above it.
        tails = np.where(in_cap, share * uniforms[2], share + (1 - share) * uniforms[2])
        cosines = cosine_quantile(tails, dim)
        # A rounded quantile must not change sides.
        return towards * np.where(in_cap, np.maximum(cosines, least), np.minimum(cosines, np.nextafter(least, -1.0)))


def cosine_tail(cosine: npt.ArrayLike, dim: int) -> Floats:
    """P(⟨V, u⟩ ≥ cosine) for V uniform on the unit sphere of ℝᵈ and any unit vector u, d ≥ 2."""
    t = np.asarray(cosine, dtype=float)
    half = 0.5 * special.betaincc(0.5, (dim - 1) / 2, t**2)
    found: Floats = np.where(t >= 0, half, 1 - half)
    return found


def cosine_quantile(tail: npt.ArrayLike, dim: int) -> Floats:
    """The cosine that is reached or exceeded with probability ``tail``: the inverse of `cosine_tail`."""
    s = np.asarray(tail, dtype=float)
    size = np.sqrt(special.betainccinv(0.5, (dim - 1) / 2, np.minimum(1.0, 2 * np.minimum(s, 1 - s))))
    found: Floats = np.where(s <= 0.5, size, -size)
    return found


@lru_cache(maxsize=64)
def best_cap(epsilon: float, dim: int) -> tuple[float, float, float]:
    """The cap whose reports have the longest mean: its least cosine, its share, the chance to report from it.

    Searched on a grid of shares between a half and e^−(ε + 5); every cap of it is exactly ε-LDP.
    """
    if dim < 2:
        raise InputError(f"PrivUnit needs at least 2 dimensions, got {dim}")
    share = np.exp(-np.linspace(math.log(2), math.log(2) + epsilon + 5, 4001))
    least = cosine_quantile(share, dim)
    share = cosine_tail(least, dim)
    chance = special.expit(epsilon + special.logit(share))
    # Where the quantile is rounded to 1, or the share to a number without digits, nothing is left of the cap.
    left = share > 1e-300
    least, share, chance = least[left], share[left], chance[left]
    best = int(np.argmax(_mean_cosine(least, share, chance, dim)))
    return float(least[best]), float(share[best]), float(chance[best])


def _mean_cosine(least: npt.ArrayLike, share: npt.ArrayLike, chance: npt.ArrayLike, dim: int) -> float:
    """E⟨V, u⟩ of a report: M·(p/q − (1−p)/(1−q)), where M is the mean of a uniform direction's cosine inside the cap.

    M = E[T; T ≥ γ] = Γ(d/2)/(√π·Γ((d−1)/2)) · (1−γ²)^((d−1)/2)/(d−1), and E[T] = 0 gives the part outside.
    """
    least, share, chance = np.asarray(least), np.asarray(share), np.asarray(chance)
    log_constant = special.gammaln(dim / 2) - special.gammaln((dim - 1) / 2) - 0.5 * math.log(math.pi)
    beyond = np.exp(log_constant + (dim - 1) / 2 * np.log1p(-np.minimum(least**2, 1 - 1e-16)) - math.log(dim - 1))
    return beyond * (chance / share - (1 - chance) / (1 - share))  # type: ignore[no-any-return]
