"""Checks that a model and a task fit together."""

from __future__ import annotations

import copy

import torch
from torch import nn

from coalmine.errors import InputError
from coalmine.simulation.data.federated import Task

_BATCH = 2  # examples in the trial batch


def check_fits(module: nn.Module, task: Task, *, name: str) -> None:
    """Raise unless the module maps a batch of zeros to logits of the task's shape."""
    expected = (_BATCH, *task.target_shape, task.classes)
    shape = (_BATCH, *task.input_shape)
    device = next((value.device for value in module.parameters()), None)
    batch = torch.zeros(shape, dtype=torch.float32 if task.tokens is None else torch.int64, device=device)
    try:
        with torch.no_grad():
            logits = copy.deepcopy(module).float().eval()(batch)
    except Exception as error:
        raise InputError(
            f"the model {name} fails on inputs of the shape {shape}: {type(error).__name__}: {error}"
        ) from error
    got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if got != expected:
        raise InputError(
            f"the model {name} must return logits of the shape {expected} for inputs of the shape {shape}, got {got}"
        )


def require_numbers(model: str, task: Task) -> None:
    """Raise unless inputs are numbers with one label per example."""
    if task.tokens is not None or task.per_position:
        raise InputError(
            f"the model {model} takes numbers with one label per example, but the inputs are tokens or have a target "
            "at each position; use sent140-lstm, shakespeare-lstm or word-lstm for tokens"
        )


def require_images(model: str, task: Task, least: int) -> int:
    """Return the number of channels of the images; raise if they are smaller than ``least`` pixels."""
    require_numbers(model, task)
    if len(task.input_shape) != 3 or min(task.input_shape[1:]) < least:
        raise InputError(
            f"the model {model} takes images (channels, height, width) of at least {least} x {least} pixels, but an "
            f"example has the shape {task.input_shape}; use logistic, mlp or leaf-cnn"
        )
    return task.input_shape[0]


def require_tokens(model: str, task: Task) -> int:
    """Return the size of the vocabulary; raise unless inputs are sequences of tokens."""
    if task.tokens is None or len(task.input_shape) != 1:
        raise InputError(
            f"the model {model} takes tokens, but the inputs are numbers of the shape {task.input_shape}; use logistic "
            "or mlp"
        )
    return task.tokens


def require_next_token(model: str, task: Task) -> int:
    """Return the size of the vocabulary; raise unless the task is to predict the next token at each position."""
    tokens = require_tokens(model, task)
    if not task.per_position or tokens != task.classes:
        raise InputError(
            f"the model {model} predicts one of {tokens} tokens at each position, but the task has {task.classes} "
            f"classes{'' if task.per_position else ' per example'}; use sent140-lstm or shakespeare-lstm"
        )
    return tokens
