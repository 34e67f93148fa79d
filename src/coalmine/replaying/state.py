"""Noise that a release keeps in its state: drawn ahead of time, or made of a secret and a counter.

Random numbers that replay sets cannot change it, and a copy of the state has the same. But successive rounds differ. So
replay looks at idle rounds, whose clients send updates of zero. `state_search` runs them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from coalmine.arrays import Floats
from coalmine.replaying.noise import RATE, TESTS, excess_kurtosis

# Share of the changes from round to round that the two changes before do not predict. It is at least a half for
# independent noise, alone, summed up or in a momentum, and next to nothing for counters, decay and averages.
_UNPREDICTED = 0.2


# With fewer changes, anything that changes may be noise.
_LEAST_CHANGES = 4

# Noise that was drawn in earlier rounds counts if it is so many times that of the round itself. Released noise that
# comes back in a tree of sums stays below for the rounds that are looked at.
_PREPARED = 4.0

# The same share for what earlier releases do not predict: typically 0.1 in a model with a momentum of 0.9, and nothing
# but rounding if noise was released before.
_NOT_RELEASED = 0.01

# How far apart equal noise may be by rounding, in its standard deviations.
_EQUAL = 1e-3


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


def is_prepared(rounds: Floats, reset: Floats, spread: Floats, sizes: list[int]) -> bool:
    """Whether releases carry noise that was drawn in earlier rounds, and hardly any that is drawn in their own.

    A model and a momentum also keep noise, but noise that was released before, which earlier rounds predict.

    Args:
        rounds: Releases of successive rounds, with generators that run on, (rounds, dim).
        reset: The same, but with the same random numbers in the last round: row k is round k after rounds that ran on.
        spread: Standard deviation of a release over the random numbers of its own round, (dim,).
        sizes: Numbers of coordinates of the arrays of a release.
    """
    if len(rounds) <= _LEAST_CHANGES:
        return False
    ends = np.cumsum(sizes)[:-1]
    for before, after, own in zip(*(np.split(v, ends, axis=-1) for v in (rounds, reset, spread)), strict=True):
        changes = np.diff(after, axis=0)
        size = np.sqrt(np.mean(changes**2, axis=0))
        varies = size > 1e-6 * np.abs(after).max(axis=0)
        if not varies.any():
            continue
        # Round k knows what was released up to round k − 1.
        known = np.diff(before, axis=0)[:, varies] / size[varies]
        left = _unpredicted(known[1:-1], known[:-2], changes[2:, varies] / size[varies]) * size[varies]
        unpredicted = float(np.sum(left**2)) > _NOT_RELEASED * float(np.sum(changes[2:, varies] ** 2))
        if unpredicted and np.mean(left**2) / 2 > _PREPARED**2 * np.mean(own[varies] ** 2):
            return True
    return False


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
    left = _unpredicted(standard[1:-1], standard[:-2], standard[2:])
    return float(np.sum(left**2)) > _UNPREDICTED * float(np.sum(standard[2:] ** 2))


def _unpredicted(last: Floats, before_last: Floats, changes: Floats) -> Floats:
    """Return what is left of changes, (changes, numbers), after the best multiples of the two changes before."""
    before = np.stack([last.ravel(), before_last.ravel()], axis=1)
    weights = np.linalg.lstsq(before, changes.ravel(), rcond=None)[0]
    return np.asarray(changes - (before @ weights).reshape(changes.shape))


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


def period(rounds: Floats) -> int | None:
    """Return after how many rounds the noise of idle rounds, (rounds, numbers), starts again; None if it does not.

    Independent rounds, of noise that has a value with probability m at most, repeat n others in a row with a
    probability of at most mⁿ, whatever their numbers have to do with each other. Two rounds agree with a probability
    of at least m², which is measured by how often others do.
    """
    lengths = np.linalg.norm(rounds, axis=1, keepdims=True)
    # What a model adds may also repeat, or noise but for a learning rate.
    for numbers in (rounds, np.diff(rounds, axis=0), rounds / np.where(lengths > 0, lengths, 1.0)):
        size, count = numbers.std(axis=0), len(numbers)
        varies = size > 1e-6 * np.abs(numbers).max(axis=0, initial=0.0)
        values, size = numbers[:, varies], size[varies]
        if not values.size:
            continue
        agree = [
            float(np.mean((np.abs(values[lag:] - values[:-lag]) <= _EQUAL * size).all(axis=1)))
            for lag in range(1, count)
        ]
        first = next((lag for lag, share in enumerate(agree, 1) if share == 1), None)
        if first is None:
            continue
        others = [share for lag, share in enumerate(agree[: count // 2], 1) if lag % first]
        log_chance = (count - first) / 2 * math.log(max([1 / count, *others])) + math.log(3 * count)
        if log_chance < math.log(RATE):
            return first
    return None


@dataclass(frozen=True)
class Covered:
    """What noise covers of the movement by one client, in the rounds' own units.

    Args:
        share: Size of the noise along the movement, over what the claim needs.
        p_value: Probability of so little noise if the claim holds.
    """

    share: float
    p_value: float

    @property
    def too_little(self) -> bool:
        """Whether the claim does not hold, at the rate of one comparison."""
        return self.p_value < TESTS * RATE


def covered(releases: Floats, moved: Floats, noise_multiplier: float) -> Covered:
    """Compare noise with movements where each round has its own units, such as a learning rate that decays.

    Let round k move by mₖ, and let its noise, given all rounds before, have the covariance Σₖ. The claim says
    mₖᵀΣₖ⁻¹mₖ ≤ 1/z², so that the noise along mₖ has a standard deviation of at least z|mₖ| (Cauchy–Schwarz). So the sum
    of squares of n releases along mₖ over |mₖ|, each less anything that is known from earlier rounds, is
    stochastically larger than z² times a χ² variable with n degrees of freedom, whatever their means. Heavy tails
    reduce the degrees, as in `factors`.

    Args:
        releases: Releases of successive idle rounds, (rounds, numbers).
        moved: How far a client at the clip norm moves each of them, (rounds, numbers).
        noise_multiplier: The claimed noise multiplier.
    """
    squares = np.sum(moved**2, axis=1)
    shares = []
    for values, lengths, directions in (
        (releases, squares, moved),
        (np.diff(releases, axis=0), squares[1:], moved[1:]),  # what a model adds
    ):
        along = np.sum(values * directions, axis=1) / lengths
        shares.append(math.sqrt(float(np.mean(along**2))) / noise_multiplier)
    scaled = releases / np.sqrt(squares)[:, None]
    size = scaled.std(axis=0, ddof=1)
    heavy = excess_kurtosis((scaled - scaled.mean(axis=0))[:, size > 0] / size[size > 0]) if (size > 0).any() else 0.0
    heavy *= float(np.max(np.sum(moved**4, axis=1) / squares**2))
    degrees = (len(releases) - 1) / (1 + heavy / 2)
    share = min(shares)
    chance = float(special.gammainc(degrees / 2, degrees / 2 * share**2))
    return Covered(share, min(1.0, TESTS * len(shares) * chance))
