"""PrivUnit₂ (Bhowmick, Duchi, Freudiger, Kapoor and Rogers, 2018): LDP reports from an optimized spherical cap.

LDP-SGD is the special case whose cap is half of the sphere. With the best cap for ε, reports are as accurate as those
of any ε-LDP mechanism for directions can be, up to lower-order terms (Asi, Feldman and Talwar, 2022).

The sampler: ``PrivUnit2._cosines`` draws a report's cosine with the gradient, inside or outside of the cap, by
inverting the distribution function (`cosine_quantile`); ``PrivUnit2.reports`` adds a uniform direction orthogonal to
the gradient.
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
    """PrivUnit₂ with the cap that maximizes the length of the mean report: pure ε-LDP.

    For every cap, the probability of a report in it is the largest that ε allows: the density inside is exactly e^ε
    times the density outside. The gradient's norm is encoded by a random sign, as in LDP-SGD, and not by a separate
    mechanism for scalars as in the paper.

    Args:
        epsilon: The claimed ε of one report.
        norm: The clip norm.

    Raises:
        InputError: If an argument is not positive; in fewer than 2 dimensions when it is used.

    Example:
        >>> mechanism = PrivUnit2(epsilon=8.0)
        >>> reports = mechanism.randomize(np.eye(100)[0], np.random.default_rng(0), count=5)
        >>> np.round(np.linalg.norm(reports, axis=1), 3)
        array([1., 1., 1., 1., 1.], dtype=float32)
    """

    name: ClassVar[str] = "privunit"

    def cap(self, dim: int) -> tuple[float, float, float]:
        """The best cap for this ε."""
        return best_cap(self.epsilon, dim)

    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """A random cosine with the gradient, and a uniform direction orthogonal to it."""
        unit, length = self._direction(gradient)
        cosines = self._cosines(length, unit.size, uniforms)
        single = unit.astype(np.float32)
        # The normal vectors minus their components along the gradient.
        np.multiply((normals.values @ single)[:, None], -single, out=out)
        out += normals.values
        scale = np.sqrt(1 - cosines**2) / np.maximum(Normals(out).lengths, 1e-300)
        out *= scale.astype(np.float32)[:, None]
        out += cosines.astype(np.float32)[:, None] * single
        return out

    def projections(self, gradient: npt.ArrayLike, dim: int, rng: np.random.Generator, count: int) -> Floats:
        """See `LocalMechanism.projections`: the cosine, and r − 1 coordinates of a direction in d − 1 dimensions."""
        unit, length = self._direction(gradient)
        cosines = self._cosines(length, dim, rng.random((3, count)))
        # A uniform direction orthogonal to the gradient, of which only the part inside of the subspace is needed.
        across = rng.standard_normal((count, unit.size))
        across -= np.outer(across @ unit, unit)
        lengths = normal_lengths(across, dim - unit.size, rng)
        across *= (np.sqrt(1 - cosines**2) / np.maximum(lengths, 1e-300))[:, None]
        return across + np.outer(cosines, unit)

    def server_factor(self, dim: int) -> float:
        """See `LocalMechanism.server_factor`: L over the mean cosine of a report with the gradient."""
        least, share, chance = self.cap(dim)
        return self.norm / _mean_cosine(least, share, chance, dim)

    def _cosines(self, length: float, dim: int, uniforms: Floats) -> Floats:
        """The cosines of reports with the gradient, from ``uniforms`` (3, k)."""
        least, share, chance = self.cap(dim)
        signs = np.where(uniforms[0] < 0.5 + length / 2, 1.0, -1.0)
        in_cap = uniforms[1] < chance
        # The cosine's tail probability is uniform on (0, share) inside of the cap, and on (share, 1) outside.
        tails = np.where(in_cap, share * uniforms[2], share + (1 - share) * uniforms[2])
        cosines = cosine_quantile(tails, dim)
        # Rounding in the quantile must not move a report across the edge of the cap.
        return signs * np.where(in_cap, np.maximum(cosines, least), np.minimum(cosines, np.nextafter(least, -1.0)))


def cosine_tail(cosine: npt.ArrayLike, dim: int) -> Floats:
    """P(⟨V, u⟩ ≥ cosine) for V uniform on the unit sphere of ℝᵈ and any unit vector u, d ≥ 2."""
    t = np.asarray(cosine, dtype=float)
    half = 0.5 * special.betaincc(0.5, (dim - 1) / 2, t**2)
    tail: Floats = np.where(t >= 0, half, 1 - half)
    return tail


def cosine_quantile(tail: npt.ArrayLike, dim: int) -> Floats:
    """The cosine that is exceeded with probability ``tail``: the inverse of `cosine_tail`."""
    s = np.asarray(tail, dtype=float)
    magnitude = np.sqrt(special.betainccinv(0.5, (dim - 1) / 2, np.minimum(1.0, 2 * np.minimum(s, 1 - s))))
    cosine: Floats = np.where(s <= 0.5, magnitude, -magnitude)
    return cosine


@lru_cache(maxsize=64)
def best_cap(epsilon: float, dim: int) -> tuple[float, float, float]:
    """The cap whose reports have the longest mean: its smallest cosine, its share of the sphere, and its probability.

    Searched on a grid of shares between 1/2 and e^−(ε + 5) / 2; every cap on it is exactly ε-LDP.
    """
    if dim < 2:
        raise InputError(f"PrivUnit needs at least 2 dimensions, got {dim}")
    share = np.exp(-np.linspace(math.log(2), math.log(2) + epsilon + 5, 4001))
    least = cosine_quantile(share, dim)
    # Recomputed from the rounded cosine: the cap that is used has exactly this share, so ε holds exactly.
    share = cosine_tail(least, dim)
    # The largest probability p that ε allows: logit p = ε + logit share.
    chance = special.expit(epsilon + special.logit(share))
    # Drop caps that rounding has left empty: a smallest cosine of 1, or a share that underflows.
    usable = share > 1e-300
    least, share, chance = least[usable], share[usable], chance[usable]
    best = int(np.argmax(_mean_cosine(least, share, chance, dim)))
    return float(least[best]), float(share[best]), float(chance[best])


def _mean_cosine(least: npt.ArrayLike, share: npt.ArrayLike, chance: npt.ArrayLike, dim: int) -> float:
    """E⟨V, u⟩ of a report: M·(p/q − (1−p)/(1−q)) for a cap with share q and probability p.

    M = E[T; T ≥ γ] = Γ(d/2)/(√π·Γ((d−1)/2)) · (1−γ²)^((d−1)/2)/(d−1) is the part of a uniform direction's mean cosine
    inside of the cap; E[T] = 0 gives the part outside.
    """
    least, share, chance = np.asarray(least), np.asarray(share), np.asarray(chance)
    log_constant = special.gammaln(dim / 2) - special.gammaln((dim - 1) / 2) - 0.5 * math.log(math.pi)
    inside = np.exp(log_constant + (dim - 1) / 2 * np.log1p(-np.minimum(least**2, 1 - 1e-16)) - math.log(dim - 1))
    return inside * (chance / share - (1 - chance) / (1 - share))  # type: ignore[no-any-return]
