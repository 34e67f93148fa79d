"""Many clients with small nets at once: their parameters are the rows of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from coalmine.arrays import Floats, Ints
from coalmine.simulation import flat
from coalmine.simulation.client import Client, LocalTraining
from coalmine.simulation.data.federated import Examples, Task
from coalmine.simulation.kernels.padding import padded
from coalmine.simulation.kernels.partial_sum import PartialSum, groups, scales
from coalmine.simulation.optimizers import SGD, State

# Enough clients to make a step one large product; more would leave the cache.
_CLIENTS = 100


class Stacked:
    """All clients of a chunk take their steps together, by ``vmap`` over the rows of a (clients, d) matrix.

    Clients with fewer examples are filled up with rows that do not count; one that has taken all its steps stands
    still. Plain SGD only: a client that stands still must not be moved by momentum.
    """

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        training: LocalTraining,
        *,
        rows: int = _CLIENTS * 100,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._rows = rows
        assert isinstance(training.optimizer, SGD)
        assert training.optimizer.momentum == 0
        self.model = flat.FlatModel(module, dtype=dtype)
        self._task, self._training, self._dtype = task, training, dtype

        def loss(rows: list[Tensor], inputs: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
            parameters = dict(zip(self.model.names, rows, strict=True))
            logits = functional_call(self.model.module, parameters, (inputs,))
            each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
            return each.mul(counts.flatten()).sum()

        self._gradients = vmap(grad_and_value(loss))

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """As many clients as make a step one large product, and few enough for their batches to be held."""
        return groups(
            [min(size, self._training.batch_size or size) for size in sizes], clients=_CLIENTS, rows=self._rows
        )

    def clipped_sum(self, weights: Tensor, clients: Sequence[Client], clip_norm: float, out: Tensor) -> PartialSum:
        """Σ weightᵢ · clip(updateᵢ), all clients in step."""
        matrix, losses = self._trained(weights, clients)
        with torch.no_grad():
            norms = flat.norms(matrix).numpy()
            scale = scales(norms, np.array([client.weight for client in clients]), clip_norm)
            torch.mv(matrix.t(), torch.from_numpy(scale).to(self._dtype), out=out)
        return PartialSum(out, norms, losses)

    def clipped_updates(self, weights: Tensor, clients: Sequence[Client], clip_norm: float) -> tuple[Tensor, Floats]:
        """What ``clipped_sum`` is the sum of: (clients, d), and each one's norm before it was clipped."""
        matrix, _ = self._trained(weights, clients)
        with torch.no_grad():
            norms = flat.norms(matrix).numpy()
            scale = scales(norms, np.array([client.weight for client in clients]), clip_norm)
            matrix.mul_(torch.from_numpy(scale).to(self._dtype)[:, None])
        return matrix, norms

    def _trained(self, weights: Tensor, clients: Sequence[Client]) -> tuple[Tensor, Floats]:
        """The updates (clients, d) before they are clipped, and each client's first loss."""
        start = weights.to(self._dtype)
        matrix = start.repeat(len(clients), 1)
        rows = [part.view(-1, *shape) for part, shape in self._columns(matrix)]
        batches = [self._training.batches(len(client.examples), client.stream) for client in clients]
        states: State = {}
        losses = np.empty(0)
        for step in zip_longest(*batches, fillvalue=np.empty(0, dtype=np.int64)):
            some = [_chosen(client.examples, batch) for client, batch in zip(clients, step, strict=True)]
            gradients, loss = self._gradients(rows, *padded(some, self._task, self._dtype))
            with torch.no_grad():
                self._training.optimizer.step(rows, gradients, states)
            if not len(losses):
                losses = loss.double().numpy()
        return matrix.sub_(start), losses

    def _columns(self, matrix: Tensor) -> list[tuple[Tensor, tuple[int, ...]]]:
        sizes = [torch.Size(shape).numel() for shape in self.model.shapes]
        return list(zip(matrix.split(sizes, dim=1), self.model.shapes, strict=True))


def _chosen(examples: Examples, batch: Ints | None) -> Examples:
    return examples if batch is None else Examples(examples.inputs[batch], examples.targets[batch])
