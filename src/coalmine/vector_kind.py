"""The kind of vector that a user has, so that what we give back is of the same kind and adds to theirs.

As in `coalmine.vectors`, torch is not imported here: a tensor can only come from a program that has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from coalmine.arrays import Array, Vector
from coalmine.errors import InputError
from coalmine.vectors import AnyVector, Device, is_float, is_list, is_tensor, tensors_of

# A typical number of a vector must be at least this many times the smallest positive number of its float type. With 4,
# rounding changes the length of the vector by 0.3%.
_LEAST_STEPS = 4


@dataclass(frozen=True)
class VectorKind:
    """What vectors to give to a user: NumPy arrays, or tensors of a device and float type.

    Args:
        device: Device of the tensors, or None for NumPy arrays.
        dtype: Float type of the tensors.

    Example:
        >>> VectorKind().give(np.ones(2, dtype=np.float32)) + 1
        array([2., 2.], dtype=float32)
    """

    device: Any = None
    dtype: Any = None

    @classmethod
    def of(cls, values: Any) -> Self:
        """Return the kind of a module, state dict, list of tensors or tensor: device and float type of its first.

        Tensors of several float types have the type that can hold them all.

        Raises:
            InputError: If that is not a float type, which canaries need because their numbers are fractions.
        """
        if hasattr(values, "parameters"):
            parameters = list(values.parameters())
            values = [value for value in parameters if value.requires_grad] or parameters
        listed = tensors_of(values)
        tensors = [value for value in ([values] if listed is None else listed) if is_tensor(value)]
        if not tensors:
            return cls()
        torch, dtype = sys.modules["torch"], tensors[0].dtype
        for tensor in tensors:
            dtype = torch.promote_types(dtype, tensor.dtype)
        if not dtype.is_floating_point:
            raise InputError(f"vectors must have a float type such as torch.float32, got {dtype}")
        return cls(tensors[0].device, dtype)

    @property
    def work_device(self) -> Device:
        """Where vectors of this kind are computed: None on the CPU, where that is NumPy."""
        return None if self.device is None or self.device.type == "cpu" else self.device

    def check_holds(self, size: float, what: str) -> None:
        """Check that the float type can hold numbers of this size, without rounding most of their digits away.

        Args:
            size: Typical size of the numbers.
            what: What has these numbers, in the plural, for the message.

        Raises:
            InputError: If the numbers are so small that rounding leaves few of their digits or none.
        """
        if self.dtype is None:
            return
        limits = sys.modules["torch"].finfo(self.dtype)
        if size < _LEAST_STEPS * limits.smallest_normal * limits.eps:
            raise InputError(
                f"{what} have numbers of about {size:.1g}, which are too small for {self.dtype}: pass a float32 model "
                "or the number of parameters as dim"
            )

    def give(self, vector: Vector) -> AnyVector:
        """Return an internal vector as one of this kind, without a copy if device and type are the same."""
        if self.device is None:
            return vector.view(AddsToTensors)
        tensor: Any = vector if is_tensor(vector) else sys.modules["torch"].from_numpy(vector)
        return tensor.to(device=self.device, dtype=self.dtype)


class AddsToTensors(np.ndarray):
    """A NumPy array that also adds to torch tensors, in both orders, and becomes a tensor of their device and type.

    Results of NumPy's arithmetic are ordinary arrays.
    """

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch with a tensor in place of each of these arrays."""
        torch, named = sys.modules["torch"], kwargs or {}
        # Functions such as torch.stack take a list of tensors.
        operands = [value for group in (*args, *named.values()) for value in (group if is_list(group) else [group])]
        tensor = next((value for value in operands if is_tensor(value)), None)
        kind = VectorKind(torch.device("cpu"), torch.float32)
        if tensor is not None:  # in an integer type, most numbers of a canary would become 0
            kind = VectorKind(tensor.device, tensor.dtype if is_float(tensor) else torch.float32)

        def as_tensor(value: Any) -> Any:
            if is_list(value):
                return [as_tensor(each) for each in value]
            return kind.give(np.asarray(value)) if isinstance(value, cls) else value

        try:
            return function(*map(as_tensor, args), **{name: as_tensor(value) for name, value in named.items()})
        except RuntimeError as error:
            canary = next(value for value in operands if isinstance(value, cls))
            if tensor is None or tensor.numel() == canary.size:
                raise
            raise InputError(
                f"canaries of {canary.size} numbers do not fit a tensor of {tensor.numel()}: pass the module as dim, "
                f"or the number of its trainable parameters ({error})"
            ) from None

    def __array_wrap__(self, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
        """Return an ordinary array, or a number for an array without dimensions."""
        return array[()] if return_scalar else array
