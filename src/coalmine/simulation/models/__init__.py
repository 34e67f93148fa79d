"""Models by name: those of the papers, and a user's own.

A model is a plain ``torch.nn.Module`` from inputs to logits. Language models have ``forward_embedded`` as well, which
takes embedded tokens, and some have ``loss``, a faster equivalent of the cross-entropy of their logits.
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
    """How a model is built from a task and its settings, and what it is, in a sentence."""

    build: Callable[..., nn.Module]
    summary: str


MODELS: Mapping[str, Model] = {
    "logistic": Model(images.logistic, "Logistic regression on numbers of any shape."),
    "mlp": Model(images.mlp, "A multi-layer perceptron with ReLU on numbers of any shape."),
    "ldp-cnn": Model(images.ldp_cnn, "The small CNN of the LDP audit, for images of at least 24 x 24 pixels."),
    "leaf-cnn": Model(images.leaf_cnn, "LEAF's CNN for CelebA as CANIFE audits it, for images of any size."),
    "resnet18-gn": Model(resnet.resnet18_gn, "ResNet18 with group norms, for images of at least 8 x 8 pixels."),
    "sent140-lstm": Model(text.sent140_lstm, "LEAF's two-layer LSTM for sentiment: one answer for a text."),
    "shakespeare-lstm": Model(text.shakespeare_lstm, "LEAF's two-layer LSTM for the next character."),
    "word-lstm": Model(word_lstm.word_lstm, "The next-word LSTM of federated keyboards (coupled gates, tied softmax)."),
    "transformer": Model(transformer.transformer, "A small causal Transformer for the next token (tied softmax)."),
}


def build(name: str, task: Task, *, seed: int = 0, **settings: int | float) -> nn.Module:
    """The model ``name`` for ``task``, its weights drawn with ``seed``: the same seed gives the same bits.

    ``name`` is one of ``MODELS``, or ``path.py:function`` for a function of a file that makes a module of a ``Task``
    or of nothing. ``settings`` are the model's own (``settings_of``). torch's global generator is left as it was.
    """
    check_count("seed", seed, least=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if user.is_user_model(name):
            function = load_function(name, "model")
            _check_settings(name, function, settings)
            return user.call(name, function, task, settings)
        builder = _known(name).build
        _check_settings(name, builder, settings)
        return builder(task, **settings)


def settings_of(name: str) -> dict[str, int | float]:
    """The settings of the model ``name`` with their defaults."""
    return _settings(_known(name).build)


def default_model(task: Task) -> str:
    """A model that fits ``task`` and trains fast on it."""
    if task.tokens is not None:
        if task.per_position and task.tokens == task.classes and task.tokens > 256:
            return "word-lstm"
        return "shakespeare-lstm" if task.per_position or task.tokens == task.classes else "sent140-lstm"
    if len(task.input_shape) != 3 or min(task.input_shape[1:]) < 24:
        return "mlp"
    return "ldp-cnn" if max(task.input_shape[1:]) < 64 else "leaf-cnn"


def _known(name: str) -> Model:
    if name not in MODELS:
        raise InputError(
            f"there is no model {name!r}; {_nearest(name, MODELS)}, and path.py:function is a model of your own"
        )
    return MODELS[name]


def _settings(builder: Callable[..., object]) -> dict[str, int | float]:
    parameters = inspect.signature(builder).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _check_settings(name: str, builder: Callable[..., object], settings: Mapping[str, int | float]) -> None:
    known = _settings(builder)
    for setting, value in settings.items():
        if setting not in known:
            hint = _nearest(setting, known) if known else "it has none"
            raise InputError(f"the model {name} has no setting {setting!r}; {hint}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"the setting {setting} must be a number, got {value!r}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
