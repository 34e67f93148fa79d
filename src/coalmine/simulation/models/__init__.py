"""Models by name: those of the papers, and models from a user's Python file.

A model is a plain ``torch.nn.Module`` that maps inputs to logits. Models of images and other numbers are here, language
models in `text`. See docs/simulation.md.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from coalmine.errors import InputError, check_count, did_you_mean
from coalmine.simulation.data.federated import Task
from coalmine.simulation.flat import device_of
from coalmine.simulation.models.text import sent140_lstm, shakespeare_lstm, word_lstm
from coalmine.usercode import describe_error, errors_of, load_function

__all__ = ["MODELS", "build", "default_model"]

_LEAF_FILTERS = 32
_LEAF_CONVOLUTIONS = 4
_GROUPS = 32  # of the norms of ResNet18, as CANIFE sets them


def logistic(task: Task) -> nn.Module:
    """Build a logistic regression on the flattened example."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(task.input_shape), task.classes))


def mlp(task: Task, *, hidden: int = 128, layers: int = 1) -> nn.Module:
    """Build a perceptron with ``layers`` hidden layers of ``hidden`` units and ReLU."""
    check_count("hidden", hidden)
    sizes = [math.prod(task.input_shape), *[hidden] * check_count("layers", layers)]
    steps: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(sizes):
        steps += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*steps, nn.Linear(hidden, task.classes))


def ldp_cnn(task: Task) -> nn.Module:
    """Build the CNN of the LDP audit (its Table 2): 10,650 parameters for 28 × 28 × 1 and ten classes.

    The table does not say how convolutions are padded. As in the tutorial that its layers come from, the first one is
    padded and the second is not. Images smaller than 24 × 24 then leave nothing for the last pooling.
    """
    features = nn.Sequential(
        nn.Conv2d(task.input_shape[0], 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    # Other image sizes than 28 × 28 change the width of the first linear layer; a trial run says how.
    width = features(torch.zeros(1, *task.input_shape)).shape[1]
    return nn.Sequential(*features, nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, task.classes))


class LeafCNN(nn.Module):
    """Four blocks of 3 × 3 convolution (32 filters), normalization, 2 × 2 max pooling and ReLU; then a linear head.

    LEAF's CNN for CelebA (Caldas et al. 2018) as CANIFE audits it: padding of two pixels, and a GroupNorm with one
    group per filter instead of LEAF's batch norm. CANIFE's count of 29,282 parameters (32 × 32 × 3, two classes)
    implies that the four blocks share one norm.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        sizes = [task.input_shape[0], *[_LEAF_FILTERS] * _LEAF_CONVOLUTIONS]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=2) for before, after in itertools.pairwise(sizes)
        )
        # One norm for all blocks: four would have 29,474 parameters, not the 29,282 of CANIFE.
        self.norm = nn.GroupNorm(_LEAF_FILTERS, _LEAF_FILTERS)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(self._features(torch.zeros(1, *task.input_shape)).shape[1], task.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, classes) for ``images`` (n, channels, height, width)."""
        logits: Tensor = self.head(self._features(images))
        return logits

    def _features(self, images: Tensor) -> Tensor:
        """Return what the four blocks make of images, flattened."""
        for convolution in self.convolutions:
            images = torch.relu(self.pool(self.norm(convolution(images))))
        return images.flatten(1)


class Block(nn.Module):
    """A residual block of two 3 × 3 convolutions (He et al. 2016); the first may downsample and widen."""

    def __init__(self, *, before: int, after: int, stride: int) -> None:
        super().__init__()
        # No biases: the norms that follow have shifts of their own.
        self.convolution1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, after)
        self.convolution2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, after)
        # Where the shape changes, a 1 × 1 convolution takes the place of the identity (option B of He et al.).
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.GroupNorm(_GROUPS, after)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, before, height, width) to (n, after, height / stride, width / stride)."""
        inner = torch.relu(self.norm1(self.convolution1(images)))
        return torch.relu(self.norm2(self.convolution2(inner)) + self.shortcut(images))


def resnet18_gn(task: Task) -> nn.Module:
    """Build ResNet18 (He et al. 2016) with 32-group norms: 11,177,538 parameters for color images and two classes.

    The stem is ImageNet's (7 × 7, stride 2, max pooling), because that layout has the parameter count CANIFE reports.
    """
    blocks: list[nn.Module] = []
    # Four stages of two blocks; every stage but the first halves the image.
    for before, after in itertools.pairwise([64, 64, 128, 256, 512]):
        blocks.append(Block(before=before, after=after, stride=1 if before == after else 2))
        blocks.append(Block(before=after, after=after, stride=1))
    return nn.Sequential(
        nn.Conv2d(task.input_shape[0], 64, 7, stride=2, padding=3, bias=False),
        nn.GroupNorm(_GROUPS, 64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, task.classes),
    )


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "ldp-cnn": ldp_cnn,
    "leaf-cnn": LeafCNN,
    "resnet18-gn": resnet18_gn,
    "sent140-lstm": sent140_lstm,
    "shakespeare-lstm": shakespeare_lstm,
    "word-lstm": word_lstm,
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
        settings: Settings of this model, such as ``hidden=64``. Whole numbers become integers, since those of a TOML
            file are read as floats.

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
            numbers = {key: int(value) if value == int(value) else value for key, value in settings.items()}
            module = builder(task, **numbers) if takes_task else builder(**numbers)
        if not isinstance(module, nn.Module):
            raise InputError(f"the model {name} must return a torch.nn.Module, got {type(module).__name__}")
        check_fits(module, task, name=name)
        return module


def check_fits(module: nn.Module, task: Task, *, name: str) -> None:
    """Raise unless the module maps a batch of zeros to logits of the task's shape."""
    shape, expected = (2, *task.input_shape), (2, *task.target_shape, task.classes)  # a batch of two examples
    dtype = torch.float32 if task.tokens is None else torch.int64
    batch = torch.zeros(shape, dtype=dtype, device=device_of(module))
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
    if task.tokens is None:
        sides = task.input_shape[1:]
        if len(sides) != 2 or min(sides) < 24:
            return "mlp"
        return "ldp-cnn" if max(sides) < 64 else "leaf-cnn"
    if task.classes != task.tokens:  # a label, and not the next token
        return "sent140-lstm"
    return "word-lstm" if task.per_position and task.tokens > 256 else "shakespeare-lstm"
