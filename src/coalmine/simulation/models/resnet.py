"""ResNet18 with group norms."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from coalmine.simulation.data.federated import Task
from coalmine.simulation.models.tasks import require_images

_GROUPS = 32


class Block(nn.Module):
    """A residual block of two 3 × 3 convolutions (He et al. 2016); the first may downsample and widen."""

    def __init__(self, *, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.convolution1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, after)
        self.convolution2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, after)
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
    channels, _, _ = require_images("resnet18-gn", task, least=8)
    widths = [64, 64, 128, 256, 512]
    blocks: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        blocks.append(Block(before=before, after=after, stride=1 if before == after else 2))
        blocks.append(Block(before=after, after=after, stride=1))
    return nn.Sequential(
        nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
        nn.GroupNorm(_GROUPS, 64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, task.classes),
    )
