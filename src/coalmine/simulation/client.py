"""What a client does in a round: epochs of local training from the global model. Also optimizers, loss, test metrics.

Optimizers are rules on lists of tensors, shared by clients, the server and central training. They match ``torch.optim``
step by step, without its objects: a client's training starts from an empty state each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count, check_number, check_positive
from coalmine.simulation.data.federated import Examples, FederatedData, Task
from coalmine.simulation.flat import device_of

_LOGITS = 4_000_000  # logits per batch of an evaluation, a bound on memory

Stream = Callable[[], np.random.Generator]
"""Returns a fresh generator at the start of a client's random stream. A function, because many clients need none."""


OptimizerState = dict[str, list[Tensor]]
"""An optimizer's state: lists of tensors shaped like the parameters; empty before the first step."""


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent, with heavy-ball momentum if ``momentum`` is positive.

    Args:
        learning_rate: The step size, positive.
        momentum: The momentum factor, in [0, 1).

    Raises:
        InputError: If an argument is out of range.

    Example:
        >>> SGD(learning_rate=0.1, momentum=0.9)
        SGD(learning_rate=0.1, momentum=0.9)
    """

    learning_rate: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_number("momentum", self.momentum, "in [0, 1)", lambda momentum: 0 <= momentum < 1)

    def step(self, parameters: list[Tensor], gradients: list[Tensor], state: OptimizerState) -> None:
        """Update ``parameters`` and ``state`` in place."""
        if self.momentum:
            if not state:
                state["momentum"] = [gradient.clone() for gradient in gradients]
            else:
                torch._foreach_mul_(state["momentum"], self.momentum)
                torch._foreach_add_(state["momentum"], gradients)
            gradients = state["momentum"]
        torch._foreach_add_(parameters, gradients, alpha=-self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba, 2015), with bias correction.

    Args:
        learning_rate: The step size, positive.
        beta1: Decay rate of the mean of the gradients, in [0, 1).
        beta2: Decay rate of the mean of their squares, in [0, 1).
        epsilon: Added to the root of the second moment, as in the paper.

    Raises:
        InputError: If the learning rate is not positive.

    Example:
        >>> Adam(learning_rate=0.001).beta2
        0.999
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)

    def step(self, parameters: list[Tensor], gradients: list[Tensor], state: OptimizerState) -> None:
        """Update ``parameters`` and ``state`` in place."""
        if not state:
            state["mean"] = [torch.zeros_like(gradient) for gradient in gradients]
            state["square"] = [torch.zeros_like(gradient) for gradient in gradients]
            state["steps"] = [torch.zeros((), dtype=torch.float64)]
        state["steps"][0] += 1
        steps = float(state["steps"][0])
        torch._foreach_lerp_(state["mean"], gradients, 1 - self.beta1)
        torch._foreach_mul_(state["square"], self.beta2)
        torch._foreach_addcmul_(state["square"], gradients, gradients, value=1 - self.beta2)
        roots = list(torch._foreach_sqrt(state["square"]))
        torch._foreach_div_(roots, (1 - self.beta2**steps) ** 0.5)
        torch._foreach_add_(roots, self.epsilon)
        torch._foreach_addcdiv_(parameters, state["mean"], roots, value=-self.learning_rate / (1 - self.beta1**steps))


Optimizer = SGD | Adam


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """What every client does with the global model: ``epochs`` passes over its examples in shuffled batches.

    The defaults are FedSGD: a single step on all of the client's examples.

    Args:
        optimizer: `SGD` or `Adam`; its state starts empty in every round.
        epochs: Passes over the client's examples, reshuffled before each.
        batch_size: Examples per step; None uses all of them in one batch.

    Raises:
        InputError: If a number is not positive.

    Example:
        >>> fedavg = LocalTraining(optimizer=SGD(learning_rate=0.05), epochs=3, batch_size=10)
        >>> fedavg.steps(examples=25)
        9
    """

    optimizer: Optimizer = field(default_factory=lambda: SGD(learning_rate=0.1))
    epochs: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)

    def steps(self, examples: int) -> int:
        """The number of steps a client with this many examples takes."""
        return self.epochs * math.ceil(examples / (self.batch_size or examples))

    def batches(self, examples: int, stream: Stream) -> list[Ints | None]:
        """The rows of each step's batch; None stands for all of them, which need no shuffling."""
        if self.batch_size is None or examples <= self.batch_size:
            return [None] * self.epochs
        # Shuffled anew in each epoch; the last batch of an epoch may be short.
        starts = range(self.batch_size, examples, self.batch_size)
        generator = stream()
        batches: list[Ints | None] = []
        for _ in range(self.epochs):
            batches += np.split(generator.permutation(examples), starts)
        return batches


