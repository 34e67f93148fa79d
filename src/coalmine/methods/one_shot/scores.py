"""Views and scores of the one-shot audit: what the adversary sees, and how it becomes one number per canary.

Every score is a statistic of the cosines between a canary and the releases; docs/one-shot.md compares them. To add one,
write a subclass of `Score` here and list it in `SCORES`. It states its name, the views it supports, how it accumulates
releases and which null distribution a held-out canary's score has; settings, checkpoints and error messages follow.

Orthogonal canaries do not disturb each other: each is compared with what is left of a release once its projections on
all *other* canaries are removed (`compared`). To a held-out canary this remainder is a fixed vector, and the
canary a random direction of the dimensions that are left. Scores never use which canaries are inserted, so that those
of a release that ignores the canaries are exchangeable.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from coalmine.arrays import Floats, Ints
from coalmine.claims.sampling import Epochs, Sampling
from coalmine.errors import InputError, check_count, check_kind, check_number, did_you_mean, parse_kind
from coalmine.methods.one_shot.families import UpdateCanaries
from coalmine.protocol import Vector, View
from coalmine.stats import Null
from coalmine.stats.nulls import LargestOfNull, LikelihoodRatioNull
from coalmine.vectors import CPU, dot, on, pieces

# Smallest squared remainder relative to the release. The error e of all dot products in float32 has a length of up to
# about 4e-7 of the release's, so the sum of their squares is off by 2⟨dots, e⟩, up to 1e-6 of its square. A smaller
# remainder may be nothing but rounding. It also limits the ε that scores can show, to about 1e6 · dim / (2 · canaries).
SMALLEST_REMAINDER = 1e-6

# Gauss–Hermite quadrature: means over a standard normal variable.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS /= _WEIGHTS.sum()

# What `OwnScore` calls with a release and a canary, both (dim,).
Function = Callable[[Vector, Vector], float]

VIEWS = ("final", "final-change", "updates", "every:N", "rounds:A,B,…")
"""The views that have a name."""

ADVERSARIES = {
    "final": "sees the final model",
    "final-change": "sees the final model and knows the initial one",
    "updates": "sees every round's noisy average",
    "every": "sees the model after every {} rounds and the final model",
    "rounds": "sees the models after rounds {} and the final model",
}
"""The adversary of each view, continuing "an adversary who"; braces stand for what follows the colon."""


def parse_view(text: str) -> View:
    """Return the view that a text names.

    Args:
        text: ``final`` (the final model), ``final-change`` (the final minus the initial model), ``updates`` (every
            round's noisy average), ``every:N`` (the model after every N rounds and the final one) or ``rounds:A,B``
            (the model after these rounds, counted from 0, and the final one).

    Raises:
        InputError: If the text names no view.

    Example:
        >>> parse_view("every:5")
        View(kind='model', every=5, at=())
    """
    check_kind("view", text, str, f"a text: {', '.join(VIEWS)}")
    kinds: dict[str, Callable[[str], View]] = {
        "final": lambda _: View("model", every=None),
        "final-change": lambda _: View("model", every=None),
        "updates": lambda _: View("update"),
        "every:": lambda rounds: View("model", every=check_count("every", int(rounds))),
        "rounds:": lambda rounds: View("model", every=None, at=tuple(map(int, rounds.split(",")))),
    }
    return parse_kind(text, kinds, f'unknown view "{text}".', VIEWS)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One release as seen by each canary. Arrays have one entry per canary, inserted and held out.

    Args:
        dots: Dot product of each canary with the release.
        lengths: Length of the release that each canary is compared with (`compared`).
        due: How often each canary was due in the rounds that led to the release, also if it is held out.
        shift: What an inserted canary adds to its own dot product, or None if the divisor of the sum is unknown.
        rate: Probability that a canary takes part in the round.
        ends_epoch: Whether an epoch of the participation ends with the round.
    """

    dots: Floats
    lengths: Floats
    due: Ints
    shift: float | None
    rate: float
    ends_epoch: bool


class Score(ABC):
    """A running statistic of the releases, one number per canary.

    Args:
        canaries: The canaries, inserted and held out.
        participation: When they take part.
        shared_rounds: Whether all take part in the same rounds, known to the adversary.
    """

    name: ClassVar[str]
    """Name in settings and results."""

    views: ClassVar[str]
    """The views that it supports: those of ``"one release"``, of ``"several releases"``, or of ``"updates"``."""

    arrays: ClassVar[Mapping[str, float]]
    """Attributes with one number per canary, and what they start from; a checkpoint keeps them."""

    adds_up: ClassVar[bool] = False
    """Whether it adds up releases: if all canaries share their rounds, it is one dot product with their sum."""

    knows_rounds: ClassVar[bool] = False
    """Whether it uses a canary's rounds even if the participation keeps them secret."""

    def __init__(self, canaries: UpdateCanaries, *, participation: Sampling, shared_rounds: bool) -> None:
        self.canaries, self.participation, self.shared_rounds = canaries, participation, shared_rounds
        self.cosine = canaries.cosine_null
        self.releases = 0
        self.times = np.zeros(canaries.count, dtype=np.int64)  # releases that each canary was due for
        self.least_noise = math.inf  # smallest squared share of a release that no canary explains
        # For canaries with the same rounds the sum of their log-likelihood ratios is a dot product with one vector, the
        # matched filter Σ shift · u / |u|². Its weights depend on the releases alone, so its cosine with a held-out
        # canary has the null distribution of any cosine.
        self.uses_direction = self.adds_up and shared_rounds
        self.direction = np.zeros(canaries.dim if shared_rounds else 0, dtype=np.float32)
        # What an inserted canary adds to its dot product with the direction, or to its score; NaN if unknown.
        self.gain = 0.0
        for name, start in self.arrays.items():
            setattr(self, name, np.full(canaries.count, start))

    # What a score defines

    @abstractmethod
    def process(self, observation: Observation) -> None:
        """Process a release; not called if the score is a dot product with the sum of all releases."""

    @abstractmethod
    def values(self) -> tuple[Floats, Null | None]:
        """Return the score of each canary, NaN for canaries that took part in no visible release, and its null.

        That is the distribution of a held-out canary's score, or an upper bound on its tails, or None if neither is
        known.
        """

    def end_epoch(self) -> None:
        """Close an epoch; called by the audit where its last release has nothing to add."""
        return

    # What all scores do

    def add(
        self, change: Vector, length: float, *, due: Ints, shift: float | None, rate: float, ends_epoch: bool
    ) -> None:
        """Process a release of length ``length``; see `Observation` for the other arguments."""
        self.releases += 1
        if not self.uses_direction:  # which is compared with the canaries once, at the end
            dots, lengths, noise = compared(self.canaries, change, length)
            self.least_noise = min(self.least_noise, noise)
            self.process(
                Observation(dots=dots, lengths=lengths, due=due, shift=shift, rate=rate, ends_epoch=ends_epoch)
            )
        self.times += due > 0
        if not self.shared_rounds or not np.count_nonzero(due):
            return
        # If the shift is unknown, all releases get the same weight.
        weight, gain = length, math.nan
        if shift is not None:
            weight, gain = shift, (shift / length) ** 2
        self.gain += gain
        self.direction = on(change.device, self.direction)
        with np.errstate(over="ignore", under="ignore"):
            factor = np.float32(weight / length**2)
        if not np.finfo(np.float32).tiny <= factor < math.inf:
            raise InputError(
                f"a canary adds {weight:.2g} to a release of length {length:.2g}, a ratio that float32 cannot "
                "hold: check the divisor and the clip norm of the release"
            )
        for part in pieces(len(change), change.device):  # in pieces, since a product needs memory
            self.direction[part] += factor * change[part]

    def evidence(self) -> tuple[Floats, Null | None, float | None]:
        """Return the scores, their null distribution, and how far from it those of inserted canaries should be.

        Returns:
            The score of each canary, NaN for canaries that took part in no visible release; the null distribution of
            the score, or an upper bound on its tails, or None; and how many standard deviations from its null an
            inserted canary's score is expected, or None if that is unknown.
        """
        if not self.times.any():  # no canary was due for any release: all scores are alike, and no bound exceeds 0
            return np.zeros(self.canaries.count), None, None
        if not self.uses_direction:
            values, null = self.values()
            if not self.gain > 0:  # which is NaN if a divisor was unknown
                return values, null, None
            # Half of the scores are about ``gain`` above the others, which is no part of how much each side varies.
            variance = max(float(np.nanvar(values)) - self.gain**2 / 4, 1e-12 * self.gain**2)
            return values, null, self.gain / math.sqrt(variance)
        length = math.sqrt(dot(self.direction, self.direction))
        if length == 0:  # a tensor that was never released
            return np.zeros(self.canaries.count), None, None
        dots, lengths, noise = compared(self.canaries, self.direction, length)
        self.least_noise = min(self.least_noise, noise)
        if not self.gain > 0:  # which is NaN if a divisor was unknown
            return dots / lengths, self.cosine, None
        # The length of the releases tells how much noise, clients and other canaries there are, more exactly than the
        # scores do. Of a canary's own component, lengths contain what chance made of it.
        expected = lengths
        if self.canaries.orthonormal:
            expected = np.sqrt(lengths**2 - dots**2 + self.gain**2)
        cosine = min(self.gain / float(expected.mean()), 1 - 2**-53)  # without noise, rounding may push it above 1
        return dots / lengths, self.cosine, float(-special.ndtri_exp(self.cosine.log_sf(cosine)))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps."""
        names = ("releases", "times", "least_noise", "gain", *self.arrays)
        return {name: np.array(getattr(self, name)) for name in names} | {"direction": on(CPU, self.direction)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        for name in ("times", "direction", *self.arrays):
            setattr(self, name, np.array(state[name]))
        self.releases = int(state["releases"])
        self.least_noise, self.gain = float(state["least_noise"]), float(state["gain"])


class Max(Score):
    """Largest cosine over all releases (Andrew et al. 2023, Algorithm 2). Does not use a canary's rounds."""

    name = "max"
    views = "several releases"
    arrays: ClassVar = {"largest": -np.inf}
    largest: Floats

    def process(self, observation: Observation) -> None:
        """Update the maximum."""
        np.maximum(self.largest, observation.dots / observation.lengths, out=self.largest)

    def values(self) -> tuple[Floats, Null]:
        """Return the maximum, and a union bound over the releases: their cosines depend on each other in some way."""
        null = LargestOfNull(self.cosine, self.releases) if self.releases > 1 else self.cosine
        return self.largest, null


class Cosine(Max):
    """Cosine with the only release (Andrew et al. 2023, Algorithm 1), whose null distribution is exact."""

    name = "cosine"
    views = "one release"


class Sum(Score):
    """Sum of the cosines with the releases of a canary's own rounds, for an adversary who knows these rounds."""

    name = "sum"
    views = "several releases"
    arrays: ClassVar = {"total": 0.0}
    adds_up = True
    knows_rounds = True
    total: Floats

    def process(self, observation: Observation) -> None:
        """Add the cosines of canaries that were due."""
        self.total += np.where(observation.due > 0, observation.dots / observation.lengths, 0.0)

    def values(self) -> tuple[Floats, Null | None]:
        """Return the sum, scaled so that its variance does not grow with the number of rounds.

        The null distribution is known if each score is a single cosine.
        """
        scaled = np.where(self.times > 0, self.total / np.sqrt(np.maximum(self.times, 1)), np.nan)
        return scaled, self.cosine if self.times.max() <= 1 else None


class LikelihoodRatio(Score):
    """How much likelier the releases are with the canary than without it.

    In round t an inserted canary c shifts x = ⟨c, uₜ⟩ · divisor / norm by 1. Without it c is a random direction, so x
    has mean 0 and variance v = |uₜ|² (divisor / norm)² / d. The round's log-likelihood ratio is λ = (x − ½) / v. If a
    canary's rounds are secret, the ratio is averaged over the rounds it may have had.
    """

    name = "likelihood-ratio"
    views = "updates"  # changes of a model mix rounds in a way only the server knows
    arrays: ClassVar = {"ratio": 0.0, "epoch": -np.inf, "cosines": 0.0}
    adds_up = True
    ratio: Floats
    epoch: Floats
    """Within an epoch: log Σ rate · e^λ over its rounds so far."""
    cosines: Floats
    """Sum of the cosines with the releases that a canary was due for."""

    def process(self, observation: Observation) -> None:
        """Add the log-likelihood ratio of a round, averaged over what the adversary does not know."""
        present = observation.due > 0
        shift: Floats | float | None = observation.shift
        self.cosines += np.where(present, observation.dots / observation.lengths, 0.0)
        if shift is None:
            # Half of the canaries that are due are inserted, so their mean cosine so far is half of the shift. It uses
            # inserted and held-out canaries alike, whose scores stay exchangeable, but have no known distribution.
            times = int(self.times.sum()) + int(present.sum())
            shift = max(0.0, 2 * float(self.cosines.sum()) / max(1, times)) * observation.lengths
            self.gain = math.nan
        variance = observation.lengths**2 / self.cosine.dim
        ratios = (observation.dots - shift / 2) * shift / variance
        rate = observation.rate
        match self.participation.knowledge:
            case "rounds":
                self.ratio += np.where(observation.due > 0, ratios, 0.0)
            case "rate":
                self.ratio += _in_secret(rate, ratios)
                # The canaries' mean shift in standard deviations of x, and by it the mean difference of the two sides.
                size = float(np.mean(shift / np.sqrt(variance)))
                without, inserted = (_in_secret(rate, size * (_NODES + s) - size**2 / 2) for s in (0.0, size))
                self.gain += rate * float(_WEIGHTS @ (inserted - without))
            case "once-per-epoch":
                self.epoch = np.logaddexp(self.epoch, np.log(rate) + ratios)
                if observation.ends_epoch:
                    self.end_epoch()

    def end_epoch(self) -> None:
        """Add the epoch's ratio; an epoch without any release adds nothing."""
        self.ratio += np.where(np.isneginf(self.epoch), 0.0, self.epoch)
        self.epoch = np.full(self.canaries.count, -np.inf)

    def values(self) -> tuple[Floats, Null | None]:
        """Return the log-likelihood ratio, and Markov's bound P(ln ratio ≥ t) ≤ e⁻ᵗ for one secret round.

        The bound needs shifts that are known. On held-out canaries a single round's ratio then has mean at most 1, and
        so has an average over rounds. A product over several rounds need not, since its factors share the canary.
        """
        informative = self.participation.knowledge != "rounds" or self.times > 0
        null = LikelihoodRatioNull() if self.participation == Epochs(1) and not math.isnan(self.gain) else None
        return np.where(informative, self.ratio, np.nan), null


def _in_secret(rate: float, ratios: Floats) -> Floats:
    """Return log(1 − q + q e^λ): the canary took part with probability q."""
    with np.errstate(divide="ignore"):  # at q = 1, log1p(−1) = −∞ is right
        averaged: Floats = np.logaddexp(np.log1p(-rate), np.log(rate) + ratios)
    return averaged


class OwnScore(Score):
    """A function of the user's of a release and a canary, added up over all releases. Does not use a canary's rounds.

    It sees inserted and held-out canaries alike, so their scores are exchangeable without a known null distribution.
    """

    views = "several releases"
    arrays: ClassVar = {"total": 0.0}
    total: Floats
    function: Function

    def add(self, change: Vector, length: float, *, due: Ints, **terms: Any) -> None:
        """Add what the function returns for each canary."""
        self.releases += 1
        self.times += due > 0
        for i, canary in enumerate(self.canaries.each(range(self.canaries.count), change.device)):
            self.total[i] += check_number(f"the score that {self.name} returns", self.function(change, canary))

    def process(self, observation: Observation) -> None:
        """Do nothing: the function takes the release itself."""

    def values(self) -> tuple[Floats, None]:
        """Return the sums of canaries that took part."""
        return np.where(self.times > 0, self.total, np.nan), None


SCORES: dict[str, type[Score]] = {score.name: score for score in (Cosine, LikelihoodRatio, Max, Sum)}
"""All scores by name. The default for a view is the first that supports it."""


def find_score(score: str | Function | None, view: View, view_name: str) -> type[Score]:
    """Return the score of this name or function, or the view's default score.

    Raises:
        InputError: If there is no such score, or if it does not support the view.
    """
    if callable(score):
        name = getattr(score, "__name__", type(score).__name__)
        return type("OwnScore", (OwnScore,), {"name": name, "function": staticmethod(score)})
    supported = {"one release" if view.every is None and not view.at else "several releases"}
    if view.kind == "update":
        supported.add("updates")
    available = [known for known, kind in SCORES.items() if kind.views in supported]
    if score is None:
        return SCORES[available[0]]
    if score not in SCORES:
        raise InputError(f'unknown score "{score}". {did_you_mean(score, SCORES)}')
    if score not in available:
        raise InputError(f"the score {score} does not support the view {view_name}: use {' or '.join(available)}")
    return SCORES[score]


def compared(canaries: UpdateCanaries, release: Vector, length: float) -> tuple[Floats, Floats, float]:
    """Compare each canary with a release.

    Args:
        canaries: The canaries. If they are orthonormal, the release's components along all canaries but a canary's own
            are removed before it is compared.
        release: The release, (dim,).
        length: Length of the release.

    Returns:
        The dot product of each canary with the release, and the length of the release that it is compared with, both
        (count,): their ratio is the cosine. And the squared share of the release that no canary explains.
    """
    dots = canaries.dots(release)
    squares = dots**2
    explained, lengths = np.max(squares), np.full(dots.shape, length**2)
    if canaries.orthonormal:
        explained = np.sum(squares)
        lengths += squares - float(explained)
    # What is left beside a canary's own component counts as no smaller than the rounding error: cosines stay within
    # (-1, 1).
    lengths = np.sqrt(np.maximum(lengths, squares + SMALLEST_REMAINDER * length**2))
    return dots, lengths, 1 - float(explained) / length**2
