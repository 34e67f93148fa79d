"""The trials of a CANIFE audit: the rounds that a canary may be in, and its scores in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coalmine.arrays import Array, Bools, Floats
from coalmine.errors import InputError
from coalmine.methods.canife.round_estimates import Period
from coalmine.protocol import Release
from coalmine.seeds import generator


class Trials:
    """Coins and scores of all canaries in all trials: frozen rounds, or the rounds of the training itself.

    Args:
        designs: Rounds before which canaries are designed, in ascending order.
        rounds: Number of rounds of the training.
        every: Rounds between designs.
        each: Frozen rounds before each design, or rounds of an estimate in mode running.
        frozen: Whether trials are frozen rounds.
        canaries: Number of canaries.
        seed: Seed of the coins.
    """

    def __init__(
        self, designs: Sequence[int], *, rounds: int, every: int, each: int, frozen: bool, canaries: int, seed: int
    ) -> None:
        self._designs, self._rounds, self._every, self._each = designs, rounds, every, each
        self._frozen = frozen
        count = len(designs) * each if frozen else rounds
        self.coins: Bools = generator(seed, "coins").random((count, canaries)) < 0.5
        self.scores: Floats = np.full((count, canaries), np.nan)
        self.sigmas: Floats = np.full((count, canaries), np.nan)
        self.skipped: Bools = np.zeros(count, dtype=bool)

    def number(self, round: int, trial: int | None) -> int:
        """Return the number of the trial that is a round, or the frozen round ``trial`` before it."""
        if not 0 <= round < self._rounds:
            raise InputError(f"round must be in 0..{self._rounds - 1}, the rounds of this audit, got {round}")
        if trial is None:
            return round
        if round % self._every or not 0 <= trial < self._each:
            raise InputError(
                f"the audit has {self._each} frozen rounds before every {self._every}th round, got frozen round "
                f"{trial} before round {round}"
            )
        return round // self._every * self._each + trial

    @property
    def finished(self) -> int:
        """Number of trials before the first one without a score, aborted ones included."""
        done = self.skipped | ~np.isnan(self.scores).any(axis=1)
        return len(done) if done.all() else int(np.argmin(done))

    def between(self, first: int, last: int) -> tuple[Floats, Bools, Floats]:
        """Return the scores, coins and sigmas of trials that were not aborted, (trials, canaries) each."""
        kept = np.arange(first, last)[~self.skipped[first:last]]
        return self.scores[kept], self.coins[kept], self.sigmas[kept]

    def check_complete(self) -> None:
        """Raise if scores are missing, or if there are none."""
        missing = np.flatnonzero(np.isnan(self.scores).any(axis=1) & ~self.skipped)
        if len(missing):
            raise InputError(
                f"{len(missing):,} of {len(self.scores):,} scores are missing: finish the training, and call observe "
                "with everything it releases"
            )
        if self.skipped.all():
            raise InputError("every audited round was aborted, so there are no scores: repeat the training")

    @property
    def periods(self) -> list[Period]:
        """The scores behind each estimate along the training."""
        if self._frozen:
            starts = list(self._designs)
            bounds = [(e * self._each, (e + 1) * self._each) for e in range(len(starts))]
        else:
            starts = [p * self._each for p in range(self._rounds // self._each)]  # the last period takes the rest
            bounds = list(zip(starts, [*starts[1:], self._rounds], strict=True))
        ends = [*starts[1:], self._rounds]
        periods = [
            Period(start, end - start, *self.between(*bound))
            for start, end, bound in zip(starts, ends, bounds, strict=True)
        ]
        return [period for period in periods if len(period.scores)]

    @property
    def arrays(self) -> dict[str, Array]:
        """All trials (trials, canaries): scores, presence, sigma, comparable scores; the round of each (trials,)."""
        periods = self.periods
        arrays: dict[str, Array] = {
            name: np.concatenate([getattr(period, name) for period in periods])
            for name in ("scores", "present", "sigma", "comparable")
        }
        return arrays | {"round": np.concatenate([np.full(len(period.scores), period.round) for period in periods])}

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint keeps; the coins follow from the seed."""
        return {name: np.array(getattr(self, name)) for name in ("scores", "sigmas", "skipped")}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore what `state` returned."""
        self.scores, self.sigmas, self.skipped = (np.array(state[name]) for name in ("scores", "sigmas", "skipped"))


def described(release: Release) -> str:
    """Return the trial that a release belongs to, in words."""
    trial = "" if release.trial is None else f"frozen round {release.trial} before "
    return f"{trial}round {release.round}"
