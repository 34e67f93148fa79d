"""`Sampling`: who takes part in which round. One vocabulary for claims, canaries and the simulator.

A sampling can be accounted for (it turns a run of Gaussian rounds into a dp-accounting event, which is imported only
then) and it can be drawn (`Sampling.draw` gives the participants of a round). Draws are functions of seed and round, so
nothing is remembered between rounds. A claim takes one as ``sampling=``, an audit as ``participation=``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np

from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count, check_number, check_positive, parse_kind
from coalmine.seeds import generator

Schedule = Sequence[tuple[float, int]]
"""Pairs (noise multiplier, number of rounds with it), in the order of the rounds."""

ACCOUNTANTS = ("pld", "rdp", "rdp-mironov")
"""Names of the accountants, the tightest first."""

Knowledge = Literal["rounds", "rate", "once-per-epoch"]
"""What an adversary knows about when a participant takes part: its rounds, the probability of each round, or that it is
one round of each epoch."""

# Outside this range dp-accounting loses all digits. Less noise is accounted for as none, and more as the maximum, so ε
# is an upper bound either way.
MIN_NOISE, MAX_NOISE = 1e-6, 1e6

# How far one client can move a round's sum, in clip norms: replacing one takes an update out and puts another one in.
SENSITIVITY = {"add-or-remove-one": 1.0, "replace-one": 2.0}

# Below this rate, the privacy losses of a round would vanish in rounding.
_MIN_RATE = 1e-12


@dataclass(frozen=True)
class Sampling:
    """Base class: how clients, or canaries, take part in rounds.

    Use one of the subclasses. ``str(sampling)`` is the form that settings and the command line accept.

    Attributes:
        rate: Probability that a client takes part in a given round, or None if the scheme does not fix one.

    Example:
        >>> parse_sampling("fixed:10/1000").rate
        0.01
    """

    name: ClassVar[str]
    adjacency: ClassVar[str] = "add-or-remove-one"
    accountants: ClassVar[tuple[str, ...]] = ACCOUNTANTS
    knowledge: ClassVar[Knowledge] = "rate"
    rate: float | None = field(default=None, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        values = [getattr(self, term.name) for term in fields(self) if term.init]
        text = "/".join(f"{value}" for value in values if value is not None)
        return f"{self.name}:{text}".rstrip(":")

    # Drawing

    def check(self, count: int, rounds: int) -> None:
        """Raise `InputError` if so many participants or rounds do not fit the scheme."""

    def draw(self, count: int, rounds: int, *, seed: int, round: int, purpose: str = "cohort", trial: int = 0) -> Ints:
        """Return who takes part in a round, in ascending order.

        Args:
            count: Number of clients or canaries, numbered from 0.
            rounds: Number of rounds in all.
            seed: Root seed.
            round: The round, from 0.
            purpose: Which random stream to use, one of `coalmine.seeds.PURPOSES`.
            trial: Number of a frozen round held before ``round``, or 0 for the round itself.
        """
        raise InputError(f"{self} says how often clients take part at most, not who does: use another sampling")

    def expected(self, count: int, rounds: int, round: int) -> float:
        """Return the expected number of participants of a round, which does not depend on the draw."""
        # Who takes part is certain unless a subclass says otherwise, so any seed draws the same number.
        return float(self.draw(count, rounds, seed=0, round=round).size)

    def accounted(self, count: int, rounds: int) -> Sampling:
        """Return the sampling to account for if ``count`` participants are drawn like this."""
        return self

    # Accounting

    def event(self, schedule: Schedule) -> tuple[Any, Any]:
        """Return Gaussian rounds as a dp-accounting ``DpEvent``, and the ``NeighboringRelation`` it holds for."""
        import dp_accounting as dp

        # Adjacencies have dp-accounting's own names.
        neighbors = dp.NeighboringRelation[self.adjacency.replace("-", "_").upper()]
        rounds_with: Counter[float] = Counter()
        for noise, rounds in schedule:
            if rounds > 0 and math.isfinite(noise):
                rounds_with[min(noise, MAX_NOISE)] += rounds
        if not rounds_with or self.rate == 0:
            return dp.NoOpDpEvent(), neighbors
        if min(rounds_with) < MIN_NOISE:
            return dp.NonPrivateDpEvent(), neighbors
        parts = [
            dp.SelfComposedDpEvent(self._amplified(dp.GaussianDpEvent(noise), dp), count)
            for noise, count in rounds_with.items()
        ]
        return dp.ComposedDpEvent(parts), neighbors

    def _amplified(self, gaussian: Any, dp: Any) -> Any:
        """Return the event of one round, with amplification by sampling; ``dp`` is dp-accounting."""
        return gaussian


@dataclass(frozen=True)
class EveryRound(Sampling):
    """Everybody takes part in every round.

    The guarantee is for adding or removing one client: the Gaussian mechanism composed once per round. It also holds
    for any other way of choosing clients.

    Example:
        >>> EveryRound().rate
        1.0
    """

    name: ClassVar[str] = "every-round"
    knowledge: ClassVar[Knowledge] = "rounds"
    rate: float = field(default=1.0, init=False, repr=False, compare=False)

    def draw(self, count: int, rounds: int, *, seed: int, round: int, purpose: str = "cohort", trial: int = 0) -> Ints:
        """Return everybody."""
        return np.arange(count)


@dataclass(frozen=True)
class Poisson(Sampling):
    """Each client takes part in each round with probability q, independently of everything else.

    The guarantee is for adding or removing one client, amplified by the sampling. It assumes that the noise does not
    depend on the number of participants, and that the adversary does not see who takes part.

    Args:
        q: Sampling probability, in [0, 1].

    Raises:
        InputError: If ``q`` is out of range.

    Example:
        >>> Poisson(0.3).draw(10, rounds=5, seed=0, round=0)
        array([1, 4, 5])
    """

    name: ClassVar[str] = "poisson"
    q: float
    rate: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        q = check_number("the sampling probability q", self.q)
        if not (q == 0 or _MIN_RATE <= q <= 1):
            raise InputError(f"the sampling probability q must be 0, or in [{_MIN_RATE:g}, 1], got {self.q}")
        object.__setattr__(self, "q", q)
        object.__setattr__(self, "rate", q)

    def draw(self, count: int, rounds: int, *, seed: int, round: int, purpose: str = "cohort", trial: int = 0) -> Ints:
        """Flip one coin for each."""
        return np.flatnonzero(generator(seed, purpose, round, trial).random(count) < self.q)

    def expected(self, count: int, rounds: int, round: int) -> float:
        """Return q times ``count``."""
        return self.q * count

    def _amplified(self, gaussian: Any, dp: Any) -> Any:
        # At q = 1 the plain Gaussian event has a closed form, while the sampled one is composed numerically.
        return gaussian if self.q == 1 else dp.PoissonSampledDpEvent(self.q, gaussian)


@dataclass(frozen=True)
class FixedSize(Sampling):
    """Each round draws a fixed number of clients without replacement, independently of other rounds.

    The guarantee is for *replacing* one client, amplified by the sampling (Wang, Balle & Kasiviswanathan, 2019,
    Theorem 27); dp-accounting supports it for RDP only. Replacing a client moves the sum by up to twice the clip norm,
    so the noise multiplier for this guarantee is noise / (2 · clip_norm). Published figures, such as those of the
    secret sharer paper, use noise / clip_norm.

    Args:
        size: Number of clients per round.
        population: Number of clients overall. None means all that there are, which draws need no number for. Canaries
            drawn by the same rule come in the same proportion.

    Raises:
        InputError: If a number is not whole and positive, or ``size`` exceeds ``population``.

    Example:
        >>> FixedSize(10, 1000).rate, FixedSize(10, 1000).adjacency
        (0.01, 'replace-one')
    """

    name: ClassVar[str] = "fixed"
    adjacency: ClassVar[str] = "replace-one"
    accountants: ClassVar[tuple[str, ...]] = ("rdp", "rdp-mironov")
    size: int
    population: int | None = None

    def __post_init__(self) -> None:
        check_count("size", self.size)
        if self.population is not None:
            FixedSize(self.size).check(check_count("population", self.population), 0)
            object.__setattr__(self, "rate", self.size / self.population)

    def check(self, count: int, rounds: int) -> None:
        """Check that there are enough to draw from."""
        if self.population is None and self.size > count:
            raise InputError(f"size must be at most the population of {count}, got {self.size}")

    def draw(self, count: int, rounds: int, *, seed: int, round: int, purpose: str = "cohort", trial: int = 0) -> Ints:
        """Draw without replacement. A share that is not a whole number is rounded up or down at random."""
        stream = generator(seed, purpose, round, trial)
        wanted = self.expected(count, rounds, round)
        size = math.floor(wanted)
        if wanted > size:
            size += int(stream.random() < wanted - size)
        return np.sort(stream.choice(count, size, replace=False))

    def expected(self, count: int, rounds: int, round: int) -> float:
        """Return the size, in proportion if ``count`` is not the population."""
        return self.size * count / (self.population or count)

    def accounted(self, count: int, rounds: int) -> Sampling:
        """Return the sampling of ``count`` participants, rounded up to whole ones."""
        return FixedSize(min(count, math.ceil(self.expected(count, rounds, 0) - 1e-9)), count)

    def _amplified(self, gaussian: Any, dp: Any) -> Any:
        if self.population is None:
            raise InputError(f"{self} has no population to account for: use FixedSize({self.size}, population)")
        return dp.SampledWithoutReplacementDpEvent(int(self.population), int(self.size), gaussian)


@dataclass(frozen=True)
class Observed(FixedSize):
    """Somebody else's code draws a fixed number of nodes, canaries among them, and reports which it drew.

    All canaries are nodes; held-out ones send nothing. A canary therefore takes part with probability
    ``size / population``, and being inserted does not change who is drawn.

    Args:
        size: Number of nodes drawn per round.
        population: Number of all nodes: clients and canaries, inserted and held out.

    Example:
        >>> str(Observed(20, 100)), Observed(20, 100).rate
        ('observed:20/100', 0.2)
    """

    name: ClassVar[str] = "observed"

    def check(self, count: int, rounds: int) -> None:
        """Check that all canaries fit in the population."""
        if self.population is None or count > self.population:
            raise InputError(
                f"population = {self.population} is too small for {count} canaries, inserted and held out: count all "
                "clients and all canaries"
            )

    def draw(self, count: int, rounds: int, *, seed: int, round: int, purpose: str = "cohort", trial: int = 0) -> Ints:
        """Raise: the training draws."""
        raise InputError(f"the canaries of round {round} are unknown: call took_part before plant")

    def accounted(self, count: int, rounds: int) -> Sampling:
        """Return fixed-size sampling of all nodes."""
        return FixedSize(self.size, self.population)


@dataclass(frozen=True)
class Epochs(Sampling):
    """Everybody takes part once per epoch, in a random round of it.

    The guarantee is for adding or removing one client, assuming that this does not move other clients between rounds:
    the Gaussian mechanism composed once per epoch. No analysis here exploits that the round is secret, so the
    adversary may know the schedule.

    Args:
        epochs: Number of epochs of (almost) equal length that all rounds are divided into.

    Raises:
        InputError: If ``epochs`` is not a whole number of at least 1.

    Example:
        >>> sampling = Epochs(2)
        >>> sorted(int(client) for t in range(2) for client in sampling.draw(6, rounds=4, seed=0, round=t))
        [0, 1, 2, 3, 4, 5]
    """

    name: ClassVar[str] = "epochs"
    knowledge: ClassVar[Knowledge] = "once-per-epoch"
    epochs: int = 1

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)

    def check(self, count: int, rounds: int) -> None:
        """Check that every epoch has a round."""
        if self.epochs > rounds:
            raise InputError(f"epochs = {self.epochs} does not fit {rounds} rounds: use at most {rounds}")

    def epoch(self, rounds: int, round: int) -> tuple[int, int, int]:
        """Return the number of a round's epoch, its first round, and the round after its last."""
        edges = np.arange(self.epochs + 1) * rounds // self.epochs
        number = int(np.searchsorted(edges, round, side="right")) - 1
        return number, int(edges[number]), int(edges[number + 1])

    def draw(self, count: int, rounds: int, *, seed: int, round: int, purpose: str = "cohort", trial: int = 0) -> Ints:
        """Return this round's part of the epoch's shuffle; a frozen round takes the same part of a fresh shuffle."""
        number, start, stop = self.epoch(rounds, round)
        frozen = (round,) if trial else ()
        order = generator(seed, purpose, number, 2 * trial, *frozen).permutation(count)
        edges = np.arange(stop - start + 1) * count // (stop - start)
        # With fewer participants than rounds some rounds stay empty. They must not be the same in every epoch.
        slots = generator(seed, purpose, number, 2 * trial + 1, *frozen).permutation(stop - start)
        slot = int(slots[round - start])
        return np.sort(order[edges[slot] : edges[slot + 1]])

    def expected(self, count: int, rounds: int, round: int) -> float:
        """Return ``count`` over the epoch's length."""
        _, start, stop = self.epoch(rounds, round)
        return count / (stop - start)

    def event(self, schedule: Schedule) -> tuple[Any, Any]:
        """Account for one round per epoch, in the worst case the one with the least noise."""
        levels = np.array(schedule, dtype=np.float64).reshape(-1, 2)
        noise = np.repeat(levels[:, 0], levels[:, 1].astype(np.int64))
        edges = np.arange(self.epochs + 1) * noise.size // self.epochs
        return super().event([(float(epoch.min()), 1) for epoch in np.split(noise, edges[1:-1]) if epoch.size])


