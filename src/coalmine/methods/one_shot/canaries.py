"""The canaries of a one-shot audit: random updates, which of them are inserted, and what they add to a round.

`CanarySet` has all of them: dense ones of a family (`update_canaries`) first, then those that lie in single tensors
(`coalmine.methods.one_shot.strata`). Where tensors have noise or a clip norm of their own, a canary a·c, with c a
uniform direction, shifts the release u; on parameters with noise in proportion to r the best score for it is
⟨a·c/r, u/r⟩ = ⟨c, a·u/r²⟩. So releases are multiplied by a/r² and compared with c, whose null distribution is exact
whatever the factors are.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coalmine.arrays import Bools, Ints
from coalmine.errors import CanaryWarning, InputError, check_count, check_positive, did_you_mean
from coalmine.layers import Layers
from coalmine.methods.one_shot.families import HadamardCanaries, OrthogonalCanaries, UpdateCanaries
from coalmine.methods.one_shot.gaussian import GaussianCanaries
from coalmine.methods.one_shot.strata import Stratum, draw_strata
from coalmine.protocol import Contribution, Vector
from coalmine.seeds import generator
from coalmine.stats.rank_tests import Design
from coalmine.vectors import CPU, AnyVector, Device, VectorKind, dot, flat, on, pieces

_HADAMARD_FROM = 4096  # in fewer dimensions random signs differ from uniform directions, and storing costs little
_MOST_NUMBERS = 10**10
_MOST_KEPT = 1 << 20  # numbers of a sum that is kept for the next round (4 MB)
_ROUNDING = 1e-6  # by which shares that should be 1 may be off


FAMILIES: dict[str, type[UpdateCanaries]] = {
    "hadamard": HadamardCanaries,
    "orthogonal": OrthogonalCanaries,
    "gaussian": GaussianCanaries,
}


def choose_family(family: str | None, dim: int, count: int) -> str:
    """Return a family that has room for the canaries, inserted and held out.

    Args:
        family: Name of the family. By default orthogonal canaries, if they leave half of the space free: with less, the
            remainder says little about a release's length.
        dim: Number of parameters.
        count: Number of canaries.

    Raises:
        InputError: If there is no such family, or if there are too many canaries for the dimension.

    Example:
        >>> choose_family(None, 5_000, 200), choose_family(None, 1_000, 200), choose_family(None, 30, 200)
        ('hadamard', 'orthogonal', 'gaussian')
    """
    crowded = 2 * count > dim
    default = "hadamard" if dim >= _HADAMARD_FROM else "orthogonal"
    family = family or ("gaussian" if crowded else default)
    if family not in FAMILIES:
        raise InputError(f'unknown family "{family}" of update canaries. {did_you_mean(family, FAMILIES)}')
    if FAMILIES[family].orthonormal and crowded:
        raise InputError(
            f"{count:,} {family} canaries, inserted and held out, need at least {2 * count:,} dimensions, got {dim:,}: "
            "use fewer canaries or family=gaussian"
        )
    if family == "gaussian" and count * dim > _MOST_NUMBERS:
        raise InputError(
            f"{count:,} gaussian canaries, inserted and held out, in {dim:,} dimensions take {count * dim:.2g} random "
            f"numbers for each release, more than {_MOST_NUMBERS:.0e} (about a minute): use fewer canaries"
        )
    return family


def update_canaries(family: str, *, dim: int, count: int, seed: int) -> UpdateCanaries:
    """Return the canaries of a family.

    Args:
        family: ``"hadamard"``: exactly orthogonal, so that none adds to another's score; all scores of an update cost a
            few fast transforms. Null scores are sums of random signs, normal to the accuracy of the central limit
            theorem. ``"orthogonal"``: exactly orthogonal and uniform, so that null scores follow theirs exactly; they
            are stored, and for small models. ``"gaussian"``: the paper's independent, uniform directions, whose null
            scores follow the cosine null exactly; scores cost ``dim`` random numbers per canary, thousands of times
            more.
        dim: Number of coordinates.
        count: Number of canaries.
        seed: Seed of the canaries.

    Raises:
        InputError: If there is no such family, or if it has fewer than ``count`` canaries in ``dim`` dimensions.

    Example:
        >>> canaries = update_canaries("hadamard", dim=1000, count=4, seed=0)
        >>> canaries.dots(canaries.canary(2)).round(3) + 0.0
        array([0., 0., 1., 0.])
    """
    if family not in FAMILIES:
        raise InputError(f'unknown family "{family}" of update canaries. {did_you_mean(family, FAMILIES)}')
    return FAMILIES[family](dim=dim, count=count, seed=seed)


def draw_members(canaries: int, *, design: Design, seed: int) -> Bools:
    """Return which of ``2 * canaries`` canaries are inserted, (2 * canaries,).

    Raises:
        InputError: If coin flips insert all of them or none.
    """
    count = 2 * check_count("canaries", canaries)
    draw = generator(seed, "insertion")
    if design == "fixed":
        members = np.zeros(count, dtype=bool)
        members[draw.permutation(count)[:canaries]] = True
        return members
    members = draw.random(count) < 0.5
    if members.all() or not members.any():
        raise InputError(
            f"coin flips inserted {int(members.sum())} of {count} canaries, so there is nothing to compare: use more "
            "canaries, or design=fixed"
        )
    return members


@dataclass(frozen=True, kw_only=True)
class PlantedCanaries(Contribution):
    """The inserted canaries of a round: ``total`` is their sum, each with the clip norm.

    To test a training's own clipping, take the canaries one by one from `each` instead, longer than allowed.

    Args:
        canaries: All canaries of the audit.
        members: Indices of the inserted canaries that take part in the round, in ascending order.
        norm: Norm of each.
        kind: Whether they are NumPy arrays or tensors, and which.
        energy: Squared norm of ``total`` when it was planted, which tells whether the training has changed it since.
    """

    canaries: CanarySet
    members: tuple[int, ...]
    norm: float
    kind: VectorKind
    energy: float

    def as_planted(self) -> Vector:
        """Return ``total`` as it was planted. Recomputes it if the training has changed it in place."""
        if energy(self.total, self.kind) == self.energy:
            return flat(self.total)
        total: Vector = self.canaries.total(self.members, self.kind.device) * self.norm
        return total

    @property
    def tensors(self) -> dict[str, AnyVector]:
        """``total`` by the names of the model's tensors and in their shapes; parts of it, not copies.

        Raises:
            InputError: If the audit knows only the number of parameters.

        Example:
            >>> from torch import nn
            >>> from coalmine import OneShot
            >>> audit = OneShot(nn.Linear(20, 10), rounds=5, canaries=10)
            >>> {name: tuple(part.shape) for name, part in audit.plant(0, clip_norm=1.0).tensors.items()}
            {'weight': (10, 20), 'bias': (10,)}
        """
        layers = self.canaries.layers
        if layers is None:
            raise InputError("the audit knows only the number of parameters: give it the module, OneShot(model, …)")
        parts = zip(layers.shapes.items(), layers.starts, layers.ends, strict=True)
        return {name: self.total[start:end].reshape(tuple(shape)) for (name, shape), start, end in parts}

    def each(self, norm: float | None = None) -> Iterator[AnyVector]:
        """Yield the updates of the round's canaries, for the training to clip and sum. Do not add ``total`` as well.

        Args:
            norm: Norm of each update. The clip norm by default; longer ones show whether the training clips.
        """
        length = self.norm if norm is None else check_positive("norm", norm)
        self.canaries.overlong |= length > 1.01 * self.norm
        for canary in self.canaries.each(self.members, self.kind.device):
            yield self.kind.give(canary * length)

    def one_by_one(self, length: float = 1.0) -> Iterator[tuple[int, AnyVector]]:
        """Return pairs of a canary's index and its update, so many times as long."""
        return zip(self.members, self.each(length * self.norm), strict=True)


