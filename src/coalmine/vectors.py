"""Vectors of any kind: NumPy arrays, torch tensors of any device and float type, and models as lists of tensors.

Users bring vectors as they have them. Inside coalmine a vector is flat and float32, where the user's is: a NumPy array
on the CPU (tensors share their memory with one), a torch tensor on any other device. Code that runs on both uses what
both have in common (slices, ``device``, ``@``, in-place arithmetic), and `on` to move between them, so there is one
implementation of everything. torch is not imported here: a tensor can only come from a program that has imported it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from coalmine.arrays import Array, Vector
from coalmine.errors import InputError

AnyVector = Any
"""A vector as users have it: a NumPy array or torch tensor of any float type, or a list or state dict of them."""

Device = Any
"""A torch device, or ``"cpu"`` for NumPy on the CPU, which is what NumPy calls it as well."""

CPU: Device = "cpu"

# Numbers processed at a time on the CPU: they stay in its cache, and temporary arrays small. An accelerator would spend
# its time starting such small pieces of work.
_CPU_PIECE, _DEVICE_PIECE = 1 << 17, 1 << 24
# Products are summed in float32 over this many numbers, and in float64 from there on.
_BLOCK = 4096
# A typical number of a vector must be at least this many times the smallest positive number of its float type. With 4,
# rounding changes the length of the vector by 0.3%.
_LEAST_STEPS = 4


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor."""
    # Without torch in memory nothing can be a tensor, so the question never costs its import.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_float(value: Any) -> bool:
    """Return whether an array or tensor holds floating-point numbers."""
    kind = getattr(value, "dtype", None)
    return kind is not None and bool(getattr(kind, "is_floating_point", getattr(kind, "kind", "") == "f"))


def flat(values: AnyVector, names: Sequence[str] = ()) -> Vector:
    """Return a vector as one flat float32 vector on its own device, without a copy if it is one already.

    A list, state dict or module becomes one vector on the device of its first tensor; entries of a state dict that are
    not floating-point, such as BatchNorm's counters, are left out. A single array keeps its shape.

    Args:
        values: One or several arrays or tensors.
        names: The tensors in the order of the vector. A state dict that has them all is read in this order, without
            its other tensors; any other is read in its own order.

    Raises:
        InputError: If a vector or tensor is None, complex, or spread over several processes.

    Example:
        >>> flat([np.zeros((2, 2)), np.ones(3)])
        array([0., 0., 0., 0., 1., 1., 1.], dtype=float32)
        >>> flat({"bias": np.ones(1), "weight": np.zeros(2)}, names=["weight", "bias"])
        array([0., 0., 1.], dtype=float32)
    """
    tensors = named(values)
    if names and tensors is not None and all(name in tensors for name in names):
        tensors = {name: tensors[name] for name in names}
    elif isinstance(values, Mapping):
        tensors = {name: value for name, value in values.items() if is_float(value)}
    # A list of numbers is one vector.
    if tensors is None or any(isinstance(value, float | int) for value in tensors.values()):
        return _float32(values)
    pieces = [_float32(tensor).reshape(-1) for tensor in tensors.values()]
    device = pieces[0].device if pieces else CPU
    # With an empty piece, no tensors are an empty vector.
    whole: Vector = library(device).concatenate([empty(0, device), *(on(device, piece) for piece in pieces)])
    return whole


def _float32(tensor: Any) -> Vector:
    """Return one array or tensor in float32 where it is, without a copy if it is so already."""
    if tensor is None:
        # NumPy would read None as NaN; it is what `.grad` holds for a parameter that a loss does not use.
        raise InputError("a vector or tensor is missing, got None: give zeros for a parameter without a gradient")
    if "complex" in str(getattr(tensor, "dtype", "")):  # a cast would drop the imaginary parts
        raise InputError("a vector must hold real numbers, got complex ones: give both parts one by one")
    if hasattr(tensor, "full_tensor"):  # a DTensor, of which this process holds a part only
        kind = type(tensor).__name__
        raise InputError(f"a {kind} is spread over several processes: give value.full_tensor(), in all processes")
    if is_tensor(tensor):
        dense = tensor.detach().to_dense().float()
        vector: Vector = on(str(dense.device), dense)
        return vector
    try:
        return np.asarray(tensor, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"a vector must be an array, a tensor, or a list of them, got {tensor!r:.60}") from None


def named(values: Any) -> Mapping[str, Any] | None:
    """Return what a list, state dict or module holds by name; None if ``values`` is none of these."""
    if isinstance(values, list | tuple | Iterator):
        return {f"tensor {i}": value for i, value in enumerate(values)}
    if hasattr(values, "named_parameters"):
        return {name: value for name, value in values.named_parameters() if value.requires_grad}
    return values if isinstance(values, Mapping) else None


def on(device: Device, vector: Any) -> Any:
    """Return a vector on a device, as NumPy on the CPU: itself if it is there already."""
    if device == CPU:
        return vector.cpu().numpy() if is_tensor(vector) else vector
    return sys.modules["torch"].as_tensor(vector, device=device)


