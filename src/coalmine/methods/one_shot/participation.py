"""Participation: in which rounds canaries take part, and how an accountant treats that.

The canaries of a round are a function of the seed and the round, so nothing has to be stored. Held-out canaries are
scheduled like inserted ones: a score that uses a canary's rounds then treats both sides alike. Andrew et al. (2023),
Sections 4 and 5.3, discuss realistic and worst-case patterns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from coalmine.accounting.sampling import AtMost, EveryRound, FixedSize, Poisson, Sampling
from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count, check_number
from coalmine.parsing import parse_kind
from coalmine.seeds import generator

Knowledge = Literal["rounds", "rate", "once-per-epoch"]
"""What an adversary knows about a canary's rounds: the rounds themselves, the probability of each round, or that it is
one round of each epoch."""


class Participation(ABC):
    """A rule for which canaries take part in a round.

    Subclass it for a pattern that the classes below do not cover. ``count`` is always the number of all canaries,
    inserted and held out.

    Example:
        >>> PoissonParticipation(0.2).present(count=10, rounds=5, seed=0, round=3)
        array([8])
    """

    knowledge: ClassVar[Knowledge]
    """What the adversary knows about a canary's rounds."""

    drawn_by_training: ClassVar[bool] = False
    """Whether the training draws the canaries and reports them with `record`."""

    def check(self, count: int, rounds: int) -> None:
        """Check that the rule fits the training.

        Raises:
            InputError: If it does not.
        """
        return

    @abstractmethod
    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """Return the canaries that take part in a round, in ascending order."""

    @abstractmethod
    def rate(self, count: int, rounds: int, round: int) -> float:
        """Return the expected share of the canaries in a round."""

    @abstractmethod
    def sampling(self, count: int, rounds: int) -> Sampling:
        """Return the sampling to account for, against an adversary who knows no more than the rule."""

    def ends_epoch(self, rounds: int, round: int) -> bool:
        """Return whether an epoch ends with this round."""
        return False

    @property
    def is_one_secret_round(self) -> bool:
        """Whether each canary takes part in exactly one round, which the adversary does not know."""
        return False

    def record(self, round: int, canaries: Sequence[int]) -> None:
        """Record which canaries the training drew for a round."""
        return

    def record_draw(self, round: int, size: int, population: int) -> str | None:
        """Record how many nodes the training drew for a round; return a warning if the declared share is smaller."""
        return None

    def record_aborted(self, round: int) -> None:
        """Record that a round was aborted."""
        return


@dataclass(frozen=True)
class PoissonParticipation(Participation):
    """Each canary takes part in each round independently.

    Args:
        q: Probability of taking part in a round, in (0, 1].

    Example:
        >>> str(PoissonParticipation(0.2).sampling(count=10, rounds=4))
        'poisson:0.2'
    """

    q: float
    knowledge: ClassVar[Knowledge] = "rate"

    def __post_init__(self) -> None:
        _check_share("the probability of taking part", self.q)

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """Return the canaries of a round: one coin flip each."""
        return np.flatnonzero(generator(seed, "participation", round).random(count) < self.q)

    def rate(self, count: int, rounds: int, round: int) -> float:
        """Return ``q``."""
        return self.q

    def sampling(self, count: int, rounds: int) -> Sampling:
        """Return Poisson sampling."""
        return Poisson(self.q)


@dataclass(frozen=True)
class FixedShareParticipation(Participation):
    """The same number of canaries takes part in each round, drawn without replacement.

    If the share is not a whole number of canaries, each round rounds it up or down at random.

    Args:
        share: Share of the canaries in a round, in (0, 1].

    Example:
        >>> FixedShareParticipation(0.3).present(count=10, rounds=4, seed=0, round=3)
        array([1, 4, 6])
    """

    share: float
    knowledge: ClassVar[Knowledge] = "rate"

    def __post_init__(self) -> None:
        _check_share("the share that takes part", self.share)

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """Return the canaries of a round: a draw without replacement."""
        draw = generator(seed, "participation", round)
        size = int(self.share * count + 1e-9 + draw.random())
        return np.sort(draw.permutation(count)[: min(size, count)])

    def rate(self, count: int, rounds: int, round: int) -> float:
        """Return the share."""
        return self.share

    def sampling(self, count: int, rounds: int) -> Sampling:
        """Return fixed-size sampling, with the number of canaries rounded up."""
        return FixedSize(min(count, math.ceil(self.share * count - 1e-9)), count)


