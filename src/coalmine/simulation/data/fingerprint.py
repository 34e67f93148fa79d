"""Short digests that tell one data set, or one model, from another."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.simulation.data.federated import FederatedData

_SAMPLED_ROWS = 1000  # of the data, which may be too large to read in full


def digest_of(*arrays: npt.NDArray[Any]) -> str:
    """Return a short digest of arrays."""
    digest = hashlib.blake2b(digest_size=6)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def fingerprint(data: FederatedData) -> str:
    """Return a short digest of who holds which rows, and of up to 1,000 examples.

    Example:
        >>> from coalmine.simulation.data import load
        >>> digits = load("digits")
        >>> fingerprint(digits.train) == fingerprint(digits.train) != fingerprint(digits.test)
        True
    """
    sample = np.unique(np.linspace(0, len(data.inputs) - 1, _SAMPLED_ROWS).astype(np.int64))
    rows = np.empty(0, dtype=np.int64) if data.rows is None else data.rows
    return digest_of(data.bounds, rows, data.inputs[sample], data.targets[sample])
