"""Modules whose trainable parameters are views of one flat vector, and norms of such vectors."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from coalmine.errors import InputError

# Float32 sums of squares lose digits in long vectors (4e-4 of the norm at 10⁷ entries), which would let an update
# exceed the clip norm. Sums over blocks of this length do not.
_BLOCK = 4096


class FlatModel:
    """A copy of ``module`` whose trainable parameters are views of ``vector``: one copy resets them all.

    ``vector`` holds the parameters in the order of ``module.parameters()``. With ``channels_last``, the weights of
    convolutions are stored in torch's memory format of that name; ``internal`` and ``export`` convert vectors between
    that order and the common order, which the rest of coalmine uses.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        channels_last: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        try:
            self.module = stateless(copy.deepcopy(module)).train()
        except RuntimeError as error:  # for instance the old weight_norm, which keeps tensors that are no parameters
            raise InputError(f"the model cannot be copied: {error}") from error
        named = [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]
        self.names = [name for name, _ in named]
        self.shapes = [tuple(value.shape) for _, value in named]
        self.channels_last = channels_last
        self.module.to(dtype=dtype, device=device)
        # The module may have replaced its parameters to move them.
        named = [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]
        size = sum(value.numel() for _, value in named)
        self.vector = torch.empty(size, dtype=dtype, device=device_of(self.module))
        self.parameters: list[Tensor] = [value for _, value in named]
        self._parameter_views = list(self._views(self.vector, self.channels_last))
        self.reattach()
        self._buffers = [
            (owner, name, buffer, buffer.clone())
            for owner in self.module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]

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

    def reattach(self) -> None:
        """Move parameters that the module has reallocated back into the vector, with their values."""
        for value, view in zip(self.parameters, self._parameter_views, strict=True):
            if value.data_ptr() != view.data_ptr():
                view.copy_(value.data)
                value.data = view

    @property
    def dim(self) -> int:
        """The number of trainable parameters."""
        return self.vector.numel()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.vector.device

    def load(self, vector: Tensor) -> None:
        """Set all parameters from a vector in the common order."""
        self.reattach()
        self.internal(vector, out=self.vector)

    def internal(self, vector: Tensor, *, out: Tensor) -> Tensor:
        """Convert a vector from the common order to this model's, into ``out``."""
        return self._convert(vector, out, False, self.channels_last)

    def export(self, vector: Tensor, *, out: Tensor) -> Tensor:
        """Convert a vector from this model's order to the common one, into ``out``."""
        return self._convert(vector, out, self.channels_last, False)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """The gradient of ``loss``, one tensor per parameter; zeros for parameters it does not depend on."""
        return list(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))

    def _convert(self, vector: Tensor, out: Tensor, source_last: bool, out_last: bool) -> Tensor:
        """Copy ``vector`` to ``out``, from one memory format to another."""
        if source_last == out_last:
            return out.copy_(vector)
        for source, target in zip(self._views(vector, source_last), self._views(out, out_last), strict=True):
            target.copy_(source)
        return out

    def views(self, vector: Tensor) -> Iterator[Tensor]:
        """The slices of a vector in the common order that belong to each parameter, in the parameters' shapes."""
        return self._views(vector, False)

    def _views(self, vector: Tensor, channels_last: bool) -> Iterator[Tensor]:
        """The parameters' slices of a vector, in either memory format."""
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
    """Whether torch's memory format ``channels_last`` is faster: for convolutions and pooling on a CPU, about twice.

    Not with GroupNorm, whose backward pass is ten times slower in that format. Modules that call ``view`` on images do
    not support it, and torch 2.13 crashes in it on some dilated convolutions with much padding.
    """
    if device_of(module).type != "cpu":
        return False
    layers = list(module.modules())
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    if not convolutions or any(isinstance(layer, nn.GroupNorm) for layer in layers):
        return False
    if any(max(layer.dilation) > 1 for layer in convolutions):
        return False
    images, rng_state = torch.zeros(2, *input_shape), torch.get_rng_state()
    try:
        with torch.no_grad():
            trial = FlatModel(module, channels_last=True).module
            trial(images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images)
    except RuntimeError:
        return False
    finally:
        torch.set_rng_state(rng_state)
    return True


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
        raise _no_device(device, error) from error


def parse_device(device: torch.device | str) -> torch.device:
    """Return a device by its name. That torch has it here shows only when something is moved there.

    Processes that are forked later cannot use a device that was used before.

    Raises:
        InputError: If torch knows no such device, or it is ``"meta"``.
    """
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _no_device(device, error) from error
    if place.type == "meta":
        raise InputError(
            f"device must be one that computes, such as cpu, got {str(device)!r}: its tensors hold no numbers"
        )
    return place


def _no_device(device: object, error: Exception) -> InputError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return InputError(f"device must be one that torch has here, such as cpu, got {str(device)!r}: {reason}")


def parameter_vector(module: nn.Module) -> Tensor:
    """The trainable parameters as one float32 vector on their device, in the order of ``module.parameters()``.

    Raises:
        InputError: If the module has no trainable parameters, or some that cannot be part of a vector.
    """
    for name, value in module.named_parameters():
        if is_lazy(value):
            raise InputError(
                f"parameter {name!r} has no shape before the first batch (a lazy layer such as LazyLinear): name its "
                "input size, or call the model once on a batch before you pass it"
            )
        if value.layout != torch.strided or value.is_complex() or value.is_quantized or value.is_meta:
            raise InputError(
                f"parameter {name!r} must hold real numbers, stored densely: {value.dtype}, {value.layout} on device "
                f"{value.device} cannot be part of one vector"
            )
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