@dataclass(frozen=True)
class Participant:
    """One client in a round: its examples and its random stream."""

    examples: Examples
    stream: Stream


def tensors(
    examples: Examples, task: Task, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Inputs and targets as a module and its loss take them, on the CPU by default.

    Tokens and targets are int64; uint8 pixels are scaled to [0, 1].
    """
    targets = torch.from_numpy(examples.targets.astype(np.int64)).to(device)
    if task.tokens is not None:
        return torch.from_numpy(examples.inputs.astype(np.int64)).to(device), targets
    inputs = torch.from_numpy(examples.inputs.astype(np.float32)).to(device=device, dtype=dtype)
    if examples.inputs.dtype == np.uint8:
        inputs.div_(255)
    return inputs, targets


def seed_dropout(seed: int, device: torch.device) -> None:
    """Seed what dropout and similar layers draw from: torch's global generators of the CPU and of a device."""
    # Not torch.manual_seed, which takes longer than a small client's whole training.
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed_all(seed)


def loss_of(module: nn.Module, task: Task, inputs: Tensor, targets: Tensor) -> Tensor:
    """The module's method ``loss`` if it has one, else the mean cross-entropy over the targets that are not ignored.

    Zero if all targets are ignored.
    """
    if callable(getattr(type(module), "loss", None)):
        return module.loss(inputs, targets)  # type: ignore[operator, no-any-return]
    logits, labels = module(inputs), targets.flatten()
    if bool((labels == task.ignored).all()):
        # The mean over no target is 0/0. Zero times the logits keeps the graph, so that gradients are zero as well.
        return logits.sum() * 0.0  # type: ignore[no-any-return]
    return F.cross_entropy(logits.flatten(0, -2), labels, ignore_index=task.ignored)


def evaluate(module: nn.Module, task: Task, examples: Examples | FederatedData) -> dict[str, float]:
    """Evaluate a model on examples.

    Args:
        module: The model; it is evaluated in ``eval`` mode and left in its former mode.
        task: The task of the examples, for instance ``data.task``.
        examples: The examples; of federated data, those of all clients.

    Returns:
        ``accuracy`` and ``loss`` (mean cross-entropy); for a language model ``recall@1`` (the fraction of positions
        whose next token is the most likely one), ``perplexity`` and ``loss``. Ignored targets do not count.

    Raises:
        InputError: If there is no example with a target that counts.

    Example:
        >>> from coalmine.simulation import models
        >>> from coalmine.simulation.data import load
        >>> splits = load("digits")
        >>> metrics = evaluate(models.build("logistic", splits.test.task), splits.test.task, splits.test)
        >>> sorted(metrics)
        ['accuracy', 'loss']
    """
    if isinstance(examples, FederatedData):
        examples = examples.pooled()
    positions = task.input_shape[0] if task.per_position else 1
    batch_size = max(1, min(500, _LOGITS // (task.classes * positions)))
    loss, correct, counted = 0.0, 0, 0
    was_training, device = module.training, device_of(module)
    module.eval()
    with torch.no_grad():
        for start in range(0, len(examples), batch_size):
            inputs, targets = tensors(examples[start : start + batch_size], task, device=device)
            logits, targets = module(inputs).flatten(0, -2), targets.flatten()
            loss += float(F.cross_entropy(logits, targets, ignore_index=task.ignored, reduction="sum"))
            counts = targets != task.ignored
            correct += int(((logits.argmax(1) == targets) & counts).sum())
            counted += int(counts.sum())
    module.train(was_training)
    if not counted:
        raise InputError("cannot evaluate: the examples have no target that counts")
    mean = loss / counted
    if task.per_position:
        # exp overflows above 709, and a diverged model should be reported as such rather than stop the evaluation.
        return {"recall@1": correct / counted, "perplexity": math.exp(min(mean, 700.0)), "loss": mean}
    return {"accuracy": correct / counted, "loss": mean}
