"""All clients' single steps in one pass: they start from the same weights, so their examples can share a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.simulation import flat
from coalmine.simulation.client import Client, LocalTraining
from coalmine.simulation.data.federated import Task
from coalmine.simulation.kernels.convolutions import use_reach
from coalmine.simulation.kernels.layers import layer_gradients, supported
from coalmine.simulation.kernels.padding import padded
from coalmine.simulation.kernels.partial_sum import PartialSum, groups, scales
from coalmine.simulation.optimizers import SGD

# So many clients and examples make large products; more would only take memory.
_CLIENTS, _ROWS = 128, 2048


class OneStep:
    """Clients that take one SGD step on one batch: one forward and backward pass for a whole chunk of them.

    The gradient of a client is known layer by layer from the layer's inputs and deltas; its norm needs no gradient
    formed, and the clipped sum is one product a layer. For modules of Linear, Conv2d, GroupNorm and Embedding layers,
    each used once.
    """

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        training: LocalTraining,
        *,
        rows: int = _ROWS,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._rows = min(rows, _ROWS)
        channels_last = flat.prefers_channels_last(module, task.input_shape)
        self.model = flat.FlatModel(module, channels_last=channels_last, dtype=dtype)
        assert isinstance(training.optimizer, SGD)
        self._learning_rate = training.optimizer.learning_rate
        self._task, self._dtype = task, dtype
        use_reach(self.model.module)
        self._layers = _owners(self.model.module)
        for parameter in self.model.parameters:
            parameter.requires_grad_(False)
        self._seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        for layer in self._layers:
            layer.register_forward_hook(self._note)

    @staticmethod
    def suits(module: nn.Module) -> bool:
        """Whether all trainable parameters sit in layers it knows, none of them shared or frozen."""
        layers = _owners(module)
        owned = [value for layer in layers for value in layer.parameters(recurse=False)]
        unshared = len(owned) == len({id(value) for value in owned})
        return unshared and all(map(supported, layers)) and all(value.requires_grad for value in owned)

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """As many clients as one pass takes without leaving the cache, or holding too much."""
        return groups(sizes, clients=_CLIENTS, rows=self._rows)

    def clipped_sum(self, weights: Tensor, clients: Sequence[Client], clip_norm: float, out: Tensor) -> PartialSum:
        """Σ weightᵢ · clip(−learning rate · gradientᵢ), in one pass."""
        self.model.borrow(weights)
        inputs, targets, counts = padded([client.examples for client in clients], self._task, self._dtype)
        if inputs.ndim == 5 and self.model.channels_last:
            inputs = inputs.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, inputs.shape[:2])
        losses = self._forward(inputs, targets, counts)
        outputs = [self._seen[layer][1] for layer in self._layers]
        deltas = torch.autograd.grad(losses.sum(), outputs)
        with torch.no_grad():
            found = [
                gradients
                for layer, delta in zip(self._layers, deltas, strict=True)
                for gradients in layer_gradients(layer, self._seen[layer][0], delta, len(clients))
            ]
            squares = torch.stack([gradients.squared_norms() for gradients in found]).sum(0)
            norms = self._learning_rate * squares.sqrt().numpy()
            factors = scales(norms, np.array([client.weight for client in clients]), clip_norm)
            factor = torch.from_numpy(-self._learning_rate * factors).to(self._dtype)
            for gradients, place in zip(found, self.model.views(out), strict=True):
                gradients.weighted_sum(factor, place)
        self._seen.clear()
        return PartialSum(out, norms, losses.detach().double().numpy())

    def _note(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if layer in self._seen:
            raise RuntimeError("a layer is used more than once in a forward pass")
        if not output.requires_grad:
            output.requires_grad_()
        self._seen[layer] = (inputs[0].detach(), output)

    def _forward(self, inputs: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
        """(clients,): each one's mean loss over the targets that count."""
        self._seen.clear()
        logits = self.model.module(inputs.flatten(0, 1))
        each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        return each.view(len(counts), -1).mul(counts.flatten(1)).sum(1)


def _owners(module: nn.Module) -> list[nn.Module]:
    """The layers that have parameters of their own, in the order of ``module.parameters()``."""
    return [layer for layer in module.modules() if any(True for _ in layer.parameters(recurse=False))]
