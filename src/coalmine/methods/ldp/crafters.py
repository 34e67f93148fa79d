"""What a malicious client may send: the six crafters of Matsumoto et al. (2022), Section 3.4.

A crafter is any function ``(model, pair) -> (g1, g2)`` that returns two flat gradients in the order of
``model.parameters()``. The six below are small frozen objects of that kind, and `GradientFlip` wraps any other. A
crafter may have two more attributes:

* ``rule``, the black-box test of the distinguisher who knows the crafter (``"loss-falls"`` if it has none);
* ``prepare(model, examples, pair, rng)``, which returns the model that a colluding server sends instead of its own.

Example:
    >>> import torch
    >>> from coalmine.simulation.data.federated import Task
    >>> model = torch.nn.Linear(3, 2)
    >>> pair = Pair(torch.eye(2, 3), torch.tensor([0, 1]), Task(input_shape=(3,), classes=2))
    >>> g1, g2 = GradientFlip()(model, pair)
    >>> bool((g1 == -g2).all())
    True
    >>> g1, _ = DummyGradient(norm=2.0)(model, pair)
    >>> len(g1), round(float(np.linalg.norm(g1)), 6)
    (8, 2.0)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import nn

from coalmine.errors import InputError, check_count, check_positive, did_you_mean
from coalmine.methods.ldp.pair import Pair
from coalmine.protocol import Vector
from coalmine.simulation.client import loss_of, tensors
from coalmine.simulation.data.federated import Examples
from coalmine.simulation.flat import parameter_vector

Rule = Literal["loss-falls", "larger-change", "signs"]
"""The black-box tests of Equations 4, 6 and 7."""

Crafter = Callable[[nn.Module, Pair], tuple[Vector, Vector]]
"""Maps a model and a pair of examples to the gradients g₁ and g₂."""


@dataclass(frozen=True, kw_only=True)
class Benign:
    """The gradients of both examples, as an honest client would send them."""

    name: ClassVar[str] = "benign"
    rule: ClassVar[Rule] = "larger-change"

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """Return ∇f(x₁; θ) and ∇f(x₂; θ)."""
        return pair.gradient(model, 0), pair.gradient(model, 1)


@dataclass(frozen=True, kw_only=True)
class _Perturbation:
    """A crafter that perturbs something by ``alpha``, positive."""

    rule: ClassVar[Rule] = "loss-falls"
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)


class InputPerturbation(_Perturbation):
    """The gradients of an example and of an adversarial perturbation of it (FGSM; Goodfellow et al. 2015).

    Args:
        alpha: Size of the perturbation per pixel. The perturbed input is not clamped.
    """

    name: ClassVar[str] = "input-perturbation"

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """Return ∇f(x₁; θ) and ∇f(x₁ + α·sgn(∇ₓf); θ)."""
        if not pair.inputs.is_floating_point():
            raise InputError(f"{self.name} needs numeric inputs, and these are tokens: leave this crafter out")
        inputs = pair.inputs[:1].clone().requires_grad_()
        (slope,) = torch.autograd.grad(pair.loss(model, 0, inputs), inputs)
        perturbed = pair.inputs[:1] + self.alpha * slope.sign()
        return pair.gradient(model, 0), pair.gradient(model, 0, perturbed)


class ParameterRetrogression(_Perturbation):
    """An example's gradients at the model, and at parameters moved up its loss.

    Args:
        alpha: How many gradients to add to the parameters.
    """

    name: ClassVar[str] = "parameter-retrogression"

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """Return ∇f(x₁; θ) and ∇f(x₁; θ + α∇f(x₁; θ))."""
        first = pair.gradient(model, 0)
        moved = copy.deepcopy(model)
        vector = parameter_vector(model) + torch.from_numpy(np.float32(self.alpha) * first)
        trainable = [value for value in moved.parameters() if value.requires_grad]
        torch.nn.utils.vector_to_parameters(vector, trainable)
        return first, pair.gradient(moved, 0)


@dataclass(frozen=True, kw_only=True)
class GradientFlip:
    """The first gradient of another crafter, and its negative.

    Args:
        of: The crafter whose first gradient to flip.
    """

    name: ClassVar[str] = "gradient-flip"
    rule: ClassVar[Rule] = "loss-falls"
    of: Crafter = field(default_factory=Benign)

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """Return g₁ and −g₁."""
        first, _ = self.of(model, pair)
        return first, -first


@dataclass(frozen=True, kw_only=True)
class Collusion:
    """A flipped gradient at a malicious model of the server, on which the example's loss is huge.

    The server trains its model on examples of one other label only, so that the client's gradient is at least as long
    as the clip norm and no random sign hides it.

    Args:
        steps: Steps of SGD that make the malicious model.
        learning_rate: Learning rate of SGD.
        batch_size: Examples per step.
    """

    name: ClassVar[str] = "collusion"
    rule: ClassVar[Rule] = "loss-falls"
    steps: int = 100
    learning_rate: float = 0.1
    batch_size: int = 32

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("batch_size", self.batch_size)
        check_positive("learning_rate", self.learning_rate)

    def prepare(self, model: nn.Module, examples: Examples, pair: Pair, rng: np.random.Generator) -> nn.Module:
        """Return the malicious model θ̃: a copy, trained on all examples of one random label that x₁ does not have."""
        if pair.task.per_position:
            raise InputError("collusion needs one label per example, and this data has one label per position")
        label = int(pair.targets[0])
        other_labels = np.setdiff1d(np.unique(examples.targets), [label])
        if not other_labels.size:
            raise InputError(f"collusion needs data with at least two classes, and all labels here are {label}")
        others = examples[np.flatnonzero(examples.targets == rng.choice(other_labels))]
        trained = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(trained.parameters(), lr=self.learning_rate)
        for _ in range(self.steps):
            batch = others[rng.choice(len(others), self.batch_size)]
            optimizer.zero_grad()
            loss_of(trained, pair.task, *tensors(batch, pair.task)).backward()
            optimizer.step()
        return trained

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """Return g₁ = ∇f(x₁; θ̃) and −g₁."""
        return GradientFlip()(model, pair)


@dataclass(frozen=True, kw_only=True)
class DummyGradient:
    """A constant vector and its negative, whatever the model.

    At the clip norm or above this is the worst case: LDP-SGD's random sign of short gradients never hides it
    (Proposition 1).

    Args:
        norm: Length of the vector.
    """

    name: ClassVar[str] = "dummy-gradient"
    rule: ClassVar[Rule] = "signs"
    norm: float = 1.0

    def __post_init__(self) -> None:
        check_positive("norm of the dummy gradient", self.norm)

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """Return (λ, …, λ) with λ = norm / √d, and −(λ, …, λ)."""
        dim = parameter_vector(model).numel()
        first = np.full(dim, self.norm / np.sqrt(dim), dtype=np.float32)
        return first, -first


CRAFTERS = ("benign", "input-perturbation", "parameter-retrogression", "gradient-flip", "collusion", "dummy-gradient")
"""Names of the paper's six crafters, from the most realistic to the strongest (Table 1)."""


def crafter_named(name: str, *, norm: float = 1.0, alpha: float = 1.0) -> Crafter:
    """Return one of the six crafters.

    Args:
        name: One of `CRAFTERS`.
        norm: Length of the dummy gradient.
        alpha: Size of the two perturbations.

    Raises:
        InputError: If there is no such crafter.
    """
    crafters: dict[str, Callable[[], Crafter]] = {
        "benign": Benign,
        "input-perturbation": lambda: InputPerturbation(alpha=alpha),
        "parameter-retrogression": lambda: ParameterRetrogression(alpha=alpha),
        "gradient-flip": GradientFlip,
        "collusion": Collusion,
        "dummy-gradient": lambda: DummyGradient(norm=norm),
    }
    if name not in crafters:
        raise InputError(f'unknown crafter "{name}". {did_you_mean(name, [*CRAFTERS, "path.py:function"])}')
    return crafters[name]()
