"""Who takes part in a round (participation), and the sampling scheme that an accountant may assume for it.

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
    """A rule for which clients take part in which round. Clients are numbered from 0 to population − 1.

    Example:
        >>> cohorts: Cohorts = PoissonCohorts(0.5)
        >>> cohorts.expected(population=100, round=0), str(cohorts.sampling(population=100, rounds=10, seed=0))
        (50.0, 'poisson:0.5')
    """

    def check(self, population: int, rounds: int) -> None:
        """Raise `InputError` if the rule does not fit the population or the number of rounds. By default any fits."""
        return

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """The clients of a round; with a ``trial`` above 0, those of a frozen round held before it."""

    def expected(self, population: int, round: int) -> float:
        """The expected number of clients in a round, which does not depend on the draw."""

    def exposures(self, population: int, rounds: int, seed: int) -> int:
        """The most rounds that any client can take part in; m times in the same round count as m². By default all."""
        return rounds

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """The sampling scheme for the accountant; raises `InputError` with an upper bound if there is no analysis."""


@dataclass(frozen=True)
class PoissonCohorts(Cohorts):
    """Each client takes part with probability ``q``, independently. Accounted for as ``Poisson(q)``.

    Args:
        q: The sampling probability, in (0, 1].

    Raises:
        InputError: If ``q`` is out of range.

    Example:
        >>> PoissonCohorts(0.3).cohort(10, seed=0, round=0)
        array([1, 4, 5])
    """

    q: float

    def __post_init__(self) -> None:
        if not 0 < check_number("the sampling probability q", self.q) <= 1:
            raise InputError(f"the sampling probability q must be in (0, 1], got {self.q}")

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """One coin flip per client."""
        return np.flatnonzero(generator(seed, "cohort", round, trial).random(population) < self.q)

    def expected(self, population: int, round: int) -> float:
        """q times the population."""
        return self.q * population

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """Poisson sampling."""
        return Poisson(self.q)


@dataclass(frozen=True)
class _Sized(Cohorts):
    """A rule by which every round has ``size`` clients."""

    size: int

    def __post_init__(self) -> None:
        check_count("the cohort's size", self.size)

    def expected(self, population: int, round: int) -> float:
        """Always ``size``."""
        return float(self.size)


class FixedSizeCohorts(_Sized):
    """``size`` clients per round, drawn without replacement. Accounted for as ``FixedSize``.

    Args:
        size: Clients per round.

    Raises:
        InputError: If ``size`` is not a positive whole number.

    Example:
        >>> len(FixedSizeCohorts(4).cohort(10, seed=0, round=0))
        4
    """

    def check(self, population: int, rounds: int) -> None:
        """The population must have at least ``size`` clients."""
        if self.size > population:
            raise InputError(f"the cohort's size must be at most the population of {population}, got {self.size}")

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """A draw without replacement, in the order of the clients."""
        return np.sort(generator(seed, "cohort", round, trial).choice(population, self.size, replace=False))

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """Sampling without replacement."""
        return FixedSize(self.size, population)


class WithReplacementCohorts(_Sized):
    """``size`` draws per round with replacement; a client drawn twice trains and counts twice.

    No accountant here has an analysis of this: a client drawn m times moves the sum by m clip norms. `Training.theory`
    asks for an explicit upper bound.

    Args:
        size: Draws per round.

    Raises:
        InputError: If ``size`` is not a positive whole number.

    Example:
        >>> len(WithReplacementCohorts(20).cohort(10, seed=0, round=0))
        20
    """

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """Independent draws, in the order of the clients."""
        return np.sort(generator(seed, "cohort", round, trial).integers(population, size=self.size))

    def exposures(self, population: int, rounds: int, seed: int) -> int:
        """Counted from this seed's draws."""
        return _exposures([self.cohort(population, seed, round) for round in range(rounds)], population)

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """Always raises `InputError`, with an upper bound in the message."""
        bound = AtMost(self.exposures(population, rounds, seed))
        raise InputError(
            "sampling with replacement has no analysis here, because a client drawn m times in a round moves the sum "
            f"by m clip norms. An upper bound that treats this seed's draws as public: set sampling={bound!r}"
        )


