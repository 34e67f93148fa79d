"""The losses of a few examples at many points on many lines through one parameter vector.

Black-box trials of LDP-SGD all move the model along random directions, by step sizes that differ with ε and the sign of
the report. For a network of convolutions and linear layers, θ + t·v makes each layer W + t·V: what the direction V does
to the (fixed) input, and the product of V with the activations of all steps, are computed once a direction and not once
a step. Other modules are evaluated one point at a time (`ManyModels`), with the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.arrays import Floats
from coalmine.methods.ldp.many_models import ManyModels
from coalmine.simulation.data.federated import Task
from coalmine.simulation.flat import parameter_vector

_BLOCK = 1 << 19  # activations that are worked on together, so that they stay near the processor


class LineLosses:
    """The loss of one example at points θ + t·v, θ being the parameters of ``module``."""

    def __init__(self, module: nn.Module, task: Task, inputs: Tensor, target: Tensor) -> None:
        self._base = parameter_vector(module)
        self._target = target
        self._layers = None if task.per_position else _layers(module, inputs)
        self._any = ManyModels(module, task, inputs, target)

    @property
    def structured(self) -> bool:
        """Whether the module is one whose layers are known here."""
        return self._layers is not None

    def losses(self, directions: Tensor, steps: Floats) -> Floats:
        """(k, c) losses, for ``directions`` (k, d) and ``steps`` t (k, c)."""
        t = torch.from_numpy(np.ascontiguousarray(steps, dtype=np.float32))
        if self._layers is None:
            columns = [self._any.losses(self._base + column[:, None] * directions)[:, 0] for column in t.T]
            return np.stack(columns, axis=1)
        widest = max(layer.size for layer in self._layers)
        rows = max(1, _BLOCK // (widest * t.shape[1]))
        with torch.no_grad():
            parts = [self._some(directions[i : i + rows], t[i : i + rows]) for i in range(0, len(t), rows)]
        found: Floats = torch.cat(parts).double().numpy()
        return found

    def at_start(self) -> float:
        """The loss at t = 0."""
        return float(self.losses(torch.zeros_like(self._base)[None], np.zeros((1, 1)))[0, 0])

    def _some(self, directions: Tensor, t: Tensor) -> Tensor:
        assert self._layers is not None
        columns: Tensor | None = None
        for layer in self._layers:
            columns = layer.apply(columns, directions, t)
        assert columns is not None
        logits = columns.transpose(1, 2).flatten(0, 1)  # (k, classes, c) to (k·c, classes)
        losses = F.cross_entropy(logits, self._target.expand(len(logits)), reduction="none")
        return losses.view(t.shape)


@dataclass(frozen=True)
class _Affine:
    """A linear layer or convolution with what follows it: max pooling, ReLU.

    Its input is the fixed example's columns (F, P) in the first layer, else activations that are made into columns: a
    layer is a product of weights (C, F) with columns (F, P), P the places of a convolution. Places are ordered by their
    position within a pooling window, so that pooling is a maximum over a leading axis.
    """

    weight: Tensor  # (C, F)
    bias: Tensor | None  # (C,)
    start: int  # of the weight among the parameters; the bias follows it
    window: int  # places that are pooled into one
    relu: bool
    size: int  # activations before pooling
    shape: tuple[int, ...]  # of the result: (C,) or (C, height, width)
    columns: Tensor | None = None  # (F, P) of the example, in the first layer
    convolution: nn.Conv2d | None = None
    pool: int = 1

    def apply(self, before: Tensor | None, directions: Tensor, t: Tensor) -> Tensor:
        """Activations: (k, C, c) or (k, C, height, width, c) from such."""
        k, c = t.shape
        channels, features = self.weight.shape
        stop = self.start + self.weight.numel()
        moved = directions[:, self.start : stop].view(k, channels, features)
        if self.columns is not None:
            fixed, slope = self.weight @ self.columns, moved @ self.columns
            if self.bias is not None:
                fixed = fixed + self.bias[:, None]
                slope = slope + directions[:, stop : stop + channels, None]
            out = fixed[:, :, None] + slope[..., None] * t[:, None, None]  # (k, C, P, c)
        else:
            assert before is not None
            columns = self._columns(before)  # (k, F, P·c)
            out = (self.weight @ columns).view(k, channels, -1, c)
            out += (moved @ columns).view(k, channels, -1, c) * t[:, None, None]
            if self.bias is not None:
                slope = directions[:, stop : stop + channels, None] * t[:, None]
                out += (self.bias[:, None] + slope)[:, :, None]
        if self.window > 1:
            out = out.view(k, channels, self.window, -1, c).amax(2)
        if self.relu:
            out = out.relu_()
        return out.view(k, *self.shape, c)

    def _columns(self, before: Tensor) -> Tensor:
        k, c = before.shape[0], before.shape[-1]
        if self.convolution is None:
            return before.reshape(k, -1, c)
        patches = _patches(before.movedim(-1, 1), self.convolution, self.pool)  # (k, c, F, P)
        return patches.permute(0, 2, 3, 1).reshape(k, patches.shape[2], -1)


def _patches(images: Tensor, convolution: nn.Conv2d, pool: int) -> Tensor:
    """What each place of a convolution sees of images (…, C, height, width): (…, F, P), ordered for pooling."""
    (kh, kw), (sh, sw) = convolution.kernel_size, convolution.stride
    ph, pw = (int(side) for side in convolution.padding)
    padded = F.pad(images, (pw, pw, ph, ph))
    seen = padded.unfold(-2, kh, sh).unfold(-2, kw, sw)  # (…, C, oh, ow, kh, kw)
    oh, ow = seen.shape[-4] // pool, seen.shape[-3] // pool
    seen = seen[..., : oh * pool, : ow * pool, :, :]
    seen = seen.unflatten(-4, (oh, pool)).unflatten(-3, (ow, pool))  # (…, C, oh, pool, ow, pool, kh, kw)
    n = seen.ndim
    order = [*range(n - 6), n - 2, n - 1, n - 5, n - 3, n - 6, n - 4]
    found: Tensor = seen.permute(order).flatten(-4).flatten(-4, -2)
    return found


def _layers(module: nn.Module, inputs: Tensor) -> list[_Affine] | None:
    """The module as affine layers, or None where it has parts that are not known here."""
    if not isinstance(module, nn.Sequential) or not inputs.is_floating_point():
        return None
    parts = [part for part in module if not isinstance(part, nn.Identity)]
    shape: tuple[int, ...] = tuple(inputs.shape[1:])
    found: list[_Affine] = []
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
        layer = _affine(part, shape, start, relu, pool, None if found else inputs)
        if layer is None:
            return None
        found.append(layer)
        shape = layer.shape
        start += sum(p.numel() for p in part.parameters())
    return found if found and len(found[-1].shape) == 1 else None


def _pooling(part: nn.Module) -> int:
    """The side of a pooling window that is not padded, dilated nor overlapping; 0 for anything else."""
    if not isinstance(part, nn.MaxPool2d) or part.padding not in (0, (0, 0)) or part.dilation not in (1, (1, 1)):
        return 0
    side = part.kernel_size
    plain = isinstance(side, int) and part.stride in (side, (side, side)) and not part.ceil_mode
    return int(side) if plain and not part.return_indices else 0  # type: ignore[arg-type]


def _affine(
    part: nn.Linear | nn.Conv2d, shape: tuple[int, ...], start: int, relu: bool, pool: int, inputs: Tensor | None
) -> _Affine | None:
    weight = part.weight.detach().flatten(1).float()
    bias = None if part.bias is None else part.bias.detach().float()
    if isinstance(part, nn.Linear):
        if pool > 1 or len(shape) != 1:
            return None
        columns = None if inputs is None else inputs.flatten().float()[:, None]
        return _Affine(weight, bias, start, 1, relu, len(weight), (len(weight),), columns)
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
    return _Affine(
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
