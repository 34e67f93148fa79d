"""Models of tokens: the stacked LSTMs of LEAF (Caldas et al. 2018), and layers that kernels recognize."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.simulation.data.federated import Task


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


class TokenLSTM(nn.Module):
    """An embedding, a stacked LSTM, and a linear head on the last position or on each position."""

    def __init__(
        self, tokens: int, classes: int, embedding: int, hidden: int, layers: int, *, per_position: bool
    ) -> None:
        super().__init__()
        self.per_position = per_position
        self.embedding = nn.Embedding(tokens, embedding)
        # oneDNN's fused LSTM: recurrences written by hand gained at most 1.2 times on full windows of characters.
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (n, classes) or (n, positions, classes) for ``tokens`` (n, positions)."""
        return self.forward_embedded(self.embedding(tokens))

    def forward_embedded(self, embedded: Tensor) -> Tensor:
        """Return the logits for embedded tokens (n, positions, embedding)."""
        # LEAF reads the label, or the next character, from the last position.
        states, _ = self.lstm(embedded)
        logits: Tensor = self.head(states if self.per_position else states[:, -1])
        return logits


def sent140_lstm(task: Task, *, embedding: int = 300, hidden: int = 100, layers: int = 2) -> nn.Module:
    """Build LEAF's sentiment model as CANIFE audits it: one label per text, read from the last position.

    With trained embeddings it has 241,802 + 300 v parameters for v tokens and two classes: CANIFE's 272,102 for its 101
    characters.
    """
    tokens = vocabulary_size(task)
    return TokenLSTM(tokens, task.classes, embedding, hidden, layers, per_position=task.per_position)


def shakespeare_lstm(task: Task, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> nn.Module:
    """Build LEAF's next-character model, for the last position or each one: 819,920 parameters for 80 characters."""
    tokens = vocabulary_size(task)
    return TokenLSTM(tokens, task.classes, embedding, hidden, layers, per_position=task.per_position)


def vocabulary_size(task: Task) -> int:
    """Return the number of tokens; raise unless inputs are sequences of tokens."""
    if task.tokens is None:
        raise InputError(f"the model takes tokens, but the inputs are numbers of the shape {task.input_shape}")
    return task.tokens
