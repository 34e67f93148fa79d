"""What every kernel gives: the clipped sum of some clients' updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from coalmine.arrays import Floats
from coalmine.simulation.client import Client
from coalmine.simulation.flat import FlatModel

# What rounding may add to a clipped update, in its norm or its sum, is taken off in advance.
_SLACK = 1 - 2.0**-16


@dataclass(frozen=True)
class PartialSum:
    """The sum of some clients' clipped, weighted updates (d,), each one's norm before clipping and its first loss."""

    total: Tensor
    norms: Floats
    losses: Floats


class Kernel(Protocol):
    """A way to compute it. All give the same, to rounding; which is fastest depends on the model and the clients."""

    model: FlatModel
    """The module that it trains, a copy of its own."""

    def clipped_sum(self, weights: Tensor, clients: Sequence[Client], clip_norm: float, out: Tensor) -> PartialSum:
        """Σ weightᵢ · clip(updateᵢ) over ``clients`` from the global model ``weights`` (d,), written to ``out`` (d,).

        An update longer than ``clip_norm`` is scaled to it; an infinite ``clip_norm`` scales none.
        """

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """How many of the clients, with so many examples each, to hand to it at a time, in order: [3, 3, 2]."""


def scales(norms: Floats, weights: Floats, clip_norm: float) -> Floats:
    """What each update is multiplied by: its weight, times what brings it within ``clip_norm``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return weights * np.where(norms > clip_norm * _SLACK, clip_norm * _SLACK / norms, 1.0)


def groups(sizes: Sequence[int], *, clients: int, rows: int) -> list[int]:
    """Cut a sequence of clients into groups of at most ``clients``, and of ``rows`` examples unless one has more.

    Groups are as even as that allows, and two at least where each has 16 clients: workers share them.
    """
    cut: list[int] = []
    if not sizes:
        return cut
    pieces = max(-(-len(sizes) // clients), -(-sum(sizes) // rows), min(2, len(sizes) // 16), 1)
    clients = min(clients, -(-len(sizes) // pieces))
    count = taken = 0
    for size in sizes:
        if count and (count == clients or taken + size > rows):
            cut.append(count)
            count = taken = 0
        count, taken = count + 1, taken + size
    return [*cut, count]
