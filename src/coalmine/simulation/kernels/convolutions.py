"""Convolutions that skip the weights which only ever multiply padding.

On small images a kernel reaches beyond the image: of the 3 × 3 weights applied to a single pixel, eight only ever see
zeros, so they have no effect and no gradient. In a ResNet18 on 32 × 32 pixels, 62% of all parameters are of this kind.
Skipping them makes local training on that network 1.4 times as fast (``benchmarks/speedups.py``).
"""

from __future__ import annotations

from functools import lru_cache

import torch.nn.functional as F
from torch import Tensor, nn


def is_plain(layer: nn.Module) -> bool:
    """Whether ``layer`` is a ``Conv2d`` with zero padding and a pair of numbers for each of its settings."""
    if not isinstance(layer, nn.Conv2d) or layer.padding_mode != "zeros":
        return False
    settings: tuple[object, ...] = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return all(isinstance(setting, tuple) and len(setting) == 2 for setting in settings)


@lru_cache(maxsize=1024)
def reach(pixels: int, kernel: int, stride: int, padding: int, dilation: int) -> tuple[slice, int]:
    """The taps of a kernel that touch pixels, in one direction, and the padding that remains if only those are used."""
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
    """A plain ``Conv2d`` that uses only the part of its kernel that touches pixels."""

    def forward(self, images: Tensor) -> Tensor:
        """The same output as ``Conv2d``."""
        assert not isinstance(self.padding, str)
        sides = zip(images.shape[-2:], self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        (rows, above), (columns, beside) = (reach(*side) for side in sides)
        part = self.weight[:, :, rows, columns]
        weight = self.weight if part.shape == self.weight.shape else part.contiguous()
        return F.conv2d(images, weight, self.bias, self.stride, (above, beside), self.dilation, self.groups)


def use_reach(module: nn.Module) -> None:
    """Turn every plain ``Conv2d`` in ``module`` into a `ReachingConv2d`."""
    for layer in module.modules():
        if type(layer) is nn.Conv2d and is_plain(layer):
            layer.__class__ = ReachingConv2d