@dataclass(frozen=True)
class AtMost(Sampling):
    """Nobody takes part in more than a given number of rounds, whatever the schedule.

    The guarantee is for adding or removing one client, assuming that this does not move other clients between rounds:
    the Gaussian mechanism composed ``times`` times, in the rounds with the least noise. There is no amplification.

    Args:
        times: Largest number of rounds that a client takes part in.

    Raises:
        InputError: If ``times`` is not a whole number of at least 1.

    Example:
        >>> str(AtMost(3))
        'at-most:3'
    """

    name: ClassVar[str] = "at-most"
    knowledge: ClassVar[Knowledge] = "rounds"
    times: int

    def __post_init__(self) -> None:
        check_count("times", self.times)

    def event(self, schedule: Schedule) -> tuple[Any, Any]:
        """Account for the rounds with the least noise."""
        exposed, left = [], int(self.times)
        for noise, rounds in sorted(schedule):
            exposed.append((noise, min(rounds, left)))
            left -= exposed[-1][1]
        return super().event(exposed)


@dataclass(frozen=True)
class Last(AtMost):
    """Everybody takes part in each of the last rounds, which the final model remembers best.

    Args:
        times: Number of rounds.

    Example:
        >>> [Last(1).draw(3, rounds=2, seed=0, round=t).tolist() for t in range(2)]
        [[], [0, 1, 2]]
    """

    name: ClassVar[str] = "last"

    def check(self, count: int, rounds: int) -> None:
        """Check that there are that many rounds."""
        if self.times > rounds:
            raise InputError(f"last:{self.times} does not fit {rounds} rounds: use at most last:{rounds}")

    def draw(self, count: int, rounds: int, *, seed: int, round: int, purpose: str = "cohort", trial: int = 0) -> Ints:
        """Return everybody or nobody."""
        return np.arange(count if round >= rounds - self.times else 0)

    def accounted(self, count: int, rounds: int) -> Sampling:
        """Return participation in at most ``times`` rounds."""
        return AtMost(self.times)


