"""What a client does with its examples: so many epochs over batches, from the global model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.arrays import Ints
from coalmine.errors import check_count, check_kind
from coalmine.simulation.data.federated import Array, Examples, Task
from coalmine.simulation.optimizers import SGD, Adam, Optimizer

Stream = Callable[[], np.random.Generator]
"""A stream of random numbers from its beginning, made when asked for: many clients never need theirs."""


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """``epochs`` passes over a client's examples in batches of ``batch_size``, shuffled anew in each epoch.

    ``batch_size=None`` is the whole of them: one epoch of it is FedSGD, a single full-batch step.
    """

    optimizer: Optimizer = field(default_factory=lambda: SGD(learning_rate=0.1))
    epochs: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_kind("optimizer", self.optimizer, (SGD, Adam), "SGD(...) or Adam(...) of coalmine.simulation")
        check_count("epochs", self.epochs)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)

    def steps(self, examples: int) -> int:
        """How many steps a client with that many examples takes."""
        return self.epochs * (1 if self.batch_size is None else -(-examples // self.batch_size))

    def batches(self, examples: int, stream: Stream) -> list[Ints | None]:
        """The rows of each step's batch; None where it is all of them, which need no shuffling."""
        if self.batch_size is None or examples <= self.batch_size:
            return [None] * self.epochs
        starts = range(self.batch_size, examples, self.batch_size)
        generator = stream()
        orders = [generator.permutation(examples) for _ in range(self.epochs)]
        return [batch for order in orders for batch in np.split(order, starts)]


@dataclass(frozen=True)
class Client:
    """One client's part in a round: its examples, its ``weight`` in the sum, its own stream of random numbers."""

    examples: Examples
    weight: float
    stream: Stream


def input_tensor(inputs: Array, task: Task, dtype: torch.dtype = torch.float32) -> Tensor:
    """Inputs as a module takes them: uint8 pixels become numbers in [0, 1], tokens int64."""
    if task.tokens is not None:
        return torch.from_numpy(inputs.astype(np.int64))
    numbers = torch.from_numpy(inputs.astype(np.float32)).to(dtype)
    return numbers.div_(255) if inputs.dtype == np.uint8 else numbers


def tensors(examples: Examples, task: Task, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Inputs and targets as a module and its loss take them."""
    return input_tensor(examples.inputs, task, dtype), torch.from_numpy(examples.targets.astype(np.int64))


def has_other_loss(module: nn.Module) -> bool:
    """Whether the module's own method ``loss`` may give another loss than the mean cross-entropy.

    Classes whose ``loss`` is a faster way to it say so by ``loss_is_cross_entropy = True``.
    """
    return callable(getattr(type(module), "loss", None)) and not getattr(type(module), "loss_is_cross_entropy", False)


def loss_of(module: nn.Module, task: Task, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy over targets that count: by the module's own method ``loss`` where it has one.

    Where no target counts it is zero.
    """
    if callable(getattr(type(module), "loss", None)):
        return module.loss(inputs, targets)  # type: ignore[operator, no-any-return]
    logits, labels, ignored = module(inputs), targets.flatten(), ignored_index(task)
    if task.ignored is None or bool((labels != ignored).any()):
        return F.cross_entropy(logits.flatten(0, -2), labels, ignore_index=ignored)
    return logits.sum() * 0.0  # type: ignore[no-any-return]


def ignored_index(task: Task) -> int:
    """The target that does not count, as ``cross_entropy`` names it."""
    return -100 if task.ignored is None else task.ignored
