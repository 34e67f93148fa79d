"""The word-level language model of federated keyboards (Hard et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from coalmine.simulation.data.federated import Task
from coalmine.simulation.models.steps import Steps
from coalmine.simulation.models.text import TiedLinear, vocabulary_size

# Common words whose share of the softmax bounds it from below, and the contexts that decide which words are common.
_COMMON, _CONTEXTS = 256, 64


class WordLSTM(nn.Module):
    """An LSTM with coupled input and forget gates, a recurrent projection, and one table for input and output words.

    Hard et al. (2018), *Federated learning for mobile keyboard prediction*. With f, o = σ(W x + R h + b) and
    g = tanh(W x + R h + b): c ← f c + (1 − f) g, h = P (o tanh c), and the logits are h times the embedding table.
    With e = ``embedding``, u = ``units`` and v words it has v e + 3 u (2 e + 1) + u e parameters: 1,412,250 for 10,000
    words.
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
        self.output = TiedLinear(self.embedding)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (n, positions, words) for ``tokens`` (n, positions)."""
        return self.forward_embedded(self.embedding(tokens))

    def forward_embedded(self, embedded: Tensor) -> Tensor:
        """Return the logits for embedded words (n, positions, embedding)."""
        states = self._recurrence(self.input_gates(embedded).unbind(1))
        return self.output(torch.stack(states, 1))  # type: ignore[no-any-return]

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``forward`` over the targets that are not ignored, or zero without any."""
        losses, _ = self.target_losses(tokens, targets)
        return losses.sum() / max(1, targets.numel() if self.ignored is None else int((targets != self.ignored).sum()))

    def target_losses(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of each target, zero if it is ignored, and the sentence that each belongs to.

        Nothing is computed for the padding behind the last target of a sentence. What remains of all sentences, their
        first words first, are the rows that every layer sees.
        """
        counted = torch.ones_like(targets, dtype=torch.bool) if self.ignored is None else targets != self.ignored
        lengths = (counted * torch.arange(1, targets.shape[1] + 1, device=targets.device)).amax(1).clamp(min=1)
        sentences = torch.arange(len(targets), device=targets.device)[:, None].expand_as(targets)
        # torch packs one tensor, so tokens, targets and sentence numbers are packed together.
        words = torch.stack([tokens, targets, sentences], 2)
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        words, targets, sentences = packed.data.unbind(1)
        gates = self.input_gates(self.embedding(words)).split(packed.batch_sizes.tolist())
        logits = self.output(torch.cat(self._recurrence(gates)))
        ignored = -100 if self.ignored is None else self.ignored
        return F.cross_entropy(logits, targets, ignore_index=ignored, reduction="none"), sentences

    def _recurrence(self, gates: Sequence[Tensor]) -> list[Tensor]:
        """Return the hidden states at each position from the input's share of the gates.

        Sentences may end: each position has the first rows of the one before, and possibly fewer.
        """
        hidden = gates[0].new_zeros(len(gates[0]), self.embedding.embedding_dim)
        cell = gates[0].new_zeros(len(gates[0]), self.units)
        states = []
        for gate in gates:
            hidden, cell = hidden[: len(gate)], cell[: len(gate)]
            f, o, g = (gate + self.recurrent_gates(hidden)).chunk(3, 1)
            # Coupled gates: c ← f c + (1 − f) g, which is an interpolation.
            cell = torch.lerp(g.tanh(), cell, f.sigmoid())
            hidden = self.projection(o.sigmoid() * cell.tanh())
            states.append(hidden)
        return states

    def steps(self) -> WordLSTMSteps:
        """Return the model word by word, with its current weights."""
        return WordLSTMSteps(self)


class WordLSTMSteps(Steps):
    """The model word by word: sequences with a common prefix share their (hidden, cell).

    The input's share of the gates is computed once per word, the recurrent share once per state however many words
    continue it. The reference is the base class, which tests compare it with.
    """

    def __init__(self, model: WordLSTM) -> None:
        super().__init__(model, model.embedding.num_embeddings)
        self._model = model
        self._recent: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            self._by_word = model.input_gates(model.embedding.weight)
            # Which words are common, the model says itself: those it expects after a sample of single words.
            contexts = torch.arange(0, self.words, max(1, self.words // _CONTEXTS))
            frequencies = self.log_probabilities(self.start(contexts[:, None])).exp().mean(0)
            common = frequencies.topk(min(_COMMON, self.words)).indices
            self._common = model.embedding.weight[common.to(self._device)]

    @torch.no_grad()
    def start(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Return the states after ``tokens`` (n, positions)."""
        table = self._model.embedding.weight
        state: tuple[Tensor, ...] = (
            table.new_zeros(len(tokens), table.shape[1]),
            table.new_zeros(len(tokens), self._model.units),
        )
        rows = torch.arange(len(tokens))
        for column in tokens.unbind(1):
            state = self.extend(state, rows, column)
        return state

    @torch.no_grad()
    def extend(self, state: tuple[Tensor, ...], parents: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        """Return states after one more word: row i is row ``parents[i]`` of ``state`` followed by ``tokens[i]``."""
        hidden, cell = state
        parents, tokens = parents.to(self._device), tokens.to(self._device)
        # A search returns to its states, so the recurrent shares of the last four are kept.
        recurrent = next((share for known, share in self._recent if known is hidden), None)
        if recurrent is None:
            recurrent = self._model.recurrent_gates(hidden)
            self._recent = [(hidden, recurrent), *self._recent[:3]]
        gates = self._by_word.index_select(0, tokens).add_(recurrent.index_select(0, parents))
        f, o, g = gates.chunk(3, 1)
        # tanh x = 2 σ(2x) − 1, because a sigmoid takes a third of the time of a tanh.
        g.mul_(2)
        gates.sigmoid_()
        g.mul_(2).sub_(1)
        cell = torch.lerp(g, cell.index_select(0, parents), f)
        tanh_cell = torch.mul(cell, 2).sigmoid_().mul_(2).sub_(1)
        return self._model.projection(tanh_cell.mul_(o)), cell

    @torch.no_grad()
    def cost_floors(self, state: tuple[Tensor, ...], rows: Tensor, tokens: Tensor) -> Tensor:
        """Return lower bounds on −log Pr(``tokens[i]`` after row ``rows[i]``), (n,).

        The normalizer over common words alone is at most that over all words.
        """
        hidden, rows, tokens = state[0], rows.to(self._device), tokens.to(self._device)
        normalizer = nn.functional.linear(hidden, self._common).logsumexp(1)
        logits = hidden.index_select(0, rows).mul_(self._model.embedding.weight.index_select(0, tokens)).sum(1)
        return (normalizer.index_select(0, rows) - logits).cpu()

    @torch.no_grad()
    def log_probabilities(self, state: tuple[Tensor, ...]) -> Tensor:
        """Return the log-probability of every next word, (n, words)."""
        logits = nn.functional.linear(state[0], self._model.embedding.weight)
        return torch.log_softmax(logits, 1, out=logits).cpu()  # in place, since (n, words) is large


def word_lstm(task: Task, *, embedding: int = 96, units: int = 670) -> nn.Module:
    """Build the word-level CIFG-LSTM of Hard et al. (2018)."""
    return WordLSTM(
        words=vocabulary_size(task),
        embedding=embedding,
        units=units,
        ignored=task.ignored,
    )