@dataclass(frozen=True)
class Scheduled(Sampling):
    """An explicit schedule, which the adversary may know.

    Args:
        rounds: For each round, who takes part, each at most once.

    Raises:
        InputError: If a participant is not a whole number, or listed twice in a round.

    Example:
        >>> str(Scheduled([[0, 1], [1], []]).accounted(count=2, rounds=3))
        'at-most:2'
    """

    name: ClassVar[str] = "scheduled"
    knowledge: ClassVar[Knowledge] = "rounds"
    rounds: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        schedule = []
        for cohort in self.rounds:
            schedule.append(tuple(check_count("a participant in the schedule", who, least=0) for who in cohort))
            if len(set(schedule[-1])) < len(cohort):
                raise InputError(f"round {len(schedule) - 1} of the schedule lists somebody twice: list each once")
        object.__setattr__(self, "rounds", tuple(schedule))

    def __str__(self) -> str:
        return self.name

    def check(self, count: int, rounds: int) -> None:
        """Check that all rounds are scheduled and all participants exist."""
        if len(self.rounds) < rounds:
            raise InputError(f"the schedule has {len(self.rounds)} rounds, but the training has {rounds}")
        last = max(chain(*self.rounds), default=0)
        if last >= count:
            raise InputError(f"the schedule lists participant {last}: use numbers from 0 to {count - 1}")

    def draw(self, count: int, rounds: int, *, seed: int, round: int, purpose: str = "cohort", trial: int = 0) -> Ints:
        """Return those scheduled; a frozen round draws equally many at random, without replacement."""
        cohort = self.rounds[round]
        if trial == 0:
            return np.sort(np.asarray(cohort, dtype=np.int64))
        return np.sort(generator(seed, purpose, round, trial).choice(count, min(len(cohort), count), replace=False))

    def accounted(self, count: int, rounds: int) -> Sampling:
        """Return participation in at most the rounds of the most frequent participant."""
        times = Counter(chain(*self.rounds[:rounds]))
        return AtMost(max(times.values(), default=1))


