"""What a model needs of a task, refused in a sentence otherwise."""

from __future__ import annotations

import copy

import torch
from torch import nn

from coalmine.errors import InputError
from coalmine.simulation.data.federated import Task

_BATCH = 2  # examples of a trial batch


def check_fits(module: nn.Module, task: Task, *, name: str) -> None:
    """Refuse a module that does not give logits of the task's shape: it is tried on a batch of zeros."""
    wanted = (_BATCH, *task.target_shape, task.classes)
    shape = (_BATCH, *task.input_shape)
    batch = torch.zeros(shape, dtype=torch.float32 if task.tokens is None else torch.int64)
    try:
        with torch.no_grad():
            logits = copy.deepcopy(module).float().eval()(batch)
    except Exception as error:
        raise InputError(
            f"the model {name} fails on inputs of the shape {shape}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(logits, torch.Tensor):
        raise InputError(
            f"the model {name} must give logits of the shape {wanted}, got something of type {type(logits).__name__}"
        )
    if tuple(logits.shape) != wanted:
        raise InputError(
            f"the model {name} gives logits of the shape {tuple(logits.shape)} for inputs of the shape {shape};"
            f" the task needs {wanted}"
        )


def need_numbers(model: str, task: Task) -> None:
    """Refuse tokens, and targets for each position."""
    if task.tokens is not None:
        raise InputError(
            f"the model {model} takes numbers, but the inputs are tokens;"
            " sent140-lstm, shakespeare-lstm, word-lstm and transformer take tokens"
        )
    if task.per_position:
        raise InputError(f"the model {model} gives one answer an example, but the task has a target for each position")


def need_images(model: str, task: Task, least: int) -> tuple[int, int, int]:
    """Channels, height and width of the images, refused unless at least ``least`` pixels high and wide."""
    need_numbers(model, task)
    if len(task.input_shape) != 3:
        raise InputError(
            f"the model {model} takes images (channels, height, width), but an example has the shape"
            f" {task.input_shape}; logistic and mlp take any shape"
        )
    channels, height, width = task.input_shape
    if min(height, width) < least:
        raise InputError(
            f"the model {model} needs images of at least {least} x {least} pixels, got {height} x {width};"
            " leaf-cnn, mlp and logistic take any size"
        )
    return channels, height, width


def need_tokens(model: str, task: Task) -> int:
    """The number of different tokens, refused where inputs are not sequences of tokens."""
    if task.tokens is None or len(task.input_shape) != 1:
        raise InputError(
            f"the model {model} takes tokens, but the inputs are numbers of the shape {task.input_shape};"
            " logistic and mlp take them"
        )
    return task.tokens


def need_tied(model: str, task: Task) -> int:
    """The size of the vocabulary, refused where the task is not to predict the next token at each position."""
    tokens = need_tokens(model, task)
    if not task.per_position:
        raise InputError(
            f"the model {model} predicts a token at each position, but the task has one target an example;"
            " sent140-lstm and shakespeare-lstm give one"
        )
    if tokens != task.classes:
        raise InputError(
            f"the model {model} has one table for the tokens it reads and those it predicts, but the task has"
            f" {tokens} tokens and {task.classes} classes"
        )
    return tokens
