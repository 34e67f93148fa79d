"""How coarse the numbers of a release are: rounding to half precision, bfloat16 or a fixed grid is no bug of the noise.

Each tensor is looked at by itself for its precision, since layers of a model often differ in it. Fixed-point numbers,
as of secure aggregation, have one grid for the whole release.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats, Ints
from coalmine.protocol import Vector

_BRAIN_STEPS = 1 << 16  # of single precision in one of bfloat16
_FEW, _SEVERAL = 64, 256
_LEAST_NUMBERS = 8  # other than 0: fewer may have few digits by chance
_LEAST_VALUES = 8  # that differ, to recognize a grid: fewer are hardly noise
_MOST_STEPS = 1e5  # of a grid up to the largest number: a finer one is the precision of the numbers themselves
_OFF_GRID = 0.01  # steps


def largest_roundings(vector: Vector, starts: Ints) -> Floats:
    """Return how far rounding may have moved a number of each tensor, by the precision that it turns out to have.

    On a fixed grid that is a whole step, since stochastic rounding may have been used.

    Args:
        vector: The release, (dim,).
        starts: Where each tensor starts, ascending, from 0 on.

    Returns:
        One number per tensor, (tensors,).

    Example:
        >>> noise = np.random.default_rng(0).normal(size=1000).astype(np.float32)
        >>> f"{largest_roundings(noise, np.array([0]))[0]:.1g}"
        '1e-07'
        >>> half = np.concatenate([noise[:500], noise[500:].astype(np.float16)])
        >>> [f"{rounding:.1g}" for rounding in largest_roundings(half, np.array([0, 500]))]
        ['1e-07', '0.001']
        >>> f"{largest_roundings((noise / 0.01).round() * np.float32(0.01), np.array([0]))[0]:.1g}"
        '0.01'
    """
    values = np.asarray(vector)
    return np.maximum(_grid(values), [_rounding(part) for part in np.split(values, starts[1:])])


def _rounding(values: npt.NDArray[Any]) -> float:
    """Return how far rounding may have moved the numbers of a tensor."""
    largest = np.abs(values).max(initial=0)
    if values.dtype == np.float16:
        return float(np.spacing(np.float16(largest))) / 2
    single = float(np.spacing(np.float32(largest))) / 2
    if np.count_nonzero(values[:_FEW]) < _LEAST_NUMBERS and np.count_nonzero(values) < _LEAST_NUMBERS:
        return single
    if _is_half(values):
        return float(np.spacing(np.float16(largest))) / 2
    return single * _BRAIN_STEPS if _is_brain(values) else single


def _is_half(values: npt.NDArray[Any]) -> bool:
    """Return whether all numbers are ones of 16 bits, so that they were rounded to half precision before."""
    with np.errstate(over="ignore"):
        return all(np.array_equal(part.astype(np.float16), part) for part in _first_and_all(values))


def _is_brain(values: npt.NDArray[Any]) -> bool:
    """Return whether all numbers have the 8 significant bits of bfloat16."""
    return all(
        not np.any(part.astype(np.float32).view(np.uint32) & (_BRAIN_STEPS - 1)) for part in _first_and_all(values)
    )


def _grid(values: npt.NDArray[Any]) -> float:
    """Return the step of a grid that all numbers lie on; 0 if there is none.

    Discrete noise on rounded updates lies on a grid, and so does any sum that was rounded after the noise. Coarse noise
    on updates that were not rounded does not.
    """
    several = np.unique(np.abs(values[:_SEVERAL].astype(np.float64)))
    if several.size < _LEAST_VALUES:
        return 0.0
    gaps = np.diff(several)
    step = float(gaps.min(initial=np.inf, where=gaps > several[-1] / _MOST_STEPS))
    step = float(several[-1]) / round(float(several[-1]) / step)  # a gap of large numbers has a larger relative error
    is_on_grid = all(_steps_off(part, step) < _OFF_GRID for part in _first_and_all(values))
    return step if is_on_grid else 0.0


def _steps_off(values: npt.NDArray[Any], step: float) -> float:
    """Return how far numbers are off a grid, at most, in its steps."""
    steps = values.astype(np.float64) / step
    return float(np.abs(steps - np.round(steps)).max())


def _first_and_all(values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield a few numbers, which mostly settle the matter, and then all."""
    yield values[:_FEW]
    yield values
