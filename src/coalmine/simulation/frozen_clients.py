"""What clients send in rounds on a frozen model: each client's update is computed once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coalmine.arrays import Floats, Ints
from coalmine.simulation.kernels.kernel import PartialSum
from coalmine.simulation.workers import ClientWork, Workers, WorkItem

_MOST_BYTES = 1 << 29
_LEAST_REUSE = 4  # a client alone takes longer than one in a batch of clients


def pays(clients: int, dim: int, *, needed: float) -> bool:
    """Whether to keep all clients' updates, where frozen rounds need ``needed`` of them altogether."""
    return 4 * clients * dim <= _MOST_BYTES and needed >= _LEAST_REUSE * clients


class FrozenClients:
    """Sums of clipped updates on a model that does not change.

    Rounds on a frozen model draw fresh cohorts and fresh noise. Only the order of a client's batches is drawn once, and
    is part of what the other clients send: bounds on ε hold whatever that is.

    Args:
        work: The clients' work.
        workers: Who does it.
        model: The frozen model.
        round: The round before which frozen rounds are held.
        trial: Number of the random streams from which clients draw the order of their batches.
        clip_norm: Longer updates are scaled down to this norm.
    """

    def __init__(
        self, work: ClientWork, workers: Workers, model: Tensor, *, round: int, trial: int, clip_norm: float
    ) -> None:
        self._workers, self._model = workers, model
        self._round, self._trial, self._clip_norm = round, trial, clip_norm
        clients = len(work.data)
        self._updates = torch.zeros(clients, model.numel(), device=model.device)
        self._norms, self._losses = np.zeros(clients), np.zeros(clients)
        self._known = np.zeros(clients, dtype=bool)

    def sum(self, clients: Ints, weights: Floats) -> PartialSum:
        """The sum of the clients' clipped and weighted updates."""
        present = np.unique(clients)
        self._compute(present[~self._known[present]])
        factors = np.bincount(clients, weights, minlength=len(self._known))[present]
        rows, device = torch.from_numpy(present), self._model.device
        total = torch.from_numpy(factors.astype(np.float32)).to(device) @ self._updates[rows.to(device)]
        return PartialSum(total, self._norms[clients], self._losses[clients])

    def _compute(self, clients: Ints) -> None:
        """Compute the updates of clients that were not drawn before."""
        weight = np.ones(1)
        items = [WorkItem(self._round, self._trial, np.array([i]), weight, self._clip_norm) for i in clients.tolist()]
        for client, part in zip(clients.tolist(), self._workers.parts(self._model, items), strict=True):
            self._updates[client] = part.total
            self._norms[client], self._losses[client] = part.norms[0], part.losses[0]
        self._known[clients] = True
