"""Many clients with small networks at once: their parameters are the rows of one matrix, and vmap runs over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coalmine.arrays import Floats
from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, Participant
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.kernels.kernel import Kernel, group_sizes, padded

# Enough clients and examples per pass to make a step one large product; more would leave the cache.
_CLIENTS, _EXAMPLES = 100, 1000

# Measured with benchmarks/clients.py: vmap wins for few parameters and small inputs. On larger ones it loses, because
# a convolution in which each client has its own kernel runs client by client.
_MOST_PARAMETERS, _MOST_INPUTS = 200_000, 1_024


class Stacked(Kernel):
    """All clients of a chunk take their steps of plain SGD together, as rows of a (clients, d) matrix.

    Short batches are padded with examples of loss weight zero. A client that has taken all of its steps gets gradients
    of zero, which leave it where it is; that is only true without momentum.
    """

    def __init__(
        self, module: nn.Module, task: Task, training: LocalTraining, *, dtype: torch.dtype = torch.float32
    ) -> None:
        self.model = flat.FlatModel(module, dtype=dtype)
        self._task, self._training = task, training

        def logits(parameters: list[Tensor], inputs: Tensor) -> Tensor:
            named = dict(zip(self.model.names, parameters, strict=True))
            outputs: Tensor = functional_call(self.model.module, named, (inputs,))
            return outputs

        self._logits = vmap(logits)

    @staticmethod
    def suits(module: nn.Module, data: FederatedData, training: LocalTraining) -> bool:
        """Whether the network and its inputs are small, and vmap has rules for its layers."""
        recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())  # torch's have no rule for vmap
        small = int(np.prod(data.task.input_shape)) <= _MOST_INPUTS
        return not recurrent and small and len(flat.parameter_vector(module)) <= _MOST_PARAMETERS

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """As many clients as fill a pass."""
        batches = [min(size, self._training.batch_size or size) for size in sizes]
        return group_sizes(batches, clients=_CLIENTS, rows=_EXAMPLES)

    def updates(self, weights: Tensor, clients: Sequence[Participant]) -> Iterator[tuple[Tensor, Floats]]:
        """Train all clients in step."""
        matrix = weights.to(self.model.dtype).repeat(len(clients), 1)
        parameters = self.model.views(matrix)
        batches = [self._training.batches(len(client.examples), client.stream) for client in clients]
        first_losses: Tensor | None = None
        for step in zip_longest(*batches, fillvalue=np.empty(0, dtype=np.int64)):
            examples = [
                client.examples if batch is None else client.examples[batch]
                for client, batch in zip(clients, step, strict=True)
            ]
            inputs, targets, loss_weights = padded(examples, self._task, self.model.dtype, matrix.device)
            # Only the module goes through vmap. torch.func.grad would import torch's compiler, which takes longer than
            # a short training.
            leaves = [part.detach().requires_grad_() for part in parameters]
            logits = self._logits(leaves, inputs)
            each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)
            losses = each.mul(loss_weights).flatten(1).sum(1)
            # The sum keeps clients apart, since no loss depends on another client's parameters.
            gradients = list(torch.autograd.grad(losses.sum(), leaves, materialize_grads=True))
            with torch.no_grad():
                self._training.optimizer.step(parameters, gradients, {})
            first_losses = losses.detach() if first_losses is None else first_losses
        assert first_losses is not None
        yield matrix.sub_(weights), first_losses.cpu().double().numpy()
