"""The plain reference kernel: one client after another.

It works with any module and any optimizer, and is the fastest kernel where a single client's work is large. Every other
kernel must reproduce its results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, Participant, loss_of, seed_dropout, tensors
from coalmine.simulation.data.federated import Task
from coalmine.simulation.kernels.convolutions import use_reach
from coalmine.simulation.kernels.partial_sum import PartialSum, clip_factors, group_sizes
from coalmine.simulation.optimizers import OptimizerState
from coalmine.usercode import errors_of


class Loop:
    """Trains clients in turn on one module, whose parameters are reset by a single copy."""

    def __init__(
        self, module: nn.Module, task: Task, training: LocalTraining, *, dtype: torch.dtype = torch.float32
    ) -> None:
        channels_last = flat.prefers_channels_last(module, task.input_shape)
        self.model = flat.FlatModel(module, channels_last=channels_last, dtype=dtype)
        use_reach(self.model.module)
        self._task, self._training, self._dtype = task, training, dtype
        self._start, self._total = (torch.empty_like(self.model.vector) for _ in range(2))

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """About 16 chunks, so that workers can share them evenly."""
        return group_sizes(sizes, clients=max(1, len(sizes) // 16), rows=sum(sizes))

    def clipped_sum(self, weights: Tensor, clients: Sequence[Participant], clip_norm: float, out: Tensor) -> PartialSum:
        """Σ weightᵢ · clip(updateᵢ), one client at a time."""
        start, total = weights, out
        if self.model.channels_last or self._dtype != weights.dtype:
            start, total = self.model.internal(weights, out=self._start), self._total
        norms, losses = np.empty(len(clients)), np.empty(len(clients))
        update = self.model.vector
        rng_state = torch.get_rng_state()
        for i, client in enumerate(clients):
            losses[i] = self._train(client, start)
            with torch.no_grad():
                self.model.reattach()
                update.sub_(start)
                norms[i] = float(flat.norms(update[None]))
                factor = float(clip_factors(norms[i : i + 1], np.array([client.weight]), clip_norm)[0])
                total = total.add_(update, alpha=factor) if i else torch.mul(update, factor, out=total)
        torch.set_rng_state(rng_state)
        return PartialSum(self.model.export(total, out=out), norms, losses)

    def _train(self, client: Participant, start: Tensor) -> float:
        """Train from the global model, leave the new parameters in the flat vector, and return the first loss."""
        self.model.reattach()
        self.model.vector.copy_(start)
        self.model.reset_buffers()
        device = self.model.device
        inputs, targets = tensors(client.examples, self._task, self._dtype, device)
        if inputs.ndim == 4 and self.model.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        batches = self._training.batches(len(client.examples), client.stream)
        # Dropout and similar layers draw from torch's global generator: seed it per client.
        seed_dropout(int(client.stream().integers(2**32)), device)
        state: OptimizerState = {}
        first_loss = float("nan")
        for step, batch in enumerate(batches):
            rows = slice(None) if batch is None else torch.from_numpy(batch).to(device)
            reused = batch is None and len(batches) > 1  # then a module may not change its inputs in place
            batch_inputs = inputs.clone() if reused else inputs[rows]
            count = f"{len(batch_inputs)} example{'s' if len(batch_inputs) > 1 else ''}"
            with errors_of(f"the model failed on a client's batch of {count}"):
                with self._training.autocast(device):
                    loss = loss_of(self.model.module, self._task, batch_inputs, targets[rows])
                gradients = self.model.gradients(loss)
            with torch.no_grad():
                self._training.optimizer.step(self.model.parameters, gradients, state)
            if step == 0:
                first_loss = loss.item()
        return first_loss
