"""Optimizers as rules on lists of tensors, shared by clients, the server and central training.

They match ``torch.optim`` step by step, without its objects: a client's training starts from an empty state each time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coalmine.errors import InputError, check_kind, check_number, check_positive

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
        _check_rate(self.learning_rate)
        if not 0 <= check_number("momentum", self.momentum) < 1:
            raise InputError(f"momentum must be in [0, 1), got {self.momentum}")

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
        InputError: If an argument is out of range.

    Example:
        >>> Adam(learning_rate=0.001).beta2
        0.999
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_rate(self.learning_rate)
        check_positive("epsilon", self.epsilon)
        for name in ("beta1", "beta2"):
            if not 0 <= check_number(name, getattr(self, name)) < 1:
                raise InputError(f"{name} must be in [0, 1), got {getattr(self, name)}")

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


def check_optimizer(name: str, optimizer: object) -> None:
    """Raise `InputError` unless ``optimizer`` is one of this module."""
    check_kind(name, optimizer, (SGD, Adam), "SGD(...) or Adam(...) of coalmine.simulation")


def _check_rate(learning_rate: float) -> None:
    """Raise `InputError` unless a learning rate is positive and float32 can represent its products."""
    if check_positive("learning_rate", learning_rate) > 1e30:
        raise InputError(f"learning_rate must be at most 1e30, got {learning_rate}")
