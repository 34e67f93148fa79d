"""Canaries that are updates: random directions that clients send, and that a release is searched for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.methods.one_shot.gaussian import GaussianCanaries
from coalmine.methods.one_shot.hadamard import HadamardCanaries
from coalmine.protocol import Vector


class UpdateCanaries(Protocol):
    """``count`` random unit vectors in ``dim`` dimensions, made from ``seed`` when they are needed and never stored."""

    @property
    def dim(self) -> int:
        """How many coordinates a canary has: those of the model."""

    @property
    def count(self) -> int:
        """How many canaries there are."""

    @property
    def seed(self) -> int:
        """What they are made from: the same seed gives the same canaries in every process."""

    @property
    def orthonormal(self) -> bool:
        """Whether all of them are orthogonal to one another."""

    def dots(self, vector: Vector) -> Floats:
        """⟨canaryᵢ, vector⟩ of all canaries, (count,)."""

    def total(self, weights: npt.ArrayLike) -> Vector:
        """Σ weightᵢ · canaryᵢ, (dim,)."""

    def canary(self, index: int) -> Vector:
        """One canary, (dim,)."""

    def each(self, indices: Sequence[int]) -> Iterator[Vector]:
        """These canaries one by one, in ascending order."""


FAMILIES: dict[str, type[HadamardCanaries] | type[GaussianCanaries]] = {
    "hadamard": HadamardCanaries,
    "gaussian": GaussianCanaries,
}


# In fewer dimensions random signs are not yet like the sphere, and Gaussian canaries cost next to nothing.
_HADAMARD_FROM = 4096
_MOST_NUMBERS = 10**10


def family_for(dim: int, count: int) -> str:
    """The family to take: ``hadamard`` where signs are like the sphere and canaries leave most of the space free."""
    return "hadamard" if dim >= _HADAMARD_FROM and 2 * count <= dim else "gaussian"


def check_room(family: str, dim: int, count: int) -> None:
    """Refuse so many orthogonal canaries that what they leave of the space says little of a release's length.

    Gaussian ones are refused where it would take far longer than anybody waits to look for them in a release.
    """
    if family == "hadamard" and 2 * count > dim:
        raise InputError(
            f"{count:,} hadamard canaries, planted and held out, need at least {2 * count:,} dimensions, got {dim:,}: "
            "take fewer, or the family gaussian"
        )
    if family == "gaussian" and count * dim > _MOST_NUMBERS:
        raise InputError(
            f"{count:,} gaussian canaries, planted and held out, in {dim:,} dimensions take {count * dim:.2g} random "
            f"numbers for each release, and {_MOST_NUMBERS:.0e} (about a minute) are the most: take fewer"
        )


def update_canaries(family: str, *, dim: int, count: int, seed: int) -> UpdateCanaries:
    """The canaries of a family by its name.

    ``hadamard``: orthogonal to one another, exactly, so none adds to the score of another; at most as many as the
    largest power of two in ``dim``. All scores of an update cost a few transforms of it, nearly the same for 10
    canaries and for 100,000. Given an update, a null score is a sum of random signs: normal to the accuracy of the
    central limit theorem.

    ``gaussian``: the one-shot paper's, independent and uniform on the sphere, so that a null score follows the exact
    law of a cosine for every update; two have a dot product of about 1/√dim. Scores cost ``dim`` random numbers for
    every canary, thousands of times what the other family takes: score many updates in one pass by
    ``GaussianCanaries.dots_of``.
    """
    if family not in FAMILIES:
        raise InputError(f"a family of update canaries is {' or '.join(FAMILIES)}, got {family!r}")
    return FAMILIES[family](dim=dim, count=count, seed=seed)
