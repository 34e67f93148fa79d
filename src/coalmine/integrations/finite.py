"""Releases with NaN or infinity, which all integrations may meet."""

from __future__ import annotations

import numpy as np

from coalmine.protocol import Vector


def finite_part(vector: Vector) -> tuple[Vector, int]:
    """Return the vector with zeros in place of NaN and infinity, and how many there were.

    Anybody may do this to a release, so bounds stay valid (post-processing).
    """
    finite = np.isfinite(vector)
    lost = int(np.count_nonzero(~finite))
    return (np.where(finite, vector, np.float32(0)), lost) if lost else (vector, 0)