def energy(total: AnyVector, kind: VectorKind) -> float:
    """Return the squared norm of a vector, in pieces, since converting another float type makes a copy."""
    energy = 0.0
    for part in pieces(len(total), kind.device):
        numbers = flat(total[part])
        energy += dot(numbers, numbers)
    return energy


class CanarySet:
    """The canaries of an audit, inserted and held out.

    Args:
        dim: Number of parameters.
        canaries: Expected number of inserted canaries; as many are held out.
        family: Family of the dense ones.
        design: How many are inserted: about half by coin flips, or exactly half.
        layers: The model's tensors, or None if they are unknown and all canaries are dense.
        seed: Seed of the canaries and for which of them are inserted.
        scale: What each parameter is multiplied by when canaries are inserted, (dim,), or None.

    Attributes:
        count: Number of canaries, inserted and held out.
        members: Which canaries are inserted, (count,).
        strata: Canaries in single tensors, the last ones.
        dense: Canaries that use all coordinates: the first ones.
        overlong: Whether some were sent longer than the clip norm, so that the training's own clipping is tested.
    """

    def __init__(
        self, *, dim: int, canaries: int, family: str, design: Design, layers: Layers | None, seed: int,
        scale: Vector | None = None,
    ) -> None:  # fmt: skip
        self.dim, self.layers, self.scale, self.count = dim, layers, scale, 2 * canaries
        self.members = draw_members(canaries, design=design, seed=seed)
        self.strata: list[Stratum] = []
        if layers is not None:
            self.strata = draw_strata(layers, count=self.count, seed=seed)
        count = self.strata[0].indices.start if self.strata else self.count
        self.dense = FAMILIES[family](dim=dim, count=count, seed=seed)
        self.overlong = False
        self._last_sum: tuple[tuple[int, ...], Vector] | None = None  # of canaries of length 1, and who they were

    def total(self, members: Sequence[int], device: Device = CPU) -> Vector:
        """Return the sum of some canaries, (dim,)."""
        if not len(members):
            nothing: Vector = on(device, np.zeros(self.dim, dtype=np.float32))
            return nothing
        weights = np.zeros(self.count)
        weights[list(members)] = 1.0
        total = self.dense.total(weights[: self.dense.count], device)
        for stratum in self.strata:
            if weights[stratum.indices].any():
                total[on(device, stratum.coordinates)] += stratum.canaries.total(weights[stratum.indices], device)
        return total if self.scale is None else total * on(device, self.scale)

    def each(self, members: Sequence[int], device: Device = CPU) -> Iterator[Vector]:
        """Yield these canaries one by one, for indices in ascending order."""
        scale = 1.0 if self.scale is None else on(device, self.scale)
        chosen = np.asarray(members, dtype=np.int64)
        for canary in self.dense.each(chosen[chosen < self.dense.count].tolist(), device):
            yield canary * scale
        for stratum in self.strata:
            first, stop = stratum.indices.start, stratum.indices.stop
            inside = chosen[(chosen >= first) & (chosen < stop)] - first
            for part in stratum.canaries.each(inside.tolist(), device):
                canary = on(device, np.zeros(self.dim, dtype=np.float32))
                canary[on(device, stratum.coordinates)] = part
                yield canary * scale

    def planted(self, present: Ints, norm: float, clients: float, kind: VectorKind) -> PlantedCanaries:
        """Return the sum of the inserted ones among the canaries of a round, each of length ``norm``."""
        size = norm / self.dim**0.5  # of a typical number
        if size < kind.least:
            raise InputError(
                f"canaries of norm {norm:g} in {self.dim:,} dimensions have numbers of about {size:.1g}, which are too "
                f"small for {kind.dtype}: pass a float32 model or the number of parameters as dim"
            )
        members = tuple(present[self.members[present]].tolist())
        # Canaries of every round have the same sum each time.
        if self._last_sum is not None and self._last_sum[0] == members:
            total = kind.give(self._last_sum[1] * float(norm))
        else:
            unit = self.total(members, kind.device)
            self._last_sum = None
            if self.dim <= _MOST_KEPT:
                self._last_sum = (members, unit)
            # A sum that is kept must not be what the training adds its noise to.
            total = kind.give(unit * float(norm) if norm != 1 or self._last_sum else unit)
        return PlantedCanaries(
            total, clients, len(members), canaries=self, members=members, norm=norm, kind=kind,
            energy=energy(total, kind),
        )  # fmt: skip


