"""Stratified canaries: part of an audit's canaries point into one tensor each, where dense ones see only the average.

A tensor without noise or clipping is a small part of a dense canary, and all of a canary that lies in it.
docs/checks.md explains the test, which holds however the canaries of a tensor depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Array, Bools, Floats, Ints
from coalmine.claims import Claim
from coalmine.claims.sampling import Sampling
from coalmine.layers import Layers
from coalmine.methods.one_shot.scores import Evidence, Max, Sum
from coalmine.methods.one_shot.views import shows_one_release
from coalmine.protocol import Vector, View
from coalmine.results.finding import Check, Finding
from coalmine.seeds import generator
from coalmine.stats.noise_tests import LEAST_P_VALUE
from coalmine.vectors import Device, on, take, to_numpy

IN_TENSORS = 5
"""One canary in so many lies in a single tensor."""

_LEAST_CANARIES = 20  # in all tensors together; with fewer, dense canaries need every one of them
_LEAST_SIZE = 16  # smaller tensors form one stratum
_MOST_COORDINATES = 2048
_LEAST_CHANCE = 1e-12  # p-values of single canaries below this are not needed, and curves are not computed for them
_SHARES_OF_NOISE = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True, eq=False)
class OrthonormalCanaries:
    """A few random orthonormal vectors of a small space, which are stored (see `UpdateCanaries`).

    Given all others, each is uniform on the sphere of what they leave free, so the cosine null is exact.

    Args:
        vectors: The canaries, (count, dim).
        seed: Seed that they were drawn with.
    """

    vectors: npt.NDArray[np.float32]
    seed: int

    orthonormal: ClassVar[bool] = True

    @classmethod
    def draw(cls, *, dim: int, count: int, seed: int) -> OrthonormalCanaries:
        """Draw ``count`` vectors in ``dim`` dimensions."""
        rng = generator(seed, "checks", 2)
        basis, triangle = np.linalg.qr(rng.standard_normal((dim, count)))
        # With these signs the basis is uniform among all orthonormal ones (Mezzadri, 2007).
        return cls((basis * np.sign(np.diag(triangle))).T.astype(np.float32), seed)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.vectors.shape[1])

    @property
    def count(self) -> int:
        """Number of canaries."""
        return len(self.vectors)

    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""
        dots: Floats = (self.vectors @ to_numpy(vector)).astype(np.float64)
        return dots

    def total(self, weights: npt.ArrayLike, device: Device = None) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,)."""
        total: Vector = on(device, np.asarray(weights, dtype=np.float32) @ self.vectors)
        return total

    def canary(self, index: int) -> Vector:
        """Return one canary, (dim,)."""
        vector: Vector = self.vectors[index]
        return vector

    def each(self, indices: Sequence[int], device: Device = None) -> Iterator[Vector]:
        """Yield these canaries one by one."""
        return iter(on(device, self.vectors[list(indices)]))


@dataclass(frozen=True, eq=False)
class Stratum:
    """Canaries that lie in one tensor.

    Args:
        name: Name of the tensor.
        coordinates: Coordinates of the flat vector that the canaries use, ascending, at most 2,048 of the tensor.
        first: Index of the first of these canaries among all canaries of the audit.
        canaries: The canaries as vectors of these coordinates.
    """

    name: str
    coordinates: Ints
    first: int
    canaries: OrthonormalCanaries

    @property
    def indices(self) -> slice:
        """Where its canaries lie among all canaries."""
        return slice(self.first, self.first + self.canaries.count)


