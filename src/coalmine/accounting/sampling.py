"""How clients come to take part in rounds, as an accountant sees it. dp-accounting is imported where it is used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from coalmine.errors import InputError, check_count

Schedule = Sequence[tuple[float, int]]
"""Stretches of a training in their order: (noise_multiplier, number of rounds with it)."""

# Outside this range dp-accounting runs out of digits. Less noise is accounted as none and more as the most: either
# way the ε that comes out is still an upper bound.
LEAST_NOISE, MOST_NOISE = 1e-6, 1e6


@dataclass(frozen=True)
class Sampling:
    """How clients come to take part in rounds, and so how much a round's noise protects one of them."""

    name: ClassVar[str]
    adjacency: ClassVar[str] = "add-or-remove-one"

    def __post_init__(self) -> None:
        for field in fields(self):
            check_count(field.name, getattr(self, field.name))

    def __str__(self) -> str:
        return ":".join([self.name, "/".join(str(int(getattr(self, field.name))) for field in fields(self))])

    @property
    def rate(self) -> float | None:
        """The probability that a client takes part in a given round, where the sampling fixes one."""
        return None

    def event(self, noise_multiplier: float, rounds: int) -> tuple[Any, Any]:
        """The training as dp-accounting sees it: its ``DpEvent`` and the ``NeighboringRelation`` it holds for."""
        return self.schedule_event([(noise_multiplier, rounds)])

    def schedule_event(self, schedule: Schedule) -> tuple[Any, Any]:
        """Like ``event``, for noise that changes during the training."""
        import dp_accounting as dp

        relation = dp.NeighboringRelation
        neighbors = relation.REPLACE_ONE if self.adjacency == "replace-one" else relation.ADD_OR_REMOVE_ONE
        times: Counter[float] = Counter()
        for noise, rounds in self._exposures([stretch for stretch in schedule if stretch[1] > 0]):
            if rounds > 0 and math.isfinite(noise):
                times[min(noise, MOST_NOISE)] += rounds
        if not times or self.rate == 0:
            return dp.NoOpDpEvent(), neighbors
        if min(times) < LEAST_NOISE:
            return dp.NonPrivateDpEvent(), neighbors
        one_round = {noise: self._sampled(dp.GaussianDpEvent(noise), dp) for noise in times}
        parts = [dp.SelfComposedDpEvent(one_round[noise], count) for noise, count in times.items()]
        return dp.ComposedDpEvent(parts), neighbors

    def _exposures(self, schedule: Schedule) -> Schedule:
        """The rounds that count against the most exposed client."""
        return schedule

    def _sampled(self, gaussian: Any, dp: Any) -> Any:
        """The event of one of those rounds; ``dp`` is dp-accounting."""
        return gaussian


@dataclass(frozen=True)
class Poisson(Sampling):
    """Each client takes part in each round with probability ``q``, independently of everybody and every other round.

    The guarantee is for adding or removing one client, amplified by the sampling. It assumes that the noise does not
    depend on how many clients came, and that nobody sees who took part.
    """

    name: ClassVar[str] = "poisson"
    q: float

    def __post_init__(self) -> None:
        if isinstance(self.q, str) or not 0 <= self.q <= 1:
            raise InputError(f"the sampling probability q must be in [0, 1], got {self.q}")

    def __str__(self) -> str:
        return f"poisson:{self.rate!r}"

    @property
    def rate(self) -> float:
        """The probability ``q``."""
        return float(self.q)

    def _sampled(self, gaussian: Any, dp: Any) -> Any:
        # At q = 1 the plain Gaussian has a closed form where the sampled one is composed numerically.
        return gaussian if self.q == 1 else dp.PoissonSampledDpEvent(self.q, gaussian)


@dataclass(frozen=True)
class FixedSize(Sampling):
    """Each round draws ``size`` of ``population`` clients without replacement, independently of every other round.

    The guarantee is for replacing one client by another (Wang, Balle and Kasiviswanathan 2019, Theorem 27), amplified
    by the sampling; dp-accounting has it for RDP only. A replaced client moves the sum by up to twice the clip norm:
    give noise / (2 · clip_norm) as noise_multiplier for that guarantee. Published figures, the secret sharer's among
    them, give noise / clip_norm.
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
        """The share of the population in a round."""
        return self.size / self.population

    def _sampled(self, gaussian: Any, dp: Any) -> Any:
        return dp.SampledWithoutReplacementDpEvent(int(self.population), int(self.size), gaussian)


@dataclass(frozen=True)
class OncePerEpoch(Sampling):
    """Each client takes part in at most one of every ``rounds_per_epoch`` consecutive rounds, counted from the first.

    The guarantee is for adding or removing one client whose going does not move the others between rounds: the
    Gaussian mechanism composed once per epoch that has started. No amplification, so the schedule may be known.
    """

    name: ClassVar[str] = "epoch"
    rounds_per_epoch: int

    def _exposures(self, schedule: Schedule) -> Schedule:
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
    """Each client takes part in each round: the Gaussian mechanism composed once per round.

    The guarantee is for adding or removing one client, and holds for any other way to choose clients too.
    """

    name: ClassVar[str] = "every-round"

    def __str__(self) -> str:
        return self.name

    @property
    def rate(self) -> float:
        """Always 1."""
        return 1.0


@dataclass(frozen=True)
class AtMost(Sampling):
    """No client takes part in more than ``times`` rounds, whatever the schedule.

    The guarantee is for adding or removing one client whose going does not move the others between rounds: the
    Gaussian mechanism composed ``times`` times, in the rounds with the least noise. No amplification.
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
    """Read what ``str`` of a sampling writes, and ``poisson:5000/392000`` too."""
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
        "sampling must be like poisson:0.01, poisson:5000/392000, fixed:5000/392000, epoch:85, every-round or "
        f"at-most:3, got {text!r}"
    )
