"""What a malicious client may send: the six crafters of Matsumoto et al. (2022), Section 3.4.

A crafter is any function ``(model, pair) -> (g1, g2)`` that returns two flat gradients in the order of
``model.parameters()``. The six below are small frozen objects of that kind, and `GradientFlip` wraps any other. A
crafter may have three more attributes:

* ``name``, for results; by default that of the function or class;
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
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.errors import InputError, check_kind, check_positive, did_you_mean
from coalmine.protocol import Vector
from coalmine.simulation.client import loss_of, tensors
from coalmine.simulation.data.federated import Examples, Task
from coalmine.simulation.flat import flatten, parameter_vector, set_parameters, trainable
from coalmine.usercode import errors_of

Rule = Literal["loss-falls", "larger-change", "signs"]
"""The black-box tests of Equations 4, 6 and 7."""


@dataclass(frozen=True)
class Pair:
    """The examples x₁ and x₂ that crafter and distinguisher share.

    Args:
        inputs: Both inputs as the model takes them, ``(2, ...)``.
        targets: Both labels, ``(2,)``, or ``(2, positions)`` for a language model.
        task: What the model predicts.
    """

    inputs: Tensor
    targets: Tensor
    task: Task

    def loss(self, model: nn.Module, index: int) -> Tensor:
        """Return the loss of example 0 or 1."""
        return loss_of(model, self.task, self.inputs[index : index + 1], self.targets[index : index + 1])

    def gradient(self, model: nn.Module, index: int) -> Vector:
        """Return the gradient of `loss` in all trainable parameters, as one flat float32 vector."""
        return gradient_of(self.loss(model, index), model)


Crafter = Callable[[nn.Module, Pair], tuple[Vector, Vector]]
"""Maps a model and a pair of examples to the gradients g₁ and g₂."""


def gradient_of(loss: Tensor, model: nn.Module) -> Vector:
    """Return the gradient of a loss in all trainable parameters, as one flat float32 vector."""
    # A loss may not depend on all parameters, such as those of an expert that is not chosen.
    parameters = list(trainable(model).values())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    flat: Vector = flatten(gradients).float().numpy()
    return flat


@dataclass(frozen=True, kw_only=True)
class Benign:
    """The gradients of both examples, as an honest client would send them."""

    name: ClassVar[str] = "benign"
    rule: ClassVar[Rule] = "larger-change"

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """Return ∇f(x₁; θ) and ∇f(x₂; θ)."""
        return pair.gradient(model, 0), pair.gradient(model, 1)


@dataclass(frozen=True, kw_only=True)
class InputPerturbation:
    """The gradients of an example and of an adversarial perturbation of it (FGSM; Goodfellow et al. 2015).

    Args:
        alpha: Size of the perturbation per pixel. The perturbed input is not clamped.
    """

    name: ClassVar[str] = "input-perturbation"
    alpha: float = 1.0

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """Return ∇f(x₁; θ) and ∇f(x₁ + α·sgn(∇ₓf); θ)."""
        if not pair.inputs.is_floating_point():
            raise InputError(f"{self.name} needs numeric inputs, and these are tokens: leave this crafter out")
        inputs, label = pair.inputs[:1].clone().requires_grad_(), pair.targets[:1]
        # The label stays: FGSM raises the loss of the true label.
        (slope,) = torch.autograd.grad(loss_of(model, pair.task, inputs, label), inputs)
        perturbed = pair.inputs[:1] + self.alpha * slope.sign()
        return pair.gradient(model, 0), gradient_of(loss_of(model, pair.task, perturbed, label), model)


@dataclass(frozen=True, kw_only=True)
class ParameterRetrogression:
    """An example's gradients at the model, and at parameters moved up its loss.

    Args:
        alpha: How many gradients to add to the parameters.
    """

    name: ClassVar[str] = "parameter-retrogression"
    alpha: float = 1.0

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """Return ∇f(x₁; θ) and ∇f(x₁; θ + α∇f(x₁; θ))."""
        first = pair.gradient(model, 0)
        moved = copy.deepcopy(model)  # the crafter's own copy; the server's model stays as it is
        vector = parameter_vector(model) + torch.from_numpy(np.float32(self.alpha) * first)
        set_parameters(moved, vector)
        return first, pair.gradient(moved, 0)


@dataclass(frozen=True, kw_only=True)
class GradientFlip:
    """The first gradient of another crafter, and its negative.

    Args:
        of: The crafter whose first gradient to flip.
    """

    name: ClassVar[str] = "gradient-flip"
    of: Crafter = field(default_factory=Benign)

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """Return g₁ and −g₁."""
        first, _ = self.of(model, pair)
        return first, -first


@dataclass(frozen=True, kw_only=True)
class Collusion:
    """A flipped gradient at a malicious model of the server, on which the example's loss is huge.

    Args:
        steps: Steps of SGD that make the malicious model.
        learning_rate: Learning rate of SGD.
        batch_size: Examples per step.
    """

    name: ClassVar[str] = "collusion"
    steps: int = 100
    learning_rate: float = 0.1
    batch_size: int = 32

    def prepare(self, model: nn.Module, examples: Examples, pair: Pair, rng: np.random.Generator) -> nn.Module:
        """Return the malicious model θ̃: a copy, trained on all examples of one random label that x₁ does not have."""
        if pair.task.per_position:
            raise InputError("collusion needs one label per example, and this data has one label per position")
        label = int(pair.targets[0])
        other_labels = np.setdiff1d(np.unique(examples.targets), [label])
        if not other_labels.size:
            raise InputError(f"collusion needs data with at least two classes, and all labels here are {label}")
        # A model that has only seen another label makes the client's gradient at least as long as the clip norm, so
        # that the random sign of short gradients (Algorithm 1, line 2) does not hide it.
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
        # λ = L/√d makes the norm just L, so that line 2 of Algorithm 1 never flips the sign.
        first = np.full(dim, self.norm / np.sqrt(dim), dtype=np.float32)
        return first, -first


CRAFTERS = ("benign", "input-perturbation", "parameter-retrogression", "gradient-flip", "collusion", "dummy-gradient")
"""Names of the paper's six crafters, from the most realistic to the strongest (Table 1)."""


