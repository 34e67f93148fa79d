"""Many clients with small networks at once: their parameters are the rows of one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coalmine.arrays import Floats
from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, Participant
from coalmine.simulation.data.federated import Task
from coalmine.simulation.kernels.padding import padded
from coalmine.simulation.kernels.partial_sum import PartialSum, clip_factors, group_sizes
from coalmine.simulation.optimizers import SGD, OptimizerState

# Enough clients to make a step one large product; more would leave the cache.
_CLIENTS = 100


class Stacked:
    """All clients of a chunk take their steps together, with ``vmap`` over the rows of a (clients, d) matrix.

    Short batches are padded with examples of loss weight zero. A client that has taken all of its steps gets gradients
    of zero, which leave it where it is; that is only true for SGD without momentum.
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

        def logits(parameters: list[Tensor], inputs: Tensor) -> Tensor:
            named = dict(zip(self.model.names, parameters, strict=True))
            outputs: Tensor = functional_call(self.model.module, named, (inputs,))
            return outputs

        self._logits = vmap(logits)

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """Enough clients per chunk to make a step one large product, and few enough to hold their batches."""
        return group_sizes(
            [min(size, self._training.batch_size or size) for size in sizes], clients=_CLIENTS, rows=self._rows
        )

    def clipped_sum(self, weights: Tensor, clients: Sequence[Participant], clip_norm: float, out: Tensor) -> PartialSum:
        """Σ weightᵢ · clip(updateᵢ), all clients in step."""
        updates, norms, factors, losses = self._updates(weights, clients, clip_norm)
        torch.mv(updates.t(), factors, out=out)
        return PartialSum(out, norms, losses)

    def clipped_updates(
        self, weights: Tensor, clients: Sequence[Participant], clip_norm: float
    ) -> tuple[Tensor, Floats]:
        """The terms of ``clipped_sum``, shape (clients, d), and each client's norm before clipping."""
        updates, norms, factors, _ = self._updates(weights, clients, clip_norm)
        return updates.mul_(factors[:, None]), norms

    def _updates(
        self, weights: Tensor, clients: Sequence[Participant], clip_norm: float
    ) -> tuple[Tensor, Floats, Tensor, Floats]:
        """The updates (clients, d) before clipping, their norms, their clip factors, and the first losses."""
        start = weights.to(self._dtype)
        matrix = start.repeat(len(clients), 1)
        sizes = [torch.Size(shape).numel() for shape in self.model.shapes]
        columns = zip(matrix.split(sizes, dim=1), self.model.shapes, strict=True)
        parameters = [part.view(-1, *shape) for part, shape in columns]
        batches = [self._training.batches(len(client.examples), client.stream) for client in clients]
        state: OptimizerState = {}
        losses = np.empty(0)
        for step in zip_longest(*batches, fillvalue=np.empty(0, dtype=np.int64)):
            examples = [
                client.examples if batch is None else client.examples[batch]
                for client, batch in zip(clients, step, strict=True)
            ]
            inputs, targets, loss_weights = padded(examples, self._task, self._dtype, start.device)
            # Only the module goes through vmap. The rest of torch.func would import torch's compiler and a computer
            # algebra system, which takes longer than a short training.
            leaves = [part.detach().requires_grad_() for part in parameters]
            logits = self._logits(leaves, inputs)
            each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)
            loss = each.mul(loss_weights).flatten(1).sum(1)
            # The sum keeps clients apart, since no loss depends on another client's parameters.
            gradients = list(torch.autograd.grad(loss.sum(), leaves, materialize_grads=True))
            with torch.no_grad():
                self._training.optimizer.step(parameters, gradients, state)
            if not len(losses):
                losses = loss.detach().cpu().double().numpy()
        with torch.no_grad():
            updates = matrix.sub_(start)
            norms = flat.norms(updates).numpy()
        factors = clip_factors(norms, np.array([client.weight for client in clients]), clip_norm)
        return updates, norms, torch.from_numpy(factors).to(start), losses
