"""Models by name: those of the papers, and models from a user's Python file.

A model is a plain ``torch.nn.Module`` that maps inputs to logits. Language models also have ``forward_embedded``, which
takes embedded tokens instead of token ids. See docs/simulation.md.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping

import torch
from torch import nn

from coalmine.errors import InputError, did_you_mean
from coalmine.simulation.data.federated import Task
from coalmine.simulation.models import images, text, word_lstm
from coalmine.usercode import describe_error, errors_of, load_function

__all__ = ["MODELS", "build", "check_fits", "default_model", "is_user_model"]

MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "logistic": images.logistic,
    "mlp": images.mlp,
    "ldp-cnn": images.ldp_cnn,
    "leaf-cnn": images.LeafCNN,
    "resnet18-gn": images.resnet18_gn,
    "sent140-lstm": text.sent140_lstm,
    "shakespeare-lstm": text.shakespeare_lstm,
    "word-lstm": word_lstm.word_lstm,
}
"""Builders by name: functions from a ``Task`` and keyword-only settings to the module."""


def build(name: str, task: Task, *, seed: int = 0, **settings: int | float) -> nn.Module:
    """Build a model for a task.

    The same seed gives bit-identical weights. torch's global random generator is left untouched.

    Args:
        name: A key of `MODELS`, or ``"path.py:function"`` for a function in a Python file that returns a module. The
            function may take the ``Task``. The file is executed, so name only files you trust.
        task: What the model takes and predicts, such as ``splits.train.task``.
        seed: Seed for the initial weights.
        settings: Settings of this model, such as ``hidden=64``.

    Returns:
        A module from inputs (n, *input_shape) to logits (n, classes), or (n, positions, classes) if the task has a
        target per position.

    Raises:
        InputError: If there is no such model or setting, or if the model does not fit the task.

    Example:
        >>> from coalmine.simulation.data import load
        >>> task = load("digits").train.task
        >>> model = build("mlp", task, seed=1, hidden=32)
        >>> sum(weight.numel() for weight in model.parameters())
        2410
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        builder: Callable[..., object]
        if name in MODELS:
            builder = MODELS[name]
        elif is_user_model(name):
            builder = load_function(name, "model")
        else:
            hint = did_you_mean(name, MODELS)
            raise InputError(f"there is no model {name!r}. {hint} A model in your own file is path.py:function.")
        parameters = inspect.signature(builder).parameters.values()
        accepted = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        for setting in settings.keys() - set(accepted):
            raise InputError(f"the model {name} has no setting {setting!r}; it has: {', '.join(accepted) or 'none'}")
        # A function of the user may ignore the task, where the file builds a model for one data set.
        takes_task = any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        with errors_of(f"the model {name} failed"):
            module = builder(task, **settings) if takes_task else builder(**settings)
        if not isinstance(module, nn.Module):
            raise InputError(f"the model {name} must return a torch.nn.Module, got {type(module).__name__}")
        check_fits(module, task, name=name)
        return module


def check_fits(module: nn.Module, task: Task, *, name: str) -> None:
    """Raise unless the module maps a batch of zeros to logits of the task's shape."""
    shape, expected = (2, *task.input_shape), (2, *task.target_shape, task.classes)  # a batch of two examples
    device = next((value.device for value in module.parameters()), None)
    batch = torch.zeros(shape, dtype=torch.float32 if task.tokens is None else torch.int64, device=device)
    # A copy in evaluation mode: batch statistics and random layers of the user's own module stay as they are.
    try:
        with torch.no_grad():
            logits = copy.deepcopy(module).float().eval()(batch)
    except Exception as error:
        raise InputError(f"the model {name} fails on inputs of the shape {shape}: {describe_error(error)}") from error
    got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if got != expected:
        raise InputError(
            f"the model {name} must return logits of the shape {expected} for inputs of the shape {shape}, got {got}"
        )


def is_user_model(name: str) -> bool:
    """Return whether ``name`` refers to a Python file rather than to one of our models."""
    return ":" in name or name.endswith(".py")


def default_model(task: Task) -> str:
    """Return the name of a model that fits a task and trains fast on it.

    Args:
        task: What the model takes and predicts.

    Example:
        >>> default_model(Task(input_shape=(1, 28, 28), classes=10))
        'ldp-cnn'
        >>> default_model(Task(input_shape=(20,), classes=10_000, tokens=10_000, per_position=True))
        'word-lstm'
    """
    if task.tokens is not None:
        if task.per_position and task.tokens == task.classes and task.tokens > 256:
            return "word-lstm"
        return "shakespeare-lstm" if task.per_position or task.tokens == task.classes else "sent140-lstm"
    if len(task.input_shape) != 3 or min(task.input_shape[1:]) < 24:
        return "mlp"
    return "ldp-cnn" if max(task.input_shape[1:]) < 64 else "leaf-cnn"
