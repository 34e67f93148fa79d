"""The interface of per-sample gradients, the plain reference, and what all implementations share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.simulation.flat import stateless


class SampleGradients(Protocol):
    """Computes each sample's gradient with respect to the trainable parameters of a module."""

    @property
    def columns(self) -> Tensor | None:
        """Which numbers of the flat gradient are computed, ascending; all others are always zero. None for all."""

    def of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the columns of the flat gradients, (k, d).

        Args:
            inputs: Numbers (k, *input_shape) or distributions over tokens (k, positions, tokens).
            targets: Labels (k,), or distributions over labels (k, classes) or (k, positions, classes).

        Returns:
            Gradients that have a graph wherever inputs or targets have one.
        """


def input_derivative(rows: Tensor, leaf: Tensor, weights: Tensor) -> Tensor:
    """Return the derivative of Σ ⟨rows, weights⟩ with respect to ``leaf``, from which ``rows`` were computed."""
    derivative = None
    if rows.requires_grad:
        (derivative,) = torch.autograd.grad(rows, leaf, weights, allow_unused=True)
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


def is_plain_embedding(layer: nn.Module) -> bool:
    """Return whether a layer maps tokens to rows of its weight and does nothing else, so that it can be softened."""
    if type(layer) is not nn.Embedding or layer.max_norm is not None or layer.scale_grad_by_freq:
        return False
    return not (layer._forward_hooks or layer._forward_pre_hooks)


def soft_embedding(layer: nn.Module) -> SoftEmbedding | None:
    """Return the soft version of an embedding layer, None for any other layer."""
    return SoftEmbedding(layer) if is_plain_embedding(layer) else None  # type: ignore[arg-type]


class DoubleBackward:
    """The reference implementation of `SampleGradients`, for every module that can be differentiated twice.

    It goes backward through the module with a graph, one sample after another.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = prepared_copy(module, soft_embedding)
        self._parameters = [value for value in self._module.parameters() if value.requires_grad]
        self.columns: Tensor | None = None

    def of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradients, as `SampleGradients.of` describes."""
        samples = []
        for sample, target in zip(inputs.split(1), targets.split(1), strict=True):
            loss = sample_losses(self._module(sample), target)[0]
            rows = torch.autograd.grad(
                loss, self._parameters, create_graph=True, allow_unused=True, materialize_grads=True
            )
            samples.append(torch.cat([row.flatten() for row in rows]))
        return torch.stack(samples)