def noise_scale(noise_per_layer: Mapping[str, float], layers: Layers | None) -> Vector:
    """Return the noise of each parameter as a share of the claimed one, (dim,)."""
    if layers is None:
        raise InputError("noise_per_layer names tensors: pass layers= too, such as the module")
    scale = layers.spread(noise_per_layer, "noise_per_layer")
    if scale.min() < 1 - _ROUNDING and scale.max() <= 1 + _ROUNDING:
        # Σ(Cₗ/rₗ)² ≤ ΣCₗ² has no solution with an rₗ < 1 and none above: clients would be longer than the noise covers.
        raise InputError(
            "noise_per_layer must be above 1 for one tensor if it is below 1 for another, got at most "
            f"{scale.max():g} and {scale.min():g}: no clip norms per tensor would keep the claim"
        )
    vector: Vector = scale.astype(np.float32)
    return vector


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


# What canaries cost the training that they join. Beside n clients, m canaries of the clip norm C do two things to a
# round's average. They enlarge its divisor from n to n + m, so clients and noise both move the model n / (n + m) times
# as far; a server learning rate that is (n + m) / n times as large undoes that. And they add a vector of random
# direction and length C √m, like noise of standard deviation C √(m / d) per coordinate, where the mechanism's own has
# z C: together √(1 + m / (d z²)) times as large, which nothing undoes, but it is small as long as m is far below d z².


def extra_noise(canaries: float, *, dim: int, noise_multiplier: float) -> float:
    """Return by what factor canaries make the noise in a round larger, minus 1.

    Args:
        canaries: Expected number of inserted canaries in a round.
        dim: Number of parameters.
        noise_multiplier: The mechanism's noise multiplier; the answer is infinite if it is 0.

    Example:
        >>> round(extra_noise(canaries=50, dim=10_000, noise_multiplier=1.0), 4)
        0.0025
    """
    if noise_multiplier == 0:
        return math.inf if canaries else 0.0
    return math.sqrt(1 + canaries / (dim * noise_multiplier**2)) - 1


def warn_if_crowded(canaries: float, clients: float, *, advice: str | None = None) -> None:
    """Warn before a training if a round has more canaries than clients.

    Args:
        canaries: Expected number of canaries that a round's average counts.
        clients: Expected number of clients in a round.
        advice: What to do about it; fewer canaries, more clients or larger steps of the server if None.
    """
    if canaries <= clients:
        return
    share = clients / (clients + canaries)
    if advice is None:
        advice = "use fewer canaries or more clients per round"
        if share > 0:
            advice += f", or multiply the server's learning rate by {1 / share:.2g}"
    warnings.warn(
        f"{canaries:,.4g} canaries beside {clients:,.4g} clients in a round: it moves the model only {share:.2g} times "
        f"as far as without canaries, which costs accuracy; {advice}. `coalmine plan` shows how many canaries you need",
        CanaryWarning,
        stacklevel=3,
    )
