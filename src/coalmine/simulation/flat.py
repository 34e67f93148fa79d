"""A module whose parameters are views of one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from coalmine.errors import InputError

# float32 sums of squares lose digits in long vectors (4e-4 of the norm at 10⁷ numbers), which would let an update
# exceed its clip norm; sums of this many numbers do not.
_BLOCK = 4096


class FlatModel:
    """A copy of ``module`` whose trainable parameters are views of ``vector``: reset by one copy, read without any.

    ``vector`` has the parameters in the order of ``module.parameters()``, each in memory order. Where ``channels_last``
    is set that is torch's memory format of this name for the weights of convolutions; ``load`` and ``export`` translate
    to and from the order that all else uses.
    """

    def __init__(self, module: nn.Module, *, channels_last: bool = False, dtype: torch.dtype = torch.float32) -> None:
        try:
            self.module = stateless(copy.deepcopy(module)).train()
        except RuntimeError as error:  # such as weight_norm of old, which keeps tensors that are no parameters
            raise InputError(f"the model cannot be copied: {error}") from error
        named = [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]
        self.names = [name for name, _ in named]
        self.shapes = [tuple(value.shape) for _, value in named]
        self.channels_last = channels_last
        self.module.to(dtype=dtype)
        self.vector = torch.empty(sum(value.numel() for _, value in named), dtype=dtype)
        self.parameters: list[Tensor] = [value for _, value in named]
        self._own = list(self._views(self.vector, self.channels_last))
        self.reattach()
        self._buffers = [
            (owner, name, buffer, buffer.clone())
            for owner in self.module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]

    def reset_buffers(self) -> None:
        """Set what the module keeps beside its parameters back to what it was: it is part of no update."""
        for owner, name, buffer, start in self._buffers:
            owner._buffers[name] = buffer.copy_(start)

    @property
    def buffers_changed(self) -> bool:
        """Whether a forward pass has changed what the module keeps beside its parameters."""
        return any(
            owner._buffers.get(name) is not buffer or not torch.equal(buffer, start)
            for owner, name, buffer, start in self._buffers
        )

    def reattach(self) -> None:
        """Bring parameters that the module has given memory of their own back into the vector, with their values."""
        for value, view in zip(self.parameters, self._own, strict=True):
            if value.data_ptr() != view.data_ptr():
                view.copy_(value.data)
                value.data = view

    @property
    def dim(self) -> int:
        """The number of trainable parameters."""
        return self.vector.numel()

    def load(self, vector: Tensor) -> None:
        """Set all parameters from a vector in the common order."""
        self.reattach()
        self.internal(vector, out=self.vector)

    def borrow(self, vector: Tensor) -> None:
        """Let the parameters be views of ``vector`` itself, for reading; where the orders differ, set them from it."""
        if self.channels_last or vector.dtype != self.vector.dtype:
            self.load(vector)
            return
        for value, view in zip(self.parameters, self._views(vector, False), strict=True):
            value.data = view

    def internal(self, vector: Tensor, *, out: Tensor) -> Tensor:
        """A vector in the common order, rewritten into ``out`` in this model's."""
        return self._translate(vector, out, False, self.channels_last)

    def export(self, vector: Tensor, *, out: Tensor) -> Tensor:
        """A vector in this model's order, rewritten into ``out`` in the common order."""
        return self._translate(vector, out, self.channels_last, False)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """The gradient of ``loss``, one tensor a parameter; zeros for those it does not depend on."""
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found, strict=True)]

    def _translate(self, vector: Tensor, out: Tensor, source_last: bool, out_last: bool) -> Tensor:
        if source_last == out_last:
            return out.copy_(vector)
        for source, target in zip(self._views(vector, source_last), self._views(out, out_last), strict=True):
            target.copy_(source)
        return out

    def views(self, vector: Tensor) -> Iterator[Tensor]:
        """The pieces of a vector in the common order that belong to the parameters, in their shapes."""
        return self._views(vector, False)

    def _views(self, vector: Tensor, channels_last: bool) -> Iterator[Tensor]:
        start = 0
        for shape in self.shapes:
            size = torch.Size(shape).numel()
            piece = vector[start : start + size]
            if channels_last and len(shape) == 4:
                yield piece.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
            else:
                yield piece.view(shape)
            start += size


def prefers_channels_last(module: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Whether ``channels_last`` is the faster memory format: on a CPU, for convolutions and pooling, up to ten times.

    For the backward pass of GroupNorm it is ten times slower. A module that asks for a ``view`` of its images cannot
    take it, and torch 2.13 crashes in it on some dilated convolutions that see much padding.
    """
    layers = list(module.modules())
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    if not convolutions or any(isinstance(layer, nn.GroupNorm) for layer in layers):
        return False
    if any(max(layer.dilation) > 1 for layer in convolutions):
        return False
    images, outside = torch.zeros(2, *input_shape), torch.get_rng_state()
    try:
        with torch.no_grad():
            trial = FlatModel(module, channels_last=True).module
            trial(images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images)
    except RuntimeError:
        return False
    finally:
        torch.set_rng_state(outside)
    return True


def parameter_vector(module: nn.Module) -> Tensor:
    """The trainable parameters as one float32 vector, in the order of ``module.parameters()``; none is refused."""
    pieces = [value.detach().reshape(-1).float() for value in module.parameters() if value.requires_grad]
    if not pieces:
        raise InputError(
            "the model has no trainable parameters: it has none at all, or requires_grad is False for every one"
        )
    return torch.cat(pieces)


def norms(rows: Tensor) -> Tensor:
    """The ℓ₂ norm of each row of a matrix in float64, to a few parts in a million however long the rows are."""
    whole = rows.shape[1] - rows.shape[1] % _BLOCK
    parts = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, _BLOCK)), dim=2) if whole else rows[:, :0]
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1)
    squares: Tensor = parts.double().square().sum(1) + rest.double().square()
    return squares.sqrt()


def check_module(module: nn.Module, *, private: bool) -> None:
    """Refuse a module that cannot be trained here: parameters that are not real numbers, BatchNorm under privacy."""
    for name, value in module.named_parameters():
        if not value.is_floating_point():
            raise InputError(f"parameter {name!r} must hold floating-point numbers, it holds {value.dtype}")
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"parameter {name!r} is not finite before training: check its initialization")
    parameter_vector(module)
    for name, layer in module.named_modules():
        if private and isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"{type(layer).__name__} at {name!r} mixes a batch's examples and keeps statistics of them outside "
                "the clipped update, where no noise protects them: use torch.nn.GroupNorm instead"
            )


def stateless(module: nn.Module) -> nn.Module:
    """Let normalization layers use each batch's own statistics: running ones would not be part of any update."""
    for layer in module.modules():
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = None
            layer.num_batches_tracked = None
    return module
