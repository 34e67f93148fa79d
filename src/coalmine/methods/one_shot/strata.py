"""Stratified canaries: part of an audit's canaries point into one tensor each, where dense ones see only the average.

A tensor without noise or clipping is a small part of a dense canary, and all of a canary that lies in it. The noise of
small tensors is compared with the share of these canaries (`coalmine.checks.update_shares`); no score uses them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats, Ints
from coalmine.layers import Layers
from coalmine.methods.one_shot.families import UpdateCanaries
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.vectors import CPU, Device, on

IN_TENSORS = 5
"""One canary in so many lies in a single tensor."""

_LEAST_CANARIES = 20  # in all tensors together; with fewer, dense canaries need every one of them
_LEAST_SIZE = 16  # smaller tensors form one stratum
_MOST_COORDINATES = 2048


class OrthonormalCanaries(UpdateCanaries):
    """A few random orthonormal vectors of a small space, which are stored in single precision.

    Given all others, each is uniform on the sphere of what they leave free.
    """

    orthonormal = True

    def __init__(self, *, dim: int, count: int, seed: int) -> None:
        super().__init__(dim=dim, count=count, seed=seed)
        basis, triangle = np.linalg.qr(generator(seed, "checks", 2).standard_normal((dim, count)))
        # With these signs the basis is uniform among all orthonormal ones (Mezzadri, 2007).
        self._vectors = (basis * np.sign(np.diag(triangle))).T.astype(np.float32)

    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""
        dots: Floats = (self._vectors @ on(CPU, vector)).astype(np.float64)
        return dots

    def total(self, weights: npt.ArrayLike, device: Device = CPU) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,)."""
        total: Vector = on(device, np.asarray(weights, dtype=np.float32) @ self._vectors)
        return total


@dataclass(frozen=True, eq=False)
class Stratum:
    """Canaries that lie in one tensor.

    Args:
        name: Name of the tensor.
        coordinates: Coordinates of the flat vector that the canaries use, ascending, at most 2,048 of the tensor.
        indices: Where its canaries lie among all canaries of the audit.
        canaries: The canaries as vectors of these coordinates.
    """

    name: str
    coordinates: Ints
    indices: slice
    canaries: OrthonormalCanaries


def draw_strata(layers: Layers, *, count: int, seed: int) -> list[Stratum]:
    """Return the strata of an audit with ``count`` canaries, inserted and held out: about a fifth of them, the last.

    Canaries go to the tensors in turn, so that small tensors get as many as large ones, but take at most half of the
    dimensions of each. If there are fewer canaries than tensors, some tensors are drawn at random.
    """
    left = count // IN_TENSORS
    if len(layers.names) < 2 or left < _LEAST_CANARIES:
        return []
    groups: dict[str, Ints] = {}
    small: list[str] = []  # one stratum for all of them
    together = np.zeros(0, dtype=np.int64)
    for name, start, size in zip(layers.names, layers.starts, layers.sizes, strict=True):
        if size >= _LEAST_SIZE:
            groups[name] = np.arange(start, start + size)
        else:
            small.append(name)
            together = np.append(together, np.arange(start, start + size))
    if len(together) >= 2:
        groups["small tensors" if len(small) > 1 else small[0]] = together
    draw = generator(seed, "checks", 1)
    names = [list(groups)[i] for i in draw.permutation(len(groups))[:left]]
    room = {name: max(1, min(len(groups[name]), _MOST_COORDINATES) // 2) for name in names}
    sizes = dict.fromkeys(names, 0)
    while left and sizes != room:
        for name in names:
            if left and sizes[name] < room[name]:
                sizes[name] += 1
                left -= 1
    strata, start = [], count - sum(sizes.values())
    for name in names:
        coordinates = groups[name]
        if len(coordinates) > _MOST_COORDINATES:
            coordinates = np.sort(draw.choice(coordinates, _MOST_COORDINATES, replace=False))
        canaries = OrthonormalCanaries(dim=len(coordinates), count=sizes[name], seed=int(draw.integers(2**31)))
        strata.append(Stratum(name, coordinates, slice(start, start + sizes[name]), canaries))
        start += sizes[name]
    return strata
