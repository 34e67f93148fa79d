"""Array types shared by the whole project, and checks for arrays that come from users.

Every array alias is defined here once. Checked arrays are float64, so that the statistics never depend on the
precision of their input.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.errors import InputError

Array = NDArray[Any]
"""An array of any type."""

Floats = NDArray[np.float64]
"""Scores, losses, rates: float64 of any shape."""

Ints = NDArray[np.int64]
"""Counts and indices: int64 of any shape."""

Bools = NDArray[np.bool_]
"""Masks and coin flips: booleans of any shape."""

Vector = NDArray[np.float32]
"""Model parameters or an update: one flat float32 vector, in the order of ``module.parameters()``."""


def finite_array(name: str, values: ArrayLike, one_dimensional: bool = False) -> Floats:
    """Return ``values`` as a float64 array, or raise `InputError` if they are not finite numbers.

    An array that has to be ``one_dimensional`` must also hold at least one number.
    """
    raw = np.asarray(values)
    try:
        # NumPy would convert texts and dates, and drop the imaginary part of complex numbers.
        if raw.dtype.kind not in "biufO":
            raise TypeError
        array = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, got {values!r:.80}") from None
    bad = array[~np.isfinite(array)]
    if bad.size:
        raise InputError(f"{name} must be finite, got {bad[0]} among {array.size} values")
    if one_dimensional and array.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got an array of shape {array.shape}")
    if one_dimensional and array.size == 0:
        raise InputError(f"{name} must hold at least one number, got none")
    return array


finite_list = partial(finite_array, one_dimensional=True)
