"""When canaries take part: each round's canaries are a function of the seed and the round, and nothing is kept.

Canaries that will be held out have their rounds as well, so that an adversary who knows when somebody would come can
be given scores of both kinds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from coalmine.accounting.sampling import AtMost, EveryRound, FixedSize, Poisson, Sampling
from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count, check_number
from coalmine.seeds import generator

Knowledge = Literal["surely", "each-round", "once-an-epoch"]
"""What everybody knows of when a canary comes: its rounds; a chance in each round; one round of each epoch."""


@runtime_checkable
class Participation(Protocol):
    """A rule for which of ``count`` canaries take part in a round."""

    @property
    def knowledge(self) -> Knowledge:
        """What everybody knows of when a canary comes."""
        ...

    def check(self, count: int, rounds: int) -> None:
        """Refuse what cannot be."""
        ...

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """The canaries of this round, in ascending order."""
        ...

    def rate(self, count: int, rounds: int, round: int) -> float:
        """The share of all canaries that is expected in this round."""
        ...

    def sampling(self, count: int, rounds: int) -> Sampling:
        """The sampling by which a canary is accounted, for an adversary who knows no more than the rule."""
        ...


@dataclass(frozen=True)
class PoissonParticipation:
    """Each canary takes part in each round with probability ``q``, independently: like clients drawn by Poisson."""

    q: float
    knowledge: ClassVar[Knowledge] = "each-round"

    def __post_init__(self) -> None:
        _check_share("the probability of taking part", self.q)

    def check(self, count: int, rounds: int) -> None:
        """Always possible."""

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """A coin flip each."""
        return np.flatnonzero(generator(seed, "participation", round).random(count) < self.q)

    def rate(self, count: int, rounds: int, round: int) -> float:
        """``q``."""
        return self.q

    def sampling(self, count: int, rounds: int) -> Sampling:
        """Poisson."""
        return Poisson(self.q)


@dataclass(frozen=True)
class FixedShareParticipation:
    """The same number of canaries in each round, without replacement: ``share`` of them, as clients of fixed cohorts.

    Where the share is no whole number of canaries, a coin of the round decides between the two next to it.
    """

    share: float
    knowledge: ClassVar[Knowledge] = "each-round"

    def __post_init__(self) -> None:
        _check_share("the share that takes part", self.share)

    def check(self, count: int, rounds: int) -> None:
        """Always possible."""

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """A draw without replacement."""
        draw = generator(seed, "participation", round)
        size = int(self.share * count + 1e-9 + draw.random())
        return np.sort(draw.permutation(count)[: min(size, count)])

    def rate(self, count: int, rounds: int, round: int) -> float:
        """The share."""
        return self.share

    def sampling(self, count: int, rounds: int) -> Sampling:
        """Fixed-size, with the number of canaries rounded up."""
        return FixedSize(min(count, math.ceil(self.share * count - 1e-9)), count)


@dataclass(frozen=True)
class EpochParticipation:
    """The rounds are cut into ``epochs`` epochs, and every canary takes part once in each, at a random round."""

    epochs: int = 1
    knowledge: ClassVar[Knowledge] = "once-an-epoch"

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)

    def check(self, count: int, rounds: int) -> None:
        """Every epoch needs a round."""
        if self.epochs > rounds:
            raise InputError(f"{rounds} rounds cannot be cut into {self.epochs} epochs")

    def epoch(self, rounds: int, round: int) -> tuple[int, int, int]:
        """The number of the epoch that ``round`` lies in, its first round, and the round after its last."""
        edges = np.arange(self.epochs + 1) * rounds // self.epochs
        number = int(np.searchsorted(edges, round, side="right")) - 1
        return number, int(edges[number]), int(edges[number + 1])

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """This round's part of the epoch's shuffle."""
        number, start, stop = self.epoch(rounds, round)
        order = generator(seed, "participation", number).permutation(count)
        edges = np.arange(stop - start + 1) * count // (stop - start)
        # Where there are fewer canaries than rounds, which rounds stay empty must not be the same in every epoch.
        slots = generator(seed, "participation", number, 1).permutation(stop - start)
        slot = int(slots[round - start])
        return np.sort(order[edges[slot] : edges[slot + 1]])

    def rate(self, count: int, rounds: int, round: int) -> float:
        """One over the epoch's length."""
        _, start, stop = self.epoch(rounds, round)
        return 1 / (stop - start)

    def sampling(self, count: int, rounds: int) -> Sampling:
        """At most once in each epoch: whoever does not know the round may be less sure, which has no analysis here."""
        return AtMost(self.epochs)