FORMS = "every-round, poisson:Q, poisson:SIZE/POPULATION, fixed:SIZE/POPULATION, epochs:N, last:N, at-most:N"
"""How a sampling can be written."""


def parse_sampling(text: str) -> Sampling:
    """Read a sampling from text.

    Args:
        text: ``"every-round"``, ``"poisson:Q"``, ``"poisson:SIZE/POPULATION"``, ``"fixed:SIZE/POPULATION"``,
            ``"fixed:SIZE"``, ``"epochs:N"``, ``"last:N"``, ``"at-most:N"`` or ``"observed:SIZE/POPULATION"``.

    Raises:
        InputError: If the text is none of these, or a number is out of range.

    Example:
        >>> parse_sampling("poisson:50/1000")
        Poisson(q=0.05)
        >>> parse_sampling("epochs:3")
        Epochs(epochs=3)
    """
    kinds: dict[str, Callable[[str], Sampling]] = {
        "every-round": lambda _: EveryRound(),
        "poisson:": lambda rest: Poisson(_quotient(rest)),
        "fixed:": lambda rest: FixedSize(*map(int, rest.split("/", 1))),
        "observed:": lambda rest: Observed(*map(int, rest.split("/", 1))),
        "epochs:": lambda rest: Epochs(int(rest)),
        "last:": lambda rest: Last(int(rest)),
        "at-most:": lambda rest: AtMost(int(rest)),
    }
    return parse_kind(text.strip(), kinds, f"a sampling must be one of {FORMS}, got {text!r}")


def _quotient(text: str) -> float:
    numbers = [*map(float, text.split("/", 1)), 1.0]
    return numbers[0] / check_positive("the population", numbers[1])
