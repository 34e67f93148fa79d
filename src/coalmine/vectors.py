"""Vectors of any kind: NumPy arrays, torch tensors of any device and float type, and models as lists of tensors.

Users bring vectors as they have them. Inside coalmine a vector is flat and float32, where the user's is: a NumPy array
on the CPU (tensors share their memory with one), a torch tensor on any other device. Code that runs on both uses what
both have in common (slices, ``@``, in-place arithmetic) and the functions below for the rest, so there is one
implementation of everything. torch is not imported here: a tensor can only come from a program that has imported it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from coalmine.arrays import Array, Floats, Ints, Vector
from coalmine.errors import InputError

AnyVector = Any
"""A vector as users have it: a NumPy array or torch tensor of any float type, or a list or state dict of them."""

Device = Any
"""A torch device other than the CPU, or None for NumPy on the CPU."""

# Numbers processed at a time on the CPU: they stay in its cache, and temporary arrays small. An accelerator would spend
# its time starting such small pieces of work.
_CPU_PIECE, _DEVICE_PIECE = 1 << 17, 1 << 24
# Products are summed in float32 over this many numbers, and in float64 from there on.
_BLOCK, _FEW_ROWS = 4096, 32
# A typical number of a vector must be at least this many times the smallest positive number of its float type. With 4,
# rounding changes the length of the vector by 0.3%.
_LEAST_STEPS = 4


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor."""
    if isinstance(value, np.ndarray):
        return False
    # Without torch in memory nothing can be a tensor, so the question never costs its import.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


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
    if values is None or (isinstance(values, list | tuple) and any(value is None for value in values)):
        # NumPy would read None as NaN; it is what `.grad` holds for a parameter that a loss does not use.
        raise InputError("a vector or tensor is missing, got None: give zeros for a parameter without a gradient")
    pieces = tensors_of(values, names)
    if pieces is None:
        whole: Vector = _single(values)
        return whole
    sizes = [int(np.prod(piece.shape)) for piece in pieces]
    # Copied piece by piece into one vector: a second copy of a large model may not fit.
    vector = empty(sum(sizes), device_of(_single(pieces[0])) if pieces else None)
    for piece, stop, size in zip(pieces, np.cumsum(sizes).tolist(), sizes, strict=True):
        vector[stop - size : stop] = like(_single(piece).reshape(-1), vector)
    return vector


def tensors_of(values: AnyVector, names: Sequence[str] = ()) -> list[Any] | None:
    """Return the tensors of a list, state dict or module; None if ``values`` is none of these."""
    values = list(values) if isinstance(values, Iterator) else values
    if hasattr(values, "named_parameters"):
        values = {name: value for name, value in values.named_parameters() if value.requires_grad}
    if isinstance(values, Mapping):
        by_name = names and all(name in values for name in names)
        return [values[name] for name in names] if by_name else [v for v in values.values() if is_float(v)]
    if isinstance(values, list | tuple) and values and hasattr(values[0], "shape"):
        return list(values)
    return None


def is_float(value: Any) -> bool:
    """Return whether an array or tensor holds floating-point numbers."""
    kind = getattr(value, "dtype", None)
    return kind is not None and bool(getattr(kind, "is_floating_point", getattr(kind, "kind", "") == "f"))


def _single(values: Any) -> Any:
    """Return one array or tensor as float32, as NumPy if it is on the CPU."""
    if "complex" in str(getattr(values, "dtype", "")):  # a cast would drop the imaginary parts
        raise InputError("a vector must hold real numbers, got complex ones: give real and imaginary parts one by one")
    if not is_tensor(values):
        try:
            return np.asarray(values, dtype=np.float32)
        except (TypeError, ValueError):
            raise InputError(f"a vector must be an array, a tensor, or a list of them, got {values!r:.60}") from None
    if hasattr(values, "full_tensor"):  # a DTensor, of which this process holds a part only
        raise InputError(
            f"a {type(values).__name__} is spread over several processes: give value.full_tensor(), in all processes"
        )
    tensor = (values.to_dense() if values.is_sparse else values).detach().float()
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def device_of(vector: Any) -> Device:
    """Return where a vector is: a torch device, or None for NumPy."""
    return vector.device if is_tensor(vector) else None