@dataclass(frozen=True)
class EpochParticipation(Participation):
    """Each canary takes part once per epoch, in a random round (Andrew et al. 2023, Section 5.3).

    Args:
        epochs: Number of epochs that the training is divided into.

    Example:
        >>> participation = EpochParticipation(epochs=2)
        >>> [participation.present(count=6, rounds=4, seed=0, round=t).tolist() for t in range(4)]
        [[2, 3, 4], [0, 1, 5], [1, 2, 5], [0, 3, 4]]
    """

    epochs: int = 1
    knowledge: ClassVar[Knowledge] = "once-per-epoch"

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)

    def check(self, count: int, rounds: int) -> None:
        """Check that every epoch has a round."""
        if self.epochs > rounds:
            raise InputError(f"epochs = {self.epochs} does not fit a training of {rounds} rounds: use at most {rounds}")

    def epoch(self, rounds: int, round: int) -> tuple[int, int, int]:
        """Return the number of a round's epoch, its first round, and the round after its last."""
        edges = np.arange(self.epochs + 1) * rounds // self.epochs
        number = int(np.searchsorted(edges, round, side="right")) - 1
        return number, int(edges[number]), int(edges[number + 1])

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """Return this round's part of the epoch's shuffled canaries."""
        number, start, stop = self.epoch(rounds, round)
        order = generator(seed, "participation", number).permutation(count)
        edges = np.arange(stop - start + 1) * count // (stop - start)
        # With fewer canaries than rounds some rounds stay empty. They must not be the same in every epoch.
        slots = generator(seed, "participation", number, 1).permutation(stop - start)
        slot = int(slots[round - start])
        return np.sort(order[edges[slot] : edges[slot + 1]])

    def rate(self, count: int, rounds: int, round: int) -> float:
        """Return one over the epoch's length."""
        _, start, stop = self.epoch(rounds, round)
        return 1 / (stop - start)

    def sampling(self, count: int, rounds: int) -> Sampling:
        """Return one participation per epoch; no analysis exploits that the round is secret."""
        return AtMost(self.epochs)

    def ends_epoch(self, rounds: int, round: int) -> bool:
        """Return whether this is the last round of its epoch."""
        return round + 1 == self.epoch(rounds, round)[2]

    @property
    def is_one_secret_round(self) -> bool:
        """Whether there is a single epoch."""
        return self.epochs == 1


@dataclass(frozen=True)
class LastRoundsParticipation(Participation):
    """Every canary takes part in each of the last rounds, which the final model remembers best.

    Args:
        last: Number of rounds, or None for all rounds.

    Example:
        >>> participation = LastRoundsParticipation(last=1)
        >>> [participation.present(count=3, rounds=2, seed=0, round=t).tolist() for t in range(2)]
        [[], [0, 1, 2]]
    """

    last: int | None = None
    knowledge: ClassVar[Knowledge] = "rounds"

    def __post_init__(self) -> None:
        if self.last is not None:
            check_count("last", self.last)

    def check(self, count: int, rounds: int) -> None:
        """Check that there are that many rounds."""
        if self.last is not None and self.last > rounds:
            raise InputError(f"last = {self.last} does not fit a training of {rounds} rounds: use at most {rounds}")

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """Return all canaries or none."""
        return np.arange(count if self.rate(count, rounds, round) else 0)

    def rate(self, count: int, rounds: int, round: int) -> float:
        """Return 1 or 0."""
        return 1.0 if self.last is None or round >= rounds - self.last else 0.0

    def sampling(self, count: int, rounds: int) -> Sampling:
        """Return participation in every round, or in ``last`` of them."""
        return EveryRound() if self.last is None else AtMost(self.last)


@dataclass(frozen=True)
class ScheduledParticipation(Participation):
    """Canaries take part by an explicit schedule.

    Args:
        schedule: For each round the indices of its canaries, from 0 to ``2 * canaries - 1``.

    Example:
        >>> str(ScheduledParticipation([[0, 1], [1], []]).sampling(count=2, rounds=3))
        'at-most:2'
    """

    schedule: Sequence[Sequence[int]]
    knowledge: ClassVar[Knowledge] = "rounds"

    def check(self, count: int, rounds: int) -> None:
        """Check the number of rounds and the indices of each round."""
        if len(self.schedule) != rounds:
            raise InputError(f"the schedule has {len(self.schedule)} rounds, but the training has {rounds}")
        for round, canaries in enumerate(self.schedule):
            indices = np.asarray(canaries, dtype=np.int64)
            if len(indices) and not 0 <= indices.min() <= indices.max() < count:
                raise InputError(f"the schedule of round {round} has a canary outside 0 to {count - 1}")
            if len(np.unique(indices)) != len(indices):
                raise InputError(
                    f"the schedule of round {round} lists a canary twice: list each at most once per round"
                )

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """Return the scheduled canaries."""
        return np.sort(np.asarray(self.schedule[round], dtype=np.int64))

    def rate(self, count: int, rounds: int, round: int) -> float:
        """Return the scheduled share."""
        return len(self.schedule[round]) / count

    def sampling(self, count: int, rounds: int) -> Sampling:
        """Return as many participations as the most frequent canary has."""
        times = np.zeros(count, dtype=np.int64)
        for canaries in self.schedule:
            times[np.asarray(canaries, dtype=np.int64)] += 1
        return AtMost(max(1, int(times.max())))


