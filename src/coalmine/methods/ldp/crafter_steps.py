"""The pieces that crafters are built from: a step in the input, a step in the parameters, a training loop."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.methods.ldp.pair import Pair
from coalmine.protocol import Vector
from coalmine.simulation.client import loss_of, tensors
from coalmine.simulation.data.federated import Examples
from coalmine.simulation.flat import parameter_vector


def fgsm(model: nn.Module, pair: Pair, alpha: float) -> Tensor:
    """Return x₁ moved by ``alpha`` per pixel up its loss: the fast gradient sign method (Goodfellow et al. 2015)."""
    if not pair.inputs.is_floating_point():
        raise InputError("input-perturbation needs numeric inputs, and these are tokens: leave this crafter out")
    inputs = pair.inputs[:1].clone().requires_grad_()
    (slope,) = torch.autograd.grad(pair.loss(model, 0, inputs), inputs)
    return pair.inputs[:1] + alpha * slope.sign()


def shifted(model: nn.Module, step: Vector) -> nn.Module:
    """Return a copy of the model with ``step`` added to its trainable parameters."""
    moved = copy.deepcopy(model)
    load_vector(moved, parameter_vector(model).numpy() + step)
    return moved


def load_vector(model: nn.Module, vector: Vector) -> None:
    """Set all trainable parameters from a flat vector."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    torch.nn.utils.vector_to_parameters(torch.from_numpy(np.array(vector, dtype=np.float32)), parameters)


def examples_of_another_label(examples: Examples, pair: Pair, rng: np.random.Generator) -> Examples:
    """Return all examples of one random label that x₁ does not have."""
    if pair.task.per_position:
        raise InputError("collusion needs one label per example, and this data has one label per position")
    label = int(pair.targets[0])
    others = np.setdiff1d(np.unique(examples.targets), [label])
    if not others.size:
        raise InputError(f"collusion needs data with at least two classes, and all labels here are {label}")
    rows = np.flatnonzero(examples.targets == rng.choice(others))
    return Examples(examples.inputs[rows], examples.targets[rows])


def trained_on(
    examples: Examples,
    model: nn.Module,
    pair: Pair,
    *,
    steps: int,
    learning_rate: float,
    batch_size: int,
    rng: np.random.Generator,
) -> nn.Module:
    """Return a copy of the model after ``steps`` of SGD on random batches of the examples."""
    trained = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(trained.parameters(), lr=learning_rate)
    for _ in range(steps):
        rows = rng.choice(len(examples), batch_size)
        inputs, targets = tensors(Examples(examples.inputs[rows], examples.targets[rows]), pair.task)
        optimizer.zero_grad()
        loss_of(trained, pair.task, inputs, targets).backward()
        optimizer.step()
    return trained