def draw_strata(layers: Layers, *, count: int, seed: int) -> list[Stratum]:
    """Return the strata of an audit with ``count`` canaries, inserted and held out: about a fifth of them, the last.

    Canaries go to the tensors in turn, so that small tensors get as many as large ones, but take at most half of the
    dimensions of each. If there are fewer canaries than tensors, some tensors are drawn at random.
    """
    left = count // IN_TENSORS
    if len(layers.names) < 2 or left < _LEAST_CANARIES:
        return []
    draw = generator(seed, "checks", 1)
    groups = _groups(layers)
    names = [list(groups)[i] for i in draw.permutation(len(groups))[:left]]
    room = {name: max(1, min(len(groups[name]), _MOST_COORDINATES) // 2) for name in names}
    sizes = dict.fromkeys(names, 0)
    while left and any(sizes[name] < room[name] for name in names):
        for name in names:
            if left and sizes[name] < room[name]:
                sizes[name] += 1
                left -= 1
    strata, start = [], count - sum(sizes.values())
    for name in names:
        coordinates = groups[name]
        if len(coordinates) > _MOST_COORDINATES:
            coordinates = np.sort(draw.choice(coordinates, _MOST_COORDINATES, replace=False))
        canaries = OrthonormalCanaries.draw(dim=len(coordinates), count=sizes[name], seed=int(draw.integers(2**31)))
        strata.append(Stratum(name, coordinates, start, canaries))
        start += sizes[name]
    return strata


def _groups(layers: Layers) -> dict[str, Ints]:
    """Return the coordinates of each stratum by name."""
    groups: dict[str, Ints] = {}
    small = []
    for name, start, size in zip(layers.names, layers.starts, layers.sizes, strict=True):
        if size >= _LEAST_SIZE:
            groups[name] = np.arange(start, start + size)
        else:
            small.append((name, np.arange(start, start + size)))
    together = np.concatenate([part for _, part in small]) if small else np.zeros(0, dtype=np.int64)
    if len(together) >= 2:
        groups["small tensors" if len(small) > 1 else small[0][0]] = together
    return groups


class StrataEvidence:
    """What releases say about the canaries of each stratum.

    Args:
        strata: The strata.
        members: Which of all canaries are inserted.
        view: What the adversary sees.
        participation: When canaries take part.
        shared_rounds: Whether all canaries take part in the same rounds, known to the adversary.
    """

    def __init__(
        self, strata: Sequence[Stratum], members: Bools, view: View, *, participation: Sampling, shared_rounds: bool
    ) -> None:
        # One dot product with the sum of releases if canaries share their rounds, otherwise the largest cosine.
        score = Sum if shared_rounds and not shows_one_release(view) else Max
        self._strata, self._members = strata, members
        self._coordinates = np.concatenate([stratum.coordinates for stratum in strata])
        sizes = np.array([len(stratum.coordinates) for stratum in strata])
        self._starts = np.cumsum(sizes) - sizes
        self._parts = [slice(*ends) for ends in zip(self._starts, self._starts + sizes, strict=True)]
        self._evidence = [
            Evidence(score, stratum.canaries, participation=participation, shared_rounds=shared_rounds)
            for stratum in strata
        ]

    def add(self, change: Vector, *, due: Ints, shift: float | None, rate: float, ends_epoch: bool) -> None:
        """Process a release; see `Evidence.add`."""
        taken = take(change, self._coordinates)
        lengths = np.sqrt(np.add.reduceat(np.square(taken, dtype=np.float64), self._starts)).tolist()
        for stratum, evidence, part, length in zip(self._strata, self._evidence, self._parts, lengths, strict=True):
            if length > 0:
                due_here = due[stratum.indices]
                evidence.add(taken[part], length, due=due_here, shift=shift, rate=rate, ends_epoch=ends_epoch)

    def findings(self, claim: Claim, level: float) -> list[Finding]:
        """Return tensors whose canaries refute the claim. The p-values take all canaries of all strata into account.

        Args:
            claim: The claim.
            level: Significance of all strata together.
        """
        chances = [
            self._chances(evidence, self._members[stratum.indices])
            for stratum, evidence in zip(self._strata, self._evidence, strict=True)
        ]
        tested = sum(map(len, chances))
        if not tested:
            return []
        curve = claim.curve()
        findings = []
        for stratum, likelihoods in zip(self._strata, chances, strict=True):
            # Under the claim a member's score is so unlikely with probability at most curve.tpr(likelihoods): a valid
            # p-value of each canary by itself, and by the union bound of all of them.
            p_value = float(min(1.0, tested * curve.tpr(likelihoods).min())) if len(likelihoods) else 1.0
            if p_value <= level:
                sentence = f"Canaries in {stratum.name} refute the claim"
                share = _noise_at_most(claim, likelihoods, tested, level)
                if share is not None and share < 0.99:
                    sentence += f": at most {share:g} of the claimed noise is in effect there"
                findings.append(Finding(check=Check.CANARIES, sentence=sentence, p_value=max(p_value, LEAST_P_VALUE)))
        return findings

    def _chances(self, evidence: Evidence, members: Bools) -> Floats:
        """Return how likely a held-out canary scores as high as each inserted one, (inserted,)."""
        null = None if evidence.is_silent else evidence.null()
        if null is None:
            return np.zeros(0)
        scores = evidence.scores()[members]
        scores = scores[np.isfinite(scores)]
        return np.maximum(np.exp(null.log_sf(scores)), _LEAST_CHANCE)

    # Checkpoints

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint keeps."""
        return {
            f"stratum{i}_{name}": value
            for i, evidence in enumerate(self._evidence)
            for name, value in evidence.state().items()
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a saved state."""
        for i, evidence in enumerate(self._evidence):
            prefix = f"stratum{i}_"
            evidence.restore({name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)})


def _noise_at_most(claim: Claim, chances: Floats, tested: int, level: float) -> float | None:
    """Return the smallest of a few shares of the claimed noise that the canaries rule out, or None."""
    if not claim.has_noise:
        return None
    for share in _SHARES_OF_NOISE:
        if tested * float(claim.curve(share).tpr(chances).min()) <= level:
            return share
    return 1.0
