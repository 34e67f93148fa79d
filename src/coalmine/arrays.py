"""Array types shared by the whole project, and checks for arrays that come from users.

Every array alias is defined here once. Checked arrays are float64, so that the statistics never depend on the
precision of their input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.errors import InputError

Array = NDArray[Any]
"""An array of any type."""

Arrays = Mapping[str, NDArray[Any]]
"""Arrays by name, as stored in checkpoints and .npz files."""

Floats = NDArray[np.float64]
"""Scores, losses, rates: float64 of any shape."""

Ints = NDArray[np.int64]
"""Counts and indices: int64 of any shape."""

Bools = NDArray[np.bool_]
"""Masks and coin flips: booleans of any shape."""

Vector = NDArray[np.float32]
"""Model parameters or an update: one flat float32 vector, in the order of ``module.parameters()``."""


def finite_array(name: str, values: ArrayLike) -> Floats:
    """Return ``values`` as a float64 array of any shape, or raise `InputError` if they are not finite numbers."""
    raw = np.asarray(values)
    try:
        # NumPy would convert texts and dates, and drop the imaginary part of complex numbers.
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
    """Return ``values`` as a one-dimensional float64 array, or raise `InputError` unless it holds a finite number."""
    array = finite_array(name, values)
    if array.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got an array of shape {array.shape}")
    if array.size == 0:
        raise InputError(f"{name} must hold at least one number, got none")
    return array
