"""Idle rounds, which show whether a release keeps noise in its state, whether that repeats, and how large it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.replaying.atoms import shortened
from coalmine.replaying.running import Runner
from coalmine.replaying.state import Covered, covered, has_noise, is_prepared, period
from coalmine.stats.guessed_seeds import guess_seed

# Rounds that tell whether there is noise in the state, and whether it repeats; numbers of each array that tell that.
_ROUNDS, _MOST_ROUNDS, _NUMBERS = 12, 300, 100

# Share of a movement by which that of a shorter update may differ from a shorter movement.
_LINEAR = 1e-4


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
