"""Language models token by token, for searches over many sequences with common prefixes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from coalmine.errors import InputError

State = tuple[Tensor, ...]
"""A model's memory of several sequences: tensors with one row per sequence."""


class Steps(Protocol):
    """A language model that reads one token at a time."""

    words: int

    def start(self, tokens: Tensor) -> State:
        """Return the states after ``tokens`` (n, positions), at least one position."""
        ...

    def extend(self, state: State, parents: Tensor, tokens: Tensor) -> State:
        """Return states after one more token: row i is row ``parents[i]`` of ``state`` followed by ``tokens[i]``."""
        ...

    def log_probabilities(self, state: State) -> Tensor:
        """Return the log-probability of every next token, (n, words)."""
        ...

    def cost_floors(self, state: State, rows: Tensor, tokens: Tensor) -> Tensor | None:
        """Return lower bounds on −log Pr(``tokens[i]`` after row ``rows[i]``), or None if there are no cheap ones."""
        ...


def rows_of(state: State, rows: Tensor) -> State:
    """Return some rows of a state, on whatever device it is."""
    return tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in state)


class OnDevice:
    """A model on a device, for searches on the CPU: tokens go to the device, and probabilities come back.

    Args:
        steps: The model, whose states stay on the device.
        device: The device.
    """

    def __init__(self, steps: Steps, device: torch.device) -> None:
        self.words = steps.words
        self._steps, self._device = steps, device

    def start(self, tokens: Tensor) -> State:
        """Return the states after ``tokens``."""
        return self._steps.start(tokens.to(self._device))

    def extend(self, state: State, parents: Tensor, tokens: Tensor) -> State:
        """Return states after one more token."""
        return self._steps.extend(state, parents.to(self._device), tokens.to(self._device))

    def log_probabilities(self, state: State) -> Tensor:
        """Return the log-probability of every next token, on the CPU."""
        return self._steps.log_probabilities(state).cpu()

    def cost_floors(self, state: State, rows: Tensor, tokens: Tensor) -> Tensor | None:
        """Return lower bounds on costs, on the CPU, or None."""
        floors = self._steps.cost_floors(state, rows.to(self._device), tokens.to(self._device))
        return None if floors is None else floors.cpu()


class RecomputedSteps:
    """The plain way: read the whole sequence again for each token.

    Works for any causal module from tokens (n, positions) to logits at each position or at the last one, for sequences
    no longer than those it was trained with.
    """

    def __init__(self, module: nn.Module, words: int) -> None:
        self.words = words
        self._module = module

    def start(self, tokens: Tensor) -> State:
        """Return the tokens themselves."""
        return (tokens,)

    def extend(self, state: State, parents: Tensor, tokens: Tensor) -> State:
        """Return the tokens with one more column."""
        return (torch.cat([state[0].index_select(0, parents), tokens[:, None]], dim=1),)

    def cost_floors(self, state: State, rows: Tensor, tokens: Tensor) -> None:
        """Return None: there is no bound without running the model."""

    @torch.no_grad()
    def log_probabilities(self, state: State) -> Tensor:
        """Return the log-probability of every next token, (n, words)."""
        logits: Tensor = self._module(state[0])
        last = logits[:, -1] if logits.dim() == 3 else logits
        if tuple(last.shape) != (len(state[0]), self.words):
            raise InputError(
                f"the model gives logits of width {last.shape[-1]}, but the vocabulary has {self.words} entries"
            )
        return last.log_softmax(1)


def steps_of(module: nn.Module, words: int) -> Steps:
    """Return the model token by token: by its own method ``steps`` if it has one, else by recomputing.

    ``words`` is the size of the vocabulary, which the model's output must match. Puts the module into evaluation mode.
    It runs where the module is; tokens, row numbers and results are on the CPU.
    """
    module.eval()
    device = next((value.device for value in module.parameters()), torch.device("cpu"))
    method = getattr(type(module), "steps", None)
    steps: Steps = module.steps() if callable(method) else RecomputedSteps(module, words)  # type: ignore[operator]
    if steps.words != words:
        raise InputError(f"the model has {steps.words} words, but the vocabulary has {words} entries")
    return steps if device.type == "cpu" else OnDevice(steps, device)
