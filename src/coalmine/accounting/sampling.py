"""Sampling schemes: how clients take part in rounds, as the accountants assume it.

A scheme turns a training into a dp-accounting event. dp-accounting is imported only when that happens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from coalmine.errors import InputError, check_count

Schedule = Sequence[tuple[float, int]]
"""Pairs (noise multiplier, number of rounds with it), in the order of the training."""

# Outside this range dp-accounting loses all digits. Less noise is accounted for as none, and more as the maximum, so ε
# is an upper bound either way.
MIN_NOISE, MAX_NOISE = 1e-6, 1e6

MIN_RATE = 1e-12
"""Smallest probability of Poisson sampling other than 0."""


@dataclass(frozen=True)
class Sampling:
    """Base class of the sampling schemes: how clients take part in rounds.

    Use one of the subclasses. ``str(sampling)`` is the form that the command line and settings accept.

    Example:
        >>> parse_sampling("fixed:10/1000").rate
        0.01
    """

    name: ClassVar[str]
    adjacency: ClassVar[str] = "add-or-remove-one"

    def __post_init__(self) -> None:
        for field in fields(self):
            check_count(field.name, getattr(self, field.name))

    def __str__(self) -> str:
        return ":".join([self.name, "/".join(str(int(getattr(self, field.name))) for field in fields(self))])

    @property
    def rate(self) -> float | None:
        """Probability that a client takes part in a given round, or None if the scheme does not fix one."""
        return None

    def event(self, noise_multiplier: float, rounds: int) -> tuple[Any, Any]:
        """Return the training as a dp-accounting ``DpEvent``, and the ``NeighboringRelation`` it holds for."""
        return self.schedule_event([(noise_multiplier, rounds)])

    def schedule_event(self, schedule: Schedule) -> tuple[Any, Any]:
        """Return the same as `event` for noise that changes during the training."""
        import dp_accounting as dp

        relation = dp.NeighboringRelation
        neighbors = relation.REPLACE_ONE if self.adjacency == "replace-one" else relation.ADD_OR_REMOVE_ONE
        rounds_with: Counter[float] = Counter()
        for noise, rounds in self._exposures([stretch for stretch in schedule if stretch[1] > 0]):
            if rounds > 0 and math.isfinite(noise):
                rounds_with[min(noise, MAX_NOISE)] += rounds
        if not rounds_with or self.rate == 0:
            return dp.NoOpDpEvent(), neighbors
        if min(rounds_with) < MIN_NOISE:
            return dp.NonPrivateDpEvent(), neighbors
        parts = [
            dp.SelfComposedDpEvent(self._sampled(dp.GaussianDpEvent(noise), dp), count)
            for noise, count in rounds_with.items()
        ]
        return dp.ComposedDpEvent(parts), neighbors

    def _exposures(self, schedule: Schedule) -> Schedule:
        """Return the rounds in which the most exposed client takes part."""
        return schedule

    def _sampled(self, gaussian: Any, dp: Any) -> Any:
        """Return the event of one of those rounds, with amplification by sampling; ``dp`` is dp-accounting."""
        return gaussian


@dataclass(frozen=True)
class Poisson(Sampling):
    """Poisson sampling: each client takes part in each round with probability q, independently of everything else.

    The guarantee is for adding or removing one client, amplified by the sampling. It assumes that the noise does not
    depend on the number of participants, and that the adversary does not see who takes part.

    Args:
        q: Sampling probability, in [0, 1].

    Raises:
        InputError: If ``q`` is out of range.

    Example:
        >>> str(Poisson(0.01))
        'poisson:0.01'
    """

    name: ClassVar[str] = "poisson"
    q: float

    def __post_init__(self) -> None:
        if isinstance(self.q, str) or not 0 <= self.q <= 1:
            raise InputError(f"the sampling probability q must be in [0, 1], got {self.q}")
        if 0 < self.q < MIN_RATE:  # privacy losses of a round would vanish in rounding
            raise InputError(f"the sampling probability q must be 0 or at least {MIN_RATE:g}, got {self.q}")

    def __str__(self) -> str:
        return f"poisson:{self.rate!r}"

    @property
    def rate(self) -> float:
        """The sampling probability."""
        return float(self.q)

    def _sampled(self, gaussian: Any, dp: Any) -> Any:
        # At q = 1 the plain Gaussian event has a closed form, while the sampled one is composed numerically.
        return gaussian if self.q == 1 else dp.PoissonSampledDpEvent(self.q, gaussian)


@dataclass(frozen=True)
class FixedSize(Sampling):
    """Fixed-size sampling: each round draws a fixed number of clients without replacement, independently of others.

    The guarantee is for *replacing* one client, amplified by the sampling (Wang, Balle & Kasiviswanathan, 2019,
    Theorem 27); dp-accounting supports it for RDP only. Replacing a client moves the sum by up to twice the clip norm,
    so the noise multiplier for this guarantee is noise / (2 · clip_norm). Published figures, such as those of the
    secret sharer paper, use noise / clip_norm.

    Args:
        size: Number of clients per round.
        population: Number of clients overall.

    Raises:
        InputError: If a number is not whole and positive, or ``size`` exceeds ``population``.

    Example:
        >>> FixedSize(10, 1000).rate, FixedSize(10, 1000).adjacency
        (0.01, 'replace-one')
    """

    name: ClassVar[str] = "fixed"
    adjacency: ClassVar[str] = "replace-one"
    size: int
    population: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size > self.population:
            raise InputError(f"size must be at most the population of {self.population}, got {self.size}")

    @property
    def rate(self) -> float:
        """Share of the population in one round."""
        return self.size / self.population

    def _sampled(self, gaussian: Any, dp: Any) -> Any:
        return dp.SampledWithoutReplacementDpEvent(int(self.population), int(self.size), gaussian)


@dataclass(frozen=True)
class OncePerEpoch(Sampling):
    """One participation per epoch: each client takes part in at most one round of every epoch.

    The guarantee is for adding or removing one client, assuming that this does not move other clients between rounds:
    the Gaussian mechanism composed once for every epoch that has started. There is no amplification, so the adversary
    may know the schedule.

    Args:
        rounds_per_epoch: Number of consecutive rounds in an epoch, counted from the first round.

    Raises:
        InputError: If ``rounds_per_epoch`` is not a whole number of at least 1.

    Example:
        >>> str(OncePerEpoch(85))
        'epoch:85'
    """

    name: ClassVar[str] = "epoch"
    rounds_per_epoch: int

    def _exposures(self, schedule: Schedule) -> Schedule:
        # A client takes part once per epoch, in the worst case in the round with the least noise.
        least_noise: dict[int, float] = {}
        start, length = 0, int(self.rounds_per_epoch)
        for noise, rounds in schedule:
            end = start + rounds
            for epoch in range(start // length, -(-end // length)):
                least_noise[epoch] = min(noise, least_noise.get(epoch, math.inf))
            start = end
        return [(noise, 1) for noise in least_noise.values()]


@dataclass(frozen=True)
class EveryRound(Sampling):
    """Full participation: every client takes part in every round.

    The guarantee is for adding or removing one client: the Gaussian mechanism composed once per round. It also holds
    for any other way of choosing clients.

    Example:
        >>> EveryRound().rate
        1.0
    """

    name: ClassVar[str] = "every-round"

    def __str__(self) -> str:
        return self.name

    @property
    def rate(self) -> float:
        """Probability of taking part in a round: 1."""
        return 1.0


@dataclass(frozen=True)
class AtMost(Sampling):
    """Bounded participation: no client takes part in more than a given number of rounds, whatever the schedule.

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
    times: int

    def _exposures(self, schedule: Schedule) -> Schedule:
        exposures, left = [], int(self.times)
        for noise, rounds in sorted(schedule):
            exposures.append((noise, min(rounds, left)))
            left -= exposures[-1][1]
        return exposures


