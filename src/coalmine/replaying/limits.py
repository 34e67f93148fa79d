"""Limits on movements that are averages over draws, where randomness cannot be repeated."""

from __future__ import annotations

import math

import numpy as np

from coalmine.arrays import Bools, Floats


def ratio_error(with_client: Floats, without: Floats, *, degrees: int) -> float:
    """Return the standard error of the logarithm of the ratio of two noise levels, from draws (draws, numbers) of both.

    If the two noises are the same up to their scale, as with the same draws, their correlation is 1 and the error
    almost nothing: the variance of the logarithm is (1 − correlation²) / n.
    """
    one, two = (side - side.mean(axis=0) for side in (with_client, without))
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(two))
    correlation = float(np.sum(one * two)) / lengths if lengths else 0.0
    return math.sqrt(max(1 - correlation**2, 1e-12) / degrees)


def lower_limit(mean: Floats, error: Floats, quantile: float) -> float:
    """Return a lower limit on the length of a vector, from its estimate and the errors of its entries."""
    square = float(np.sum(mean**2) - np.sum(error**2))
    spread = math.sqrt(2 * float(np.sum(error**4)) + 4 * float(np.sum((mean * error) ** 2)))
    return math.sqrt(max(square - quantile * spread, 0.0))


def lower_projection(mean: Floats, error: Floats, quantile: float, hint: Floats | None, usable: Bools) -> float:
    """Return a lower limit on the length of a vector by its length in the direction where it is expected."""
    if hint is None or hint.size != usable.size or len(mean) > 1:
        return 0.0
    direction = np.where(np.isfinite(hint), hint, 0.0)[usable]
    length = float(np.linalg.norm(direction))
    if not length:
        return 0.0
    along = direction / length
    return max(0.0, float(mean[0] @ along) - quantile * math.sqrt(float(along**2 @ error[0] ** 2)))
