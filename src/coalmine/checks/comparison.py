"""Replay's comparison: a round with and without one client, with the same randomness, and the noise that covers it.

`Round.compare` says how far one client moves the release. `NoiseLevel` is the noise of the release, measured by running
it again with other random numbers; movements are judged against it. All its limits are for Gaussian noise: the squared
scale of ``n`` residuals is χ² distributed, which also holds for movements across rounds whose noise is correlated
(1 / aᵀS⁻¹a is χ² with n − T + 1 degrees of freedom for a Wishart matrix S of T rounds; Muirhead 1982, Theorem 3.2.12).
Limits for other noise are wider, by its kurtosis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.checks.release import Outcome, Runner
from coalmine.results.verdict import CHECK_RATE

# Comparisons of a movement with a measured noise level, per replay, at most: each level may be too low by chance, and
# they share half of the rate.
TESTS = 200
RATE = CHECK_RATE / 2 / TESTS

# Standard errors by which noise may seem larger along a movement than elsewhere, or dependent. Beyond them, movements
# are judged with fewer assumptions: if independent noise gets there by chance, only power is lost.
_LARGER, _DEPENDENT = 3.0, 4.0
_MANY = 30  # coordinates that do not move alike by chance, if noise decides which of them move
_NOTHING = 1e-9  # relative to the largest noise: rounding, not noise
_NEGLIGIBLE = 0.01  # share of an array's coordinates and of its squared movement below which a group is left out

# Movements above this share of the allowed one are checked with other random numbers.
DOUBT = 1.02
# Fresh draws that measure the noise again once a movement is in doubt, and numbers that they may hold.
_MORE_DRAWS, _MOST_NUMBERS = 100, 4_000_000
# Draws to find out whether a number has noise, at most.
_MOST_DRAWS = 300
# Half of what one client may move the release by, over its noise, that two similar clients may differ by.
_SIMILAR = 1 / 8
# Standard errors that a comparison of averages allows: these share the other half of the rate.
_QUANTILE = float(-special.ndtri(CHECK_RATE / 2 / 500))


@dataclass(frozen=True, kw_only=True)
class Movement:
    """What happened when one client joined.

    Args:
        length: Distance that the release moved, in its own units.
        excess: How many times the movement exceeds what is allowed, as measured; the claim needs at most 1.
        lower: Lower limit on ``excess``, given the error of the measured noise.
        shown: Share of the random draws in which the client moved the release like this; 0 if these are averages.
        noise_ratio: Ratio of the noise with the client to that without.
        bare: Coordinates that carry no noise and moved.
        covered: The excess without these.
        not_finite: Coordinates that became NaN or infinite.
        refusal: What was raised instead of a release.
        p_value: Probability of such a movement if the noise covers it; 0 where that needs no statistics.
    """

    length: float = 0.0
    excess: float = 0.0
    lower: float = 0.0
    shown: float = 1.0
    noise_ratio: float = 1.0
    bare: tuple[int, ...] = ()
    covered: float = 0.0
    not_finite: int = 0
    refusal: str = ""
    p_value: float = 0.0


# No noise covers this.
_UNLIMITED = Movement(length=math.inf, excess=math.inf, lower=math.inf)


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

    @property
    def shorter(self) -> float:
        """Length of a similar client's update, relative to that of the client."""
        return 1 - _SIMILAR * min(1.0, self.noise_multiplier)


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
        # Coordinates that are known to carry no noise, and to carry some: shared by rounds of like noise.
        self._known_bare: set[int] = set() if like is None else like._known_bare
        self._known_noisy: set[int] = set() if like is None else like._known_noisy

    def outcome(self, draw: int = 0) -> Outcome:
        """Return the release without the client, for a random draw."""
        return self._runner.run(self.members, draw)

    @property
    def noise(self) -> NoiseLevel:
        """The noise of the release."""
        if self._noise is None and self._like is not None and not self.outcome().refusal:
            # The same noise as in a like round shows in two draws: both releases differ by the same in each.
            here, there = ([side.outcome(draw).vector for draw in (0, 1)] for side in (self, self._like))
            if here[0].size == there[0].size and here[1].size == there[1].size:
                drift = float(np.linalg.norm((here[1] - there[1]) - (here[0] - there[0])))
                rounding = float(np.linalg.norm(self._rounding(self.outcome(), self._like.outcome())))
                if drift <= rounding + 1e-4 * self._like.noise.level:
                    self._noise = self._like.noise
        if self._noise is None:
            self._noise = self._measured(range(self.draws))
        return self._noise

    def compare(
        self, members: Sequence[Sequence[Any]], scale: Scale, *, doubt: float,
        similar: Sequence[Sequence[Any]] | None = None,
    ) -> Movement:  # fmt: skip
        """Return how far the release moves if the round has these members instead.

        Args:
            members: The clients of each round.
            scale: What the claim allows.
            doubt: Movements from this share of the allowed one on are checked with other random numbers; from 0 on,
                other draws may show a client who does not move the release in the first one.
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
        # Other draws must move the release in the same way; otherwise it depends on the draw how far it moves. One more
        # draw will do, but for few coordinates, which may move alike by chance (as by one step of rounded noise).
        for draw in range(1, 2 if _spread(moved) >= _MANY else self.draws):
            again, base = self._runner.run(members, draw), self.outcome(draw)
            agrees = not again.refusal and again.vector.size == moved.size
            if agrees:
                difference = np.where(finite, again.vector - base.vector, 0.0) - moved
                rounding = float(np.linalg.norm(self._rounding(base, again)))
                agrees = float(np.linalg.norm(difference)) <= 1e-4 * float(np.linalg.norm(moved)) + 4 * rounding
            if not agrees:
                return self._by_draws(members, finite, scale)
        if movement.bare:
            return self._without_noise(movement, members, scale, similar)
        if len(self.members) > 1 and movement.lower > 1 and self._like is not None and scale.noise_multiplier:
            # Less what the first round shows twice, as in a model and its momentum.
            step, noise = moved.reshape(len(self.members), -1)[:1], self._like._more_noise()
            twice = float(np.linalg.norm(step[0, ~noise.bare] / noise.std[~noise.bare]))
            share = min(1.0, noise.length(step).measured / twice) if twice else 1.0
            return replace(movement, excess=share * movement.excess, lower=share * movement.lower)
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
        excess = beyond * in_noise.measured * scale.noise_multiplier
        bare = noise.bare & (np.abs(by_round) > 8 * rounding.reshape(by_round.shape) + 1e-12).any(axis=0)
        bare[list(self._known_noisy)] = False
        if bare.any():
            places = tuple(np.flatnonzero(bare).tolist())
            return replace(_UNLIMITED, length=length, covered=excess, bare=places)
        lower, p_value = excess, float(excess <= 1)
        if 1 < excess < math.inf:  # the error of the measured noise matters only then
            lower = beyond * in_noise.lower() * scale.noise_multiplier
            p_value = in_noise.p_value(scale.noise_multiplier)
        return Movement(length=length, excess=excess, lower=lower, p_value=p_value)

    def _without_noise(
        self, movement: Movement, members: Sequence[Sequence[Any]], scale: Scale,
        similar: Sequence[Sequence[Any]] | None,
    ) -> Movement:  # fmt: skip
        """Find out, by new draws, whether coordinates that moved and seem to carry no noise do not.

        Noise of few values, such as discrete noise on a coarse grid, may have one value in a dozen draws. Two similar
        clients tell it apart in few draws where they move a coordinate in proportion to their updates; otherwise the
        client in question and its absence must.
        """
        noise_multiplier = scale.noise_multiplier
        known = self._known_bare | self._known_noisy
        unknown = np.setdiff1d(np.array(movement.bare, dtype=np.int64), list(known))
        if similar is not None and len(self.members) == 1 and unknown.size:
            before, pair = self.outcome().vector, [self._runner.run([side]).vector for side in similar]
            if before.size == pair[0].size == pair[1].size:
                longer, short = (vector[unknown] - before[unknown] for vector in pair)
                differs, slack = np.abs(longer - short), 2 * (1 - scale.shorter)
                alike = unknown[(differs > 0) & (differs <= slack * np.abs(longer))]
                self._decide(alike, ([similar[0]], [similar[1]]), noise_multiplier / slack)
        known = self._known_bare | self._known_noisy
        self._decide(np.setdiff1d(unknown, list(known)), (members, self.members), noise_multiplier)
        bare = tuple(np.intersect1d(movement.bare, list(self._known_bare)).astype(int).tolist())
        if bare:
            return replace(movement, bare=bare, p_value=RATE)
        excess = movement.covered
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
        self._known_bare |= set(places[left.any(axis=0)].tolist())
        self._known_noisy |= set(places[~left.any(axis=0)].tolist())

    def _by_draws(self, members: Sequence[Sequence[Any]], finite: Bools, scale: Scale) -> Movement:
        """Judge a movement that depends on the draw: where it shows, on average, and by the size of the noise.

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
        shown = replace(self._where_shown(with_client - without, without, scale), not_finite=bad)
        if shown.lower > 1:
            return shown
        if not scale.noise_multiplier:
            low = _lower_limit(mean / scale.sensitivity, error / scale.sensitivity)
            return Movement(length=length, excess=low, lower=low, shown=0.0, not_finite=bad)
        # Coordinates that keep a value on one side which they never have on the other show the client without noise.
        for one, other, sides in (
            (with_client, without, (members, self.members)), (without, with_client, (self.members, members)),
        ):  # fmt: skip
            suspects = np.flatnonzero((one == one[0]).all(axis=0) & (other != one[0]).all(axis=0))
            if len(self.members) == 1:
                self._decide(suspects, sides, scale.noise_multiplier)
            bare = tuple(place for place in suspects.tolist() if place in self._known_bare)
            if bare:
                return replace(_UNLIMITED, shown=0.0, bare=bare, p_value=RATE)
        runs, here = with_client.reshape(self.draws, len(self.members), -1), self.noise
        there = measure(runs, list(self.outcome().sizes.values()))
        usable = np.tile(~here.bare & ~there.bare, len(self.members)) & finite
        if len(self.members) > 1 or not usable.any():
            # Later rounds may depend on what earlier ones released, such as an adaptive clip norm: no leak of theirs.
            return Movement(length=length, shown=0.0, not_finite=bad)
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
            length=length, excess=excess, lower=excess, shown=0.0,
            noise_ratio=1.0 if scale.size_released else ratio, not_finite=bad,
            p_value=CHECK_RATE if excess > 1 else 1.0,
        )  # fmt: skip

    def _where_shown(self, moved: Floats, without: Floats, scale: Scale) -> Movement:
        """Judge the draws in which the client moves the release in the same direction, as if it was sampled there.

        What depends on noise, such as rounding after it, moves many coordinates differently in every draw. So the noise
        of these draws is as it is in others, but for its size: with fewer clients, an average has more noise. The size
        is measured in each draw by itself.

        Args:
            moved: Movement in each draw, (draws, dim).
            without: Releases without the client, (draws, dim).
            scale: What the claim allows.
        """
        nothing, lengths = Movement(), np.linalg.norm(moved, axis=1)
        if len(self.members) > 1 or not lengths.any():
            return nothing
        units = moved / np.maximum(lengths, 1e-300)[:, None]
        alike = np.abs(units @ units.T) > 1 - 1e-8
        members = np.flatnonzero(alike[np.argmax(alike.sum(axis=1))])
        if members.size < 2 or _spread(units[members[0]]) < _MANY:
            return nothing
        excess = lower = np.array([scale.length(movement) for movement in moved[members]]) / scale.sensitivity
        if scale.noise_multiplier:
            noise, noisy = self.noise, ~self.noise.bare
            if not (noisy.any() and noise.independent):
                return nothing
            in_noise = [noise.length(movement[None]) for movement in moved[members]]
            excess = scale.noise_multiplier * np.array([length.measured for length in in_noise])
            lower = scale.noise_multiplier * np.array([length.lower() for length in in_noise])
            residuals = (without - without.mean(axis=0))[members][:, noisy] / noise.std[noisy]
            variances = np.mean(residuals**2, axis=1) * len(without) / (len(without) - 1)
            degrees = noisy.sum() / (1 + noise.excess / 2)
            least = 2 * special.gammaincinv(degrees / 2, RATE / members.size) / degrees
            excess, lower = excess / np.sqrt(variances), lower / np.sqrt(variances / least)
        worst = int(np.argmax(lower))
        share = float(np.sum(lengths[members] >= 0.95 * lengths[members[worst]])) / len(moved)
        return Movement(
            length=scale.length(moved[members[worst]]), excess=float(excess[worst]), lower=float(lower[worst]),
            shown=share, p_value=RATE if scale.noise_multiplier else 0.0,
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

    def _rounding(self, before: Outcome, after: Outcome) -> Floats:
        """Return how far rounding may move each coordinate."""
        size = np.maximum(np.abs(before.vector), np.abs(after.vector))
        return np.asarray(2 * max(before.precision, self._precision) * np.where(np.isfinite(size), size, 0.0))


def _spread(moved: Floats) -> float:
    """Return over how many coordinates a movement is spread; 0 if there is none."""
    squares = (moved / max(float(np.abs(moved).max()), 1e-300)) ** 2
    return float(np.sum(squares) ** 2 / np.sum(squares**2)) if moved.any() else 0.0


def _lower_limit(mean: Floats, error: Floats) -> float:
    """Return a lower limit on the length of a vector, from its estimate and the errors of its entries."""
    square = float(np.sum(mean**2) - np.sum(error**2))
    spread = math.sqrt(2 * float(np.sum(error**4)) + 4 * float(np.sum((mean * error) ** 2)))
    return math.sqrt(max(square - _QUANTILE * spread, 0.0))


@dataclass(frozen=True)
class Length:
    """Length of a movement in standard deviations of the noise, which was measured.

    Args:
        squares: Squared lengths of its parts, each by a noise level of its own, (parts,).
        degrees: Degrees of freedom of these noise levels, (parts,), less what heavy tails take.
    """

    squares: Floats
    degrees: Floats

    @property
    def measured(self) -> float:
        """The length if all noise levels are as measured."""
        return math.sqrt(float(np.sum(self.squares)))

    def lower(self, rate: float = RATE) -> float:
        """Return a lower limit on the length that fails with probability ``rate`` at most (χ², union bound).

        For noise with heavier tails the mean square of n numbers has the variance (2 + excess)/n, that of a χ² variable
        with n / (1 + excess/2) degrees of freedom, whose lower tail is used: an approximation.
        """
        degrees = np.maximum(self.degrees, 0.1)
        shares = 2 * special.gammaincinv(degrees / 2, rate / max(1, degrees.size)) / degrees
        return math.sqrt(float(np.sum(self.squares * shares)))

    def p_value(self, noise_multiplier: float) -> float:
        """Return a p-value of the claim that the movement is covered: that some noise level was measured too low.

        It is the smallest rate at which `lower` would still leave a movement that is not covered, times `TESTS`.
        """
        low, high = -700.0, 0.0
        for _ in range(40):
            middle = (low + high) / 2
            covered = self.lower(math.exp(middle)) * noise_multiplier <= 1
            low, high = (middle, high) if covered else (low, middle)
        return min(1.0, TESTS * math.exp(high)) if low > -700 else 0.0


@dataclass(frozen=True, eq=False)
class NoiseLevel:
    """The noise of a release.

    Args:
        std: Standard deviation of each coordinate, pooled over its array, (dim,). 0 where one value occurs in more than
            half of the runs: there is no noise, or noise of few values whose standard deviation says little.
        arrays: Which array each coordinate belongs to, (dim,).
        bare: Which coordinates seem to carry no noise, (dim,).
        level: Typical standard deviation where there is noise; 0 if there is none.
        rounds: Inverse correlation of the rounds' noise, (rounds, rounds).
        shared: Directions across rounds that carry no noise, (k, rounds).
        residuals: The first round's noise in units of ``std``, where there is any, (runs, numbers).
        excess: Kurtosis above that of Gaussian noise, at least 0.
        independent: Whether the numbers of one run seem to be independent.
    """

    std: Floats
    arrays: Ints
    bare: Bools
    level: float
    rounds: Floats
    shared: Floats
    residuals: Floats
    excess: float
    independent: bool

    def length(self, moved: Floats) -> Length:
        """Return the length of a movement, (rounds, dim), in standard deviations of the noise where there is any."""
        noisy = ~self.bare
        direction = moved[:, noisy] / self.std[noisy]
        if np.max(np.abs(self.shared @ direction), initial=0.0) > 1e-6:
            return Length(np.array([math.inf]), np.ones(1))  # rounds share noise, so together they show the movement
        if len(moved) == 1 and direction.any():
            return self._along(direction[0]) or self._by_size(direction[0])
        squares = np.maximum(np.sum(direction * (self.rounds @ direction), axis=0), 0.0)
        numbers = np.bincount(self.arrays[noisy])
        degrees = np.maximum((len(self.residuals) - 1) * numbers - len(moved) + 1, 1) / (1 + self.excess / 2)
        return Length(np.bincount(self.arrays[noisy], squares).astype(np.float64), degrees)

    def _along(self, direction: Floats) -> Length | None:
        """Return the length of a movement, (numbers,), by the noise along it, if that must be used.

        For noise of any covariance Σ, mᵀΣ⁻¹m ≥ |m|⁴ / mᵀΣm: a movement m is at least |m| / (size along m) standard
        deviations long. That is exact for white noise, and needs no assumption on others, but uses one number per run.
        So it counts where numbers seem to depend on each other, or where there seems to be more noise along m than
        its numbers have.
        """
        length = float(np.linalg.norm(direction))
        weights = direction / length
        square = float(np.mean((self.residuals @ weights) ** 2))
        degrees = (len(self.residuals) - 1) / (1 + self.excess * float(np.sum(weights**4)) / 2)
        expected = float(weights**2 @ np.mean(self.residuals**2, axis=0))
        if self.independent and square <= expected * (1 + _LARGER * math.sqrt(2 / degrees)):
            return None
        return Length(np.array([length**2 / max(square, 1e-300)]), np.array([degrees]))

    def _by_size(self, direction: Floats) -> Length:
        """Return the length of a movement, (numbers,), for independent noise whose numbers may have any sizes.

        For N numbers with movements mᵢ, noise σᵢ and measured noise sᵢ, Σ sᵢ²/mᵢ² is stochastically larger than if all
        σᵢ/mᵢ were equal to their geometric mean g: of all ellipsoids of one volume, the ball has the largest
        probability under a normal distribution. And Σ mᵢ²/σᵢ² ≥ N/g². So N²/Σ (sᵢ²/mᵢ²) is a squared length with the
        error of N · (runs − 1) degrees of freedom at most. Numbers that moved about equally far go together, since the
        arithmetic mean of mᵢ² is near their harmonic mean then.
        """
        moved = direction**2 > _NOTHING**2 * np.max(direction**2)
        arrays, square = self.arrays[~self.bare][moved], direction[moved] ** 2
        variances = np.mean(self.residuals**2, axis=0)[moved]
        # One group for each array and power of two.
        _, labels = np.unique(arrays * 4096 + np.frexp(square)[1], return_inverse=True)
        numbers, part = np.bincount(labels), np.bincount(labels, square)
        home = np.zeros(numbers.size, dtype=np.int64)
        home[labels] = arrays
        kept = part > _NEGLIGIBLE * np.bincount(arrays, square)[home]
        kept |= numbers > _NEGLIGIBLE * np.bincount(arrays)[home]
        squares = numbers**2 / np.maximum(np.bincount(labels, variances / square), 1e-300)
        degrees = numbers * (len(self.residuals) - 1) / (1 + self.excess / 2)
        return Length(squares[kept], degrees[kept])


def measure(runs: Floats, sizes: list[int]) -> NoiseLevel:
    """Measure the noise.

    Args:
        runs: Releases of the same clients with other random numbers, (runs, rounds, dim).
        sizes: Numbers of coordinates of the arrays of one round's release.
    """
    count, rounds, _ = runs.shape
    mean = runs.mean(axis=0)
    residuals = (runs - mean) * math.sqrt(count / (count - 1))
    deviations = np.sqrt(np.mean(residuals[:, 0] ** 2, axis=0))
    # A coordinate's own scale, since its rounding error is relative to its own size.
    noisy = deviations > np.maximum(_NOTHING * deviations.max(initial=0.0), 1e-12 * np.abs(mean[0]))
    # How often the most frequent value of each coordinate occurs.
    ordered = np.sort(runs[:, 0], axis=0)
    repeats = most = np.ones(ordered.shape[1])
    for equal in ordered[1:] == ordered[:-1]:
        repeats = np.where(equal, repeats + 1, 1)
        most = np.maximum(most, repeats)
    noisy &= most <= count / 2
    arrays = np.repeat(np.arange(len(sizes)), sizes)
    if not noisy.any():
        nothing = np.zeros_like(deviations)
        return NoiseLevel(
            std=nothing, arrays=arrays, bare=~noisy, level=0.0, rounds=np.eye(rounds), shared=np.empty((0, rounds)),
            residuals=np.empty((count, 0)), excess=0.0, independent=True,
        )  # fmt: skip
    numbers = np.bincount(arrays[noisy], minlength=len(sizes))
    energy = np.bincount(arrays[noisy], deviations[noisy] ** 2, minlength=len(sizes))
    std = np.where(noisy, np.sqrt(energy / np.maximum(numbers, 1))[arrays], 0.0)
    standard = residuals[:, :, noisy] / std[noisy]
    correlation = np.einsum("ktc,kuc->tu", standard, standard) / (count * int(noisy.sum()))
    values, vectors = np.linalg.eigh(correlation)
    missing = values < 1e-8 * values[-1]
    inverse = (vectors[:, ~missing] / values[~missing]) @ vectors[:, ~missing].T
    first = standard[:, 0]
    # A residual of n runs is a weighted sum of all of them, which has this share of the excess kurtosis.
    share = ((count - 1) ** 3 + 1) / (count**2 * (count - 1))
    excess = max(0.0, (float(np.mean(first**4)) - 3.0) / share)
    return NoiseLevel(
        std=std, arrays=arrays, bare=std == 0, level=float(np.sqrt(np.mean(std[noisy] ** 2))), rounds=inverse,
        shared=vectors[:, missing].T, residuals=first, excess=excess, independent=_independent(first),
    )  # fmt: skip


def _independent(standard: Floats) -> bool:
    """Whether the numbers of noise vectors, (runs, numbers), seem to be independent, whatever their sizes."""
    runs, numbers = standard.shape
    if numbers < 8:  # so few say little
        return False
    # Differences of runs are symmetric. If the signs of their numbers are independent, (Σ aᵢbᵢ)² is Σ aᵢ²bᵢ² on
    # average, and more if fewer dimensions matter. Different pairs are uncorrelated.
    pairs = standard[: runs // 2 * 2 : 2] - standard[1::2]
    pairs /= np.maximum(np.linalg.norm(pairs, axis=1, keepdims=True), 1e-12)
    upper = np.triu_indices(len(pairs), 1)
    squares, expected = (pairs @ pairs.T)[upper] ** 2, (pairs**2 @ (pairs**2).T)[upper]
    return bool(np.mean(squares) < np.mean(expected) * (1 + _DEPENDENT * math.sqrt(2 / len(upper[0]))))


def largest_chance(noise_multiplier: float) -> float:
    """Return how often a number may have one value with a client and another without it, at most.

    Let a value have the probabilities p and q with and without the client. Gaussian noise, and discrete Gaussian noise,
    of noise multiplier z has a Kullback–Leibler divergence of at most 1/(2z²) in both directions, whatever follows
    (Bun and Steinke, 2016, Lemma 2.4; Canonne, Kamath and Steinke, 2020, Theorem 4). Let m = min(p, 1 − q) > ½.
    Then (2m − 1) log(m / (1 − m)) ≤ kl(p, q) ≤ 1/(2z²). A draw has the value on one side only with at most the
    probability m, however the two sides depend on each other.

    Example:
        >>> [round(largest_chance(z), 3) for z in (0.5, 1.0, 4.0)]
        [0.917, 0.74, 0.562]
    """
    allowed = 1 / (2 * noise_multiplier**2)
    # By bisection in t = log(m / (1 − m)), where 2m − 1 = tanh(t/2); t · tanh(t/2) > t − 1.
    low, high = 0.0, allowed + 1
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.tanh(middle / 2) < allowed else (low, middle)
    return 1 / (1 + math.exp(-high))
