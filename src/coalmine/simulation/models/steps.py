"""Language models token by token, for searches in which many sequences begin alike."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from coalmine.errors import InputError

State = tuple[Tensor, ...]
"""What a model remembers of some sequences: tensors with a row for each."""


class Steps(Protocol):
    """A language model token by token."""

    words: int

    def start(self, tokens: Tensor) -> State:
        """States after ``tokens`` (n, positions), at least one position."""
        ...

    def extend(self, state: State, parents: Tensor, tokens: Tensor) -> State:
        """States after one more token: row i is row ``parents[i]`` of ``state`` followed by ``tokens[i]``."""
        ...

    def log_probabilities(self, state: State) -> Tensor:
        """Of every token to come next, (n, words)."""
        ...

    def cost_floors(self, state: State, rows: Tensor, tokens: Tensor) -> Tensor | None:
        """Lower bounds on −log Pr(``tokens[i]`` after row ``rows[i]``), None where there are no cheap ones."""
        ...


class RecomputedSteps:
    """Any module from tokens (n, positions) to logits at each position or at the last: it reads all of them each time.

    It must not look ahead, and must take fewer positions than it was trained with.
    """

    def __init__(self, module: nn.Module, words: int) -> None:
        self.words = words
        self._module = module

    def start(self, tokens: Tensor) -> State:
        """The tokens themselves."""
        return (tokens,)

    def extend(self, state: State, parents: Tensor, tokens: Tensor) -> State:
        """The tokens and one more."""
        return (torch.cat([state[0].index_select(0, parents), tokens[:, None]], dim=1),)

    def cost_floors(self, state: State, rows: Tensor, tokens: Tensor) -> None:
        """None: nothing is known before it is read."""

    @torch.no_grad()
    def log_probabilities(self, state: State) -> Tensor:
        """Of every token to come next, (n, words)."""
        logits: Tensor = self._module(state[0])
        last = logits[:, -1] if logits.dim() == 3 else logits
        if tuple(last.shape) != (len(state[0]), self.words):
            raise InputError(
                f"the model gives logits of width {last.shape[-1]}, but the vocabulary has {self.words} entries"
            )
        return last.log_softmax(1)


def steps_of(module: nn.Module, words: int) -> Steps:
    """The model token by token: by its own method ``steps`` where it has one, else by reading all again.

    ``words`` is the size of the vocabulary, which the model's output must have. Dropout and the like are switched off.
    """
    module.eval()
    own = getattr(type(module), "steps", None)
    found: Steps = module.steps() if callable(own) else RecomputedSteps(module, words)  # type: ignore[operator]
    if found.words != words:
        raise InputError(f"the model has {found.words} words, but the vocabulary has {words} entries")
    return found
