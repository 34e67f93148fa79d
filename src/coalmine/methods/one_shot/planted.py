"""What the one-shot audit adds to a round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coalmine.errors import check_positive
from coalmine.methods.one_shot.updates import UpdateCanaries
from coalmine.protocol import Contribution, Vector
from coalmine.vector_kind import VectorKind
from coalmine.vectors import AnyVector, dot, flat, pieces


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

    canaries: UpdateCanaries
    members: tuple[int, ...]
    norm: float
    kind: VectorKind
    energy: float

    def as_planted(self) -> Vector:
        """Return ``total`` as it was planted. Recomputes it if the training has changed it in place."""
        if energy(self.total, self.kind) == self.energy:
            return flat(self.total)
        weights = np.zeros(self.canaries.count)
        weights[list(self.members)] = self.norm
        return self.canaries.total(weights, self.kind.work_device)

    def each(self, norm: float | None = None) -> Iterator[AnyVector]:
        """Yield the updates of the round's canaries, for the training to clip and sum. Do not add ``total`` as well.

        Args:
            norm: Norm of each update. The clip norm by default; longer ones show whether the training clips.
        """
        length = self.norm if norm is None else check_positive("norm", norm)
        for canary in self.canaries.each(self.members, self.kind.work_device):
            yield self.kind.give(canary * length)

    def one_by_one(self) -> Iterator[tuple[int, AnyVector]]:
        """Return pairs of a canary's index and its update."""
        return zip(self.members, self.each(), strict=True)


def energy(total: AnyVector, kind: VectorKind) -> float:
    """Return the squared norm of a vector, in pieces, since converting another float type makes a copy."""
    parts = (flat(total[part]) for part in pieces(len(total), kind.work_device))
    return sum(dot(part, part) for part in parts)
