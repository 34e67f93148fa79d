"""Language models token by token, for searches over many sequences with common prefixes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.simulation.flat import device_of

State = tuple[Tensor, ...]
"""A model's memory of several sequences: tensors with one row per sequence."""


class Steps:
    """A language model that reads one token at a time, in the plain way: read the whole sequence again for each.

    Works for any causal module from tokens (n, positions) to logits at each position or at the last one, for sequences
    no longer than those it was trained with. A module's own method ``steps`` may return a faster object with the same
    methods. Tokens, row numbers and results are on the CPU; states are where the module is.
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

    def cost_floors(self, state: State, rows: Tensor, tokens: Tensor) -> Tensor | None:
        """Return lower bounds on −log Pr(``tokens[i]`` after row ``rows[i]``), or None if there are no cheap ones."""
        return None

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


def steps_of(module: nn.Module, words: int) -> Steps:
    """Return the model token by token: by its own method ``steps`` if it has one, else by recomputing.

    ``words`` is the size of the vocabulary, which the model's output must match. Puts the module into evaluation mode.
    """
    if not callable(getattr(type(module), "steps", None)):
        return Steps(module, words)
    steps: Steps = module.eval().steps()  # type: ignore[operator]
    if steps.words != words:
        raise InputError(f"the model has {steps.words} words, but the vocabulary has {words} entries")
    return steps
