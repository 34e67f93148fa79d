"""The two examples that crafter and distinguisher share, with their losses and gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.protocol import Vector
from coalmine.simulation.client import loss_of, tensors
from coalmine.simulation.data.federated import Examples, Task


@dataclass(frozen=True)
class Pair:
    """The examples x₁ and x₂ of one measurement.

    Args:
        inputs: Both inputs as the model takes them, ``(2, ...)``.
        targets: Both labels, ``(2,)``, or ``(2, positions)`` for a language model.
        task: What the model predicts.
    """

    inputs: Tensor
    targets: Tensor
    task: Task

    @classmethod
    def of(cls, examples: Examples, task: Task) -> Pair:
        """Return two examples as tensors.

        Raises:
            InputError: If there are not exactly two examples.
        """
        if len(examples) != 2:
            raise InputError(f"a pair needs exactly two examples, got {len(examples)}")
        return cls(*tensors(examples, task), task)

    def loss(self, model: nn.Module, index: int, inputs: Tensor | None = None) -> Tensor:
        """Return the loss of example 0 or 1; ``inputs`` ``(1, ...)`` replaces its input but not its label."""
        rows = slice(index, index + 1)
        return loss_of(model, self.task, self.inputs[rows] if inputs is None else inputs, self.targets[rows])

    def gradient(self, model: nn.Module, index: int, inputs: Tensor | None = None) -> Vector:
        """Return the gradient of `loss` in all trainable parameters, as one flat float32 vector."""
        return gradient_of(self.loss(model, index, inputs), model)


def gradient_of(loss: Tensor, model: nn.Module) -> Vector:
    """Return the gradient of a loss in all trainable parameters, as one flat float32 vector."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    flat: Vector = torch.cat([gradient.reshape(-1) for gradient in gradients]).float().numpy()
    return flat
