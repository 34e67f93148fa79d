"""The interface of per-sample gradients, the plain reference, and what all implementations share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.simulation.flat import stateless

Box = tuple[slice, ...]
"""The part of a parameter that its gradient can reach, as an index; ``()`` is all of it."""


class SampleGradients(Protocol):
    """Computes each sample's gradient with respect to the trainable parameters of a module."""

    @property
    def boxes(self) -> Sequence[Box]:
        """The part of each parameter outside which its gradient is always zero."""

    def of(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Return a tensor (k, *part of the parameter) for each parameter.

        Args:
            inputs: Numbers (k, *input_shape) or distributions over tokens (k, positions, tokens).
            targets: Labels (k,), or distributions over labels (k, classes) or (k, positions, classes).

        Returns:
            Gradients that have a graph wherever inputs or targets have one.
        """


def input_derivative(rows: Sequence[Tensor], leaf: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return the derivative of Σ ⟨rows, weights⟩ with respect to ``leaf``, from which ``rows`` were computed.

    Parameters whose gradient is the same for every sample, such as unused ones, contribute nothing.
    """
    dependent = [(row, weight) for row, weight in zip(rows, weights, strict=True) if row.requires_grad]
    derivative = None
    if dependent:
        outputs, factors = zip(*dependent, strict=True)
        (derivative,) = torch.autograd.grad(outputs, leaf, factors, allow_unused=True)
    if derivative is None:
        raise InputError(
            "the model's loss does not depend on its inputs, or only through whole numbers, so no sample can be "
            "designed for it: use a model that is differentiable with respect to its inputs"
        )
    return derivative


def sample_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return each sample's mean cross-entropy, (k,)."""
    if not targets.is_floating_point():
        return F.cross_entropy(logits, targets, reduction="none")
    each = -(targets * logits.log_softmax(-1)).sum(-1)
    return each.flatten(1).mean(1) if each.ndim > 1 else each


def prepared_copy(module: nn.Module, replacement: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Return a copy of a module in which ``replacement`` replaces layers; None keeps a layer."""
    # In eval mode, since a canary cannot anticipate which units its client's dropout will drop.
    prepared = stateless(copy.deepcopy(module)).eval()
    for parent in list(prepared.modules()):
        for name, layer in list(parent.named_children()):
            if hasattr(layer, "inplace"):
                layer.inplace = False  # type: ignore[assignment]
            replaced = replacement(layer)
            if replaced is not None:
                setattr(parent, name, replaced)
    return prepared


class SoftEmbedding(nn.Module):
    """``nn.Embedding`` that also maps distributions over tokens, (k, positions, tokens), to mean vectors."""

    def __init__(self, layer: nn.Embedding) -> None:
        super().__init__()
        self.weight = layer.weight
        self.num_embeddings, self.embedding_dim = layer.num_embeddings, layer.embedding_dim
        trained = torch.ones(layer.num_embeddings, 1, dtype=torch.bool, device=layer.weight.device)
        if layer.padding_idx is not None:
            trained[layer.padding_idx] = False
        self._trained = trained

    def forward(self, tokens: Tensor) -> Tensor:
        """Return vectors (k, positions, width)."""
        return self._probabilities(tokens) @ torch.where(self._trained, self.weight, self.weight.detach())

    def _probabilities(self, tokens: Tensor) -> Tensor:
        return tokens if tokens.is_floating_point() else F.one_hot(tokens, self.num_embeddings).to(self.weight.dtype)


def soft_embedding(layer: nn.Module) -> SoftEmbedding | None:
    """Return the soft version of an embedding layer, None for any other layer."""
    return SoftEmbedding(layer) if isinstance(layer, nn.Embedding) and layer.max_norm is None else None


class DoubleBackward:
    """The reference implementation of `SampleGradients`, for every module that can be differentiated twice.

    It goes backward through the module with a graph, one sample after another.
    """

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
