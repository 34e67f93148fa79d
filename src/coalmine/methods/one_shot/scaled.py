"""Canaries for tensors with noise or a clip norm of their own: random directions, scaled tensor by tensor.

A canary a·c, with c a uniform direction, shifts the release u; on parameters with noise in proportion to r the best
score for it is ⟨a·c/r, u/r⟩ = ⟨c, a·u/r²⟩. So releases are multiplied by a/r² and compared with c, whose null
distribution is exact whatever the factors are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.layers import Layers
from coalmine.methods.one_shot.updates import UpdateCanaries
from coalmine.protocol import Vector
from coalmine.vectors import Device, like, on

_ROUNDING = 1e-6  # by which shares that should be 1 may be off


@dataclass(frozen=True, eq=False)
class ScaledCanaries:
    """Canaries whose parameters are multiplied by a factor each (see `UpdateCanaries`).

    Args:
        canaries: The canaries before that.
        scale: The factors, (dim,).
    """

    canaries: UpdateCanaries
    scale: Vector

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.canaries.dim

    @property
    def count(self) -> int:
        """Number of canaries."""
        return self.canaries.count

    @property
    def seed(self) -> int:
        """Seed of the canaries."""
        return self.canaries.seed

    @property
    def orthonormal(self) -> bool:
        """Factors that differ do not keep directions orthogonal."""
        return False

    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""
        return self.canaries.dots(vector * like(self.scale, vector))

    def total(self, weights: npt.ArrayLike, device: Device = None) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,)."""
        total: Vector = self.canaries.total(weights, device) * on(device, self.scale)
        return total

    def canary(self, index: int) -> Vector:
        """Return one canary, (dim,)."""
        canary: Vector = self.canaries.canary(index) * self.scale
        return canary

    def each(self, indices: Sequence[int], device: Device = None) -> Iterator[Vector]:
        """Yield these canaries one by one."""
        scale = on(device, self.scale)
        return (canary * scale for canary in self.canaries.each(indices, device))


def noise_scale(noise_per_layer: Mapping[str, float] | None, layers: Layers | None) -> Vector | None:
    """Return the noise of each parameter as a share of the claimed one, (dim,), or None if it is the same for all."""
    if noise_per_layer is None:
        return None
    if layers is None:
        raise InputError("noise_per_layer names tensors: pass layers= too, such as the module")
    scale = layers.spread(noise_per_layer, "noise_per_layer")
    if scale.min() < 1 - _ROUNDING and scale.max() <= 1 + _ROUNDING:
        # Σ(Cₗ/rₗ)² ≤ ΣCₗ² has no solution with an rₗ < 1 and none above: clients would be longer than the noise covers.
        raise InputError(
            "noise_per_layer must be above 1 for one tensor if it is below 1 for another, got at most "
            f"{scale.max():g} and {scale.min():g}: no clip norms per tensor would keep the claim"
        )
    return scale.astype(np.float32)


def largest_clip_norm(noise_per_layer: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the tensor with the least noise, and the largest clip norm that the claim allows it; None if any.

    The clip norm is a share of that of all tensors together. With Σ(Cₗ/rₗ)² ≤ ΣCₗ² it is largest if all other clipping
    is of the tensor with the most noise.

    Args:
        noise_per_layer: The noise of each tensor as a share of the claimed one.

    Example:
        >>> largest_clip_norm({"weight": 2.0, "bias": 0.5})  # 0.2 / 0.5² + 0.8 / 2² = 1
        ('bias', 0.4472135954999579)
    """
    name, least = min(noise_per_layer.items(), key=lambda item: item[1])
    if least >= 1 - _ROUNDING:
        return None
    most = max(noise_per_layer.values()) ** -2
    return name, float(((1 - most) / (least**-2 - most)) ** 0.5)


def clip_scale(clip_norms: Mapping[str, float], layers: Layers) -> Vector:
    """Return the factors (dim,) that give a canary each tensor's clip norm.

    A random direction of norm C, where C² = Σ Cₗ², has norm C √(dₗ/d) in tensor l with dₗ of d parameters.
    """
    norms = layers.spread(clip_norms, "clip_norms")
    sizes = np.repeat(layers.sizes, layers.sizes)
    together = np.sqrt(np.sum(norms**2 / sizes))
    scale: Vector = (norms / together * np.sqrt(layers.dim / sizes)).astype(np.float32)
    return scale


def matched_filter(scale: Vector | None, noise: Vector | None) -> Vector | None:
    """Return what to multiply releases by before they are compared with unscaled canaries, (dim,); None for 1.

    Args:
        scale: Factors of the canaries, (dim,), or None for 1.
        noise: Noise of each parameter, relative to the claimed one, (dim,), or None for 1.
    """
    if scale is None or noise is None:
        return scale if noise is None else noise**-2
    return scale / noise**2
