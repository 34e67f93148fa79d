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
_LEAST_STEP = {"float16": 1e-3, "float32": 0.0}


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
        shapes, precision = {}, "float32"
        for key, array in arrays.items():
            if np.dtype(array.dtype).kind == "f":
                shapes[key] = tuple(array.shape)
            # Audits subtract two models, so the coarsest precision decides how exact their difference is.
            if array.dtype == "float16":
                precision = "float16"
        if not shapes:
            raise InputError("the model has no floating-point parameters")
        return cls(shapes, precision)

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def vector(self, arrays: ArrayRecord) -> npt.NDArray[Any]:
        """Return all parameters as one vector in their own precision, always a copy.

        Raises:
            InputError: If a parameter is missing or has another shape.
        """
        parts = []
        for key, shape in self.shapes.items():  # by key: the record may be in another order
            if key not in arrays or tuple(arrays[key].shape) != shape:
                raise InputError(f"the parameter {key!r} had shape {shape} before the first round, and now has not")
            parts.append(arrays[key].numpy().ravel())
        return np.concatenate(parts)

    def rounding(self, before: npt.NDArray[Any], after: npt.NDArray[Any]) -> float:
        """Return how far rounding two models may have moved each number of their difference."""
        # A difference of two models is as exact as their largest parameter.
        sizes = np.abs(np.stack([before, after]))
        largest = np.max(sizes, where=np.isfinite(sizes), initial=0.0)
        return float(np.spacing(np.dtype(self.precision).type(largest)))

    def moved(self, arrays: ArrayRecord, update: Vector) -> ArrayRecord:
        """Return the record with ``update`` added to its parameters, each in its own precision."""
        moved, start = dict(arrays), 0
        total = self.vector(arrays) + update
        for key, shape in self.shapes.items():
            stop = start + int(np.prod(shape))
            moved[key] = Array(np.asarray(total[start:stop].reshape(shape).astype(arrays[key].dtype)))
            start = stop
        return ArrayRecord(moved)

    def nudged(self, arrays: ArrayRecord, step: float) -> ArrayRecord:
        """Return the record with ``step`` added to the parameter nearest to zero, where precision is highest."""
        update = np.zeros(self.dim, dtype=np.float32)
        update[int(np.argmin(np.abs(self.vector(arrays))))] = step
        return self.moved(arrays, update)

    def representable_step(self, arrays: ArrayRecord, step: float) -> float:
        """Return ``step``, or the smallest step that `nudged` can represent and whose square is not zero."""
        # The distance to the next number of the smallest parameter, which `nudged` changes; 4 to be on the safe side.
        least = np.abs(self.vector(arrays)).min()
        resolution = 4 * float(np.spacing(np.dtype(self.precision).type(least)))
        return max(step, resolution, _LEAST_STEP[self.precision])
