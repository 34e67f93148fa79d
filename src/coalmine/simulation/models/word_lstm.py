"""The word-level language model of federated keyboards."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coalmine.errors import check_count
from coalmine.simulation.data.federated import Task
from coalmine.simulation.models.cifg import CIFGLoss
from coalmine.simulation.models.sentences import beginnings
from coalmine.simulation.models.tasks import need_tied
from coalmine.simulation.models.workspace import Workspace

# Words whose share of the softmax bounds it from below, and contexts from which they are chosen.
_COMMON, _SAMPLED = 256, 64


class WordLSTM(nn.Module):
    """An LSTM with coupled input and forget gates, a recurrent projection, and one table for words in and words out.

    Hard et al. (2018), *Federated learning for mobile keyboard prediction*: f and o are sigmoids, g is a tanh of
    W x + R h + b; c ← f c + (1 − f) g; h = P (o tanh c); the logits are h times the embedding. With e = ``embedding``,
    u = ``units`` and v words it has v e + 3 u (2 e + 1) + u e parameters: 1,412,250 for 10,000 words.
    """

    loss_is_cross_entropy = True

    def __init__(self, *, words: int, embedding: int, units: int, ignored: int | None) -> None:
        super().__init__()
        self.units = units
        self.ignored = ignored
        self.embedding = nn.Embedding(words, embedding)
        self.input_gates = nn.Linear(embedding, 3 * units)
        self.recurrent_gates = nn.Linear(embedding, 3 * units, bias=False)
        self.projection = nn.Linear(units, embedding, bias=False)
        self._workspace = Workspace()

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (n, positions, words) of ``tokens`` (n, positions)."""
        return self.forward_embedded(self.embedding(tokens))

    def forward_embedded(self, embedded: Tensor) -> Tensor:
        """The same from embedded words (n, positions, embedding), in ordinary operations: differentiable twice."""
        gates = self.input_gates(embedded)
        hidden = embedded.new_zeros(len(embedded), embedded.shape[2])
        cell = embedded.new_zeros(len(embedded), self.units)
        states = []
        for gate in gates.unbind(1):
            f, o, g = (gate + self.recurrent_gates(hidden)).chunk(3, 1)
            cell = torch.lerp(g.tanh(), cell, f.sigmoid())
            hidden = self.projection(o.sigmoid() * cell.tanh())
            states.append(hidden)
        return nn.functional.linear(torch.stack(states, 1), self.embedding.weight)

    def steps(self) -> WordLSTMSteps:
        """The model word by word, with the weights as they are now."""
        return WordLSTMSteps(self)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of the targets that count, as from ``forward`` but faster; differentiable once.

        What follows the last target that counts is never read. Without such a target the loss and its gradient are
        zero.
        """
        sentences = beginnings(tokens, targets, self.ignored)
        loss: Tensor = CIFGLoss.apply(  # type: ignore[no-untyped-call]
            self.embedding.weight,
            self.input_gates.weight,
            self.input_gates.bias,
            self.recurrent_gates.weight,
            self.projection.weight,
            sentences,
            self._workspace,
        )
        return loss


class WordLSTMSteps:
    """The model word by word: sequences that begin alike share their states (hidden, cell).

    The input's share of the gates is computed once for every word, and the recurrent share once for every state that is
    continued, by however many words.
    """

    def __init__(self, model: WordLSTM) -> None:
        self.words = model.embedding.num_embeddings
        self._model = model
        self._kept: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            self._by_word = model.input_gates(model.embedding.weight)
            some = torch.arange(0, self.words, max(1, self.words // _SAMPLED))
            usual = self.log_probabilities(self.start(some[:, None])).exp().mean(0)
            self._common = model.embedding.weight[usual.topk(min(_COMMON, self.words)).indices]

    @torch.no_grad()
    def start(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """States after ``tokens`` (n, positions)."""
        table = self._model.embedding.weight
        state: tuple[Tensor, ...] = (
            table.new_zeros(len(tokens), table.shape[1]),
            table.new_zeros(len(tokens), self._model.units),
        )
        own = torch.arange(len(tokens), device=table.device)
        for column in tokens.unbind(1):
            state = self.extend(state, own, column)
        return state

    @torch.no_grad()
    def extend(self, state: tuple[Tensor, ...], parents: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        """States after one more word: row i is row ``parents[i]`` of ``state`` followed by ``tokens[i]``."""
        hidden, cell = state
        recurrent = self._recurrent(hidden)
        gates = self._by_word.index_select(0, tokens).add_(recurrent.index_select(0, parents))
        f, o, g = gates.chunk(3, 1)
        # tanh x = 2 σ(2x) − 1: a sigmoid takes a third of the time
        g.mul_(2)
        gates.sigmoid_()
        g.mul_(2).sub_(1)
        cell = torch.lerp(g, cell.index_select(0, parents), f)
        squashed = torch.mul(cell, 2).sigmoid_().mul_(2).sub_(1)
        return self._model.projection(squashed.mul_(o)), cell

    def _recurrent(self, hidden: Tensor) -> Tensor:
        """The recurrent share of the gates; the last few are kept, as a search comes back to them."""
        found = next((recurrent for known, recurrent in self._kept if known is hidden), None)
        if found is None:
            found = self._model.recurrent_gates(hidden)
            self._kept = [(hidden, found), *self._kept[:3]]
        return found

    @torch.no_grad()
    def cost_floors(self, state: tuple[Tensor, ...], rows: Tensor, tokens: Tensor) -> Tensor:
        """Lower bounds on −log Pr(``tokens[i]`` after row ``rows[i]``): the softmax over common words alone, (n,)."""
        hidden = state[0]
        normalizer = nn.functional.linear(hidden, self._common).logsumexp(1)
        own = hidden.index_select(0, rows).mul_(self._model.embedding.weight.index_select(0, tokens)).sum(1)
        return normalizer.index_select(0, rows) - own

    @torch.no_grad()
    def log_probabilities(self, state: tuple[Tensor, ...]) -> Tensor:
        """Of every word to come next, (n, words)."""
        logits = nn.functional.linear(state[0], self._model.embedding.weight)
        return torch.log_softmax(logits, 1, out=logits)  # in place: fresh memory is slow


def word_lstm(task: Task, *, embedding: int = 96, units: int = 670) -> nn.Module:
    """The word-level CIFG-LSTM of Hard et al. (2018)."""
    return WordLSTM(
        words=need_tied("word-lstm", task),
        embedding=check_count("embedding", embedding),
        units=check_count("units", units),
        ignored=task.ignored,
    )
