"""Noise from a seed that anyone would guess: it is compared with what small seeds give.

Nobody can tell noise from a secret seed and noise from a public one by its distribution. But a seed below 4,096, such
as the number of a round, is found by trying: the noise then is, up to its size, what the same generator gives again.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass

import numpy as np

from coalmine.arrays import Array, Floats, Ints

NUMBERS = 64
"""How many of the first numbers of a noise vector are compared."""

_SEEDS = (*range(4096), 12_345, 123_456, 1_234_567, 2**31 - 1, 2**32 - 1)
_LEAST = 8  # numbers that must be known
_EQUAL = 1e-6  # how far a correlation of equal vectors may be from 1; eight other numbers come as close with p = 1e-20


@dataclass(frozen=True, eq=False)
class Guess:
    """A generator with a small seed, and what it gives.

    Args:
        name: The generator with its seed, as code.
        numbers: Its first normal numbers, at the size of the noise, shape (`NUMBERS`,).
    """

    name: str
    numbers: Floats


def guess_seed(noise: Floats, places: Ints | None = None) -> Guess | None:
    """Return the generator and seed whose first normal numbers are these, up to a factor; None if no small seed is.

    Args:
        noise: Numbers of a noise vector, shape (n,).
        places: Their indices in it, shape (n,); 0 to n − 1 by default. Those from `NUMBERS` on are not compared.

    Example:
        >>> guess_seed(3.0 * np.random.default_rng(7).standard_normal(100)).name
        'numpy.random.default_rng(7)'
        >>> guess_seed(np.random.default_rng([7, 1]).standard_normal(100)) is None
        True
    """
    places = np.arange(noise.size) if places is None else places
    noise, places = noise[places < NUMBERS], places[places < NUMBERS]
    length = float(np.linalg.norm(noise))
    if noise.size < _LEAST or not 0 < length < np.inf:
        return None
    for name, table in _tables("torch" in sys.modules).items():
        drawn = table[:, places]
        likeness = drawn @ (noise / length).astype(np.float32) / np.linalg.norm(drawn, axis=1)
        best = int(np.argmax(np.abs(likeness)))
        if abs(likeness[best]) > 1 - _EQUAL:
            size = np.copysign(length / np.linalg.norm(drawn[best]), likeness[best])
            return Guess(f"{name}({_SEEDS[best]})", size * table[best].astype(np.float64))
    return None


@functools.cache
def _tables(with_torch: bool) -> dict[str, Array]:
    """Return the first normal numbers of each generator, (seeds, numbers)."""
    tables = {
        "numpy.random.default_rng": [np.random.default_rng(seed).standard_normal(NUMBERS) for seed in _SEEDS],
        "numpy.random.RandomState": [np.random.RandomState(seed).standard_normal(NUMBERS) for seed in _SEEDS],
    }
    if with_torch:
        import torch

        generator = torch.Generator()
        tables["torch.manual_seed"] = [
            torch.randn(NUMBERS, generator=generator.manual_seed(seed)).numpy() for seed in _SEEDS
        ]
    return {name: np.asarray(rows, dtype=np.float32) for name, rows in tables.items()}