@dataclass(frozen=True)
class ObservedParticipation(Participation):
    """The training draws a cohort from all nodes, canaries among them, and reports which canaries it drew.

    All canaries are nodes; held-out ones send nothing. A canary therefore takes part with probability
    ``size / population``, and being inserted does not change who is drawn.

    Args:
        size: Number of nodes drawn per round.
        population: Number of all nodes: clients and canaries, inserted and held out.

    Example:
        >>> participation = ObservedParticipation(size=20, population=100)
        >>> participation.record(0, [5, 2])
        >>> participation.present(count=10, rounds=4, seed=0, round=0)
        array([2, 5])
    """

    size: int
    population: int
    knowledge: ClassVar[Knowledge] = "rate"
    drawn_by_training: ClassVar[bool] = True
    _recorded: dict[int, Ints] = field(default_factory=dict, init=False, repr=False, compare=False)
    _drawn: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        FixedSize(self.size, self.population)  # raises if the sizes are impossible

    def __str__(self) -> str:
        return f"observed:{self.size}/{self.population}"

    def record_draw(self, round: int, size: int, population: int) -> str | None:
        """Record how many nodes the training drew for a round; the largest share is accounted for."""
        if size * self.population <= self.size * population:
            return None
        self._drawn.append((size, population))
        return (
            f"round {round}: {size} of {population} nodes were sampled, a larger share than the declared {self.size} "
            f"of {self.population}; the claim accounts for it"
        )

    def record(self, round: int, canaries: Sequence[int]) -> None:
        """Record which canaries the training drew for a round."""
        self._recorded[round] = np.sort(np.asarray(canaries, dtype=np.int64))

    def record_aborted(self, round: int) -> None:
        """Record an aborted round, for which the training may never have reported its canaries."""
        self._recorded.setdefault(round, np.empty(0, dtype=np.int64))

    def check(self, count: int, rounds: int) -> None:
        """Check that all canaries fit in the population."""
        if count > self.population:
            raise InputError(
                f"population = {self.population} is too small for {count} canaries, inserted and held out: count all "
                "clients and all canaries"
            )

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """Return the recorded canaries."""
        if round not in self._recorded:
            raise InputError(f"the canaries of round {round} are unknown: call took_part before plant")
        return self._recorded[round]

    def rate(self, count: int, rounds: int, round: int) -> float:
        """Return the declared share of nodes per round."""
        return self.size / self.population

    def sampling(self, count: int, rounds: int) -> Sampling:
        """Return fixed-size sampling with the largest share that was drawn."""
        draws = [(self.size, self.population), *self._drawn]
        return FixedSize(*max(draws, key=lambda draw: draw[0] / draw[1]))


def _check_share(name: str, share: float) -> None:
    """Raise if a share is not in (0, 1]."""
    if not 0 < check_number(name, share) <= 1:
        raise InputError(f"{name} must be in (0, 1], got {share}")


PARTICIPATIONS = "poisson:Q, fixed:SHARE, epochs:N, last:N or every-round"
"""Participations that have a text form."""


def parse_participation(text: str) -> Participation:
    """Return the participation that a text names.

    Args:
        text: ``poisson:Q``, ``fixed:SHARE``, ``epochs:N``, ``last:N`` or ``every-round``.

    Raises:
        InputError: If the text names none.

    Example:
        >>> parse_participation("epochs:2")
        EpochParticipation(epochs=2)
    """
    kinds: dict[str, Callable[[str], Participation]] = {
        "poisson:": lambda q: PoissonParticipation(float(q)),
        "fixed:": lambda share: FixedShareParticipation(float(share)),
        "epochs:": lambda epochs: EpochParticipation(int(epochs)),
        "last:": lambda last: LastRoundsParticipation(int(last)),
        "every-round": lambda _: LastRoundsParticipation(),
    }
    return parse_kind(text, kinds, f"unknown participation {text!r}. Available: {PARTICIPATIONS}.")
