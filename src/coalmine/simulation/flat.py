"""Modules whose trainable parameters are read and written as one flat vector, and norms of such vectors."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from coalmine.errors import InputError

# Float32 sums of squares lose digits in long vectors (4e-4 of the norm at 10⁷ entries), which would let an update
# exceed the clip norm. Sums over blocks of this length do not.
_BLOCK = 4096


class FlatModel:
    """A copy of ``module`` whose trainable parameters are read and written as one flat vector.

    The vector holds the parameters in the order of ``module.parameters()``, which the rest of coalmine uses.
    """

    def __init__(self, module: nn.Module, *, dtype: torch.dtype = torch.float32) -> None:
        self.module = copy.deepcopy(module).train().to(dtype=dtype)
        for layer in self.module.modules():
            # Batch statistics only: running statistics would not be part of any update.
            if isinstance(layer, _NormBase):
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None
        trained = trainable(self.module)
        self.names, self.parameters = list(trained), list(trained.values())
        self.shapes = [tuple(value.shape) for value in self.parameters]
        self._sizes = [value.numel() for value in self.parameters]
        self.dim, self.dtype, self.device = sum(self._sizes), dtype, device_of(self.module)
        buffers = self.module.named_buffers(remove_duplicate=False)
        self._buffers = [(name.rpartition("."), value, value.clone()) for name, value in buffers]

    @torch.no_grad()
    def load(self, vector: Tensor) -> None:
        """Set all parameters from a vector, and the buffers, which are not part of any update, to their start."""
        torch._foreach_copy_(self.parameters, self.views(vector))
        for (owner, _, name), value, start in self._buffers:
            self.module.get_submodule(owner)._buffers[name] = value.copy_(start)

    def views(self, rows: Tensor) -> list[Tensor]:
        """The part of each parameter in vectors (…, d), shaped (…, *shape)."""
        pieces = rows.split(self._sizes, dim=-1)
        return [piece.view(*rows.shape[:-1], *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]


@torch.no_grad()
def flatten(tensors: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """Tensors as one vector (d,), always a copy."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors], out=out)


def trainable(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained, by name, in the order of the flat vector."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def device_of(module: nn.Module) -> torch.device:
    """Where a module's trainable parameters are."""
    return next((value.device for value in module.parameters() if value.requires_grad), torch.device("cpu"))


def moved(module: nn.Module, device: torch.device | str | None) -> nn.Module:
    """A copy of a module on a device, or the module itself if ``device`` is None.

    Raises:
        InputError: If there is no such device, or if it holds no numbers.
    """
    where = device_of(module) if device is None else device
    try:
        # torch has the device "meta" everywhere, but its tensors hold no numbers that could be read back.
        torch.zeros(1, device=where).item()
        return module if device is None else copy.deepcopy(module).to(device)
    except (AssertionError, RuntimeError, NotImplementedError, ImportError) as error:
        raise InputError(f"device must be one that torch has here, got {str(where)!r}: {error!s:.200}") from error


def parameter_vector(module: nn.Module) -> Tensor:
    """The trainable parameters as one float32 vector on their device, in the order of ``module.parameters()``.

    Raises:
        InputError: If the module has no trainable parameters.
    """
    # Frozen parameters are not part of any update, so they are not part of the vector.
    pieces = list(trainable(module).values())
    if not pieces:
        raise InputError("the model has no trainable parameters: set requires_grad to True for at least one")
    return flatten(pieces).float()


def set_parameters(module: nn.Module, vector: Tensor) -> None:
    """Set the trainable parameters from one vector; buffers and frozen parameters stay as they are."""
    nn.utils.vector_to_parameters(vector.to(device_of(module)), list(trainable(module).values()))


def norms(rows: Tensor) -> Tensor:
    """The ℓ₂ norm of each row of a matrix, accurate to a few parts in a million for any length; float64 on the CPU."""
    whole = rows.shape[1] - rows.shape[1] % _BLOCK
    parts = torch.linalg.vector_norm(rows[:, :whole].reshape(len(rows), whole // _BLOCK, _BLOCK), dim=2)
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1)
    # Few numbers are left, and not every device has float64.
    squares: Tensor = parts.cpu().double().square().sum(1) + rest.cpu().double().square()
    return squares.sqrt()


def check_module(module: nn.Module, *, private: bool) -> None:
    """Raise `InputError` for a module that cannot be trained: bad parameters, or BatchNorm in a private training."""
    if not bool(torch.isfinite(parameter_vector(module)).all()):
        raise InputError("the model's parameters are not finite before training: check their initialization")
    for name, layer in module.named_modules():
        # Clipping bounds what one client changes only if its update depends on nobody else's examples.
        if private and isinstance(layer, _BatchNorm):
            raise InputError(
                f"{type(layer).__name__} at {name!r} mixes the examples of a batch and keeps statistics outside the "
                "clipped update, where no noise protects them: use torch.nn.GroupNorm instead"
            )