@dataclass(frozen=True)
class ShuffledCohorts(Cohorts):
    """Every client once per epoch, in random order. Accounted for as ``OncePerEpoch``.

    Each epoch is a shuffle of the clients, cut into cohorts of equal size (or one more).

    Args:
        rounds_per_epoch: Rounds per epoch.

    Raises:
        InputError: If ``rounds_per_epoch`` is not a positive whole number.

    Example:
        >>> rule = ShuffledCohorts(2)
        >>> sorted(int(client) for round in (0, 1) for client in rule.cohort(6, seed=0, round=round))
        [0, 1, 2, 3, 4, 5]
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
        """This round's part of the epoch's shuffle; a frozen round takes the same part of a fresh shuffle."""
        epoch, part = divmod(round, self.rounds_per_epoch)
        counters = (epoch,) if trial == 0 else (round, trial)
        order = generator(seed, "cohort", *counters).permutation(population)
        # The part that np.array_split would return, without cutting the others: epochs may have thousands of rounds.
        whole, left = divmod(population, self.rounds_per_epoch)
        first = part * whole + min(part, left)
        return np.sort(order[first : first + whole + (part < left)])

    def expected(self, population: int, round: int) -> float:
        """The size of this round's part."""
        whole, left = divmod(population, self.rounds_per_epoch)
        return float(whole + (round % self.rounds_per_epoch < left))

    def exposures(self, population: int, rounds: int, seed: int) -> int:
        """One round per epoch."""
        return -(-rounds // self.rounds_per_epoch)

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """At most once per epoch."""
        return OncePerEpoch(self.rounds_per_epoch)


@dataclass(frozen=True)
class ScheduledCohorts(Cohorts):
    """A fixed schedule. Accounted for as ``AtMost`` the rounds of the most frequent client.

    A client listed m times in a round moves the sum by m clip norms. The accounting counts this as m² rounds, since the
    Gaussian mechanism composed m² times is the same.

    Args:
        rounds: For each round, the clients that take part.

    Raises:
        InputError: If a client is not a whole number.

    Example:
        >>> ScheduledCohorts([[0, 1], [1, 2]]).exposures(3, rounds=2, seed=0)
        2
    """

    rounds: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        checked = tuple(
            tuple(check_count("a client of the schedule", client, least=0) for client in cohort)
            for cohort in self.rounds
        )
        object.__setattr__(self, "rounds", checked)

    def check(self, population: int, rounds: int) -> None:
        """All rounds must be scheduled and all clients exist."""
        if len(self.rounds) < rounds:
            raise InputError(f"the schedule has {len(self.rounds)} rounds, but the training has {rounds}")
        for number, cohort in enumerate(self.rounds):
            for client in cohort:
                if not 0 <= client < population:
                    raise InputError(
                        f"round {number} of the schedule has client {client}, but clients are 0 to {population - 1}"
                    )

    def cohort(self, population: int, seed: int, round: int, trial: int = 0) -> Ints:
        """As scheduled; a frozen round draws equally many clients at random, without replacement."""
        if trial == 0:
            return np.sort(np.asarray(self.rounds[round], dtype=np.int64))
        size = min(len(self.rounds[round]), population)
        return np.sort(generator(seed, "cohort", round, trial).choice(population, size, replace=False))

    def expected(self, population: int, round: int) -> float:
        """The scheduled number."""
        return float(len(self.rounds[round]))

    def exposures(self, population: int, rounds: int, seed: int) -> int:
        """Counted from the schedule."""
        return _exposures([np.asarray(cohort, dtype=np.int64) for cohort in self.rounds[:rounds]], population)

    def sampling(self, population: int, rounds: int, seed: int) -> Sampling:
        """At most the rounds of the most frequent client."""
        return AtMost(self.exposures(population, rounds, seed))


def _exposures(cohorts: Sequence[Ints], population: int) -> int:
    """The largest sum, over clients, of their squared number of appearances per round; at least 1."""
    exposures = np.zeros(population, dtype=np.int64)
    for cohort in cohorts:
        exposures += np.bincount(cohort, minlength=population) ** 2
    return max(1, int(exposures.max(initial=1)))
