"""How large the claimed noise is in what a training releases, by the share of the canaries in the same release.

Nobody has to say what a sum was divided by, or what the server did with it. Whatever turns the noisy sum into a
release keeps no larger a share of the canaries than of the noise (docs/checks.md), so the noise of a release is at
least the canaries' share of it times the claimed noise. `ShareRecord` records the share, `noise_floor` bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

from coalmine.arrays import Array, Floats
from coalmine.checks.update_record import NoiseRecord
from coalmine.protocol import Vector
from coalmine.vectors import dot

# The arrays that a checkpoint keeps.
_RECORDED = ("products", "canaries", "energies", "wholes", "norms", "crossed", "crossing", "before", "older", "dropped")
_MOST_LAGS, _LAG_NUMBERS, _LAG_DIMENSIONS = 3, 1 << 22, 512
_AT_ONCE = 1 << 20
_CELLS = 1 << 18  # stretches of coordinates whose products are kept by themselves
_STATED = 0.9  # of the noise by a stated divisor, since a few of the clients that it counts may have dropped out
_PRECISE = 1 / 64  # relative error from which on a group of rounds is judged by its own share


class NoiseFloor(NamedTuple):
    """Lower limits on the claimed noise in what was recorded, 0 where nothing is known.

    Args:
        noise_multipliers: Claimed noise multiplier of each round, (bins,).
        typical: In each tensor and round, by the share of all rounds that are like it, (bins, tensors).
        slack: What ``typical`` is of the noise that is most likely, in each tensor, (tensors,).
        of_round: In each round, by the share of this round alone, (bins,).
        weights: How much each tensor counts in that, (bins, tensors).
        relative: What tensors have of the noise of a round, at least, (tensors,).
        whole: In each round, where what came in with the canaries of earlier rounds counts too, (bins,).
        news: How much of what is new in a round is claimed noise, by the canaries, times ``precision``, (bins,).
        precision: The noise multiplier squared over the variance of that, (bins,).
        length: How many clip norms a canary counts for in the sum, at least, by the stated divisor; 0 if unknown.
    """

    noise_multipliers: Floats
    typical: Floats
    slack: Floats
    of_round: Floats
    weights: Floats
    relative: Floats
    whole: Floats
    news: Floats
    precision: Floats
    length: float


class ShareRecord:
    """A record of how much of the canaries' sum the releases contain.

    What a server carries over from earlier releases, as momentum does, adds up faster for canaries that are in every
    round than for noise. So only what the last releases do not explain counts: the *news* of a release.

    Args:
        record: What else is recorded, for its tensors and bins.
    """

    def __init__(self, record: NoiseRecord) -> None:
        self.layers, self.bin_of_round = record.layers, record.bin_of_round
        starts, sizes, dim = self.layers.starts, self.layers.sizes, self.layers.dim
        # By bin and tensor: products of news and canaries, energies of the canaries and of the news, and the products
        # of whole releases and canaries.
        self.products, self.canaries, self.energies, self.wholes = np.zeros((4, record.bins, len(sizes)))
        # How many clip norms a share of 1 is in the sum of the clients, by the stated divisor; 0 if none was stated.
        self.norms = np.zeros(record.bins)
        # Over all rounds, by stretches of a tensor: products, and energies of the canaries.
        cells = []
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            parts = max(1, min(size, _CELLS * size // dim))
            cells.append(start + size * np.arange(parts) // parts)
        self.cells = np.concatenate(cells).astype(np.int64)
        self.tensor_of_cell = np.searchsorted(starts, self.cells, side="right") - 1
        self.crossed, self.crossing = np.zeros((2, len(self.cells)))
        # The last releases, at most ``lags`` of them; the mean of those before; and how many these were.
        self.lags = max(1, min(_MOST_LAGS, _LAG_NUMBERS // dim, dim // _LAG_DIMENSIONS))
        self.before, self.older = list[Vector](), np.zeros(dim if self.lags > 1 else 0, dtype=np.float32)
        self.dropped = np.zeros((), dtype=np.int64)

    def news(self, update: Vector, canaries: Vector) -> Vector:
        """Return what is new in a release beside the last ones, which may be the release itself.

        Args:
            update: The release in any unit, (dim,).
            canaries: Sum of the inserted canaries, (dim,).
        """
        news, length = update, dot(canaries, canaries)
        if self.before:
            # Least squares on the releases before. What is in all of them is no sign that anything was carried over:
            # neither the canaries, nor what clients send again and again, for which the mean of older releases stands.
            terms = [*self.before, self.older] if self.dropped and self.older.size else self.before
            gram = np.array([[dot(one, other) for other in terms] for one in terms])
            across = np.array([dot(one, update) for one in terms])
            if length > 0:
                products = np.array([dot(one, canaries) for one in terms])
                gram -= np.outer(products, products) / length
                across -= products * dot(update, canaries) / length
            factors = np.linalg.lstsq(gram, across, rcond=1e-6)[0]
            news = update.copy()
            for factor, one in zip(factors, self.before, strict=False):
                news -= np.float32(factor) * one
        self.before = [*self.before, update]
        if len(self.before) > self.lags:
            self.dropped += 1
            oldest = self.before.pop(0)
            if self.older.size:
                self.older += (oldest - self.older) / np.float32(int(self.dropped))
        return news

    def add(
        self, round: int, update: Vector, news: Vector, canaries: Vector, unit: float = 1.0, norm: float = 0.0
    ) -> None:
        """Record a release.

        Args:
            round: Number of the round.
            update: The release, (dim,).
            news: What is new in it, (dim,).
            canaries: Sum of the inserted canaries in clip norms, (dim,).
            unit: What the release is measured in.
            norm: How many clip norms one unit is in the sum of the clients; 0 if unknown.
        """
        index = self.bin_of_round[round]
        crossed, crossing = self._by_cell(canaries, news) / unit, self._by_cell(canaries, canaries)
        self.crossed += crossed
        self.crossing += crossing
        self.products[index] += np.bincount(self.tensor_of_cell, crossed)
        self.canaries[index] += np.bincount(self.tensor_of_cell, crossing)
        self.energies[index] += np.bincount(self.tensor_of_cell, self._by_cell(news, news)) / unit**2
        self.wholes[index] += np.bincount(self.tensor_of_cell, self._by_cell(canaries, update)) / unit
        self.norms[index] = norm

    def _by_cell(self, one: Vector, other: Vector) -> Floats:
        """Return the dot product of two vectors in each cell, with temporary arrays of a bounded size."""
        sums, many = np.empty(len(self.cells)), max(1, len(self.cells) * _AT_ONCE // self.layers.dim)
        for first in range(0, len(self.cells), many):
            cells = self.cells[first : first + many]
            stop = self.cells[first + many] if first + many < len(self.cells) else self.layers.dim
            part = one[cells[0] : stop] * other[cells[0] : stop]
            sums[first : first + many] = np.add.reduceat(part, cells - cells[0], dtype=np.float64)
        return sums

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint keeps."""
        return {name: np.array(getattr(self, name)) for name in _RECORDED}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore what `state` returned."""
        for name in _RECORDED:
            setattr(self, name, np.array(state[name]))
        self.before = list(self.before)


def noise_floor(
    shares: ShareRecord, record: NoiseRecord, noise_multipliers: Floats, level: float, *, unprocessed: bool = False
) -> NoiseFloor:
    """Bound the claimed noise in the releases from below.

    All limits hold together with probability 1 - ``level``. The error of a share is everything else in the release,
    which has a random direction to the canaries: a t-test of linear regression.

    Args:
        shares: The shares of the canaries.
        record: The releases.
        noise_multipliers: Claimed noise multiplier of each bin of rounds, (bins,).
        level: Significance of all limits together.
        unprocessed: Whether releases are noisy sums over the stated divisors, to which nothing else was done.
    """
    sizes, (bins, tensors) = shares.layers.sizes, shares.products.shape
    degrees: Floats = np.bincount(shares.tensor_of_cell).astype(np.float64) - 1
    level_of_each = level / (tensors + 3 * bins)

    def limit(products: Floats, canaries: Floats, variances: Floats, freedom: Floats) -> Floats:
        lower = products - stats.t.isf(level_of_each, np.maximum(freedom, 1)) * np.sqrt(variances)
        known = (canaries > 0) & (np.asarray(freedom) > 0)
        return np.where(known, np.maximum(lower, 0.0) / np.where(known, canaries, 1.0), 0.0)

    # The products with canaries, their energies, and the variances of the products.
    products, present = shares.products.sum(axis=1), shares.canaries.sum(axis=1)
    weights = shares.canaries / np.where(present > 0, present, 1.0)[:, None]
    explained = shares.products**2 / np.maximum(shares.canaries, 1e-300)
    variances = shares.canaries * np.maximum(shares.energies - explained, 0.0) / sizes
    starts = np.searchsorted(record.edges, shares.layers.starts)
    energies, numbers = (np.add.reduceat(terms, starts, axis=1) for terms in (record.energies, record.numbers))
    of_round = limit(products, present, variances.sum(axis=1), degrees.sum())
    whole_variances = (shares.canaries * energies / sizes).sum(axis=1)
    whole = limit(shares.wholes.sum(axis=1), present, whole_variances, degrees.sum())
    # A few rounds in which noise is missing for certain say nothing about the others.
    released = np.sqrt((weights * energies / np.maximum(numbers, 1)).sum(axis=1))
    usual = (present > 0) & (of_round * noise_multipliers <= released)
    if 2 * usual.sum() < np.count_nonzero(present):
        usual = present > 0
    # Where the same canaries are in many rounds, what clients send may have a product with them that adds up.
    crossed, crossing = (np.bincount(shares.tensor_of_cell, terms) for terms in (shares.crossed, shares.crossing))
    share = crossed / np.maximum(crossing, 1e-300)
    errors = (shares.crossed - share[shares.tensor_of_cell] * shares.crossing) ** 2
    spread = np.bincount(shares.tensor_of_cell, errors) * (1 + 1 / np.maximum(degrees, 1))
    excess = np.maximum(1.0, spread / np.maximum(variances.sum(axis=0), 1e-300))
    variances_of_round = variances.sum(axis=1) * max(1.0, float(spread.sum() / max(variances.sum(), 1e-300)))
    # Each tensor by all rounds, and all rounds by groups that are as small as their shares are precise.
    total, canaries = shares.products[usual].sum(axis=0), shares.canaries[usual].sum(axis=0)
    by_tensor = limit(total, canaries, excess * variances[usual].sum(axis=0), degrees)
    average = max(float(total.sum() / max(canaries.sum(), 1e-300)), 1e-300)
    groups: list[list[int]] = [[]]
    for t in np.flatnonzero(usual).tolist():
        groups[-1].append(t)
        if np.sqrt(variances_of_round[groups[-1]].sum()) < _PRECISE * products[groups[-1]].sum():
            groups.append([])
    if len(groups) > 1:  # the last rounds are too few for a group
        groups[-2:] = [groups[-2] + groups[-1]]
    factors = np.zeros(bins)
    for group in groups:
        terms = (products[group].sum(), present[group].sum(), variances_of_round[group].sum())
        factors[group] = 1.0 if len(groups) == 1 else limit(*terms, degrees.sum()) / average
    length, stated = of_round * shares.norms, shares.norms > 0
    news = np.sqrt(shares.energies.sum(axis=1) / (np.maximum(record.counts, 1) * shares.layers.dim))
    floor = NoiseFloor(
        noise_multipliers=noise_multipliers,
        typical=np.multiply.outer(noise_multipliers * factors, by_tensor),
        slack=np.minimum(1.0, by_tensor * canaries / np.maximum(total, 1e-300)),
        of_round=noise_multipliers * of_round,
        weights=weights,
        relative=np.minimum(1.0, by_tensor / average),
        whole=noise_multipliers * whole,
        news=products * noise_multipliers / np.maximum(news, 1e-300),
        precision=present,
        length=float(np.median(length[stated])) if stated.any() else 0.0,
    )
    if not (unprocessed and stated.any()):
        return floor
    # Then one clip norm is known without canaries, of which a few measure little.
    known = _STATED * noise_multipliers * stated / np.where(stated, shares.norms, 1.0)
    return floor._replace(
        typical=np.maximum(floor.typical, known[:, None]), of_round=np.maximum(floor.of_round, known),
        whole=np.maximum(floor.whole, known), relative=np.ones(tensors), slack=np.full(tensors, _STATED),
    )  # fmt: skip
