"""Losses of one example at many points θ + t·v of many lines through the parameters θ, layer by layer.

This module serves speed only; `losses.ExampleLosses` is its interface and has the plain way too. Black-box trials of
LDP-SGD all move the model along random directions v, by steps t that differ with ε and the sign of the report. In a
network of convolutions and linear layers each weight becomes W + t·V. The products of V with the fixed input and with
the activations are computed once per direction instead of once per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BLOCK = 1 << 19  # activations that are processed together: small enough to stay in the cache


def losses_along_lines(layers: Sequence[AffineLayer], target: Tensor, directions: Tensor, t: Tensor) -> Tensor:
    """Return the losses ``(k, c)`` of one example for directions ``(k, d)`` and steps ``(k, c)``."""
    rows = max(1, _BLOCK // (max(layer.size for layer in layers) * t.shape[1]))
    with torch.no_grad():
        blocks = [_block(layers, target, directions[i : i + rows], t[i : i + rows]) for i in range(0, len(t), rows)]
    return torch.cat(blocks)


def _block(layers: Sequence[AffineLayer], target: Tensor, directions: Tensor, t: Tensor) -> Tensor:
    """Return the losses of a few directions."""
    activations: Tensor | None = None
    for layer in layers:
        activations = layer.apply(activations, directions, t)
    assert activations is not None
    logits = activations.transpose(1, 2).flatten(0, 1)  # (k, classes, c) to (k·c, classes)
    return F.cross_entropy(logits, target.expand(len(logits)), reduction="none").view(t.shape)


@dataclass(frozen=True)
class AffineLayer:
    """A linear layer or convolution, with the max pooling and ReLU that follow it.

    A layer is a product of weights ``(C, F)`` with columns ``(F, P)``, where P counts the positions of a convolution.
    Positions are ordered by their place within a pooling window, so that pooling is a maximum over a leading axis.

    Args:
        weight: Weights ``(C, F)``.
        bias: Bias ``(C,)`` or None.
        start: Index of the weight in the parameter vector; the bias follows the weight.
        window: Positions that are pooled into one.
        relu: Whether a ReLU follows.
        size: Activations before pooling.
        shape: Shape of the result: ``(C,)`` or ``(C, height, width)``.
        columns: The example's columns ``(F, P)``, in the first layer only.
        convolution: The convolution, or None for a linear layer.
        pool: Side of the pooling window.
    """

    weight: Tensor
    bias: Tensor | None
    start: int
    window: int
    relu: bool
    size: int
    shape: tuple[int, ...]
    columns: Tensor | None = None
    convolution: nn.Conv2d | None = None
    pool: int = 1

    def apply(self, before: Tensor | None, directions: Tensor, t: Tensor) -> Tensor:
        """Return activations ``(k, C, c)`` or ``(k, C, height, width, c)`` from those of the layer before."""
        k, c = t.shape
        channels, features = self.weight.shape
        stop = self.start + self.weight.numel()
        slope_weight = directions[:, self.start : stop].view(k, channels, features)
        if self.columns is not None:
            # (W + tV)x = Wx + t·Vx: two products per direction, however many steps t there are.
            fixed, slope = self.weight @ self.columns, slope_weight @ self.columns
            if self.bias is not None:
                fixed = fixed + self.bias[:, None]
                slope = slope + directions[:, stop : stop + channels, None]
            out = fixed[:, :, None] + slope[..., None] * t[:, None, None]  # (k, C, P, c)
        else:
            # Later inputs depend on t, but W and V multiply the columns of all steps in one product each.
            assert before is not None
            columns = self._columns(before)  # (k, F, P·c)
            out = (self.weight @ columns).view(k, channels, -1, c)
            out += (slope_weight @ columns).view(k, channels, -1, c) * t[:, None, None]
            if self.bias is not None:
                slope = directions[:, stop : stop + channels, None] * t[:, None]
                out += (self.bias[:, None] + slope)[:, :, None]
        if self.window > 1:
            out = out.view(k, channels, self.window, -1, c).amax(2)
        if self.relu:
            out = out.relu_()
        return out.view(k, *self.shape, c)

    def _columns(self, before: Tensor) -> Tensor:
        """Return activations as columns ``(k, F, P·c)``."""
        k, c = before.shape[0], before.shape[-1]
        if self.convolution is None:
            return before.reshape(k, -1, c)
        patches = _patches(before.movedim(-1, 1), self.convolution, self.pool)  # (k, c, F, P)
        return patches.permute(0, 2, 3, 1).reshape(k, patches.shape[2], -1)


def _patches(images: Tensor, convolution: nn.Conv2d, pool: int) -> Tensor:
    """Return the patches ``(..., F, P)`` of images ``(..., C, height, width)``, ordered for pooling."""
    (kh, kw), (sh, sw) = convolution.kernel_size, convolution.stride
    ph, pw = (int(side) for side in convolution.padding)
    padded = F.pad(images, (pw, pw, ph, ph))
    patches = padded.unfold(-2, kh, sh).unfold(-2, kw, sw)  # (…, C, oh, ow, kh, kw)
    oh, ow = patches.shape[-4] // pool, patches.shape[-3] // pool
    patches = patches[..., : oh * pool, : ow * pool, :, :]
    patches = patches.unflatten(-4, (oh, pool)).unflatten(-3, (ow, pool))  # (…, C, oh, pool, ow, pool, kh, kw)
    n = patches.ndim
    order = [*range(n - 6), n - 2, n - 1, n - 5, n - 3, n - 6, n - 4]
    ordered: Tensor = patches.permute(order).flatten(-4).flatten(-4, -2)
    return ordered


def affine_layers(module: nn.Module, inputs: Tensor) -> list[AffineLayer] | None:
    """Return the module as affine layers for this input, or None if it has other parts."""
    if not isinstance(module, nn.Sequential) or not inputs.is_floating_point():
        return None
    parts = [part for part in module if not isinstance(part, nn.Identity)]
    shape: tuple[int, ...] = tuple(inputs.shape[1:])
    layers: list[AffineLayer] = []
    start, i = 0, 0
    while i < len(parts):
        part = parts[i]
        if isinstance(part, nn.Flatten) and part.start_dim == 1 and part.end_dim == -1:
            shape, i = (int(np.prod(shape)),), i + 1
            continue
        if not isinstance(part, nn.Linear | nn.Conv2d) or not all(p.requires_grad for p in part.parameters()):
            return None
        relu, pool, i = False, 1, i + 1
        while i < len(parts) and (isinstance(parts[i], nn.ReLU) or (pool == 1 and _pooling(parts[i]) > 1)):
            relu = relu or isinstance(parts[i], nn.ReLU)
            pool = max(pool, _pooling(parts[i]))
            i += 1
        layer = _affine(part, shape, start, relu, pool, None if layers else inputs)
        if layer is None:
            return None
        layers.append(layer)
        shape = layer.shape
        start += sum(p.numel() for p in part.parameters())
    return layers if layers and len(layers[-1].shape) == 1 else None


def _pooling(part: nn.Module) -> int:
    """Return the side of a max-pooling window without padding, dilation or overlap, and 0 for anything else."""
    if not isinstance(part, nn.MaxPool2d) or part.padding not in (0, (0, 0)) or part.dilation not in (1, (1, 1)):
        return 0
    side = part.kernel_size
    plain = isinstance(side, int) and part.stride in (side, (side, side)) and not part.ceil_mode
    return int(side) if plain and not part.return_indices else 0  # type: ignore[arg-type]


def _affine(
    part: nn.Linear | nn.Conv2d, shape: tuple[int, ...], start: int, relu: bool, pool: int, inputs: Tensor | None
) -> AffineLayer | None:
    """Return one layer, or None if it is of a kind that is not handled here."""
    weight = part.weight.detach().flatten(1).float()
    bias = None if part.bias is None else part.bias.detach().float()
    if isinstance(part, nn.Linear):
        if pool > 1 or len(shape) != 1:
            return None
        columns = None if inputs is None else inputs.flatten().float()[:, None]
        return AffineLayer(weight, bias, start, 1, relu, len(weight), (len(weight),), columns)
    if (
        isinstance(part.padding, str)
        or part.padding_mode != "zeros"
        or part.groups != 1
        or part.dilation != (1, 1)
        or len(shape) != 3
    ):
        return None
    empty = torch.zeros((1, *shape)) if inputs is None else inputs[:1].float()
    columns = _patches(empty[0], part, pool)
    sides = [
        ((shape[1 + axis] + 2 * int(part.padding[axis]) - part.kernel_size[axis]) // part.stride[axis] + 1) // pool
        for axis in range(2)
    ]
    return AffineLayer(
        weight,
        bias,
        start,
        pool**2,
        relu,
        len(weight) * columns.shape[-1],
        (len(weight), *sides),
        None if inputs is None else columns,
        part,
        pool,
    )