def library(device: Device) -> Any:
    """Return what computes on a device: NumPy on the CPU, and torch elsewhere."""
    return np if device == CPU else sys.modules["torch"]


def empty(dim: int, device: Device) -> Vector:
    """Return an uninitialized float32 vector."""
    vector: Vector = library(device).empty(dim, dtype=library(device).float32, device=device)
    return vector


def pieces(length: int, device: Device, multiple: int = 1) -> Iterator[slice]:
    """Yield slices that cover ``length`` numbers in order, each of a size that suits the device."""
    size = max(1, (_CPU_PIECE if device == CPU else _DEVICE_PIECE) // multiple) * multiple
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def dot(one: Vector, other: Vector) -> float:
    """Return the dot product of two vectors on one device."""
    if is_tensor(one):
        return float((one * other).sum())  # torch sums in the shape of a tree, which loses few digits
    whole = len(one) - len(one) % _BLOCK
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = np.vecdot(one[:whole].reshape(-1, _BLOCK), other[:whole].reshape(-1, _BLOCK))
        total = float(blocks.sum(dtype=np.float64)) + float(one[whole:] @ other[whole:])
    # float64 takes three times as long, but holds the products of the smallest and largest float32 numbers.
    if whole and 1e-30 < abs(total) < 1e30:
        return total
    return float(np.einsum("i,i->", one, other, dtype=np.float64))


def check_flat(vector: Vector, name: str, dim: int) -> Vector:
    """Return the vector if it has ``dim`` finite numbers.

    Raises:
        InputError: If it does not.
    """
    if tuple(vector.shape) != (dim,):
        raise InputError(
            f"{name} must have shape ({dim},), got {tuple(vector.shape)}: the audit was created with dim={dim}, which "
            "is the number of trainable parameters, or the module itself"
        )
    # One pass over the memory is mostly enough; the square of a large number is infinite although the number is not.
    # The largest and the smallest number need no array of booleans, and are NaN if any number is.
    with np.errstate(over="ignore", invalid="ignore"):
        finite = math.isfinite(float(vector @ vector))
    if not finite and not math.isfinite(float(vector.max()) - float(vector.min())):
        raise InputError(f"{name} must be finite, got NaN or infinity")
    return vector


@dataclass(frozen=True)
class VectorKind:
    """What vectors to give to a user: NumPy arrays, or tensors of a device and float type.

    Args:
        device: Device of the tensors. On the CPU, NumPy does the work for both.
        dtype: Float type of the tensors, or None for NumPy arrays.
        least: Typical size of a vector's numbers below which rounding leaves few of their digits.

    Example:
        >>> VectorKind().give(np.ones(2, dtype=np.float32)) + 1
        array([2., 2.], dtype=float32)
    """

    device: Device = CPU
    dtype: Any = None
    least: float = 0.0

    @classmethod
    def of(cls, values: Any) -> Self:
        """Return the kind of a module, state dict, list of tensors or tensor: device and float type of its first.

        Tensors of several float types have the type that can hold them all.

        Raises:
            InputError: If that is not a float type, which canaries need because their numbers are fractions.
        """
        tensors = list(filter(is_tensor, (named(values) or {"": values}).values()))
        if not tensors:
            return cls()
        torch, dtype = sys.modules["torch"], tensors[0].dtype
        for tensor in tensors:
            dtype = torch.promote_types(dtype, tensor.dtype)
        if not dtype.is_floating_point:
            raise InputError(f"vectors must have a float type such as torch.float32, got {dtype}")
        limits = torch.finfo(dtype)
        least = _LEAST_STEPS * limits.smallest_normal * limits.eps
        return cls(CPU if tensors[0].device.type == CPU else tensors[0].device, dtype, least)

    def give(self, vector: Vector) -> AnyVector:
        """Return an internal vector as one of this kind, without a copy if device and type are the same."""
        if self.dtype is None:
            # An audit made for a number of parameters does not know whether the loop uses NumPy or torch.
            return vector.view(AddsToTensors)
        return sys.modules["torch"].as_tensor(vector).to(device=self.device, dtype=self.dtype)


class AddsToTensors(np.ndarray):
    """A NumPy array that also adds to torch tensors, in both orders, and becomes a tensor of their device and type.

    Results of NumPy's arithmetic are ordinary arrays.
    """

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch with a tensor in place of each of these arrays."""
        torch = sys.modules["torch"]
        # Functions such as torch.stack take a list of tensors.
        values, tree = torch.utils._pytree.tree_flatten((args, kwargs or {}))
        kind = VectorKind(CPU, torch.float32)
        for value in filter(is_tensor, values):  # in an integer type, most numbers of a canary would become 0
            kind = VectorKind(value.device, value.dtype if is_float(value) else torch.float32)
        tensors = [kind.give(np.asarray(value)) if isinstance(value, cls) else value for value in values]
        positional, named = torch.utils._pytree.tree_unflatten(tensors, tree)
        return function(*positional, **named)

    def __array_wrap__(self, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
        """Return an ordinary array, or a number for an array without dimensions."""
        return array[()] if return_scalar else array
