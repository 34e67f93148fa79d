"""The interface of all kernels, and the clipping they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from coalmine.arrays import Floats
from coalmine.simulation.client import Participant
from coalmine.simulation.flat import FlatModel

# Float32 rounding could push a clipped update just above the clip norm. Clipping to slightly less makes the sensitivity
# bound, and with it the privacy guarantee, hold exactly.
_SLACK = 1 - 2.0**-16


@dataclass(frozen=True)
class PartialSum:
    """The sum of some clients' clipped and weighted updates.

    Attributes:
        total: Σ weightᵢ · clip(updateᵢ), shape (d,).
        norms: Norm of each client's update before clipping, shape (clients,).
        losses: Each client's loss before its first step, shape (clients,).
    """

    total: Tensor
    norms: Floats
    losses: Floats


class Kernel(Protocol):
    """A way to compute a `PartialSum`. All kernels agree up to rounding; they differ in speed."""

    model: FlatModel
    """The kernel's private copy of the module."""

    def clipped_sum(self, weights: Tensor, clients: Sequence[Participant], clip_norm: float, out: Tensor) -> PartialSum:
        """Train every client from the global model and sum the clipped updates.

        Args:
            weights: Parameters of the global model, shape (d,).
            clients: The clients to train.
            clip_norm: Longer updates are scaled down to this ℓ₂ norm; ``math.inf`` disables clipping.
            out: Where to write the sum, shape (d,).
        """

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """How many clients to pass per call, in order, for clients with ``sizes`` examples, such as [3, 3, 2]."""


def clip_factors(norms: Floats, weights: Floats, clip_norm: float) -> Floats:
    """The factor for each update: its weight, times clip_norm / norm if the update is longer than the clip norm."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return weights * np.where(norms > clip_norm * _SLACK, clip_norm * _SLACK / norms, 1.0)


def group_sizes(sizes: Sequence[int], *, clients: int, rows: int) -> list[int]:
    """Cut clients into even groups of at most ``clients`` clients and ``rows`` examples (one client may exceed this).

    With 32 clients or more there are at least two groups, so that two workers can share them.
    """
    groups: list[int] = []
    if not sizes:
        return groups
    pieces = max(-(-len(sizes) // clients), -(-sum(sizes) // rows), min(2, len(sizes) // 16), 1)
    clients = min(clients, -(-len(sizes) // pieces))
    count = taken = 0
    for size in sizes:
        if count and (count == clients or taken + size > rows):
            groups.append(count)
            count = taken = 0
        count, taken = count + 1, taken + size
    return [*groups, count]
