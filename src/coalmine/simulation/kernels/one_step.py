"""Single SGD steps of many clients in one pass: all start from the same weights, so they can share a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, Participant
from coalmine.simulation.data.federated import Task
from coalmine.simulation.kernels.layers import is_supported, layer_gradients
from coalmine.simulation.kernels.padding import padded
from coalmine.simulation.kernels.partial_sum import PartialSum, clip_factors, group_sizes
from coalmine.simulation.optimizers import SGD

# Enough clients and examples per pass for large matrix products; more would only take memory.
_CLIENTS, _ROWS = 128, 2048


class OneStep:
    """One forward and backward pass for a whole chunk of clients that take one SGD step on one batch each.

    Each layer's inputs and deltas determine every client's gradient: its norm is computed without forming the gradient,
    and the clipped sum is one matrix product per layer (`layers`). Handles modules of Linear, Conv2d, GroupNorm and
    Embedding layers, each used once.
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
        self._layers = _layers_with_parameters(self.model.module)
        # Backward passes need the derivatives of the layers' outputs only, not of their parameters.
        for parameter in self.model.parameters:
            parameter.requires_grad_(False)
        self._recorded: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        for layer in self._layers:
            layer.register_forward_hook(self._record)

    @staticmethod
    def suits(module: nn.Module) -> bool:
        """Whether all parameters are trainable, unshared, and in layers that `layers` can handle."""
        layers = _layers_with_parameters(module)
        parameters = [value for layer in layers for value in layer.parameters(recurse=False)]
        unshared = len(parameters) == len({id(value) for value in parameters})
        return unshared and all(map(is_supported, layers)) and all(value.requires_grad for value in parameters)

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """As many clients per chunk as one pass handles without leaving the cache."""
        return group_sizes(sizes, clients=_CLIENTS, rows=self._rows)

    def clipped_sum(self, weights: Tensor, clients: Sequence[Participant], clip_norm: float, out: Tensor) -> PartialSum:
        """Σ weightᵢ · clip(−learning rate · gradientᵢ), in one pass."""
        self.model.load(weights)
        examples, device = [client.examples for client in clients], self.model.device
        inputs, targets, loss_weights = padded(examples, self._task, self._dtype, device)
        if inputs.ndim == 5 and self.model.channels_last:
            inputs = inputs.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, inputs.shape[:2])
        losses = self._forward(inputs, targets, loss_weights)
        outputs = [self._recorded[layer][1] for layer in self._layers]
        deltas = torch.autograd.grad(losses.sum(), outputs)
        with torch.no_grad():
            parameters = [
                gradients
                for layer, delta in zip(self._layers, deltas, strict=True)
                for gradients in layer_gradients(layer, self._recorded[layer][0], delta, len(clients))
            ]
            squares = torch.stack([gradients.squared_norms().cpu() for gradients in parameters]).sum(0)
            norms = self._learning_rate * squares.sqrt().numpy()
            clipping = clip_factors(norms, np.array([client.weight for client in clients]), clip_norm)
            factors = torch.from_numpy(-self._learning_rate * clipping).to(device, self._dtype)
            for gradients, place in zip(parameters, self.model.views(out), strict=True):
                gradients.weighted_sum(factors, place)
        self._recorded.clear()
        return PartialSum(out, norms, losses.detach().cpu().double().numpy())

    def _record(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """A forward hook that keeps a layer's input and output."""
        if layer in self._recorded:
            raise RuntimeError("a layer is used more than once in a forward pass")
        if not output.requires_grad:
            output.requires_grad_()
        self._recorded[layer] = (inputs[0].detach(), output)

    def _forward(self, inputs: Tensor, targets: Tensor, loss_weights: Tensor) -> Tensor:
        """Each client's mean loss, shape (clients,)."""
        self._recorded.clear()
        logits = self.model.module(inputs.flatten(0, 1))
        losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        return losses.view(len(loss_weights), -1).mul(loss_weights.flatten(1)).sum(1)


def _layers_with_parameters(module: nn.Module) -> list[nn.Module]:
    """The layers that have parameters themselves, in the order of ``module.parameters()``."""
    return [layer for layer in module.modules() if any(True for _ in layer.parameters(recurse=False))]
