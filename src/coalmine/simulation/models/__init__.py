"""Models by name: those of the papers, and models from a user's Python file.

A model is a plain ``torch.nn.Module`` that maps inputs to logits. Language models also have ``forward_embedded``, which
takes embedded tokens instead of token ids. Some have ``loss``: a fused, faster equivalent of the cross-entropy of their
logits. See docs/models.md.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from coalmine.errors import InputError, check_count
from coalmine.simulation.data.federated import Task
from coalmine.simulation.models import images, resnet, text, transformer, user, word_lstm
from coalmine.usercode import load_function

__all__ = ["MODELS", "Model", "build", "default_model", "settings_of"]


@dataclass(frozen=True)
class Model:
    """An entry of `MODELS`.

    Args:
        build: Function from a ``Task`` and keyword-only settings to the module.
        summary: One sentence about the model.
    """

    build: Callable[..., nn.Module]
    summary: str


MODELS: Mapping[str, Model] = {
    "logistic": Model(images.logistic, "Logistic regression on numbers of any shape."),
    "mlp": Model(images.mlp, "A multi-layer perceptron with ReLU on numbers of any shape."),
    "ldp-cnn": Model(images.ldp_cnn, "The small CNN of the LDP audit, for images of at least 24 x 24 pixels."),
    "leaf-cnn": Model(images.leaf_cnn, "LEAF's CNN for CelebA as CANIFE audits it, for images of any size."),
    "resnet18-gn": Model(resnet.resnet18_gn, "ResNet18 with group norms, for images of at least 8 x 8 pixels."),
    "sent140-lstm": Model(text.sent140_lstm, "LEAF's two-layer LSTM for sentiment: one label per text."),
    "shakespeare-lstm": Model(text.shakespeare_lstm, "LEAF's two-layer LSTM for the next character."),
    "word-lstm": Model(word_lstm.word_lstm, "The next-word LSTM of federated keyboards (coupled gates, tied softmax)."),
    "transformer": Model(transformer.transformer, "A small causal Transformer for the next token (tied softmax)."),
}


def build(name: str, task: Task, *, seed: int = 0, **settings: int | float) -> nn.Module:
    """Build a model for a task.

    The same seed gives bit-identical weights. torch's global random generator is left untouched.

    Args:
        name: A key of `MODELS`, or ``"path.py:function"`` for a function in a Python file that returns a module. The
            function may take the ``Task``. The file is executed, so name only files you trust.
        task: What the model takes and predicts, such as ``splits.train.task``.
        seed: Seed for the initial weights.
        settings: Settings of this model, such as ``hidden=64``. `settings_of` lists them.

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
    check_count("seed", seed, least=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if user.is_user_model(name):
            function = load_function(name, "model")
            _check_settings(name, function, settings)
            return user.build(name, function, task, settings)
        builder = _model(name).build
        _check_settings(name, builder, settings)
        return builder(task, **settings)


def settings_of(name: str) -> dict[str, int | float]:
    """Return the settings of a model with their defaults.

    Args:
        name: A key of `MODELS`.

    Raises:
        InputError: If there is no such model.

    Example:
        >>> settings_of("mlp")
        {'hidden': 128, 'layers': 1}
    """
    return _settings(_model(name).build)


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


def _model(name: str) -> Model:
    """Look up a model, with a suggestion if there is none of this name."""
    if name not in MODELS:
        raise InputError(
            f"there is no model {name!r}; {_suggestion(name, MODELS)} A model in your own file is path.py:function."
        )
    return MODELS[name]


def _settings(builder: Callable[..., object]) -> dict[str, int | float]:
    """Return the keyword-only arguments of a builder with their defaults."""
    parameters = inspect.signature(builder).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _check_settings(name: str, builder: Callable[..., object], settings: Mapping[str, int | float]) -> None:
    """Raise on settings that the builder does not take, and on values that are not numbers."""
    accepted = _settings(builder)
    for setting, value in settings.items():
        if setting not in accepted:
            hint = _suggestion(setting, accepted) if accepted else "it has none."
            raise InputError(f"the model {name} has no setting {setting!r}; {hint}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"the setting {setting} of {name} must be a number, got {value!r}")


def _suggestion(name: str, accepted: Iterable[str]) -> str:
    """Return the closest accepted name as a question, or all of them."""
    close = difflib.get_close_matches(name, accepted, n=1)
    return f"did you mean {close[0]!r}?" if close else f"available: {', '.join(accepted)}."
