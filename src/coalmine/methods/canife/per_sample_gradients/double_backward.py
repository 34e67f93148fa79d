"""The plain reference for per-sample gradients: backward through the module with a graph, one sample after another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coalmine.methods.canife.per_sample_gradients.interface import Box, prepared_copy, sample_losses, soft_embedding


class DoubleBackward:
    """The reference implementation of `SampleGradients`, for every module that can be differentiated twice."""

    def __init__(self, module: nn.Module) -> None:
        self._module = prepared_copy(module, soft_embedding)
        self._parameters = [value for value in self._module.parameters() if value.requires_grad]
        self.boxes: list[Box] = [()] * len(self._parameters)

    def of(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Return the gradients, as `SampleGradients.of` describes."""
        samples = []
        for sample, target in zip(inputs.split(1), targets.split(1), strict=True):
            loss = sample_losses(self._module(sample), target)[0]
            samples.append(torch.autograd.grad(loss, self._parameters, create_graph=True, allow_unused=True))
        return [
            torch.stack([torch.zeros_like(value) if row is None else row for row in rows])
            for value, rows in zip(self._parameters, zip(*samples, strict=True), strict=True)
        ]
