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
    if not isinstance(logits, torch.Tensor):
        raise InputError(
            f"the model {name} must return logits of the shape {expected}, got something of type"
            f" {type(logits).__name__}"
        )
    if tuple(logits.shape) != expected:
        raise InputError(
            f"the model {name} gives logits of the shape {tuple(logits.shape)} for inputs of the shape {shape};"
            f" the task needs {expected}"
        )


def require_numbers(model: str, task: Task) -> None:
    """Raise unless inputs are numbers with one label per example."""
    if task.tokens is not None:
        raise InputError(
            f"the model {model} takes numbers, but the inputs are tokens;"
            " use sent140-lstm, shakespeare-lstm, word-lstm or transformer"
        )
    if task.per_position:
        raise InputError(f"the model {model} gives one label per example, but the task has a target at each position")


def require_images(model: str, task: Task, least: int) -> tuple[int, int, int]:
    """Return channels, height and width of the images; raise if they are smaller than ``least`` pixels."""
    require_numbers(model, task)
    if len(task.input_shape) != 3:
        raise InputError(
            f"the model {model} takes images (channels, height, width), but an example has the shape"
            f" {task.input_shape}; use logistic or mlp"
        )
    channels, height, width = task.input_shape
    if min(height, width) < least:
        raise InputError(
            f"the model {model} needs images of at least {least} x {least} pixels, got {height} x {width};"
            " use leaf-cnn, mlp or logistic"
        )
    return channels, height, width


def require_tokens(model: str, task: Task) -> int:
    """Return the size of the vocabulary; raise unless inputs are sequences of tokens."""
    if task.tokens is None or len(task.input_shape) != 1:
        raise InputError(
            f"the model {model} takes tokens, but the inputs are numbers of the shape {task.input_shape};"
            " use logistic or mlp"
        )
    return task.tokens


def require_next_token(model: str, task: Task) -> int:
    """Return the size of the vocabulary; raise unless the task is to predict the next token at each position."""
    tokens = require_tokens(model, task)
    if not task.per_position:
        raise InputError(
            f"the model {model} predicts a token at each position, but the task has one label per example;"
            " use sent140-lstm or shakespeare-lstm"
        )
    if tokens != task.classes:
        raise InputError(
            f"the model {model} shares one table between input and output tokens, but the task has {tokens} tokens and"
            f" {task.classes} classes"
        )
    return tokens
