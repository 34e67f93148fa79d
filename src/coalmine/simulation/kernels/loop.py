"""One client after another: for any module, and the fastest where one client's work is large."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.simulation import flat
from coalmine.simulation.client import Client, LocalTraining, loss_of, tensors
from coalmine.simulation.data.federated import Task
from coalmine.simulation.kernels.convolutions import use_reach
from coalmine.simulation.kernels.partial_sum import PartialSum, groups, scales
from coalmine.simulation.kernels.pooling import use_halving
from coalmine.simulation.optimizers import State
from coalmine.usercode import said


class Loop:
    """Each client trains the same module in turn, its parameters reset by one copy."""

    def __init__(
        self, module: nn.Module, task: Task, training: LocalTraining, *, dtype: torch.dtype = torch.float32
    ) -> None:
        channels_last = flat.prefers_channels_last(module, task.input_shape)
        self.model = flat.FlatModel(module, channels_last=channels_last, dtype=dtype)
        use_reach(self.model.module)
        if not self.model.channels_last:  # where torch's own pooling is slow
            use_halving(self.model.module)
        self._task, self._training, self._dtype = task, training, dtype
        self._start, self._total = (torch.empty_like(self.model.vector) for _ in range(2))

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """A few clients at a time: enough pieces for workers to share evenly."""
        return groups(sizes, clients=max(1, len(sizes) // 16), rows=sum(sizes))

    def clipped_sum(self, weights: Tensor, clients: Sequence[Client], clip_norm: float, out: Tensor) -> PartialSum:
        """Σ weightᵢ · clip(updateᵢ), one client at a time."""
        start, total = weights, out
        if self.model.channels_last or self._dtype != weights.dtype:
            start, total = self.model.internal(weights, out=self._start), self._total
        norms, losses = np.empty(len(clients)), np.empty(len(clients))
        vector = self.model.vector
        outside = torch.get_rng_state()
        for i, client in enumerate(clients):
            losses[i] = self._train(client, start)
            with torch.no_grad():
                self.model.reattach()
                vector.sub_(start)
                norms[i] = float(flat.norms(vector[None]))
                scale = float(scales(norms[i : i + 1], np.array([client.weight]), clip_norm)[0])
                total = total.add_(vector, alpha=scale) if i else torch.mul(vector, scale, out=total)
        torch.set_rng_state(outside)
        return PartialSum(self.model.export(total, out=out), norms, losses)

    def _train(self, client: Client, start: Tensor) -> float:
        """Train from the global model; leaves the trained parameters in the flat vector."""
        self.model.reattach()
        self.model.vector.copy_(start)
        self.model.reset_buffers()
        inputs, targets = tensors(client.examples, self._task, self._dtype)
        if inputs.ndim == 4 and self.model.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        batches = self._training.batches(len(client.examples), client.stream)
        torch.default_generator.manual_seed(int(client.stream().integers(2**32)))  # for dropout and its like
        state: State = {}
        first = float("nan")
        for step, batch in enumerate(batches):
            rows = slice(None) if batch is None else torch.from_numpy(batch)
            again = batch is None and len(batches) > 1  # the module may change what it is given
            some = inputs.clone() if again else inputs[rows]
            try:
                loss = loss_of(self.model.module, self._task, some, targets[rows])
                gradients = self.model.gradients(loss)
            except (RuntimeError, ValueError, TypeError, LookupError) as error:
                number = f"{len(some)} example{'s' if len(some) > 1 else ''}"
                raise InputError(f"the model fails on a client's batch of {number}: {said(error)}") from error
            with torch.no_grad():
                self._training.optimizer.step(self.model.parameters, gradients, state)
            if step == 0:
                first = loss.item()
        return first
