"""The same audits inside other people's training: Flower, NVFLARE and Opacus; and trackers for their results."""

from __future__ import annotations

import numpy as np

from coalmine.protocol import Vector
from coalmine.vectors import is_finite


def finite_part(vector: Vector) -> tuple[Vector, int]:
    """Return the vector with zeros in place of NaN and infinity, and how many there were.

    Anybody may do this to a release, so bounds stay valid (post-processing).
    """
    if is_finite(vector):
        return vector, 0
    finite = np.isfinite(vector)
    return np.where(finite, vector, np.float32(0)), int(np.count_nonzero(~finite))
