"""What an audit with update canaries adds to a round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coalmine.errors import check_positive
from coalmine.methods.one_shot.updates import UpdateCanaries
from coalmine.protocol import Contribution, Vector


@dataclass(frozen=True)
class PlantedCanaries(Contribution):
    """A round's canaries: their sum, each as long as the clip norm; or one by one, where clipping is to be tested."""

    canaries: UpdateCanaries | None = None
    members: tuple[int, ...] = ()
    norm: float = 1.0

    def each(self, norm: float | None = None) -> Iterator[Vector]:
        """The updates of this round's canaries one by one, each of length ``norm`` (the clip norm if not given).

        They are to be clipped by the training under audit: longer ones show whether it clips. ``total`` must then be
        left out of the sum.
        """
        length = self.norm if norm is None else check_positive("norm", norm)
        assert self.canaries is not None
        for canary in self.canaries.each(self.members):
            yield canary * np.float32(length)

    def one_by_one(self) -> Iterator[tuple[int, Vector]]:
        """The canaries with their numbers."""
        return zip(self.members, self.each(), strict=True)
