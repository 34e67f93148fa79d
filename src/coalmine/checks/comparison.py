"""Rounds that are run with and without one client, with the same randomness, and compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.checks.noise_level import RATE, NoiseLevel, largest_chance, measure
from coalmine.checks.release import Outcome, Runner
from coalmine.results.verdict import CHECK_RATE

# Movements above this share of the allowed one are checked with other random numbers.
_DOUBT = 1.02
# Fresh draws that measure the noise again once a movement is in doubt, and numbers that they may hold.
_MORE_DRAWS, _MOST_NUMBERS = 100, 4_000_000
# Draws to find out whether a number has noise, at most.
_MOST_DRAWS = 300
# Half of what one client may move the release by, over its noise, that two similar clients may differ by.
_SIMILAR = 1 / 8
# Standard errors that a comparison of averages allows: these share the other half of the rate (see noise_level.py).
_QUANTILE = float(-special.ndtri(CHECK_RATE / 2 / 500))


@dataclass(frozen=True, kw_only=True)
class Movement:
    """What happened when one client joined.

    Args:
        length: Distance that the release moved, in its own units.
        deviations: The same in standard deviations of the noise.
        excess: How many times the movement exceeds what is allowed, as measured; the claim needs at most 1.
        lower: Lower limit on ``excess``, given the error of the measured noise.
        exact: Whether the client moved the release equally in all draws. Otherwise these are averages.
        noise_ratio: Ratio of the noise with the client to that without.
        bare: Coordinates that carry no noise and moved.
        not_finite: Coordinates that became NaN or infinite.
        refusal: What was raised instead of a release.
        p_value: Probability of such a movement if the noise covers it; 0 where that needs no statistics.
    """

    length: float = 0.0
    deviations: float = 0.0
    excess: float = 0.0
    lower: float = 0.0
    exact: bool = True
    noise_ratio: float = 1.0
    bare: tuple[int, ...] = ()
    not_finite: int = 0
    refusal: str = ""
    p_value: float = 0.0


# No noise covers this.
_UNLIMITED = Movement(length=math.inf, deviations=math.inf, excess=math.inf, lower=math.inf)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What the claim allows.

    Args:
        noise_multiplier: The claimed noise multiplier; 0 if there is no claim of noise.
        sensitivity: How far one client within the clip norm moves the release, for releases without noise.
        order: Order of the norm that distances are measured in, if not in standard deviations of the noise.
        size_released: Whether the size of the noise follows from what is released, so that it shows nothing more.
    """

    noise_multiplier: float
    sensitivity: float
    order: int = 2
    size_released: bool = False

    def length(self, moved: Floats) -> float:
        """Return a distance in the release's own units."""
        return float(np.linalg.norm(moved.ravel(), self.order))


def shorter(noise_multiplier: float) -> float:
    """Return the length of a similar client's update, relative to that of the client."""
    return 1 - _SIMILAR * min(1.0, noise_multiplier)