def on(device: Device, array: Array) -> Any:
    """Return a NumPy array on a device: itself if that is None."""
    if device is None:
        return array
    return sys.modules["torch"].tensor(array, device=device)


def to_numpy(vector: Any) -> Any:
    """Return a vector as NumPy on the CPU: itself if it is there already."""
    return vector.cpu().numpy() if is_tensor(vector) else vector


def like(vector: Any, other: Any) -> Any:
    """Return a vector on the device of another one."""
    device = device_of(other)
    if is_tensor(vector) and device is not None:
        return vector.to(device)
    return on(device, to_numpy(vector))


def empty(dim: int, device: Device) -> Vector:
    """Return an uninitialized float32 vector."""
    if device is None:
        return np.empty(dim, dtype=np.float32)
    torch = sys.modules["torch"]
    vector: Vector = torch.empty(dim, dtype=torch.float32, device=device)
    return vector


def zeros(dim: int, device: Device) -> Vector:
    """Return a float32 vector of zeros."""
    vector: Vector = on(device, np.zeros(dim, dtype=np.float32))
    return vector


def pieces(length: int, device: Device, multiple: int = 1) -> Iterator[slice]:
    """Yield slices that cover ``length`` numbers in order, each of a size that suits the device."""
    size = max(1, (_CPU_PIECE if device is None else _DEVICE_PIECE) // multiple) * multiple
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def dot(one: Vector, other: Vector) -> float:
    """Return the dot product of two vectors on one device."""
    if is_tensor(one):
        return float(_block_sums(one * other).sum())
    whole = len(one) - len(one) % _BLOCK
    if not whole:  # short enough for float64 throughout
        return float(np.einsum("i,i->", one, other, dtype=np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = np.vecdot(one[:whole].reshape(-1, _BLOCK), other[:whole].reshape(-1, _BLOCK))
        total = float(blocks.sum(dtype=np.float64)) + float(one[whole:] @ other[whole:])
    # float64, which takes three times as long, holds the products of the smallest and largest float32 numbers.
    return total if 1e-30 < abs(total) < 1e30 else float(np.einsum("i,i->", one, other, dtype=np.float64))


def product_sums(one: Vector, other: Vector) -> tuple[float, float]:
    """Return the dot product of two vectors on one device, and the sum of the squares of its terms.

    Example:
        >>> product_sums(np.array([1, 2], dtype=np.float32), np.array([3, 4], dtype=np.float32))
        (11.0, 73.0)
    """
    # Piece by piece, since the products of two large vectors would need a third one.
    total = energy = 0.0
    for piece in pieces(len(one), device_of(one)):
        terms = one[piece] * other[piece]
        total, energy = total + dot(one[piece], other[piece]), energy + dot(terms, terms)
    return total, energy


def energies(vector: Vector, edges: Ints) -> Floats:
    """Return the squared length of each part of a vector; parts start at ``edges``."""
    stops = [*edges[1:].tolist(), len(vector)]
    parts = [vector[start:stop] for start, stop in zip(edges.tolist(), stops, strict=True)]
    if not is_tensor(vector):
        return np.array([dot(part, part) for part in parts])
    # All sums leave the device at once: each transfer waits for everything before it.
    sums = [_block_sums(part * part) for part in parts]
    together = to_numpy(sys.modules["torch"].cat(sums)).astype(np.float64)
    return np.add.reduceat(together, np.cumsum([0, *map(len, sums[:-1])]))


def largest_sizes(vector: Vector, edges: Ints) -> Floats:
    """Return the largest absolute number of each part of a vector; parts start at ``edges``."""
    if not is_tensor(vector):
        # Two passes without a copy are faster than one over an array of absolute values.
        sizes = np.maximum(np.maximum.reduceat(vector, edges), -np.minimum.reduceat(vector, edges))
        return sizes.astype(np.float64)
    stops = [*edges[1:].tolist(), len(vector)]
    tensor: Any = vector
    parts = [tensor[start:stop].abs().max() for start, stop in zip(edges.tolist(), stops, strict=True)]
    largest: Floats = to_numpy(sys.modules["torch"].stack(parts)).astype(np.float64)
    return largest


def _block_sums(numbers: Any) -> Any:
    """Return float32 sums of consecutive blocks of numbers of a tensor; at least one."""
    whole = len(numbers) - len(numbers) % _BLOCK
    return sys.modules["torch"].cat([numbers[:whole].reshape(-1, _BLOCK).sum(1), numbers[whole:].sum(0, keepdim=True)])


def column_sums(rows: Any) -> Floats:
    """Return the sum of each column: in float64 beyond a few rows on the CPU, in float32 on a device."""
    if is_tensor(rows):
        return np.asarray(to_numpy(rows.sum(0)), dtype=np.float64)
    whole = len(rows) - len(rows) % _FEW_ROWS
    # A few rows at a time lose nothing in float32, and leave little to add in float64, which is slower.
    few = rows[:whole].reshape(-1, _FEW_ROWS, rows.shape[1]).sum(axis=1)
    sums: Floats = few.sum(axis=0, dtype=np.float64) + rows[whole:].sum(axis=0)
    return sums


def norm(vector: Vector) -> float:
    """Return the Euclidean norm."""
    return math.sqrt(dot(vector, vector))


def is_finite(vector: Vector) -> bool:
    """Return whether a vector has neither NaN nor infinities."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(float(vector @ vector)):  # one pass over the memory; infinite if a square is too large
            return True
    # The largest and the smallest number need no array of booleans, and are NaN if any number is.
    return bool(np.isfinite(float(vector.max())) and np.isfinite(float(vector.min())))


def bits_of(vector: Vector) -> Any:
    """Return the bits of float32 numbers as int32, which share their memory."""
    return vector.view(sys.modules["torch"].int32 if is_tensor(vector) else np.int32)


def as_int32(integers: Any) -> Any:
    """Return a copy of small integers as int32."""
    return integers.int() if is_tensor(integers) else integers.astype(np.int32)


def as_numbers(points: Any) -> Any:
    """Return complex numbers as twice as many real ones, which share their memory."""
    return points.view(sys.modules["torch"].float32 if is_tensor(points) else np.float32)


def as_points(vectors: Any) -> Any:
    """Return rows of real numbers as rows of complex ones, with a last 0 if there is an odd number of them."""
    odd = vectors.shape[1] % 2
    if is_tensor(vectors):
        torch = sys.modules["torch"]
        return torch.nn.functional.pad(vectors, (0, odd)).contiguous().view(torch.complex64)
    even = np.pad(vectors, ((0, 0), (0, 1))) if odd else vectors
    return np.ascontiguousarray(even, dtype=np.float32).view(np.complex64)


def matrix_product(one: Any, other: Any, *, out: Any) -> None:
    """Write the product of matrices, or of a matrix and each of several, to ``out``."""
    product = sys.modules["torch"].matmul if is_tensor(out) else np.matmul
    product(one, other, out=out)


def is_half(vector: Vector) -> bool:
    """Return whether all numbers are ones of float16."""
    if is_tensor(vector):
        return bool((vector.half().float() == vector).all())  # type: ignore[attr-defined]
    with np.errstate(over="ignore"):
        return np.array_equal(vector.astype(np.float16), vector)


def take(vector: Vector, coordinates: Ints) -> Vector:
    """Return a few coordinates of a vector, as NumPy."""
    taken: Vector = to_numpy(vector[on(device_of(vector), coordinates)])
    return taken


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
    if not is_finite(vector):
        raise InputError(f"{name} must be finite, got NaN or infinity")
    return vector


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
            # An audit made for a number of parameters does not know whether the loop uses NumPy or torch.
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
        kind = VectorKind(torch.device("cpu"), torch.float32)
        for group in (*args, *named.values()):
            for value in group if isinstance(group, list | tuple) else [group]:
                if is_tensor(value):  # in an integer type, most numbers of a canary would become 0
                    kind = VectorKind(value.device, value.dtype if is_float(value) else torch.float32)

        def as_tensor(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [as_tensor(each) for each in value]
            return kind.give(np.asarray(value)) if isinstance(value, cls) else value

        return function(*map(as_tensor, args), **{name: as_tensor(value) for name, value in named.items()})

    def __array_wrap__(self, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
        """Return an ordinary array, or a number for an array without dimensions."""
        return array[()] if return_scalar else array
