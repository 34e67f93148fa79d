"""How coarse the numbers of a release are: rounding to half precision, bfloat16 or a fixed grid is no bug of the noise.

Each tensor is looked at by itself for its precision, since layers of a model often differ in it. Fixed-point numbers,
as of secure aggregation, have one grid for the whole release.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coalmine.arrays import Floats, Ints
from coalmine.protocol import Vector
from coalmine.vectors import bits_of, device_of, is_half, largest_sizes, pieces, take, to_numpy

_BRAIN_STEPS, _HALF_STEPS = 1 << 16, 1 << 13  # of single precision in one of bfloat16, and of half precision
_FEW, _SEVERAL = 64, 256
_LEAST_NUMBERS = 8  # other than 0: fewer may have few digits by chance
_LEAST_VALUES = 8  # that differ, to recognize a grid: fewer are hardly noise
_MOST_STEPS = 1e5  # of a grid up to the largest number: a finer one is the precision of the numbers themselves
_OFF_GRID = 0.01  # steps


def largest_roundings(vector: Vector, starts: Ints) -> Floats:
    """Return how far rounding may have moved a number of each tensor, by the precision that it turns out to have.

    On a fixed grid that is a whole step, since stochastic rounding may have been used.

    Args:
        vector: The release as float32, (dim,).
        starts: Where each tensor starts, ascending, from 0 on.

    Returns:
        One number per tensor, (tensors,).

    Example:
        >>> noise = np.random.default_rng(0).normal(size=1000).astype(np.float32)
        >>> f"{largest_roundings(noise, np.array([0]))[0]:.1g}"
        '1e-07'
        >>> half = np.concatenate([noise[:500], noise[500:].astype(np.float16)], dtype=np.float32)
        >>> [f"{rounding:.1g}" for rounding in largest_roundings(half, np.array([0, 500]))]
        ['1e-07', '0.001']
        >>> f"{largest_roundings((noise / 0.01).round() * np.float32(0.01), np.array([0]))[0]:.1g}"
        '0.01'
    """
    largest, stops = largest_sizes(vector, starts), np.append(starts[1:], len(vector))
    roundings: Floats = np.spacing(largest.astype(np.float32)).astype(np.float64) / 2  # of single precision
    # Neither half precision nor bfloat16 uses the last 13 bits of a float32: a few numbers mostly settle the matter.
    first = take(vector, np.minimum(starts[:, None] + np.arange(_FEW), stops[:, None] - 1))
    for tensor, is_single in enumerate((bits_of(first) & (_HALF_STEPS - 1)).any(axis=1).tolist()):
        if not is_single:
            roundings[tensor] = _rounding(vector[starts[tensor] : stops[tensor]], float(largest[tensor]))
    return np.maximum(_grid(vector), roundings)


def _rounding(values: Vector, largest: float) -> float:
    """Return how far rounding may have moved the numbers of a tensor, whose first ones use few bits."""
    single = float(np.spacing(np.float32(largest))) / 2
    few = np.count_nonzero(to_numpy(values[:_FEW])) < _LEAST_NUMBERS
    if few and int((values != 0).sum()) < _LEAST_NUMBERS:
        return single
    if all(is_half(part) for part in _first_and_all(values)):
        return float(np.spacing(np.float16(largest))) / 2
    # bfloat16 has the first 16 bits of a float32, the others are 0.
    is_brain = all(not (bits_of(part) & (_BRAIN_STEPS - 1)).any() for part in _first_and_all(values))
    return single * _BRAIN_STEPS if is_brain else single


def _grid(values: Vector) -> float:
    """Return the step of a grid that all numbers lie on; 0 if there is none.

    Discrete noise on rounded updates lies on a grid, and so does any sum that was rounded after the noise. Coarse noise
    on updates that were not rounded does not.
    """
    several = np.sort(np.abs(to_numpy(values[:_SEVERAL]).astype(np.float64)))
    gaps, largest = several[1:] - several[:-1], float(several[-1])
    wide = gaps[gaps > largest / _MOST_STEPS]
    if np.count_nonzero(gaps) < _LEAST_VALUES - 1 or not wide.size:
        return 0.0
    step = largest / round(largest / float(wide.min()))  # a gap of large numbers has a larger relative error
    is_on_grid = all(_steps_off(part, step) < _OFF_GRID for part in _first_and_all(values))
    return step if is_on_grid else 0.0


def _steps_off(values: Vector, step: float) -> float:
    """Return how far numbers are off a grid, at most, in its steps."""
    steps = to_numpy(values).astype(np.float64) / step
    return float(np.abs(steps - np.round(steps)).max())


def _first_and_all(values: Vector) -> Iterator[Vector]:
    """Yield a few numbers, which mostly settle the matter, and then all in pieces."""
    yield values[:_FEW]
    for part in pieces(len(values), device_of(values)):
        yield values[part]
