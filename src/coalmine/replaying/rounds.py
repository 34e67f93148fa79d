"""Rounds that are run with and without one client, with the same randomness, and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError
from coalmine.replaying import atoms
from coalmine.replaying.averages import average_movement
from coalmine.replaying.movement import RATE, Movement, Scale
from coalmine.replaying.noise import Noise, draws_for, measure
from coalmine.replaying.running import Outcome, Runner
from coalmine.replaying.state import innovations

# Draws that measure the noise again where a few say too little, numbers that they may hold, and the margin below
# which there are too few.
_MORE_DRAWS, _MOST_NUMBERS, _UNSURE = 100, 4_000_000, 0.8


class Round:
    """A round without the client in question, run as often as needed.

    Args:
        runner: Runs the aggregation.
        members: The clients, for one or more rounds.
        draws: How many draws measure the noise.
        first_draw: The first of them.
        uneven: Whether the noise is to be judged as if its numbers had different sizes, even if it does not seem so.
        reproducible: Whether equal randomness gives equal releases.
        precision: Machine precision of clients.
        like: A round that is expected to have the same noise, which saves measuring it.
        trust: Whether to check that only once a movement is in doubt.
    """

    def __init__(
        self,
        runner: Runner,
        members: Sequence[Sequence[Any]],
        *,
        draws: int,
        reproducible: bool,
        precision: float,
        like: Round | None = None,
        trust: bool = False,
        first_draw: int = 0,
        uneven: bool = False,
    ) -> None:
        self._runner, self.members, self.draws = runner, members, draws
        self._first_draw, self._uneven = first_draw, uneven
        self.reproducible, self._precision = reproducible, precision
        self._outcomes: dict[int, Outcome] = {}
        self._like, self._trusted = like, trust and like is not None
        self._noise: Noise | None = None
        self._more: Noise | None = None
        self._same_as_like = False
        # Coordinates of which it is known that they carry no noise, or that they do: shared by rounds of like noise.
        self._known: dict[int, bool] = {} if like is None else like._known

    def outcome(self, draw: int) -> Outcome:
        """Return the release without the client, for a random draw."""
        if draw not in self._outcomes:
            # Where equal draws differ anyway, the releases with the client must not reuse those without.
            self._outcomes[draw] = self._runner.run(self.members, draw)
        return self._outcomes[draw]

    @property
    def noise(self) -> Noise:
        """The noise of the release."""
        if self._trusted and self._like is not None:
            return self._like.noise
        if self._noise is None and self._like is not None:
            self._noise = self._same_noise(self._like)
            self._same_as_like = self._noise is not None
        if self._noise is None:
            noise = self.noise_of(range(self._first_draw, self._first_draw + self.draws))
            self._noise = replace(noise, even=False) if self._uneven else noise
        return self._noise

    def noise_of(self, draws: Sequence[int]) -> Noise:
        """Return the noise of these random draws."""
        runs = np.stack([self._matrix(self.outcome(draw)) for draw in draws])
        return measure(innovations(runs, self._sizes()) if self._runner.state_varies else runs, self._sizes())

    def compare(
        self, members: Sequence[Sequence[Any]], scale: Scale, *, doubt: float = 1.02, hint: Floats | None = None,
        similar: tuple[Sequence[Any], Sequence[Any]] | None = None,
    ) -> Movement:  # fmt: skip
        """Return how far the release moves if the round has these members instead.

        Args:
            members: The clients of each round.
            scale: What the claim allows.
            doubt: Movements above this share of the allowed one are checked with other random numbers.
            hint: Direction in which the movement is expected, for releases whose randomness cannot be repeated.
            similar: Clients of two rounds that differ in one client, whose update is shorter in the second by
                `atoms.shortened`.
        """
        first = self._runner.run(members, 0)
        if first.vector is None:
            return Movement(refusal=first.refusal)
        before = self._matrix(self.outcome(0))
        if first.vector.size != before.size:
            return Movement(length=math.inf, deviations=math.inf, excess=math.inf)
        after = self._matrix(first)
        finite = np.asarray(np.isfinite(after).all(axis=0))
        moved = np.where(finite, after - np.where(finite, before, 0.0), 0.0)
        movement = self._judged(moved, before, after, finite, scale)
        if self._trusted and movement.excess >= doubt:
            self._trusted = False
            movement = self._judged(moved, before, after, finite, scale)
        if self.reproducible and movement.excess < doubt:
            return movement
        if self.reproducible:
            again = self._runner.run(members, 1)
            if again.vector is not None and self._agree(moved, again, finite, before):
                movement = self._surer(movement, partial(self._judged, moved, before, after, finite, scale), scale)
                return self._confirmed(movement, members, scale, similar)
        return self._statistics(members, finite, scale, hint)

    def leaves_noise(self, members: Sequence[Sequence[Any]], scale: Scale) -> bool:
        """Whether the noise vectors span too few dimensions, and these members move a single round out of them."""
        vector, before = self._runner.run(members, 0).vector, self._matrix(self.outcome(0))[0]
        if self.noise.rank is None or vector is None or vector.shape != before.shape:
            return False
        moved = np.nan_to_num(vector - before, posinf=0.0, neginf=0.0)
        rounding = self._rounding(before[None], vector[None], np.isfinite(vector))[0]
        return self.noise.misses(moved, rounding, scale.noise_multiplier)

    def _surer(self, movement: Movement, judge: Callable[[Noise], Movement], scale: Scale) -> Movement:
        """Judge a movement again, by more draws, where the first ones say too little.

        About the noise of a few numbers they may say too little to refute. And a small excess may be noise that is
        released twice, as in a model and a momentum, whose dependence a dozen draws do not show. Only the new draws
        count then, so that it does not matter why they were made.
        """
        refuted = movement.excess * movement.margin > 1
        unsure = movement.margin < _UNSURE and movement.excess > 1 / _UNSURE
        if movement.unprotected or not scale.noise_multiplier:
            return movement
        if not (movement.excess < self.noise.plain_excess if refuted else unsure):
            return movement
        source = self._like if self._like is not None and self._same_as_like else self
        draws = draws_for(movement.excess, _MORE_DRAWS) if refuted else _MORE_DRAWS
        more = source._more_noise(draws) if len(self.members) == 1 else None
        return movement if more is None else judge(replace(more, even=self.noise.even))

    def _more_noise(self, draws: int) -> Noise | None:
        """Return the noise of at least so many new draws; None if there is no room for more than usual."""
        start, room = self._first_draw, _MOST_NUMBERS // self._matrix(self.outcome(0)).size
        more = min(max(draws, self.draws + 1), room, self._runner.most_draws - start - self.draws)
        known = 0 if self._more is None else len(self._more.residuals)
        if more > max(self.draws, known):
            self._more = self.noise_of(range(start + self.draws, start + self.draws + more))
        return self._more

    def _judged(
        self, moved: Floats, before: Floats, after: Floats, finite: Bools, scale: Scale, noise: Noise | None = None
    ) -> Movement:
        """Judge a movement that is known exactly, but for rounding."""
        rounding = self._rounding(before, after, finite)
        length = scale.length(moved)
        beyond = max(0.0, 1 - scale.length(rounding) / length) if length else 0.0
        bad = int(np.sum(~finite))
        shares: dict[str, Any] = {} if len(moved) > 1 else self._shares(moved[0], scale)
        if scale.noise_multiplier == 0:
            excess = beyond * length / scale.sensitivity if scale.sensitivity > 0 else 0.0
            return Movement(length=length, excess=excess, not_finite=bad, **shares)
        noise = noise or self.noise
        length_in_noise = noise.length(moved)
        deviations = beyond * length_in_noise.measured
        bare = noise.bare & (np.abs(moved) > 8 * rounding + 1e-12).any(axis=0)
        bare[[place for place, is_bare in self._known.items() if not is_bare]] = False
        excess = math.inf if bare.any() else deviations * scale.noise_multiplier
        return Movement(
            length=length, deviations=deviations, excess=excess,
            margin=length_in_noise.margin, unprotected=tuple(int(i) for i in np.flatnonzero(bare)), not_finite=bad,
            p_value=0.0 if bare.any() else length_in_noise.p_value(scale.noise_multiplier) if excess > 1 else 1.0,
            **shares,
        )  # fmt: skip

    def _shares(self, moved: Floats, scale: Scale) -> dict[str, Any]:
        """Return how far each array moved, and each number if all moved equally far."""
        parts = np.split(moved, np.cumsum(self._sizes())[:-1])
        low, high = np.quantile(np.abs(moved), (0.1, 1.0)).tolist()  # some numbers may be too small to be clipped
        lengths = tuple(scale.length(part) for part in parts if part.size)
        return {"by_array": lengths, "each_number": high if low > 0.99 * high else 0.0}

    def _statistics(
        self, members: Sequence[Sequence[Any]], finite: Bools, scale: Scale, hint: Floats | None
    ) -> Movement:
        """Judge a movement that depends on the draw: look for values that only one side has, then at averages."""
        draws = range(self.draws)
        # Draws of their own where draws cannot be repeated; the same ones otherwise, which reduces the error.
        outcomes = [self._runner.run(members, draw) for draw in draws]
        refused = next((o for o in outcomes if o.vector is None), None)
        if refused is not None:
            return Movement(refusal=refused.refusal)
        with_client = np.stack([self._matrix(outcome) for outcome in outcomes])
        finite = finite & np.isfinite(with_client).all(axis=(0, 1))
        with_client = np.where(finite, with_client, 0.0)
        without = np.where(finite, np.stack([self._matrix(self.outcome(draw)) for draw in draws]), 0.0)
        one_sided = self._atoms(members, with_client, without, scale)
        if one_sided.places.any():
            return Movement(
                length=math.inf, deviations=math.inf, excess=math.inf, exact=False,
                unprotected=tuple(np.flatnonzero(one_sided.places).tolist()), p_value=one_sided.p_value,
            )  # fmt: skip
        there = measure(with_client, self._sizes())
        return average_movement(with_client, without, finite, scale, noise=(there, self.noise), hint=hint)

    def _confirmed(
        self, movement: Movement, members: Sequence[Sequence[Any]], scale: Scale,
        similar: tuple[Sequence[Any], Sequence[Any]] | None,
    ) -> Movement:  # fmt: skip
        """Find out, by new draws, whether coordinates that moved and seem to carry no noise do not.

        Two similar clients show it in few draws if the coordinates tell them apart; otherwise the client in question
        and its absence must.
        """
        suspects, known = movement.unprotected, self._known
        if not suspects or all(known.get(place) for place in suspects):
            return replace(movement, p_value=RATE) if suspects else movement
        places, sides, noise_multiplier = np.array(suspects), (members, self.members), scale.noise_multiplier
        if similar is not None and len(self.members) == 1:
            shown, other = ([side] for side in similar)
            outcomes = [self._runner.run(side, 0).vector for side in (shown, other)]
            if all(vector is not None and vector.size > places.max() for vector in outcomes):
                before = self._matrix(self.outcome(0))[0][places]
                moved = [vector[places] - before for vector in outcomes if vector is not None]
                told_apart = atoms.proportional(moved[0], moved[1], noise_multiplier)
                if told_apart.any():
                    places, sides = places[told_apart], (shown, other)
                    noise_multiplier /= 2 * atoms.shortened(noise_multiplier)
        found = self._alone(places, sides, noise_multiplier)
        if found.decided:
            known.update(zip(places.tolist(), found.places.tolist(), strict=True))
        bare = tuple(place for place in suspects if known.get(place))
        undecided = sum(place not in known for place in suspects)
        if bare:
            return replace(movement, unprotected=bare, p_value=RATE)  # at most, also for those known before
        excess = movement.deviations * scale.noise_multiplier
        return replace(movement, unprotected=(), undecided=undecided, excess=excess, p_value=float(excess <= 1))

    def _alone(
        self, places: Ints, sides: tuple[Sequence[Sequence[Any]], Sequence[Sequence[Any]]], noise_multiplier: float
    ) -> atoms.Alone:
        """Find out which of these coordinates always differ between two sides, and never vary."""

        rounds = len(self.members)

        def run(draw: int) -> tuple[Floats, Floats] | None:
            one, two = (self._runner.run(side, draw).vector for side in sides)
            if one is None or two is None or one.size != two.size or one.size <= places.max():
                return None
            return one.reshape(rounds, -1)[:, places].ravel(), two.reshape(rounds, -1)[:, places].ravel()

        values = run(0)
        if values is None:
            return atoms.Alone(np.zeros(places.size, dtype=bool), decided=False)
        close = np.maximum(1e-9 * self.noise.level, 1e-12 * np.abs(values[1]))
        suspects = np.abs(values[0] - values[1]) > close
        found = atoms.alone(
            run, values, (suspects, np.zeros_like(suspects)), noise_multiplier=noise_multiplier, rate=RATE,
            first_draw=self._first_draw + self.draws, close=close,
        )  # fmt: skip
        return replace(found, places=np.asarray(found.places.reshape(rounds, -1).any(axis=0)))

    def _atoms(
        self, members: Sequence[Sequence[Any]], with_client: Floats, without: Floats, scale: Scale
    ) -> atoms.Alone:
        """Find out which coordinates have one value in all draws of one side and in none of the other."""

        def run(draw: int) -> tuple[Floats, Floats] | None:
            one, two = (self._runner.run(rounds, draw).vector for rounds in (members, self.members))
            return None if one is None or two is None or one.shape != two.shape else (one, two)

        sides = with_client[:, 0], without[:, 0]
        first, second = (
            (one == one[0]).all(axis=0) & (other != one[0]).all(axis=0) for one, other in (sides, sides[::-1])
        )
        if scale.noise_multiplier == 0 or len(self.members) > 1:
            return atoms.Alone(first & False)
        return atoms.alone(
            run, (sides[0][0], sides[1][0]), (first, second), noise_multiplier=scale.noise_multiplier, rate=RATE,
            first_draw=self._first_draw + self.draws,
        )  # fmt: skip

    def _same_noise(self, other: Round) -> Noise | None:
        """Return another round's noise if this one has the same: then both releases differ by the same in each draw."""
        if not (self.reproducible and other.reproducible) or other.outcome(0).vector is None:
            return None
        outcomes = [self._runner.run(self.members, draw) for draw in (0, 1)]
        if any(o.vector is None or o.vector.size != other._matrix(other.outcome(0)).size for o in outcomes):
            return None
        self._outcomes.update(enumerate(outcomes))
        before = self._matrix(outcomes[0])
        difference = before - self._matrix(other.outcome(0))
        finite = np.asarray(np.isfinite(difference).all(axis=0))
        moved = self._matrix(outcomes[1]) - self._matrix(other.outcome(1))
        close = np.linalg.norm(difference - moved) <= np.linalg.norm(self._rounding(before, moved, finite)) + 1e-4 * (
            other.noise.level
        )
        return replace(other.noise, mean=other.noise.mean + difference) if close else None

    def _agree(self, moved: Floats, again: Outcome, finite: Bools, before: Floats) -> bool:
        """Whether another draw moves the release in the same way."""
        second = self._matrix(again)
        if second.shape != moved.shape or (np.isfinite(second).all(axis=0) != finite).any():
            return False
        other = np.where(finite, second - self._matrix(self.outcome(1)), 0.0)
        rounding = float(np.linalg.norm(self._rounding(before, second, finite)))
        return float(np.linalg.norm(other - moved)) <= 1e-4 * float(np.linalg.norm(moved)) + 4 * rounding

    def _rounding(self, before: Floats, after: Floats, finite: Bools) -> Floats:
        """Return how far rounding may move each coordinate."""
        precision = max(self.outcome(0).precision, self._precision)
        size = np.maximum(np.abs(before), np.abs(np.where(finite, after, 0.0)))
        return np.asarray(2 * precision * np.where(np.isfinite(size), size, 0.0))

    def _matrix(self, outcome: Outcome) -> Floats:
        """Return a release as one row per round."""
        if outcome.vector is None:
            raise InputError(f"release raised {outcome.refusal}")
        return outcome.vector.reshape(len(self.members), -1)

    def _sizes(self) -> list[int]:
        return [size for _, size in self.outcome(0).names]
