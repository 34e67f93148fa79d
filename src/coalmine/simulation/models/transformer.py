"""A small causal Transformer that predicts the next token."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coalmine.errors import InputError, check_count
from coalmine.simulation.data.federated import Task
from coalmine.simulation.models.tasks import require_next_token
from coalmine.simulation.models.tied import TiedLinear

# torch's default, embeddings of standard deviation 1, would give initial logits of standard deviation √width, because
# the table is the output layer as well.
_EMBEDDING_STD = 0.02


class Layer(nn.Module):
    """Causal self-attention, then a perceptron of four times the width, each after a layer norm."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: Tensor, future: Tensor) -> Tensor:
        """Map states (n, positions, width) to the same shape; ``future`` (positions, positions) is the mask."""
        split = self.attention_in(self.norm1(states)).unflatten(2, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        # Plain operations, because CANIFE differentiates twice and torch's fused attention cannot be.
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])
        attended = scores.masked_fill(future, -math.inf).softmax(3) @ value
        states = states + self.attention_out(attended.transpose(1, 2).flatten(2))
        output: Tensor = states + self.perceptron(self.norm2(states))
        return output


class Transformer(nn.Module):
    """Pre-norm causal Transformer with learned positions and one table for input and output tokens."""

    loss_is_cross_entropy = True

    def __init__(
        self, *, tokens: int, positions: int, width: int, layers: int, heads: int, ignored: int | None
    ) -> None:
        super().__init__()
        self.ignored = ignored
        self.embedding = nn.Embedding(tokens, width)
        self.positions = nn.Embedding(positions, width)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=_EMBEDDING_STD)
        self.layers = nn.ModuleList(Layer(width=width, heads=heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = TiedLinear(self.embedding)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (n, positions, tokens) for ``tokens`` (n, positions)."""
        return self.forward_embedded(self.embedding(tokens))

    def forward_embedded(self, embedded: Tensor) -> Tensor:
        """Return the logits for embedded tokens (n, positions, width); differentiable twice."""
        return self.output(self._states(embedded))  # type: ignore[no-any-return]

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``forward`` over the targets that are not ignored; zero if there are none."""
        states = self._states(self.embedding(tokens)).flatten(0, 1)
        targets = targets.flatten()
        if self.ignored is not None:
            # Most of the work is in the logits: those of padding are never computed.
            counted = targets != self.ignored
            states, targets = states[counted], targets[counted]
        return nn.functional.cross_entropy(self.output(states), targets, reduction="sum") / max(1, len(targets))

    def _states(self, embedded: Tensor) -> Tensor:
        """Return the final states (n, positions, width) before the output layer."""
        places = torch.arange(embedded.shape[1], device=embedded.device)
        states = embedded + self.positions(places)
        future = places > places[:, None]
        for layer in self.layers:
            states = layer(states, future)
        normed: Tensor = self.norm(states)
        return normed


def transformer(task: Task, *, width: int = 128, layers: int = 2, heads: int = 4) -> nn.Module:
    """Build a small causal Transformer that predicts the next token at each position."""
    tokens = require_next_token("transformer", task)
    if check_count("width", width) % check_count("heads", heads):
        raise InputError(f"width must be a multiple of heads, got width {width} and heads {heads}")
    return Transformer(
        tokens=tokens,
        positions=task.input_shape[0],
        width=width,
        layers=check_count("layers", layers),
        heads=heads,
        ignored=task.ignored,
    )
