"""Convolutions without what only ever sees padding, and the gradients of their weights.

On small images a kernel reaches further than the image: of 3 × 3 weights on an image of one pixel, eight only ever meet
zeros. They do nothing and their gradient is zero; of a ResNet18 on 32 × 32 pixels they are 62% of all parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Reach:
    """The rows and columns of a kernel that meet pixels, and the padding that is left with those alone."""

    rows: slice
    columns: slice
    padding: tuple[int, int]

    def of(self, weight: Tensor) -> Tensor:
        """That part of a convolution's weight."""
        return weight[:, :, self.rows, self.columns]


def plain(layer: nn.Module) -> bool:
    """Whether it is a convolution whose padding is zeros, with a number for each direction in all its settings."""
    if not isinstance(layer, nn.Conv2d) or layer.padding_mode != "zeros":
        return False
    settings: tuple[object, ...] = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return all(isinstance(setting, tuple) and len(setting) == 2 for setting in settings)


def reach(layer: nn.Conv2d, images: Tensor) -> Reach:
    """What of the kernel of a ``plain`` convolution meets pixels of such ``images``."""
    assert not isinstance(layer.padding, str)
    sides = zip(images.shape[-2:], layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True)
    (rows, above), (columns, beside) = (_reach(*side) for side in sides)
    return Reach(rows, columns, (above, beside))


@lru_cache(maxsize=1024)
def _reach(pixels: int, kernel: int, stride: int, padding: int, dilation: int) -> tuple[slice, int]:
    """In one direction."""
    places = _places(pixels, kernel, stride, padding, dilation)
    first_seen = [tap * dilation - padding for tap in range(kernel)]
    meets = [any(0 <= seen + place * stride < pixels for place in range(places)) for seen in first_seen]
    if any(meets):
        start, stop = meets.index(True), kernel - meets[::-1].index(True)
        left = padding - start * dilation
        if left >= 0 and _places(pixels, stop - start, stride, left, dilation) == places:
            return slice(start, stop), left
    return slice(0, kernel), padding


def _places(pixels: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (pixels + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def copy_taps(source: Tensor, target: Tensor) -> Tensor:
    """Copy a kernel to ``target`` tap by tap: in one go, torch is slow where rows have but two or three numbers."""
    for row, column in np.ndindex(*source.shape[2:]):
        target[:, :, row, column] = source[:, :, row, column]
    return target


class ReachingConv2d(nn.Conv2d):
    """``Conv2d`` with the part of its kernel that meets pixels."""

    def forward(self, images: Tensor) -> Tensor:
        """As ``Conv2d``."""
        seen = reach(self, images)
        weight = self.weight
        if (part := seen.of(weight)).shape != weight.shape:
            fresh = torch.empty_like(part, memory_format=torch.contiguous_format)
            weight = part.contiguous() if part.requires_grad else copy_taps(part, fresh)
        return F.conv2d(images, weight, self.bias, self.stride, seen.padding, self.dilation, self.groups)


def use_reach(module: nn.Module) -> None:
    """Let every plain ``Conv2d`` in ``module`` leave out what only ever sees padding."""
    for layer in module.modules():
        if type(layer) is nn.Conv2d and plain(layer):
            layer.__class__ = ReachingConv2d


def patches(layer: nn.Conv2d, seen: Reach, images: Tensor) -> Tensor:
    """(examples, positions, inputs of one output): what each output of a convolution sees."""
    height, width = (side.stop - side.start for side in (seen.rows, seen.columns))
    if (height, width, *seen.padding) == (1, 1, 0, 0):
        return images[:, :, :: layer.stride[0], :: layer.stride[1]].flatten(2).transpose(1, 2)
    return F.unfold(images, (height, width), layer.dilation, seen.padding, layer.stride).transpose(1, 2)


def weight_gradient(layer: nn.Conv2d, seen: Reach, weight: Tensor, images: Tensor, deltas: Tensor) -> Tensor:
    """The gradient of ``weight``, the part of the layer's that meets pixels."""
    found: Tensor
    _, found, _ = torch.ops.aten.convolution_backward(
        deltas,
        images,
        weight,
        None,
        layer.stride,
        seen.padding,
        layer.dilation,
        False,
        [0, 0],
        1,
        [False, True, False],
    )
    return found
