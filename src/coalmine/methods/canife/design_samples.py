"""Canaries made of numbers, images above all: optimized in the space of their pixels."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.methods.canife.design import Canary, Design, DesignSettings, checked_settings, descend, valued
from coalmine.methods.canife.design_loss import DesignLoss
from coalmine.methods.canife.pool import Pool
from coalmine.methods.canife.sample_gradients import SampleGradients, sample_gradients
from coalmine.simulation.client import LocalTraining, tensors
from coalmine.simulation.data.federated import Examples, FederatedData, Task
from coalmine.simulation.workers import one_thread

Target = int | Literal["random", "best"]
"""A canary's class: one for all, drawn at random, or for each the one with which its start has the lowest loss."""

# Of the valid range: at these rates of Adam designs are the best, long ones and those of few iterations.
_RATE, _SHORT_RATE, _SHORT = 0.1, 0.3, 100


def design_samples(
    model: nn.Module,
    pool: Pool,
    *,
    task: Task,
    client: LocalTraining,
    count: int = 1,
    settings: DesignSettings | None = None,
    start: Examples | FederatedData | None = None,
    target: Target = "random",
    valid: tuple[float, float] | None = (0.0, 1.0),
    way: str | None = None,
    seed: int = 0,
) -> Design:
    """Design ``count`` canaries for ``model`` as it is now, all in one batch.

    They start from random numbers, or from examples of ``start`` (that keep their class where ``target`` is
    "random"). ``valid`` is the range that numbers stay in, that of pixels unless given (``valid_range`` finds that of
    data); None leaves them free, as in the paper. ``client`` is what clients do with their examples: the canary's,
    like the others', takes its steps and is clipped. ``way`` is that of an earlier `Design` for the same module.
    """
    if task.tokens is not None:
        raise InputError("the inputs are tokens, which cannot be moved by a little: design_texts designs texts")
    settings, began = checked_settings(settings, count, seed), time.perf_counter()
    pool.check_fits(model)
    if valid is not None and not valid[0] < valid[1]:
        raise InputError(f"valid must be a range (lowest, highest), got {valid}")
    inputs, targets = _starts(task, count, start, valid or (0.0, 1.0), np.random.default_rng(seed))
    if isinstance(target, int):
        targets = torch.full_like(targets, checked_class(target, task))
    elif target not in ("random", "best"):
        raise InputError(f"target must be a class, random or best, got {target!r}")

    def keep_valid(values: list[Tensor]) -> None:
        if valid is not None:
            values[0].clamp_(*valid)

    with one_thread():
        keep_valid([inputs])
        gradients = sample_gradients(model, inputs, targets, way=way)
        loss = settings.loss_for(pool, client, gradients)
        if target == "best":
            targets = best_classes(gradients, loss, inputs, task.classes)
        found = descend(
            [inputs],
            lambda values: (values[0], targets),
            gradients,
            loss,
            settings,
            usual_rate=(_SHORT_RATE if settings.iterations < _SHORT else _RATE)
            * (1.0 if valid is None else valid[1] - valid[0]),
            project=keep_valid,
        )
        before, _ = valued(gradients, loss, inputs, targets)
        after, norms = valued(gradients, loss, found.best[0], targets)
    canaries = [
        Canary(
            inputs=found.best[0][i].numpy(),
            targets=targets[i].numpy(),
            loss=float(after[i]),
            initial_loss=float(before[i]),
            norm=float(norms[i]),
        )
        for i in after.argsort().tolist()
    ]
    return Design(
        canaries=tuple(canaries),
        task=task,
        losses=found.losses,
        not_finite=found.not_finite,
        way=type(gradients).__name__,
        seconds=time.perf_counter() - began,
    )


def valid_range(data: FederatedData) -> tuple[float, float]:
    """The range of what a model is given of ``data``: that of pixels, 0 to 1, or of the numbers that occur."""
    if data.inputs.dtype == np.uint8:
        return 0.0, 1.0
    return float(data.inputs.min()), float(data.inputs.max())


def checked_class(target: int, task: Task) -> int:
    """Return ``target`` if it is a class of the task, refuse it otherwise."""
    if isinstance(target, bool) or not 0 <= target < task.classes:
        raise InputError(f"target must be a class in 0..{task.classes - 1}, random or best, got {target}")
    return target


def best_classes(gradients: SampleGradients, loss: DesignLoss, inputs: Tensor, classes: int) -> Tensor:
    """(k,): for each sample the class with which its loss is lowest."""
    everyone = [valued(gradients, loss, inputs, torch.full((len(inputs),), label))[0] for label in range(classes)]
    return torch.stack(everyone).argmin(0)


def _starts(
    task: Task,
    count: int,
    start: Examples | FederatedData | None,
    valid: tuple[float, float],
    draw: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """Inputs (k, *input_shape) and labels (k,)."""
    if start is None:
        numbers = draw.uniform(*valid, (count, *task.input_shape)).astype(np.float32)
        return torch.from_numpy(numbers), torch.from_numpy(draw.integers(task.classes, size=count))
    examples = start.pooled() if isinstance(start, FederatedData) else start
    if len(examples) < count:
        raise InputError(f"{count} canaries cannot start from {len(examples)} examples")
    rows = draw.choice(len(examples), count, replace=False)
    return tensors(Examples(examples.inputs[rows], examples.targets[rows]), task)