def parse_sampling(text: str) -> Sampling:
    """Read a sampling scheme from text.

    Args:
        text: ``"poisson:Q"``, ``"poisson:SIZE/POPULATION"``, ``"fixed:SIZE/POPULATION"``, ``"epoch:ROUNDS"``,
            ``"at-most:TIMES"`` or ``"every-round"``: what ``str`` of a scheme writes, and Poisson rates as fractions.

    Returns:
        The sampling scheme.

    Raises:
        InputError: If the text is none of these, or a number is out of range.

    Example:
        >>> parse_sampling("poisson:50/1000")
        Poisson(q=0.05)
        >>> parse_sampling("epoch:85")
        OncePerEpoch(rounds_per_epoch=85)
    """
    name, _, value = text.strip().partition(":")
    first, slash, second = value.partition("/")
    try:
        match name, bool(value), bool(slash):
            case "poisson", True, ratio:
                return Poisson(float(first) / float(second) if ratio else float(first))
            case "fixed", True, True:
                return FixedSize(int(first), int(second))
            case "epoch", True, False:
                return OncePerEpoch(int(first))
            case "at-most", True, False:
                return AtMost(int(first))
            case "every-round", False, False:
                return EveryRound()
    except InputError:
        raise
    except (ValueError, ZeroDivisionError):
        pass
    raise InputError(
        "sampling must look like poisson:0.01, poisson:5000/392000, fixed:5000/392000, epoch:85, every-round or "
        f"at-most:3, got {text!r}"
    )
