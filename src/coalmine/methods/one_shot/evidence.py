"""What a series of releases says about each canary, kept in a few numbers a canary.

Each score is a statistic of the cosines between a canary and the releases:

- ``cosine``: with the only release there is (Andrew et al. 2023, Algorithm 1).
- ``max``: the largest over all releases (Algorithm 2). Knows nothing of when a canary comes.
- ``sum``: the sum over the releases that a canary's rounds led to, for whoever knows the rounds.
- ``likelihood-ratio``: how much likelier the releases are with the canary than without. In round t a planted canary
  shifts x = ⟨c, uₜ⟩ · divisor / norm by 1, and without it x has variance v = |uₜ|² · (divisor / norm)² / d, as for any
  random direction; so the log-likelihood ratio of a round is λ = (x − ½)/v. Where the rounds are not known it is
  averaged over what may have been.

Canaries that are orthogonal to one another can be kept out of one another's way: the cosine is then with what is left
of a release when its projections on the *other* planted canaries are taken away (`lengths`). For a canary that was not
planted this is a random direction of as many dimensions as are left, and a fixed vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Bools, Floats, Ints
from coalmine.methods.one_shot.participation import Knowledge
from coalmine.protocol import Vector

Score = Literal["cosine", "max", "sum", "likelihood-ratio"]

# Squared, relative to the release: float32 dot products are good to about 1e-6 of its length.
_RESOLVED = 1e-8

SCORES: tuple[Score, ...] = ("cosine", "max", "sum", "likelihood-ratio")


@dataclass(frozen=True)
class Seen:
    """One release as the canaries meet it.

    ``dots`` are the canaries' dot products with it, ``lengths`` its length as each canary is compared with it,
    ``times`` how often each canary would have been planted in the rounds that led to it, and ``shift`` what a planted
    canary adds to its own dot product, where that is known.
    """

    dots: Floats
    lengths: Floats
    times: Ints
    shift: float | None


@dataclass
class Evidence:
    """Running statistics of ``count`` canaries that have ``dim`` dimensions to themselves."""

    count: int
    dim: int
    knowledge: Knowledge
    releases: int = 0
    largest: Floats = field(init=False)
    total: Floats = field(init=False)
    times: Ints = field(init=False)
    ratio: Floats = field(init=False)
    epoch: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.largest = np.full(self.count, -np.inf)
        self.total, self.ratio = np.zeros(self.count), np.zeros(self.count)
        self.times = np.zeros(self.count, dtype=np.int64)
        self.epoch = np.full(self.count, -np.inf)

    def add(self, seen: Seen, rate: float, epoch_ends: bool) -> None:
        """Take in a release. ``rate`` is how likely a canary is in it, ``epoch_ends`` whether an epoch ends there."""
        cosines = seen.dots / seen.lengths
        self.releases += 1
        np.maximum(self.largest, cosines, out=self.largest)
        self.total += np.where(seen.times > 0, cosines, 0.0)
        self.times += seen.times > 0
        if seen.shift is not None:
            self._weigh(log_likelihood_ratios(seen, self.dim), seen.times, rate, epoch_ends)

    def _weigh(self, ratios: Floats, times: Ints, rate: float, epoch_ends: bool) -> None:
        match self.knowledge:
            case "surely":
                self.ratio += np.where(times > 0, ratios, 0.0)
            case "each-round":
                with np.errstate(divide="ignore"):
                    self.ratio += np.logaddexp(np.log1p(-rate), np.log(rate) + ratios)
            case "once-an-epoch":
                self.epoch = np.logaddexp(self.epoch, np.log(rate) + ratios)
                self.nothing(epoch_ends)

    def nothing(self, epoch_ends: bool) -> None:
        """A round, perhaps the last of an epoch, that told nothing more."""
        if epoch_ends:
            self.ratio += np.where(np.isneginf(self.epoch), 0.0, self.epoch)
            self.epoch = np.full(self.count, -np.inf)

    def scores(self, score: Score) -> Floats:
        """The score of each canary; NaN where there is nothing that could tell: such canaries are left out."""
        match score:
            case "cosine" | "max":
                return self.largest
            case "sum":
                return np.where(self.times > 0, self.total / np.sqrt(np.maximum(self.times, 1)), np.nan)
            case "likelihood-ratio":
                known = self.knowledge != "surely" or self.times > 0
                return np.where(known, self.ratio, np.nan)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """As arrays."""
        numbers = {"releases": np.array(self.releases)}
        names = ("largest", "total", "times", "ratio", "epoch")
        return numbers | {name: np.array(getattr(self, name)) for name in names}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """From arrays."""
        self.releases = int(state["releases"])
        for name in ("largest", "total", "times", "ratio", "epoch"):
            setattr(self, name, np.array(state[name]))


def log_likelihood_ratios(seen: Seen, dim: int) -> Floats:
    """λ of each canary for one release."""
    assert seen.shift is not None
    variance = seen.lengths**2 / dim
    result: Floats = (seen.dots - seen.shift / 2) * seen.shift / variance
    return result


def lengths(dots: Floats, norm: float, members: Bools, *, orthonormal: bool) -> Floats:
    """How long a release of length ``norm`` is for each canary, (count,).

    Of ``orthonormal`` canaries, the release's components along the planted ``members`` do not count, but for a
    canary's own. A remainder too small for float32 dot products to tell is taken for larger than it is, and no canary's
    own component is longer than what it is part of.
    """
    squares = np.full(dots.shape, norm**2)
    if orthonormal:
        squares += np.where(members, dots**2, 0.0) - float(np.sum(dots[members] ** 2))
    found: Floats = np.sqrt(np.maximum(np.maximum(squares, _RESOLVED * norm**2), dots**2))
    return found


def add_matched(direction: Vector, release: Vector, norm: float, shift: float) -> None:
    """Add a release to the direction along which canaries that share their rounds are best told apart.

    It is the sum of their log-likelihood ratios, as one vector, with weights that follow from the releases alone: its
    cosine with an unseen canary has the law that a cosine with any direction has.
    """
    direction += np.float32(shift / norm**2) * release