def crafter_named(name: str, *, alpha: float = 1.0) -> Crafter:
    """Return one of the six crafters; ``alpha`` is the size of the two perturbations."""
    if name not in CRAFTERS:
        raise InputError(f'unknown crafter "{name}". {did_you_mean(name, [*CRAFTERS, "path.py:function"])}')
    perturbations = InputPerturbation(alpha=alpha), ParameterRetrogression(alpha=alpha)
    crafters: tuple[Crafter, ...] = (Benign(), *perturbations, GradientFlip(), Collusion(), DummyGradient())
    return crafters[CRAFTERS.index(name)]


def name_of(crafter: Crafter) -> str:
    """Return a crafter's ``name``, or the name of the function or class."""
    return str(getattr(crafter, "name", None) or getattr(crafter, "__name__", type(crafter).__name__))


def rule_of(crafter: Crafter) -> Rule:
    """Return the black-box test that fits a crafter: its ``rule``, or Equation 4 if it has none."""
    rule: Rule = getattr(crafter, "rule", "loss-falls")
    if rule not in get_args(Rule):
        raise InputError(
            f"the rule of crafter {name_of(crafter)} must be one of {', '.join(get_args(Rule))}, got {rule!r}"
        )
    return rule


def craft(
    crafter: Crafter, model: nn.Module, examples: Examples, pair: Pair, rng: np.random.Generator
) -> tuple[nn.Module, Vector, Vector]:
    """Return the model that the server sends, and the crafter's two gradients as float32 vectors.

    Raises:
        InputError: If a user's crafter fails, or its gradients are not two different, finite, nonzero vectors of the
            model's length.
    """
    who = f"crafter {name_of(crafter)}"
    with errors_of(f"{who} failed"):
        # Only collusion of ours prepares a model (Table 1, "model trainer").
        prepare = getattr(crafter, "prepare", None)
        sent = model if prepare is None else prepare(model, examples, pair, rng)
        check_kind(f"the model that {who} prepares", sent, nn.Module, "a torch module")
        shape = (parameter_vector(sent).numel(),)
        g1, g2 = crafter(sent, pair)
        first: Vector = torch.as_tensor(g1).detach().cpu().float().contiguous().numpy()
        second: Vector = torch.as_tensor(g2).detach().cpu().float().contiguous().numpy()
    for name, gradient in (("g1", first), ("g2", second)):
        # The reports of a zero gradient are pure noise.
        if gradient.shape != shape or not np.isfinite(gradient).all() or not gradient.any():
            raise InputError(
                f"{name} of {who} must be finite numbers of shape {shape} and not zero, got shape {gradient.shape}"
            )
    if np.array_equal(first, second):
        raise InputError(f"{who} returned the same gradient twice: there is nothing to distinguish")
    return sent, first, second
