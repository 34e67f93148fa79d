"""Between Flower's array records and one flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from coalmine.errors import InputError
from coalmine.protocol import Vector

# Smallest step that half-precision parameters are given: the square of anything smaller underflows.
_HALF_STEP = 1e-3


@dataclass(frozen=True)
class Layout:
    """Where the parameters of an array record lie in the flat vector.

    Only floating-point arrays are parameters; others, such as BatchNorm's counter of batches, are left alone. Flower
    averages those into floating-point arrays, so a layout is taken from the model before the first round.

    Args:
        shapes: Shape of each parameter by its key, in the record's order.
        precision: The lowest precision of the parameters.

    Example:
        >>> record = ArrayRecord({"weight": Array(np.zeros((2, 3), dtype=np.float32)), "steps": Array(np.array(7))})
        >>> Layout.of(record).dim
        6
    """

    shapes: Mapping[str, tuple[int, ...]]
    precision: str = "float32"

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """Return the layout of a model before its training.

        Raises:
            InputError: If the model has no floating-point parameters.
        """
        shapes = {key: tuple(array.shape) for key, array in arrays.items() if np.dtype(array.dtype).kind == "f"}
        if not shapes:
            raise InputError(f"the model has no floating-point parameters, only {', '.join(arrays) or 'no arrays'}")
        # Audits subtract two models, so the coarsest precision decides how exact their difference is.
        half = any(np.dtype(arrays[key].dtype).itemsize == 2 for key in shapes)
        return cls(shapes, "float16" if half else "float32")

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def vector(self, arrays: ArrayRecord) -> npt.NDArray[Any]:
        """Return all parameters as one vector in their own precision, always a copy.

        Raises:
            InputError: If a parameter is missing or has another shape.
        """
        self._check(arrays)
        parts = [arrays[key].numpy().ravel() for key in self.shapes]
        return np.concatenate(parts) if len(parts) > 1 else np.array(parts[0])

    def rounding(self, before: npt.NDArray[Any], after: npt.NDArray[Any]) -> float:
        """Return how far rounding two models may have moved each number of their difference."""
        # A difference of two models is as exact as their largest parameter.
        largest = max(float(np.abs(model[np.isfinite(model)]).max(initial=0.0)) for model in (before, after))
        return float(np.spacing(np.dtype(self.precision).type(largest)))

    def moved(self, arrays: ArrayRecord, update: Vector) -> ArrayRecord:
        """Return the record with ``update`` added to its parameters, each in its own precision."""
        self._check(arrays)
        moved, start = dict(arrays), 0
        for key, shape in self.shapes.items():  # by key: the record may be in another order
            stop = start + int(np.prod(shape))
            before = arrays[key].numpy()
            moved[key] = Array(np.asarray((before + update[start:stop].reshape(shape)).astype(before.dtype)))
            start = stop
        return ArrayRecord(moved)

    def nudged(self, arrays: ArrayRecord, step: float) -> ArrayRecord:
        """Return the record with ``step`` added to the parameter nearest to zero, where precision is highest."""
        update = np.zeros(self.dim, dtype=np.float32)
        update[int(np.argmin(np.abs(self.vector(arrays))))] = step
        return self.moved(arrays, update)

    def representable_step(self, arrays: ArrayRecord, step: float) -> float:
        """Return ``step``, or the smallest step that `nudged` can represent and whose square is not zero."""
        half = any(np.dtype(arrays[key].dtype).itemsize == 2 for key in self.shapes)
        least = min(float(np.abs(arrays[key].numpy()).min(initial=np.inf)) for key in self.shapes)
        # The distance to the next number of the smallest parameter, which `nudged` changes; 4 to be on the safe side.
        resolution = 4 * float(np.spacing(np.float16(least) if half else np.float32(least)))
        return max(step, resolution, _HALF_STEP if half else 0.0)

    def _check(self, arrays: ArrayRecord) -> None:
        for key, shape in self.shapes.items():
            if key not in arrays or tuple(arrays[key].shape) != shape:
                got = f"shape {tuple(arrays[key].shape)}" if key in arrays else "no such array"
                raise InputError(f"the parameter {key!r} had shape {shape} before the first round, got {got}")
