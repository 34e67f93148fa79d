"""Who takes part in a round, and the accounting that fits it.

A cohort is a function of the seed and the round: nothing is remembered between rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from coalmine.accounting.sampling import AtMost, FixedSize, OncePerEpoch, Poisson, Sampling
from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count, check_number
from coalmine.seeds import generator


@runtime_checkable
class Cohorts(Protocol):
    """A rule that says who takes part in which round."""

    def check(self, population: int, rounds: int) -> None:
        """Refuse a population or a number of rounds that the rule does not fit."""

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """The clients of round ``round``; with ``trial`` above 0, those of a frozen round held before it."""

    def expected(self, population: int, round: int) -> float:
        """How many clients are expected in round ``round``: fixed in advance, whoever comes."""

    def exposures(self, population: int, rounds: int, seed: int) -> int:
        """The rounds that anybody can take part in; one in which a client comes m times counts as m²."""

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """What an accountant should make of it; refused with the nearest upper bound where there is no analysis."""


@dataclass(frozen=True)
class PoissonCohorts:
    """Each client takes part with probability ``q``, independently: accounted as ``Poisson(q)``."""

    q: float

    def __post_init__(self) -> None:
        if not 0 < check_number("the sampling probability q", self.q) <= 1:
            raise InputError(f"the sampling probability q must be in (0, 1], got {self.q}")

    def check(self, population: int, rounds: int) -> None:
        """Any population will do."""

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """Those whose coin came up."""
        return np.flatnonzero(generator(seed, "cohort", round, trial).random(population) < self.q)

    def expected(self, population: int, round: int) -> float:
        """q times the population."""
        return self.q * population

    def exposures(self, population: int, rounds: int, seed: int) -> int:
        """Every round, at the worst."""
        return rounds

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """Poisson sampling."""
        return Poisson(self.q)


@dataclass(frozen=True)
class FixedSizeCohorts:
    """``size`` clients a round, drawn without replacement: accounted as ``FixedSize``."""

    size: int

    def __post_init__(self) -> None:
        check_count("the cohort's size", self.size)

    def check(self, population: int, rounds: int) -> None:
        """The population must have so many."""
        _check_size(self.size, population)

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """A draw without replacement, in order of the clients."""
        return np.sort(generator(seed, "cohort", round, trial).choice(population, self.size, replace=False))

    def expected(self, population: int, round: int) -> float:
        """Always ``size``."""
        return float(self.size)

    def exposures(self, population: int, rounds: int, seed: int) -> int:
        """Every round, at the worst."""
        return rounds

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """Sampling without replacement."""
        return FixedSize(self.size, population)


@dataclass(frozen=True)
class WithReplacementCohorts:
    """``size`` draws a round with replacement; a client drawn twice trains and counts twice.

    There is no amplification to account for: a client drawn m times moves the sum by m clip norms.
    """

    size: int

    def __post_init__(self) -> None:
        check_count("the cohort's size", self.size)

    def check(self, population: int, rounds: int) -> None:
        """Any population will do."""

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """Independent draws, in order of the clients."""
        return np.sort(generator(seed, "cohort", round, trial).integers(population, size=self.size))

    def expected(self, population: int, round: int) -> float:
        """Always ``size``."""
        return float(self.size)

    def exposures(self, population: int, rounds: int, seed: int) -> int:
        """As this seed's draws have it."""
        return _exposures([self.cohort(population, seed, round) for round in range(rounds)], population)

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """Refused: no accountant here has an analysis of it."""
        bound = AtMost(self.exposures(population, rounds, seed))
        raise InputError(
            "sampling with replacement has no analysis here: a client drawn m times in a round moves the sum by m clip "
            f"norms. The nearest upper bound takes this seed's draws as known to everybody: give sampling={bound!r}"
        )


@dataclass(frozen=True)
class ShuffledCohorts:
    """Every client once per epoch: a shuffle, cut into ``rounds_per_epoch`` cohorts of the same size, but for one more.

    Accounted as ``OncePerEpoch``.
    """

    rounds_per_epoch: int

    def __post_init__(self) -> None:
        check_count("rounds_per_epoch", self.rounds_per_epoch)

    def check(self, population: int, rounds: int) -> None:
        """No cohort may be empty."""
        if self.rounds_per_epoch > population:
            raise InputError(
                f"rounds_per_epoch must be at most the population of {population}, got {self.rounds_per_epoch}"
            )

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """This round's part of the epoch's shuffle; a frozen round takes such a part of a shuffle of its own."""
        epoch, part = divmod(round, self.rounds_per_epoch)
        counters = (epoch,) if trial == 0 else (round, trial)
        order = generator(seed, "cohort", *counters).permutation(population)
        return np.sort(np.array_split(order, self.rounds_per_epoch)[part])

    def expected(self, population: int, round: int) -> float:
        """The size of this part."""
        whole, left = divmod(population, self.rounds_per_epoch)
        return float(whole + (round % self.rounds_per_epoch < left))

    def exposures(self, population: int, rounds: int, seed: int) -> int:
        """One round in each epoch."""
        return -(-rounds // self.rounds_per_epoch)

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """At most once in each epoch."""
        return OncePerEpoch(self.rounds_per_epoch)


@dataclass(frozen=True)
class ScheduledCohorts:
    """A schedule of one's own: ``rounds[t]`` lists the clients of round t. Accounted as ``AtMost``.

    A client listed m times in a round moves the sum by m clip norms, which the accounting counts as m² rounds: the
    Gaussian mechanism composed m² times is the same.
    """

    rounds: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        plain = tuple(
            tuple(check_count("a client of the schedule", client, least=0) for client in cohort)
            for cohort in self.rounds
        )
        object.__setattr__(self, "rounds", plain)

    def check(self, population: int, rounds: int) -> None:
        """Every client must exist, and every round be there."""
        if len(self.rounds) < rounds:
            raise InputError(f"the schedule has {len(self.rounds)} rounds, the training {rounds}")
        for number, cohort in enumerate(self.rounds):
            for client in cohort:
                if not 0 <= client < population:
                    raise InputError(
                        f"the schedule's round {number} has client {client}, the clients are 0..{population - 1}"
                    )

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """As scheduled; frozen rounds draw as many clients at random, without replacement."""
        if trial == 0:
            return np.sort(np.asarray(self.rounds[round], dtype=np.int64))
        size = min(len(self.rounds[round]), population)
        return np.sort(generator(seed, "cohort", round, trial).choice(population, size, replace=False))

    def expected(self, population: int, round: int) -> float:
        """As many as are scheduled."""
        return float(len(self.rounds[round]))

    def exposures(self, population: int, rounds: int, seed: int) -> int:
        """As scheduled."""
        return _exposures([np.asarray(cohort, dtype=np.int64) for cohort in self.rounds[:rounds]], population)

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """As often as the most frequent client."""
        return AtMost(self.exposures(population, rounds, seed))


def _check_size(size: int, population: int) -> None:
    if size > population:
        raise InputError(f"a cohort of {size} clients needs as many, the population has {population}")


def _exposures(cohorts: Sequence[Ints], population: int) -> int:
    exposures = np.zeros(population, dtype=np.int64)
    for cohort in cohorts:
        exposures += np.bincount(cohort, minlength=population) ** 2
    return max(1, int(exposures.max(initial=1)))
