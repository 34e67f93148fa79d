"""Models for images and for other numeric inputs."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from coalmine.errors import InputError, check_count
from coalmine.simulation.data.federated import Task
from coalmine.simulation.models.tasks import require_images, require_numbers

_LEAF_FILTERS = 32
_LEAF_CONVOLUTIONS = 4


def logistic(task: Task) -> nn.Module:
    """Build a logistic regression on the flattened example."""
    require_numbers("logistic", task)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(task.input_shape), task.classes))


def mlp(task: Task, *, hidden: int = 128, layers: int = 1) -> nn.Module:
    """Build a perceptron with ``layers`` hidden layers of ``hidden`` units and ReLU."""
    require_numbers("mlp", task)
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
    channels, _, _ = require_images("ldp-cnn", task, least=24)
    features = nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    width = features(torch.zeros(1, *task.input_shape)).shape[1]
    return nn.Sequential(*features, nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, task.classes))


class LeafCNN(nn.Module):
    """Four blocks of 3 × 3 convolution (32 filters), normalization, 2 × 2 max pooling and ReLU; then a linear head.

    LEAF's CNN for CelebA (Caldas et al. 2018) as CANIFE audits it: padding of two pixels, and a GroupNorm with one
    group per filter instead of LEAF's batch norm. CANIFE's count of 29,282 parameters (32 × 32 × 3, two classes)
    implies that the four blocks share one norm, which is the default. With ``norms=4`` each has its own: 29,474.
    """

    def __init__(self, *, input_shape: tuple[int, ...], classes: int, norms: int) -> None:
        super().__init__()
        sizes = [input_shape[0], *[_LEAF_FILTERS] * _LEAF_CONVOLUTIONS]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=2) for before, after in itertools.pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(_LEAF_FILTERS, _LEAF_FILTERS) for _ in range(norms))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(self._features(torch.zeros(1, *input_shape)).shape[1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, classes) for ``images`` (n, channels, height, width)."""
        logits: Tensor = self.head(self._features(images))
        return logits

    def _features(self, images: Tensor) -> Tensor:
        """Return what the four blocks make of images, flattened."""
        for index, convolution in enumerate(self.convolutions):
            norm = self.norms[index % len(self.norms)]
            images = torch.relu(self.pool(norm(convolution(images))))
        return images.flatten(1)


def leaf_cnn(task: Task, *, norms: int = 1) -> nn.Module:
    """Build LEAF's CNN for CelebA as CANIFE audits it."""
    require_images("leaf-cnn", task, least=1)
    if norms not in (1, _LEAF_CONVOLUTIONS):
        raise InputError(
            f"norms must be 1 (shared by all convolutions) or {_LEAF_CONVOLUTIONS} (one each), got {norms}"
        )
    return LeafCNN(input_shape=task.input_shape, classes=task.classes, norms=norms)
