"""Fast per-sample gradients: all samples in one forward and one backward pass (speed only)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coalmine.methods.canife.per_sample_gradients.interface import Box, prepared_copy, sample_losses, soft_embedding
from coalmine.methods.canife.per_sample_gradients.recorded_layers import RecordedConv2d, Tape, recorded


class LayerwiseGradients:
    """`SampleGradients` for modules of Linear, Conv2d, GroupNorm, Embedding and LSTM layers.

    The gradient of sample k with respect to a layer's weight is δ_kᵀ X_k, a product of the layer's inputs with the
    deltas of its outputs. Only X and δ are differentiated with respect to the sample, never a derivative with respect
    to a parameter.

    Args:
        module: The module; it is copied.
        inputs: Samples like those to come, from which the boxes are determined.
        targets: Their targets.
    """

    def __init__(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        self._tape = Tape()
        self._module = prepared_copy(module, lambda layer: recorded(layer, self._tape) or soft_embedding(layer))
        parameters = [value for value in self._module.parameters() if value.requires_grad]
        for value in parameters:
            value.requires_grad_(False)
        self._place = {id(value): place for place, value in enumerate(parameters)}
        self.of(inputs, targets)
        self.boxes: list[Box] = [()] * len(parameters)
        for layer in self._module.modules():
            if isinstance(layer, RecordedConv2d) and layer.taps is not None and id(layer.weight) in self._place:
                self.boxes[self._place[id(layer.weight)]] = (slice(None), slice(None), *layer.taps)

    def of(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Return the gradients, as `SampleGradients.of` describes."""
        self._tape.uses.clear()
        losses = sample_losses(self._module(inputs), targets)
        uses = list(self._tape.uses)
        self._tape.uses.clear()
        # One backward pass for all samples: the sum keeps them apart, since no sample's loss depends on another.
        deltas = torch.autograd.grad(losses.sum(), [use.output for use in uses], create_graph=True)
        gradients: dict[int, Tensor] = {}
        for use, delta in zip(uses, deltas, strict=True):
            for value, rows in zip(use.parameters, use.gradients(delta, len(inputs)), strict=True):
                place = self._place.get(id(value))
                if place is not None:
                    gradients[place] = gradients[place] + rows if place in gradients else rows
        return [gradients[place] for place in range(len(self._place))]
