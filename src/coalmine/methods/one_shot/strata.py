"""Stratified canaries: part of an audit's canaries point into one tensor each, where dense ones see only the average.

A tensor without noise or clipping is a small part of a dense canary, and all of a canary that lies in it.
docs/checks.md explains the test, which holds however the canaries of a tensor depend on each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Array, Bools, Floats, Ints
from coalmine.claims.sampling import Sampling
from coalmine.layers import Layers
from coalmine.methods.one_shot.families import UpdateCanaries
from coalmine.methods.one_shot.scores import Max, Score, Sum
from coalmine.protocol import Vector, View
from coalmine.seeds import generator
from coalmine.vectors import CPU, Device, on

IN_TENSORS = 5
"""One canary in so many lies in a single tensor."""

_LEAST_CANARIES = 20  # in all tensors together; with fewer, dense canaries need every one of them
_LEAST_SIZE = 16  # smaller tensors form one stratum
_MOST_COORDINATES = 2048
_LEAST_CHANCE = 1e-12  # p-values of single canaries below this are not needed, and curves are not computed for them


class OrthonormalCanaries(UpdateCanaries):
    """A few random orthonormal vectors of a small space, which are stored in single precision.

    Given all others, each is uniform on the sphere of what they leave free, so the cosine null is exact.
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


class StrataEvidence:
    """What releases say about the canaries of each stratum.

    Args:
        strata: The strata; there may be none.
        members: Which of all canaries are inserted.
        view: What the adversary sees.
        participation: When canaries take part.
        shared_rounds: Whether all canaries take part in the same rounds, known to the adversary.
    """

    def __init__(
        self, strata: Sequence[Stratum], members: Bools, view: View, *, participation: Sampling, shared_rounds: bool
    ) -> None:
        self._strata, self._members = strata, members
        self._coordinates = np.concatenate([np.zeros(0, np.int64), *(stratum.coordinates for stratum in strata)])
        sizes = np.array([len(stratum.coordinates) for stratum in strata])
        self._starts = np.cumsum(sizes) - sizes
        # One dot product with the sum of releases if canaries share their rounds, otherwise the largest cosine.
        several = view.every is not None or len(view.at) > 0
        score = Sum if several and shared_rounds else Max
        self._scores: list[Score] = []
        for stratum in strata:
            self._scores.append(score(stratum.canaries, participation=participation, shared_rounds=shared_rounds))

    def add(self, change: Vector, *, due: Ints, shift: float | None, rate: float, ends_epoch: bool) -> None:
        """Process a release; see `Score.add`."""
        if not self._strata:
            return
        taken = on(CPU, change[on(change.device, self._coordinates)])
        lengths = np.sqrt(np.add.reduceat(np.square(taken, dtype=np.float64), self._starts)).tolist()
        for stratum, score, start, length in zip(self._strata, self._scores, self._starts, lengths, strict=True):
            if length > 0:
                part = taken[start : start + len(stratum.coordinates)]
                score.add(part, length, due=due[stratum.indices], shift=shift, rate=rate, ends_epoch=ends_epoch)

    def chances(self) -> dict[str, Floats]:
        """Return how likely a held-out canary scores as high as each inserted one, by tensor."""
        chances: dict[str, Floats] = {}
        for stratum, score in zip(self._strata, self._scores, strict=True):
            values, null, _ = score.evidence()
            if null is not None:
                scores = values[self._members[stratum.indices]]
                tails = np.exp(null.log_sf(scores[np.isfinite(scores)]))
                if len(tails):
                    chances[stratum.name] = np.maximum(tails, _LEAST_CHANCE)
        return chances

    # Checkpoints

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint keeps."""
        state: dict[str, Array] = {}
        for i, score in enumerate(self._scores):
            for name, value in score.state().items():
                state[f"stratum{i}_{name}"] = value
        return state

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a saved state."""
        for i, score in enumerate(self._scores):
            score.restore(state, prefix=f"stratum{i}_")
