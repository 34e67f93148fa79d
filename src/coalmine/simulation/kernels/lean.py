"""The plain reference kernel: one client after another, for any module and any optimizer.

It is also the fastest kernel where a single client's work is large. Every other kernel must reproduce its results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.arrays import Floats
from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, OptimizerState, Participant, loss_of, seed_dropout, tensors
from coalmine.simulation.data.federated import Task
from coalmine.simulation.kernels.kernel import Kernel, group_sizes
from coalmine.usercode import errors_of

# Parameters of updates that are clipped together: norms of many short updates take as long as that of one.
_BLOCK = 1_000_000


class LeanLoop(Kernel):
    """Trains clients in turn on one module: reset the parameters, differentiate, step in place."""

    def __init__(
        self, module: nn.Module, task: Task, training: LocalTraining, *, dtype: torch.dtype = torch.float32
    ) -> None:
        self.model = flat.FlatModel(module, dtype=dtype)
        self._task, self._training = task, training

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """About 16 chunks, so that workers can share them evenly."""
        return group_sizes(sizes, clients=max(1, len(sizes) // 16), rows=sum(sizes))

    def updates(self, weights: Tensor, clients: Sequence[Participant]) -> Iterator[tuple[Tensor, Floats]]:
        """Train one client at a time."""
        rng_state = torch.get_rng_state()
        size = max(1, _BLOCK // self.model.dim)
        for first in range(0, len(clients), size):
            block = clients[first : first + size]
            rows, losses = weights.new_empty(len(block), self.model.dim), np.empty(len(block))
            for i, client in enumerate(block):
                losses[i] = self._train(client, weights)
                self.model.flatten(self.model.parameters, out=rows[i])
            yield rows.sub_(weights), losses
        torch.set_rng_state(rng_state)

    def _train(self, client: Participant, weights: Tensor) -> float:
        """Train from the global model, leave the new parameters in the module, and return the first loss."""
        model, training = self.model, self._training
        model.load(weights)
        model.reset_buffers()
        inputs, targets = tensors(client.examples, self._task, model.dtype, model.device)
        # Dropout and similar layers draw from torch's global generator: seed it per client.
        seed_dropout(int(client.stream().integers(2**32)), model.device)
        batches = training.batches(len(client.examples), client.stream)
        state: OptimizerState = {}
        first_loss: Tensor | None = None
        for batch in batches:
            rows = slice(None) if batch is None else torch.from_numpy(batch).to(model.device)
            # A module may change its inputs in place, so a batch that is used again is copied.
            batch_inputs = inputs.clone() if batch is None and len(batches) > 1 else inputs[rows]
            with errors_of(f"the model failed on a client's batch of {len(batch_inputs)}"):
                loss = loss_of(model.module, self._task, batch_inputs, targets[rows])
                gradients = model.gradients(loss)
            with torch.no_grad():
                training.optimizer.step(model.parameters, gradients, state)
            first_loss = loss.detach() if first_loss is None else first_loss
        assert first_loss is not None
        return float(first_loss)
