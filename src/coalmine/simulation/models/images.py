"""Models for images and for other numeric inputs."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from coalmine.errors import check_count
from coalmine.simulation.data.federated import Task

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
