"""Noise that a release keeps in its state: idle rounds show whether there is any, whether it repeats, and its size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.replaying.atoms import shortened
from coalmine.replaying.extras import Extra, Extras
from coalmine.replaying.judge import Judge
from coalmine.replaying.movement import Scale
from coalmine.replaying.rounds import Round
from coalmine.replaying.running import Runner
from coalmine.replaying.state import Covered, covered, has_noise, is_prepared, period
from coalmine.stats.guessed_seeds import guess_seed

FEW_DRAWS = 12
"""Draws that measure the noise at least."""

STATE_DRAWS = 40
"""Draws that measure noise in the state."""

_MOST_STATE_DRAWS = 100  # draw k takes k more rounds

# Share of a movement by which it may differ from one in proportion.
_PROPORTIONAL = 1e-2

# Rounds that tell whether there is noise in the state, and whether it repeats; numbers of each array that tell that.
_ROUNDS, _MOST_ROUNDS, _NUMBERS = 12, 300, 100

# Share of a movement by which that of a shorter update may differ from a shorter movement.
_LINEAR = 1e-4


@dataclass(frozen=True)
class StateSearch:
    """Looks for noise that a release keeps in its state, and at that noise.

    Args:
        runner: Runs the aggregation.
        extras: Makes up clients.
        base: The round without the client in question.
        sizes: Numbers of coordinates of the arrays of a release.
    """

    runner: Runner
    extras: Extras
    base: Round
    sizes: Sequence[int]

    def vary(self, absent: Any, rounds: int) -> bool:
        """If the release keeps noise in its state, let each draw begin with another state; return whether it does.

        Clients whose updates are zero leave a model and a momentum as they are, so that only noise changes them.

        Args:
            absent: A client whose update is zero, or nearly so.
            rounds: Number of rounds that later runs take at most.
        """
        clients, moved, noise = self.extras.clients, self._moved(), self.base.noise
        for others in ([absent] * len(clients), clients):
            idle = Idle(self.runner, [*others, absent], moved, self.sizes)
            if idle.keeps_noise(np.where(noise.varying, noise.unit, 0.0)):
                most = idle.lasts(_MOST_STATE_DRAWS + rounds) - rounds
                self.runner.vary_state(idle.members, most_draws=most)
                return True
            if idle.lasts(2) == 2:
                break
        return False

    def check(self, first: Extra, scale: Scale, judge: Judge) -> Scale:
        """Look at noise in the state: whether it repeats, and its size if the state changes what a client does.

        Args:
            first: A client.
            scale: What the claim allows.
            judge: Is told what is found.

        Returns:
            What movements are to be compared with from then on.
        """
        steady = self._steady(first)
        in_proportion = steady or self._in_proportion()
        judge.about_state(varied=steady, compared=in_proportion)
        idle = Idle(self.runner, self.runner.idle or [], self._moved(), self.sizes)
        if repeats := idle.period():
            judge.about_repeats(repeats)
        if seed := idle.guessed_seed():
            judge.about_seed(seed)
        if steady:
            return scale
        claimed = scale.noise_multiplier
        client, shorter = (self.extras.along(self.extras.direction, size) for size in (1.0, shortened(claimed)))
        draws = min(self.runner.most_draws, STATE_DRAWS)
        for places, noise in idle.too_little(client, shorter, claimed, draws):
            judge.about_size(places, noise, first)
        # Where clients do not act in proportion, how far one of them moves the release says nothing about another.
        return replace(scale, noise_multiplier=0.0, sensitivity=scale.sensitivity if in_proportion else math.inf)

    def _moved(self) -> Bools:
        """Return which coordinates any honest client moves that joins the given ones."""
        before = self.base.outcome(0).vector
        assert before is not None
        moved = np.zeros(before.size, dtype=bool)
        for extra in (extra for extra in self.extras.all() if not extra.hostile):
            after = self.runner.run([[*self.extras.clients, extra.build(extra.magnitude)]]).vector
            if after is not None and after.size == before.size:
                moved |= after != before
        return moved

    def _steady(self, first: Extra) -> bool:
        """Whether the state may be varied: it lasts for enough draws, and a client counts the same in all of them."""
        if self.runner.most_draws < FEW_DRAWS:
            return False
        joined = [*self.extras.clients, first.build(first.magnitude)]
        moved = []
        for draw in (0, self.base.draws - 1):
            one, two = (self.runner.run([members], draw).vector for members in (joined, *self.base.members))
            if one is None or two is None or one.shape != two.shape:
                return False
            moved.append(one - two)
        return bool(np.linalg.norm(moved[1] - moved[0]) <= 1e-3 * np.linalg.norm(moved[0]))

    def _in_proportion(self) -> bool:
        """Whether a client moves each array in proportion to its update, and the state changes that by factors only.

        That is so for a learning rate that decays, and not for what is done after the noise, such as clipping.
        """
        updates = (0.0, 1.0, 0.5)
        rounds = [[*self.extras.clients, self.extras.along(self.extras.direction, size)] for size in updates]
        moved = []
        for draw in sorted({0, min(1, self.base.draws - 1), self.base.draws - 1}):
            without, whole, half = (self.runner.run([members], draw).vector for members in rounds)
            if without is None or whole is None or half is None or not without.size == whole.size == half.size:
                return False
            moved.append((whole - without, 2 * (half - without)))
        ends = np.cumsum(self.sizes)[:-1]
        for array in zip(*(np.split(np.stack(pair), ends, axis=1) for pair in moved), strict=True):
            movements = np.concatenate(array)  # two of each draw, which are all multiples of one
            lengths = np.linalg.svd(movements, compute_uv=False) if movements.any() else np.zeros(1)
            each = np.linalg.norm(movements[::2] - movements[1::2], axis=1)
            apart = np.append(lengths[1:], each / math.sqrt(2)).max()
            if apart > _PROPORTIONAL * lengths[0]:
                return False
        return True


@dataclass(frozen=True)
class Idle:
    """Successive rounds in which nothing happens.

    Args:
        runner: Runs the aggregation.
        members: The clients, whose updates are zero if the aggregation copes with that. The last is to be replaced.
        moved: Which coordinates of a release clients move, (dim,). Others may do what they like.
        sizes: Numbers of coordinates of its arrays.
    """

    runner: Runner
    members: Sequence[Any]
    moved: Bools
    sizes: Sequence[int]

    def keeps_noise(self, spread: Floats) -> bool:
        """Whether coordinates that clients move carry noise that comes from the state.

        Args:
            spread: Standard deviation of a release over random numbers, (dim,).
        """
        sizes = [int(part.sum()) for part in np.split(self.moved, np.cumsum(self.sizes)[:-1])]
        fixed = [self._rounds([draw] * _ROUNDS) for draw in (0, 1)]
        count = min(map(len, fixed))
        if count < 2:
            return False
        if has_noise(fixed[0][:count], fixed[1][:count], sizes):
            return True
        on: list[int | None] = [0] + [None] * (_ROUNDS - 1)
        releases = self.runner.branching(self.members, on, branches=(1, 2))
        if not releases or releases[0][0].size != self.moved.size:
            return False
        running, one, two = np.array(releases)[:, :, self.moved].transpose(1, 0, 2)
        # An adaptive clip norm may make the noise of later rounds far larger than that of the first. Where that has
        # none of its own, it waits in the state, though other rounds may draw theirs.
        first, later = spread[self.moved], np.sqrt(np.mean((one - two) ** 2, axis=0) / 2)
        return is_prepared(running, one, np.where(first > 0, np.maximum(first, later), 0), sizes)

    def lasts(self, most: int) -> int:
        """Return how many rounds there are, at most so many."""
        return len(self.runner.successive(self.members, [0] + [None] * (most - 1)))

    def period(self) -> int | None:
        """Return after how many rounds the noise of an array starts again; None if that was not seen."""
        places = [part[:: 1 + part.size // _NUMBERS] for part in self._parts()]
        rounds = self._rounds([0] + [None] * (_MOST_ROUNDS - 1), np.concatenate(places)) if places else np.empty((0, 0))
        parts = np.split(rounds, np.cumsum([part.size for part in places])[:-1], axis=1) if len(rounds) > 2 else []
        return next((found for found in map(period, parts) if found), None)

    def guessed_seed(self) -> str | None:
        """Return a generator with a small seed that gives the noise of successive rounds; None if there is none."""
        vectors = self.runner.successive(self.members, [0, None, None])
        if len({vector.size for vector in vectors}) != 1:
            return None
        rounds = np.stack(vectors)
        # A round may release noise, or a model that adds it up.
        for noise in (rounds, np.diff(rounds, axis=0)):
            for part in self._parts():
                guesses = [guess_seed(row[part]) for row in noise]
                if None not in guesses[-2:]:
                    return guesses[-1].name  # type: ignore[union-attr]
        return None

    def too_little(
        self, client: Any, shorter: Any, noise_multiplier: float, draws: int
    ) -> Iterator[tuple[list[int], Covered]]:
        """Yield arrays, or their parts that stand still, with too little noise for what a client does in each round.

        Args:
            client: A client at the clip norm.
            shorter: The same client with an update that is shorter by all but `atoms.shortened`: what it does must be
                in proportion, since the noise itself changes what a client does otherwise.
            noise_multiplier: The claimed noise multiplier.
            draws: Number of rounds.
        """
        runs = [
            [self.runner.run([[*self.members[:-1], last]], draw).vector for draw in range(draws)]
            for last in (self.members[-1], client, shorter)
        ]
        kept = [[vector for vector in side if vector is not None and vector.size == self.moved.size] for side in runs]
        if draws < 2 or any(len(side) < draws for side in kept):
            return
        before, after, near = (np.stack(side) for side in kept)
        moved, less = after - before, near - before
        still = (before == before[0]).all(axis=0)
        for part in self._parts():
            for places in (part[still[part]], part):
                ours, length = moved[:, places], np.linalg.norm(moved[:, places], axis=1)
                share = shortened(noise_multiplier)
                bent = np.linalg.norm(less[:, places] - share * ours, axis=1)
                if not (places.size and (length > 0).all() and (bent <= _LINEAR * share * length).all()):
                    continue
                noise = covered(before[:, places], ours, noise_multiplier)
                if noise.too_little:
                    yield places.tolist(), noise
                    break

    def _rounds(self, seeds: Sequence[int | None], places: Any = None) -> Floats:
        """Return releases of successive rounds in these places, by default those that clients move."""
        vectors = self.runner.successive(self.members, seeds)
        places = self.moved if places is None else places
        right = [vector[places] for vector in vectors if vector.size == self.moved.size]
        return np.stack(right) if right else np.empty((0, int(self.moved.sum())))

    def _parts(self) -> list[Any]:
        """Return the coordinates of each array that clients move."""
        parts = np.split(np.flatnonzero(self.moved), np.searchsorted(np.flatnonzero(self.moved), np.cumsum(self.sizes)))
        return [part for part in parts if part.size]
