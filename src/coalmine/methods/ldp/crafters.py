"""Pairs of gradients for the LDP audit: what a malicious client may send (Matsumoto et al. 2022, Section 3.4).

A crafter is any function (model, pair) → (g₁, g₂) of flat float32 vectors in the order of ``model.parameters()``; the
six of the paper are small objects of that kind, and `GradientFlip` takes any other. Two things may be added to one:
``rule``, the black-box test of the distinguisher who knows the crafter (the loss falls, if there is none), and
``prepare(model, examples, pair, rng)``, which gives the model that a colluding server sends instead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.errors import InputError, check_count, check_kind, check_positive
from coalmine.protocol import Vector
from coalmine.simulation.client import loss_of, tensors
from coalmine.simulation.data.federated import Examples, Task
from coalmine.simulation.flat import parameter_vector
from coalmine.usercode import said

Rule = Literal["loss-falls", "larger-change", "signs"]
"""The black-box tests of Eqs. 4, 6 and 7."""

RULES: tuple[Rule, ...] = ("loss-falls", "larger-change", "signs")


@dataclass(frozen=True)
class Pair:
    """The two examples x₁ and x₂ that crafter and distinguisher share: inputs (2, …), targets (2,)."""

    inputs: Tensor
    targets: Tensor
    task: Task

    @classmethod
    def of(cls, examples: Examples, task: Task) -> Pair:
        """Two examples as a module takes them."""
        if len(examples) != 2:
            raise InputError(f"a pair has two examples, got {len(examples)}")
        return cls(*tensors(examples, task), task)

    def loss(self, model: nn.Module, which: int, inputs: Tensor | None = None) -> Tensor:
        """The loss of example 0 or 1, or of other ``inputs`` with its label."""
        own = slice(which, which + 1)
        return loss_of(model, self.task, self.inputs[own] if inputs is None else inputs, self.targets[own])


Crafter = Callable[[nn.Module, Pair], tuple[Vector, Vector]]
"""(model, pair) → (g₁, g₂)."""


def gradient_of(loss: Tensor, model: nn.Module) -> Vector:
    """The gradient of a loss in all trainable parameters, as one flat float32 vector."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pieces = [
        torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1) for p, g in zip(parameters, found, strict=True)
    ]
    flat: Vector = torch.cat(pieces).float().numpy()
    return flat


@dataclass(frozen=True, kw_only=True)
class Benign:
    """The gradients of two examples, as an honest client would send them."""

    name: ClassVar[str] = "benign"
    rule: ClassVar[Rule] = "larger-change"

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """∇f(x₁; θ) and ∇f(x₂; θ)."""
        return gradient_of(pair.loss(model, 0), model), gradient_of(pair.loss(model, 1), model)


@dataclass(frozen=True, kw_only=True)
class InputPerturbation:
    """An example and the same perturbed by ``alpha`` a pixel so that its loss rises (FGSM, Goodfellow et al. 2015)."""

    name: ClassVar[str] = "input-perturbation"
    rule: ClassVar[Rule] = "loss-falls"
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """∇f(x₁; θ) and ∇f(x₁ + α·sgn(∇ₓf); θ)."""
        if not pair.inputs.is_floating_point():
            raise InputError("inputs can be perturbed only where they are numbers, and these are tokens")
        inputs = pair.inputs[:1].clone().requires_grad_()
        (slope,) = torch.autograd.grad(pair.loss(model, 0, inputs), inputs)
        perturbed = pair.inputs[:1] + self.alpha * slope.sign()
        return gradient_of(pair.loss(model, 0), model), gradient_of(pair.loss(model, 0, perturbed), model)


@dataclass(frozen=True, kw_only=True)
class ParameterRetrogression:
    """An example's gradients at the model, and where ``alpha`` times the gradient was added: its loss is higher."""

    name: ClassVar[str] = "parameter-retrogression"
    rule: ClassVar[Rule] = "loss-falls"
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """∇f(x₁; θ) and ∇f(x₁; θ + α∇f(x₁; θ))."""
        first = gradient_of(pair.loss(model, 0), model)
        moved = copy.deepcopy(model)
        load_vector(moved, parameter_vector(model).numpy() + np.float32(self.alpha) * first)
        return first, gradient_of(pair.loss(moved, 0), moved)


@dataclass(frozen=True, kw_only=True)
class GradientFlip:
    """The first gradient of another crafter, and its negative."""

    name: ClassVar[str] = "gradient-flip"
    rule: ClassVar[Rule] = "loss-falls"
    of: Crafter = field(default_factory=Benign)

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """g₁ and −g₁."""
        first, _ = self.of(model, pair)
        return first, -first


