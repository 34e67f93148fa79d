"""`ClaimedNoise`: the record of a training beside the noise that it claims, which the checks of the noise compare."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import stats

from coalmine.arrays import Bools, Floats, Ints
from coalmine.methods.one_shot.noise_record import NoiseRecord
from coalmine.stats.noise_tests import energy_p_value

SIZE_TESTS = 5
"""Families of tests of the size: blocks, rounds, blocks in single rounds, numbers near zero, single numbers."""

_UNCOMMON = 0.01  # probability of an energy, over the number of blocks, below which it is of another size


@dataclass(frozen=True, eq=False)
class ClaimedNoise:
    """The record of a training beside the noise that it claims.

    Args:
        record: What was recorded.
        noise_multipliers: Claimed noise multiplier of each round, (rounds,).
        level: Significance of each of the checks.
        canaries_share: How much of the canaries' sum the releases contain, and its standard error, if that is known.
        even_noise: Whether the claim states the noise of every tensor, so that none may have less.
    """

    record: NoiseRecord
    noise_multipliers: Floats
    level: float
    canaries_share: tuple[float, float] | None = None
    even_noise: bool = False

    @property
    def is_low_everywhere(self) -> bool:
        """Whether the whole update has less than the claimed noise over all rounds (see `low_everywhere`)."""
        energies, dimensions = self.energies
        return low_everywhere(self.by_block <= self.level, energies.sum(axis=0), dimensions.sum(axis=0))

    @property
    def is_mostly_missing(self) -> bool:
        """Whether blocks with most of the numbers have too little noise, and so in the first round already.

        Noise that repeats in all rounds may be small by chance in all of them together, but not in a single one.
        """
        energies, dimensions = self.energies
        at_first = SIZE_TESTS * energies.shape[1] * energy_p_value(energies[0], dimensions[0])
        low = (self.by_block <= self.level) & (at_first <= self.level)
        return float(self.record.block_sizes[low].sum()) > self.record.layers.dim / 2

    @cached_property
    def energies(self) -> tuple[Floats, Floats]:
        """Energy of each block in each round in units of the claimed variance, and its dimensions, (rounds, blocks)."""
        record, seen = self.record, self.record.counts > 0
        noise = self.bin_noise[seen][:, None]
        dimensions: Floats = np.multiply.outer(record.counts[seen], record.block_sizes).astype(np.float64)
        rounding = record.rounding[seen][:, None] / noise
        return with_rounding(record.energies[seen] / noise**2, dimensions, rounding), dimensions

    @cached_property
    def by_block(self) -> Floats:
        """The p-value of each block over all rounds, adjusted for all tests of its check, (blocks,)."""
        energies, dimensions = self.energies
        p_values: Floats = SIZE_TESTS * energies.shape[1] * energy_p_value(energies.sum(axis=0), dimensions.sum(axis=0))
        return p_values

    @property
    def low_tensors(self) -> Bools:
        """Which tensors have a block with too little noise, (tensors,)."""
        low = self.record.tensor_of_block[self.by_block <= self.level]
        return np.isin(np.arange(len(self.record.layers.names)), low)

    @property
    def bin_noise(self) -> Floats:
        """The smallest noise multiplier of each bin of rounds, (bins,)."""
        bins = np.array([self.record.bin_of(round) for round in range(self.record.rounds)])
        least = np.full(self.record.bins, np.inf)
        np.minimum.at(least, bins, self.noise_multipliers)
        return least

    @property
    def rows(self) -> tuple[Ints, Floats, Floats]:
        """Sampled rounds in order, their updates in standard deviations, and the rounding of each."""
        record = self.record
        order = np.argsort(record.sampled)[np.sum(record.sampled < 0) :]
        rounds = record.sampled[order]
        noise = self.noise_multipliers[rounds]
        rounding = np.array([record.rounding[record.bin_of(round)] for round in rounds.tolist()]) / noise
        return rounds, record.samples[order].astype(np.float64) / noise[:, None], rounding


def low_everywhere(low: Bools, energies: Floats, dimensions: Floats) -> bool:
    """Whether noise is missing everywhere: in some blocks for certain, and the others look like these.

    Blocks of a few numbers cannot lack noise for certain. They look like the others if each has an energy that is
    common with as little noise, and if that much noise explains all of them better than the claimed noise does.

    Args:
        low: Which blocks have less than the claimed noise, (blocks,).
        energies: Energy of each block in units of the claimed variance, (blocks,).
        dimensions: Their dimensions, (blocks,).
    """
    if low.all() or not low.any():
        return bool(low.any())
    share = float(energies[low].sum() / dimensions[low].sum())  # of the variance
    if not 0 < share < 1:
        return False
    others, numbers = energies[~low], dimensions[~low]
    common = bool((stats.chi2.sf(others / share, numbers) >= _UNCOMMON / others.size).all())
    # The logarithms of the densities of the energies, without what they share.
    likelier = -numbers.sum() * np.log(share) - others.sum() * (1 / share - 1) > 0
    return common and bool(likelier)


def with_rounding(energy: Floats, dimensions: Floats, rounding: Floats | float) -> Floats:
    """Return the largest energy before rounding: it moved a vector of k numbers by at most rounding · √k."""
    return np.square(np.sqrt(np.maximum(energy, 0.0)) + rounding * np.sqrt(dimensions))
