"""Checks of the arrays behind federated data. Large arrays are read in blocks, so memory-mapped ones stay on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from coalmine.errors import InputError

if TYPE_CHECKING:
    from coalmine.arrays import Array, Ints
from coalmine.simulation.data.federated import Task

_BLOCK = 1 << 22  # values checked at a time


class ExampleError(InputError):
    """An invalid value in the example at ``row``."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(f"{message} in example {row}")
        self.row = row


def checked_rows(rows: ArrayLike | None, examples: int) -> Ints | None:
    """Return ``rows`` as int64; raise unless they are indices of ``examples`` examples."""
    if rows is None:
        return None
    index = np.asarray(rows)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise InputError(f"rows must be a list of integers, got {index.dtype} of shape {index.shape}")
    if index.size and (index.min() < 0 or index.max() >= examples):
        invalid = index[(index < 0) | (index >= examples)][0]
        raise InputError(f"rows must be in 0..{examples - 1}, got {invalid}")
    return index.astype(np.int64, copy=False)


def checked_bounds(bounds: ArrayLike, names: Sequence[str], examples: int) -> Ints:
    """Return ``bounds`` as int64 (clients, 2); raise unless every client has a name and at least one example."""
    pairs = np.asarray(bounds)
    if pairs.size == 0:
        raise InputError("the data has no clients: at least one is needed")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise InputError(f"bounds must be pairs of integers, got {pairs.dtype} of shape {pairs.shape}")
    if len(names) != len(pairs):
        raise InputError(f"every client needs a name, got {len(names)} names for {len(pairs)} clients")
    pairs = pairs.astype(np.int64, copy=False)
    outside = np.flatnonzero((pairs < 0).any(axis=1) | (pairs > examples).any(axis=1))
    if outside.size:
        start, stop = pairs[outside[0]]
        raise InputError(f"client {names[outside[0]]!r} has the bounds {start}:{stop}, outside of 0:{examples}")
    empty = np.flatnonzero(pairs[:, 1] <= pairs[:, 0])
    if empty.size:
        raise InputError(f"client {names[empty[0]]!r} has no examples")
    return pairs


def check_inputs(inputs: Array, task: Task) -> None:
    """Raise unless the inputs have the task's shape, a valid type and valid values."""
    if inputs.shape[1:] != task.input_shape:
        raise InputError(f"inputs must have the shape {task.input_shape}, got {inputs.shape[1:]}")
    if task.tokens is not None:
        if inputs.dtype.kind not in "iu":
            raise InputError(f"tokens must be integers, got {inputs.dtype}")
        _check_range("token", inputs, task.tokens, None)
    elif inputs.dtype.kind == "f":
        for start, block in _blocks(inputs):
            finite = np.isfinite(block)
            if not finite.all():
                row = int(np.argmin(finite.reshape(len(block), -1).all(axis=1)))
                value = block[row][~finite[row]].flat[0]
                raise ExampleError(f"inputs must be finite, got {value}", start + row)
    elif inputs.dtype != np.uint8:
        raise InputError(f"inputs must be uint8 pixels or floating-point numbers, got {inputs.dtype}")


def check_targets(targets: Array, task: Task) -> None:
    """Raise unless the targets have the task's shape and are classes, or the ignored value."""
    if targets.shape[1:] != task.target_shape:
        expected = f"of shape ({task.input_shape[0]},)" if task.per_position else "a single label"
        raise InputError(f"the targets of an example must be {expected}, got shape {targets.shape[1:]}")
    if targets.dtype.kind not in "iu":
        raise InputError(f"labels must be integers, got {targets.dtype}")
    _check_range("label", targets, task.classes, task.ignored)


def _check_range(what: str, values: Array, limit: int, ignored: int | None) -> None:
    """Raise unless all values are in [0, limit), or ``ignored``."""
    for start, block in _blocks(values):
        if block.min() >= 0 and block.max() < limit:
            continue
        invalid = (block < 0) | (block >= limit)
        if ignored is not None:
            invalid &= block != ignored
        if invalid.any():
            row = int(np.argmax(invalid.reshape(len(block), -1).any(axis=1)))
            value = np.asarray(block[row])[np.asarray(invalid[row])].flat[0]
            raise ExampleError(f"each {what} must be in 0..{limit - 1}, got {value}", start + row)


def _blocks(array: Array) -> Iterator[tuple[int, Array]]:
    """Return an iterator over blocks of rows, each with the index of its first row."""
    step = max(1, _BLOCK // max(1, int(np.prod(array.shape[1:]))))
    return ((start, array[start : start + step]) for start in range(0, len(array), step))