@dataclass(frozen=True, kw_only=True)
class Collusion:
    """A flipped gradient at a malicious model, on which the example's loss is huge.

    The server trains the model by ``steps`` of SGD on examples of one other label alone, in batches of ``batch_size``.
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
        """The malicious model."""
        if pair.task.per_position:
            raise InputError("collusion trains a model on another label, and data with a label a position has no such")
        own = int(pair.targets[0])
        others = np.setdiff1d(np.unique(examples.targets), [own])
        if not others.size:
            raise InputError(
                f"collusion trains a model on another label than {own}, and the data has that label alone: it needs "
                "data with at least two classes"
            )
        rows = np.flatnonzero(examples.targets == rng.choice(others))
        malicious = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(malicious.parameters(), lr=self.learning_rate)
        for _ in range(self.steps):
            batch = rng.choice(rows, self.batch_size)
            optimizer.zero_grad()
            inputs, targets = tensors(Examples(examples.inputs[batch], examples.targets[batch]), pair.task)
            loss_of(malicious, pair.task, inputs, targets).backward()
            optimizer.step()
        return malicious

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """g₁ = ∇f(x₁; θ̃) and −g₁."""
        return GradientFlip()(model, pair)


@dataclass(frozen=True, kw_only=True)
class DummyGradient:
    """The same number in all coordinates, whatever the model: a vector of length ``norm``, and its negative.

    At the clip norm or above it is the worst case: no random sign hides it.
    """

    name: ClassVar[str] = "dummy-gradient"
    rule: ClassVar[Rule] = "signs"
    norm: float = 1.0

    def __post_init__(self) -> None:
        check_positive("the norm of the dummy gradient", self.norm)

    def __call__(self, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
        """(λ, …, λ) with λ = norm / √d, and −(λ, …, λ)."""
        dim = parameter_vector(model).numel()
        first = np.full(dim, self.norm / np.sqrt(dim), dtype=np.float32)
        return first, -first


CRAFTERS = ("benign", "input-perturbation", "parameter-retrogression", "gradient-flip", "collusion", "dummy-gradient")
"""The paper's six, from the most realistic to the strongest."""


def crafter_named(name: str, *, norm: float = 1.0, alpha: float = 1.0) -> Crafter:
    """One of the six by its name; ``norm`` is the dummy gradient's, ``alpha`` that of the two perturbations."""
    made: dict[str, Callable[[], Crafter]] = {
        "benign": Benign,
        "input-perturbation": lambda: InputPerturbation(alpha=alpha),
        "parameter-retrogression": lambda: ParameterRetrogression(alpha=alpha),
        "gradient-flip": GradientFlip,
        "collusion": Collusion,
        "dummy-gradient": lambda: DummyGradient(norm=norm),
    }
    if name not in made:
        raise InputError(f"there is no crafter {name!r}; there are {', '.join(CRAFTERS)}, and path.py:function")
    return made[name]()


def name_of(crafter: Crafter) -> str:
    """What a crafter is called: its ``name``, or that of the function."""
    return str(getattr(crafter, "name", None) or getattr(crafter, "__name__", type(crafter).__name__))


def rule_of(crafter: Crafter) -> Rule:
    """The black-box test that fits a crafter; Eq. 4 where it names none."""
    rule = getattr(crafter, "rule", "loss-falls")
    if rule not in RULES:
        raise InputError(f"the rule of {name_of(crafter)} must be one of {', '.join(RULES)}, got {rule!r}")
    return rule


def prepared(crafter: Crafter, model: nn.Module, examples: Examples, pair: Pair, rng: np.random.Generator) -> nn.Module:
    """The model that the server sends: the crafter's ``prepare`` makes it, if it has one."""
    prepare = getattr(crafter, "prepare", None)
    if prepare is None:
        return model
    try:
        found = prepare(model, examples, pair, rng)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"prepare of the crafter {name_of(crafter)} failed: {said(error)}") from error
    check_kind(f"what prepare of the crafter {name_of(crafter)} gives", found, nn.Module, "a torch module")
    return found  # type: ignore[no-any-return]


def craft(crafter: Crafter, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
    """What the crafter gives, if it is two different vectors of the model's length that are finite and not zero."""
    name, dim = name_of(crafter), parameter_vector(model).numel()
    try:
        found = crafter(model, pair)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the crafter {name} failed: {said(error)}") from error
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError(f"the crafter {name} must return a tuple of two gradients, got {type(found).__name__}")
    vectors = []
    for which, given in zip(("g1", "g2"), found, strict=True):
        vector = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
        check_kind(f"{which} of the crafter {name}", vector, np.ndarray, "a NumPy vector or a tensor")
        if vector.shape != (dim,):
            raise InputError(f"the crafter {name} gave {which} of shape {vector.shape}, the model has ({dim},)")
        if vector.dtype.kind not in "fiub":
            raise InputError(f"the crafter {name} gave {which} of {vector.dtype}, not of real numbers")
        vectors.append(np.ascontiguousarray(vector, dtype=np.float32))
        if not np.isfinite(vectors[-1]).all():
            raise InputError(f"the crafter {name} gave {which} that is not finite")
        if not vectors[-1].any():
            raise InputError(f"the crafter {name} gave {which} = 0, which no report could betray: give a gradient")
    if np.array_equal(vectors[0], vectors[1]):
        raise InputError(f"the crafter {name} gave the same gradient twice: there is nothing to tell apart")
    return vectors[0], vectors[1]


def load_vector(model: nn.Module, vector: Vector) -> None:
    """Set all trainable parameters from a flat vector."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    torch.nn.utils.vector_to_parameters(torch.from_numpy(np.array(vector, dtype=np.float32)), parameters)
