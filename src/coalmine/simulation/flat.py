"""Modules whose trainable parameters are read and written as one flat vector, and norms of such vectors."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from coalmine.errors import InputError

# Float32 sums of squares lose digits in long vectors (4e-4 of the norm at 10⁷ entries), which would let an update
# exceed the clip norm. Sums over blocks of this length do not.
_BLOCK = 4096


class FlatModel:
    """A copy of ``module`` whose trainable parameters are read and written as one flat vector.

    The vector holds the parameters in the order of ``module.parameters()``, which the rest of coalmine uses.
    """

    def __init__(self, module: nn.Module, *, dtype: torch.dtype = torch.float32) -> None:
        try:
            self.module = stateless(copy.deepcopy(module)).train().to(dtype=dtype)
        except RuntimeError as error:  # for instance the old weight_norm, which keeps tensors that are no parameters
            raise InputError(f"the model cannot be copied: {error}") from error
        named = [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters: list[Tensor] = [value for _, value in named]
        self.shapes = [tuple(value.shape) for value in self.parameters]
        self._sizes = [value.numel() for value in self.parameters]
        self.dim, self.dtype, self.device = sum(self._sizes), dtype, device_of(self.module)
        self._buffers = [
            (owner, name, buffer, buffer.clone())
            for owner in self.module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]

    @torch.no_grad()
    def load(self, vector: Tensor) -> None:
        """Set all parameters from a vector."""
        torch._foreach_copy_(self.parameters, self.views(vector))

    @property
    def vector(self) -> Tensor:
        """A copy of all parameters, (d,)."""
        return self.flatten(self.parameters)

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

    @property
    def buffers_changed(self) -> bool:
        """Whether a forward pass has changed a buffer."""
        return any(
            owner._buffers.get(name) is not buffer or not torch.equal(buffer, start)
            for owner, name, buffer, start in self._buffers
        )


def device_of(module: nn.Module) -> torch.device:
    """Where a module's trainable parameters are.

    Raises:
        InputError: If they are on several devices.
    """
    devices = {value.device for value in module.parameters() if value.requires_grad}
    if len(devices) > 1:
        raise InputError(
            f"the model is spread over {', '.join(sorted(map(str, devices)))}, but it is trained on one device: pass "
            "device="
        )
    return next(iter(devices), torch.device("cpu"))


def moved(module: nn.Module, device: torch.device | str | None) -> nn.Module:
    """A copy of a module on a device, or the module itself if ``device`` is None.

    Raises:
        InputError: If there is no such device.
    """
    if device is None:
        return module
    place = parse_device(device)
    try:
        return copy.deepcopy(module).to(place)
    except (AssertionError, RuntimeError, NotImplementedError, ImportError) as error:
        raise InputError(f"device must be one that torch has here, got {str(device)!r}: {error!s:.200}") from error


def parse_device(device: torch.device | str) -> torch.device:
    """Return a device by its name. Whether torch has it here shows only when something is moved there.

    Processes that are forked later cannot use a device that was used before.

    Raises:
        InputError: If torch knows no such device, or it is ``"meta"``, whose tensors hold no numbers.
    """
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device must be one that torch knows, such as cpu, got {str(device)!r}") from error
    if place.type == "meta":
        raise InputError(f"device must be one that computes, such as cpu, got {str(device)!r}")
    return place


def parameter_vector(module: nn.Module) -> Tensor:
    """The trainable parameters as one float32 vector on their device, in the order of ``module.parameters()``.

    Raises:
        InputError: If the module has no trainable parameters, or some that cannot be part of a vector.
    """
    for name, value in module.named_parameters():
        if is_lazy(value) or value.is_complex() or value.is_quantized or value.is_meta or value.is_sparse:
            raise InputError(
                f"parameter {name!r} must hold real numbers, stored densely: it is {value.dtype} on {value.device}, or "
                "has no shape yet (give a lazy layer its input size)"
            )
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
    if any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules()):
        raise InputError("the model is compiled by torch.jit, which hides its layers: pass the plain module")
    parameter_vector(module)
    for name, value in module.named_parameters():
        if not value.is_floating_point():
            raise InputError(f"parameter {name!r} has dtype {value.dtype}; all parameters must be floating-point")
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"parameter {name!r} is not finite before training: check its initialization")
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
