"""Canaries that are updates: random directions that extra clients send, and that releases are searched for.

Three families share one interface. docs/one-shot.md compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Bools, Floats
from coalmine.errors import InputError, check_count, did_you_mean
from coalmine.methods.one_shot.gaussian import GaussianCanaries
from coalmine.methods.one_shot.hadamard import HadamardCanaries
from coalmine.methods.one_shot.orthogonal import OrthogonalCanaries
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.stats.rank_tests import Design
from coalmine.vectors import Device


class UpdateCanaries(Protocol):
    """Random unit vectors, generated from a seed when they are needed and never stored.

    They are the same on every device. Dot products are computed where the vector is, sums on the device that is asked
    for (None is NumPy on the CPU).
    """

    @property
    def dim(self) -> int:
        """Number of coordinates of a canary: the model's parameters."""

    @property
    def count(self) -> int:
        """Number of canaries, inserted and held out."""

    @property
    def seed(self) -> int:
        """Seed: the same seed gives the same canaries in every process."""

    @property
    def orthonormal(self) -> bool:
        """Whether all canaries are orthogonal to each other."""

    def dots(self, vector: Vector) -> Floats:
        """Return ⟨canaryᵢ, vector⟩ for all canaries, (count,)."""

    def total(self, weights: npt.ArrayLike, device: Device = None) -> Vector:
        """Return Σ weightᵢ · canaryᵢ for ``weights`` (count,), (dim,)."""

    def canary(self, index: int) -> Vector:
        """Return one canary, (dim,)."""

    def each(self, indices: Sequence[int], device: Device = None) -> Iterator[Vector]:
        """Yield these canaries one by one, for indices in ascending order."""


FAMILIES: dict[str, type[HadamardCanaries] | type[OrthogonalCanaries] | type[GaussianCanaries]] = {
    "hadamard": HadamardCanaries,
    "orthogonal": OrthogonalCanaries,
    "gaussian": GaussianCanaries,
}

# In fewer dimensions random signs differ from uniform directions, and storing canaries costs next to nothing.
_HADAMARD_FROM = 4096
_MOST_NUMBERS = 10**10


def family_for(dim: int, count: int) -> str:
    """Return the default family: orthogonal canaries if they leave half of the space free.

    Example:
        >>> family_for(5_000, 200), family_for(1_000, 200), family_for(30, 200)
        ('hadamard', 'orthogonal', 'gaussian')
    """
    if 2 * count > dim:
        return "gaussian"
    return "hadamard" if dim >= _HADAMARD_FROM else "orthogonal"


def check_room(family: str, dim: int, count: int) -> None:
    """Raise if there are too many canaries for the dimension.

    Orthogonal canaries must leave at least half of the space free, or the remainder says little about a release's
    length. Gaussian ones must not take far more time than anyone would wait.
    """
    if family != "gaussian" and 2 * count > dim:
        raise InputError(
            f"{count:,} {family} canaries, inserted and held out, need at least {2 * count:,} dimensions, got {dim:,}: "
            "use fewer canaries or family=gaussian"
        )
    if family == "gaussian" and count * dim > _MOST_NUMBERS:
        raise InputError(
            f"{count:,} gaussian canaries, inserted and held out, in {dim:,} dimensions take {count * dim:.2g} random "
            f"numbers for each release, more than {_MOST_NUMBERS:.0e} (about a minute): use fewer canaries"
        )


def update_canaries(family: str, *, dim: int, count: int, seed: int) -> UpdateCanaries:
    """Return the canaries of a family.

    Args:
        family: ``"hadamard"``: exactly orthogonal, so that none adds to another's score; all scores of an update cost a
            few fast transforms. Null scores are sums of random signs, normal to the accuracy of the central limit
            theorem. ``"orthogonal"``: exactly orthogonal and uniform, so that null scores follow theirs exactly; they
            are stored, and for small models. ``"gaussian"``: the paper's independent, uniform directions, whose null
            scores follow the cosine null exactly; scores cost ``dim`` random numbers per canary, thousands of times
            more. To score many updates use ``GaussianCanaries.dots_of``.
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
