"""Modules whose trainable parameters are read and written as one flat vector, and norms of such vectors."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from coalmine.errors import InputError

# Float32 sums of squares lose digits in long vectors (4e-4 of the norm at 10⁷ entries), which would let an update
# exceed the clip norm. Sums over blocks of this length do not.
_BLOCK = 4096


class FlatModel:
    """A copy of ``module`` whose trainable parameters are read and written as one flat vector.

    The vector holds the parameters in the order of ``module.parameters()``, which the rest of coalmine uses.
    """

    def __init__(self, module: nn.Module, *, dtype: torch.dtype = torch.float32) -> None:
        self.module = stateless(copy.deepcopy(module)).train().to(dtype=dtype)
        trained = {name: value for name, value in self.module.named_parameters() if value.requires_grad}
        self.names, self.parameters = list(trained), list[Tensor](trained.values())
        self.shapes = [tuple(value.shape) for value in self.parameters]
        self._sizes = [value.numel() for value in self.parameters]
        self.dim, self.dtype, self.device = sum(self._sizes), dtype, device_of(self.module)
        self._buffers: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        for owner in self.module.modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None:
                    self._buffers.append((owner, name, buffer, buffer.clone()))

    @torch.no_grad()
    def load(self, vector: Tensor) -> None:
        """Set all parameters from a vector."""
        torch._foreach_copy_(self.parameters, self.views(vector))

    @torch.no_grad()
    def flatten(self, tensors: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
        """Tensors shaped like the parameters as one vector (d,)."""
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors], out=out)

    def views(self, rows: Tensor) -> list[Tensor]:
        """The part of each parameter in vectors (…, d), shaped (…, *shape)."""
        pieces = rows.split(self._sizes, dim=-1)
        return [piece.view(*rows.shape[:-1], *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """The gradient of ``loss``, one tensor per parameter; zeros for parameters it does not depend on."""
        return list(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))

    def reset_buffers(self) -> None:
        """Restore the module's buffers, which are not part of any update."""
        for owner, name, buffer, start in self._buffers:
            owner._buffers[name] = buffer.copy_(start)


def device_of(module: nn.Module) -> torch.device:
    """Where a module's trainable parameters are."""
    return next((value.device for value in module.parameters() if value.requires_grad), torch.device("cpu"))


def moved(module: nn.Module, device: torch.device | str | None) -> nn.Module:
    """A copy of a module on a device, or the module itself if ``device`` is None.

    Raises:
        InputError: If there is no such device, or if it holds no numbers.
    """
    there = device_of(module) if device is None else device
    try:
        # torch has the device "meta" everywhere, but its tensors hold no numbers that could be read back.
        torch.zeros(1, device=there).item()
        return module if device is None else copy.deepcopy(module).to(device)
    except (AssertionError, RuntimeError, NotImplementedError, ImportError) as error:
        raise InputError(f"device must be one that torch has here, got {str(there)!r}: {error!s:.200}") from error


def parameter_vector(module: nn.Module) -> Tensor:
    """The trainable parameters as one float32 vector on their device, in the order of ``module.parameters()``.

    Raises:
        InputError: If the module has no trainable parameters.
    """
    # Frozen parameters are not part of any update, so they are not part of the vector.
    pieces = [value.detach().reshape(-1).float() for value in module.parameters() if value.requires_grad]
    if not pieces:
        raise InputError("the model has no trainable parameters: set requires_grad to True for at least one")
    return torch.cat(pieces)


def norms(rows: Tensor) -> Tensor:
    """The ℓ₂ norm of each row of a matrix, accurate to a few parts in a million for any length; float64 on the CPU."""
    whole = rows.shape[1] - rows.shape[1] % _BLOCK
    parts = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, _BLOCK)), dim=2) if whole else rows[:, :0]
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
        if private and isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"{type(layer).__name__} at {name!r} mixes the examples of a batch and keeps statistics outside the "
                "clipped update, where no noise protects them: use torch.nn.GroupNorm instead"
            )


def stateless(module: nn.Module) -> nn.Module:
    """Make normalization layers use batch statistics only: running statistics would not be part of any update."""
    for layer in module.modules():
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = None
            layer.num_batches_tracked = None
    return module
