"""Layers of language models that kernels recognize."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TiedLinear(nn.Module):
    """A linear layer without bias whose weight is that of an embedding; it has no parameters of its own.

    Kernels recognize this layer, which a bare ``linear(states, embedding.weight)`` would hide from them.
    """

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self._embedding = [embedding]  # in a list, so that the table is not registered (and saved) twice

    @property
    def weight(self) -> Tensor:
        """The embedding table, (words, width)."""
        return self._embedding[0].weight

    def forward(self, states: Tensor) -> Tensor:
        """Return logits (…, words) for states (…, width)."""
        return F.linear(states, self.weight)


class SoftEmbedding(nn.Embedding):
    """``nn.Embedding`` that maps distributions over tokens, (k, positions, tokens), to mean vectors."""

    def forward(self, input: Tensor) -> Tensor:
        """Return vectors (k, positions, width) for distributions, or for tokens (k, positions)."""
        if not input.is_floating_point():
            return super().forward(input)
        if self.padding_idx is None:
            return input @ self.weight
        # As in torch, the row of the padding token is not trained.
        trained = torch.ones(len(self.weight), 1, dtype=torch.bool, device=input.device)
        trained[self.padding_idx] = False
        return input @ torch.where(trained, self.weight, self.weight.detach())
