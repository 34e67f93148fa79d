"""Arrays of numbers that were checked where they came in."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def finite_array(name: str, values: ArrayLike) -> Floats:
    """Finite numbers of any shape, as float64; anything else is refused."""
    raw = np.asarray(values)
    try:
        if raw.dtype.kind not in "biufO":
            raise TypeError
        array = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, got {values!r:.80}") from None
    if not np.all(np.isfinite(array)):
        bad = array[~np.isfinite(array)]
        raise InputError(f"{name} must be finite, got {bad.flat[0]} among {array.size} values")
    return array


def finite_list(name: str, values: ArrayLike) -> Floats:
    """At least one finite number, in one row."""
    array = finite_array(name, values)
    if array.ndim != 1:
        raise InputError(f"{name} must be one row of numbers, got an array of shape {array.shape}")
    if array.size == 0:
        raise InputError(f"{name} must hold at least one number, got none")
    return array
