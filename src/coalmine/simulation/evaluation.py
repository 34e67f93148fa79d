"""How good a model is."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from coalmine.errors import InputError
from coalmine.simulation.client import ignored_index, tensors
from coalmine.simulation.data.federated import Examples, FederatedData, Task

_LOGITS = 4_000_000  # numbers computed at a time


def evaluate(module: nn.Module, task: Task, examples: Examples | FederatedData) -> dict[str, float]:
    """The mean loss on ``examples`` and ``accuracy``; for a language model ``recall@1`` and ``perplexity``.

    recall@1 is the share of positions whose next token is the likeliest one. Targets that are ignored do not count. Of
    federated data, all examples of its clients are taken.
    """
    if isinstance(examples, FederatedData):
        examples = examples.pooled()
    positions = task.input_shape[0] if task.per_position else 1
    batch = max(1, min(500, _LOGITS // (task.classes * positions)))
    ignored = ignored_index(task)
    loss, correct, counted = 0.0, 0, 0
    was_training = module.training
    module.eval()
    with torch.no_grad():
        for start in range(0, len(examples), batch):
            some = slice(start, start + batch)
            inputs, targets = tensors(Examples(examples.inputs[some], examples.targets[some]), task)
            logits, targets = module(inputs).flatten(0, -2), targets.flatten()
            loss += float(F.cross_entropy(logits, targets, ignore_index=ignored, reduction="sum"))
            counts = targets != ignored
            correct += int(((logits.argmax(1) == targets) & counts).sum())
            counted += int(counts.sum())
    module.train(was_training)
    if not counted:
        raise InputError("there is nothing to evaluate: no example has a target that counts")
    mean = loss / counted
    if task.per_position:
        return {"recall@1": correct / counted, "perplexity": math.exp(min(mean, 700.0)), "loss": mean}
    return {"accuracy": correct / counted, "loss": mean}
