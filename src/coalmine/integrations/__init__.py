"""The same audits inside other people's training: Flower, NVFLARE and Opacus; and trackers for their results."""

from __future__ import annotations

import math

import numpy as np

from coalmine.protocol import Vector


def finite_part(vector: Vector) -> tuple[Vector, int]:
    """Return the vector with zeros in place of NaN and infinity, and how many there were.

    Anybody may do this to a release, so bounds stay valid (post-processing).
    """
    finite = abs(vector) < math.inf
    if finite.all():
        return vector, 0
    return np.where(finite, vector, np.float32(0)), int(np.count_nonzero(~finite))
