"""The stacked LSTMs of LEAF, for sentiment and for the next character."""

from __future__ import annotations

from itertools import chain

from torch import Tensor, nn

from coalmine.errors import InputError, check_count
from coalmine.simulation.data.federated import Task
from coalmine.simulation.models.lstm_layers import LSTMLoss
from coalmine.simulation.models.tasks import need_tokens
from coalmine.simulation.models.workspace import Workspace

# From so many examples on, the recurrence written out is faster, with 100 units as with 256, unless the embedding is
# wide and nearly all tokens differ. For fewer it is nn.LSTM, which packs its weights for small products once.
_MANY = 32


class TokenLSTM(nn.Module):
    """An embedding, a stacked LSTM, and a linear head on the last position or on each."""

    loss_is_cross_entropy = True

    def __init__(
        self,
        *,
        tokens: int,
        classes: int,
        embedding: int,
        hidden: int,
        layers: int,
        per_position: bool,
        ignored: int | None,
    ) -> None:
        super().__init__()
        self.per_position = per_position
        self.ignored = ignored
        self.embedding = nn.Embedding(tokens, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)
        self._workspace = Workspace()

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (n, classes), or (n, positions, classes), of ``tokens`` (n, positions)."""
        return self.forward_embedded(self.embedding(tokens))

    def forward_embedded(self, embedded: Tensor) -> Tensor:
        """The same from embedded tokens (n, positions, embedding)."""
        states, _ = self.lstm(embedded)
        logits: Tensor = self.head(states if self.per_position else states[:, -1])
        return logits

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of the targets that count, as from ``forward`` but faster; differentiable once.

        Without a target that counts the loss and its gradient are zero.
        """
        if len(tokens) < _MANY:
            logits = self.forward(tokens).flatten(0, -2)
            skipped = -100 if self.ignored is None else self.ignored
            total = nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=skipped, reduction="sum")
            return total / (targets != skipped).sum().clamp(min=1)
        loss: Tensor = LSTMLoss.apply(  # type: ignore[no-untyped-call]
            tokens.t(),
            targets.t() if self.per_position else targets[None],
            self.ignored,
            self._workspace,
            self.embedding.weight,
            self.head.weight,
            self.head.bias,
            *chain.from_iterable(self.lstm.all_weights),
        )
        return loss


def sent140_lstm(task: Task, *, embedding: int = 300, hidden: int = 100, layers: int = 2) -> nn.Module:
    """The sentiment model of LEAF in the form that CANIFE audits: an answer from the last position.

    A two-layer LSTM of 100 units on trained embeddings of 300 numbers has 241,802 + 300 v parameters for v tokens and
    two classes: CANIFE's 272,102 with its 101 characters.
    """
    tokens = need_tokens("sent140-lstm", task)
    if task.per_position:
        raise InputError(
            "the model sent140-lstm gives one answer an example, but the task has a target for each position;"
            " word-lstm, transformer and shakespeare-lstm answer at each"
        )
    return _lstm(task, tokens, embedding, hidden, layers)


def shakespeare_lstm(task: Task, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> nn.Module:
    """The next-character model of LEAF, at the last position or at each: 819,920 parameters for 80 characters."""
    return _lstm(task, need_tokens("shakespeare-lstm", task), embedding, hidden, layers)


def _lstm(task: Task, tokens: int, embedding: int, hidden: int, layers: int) -> nn.Module:
    return TokenLSTM(
        tokens=tokens,
        classes=task.classes,
        embedding=check_count("embedding", embedding),
        hidden=check_count("hidden", hidden),
        layers=check_count("layers", layers),
        per_position=task.per_position,
        ignored=task.ignored,
    )