@dataclass(frozen=True)
class LastRoundsParticipation:
    """Every canary in each of the last ``last`` rounds: what the final model remembers best. All rounds if None."""

    last: int | None = None
    knowledge: ClassVar[Knowledge] = "surely"

    def __post_init__(self) -> None:
        if self.last is not None:
            check_count("last", self.last)

    def check(self, count: int, rounds: int) -> None:
        """There must be so many rounds."""
        if self.last is not None and self.last > rounds:
            raise InputError(f"there are {rounds} rounds, so canaries cannot be in the last {self.last}")

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """All or nobody."""
        there = self.last is None or round >= rounds - self.last
        return np.arange(count if there else 0)

    def rate(self, count: int, rounds: int, round: int) -> float:
        """All or nobody."""
        return float(len(self.present(1, rounds, 0, round)))

    def sampling(self, count: int, rounds: int) -> Sampling:
        """So many rounds."""
        return EveryRound() if self.last is None else AtMost(self.last)


@dataclass(frozen=True)
class ScheduledParticipation:
    """A schedule of one's own: for each round the numbers of the canaries that take part, counted from 0."""

    schedule: Sequence[Sequence[int]]
    knowledge: ClassVar[Knowledge] = "surely"

    def check(self, count: int, rounds: int) -> None:
        """As many rounds as the training has, known canaries, nobody twice in a round."""
        if len(self.schedule) != rounds:
            raise InputError(f"the schedule has {len(self.schedule)} rounds, the training {rounds}")
        for round, some in enumerate(self.schedule):
            numbers = np.asarray(some, dtype=np.int64)
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
                raise InputError(f"the schedule of round {round} names canaries outside 0 to {count - 1}")
            if len(np.unique(numbers)) != len(numbers):
                raise InputError(f"the schedule of round {round} plants a canary twice: once in a round is all")

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """As the schedule says."""
        return np.sort(np.asarray(self.schedule[round], dtype=np.int64))

    def rate(self, count: int, rounds: int, round: int) -> float:
        """As the schedule says."""
        return len(self.schedule[round]) / count

    def sampling(self, count: int, rounds: int) -> Sampling:
        """At most as often as the most frequent canary."""
        times = np.zeros(count, dtype=np.int64)
        for some in self.schedule:
            times[np.asarray(some, dtype=np.int64)] += 1
        return AtMost(max(1, int(times.max())))


@dataclass(frozen=True)
class ObservedParticipation:
    """The training draws ``size`` of its ``population`` nodes in each round, canaries among them, and says which.

    All canaries are nodes, planted and held out; those that are held out send nothing. So a canary is in a round with
    probability ``size / population``, and whether it is planted does not change who is drawn.
    """

    size: int
    population: int
    knowledge: ClassVar[Knowledge] = "each-round"
    _seen: dict[int, Ints] = field(default_factory=dict, init=False, repr=False, compare=False)
    _drawn: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        FixedSize(self.size, self.population)  # refuses what cannot be

    def drew(self, size: int, population: int) -> bool:
        """So many of so many were drawn: whether that is a larger share than declared. The largest is accounted."""
        larger = size * self.population > self.size * population
        if larger:
            self._drawn.append((size, population))
        return larger

    def missed(self, round: int) -> None:
        """Round ``round`` came to nothing, and perhaps nobody was told who was in it."""
        self._seen.setdefault(round, np.empty(0, dtype=np.int64))

    def __str__(self) -> str:
        return f"observed:{self.size}/{self.population}"

    def saw(self, round: int, canaries: Sequence[int]) -> None:
        """These took part in round ``round``."""
        self._seen[round] = np.sort(np.asarray(canaries, dtype=np.int64))

    def check(self, count: int, rounds: int) -> None:
        """All canaries must be nodes."""
        if count > self.population:
            raise InputError(
                f"{count} canaries, planted and held out, cannot be among {self.population} nodes: population counts "
                "clients and all canaries"
            )

    def present(self, count: int, rounds: int, seed: int, round: int) -> Ints:
        """Those that were seen."""
        if round not in self._seen:
            raise InputError(f"nobody said which canaries took part in round {round}: call took_part before plant")
        return self._seen[round]

    def rate(self, count: int, rounds: int, round: int) -> float:
        """The share of nodes that is drawn."""
        return self.size / self.population

    def sampling(self, count: int, rounds: int) -> Sampling:
        """Fixed-size, with the largest share that was drawn."""
        drawn = [(self.size, self.population), *self._drawn]
        return FixedSize(*max(drawn, key=lambda pair: pair[0] / pair[1]))


def _check_share(name: str, share: float) -> None:
    if not 0 < check_number(name, share) <= 1:
        raise InputError(f"{name} must be in (0, 1], got {share}")


ACCEPTED = "poisson:Q, fixed:SHARE, epochs:TIMES, last:ROUNDS or every-round"


def parse_participation(text: str) -> Participation:
    """``poisson:Q``, ``fixed:SHARE``, ``epochs:TIMES``, ``last:ROUNDS`` or ``every-round``."""
    kind, _, rest = text.partition(":")
    try:
        match kind:
            case "poisson":
                return PoissonParticipation(float(rest))
            case "fixed":
                return FixedShareParticipation(float(rest))
            case "epochs":
                return EpochParticipation(int(rest))
            case "last":
                return LastRoundsParticipation(int(rest))
            case "every-round" if not rest:
                return LastRoundsParticipation()
    except ValueError as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"participation must be {ACCEPTED}, got {text!r}")
