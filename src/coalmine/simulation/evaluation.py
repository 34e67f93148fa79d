"""Test metrics of a model."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from coalmine.errors import InputError
from coalmine.simulation.client import ignored_index, tensors
from coalmine.simulation.data.federated import Examples, FederatedData, Task
from coalmine.simulation.flat import device_of

_LOGITS = 4_000_000  # logits per batch, a bound on memory


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
    ignored = ignored_index(task)
    loss, correct, counted = 0.0, 0, 0
    was_training, device = module.training, device_of(module)
    module.eval()
    with torch.no_grad():
        for start in range(0, len(examples), batch_size):
            inputs, targets = tensors(examples[start : start + batch_size], task, device=device)
            logits, targets = module(inputs).flatten(0, -2), targets.flatten()
            loss += float(F.cross_entropy(logits, targets, ignore_index=ignored, reduction="sum"))
            counts = targets != ignored
            correct += int(((logits.argmax(1) == targets) & counts).sum())
            counted += int(counts.sum())
    module.train(was_training)
    if not counted:
        raise InputError("cannot evaluate: the examples have no target that counts")
    mean = loss / counted
    if task.per_position:
        return {"recall@1": correct / counted, "perplexity": math.exp(min(mean, 700.0)), "loss": mean}
    return {"accuracy": correct / counted, "loss": mean}
