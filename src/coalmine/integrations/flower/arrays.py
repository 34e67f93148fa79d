"""Between Flower's records of arrays and one flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from coalmine.errors import InputError
from coalmine.protocol import Vector

_HALF_STEP = 1e-3


@dataclass(frozen=True)
class Layout:
    """Where each parameter of a record lies in the flat vector: ``shapes`` by key, in the record's order.

    Whatever is not a floating-point number (such as a counter of batches) is no parameter and has no place in it.
    Flower averages such arrays to floating-point ones: what counts is what they are before the first round.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """The layout of a model before its training."""
        found = {key: tuple(array.shape) for key, array in arrays.items() if np.dtype(array.dtype).kind == "f"}
        if not found:
            raise InputError(f"the model has no floating-point parameters, only {', '.join(arrays) or 'nothing'}")
        return cls(found)

    @property
    def dim(self) -> int:
        """How many parameters there are."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def vector(self, arrays: ArrayRecord) -> npt.NDArray[Any]:
        """All parameters in a row, in their own precision: always a copy."""
        self._check(arrays)
        parts = [arrays[key].numpy().ravel() for key in self.shapes]
        return np.concatenate(parts) if len(parts) > 1 else np.array(parts[0])

    def moved(self, arrays: ArrayRecord, update: Vector) -> ArrayRecord:
        """The same record with ``update`` added to its parameters, each in its own precision."""
        self._check(arrays)
        found, start = dict(arrays), 0
        for key, shape in self.shapes.items():  # a record may come back in another order
            stop = start + int(np.prod(shape))
            before = arrays[key].numpy()
            found[key] = Array(np.asarray((before + update[start:stop].reshape(shape)).astype(before.dtype)))
            start = stop
        return ArrayRecord(found)

    def nudged(self, arrays: ArrayRecord, step: float) -> ArrayRecord:
        """The same record with a ``step`` of the parameter nearest to zero, which has the digits for it."""
        update = np.zeros(self.dim, dtype=np.float32)
        update[int(np.argmin(np.abs(self.vector(arrays))))] = step
        return self.moved(arrays, update)

    def step(self, arrays: ArrayRecord, wanted: float) -> float:
        """``wanted``, or the least step that the parameter nearest to zero can take and whose square is not zero."""
        half = any(np.dtype(arrays[key].dtype).itemsize == 2 for key in self.shapes)
        least = min(float(np.abs(arrays[key].numpy()).min(initial=np.inf)) for key in self.shapes)
        digits = 4 * float(np.spacing(np.float16(least) if half else np.float32(least)))
        return max(wanted, digits, _HALF_STEP if half else 0.0)

    def _check(self, arrays: ArrayRecord) -> None:
        for key, shape in self.shapes.items():
            if key not in arrays or tuple(arrays[key].shape) != shape:
                got = tuple(arrays[key].shape) if key in arrays else "nothing"
                raise InputError(f"the parameters {key!r} had the shape {shape} before the first round, got {got}")
