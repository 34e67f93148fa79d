"""Canaries made of numbers, above all images: optimized in pixel space."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.methods.canife.design.loop import (
    Canary,
    DesignOutcome,
    DesignSettings,
    StartExamples,
    Target,
    best_labels,
    check_settings,
    descend,
    sample_losses,
    start_examples,
    start_labels,
)
from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.per_sample_gradients import sample_gradients
from coalmine.simulation.client import LocalTraining, tensors
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.workers import one_thread

# Learning rates of Adam as a share of the valid range: the best ones we measured, for long and for short designs.
_RATE, _SHORT_RATE, _SHORT = 0.1, 0.3, 100


def design_samples(
    model: nn.Module,
    pool: Pool,
    *,
    task: Task,
    client: LocalTraining,
    count: int = 1,
    settings: DesignSettings | None = None,
    start: StartExamples = None,
    target: Target = "random",
    valid: tuple[float, float] | None = (0.0, 1.0),
    gradients_by: str | None = None,
    seed: int = 0,
) -> DesignOutcome:
    """Design samples of numbers for the current model, all in one batch.

    Args:
        model: The model at its current parameters.
        pool: Updates of mock clients, from the same model.
        task: What the model learns.
        client: What a client does with its examples; the canary's client does the same and is clipped.
        count: Number of canaries.
        settings: How they are optimized.
        start: Examples to start from, which keep their class if ``target`` is ``"random"``; None for random numbers.
        target: The canaries' class.
        valid: Range that the numbers stay in (`valid_range` finds that of a data set); None leaves them free, as in the
            paper.
        gradients_by: ``gradients_by`` of an earlier design for the same module, which saves choosing again.
        seed: Seed of the start.

    Returns:
        The canaries, the best first.

    Raises:
        InputError: If the inputs are tokens, or the model's gradient does not depend on its inputs.

    Example:
        >>> from coalmine.methods.canife.mock_clients import pool_updates
        >>> from coalmine.simulation import SGD, LocalTraining, models
        >>> from coalmine.simulation.data import load
        >>> digits = load("digits", partition="iid:60", pool_fraction=0.3)
        >>> model, client = models.build("mlp", digits.train.task), LocalTraining(optimizer=SGD(learning_rate=0.5))
        >>> pool = pool_updates(model, digits.pool, client, clip_norm=1.0, clients=digits.train)
        >>> design = design_samples(
        ...     model, pool, task=digits.train.task, client=client, settings=DesignSettings(iterations=20)
        ... )
        >>> design.canaries[0].health > 0.5
        True
    """
    if task.tokens is not None:
        raise InputError("the inputs are tokens, not numbers: use design_texts")
    settings, began = check_settings(settings, count, seed), time.perf_counter()
    pool.check_fits(model)
    if valid is not None and not valid[0] < valid[1]:
        raise InputError(f"valid must be a range (lowest, highest), got {valid}")
    inputs, labels = _starting_point(task, count, start, valid or (0.0, 1.0), np.random.default_rng(seed))
    targets = start_labels(target, labels, task)

    def keep_valid(values: list[Tensor]) -> None:
        if valid is not None:
            values[0].clamp_(*valid)

    with one_thread():
        keep_valid([inputs])
        gradients = sample_gradients(model, inputs, targets, implementation=gradients_by)
        loss = settings.loss_for(pool, client, gradients)
        if target == "best":
            targets = best_labels(gradients, loss, inputs, task.classes)
        descent = descend(
            [inputs],
            lambda values: (values[0], targets),
            gradients,
            loss,
            settings,
            default_rate=(_SHORT_RATE if settings.iterations < _SHORT else _RATE)
            * (1.0 if valid is None else valid[1] - valid[0]),
            project=keep_valid,
        )
        before, _ = sample_losses(gradients, loss, inputs, targets)
        after, norms = sample_losses(gradients, loss, descent.best[0], targets)
    canaries = [
        Canary(
            inputs=descent.best[0][i].numpy(),
            targets=targets[i].numpy(),
            loss=float(after[i]),
            initial_loss=float(before[i]),
            norm=float(norms[i]),
        )
        for i in after.argsort().tolist()
    ]
    return descent.outcome(canaries, task, gradients, began)


def valid_range(data: FederatedData) -> tuple[float, float]:
    """Return the range of a model's inputs: 0 to 1 for pixels, otherwise that of the numbers that occur."""
    if data.inputs.dtype == np.uint8:
        return 0.0, 1.0
    return float(data.inputs.min()), float(data.inputs.max())


def _starting_point(
    task: Task, count: int, start: StartExamples, valid: tuple[float, float], draw: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return inputs (k, *input_shape) and labels (k,)."""
    if start is None:
        numbers = draw.uniform(*valid, (count, *task.input_shape)).astype(np.float32)
        return torch.from_numpy(numbers), torch.from_numpy(draw.integers(task.classes, size=count))
    return tensors(start_examples(start, count, draw), task)