class Round:
    """A round without the client in question, run as often as needed.

    Args:
        runner: Runs the aggregation.
        members: The clients, for one or more rounds.
        draws: How many draws measure the noise.
        precision: Machine precision of clients.
        like: A round that is expected to have the same noise, which saves measuring it.
    """

    def __init__(
        self, runner: Runner, members: Sequence[Sequence[Any]], *, draws: int, precision: float,
        like: Round | None = None,
    ) -> None:  # fmt: skip
        self._runner, self.members, self.draws, self._precision, self._like = runner, members, draws, precision, like
        self._noise: NoiseLevel | None = None
        self._more: NoiseLevel | None = None
        # Coordinates of which it is known whether they carry no noise: shared by rounds of like noise.
        self._known_bare: dict[int, bool] = {} if like is None else like._known_bare

    def outcome(self, draw: int = 0) -> Outcome:
        """Return the release without the client, for a random draw."""
        return self._runner.run(self.members, draw)

    @property
    def noise(self) -> NoiseLevel:
        """The noise of the release."""
        if self._noise is None:
            if self._like is not None and self._has_noise_of(self._like):
                self._noise = self._like.noise
            else:
                self._noise = self._measured(range(self.draws))
        return self._noise

    def compare(
        self, members: Sequence[Sequence[Any]], scale: Scale, *, doubt: float = _DOUBT,
        similar: tuple[Sequence[Any], Sequence[Any]] | None = None,
    ) -> Movement:  # fmt: skip
        """Return how far the release moves if the round has these members instead.

        Args:
            members: The clients of each round.
            scale: What the claim allows.
            doubt: Movements above this share of the allowed one are checked with other random numbers.
            similar: Members of two rounds whose last clients differ by a factor of `shorter` in their updates.
        """
        first, before = self._runner.run(members), self.outcome()
        if first.refusal:
            return Movement(refusal=first.refusal)
        if first.vector.size != before.vector.size:  # the release shows the client by its shape
            return _UNLIMITED
        finite = np.isfinite(first.vector)
        moved = np.where(finite, first.vector - before.vector, 0.0)
        movement = self._judged(moved, self._rounding(before, first), scale, None)
        movement = replace(movement, not_finite=int(np.sum(~finite)))
        if movement.excess < doubt:
            return movement
        # Another draw must move the release in the same way; otherwise only averages over draws say how far it moves.
        again, base = self._runner.run(members, 1), self.outcome(1)
        agrees = not again.refusal and again.vector.size == moved.size
        if agrees:
            difference = np.where(finite, again.vector - base.vector, 0.0) - moved
            rounding = float(np.linalg.norm(self._rounding(base, again)))
            agrees = float(np.linalg.norm(difference)) <= 1e-4 * float(np.linalg.norm(moved)) + 4 * rounding
        if not agrees:
            return self._average(members, finite, scale)
        if movement.bare:
            return self._without_noise(movement, members, scale, similar)
        if len(self.members) > 1 and movement.lower > 1 and self._like is not None and scale.noise_multiplier:
            # Less what the first round shows twice, as in a model and its momentum.
            step, noise = moved.reshape(len(self.members), -1)[:1], self._like._more_noise()
            twice = float(np.linalg.norm(step[0, ~noise.bare] / noise.std[~noise.bare]))
            share = min(1.0, noise.length(step).measured / twice) if twice else 1.0
            return replace(
                movement, deviations=share * movement.deviations, excess=share * movement.excess,
                lower=share * movement.lower,
            )  # fmt: skip
        # Only fresh draws count then, so that it does not matter why they were made. They also show noise that is
        # released twice, as in a model and its momentum, whose dependence a dozen draws do not show.
        unsure = movement.lower < 0.8 * movement.excess and movement.excess > 1.25
        if scale.noise_multiplier and len(self.members) == 1 and (movement.lower > 1 or unsure):
            fresh = self._judged(moved, self._rounding(before, first), scale, self._more_noise())
            return replace(fresh, not_finite=movement.not_finite)
        return movement

    def _judged(self, moved: Floats, rounding: Floats, scale: Scale, noise: NoiseLevel | None) -> Movement:
        """Judge a movement that is known exactly, but for rounding."""
        length = scale.length(moved)
        beyond = max(0.0, 1 - scale.length(rounding) / length) if length else 0.0
        if not scale.noise_multiplier:
            excess = beyond * length / scale.sensitivity
            return Movement(length=length, excess=excess, lower=excess)
        noise = self.noise if noise is None else noise
        by_round = moved.reshape(len(self.members), -1)
        in_noise = noise.length(by_round)
        deviations = beyond * in_noise.measured
        excess = deviations * scale.noise_multiplier
        bare = noise.bare & (np.abs(by_round) > 8 * rounding.reshape(by_round.shape) + 1e-12).any(axis=0)
        bare[[place for place, is_bare in self._known_bare.items() if not is_bare]] = False
        if bare.any():
            places = tuple(np.flatnonzero(bare).tolist())
            return Movement(length=length, deviations=deviations, excess=math.inf, lower=math.inf, bare=places)
        lower, p_value = excess, float(excess <= 1)
        if 1 < excess < math.inf:  # the error of the measured noise matters only then
            lower = beyond * in_noise.lower() * scale.noise_multiplier
            p_value = in_noise.p_value(scale.noise_multiplier)
        return Movement(length=length, deviations=deviations, excess=excess, lower=lower, p_value=p_value)

    def _without_noise(
        self, movement: Movement, members: Sequence[Sequence[Any]], scale: Scale,
        similar: tuple[Sequence[Any], Sequence[Any]] | None,
    ) -> Movement:  # fmt: skip
        """Find out, by new draws, whether coordinates that moved and seem to carry no noise do not.

        Noise of few values, such as discrete noise on a coarse grid, may have one value in a dozen draws. Two similar
        clients tell it apart in few draws where they move a coordinate in proportion to their updates; otherwise the
        client in question and its absence must.
        """
        noise_multiplier = scale.noise_multiplier
        unknown = np.array([place for place in movement.bare if place not in self._known_bare], dtype=np.int64)
        if similar is not None and len(self.members) == 1 and unknown.size:
            pair = [self._runner.run([side]).vector for side in similar]
            if all(vector.size == self.outcome().vector.size for vector in pair):
                longer, short = (vector[unknown] - self.outcome().vector[unknown] for vector in pair)
                differs, slack = np.abs(longer - short), 2 * (1 - shorter(noise_multiplier))
                alike = unknown[(differs > 0) & (differs <= slack * np.abs(longer))]
                self._decide(alike, ([similar[0]], [similar[1]]), noise_multiplier / slack)
        unknown = np.array([place for place in unknown if place not in self._known_bare], dtype=np.int64)
        self._decide(unknown, (members, self.members), noise_multiplier)
        bare = tuple(place for place in movement.bare if self._known_bare.get(place))
        if bare:
            return replace(movement, bare=bare, p_value=RATE)
        excess = movement.deviations * noise_multiplier
        return replace(movement, bare=(), excess=excess, lower=excess, p_value=float(excess <= 1))

    def _decide(self, places: Ints, sides: Sequence[Sequence[Sequence[Any]]], noise_multiplier: float) -> None:
        """Note which coordinates keep one value on one side and never have it on the other, in as many draws as needed.

        The coordinates are chosen before these draws, so only their number counts.
        """
        chance = largest_chance(noise_multiplier)
        needed = math.ceil(math.log(max(1, places.size) / RATE) / -math.log(chance)) if chance < 1 else math.inf
        if not places.size or needed > _MOST_DRAWS:
            return
        shape = (len(sides[0]), -1)
        value = self._runner.run(sides[0]).vector.reshape(shape)[:, places]
        close = np.maximum(1e-9 * self.noise.level, 1e-12 * np.abs(value))
        left = np.ones(value.shape, dtype=bool)
        for draw in range(self.draws, self.draws + int(needed)):
            here, there = (self._runner.run(side, draw).vector for side in sides)
            if here.size != there.size or not here.size:
                return
            left &= np.abs(here.reshape(shape)[:, places] - value) <= close
            left &= np.abs(there.reshape(shape)[:, places] - value) > close
            if not left.any():
                break
        self._known_bare.update(zip(places.tolist(), np.any(left, axis=0).tolist(), strict=True))

    def _average(self, members: Sequence[Sequence[Any]], finite: Bools, scale: Scale) -> Movement:
        """Judge a movement that depends on the draw by averages over draws, and by the size of the noise.

        The squared length of the average movement, in standard deviations, exceeds the true one by the sum of squared
        errors on average, with the variance of a noncentral χ² variable.
        """
        outcomes = [self._runner.run(members, draw) for draw in range(self.draws)]
        refused = [outcome.refusal for outcome in outcomes if outcome.refusal]
        if refused:
            return Movement(refusal=refused[0])
        with_client = np.stack([outcome.vector for outcome in outcomes])
        without = np.stack([self.outcome(draw).vector for draw in range(self.draws)])
        finite = finite & np.isfinite(with_client).all(axis=0)
        bad = int(np.sum(~finite))
        with_client, without = (np.where(finite, side, 0.0) for side in (with_client, without))
        mean = (with_client - without).mean(axis=0)
        error = (with_client - without).std(axis=0, ddof=1) / math.sqrt(self.draws)
        length = scale.length(mean)
        if not scale.noise_multiplier:
            low = _lower_limit(mean / scale.sensitivity, error / scale.sensitivity)
            return Movement(length=length, excess=low, lower=low, exact=False, not_finite=bad)
        # Coordinates that keep a value on one side which they never have on the other show the client without noise.
        for one, other, sides in (
            (with_client, without, (members, self.members)), (without, with_client, (self.members, members)),
        ):  # fmt: skip
            suspects = np.flatnonzero((one == one[0]).all(axis=0) & (other != one[0]).all(axis=0))
            if len(self.members) == 1:
                self._decide(suspects, sides, scale.noise_multiplier)
            bare = tuple(place for place in suspects.tolist() if self._known_bare.get(place))
            if bare:
                return replace(_UNLIMITED, exact=False, bare=bare, p_value=RATE)
        runs, here = with_client.reshape(self.draws, len(self.members), -1), self.noise
        there = measure(runs, list(self.outcome().sizes.values()))
        usable = np.tile(~here.bare & ~there.bare, len(self.members)) & finite
        if len(self.members) > 1 or not usable.any():
            # Later rounds may depend on what earlier ones released, such as an adaptive clip norm: no leak of theirs.
            return Movement(length=length, exact=False, not_finite=bad)
        ratio = float(np.sqrt(np.mean((there.std[usable] / here.std[usable]) ** 2)))
        std = np.minimum(here.std, there.std)[usable]
        low = _lower_limit(mean[usable] / std, error[usable] / std)
        in_noise = (here if ratio >= 1 else there).length(np.where(usable, mean, 0.0)[None])
        low *= in_noise.lower() / in_noise.measured if in_noise.measured else 1.0  # the noise was measured, too
        # Two normal distributions of d coordinates whose scales differ by a factor e^s are as far apart as two that are
        # √(2d)·s standard deviations apart, for small s and many coordinates (both log-likelihood ratios are Gaussian).
        # If both noises are the same up to their scale, the error of s is almost nothing: (1 − correlation²) / n.
        one, two = ((side - side.mean(axis=0))[:, usable].ravel() for side in (with_client, without))
        correlation = float(one @ two) / max(float(np.linalg.norm(one) * np.linalg.norm(two)), 1e-300)
        spread = math.sqrt(max(1 - correlation**2, 1e-12) / one.size)
        beyond = max(0.0, abs(math.log(ratio)) - _QUANTILE * spread)
        by_scale = 0.0 if scale.size_released else math.sqrt(2 * int(usable.sum())) * beyond
        excess = math.hypot(low, by_scale) * scale.noise_multiplier
        return Movement(
            length=length, deviations=excess / scale.noise_multiplier, excess=excess, lower=excess, exact=False,
            noise_ratio=1.0 if scale.size_released else ratio, not_finite=bad,
            p_value=CHECK_RATE if excess > 1 else 1.0,
        )  # fmt: skip

    def _measured(self, draws: range) -> NoiseLevel:
        runs = np.stack([self.outcome(draw).vector.reshape(len(self.members), -1) for draw in draws])
        return measure(runs, list(self.outcome().sizes.values()))

    def _more_noise(self) -> NoiseLevel:
        """Return the noise of fresh draws; that of the first ones if there is no room for more."""
        if self._like is not None and self._noise is self._like.noise:
            return self._like._more_noise()
        if self._more is None:
            draws = min(max(_MORE_DRAWS, self.draws), _MOST_NUMBERS // self.outcome().vector.size)
            fresh = range(self.draws, self.draws + draws)
            self._more = self._measured(fresh) if draws > self.draws else self.noise
        return self._more

    def _has_noise_of(self, other: Round) -> bool:
        """Whether this round has the same noise as another: then both releases differ by the same in each draw."""
        differences = []
        for draw in (0, 1):
            here, there = self.outcome(draw), other.outcome(draw)
            if here.refusal or here.vector.size != there.vector.size:
                return False
            differences.append(here.vector - there.vector)
        rounding = float(np.linalg.norm(self._rounding(self.outcome(), other.outcome())))
        return float(np.linalg.norm(differences[1] - differences[0])) <= rounding + 1e-4 * other.noise.level

    def _rounding(self, before: Outcome, after: Outcome) -> Floats:
        """Return how far rounding may move each coordinate."""
        size = np.maximum(np.abs(before.vector), np.abs(after.vector))
        return np.asarray(2 * max(before.precision, self._precision) * np.where(np.isfinite(size), size, 0.0))


def _lower_limit(mean: Floats, error: Floats) -> float:
    """Return a lower limit on the length of a vector, from its estimate and the errors of its entries."""
    square = float(np.sum(mean**2) - np.sum(error**2))
    spread = math.sqrt(2 * float(np.sum(error**4)) + 4 * float(np.sum((mean * error) ** 2)))
    return math.sqrt(max(square - _QUANTILE * spread, 0.0))
