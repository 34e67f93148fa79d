"""Convolutions that skip the weights which only ever multiply padding.

On small images a kernel reaches beyond the image: of the 3 × 3 weights applied to a single pixel, eight only ever see
zeros, so they have no effect and no gradient. In a ResNet18 on 32 × 32 pixels, 62% of all parameters are of this kind.
Skipping them makes local training on that network 1.1 to 1.5 times as fast (``benchmarks/speedups.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Reach:
    """The rows and columns of a kernel that touch pixels, and the padding that remains if only those are used."""

    rows: slice
    columns: slice
    padding: tuple[int, int]

    def of(self, weight: Tensor) -> Tensor:
        """The part of a convolution's weight that touches pixels, as a view."""
        return weight[:, :, self.rows, self.columns]


def is_plain(layer: nn.Module) -> bool:
    """Whether ``layer`` is a ``Conv2d`` with zero padding and a pair of numbers for each of its settings."""
    if not isinstance(layer, nn.Conv2d) or layer.padding_mode != "zeros":
        return False
    settings: tuple[object, ...] = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return all(isinstance(setting, tuple) and len(setting) == 2 for setting in settings)


def reach(layer: nn.Conv2d, images: Tensor) -> Reach:
    """The part of a plain convolution's kernel that touches pixels of ``images`` (n, channels, height, width)."""
    assert not isinstance(layer.padding, str)
    sides = zip(images.shape[-2:], layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True)
    (rows, above), (columns, beside) = (_reach(*side) for side in sides)
    return Reach(rows, columns, (above, beside))


@lru_cache(maxsize=1024)
def _reach(pixels: int, kernel: int, stride: int, padding: int, dilation: int) -> tuple[slice, int]:
    """`reach` in one direction: the taps that touch pixels, and the remaining padding."""
    outputs = _output_length(pixels, kernel, stride, padding, dilation)
    first_pixels = [tap * dilation - padding for tap in range(kernel)]
    touches = [any(0 <= first + i * stride < pixels for i in range(outputs)) for first in first_pixels]
    if any(touches):
        start, stop = touches.index(True), kernel - touches[::-1].index(True)
        remaining = padding - start * dilation
        # The smaller kernel must produce the same outputs; with some strides it would produce one more.
        if remaining >= 0 and _output_length(pixels, stop - start, stride, remaining, dilation) == outputs:
            return slice(start, stop), remaining
    return slice(0, kernel), padding


def _output_length(pixels: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """The number of outputs of a convolution in one direction."""
    return (pixels + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


class ReachingConv2d(nn.Conv2d):
    """A ``Conv2d`` that uses only the part of its kernel that touches pixels."""

    def forward(self, images: Tensor) -> Tensor:
        """The same output as ``Conv2d``."""
        seen = reach(self, images)
        weight = seen.of(self.weight).contiguous() if seen.of(self.weight).shape != self.weight.shape else self.weight
        return F.conv2d(images, weight, self.bias, self.stride, seen.padding, self.dilation, self.groups)


def use_reach(module: nn.Module) -> None:
    """Turn every plain ``Conv2d`` in ``module`` into a `ReachingConv2d`."""
    for layer in module.modules():
        if type(layer) is nn.Conv2d and is_plain(layer):
            layer.__class__ = ReachingConv2d


def patches(layer: nn.Conv2d, seen: Reach, images: Tensor) -> Tensor:
    """The inputs of each output of a convolution, shape (examples, positions, inputs per output)."""
    height, width = (side.stop - side.start for side in (seen.rows, seen.columns))
    if (height, width, *seen.padding) == (1, 1, 0, 0):
        return images[:, :, :: layer.stride[0], :: layer.stride[1]].flatten(2).transpose(1, 2)
    return F.unfold(images, (height, width), layer.dilation, seen.padding, layer.stride).transpose(1, 2)


def weight_gradient(layer: nn.Conv2d, seen: Reach, weight: Tensor, images: Tensor, deltas: Tensor) -> Tensor:
    """The gradient of ``weight``, the part of the layer's weight that touches pixels."""
    gradient: Tensor
    _, gradient, _ = torch.ops.aten.convolution_backward(
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
    return gradient
