"""Where the noise looks small: sets of numbers for one client to move alone.

They are chosen by some of the runs and judged by others. So choosing needs no guarantee, and any rule would be valid.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from coalmine.arrays import Floats, Ints
from coalmine.replaying.noise import Noise

_RATIOS = (0.01, 0.1, 0.36, 0.7)  # shares of an array's noise variance for which the best stretch is looked for
_PLAIN = 3.0  # log-likelihood that a set gains beyond the logarithm of the number of sets that it is chosen from
_MOST_ARRAYS = 4


def quiet_places(noise: Noise) -> list[Ints]:
    """Return sets of coordinates whose noise looks smaller than the rest of their array, or than other arrays.

    The largest comes first.

    Args:
        noise: Noise that was measured for this purpose only.
    """
    numbers = np.flatnonzero(~noise.bare)
    if numbers.size < 2:
        return []
    scale = (noise.std / np.where(noise.bare, 1.0, noise.levels))[numbers]
    power, degrees = noise.variances * scale**2, len(noise.residuals) - 1
    chosen = [_stretch(power, degrees, ratio) for ratio in _RATIOS]
    chosen.append(_smallest(power, degrees))
    sets = [numbers[members] for members in chosen if 0 < members.size < numbers.size]
    sets = sorted([*sets, *_arrays(noise)], key=len, reverse=True)
    return [places for i, places in enumerate(sets) if not any(np.array_equal(places, other) for other in sets[:i])]


def _stretch(power: Floats, degrees: int, ratio: float) -> Ints:
    """Return the stretch of numbers that gains the most by noise of this share of the usual variance, if plausible."""
    gains = degrees / 2 * (-np.log(ratio) - power * (1 / ratio - 1))
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    last = int(np.argmax(sums - np.minimum.accumulate(sums)))
    first = int(np.argmin(sums[: last + 1]))
    plausible = sums[last] - sums[first] > _PLAIN + 2 * np.log(power.size)
    return np.arange(first, last) if plausible else np.empty(0, dtype=np.int64)


def _smallest(power: Floats, degrees: int) -> Ints:
    """Return the numbers of smallest noise whose own level gains the most over one for all, if plausible."""
    order = np.argsort(power, kind="stable")
    count = np.arange(1, power.size)
    ratios = np.maximum(np.cumsum(power[order])[:-1] / count, 1e-12)
    choices = special.gammaln(power.size + 1) - special.gammaln(count + 1) - special.gammaln(power.size - count + 1)
    gains = degrees * count / 2 * (ratios - 1 - np.log(ratios)) * (ratios < 1) - choices
    best = int(np.argmax(gains))
    return np.sort(order[: best + 1]) if gains[best] > _PLAIN else np.empty(0, dtype=np.int64)


def _arrays(noise: Noise) -> list[Ints]:
    """Return the arrays of the least noise, if arrays differ."""
    levels = {int(array): float(noise.levels[noise.arrays == array].max()) for array in np.unique(noise.arrays)}
    lowest = sorted((level, array) for array, level in levels.items() if 0 < level < noise.level)[:_MOST_ARRAYS]
    return [np.flatnonzero((noise.arrays == array) & ~noise.bare) for _, array in lowest if np.ptp(noise.std) > 0]
