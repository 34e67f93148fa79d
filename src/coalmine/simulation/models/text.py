"""Language models: LEAF's stacked LSTMs (Caldas et al. 2018), the word LSTM of federated keyboards (Hard et al. 2018).

`Steps` reads any of them token by token, for searches over many sequences with common prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from coalmine.errors import InputError
from coalmine.simulation.data.federated import Task
from coalmine.simulation.flat import device_of

State = tuple[Tensor, ...]
"""A model's memory of several sequences: tensors with one row per sequence."""


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

    def __init__(self, task: Task, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.per_position = task.per_position
        self.embedding = nn.Embedding(vocabulary_size(task), embedding)
        # oneDNN's fused LSTM: recurrences written by hand gained at most 1.2 times on full windows of characters.
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, task.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (n, classes) or (n, positions, classes) for ``tokens`` (n, positions)."""
        # LEAF reads the label, or the next character, from the last position.
        states, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.head(states if self.per_position else states[:, -1])
        return logits


def sent140_lstm(task: Task, *, embedding: int = 300, hidden: int = 100, layers: int = 2) -> nn.Module:
    """Build LEAF's sentiment model as CANIFE audits it: one label per text, read from the last position.

    With trained embeddings it has 241,802 + 300 v parameters for v tokens and two classes: CANIFE's 272,102 for its 101
    characters.
    """
    return TokenLSTM(task, embedding, hidden, layers)


def shakespeare_lstm(task: Task, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> nn.Module:
    """Build LEAF's next-character model, for the last position or each one: 819,920 parameters for 80 characters."""
    return TokenLSTM(task, embedding, hidden, layers)


def vocabulary_size(task: Task) -> int:
    """Return the number of tokens; raise unless inputs are sequences of tokens."""
    if task.tokens is None:
        raise InputError(f"the model takes tokens, but the inputs are numbers of the shape {task.input_shape}")
    return task.tokens


class Steps:
    """A language model that reads one token at a time, in the plain way: read the whole sequence again for each.

    Works for any causal module from tokens (n, positions) to logits at each position or at the last one, for sequences
    no longer than those it was trained with. Tokens, row numbers and results are on the CPU; states are where the
    module is.
    """

    def __init__(self, module: nn.Module, words: int) -> None:
        self.words = words
        self._module = module.eval()
        self._device = device_of(module)

    def start(self, tokens: Tensor) -> State:
        """Return the states after ``tokens`` (n, positions), at least one position: here the tokens themselves."""
        return (tokens.to(self._device),)

    def extend(self, state: State, parents: Tensor, tokens: Tensor) -> State:
        """Return states after one more token: row i is row ``parents[i]`` of ``state`` followed by ``tokens[i]``."""
        return (torch.cat([*rows_of(state, parents), tokens[:, None].to(self._device)], dim=1),)

    @torch.no_grad()
    def log_probabilities(self, state: State) -> Tensor:
        """Return the log-probability of every next token, (n, words)."""
        logits: Tensor = self._module(state[0])
        last = logits[:, -1] if logits.dim() == 3 else logits
        if last.shape[-1] != self.words:
            raise InputError(
                f"the model gives logits of width {last.shape[-1]}, but the vocabulary has {self.words} entries"
            )
        return last.log_softmax(1).cpu()


def rows_of(state: State, rows: Tensor) -> State:
    """Return some rows of a state, on whatever device it is."""
    return tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in state)


class WordLSTM(nn.Module):
    """An LSTM with coupled input and forget gates, a recurrent projection, and one table for input and output words.

    Hard et al. (2018), *Federated learning for mobile keyboard prediction*. With f, o = σ(W x + R h + b) and
    g = tanh(W x + R h + b): c ← f c + (1 − f) g, h = P (o tanh c), and the logits are h times the embedding table.
    With e = ``embedding``, u = ``units`` and v words it has v e + 3 u (2 e + 1) + u e parameters: 1,412,250 for 10,000
    words.
    """

    loss_is_cross_entropy = True

    def __init__(self, *, words: int, embedding: int, units: int, ignored: int = -100) -> None:
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
        states = self._recurrence(self.input_gates(self.embedding(tokens)).unbind(1))
        return self.output(torch.stack(states, 1))  # type: ignore[no-any-return]

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``forward`` over the targets that are not ignored, or zero without any."""
        losses, _ = self.target_losses(tokens, targets)
        return losses.sum() / max(1, int((targets != self.ignored).sum()))

    def target_losses(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of each target, zero if it is ignored, and the sentence that each belongs to.

        Nothing is computed for the padding behind the last target of a sentence. What remains of all sentences, their
        first words first, are the rows that every layer sees.
        """
        counted = targets != self.ignored
        lengths = (counted * torch.arange(1, targets.shape[1] + 1, device=targets.device)).amax(1).clamp(min=1)
        sentences = torch.arange(len(targets), device=targets.device)[:, None].expand_as(targets)
        # torch packs one tensor, so tokens, targets and sentence numbers are packed together.
        words = torch.stack([tokens, targets, sentences], 2)
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        words, targets, sentences = packed.data.unbind(1)
        gates = self.input_gates(self.embedding(words)).split(packed.batch_sizes.tolist())
        logits = self.output(torch.cat(self._recurrence(gates)))
        return F.cross_entropy(logits, targets, ignore_index=self.ignored, reduction="none"), sentences

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


class WordLSTMSteps(Steps):
    """The model word by word: sequences with a common prefix share their (hidden, cell).

    The input's share of the gates is computed once per word, the recurrent share once per state however many words
    continue it. The reference is the base class, which tests compare it with.
    """

    def __init__(self, model: WordLSTM) -> None:
        super().__init__(model, model.embedding.num_embeddings)
        self._model = model
        with torch.no_grad():
            self._by_word = model.input_gates(model.embedding.weight)

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
        recurrent = self._model.recurrent_gates(hidden)
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
    def log_probabilities(self, state: tuple[Tensor, ...]) -> Tensor:
        """Return the log-probability of every next word, (n, words)."""
        logits = nn.functional.linear(state[0], self._model.embedding.weight)
        return torch.log_softmax(logits, 1, out=logits).cpu()  # in place, since (n, words) is large


def word_lstm(task: Task, *, embedding: int = 96, units: int = 670) -> nn.Module:
    """Build the word-level CIFG-LSTM of Hard et al. (2018)."""
    return WordLSTM(words=vocabulary_size(task), embedding=embedding, units=units, ignored=task.ignored)


def steps_of(module: nn.Module, words: int) -> Steps:
    """Return a model token by token, the word LSTM with its own faster steps. Puts it into evaluation mode.

    ``words`` is the size of the vocabulary, which the model's output must match.
    """
    steps = WordLSTMSteps(module) if isinstance(module, WordLSTM) else Steps(module, words)
    if steps.words != words:
        raise InputError(f"the model has {steps.words} words, but the vocabulary has {words} entries")
    return steps
