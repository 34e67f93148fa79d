"""What the integrations share: checks of the audits they are given, and what they need to know of a contribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from coalmine.errors import InputError, check_kind
from coalmine.methods.one_shot.updates import UpdateCanaries
from coalmine.protocol import Audit, Vector


@runtime_checkable
class SeededContribution(Protocol):
    """A contribution of unit vectors that a seed regenerates, all scaled to the same norm.

    Anyone with the seed can make each canary again, one at a time and with another norm.
    """

    @property
    def canaries(self) -> UpdateCanaries | None:
        """The unit vectors, of inserted and held-out canaries."""

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of the canaries that were added."""

    @property
    def norm(self) -> float:
        """The norm of each."""


def check_audits(audits: Sequence[Audit]) -> None:
    """Refuse anything that is not an audit, and audits that would insert the same canaries twice."""
    if not audits:
        raise InputError("at least one audit is needed, such as OneShot(...), got none")
    for audit in audits:
        check_kind("an audit", audit, Audit, "an Audit, such as OneShot(...)")
    planted = [audit.plants_as for audit in audits if audit.plants_as is not None]
    if len(set(planted)) < len(planted):
        raise InputError(f"two audits insert the same canaries ({planted[0]}): give them different seeds")


def finite_part(vector: Vector) -> tuple[Vector, int]:
    """Return the vector with zeros in place of NaN and infinity, and how many there were.

    Anybody may do this to a release, so bounds stay valid (post-processing).
    """
    finite = np.isfinite(vector)
    lost = int(np.count_nonzero(~finite))
    return (np.where(finite, vector, np.float32(0)), lost) if lost else (vector, 0)
