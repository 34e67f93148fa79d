"""The output layer of a language model that reuses the embedding table."""

from __future__ import annotations

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
