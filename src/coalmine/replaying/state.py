"""Noise that a release keeps in its state: drawn in blocks ahead of time, or made of a secret and a counter.

Random numbers that replay sets cannot change it, and a copy of the state has the same. But successive rounds differ.
"""

from __future__ import annotations

import numpy as np

from coalmine.arrays import Floats

# Share of the changes from round to round that the two changes before do not predict. It is at least a half for
# independent noise, alone, summed up or in a momentum, and next to nothing for counters, decay and averages.
_UNPREDICTED = 0.2


# With fewer changes, anything that changes may be noise.
_LEAST_CHANGES = 4


def has_noise(rounds: Floats, others: Floats, sizes: list[int]) -> bool:
    """Whether successive rounds of the same clients, with the same random numbers, differ as by fresh noise.

    Without noise in the state they are equal, or follow from each other: a model moves by the same in each round, and a
    momentum grows to its limit. Noise made of the random numbers and of a counter also differs, but with other random
    numbers it differs in another way, so there is no need to vary the state.

    Args:
        rounds: The releases, (rounds, dim).
        others: The same with other random numbers.
        sizes: Numbers of coordinates of the arrays of a release.
    """
    ends = np.cumsum(sizes)[:-1]
    pairs = zip(*(np.split(values, ends, axis=1) for values in (rounds, rounds - others)), strict=True)
    return any(_fresh(one) and not _fresh(difference) for one, difference in pairs if one.size)


def _fresh(rounds: Floats) -> bool:
    """Whether rounds of one array, (rounds, numbers), differ as by fresh noise."""
    changes = np.diff(rounds, axis=0)
    size = np.sqrt(np.mean(changes**2, axis=0))
    varies = size > 1e-6 * np.abs(rounds).max(axis=0)  # beyond rounding
    if not varies.any() or len(changes) < _LEAST_CHANGES:
        return bool(varies.any())
    standard = changes[:, varies] / size[varies]
    # All rounds are multiples of a few vectors if random numbers that are set lead to them, as in a tree of sums.
    if standard.shape[1] >= 2 * len(standard):
        values = np.linalg.svd(standard, compute_uv=False)
        if values[-1] < 1e-6 * values[0]:
            return False
    before = np.stack([standard[1:-1].ravel(), standard[:-2].ravel()], axis=1)
    after = standard[2:].ravel()
    weights = np.linalg.lstsq(before, after, rcond=None)[0]
    return float(np.sum((after - before @ weights) ** 2)) > _UNPREDICTED * float(np.sum(after**2))


def innovations(runs: Floats, sizes: list[int]) -> Floats:
    """Return runs whose spread is that of one round's noise, (runs, rounds, dim), from those of successive states.

    A model that sums up what was released before varies by all of its noise. What a round adds to it is known from the
    change, so changes count for arrays where they vary less.

    Args:
        runs: Releases after one more round each, (runs, rounds, dim).
        sizes: Numbers of coordinates of the arrays of one round's release.
    """
    if runs.shape[1] > 1 or len(runs) < 6:
        return runs
    changes = runs[1:] - runs[:-1]
    parts = [np.split(values, np.cumsum(sizes)[:-1], axis=2) for values in (runs[1:], changes)]
    smaller = [new if new.var(axis=0).sum() < old.var(axis=0).sum() else old for old, new in zip(*parts, strict=True)]
    return np.concatenate(smaller, axis=2)
