"""A mechanism that takes a list of clients, as one that takes their sum.

Whether clients are clipped and weighted as claimed needs no statistics: `coalmine.replay` finds out. Whether the noise
is right is for the battery, which chooses the sum. Here the sum is divided among so many clients that none is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_positive
from coalmine.protocol import Vector
from coalmine.replaying import Replay, replay
from coalmine.replaying.api import checked_order
from coalmine.replaying.clients import Template, leaves, numbers_of
from coalmine.replaying.running import Runner

# Numbers of an update at most, and by default: the clients that carry a sum take up 1.1 · dim^1.5 numbers together, or
# 1.1 · dim² if their ℓ₁ norm is clipped.
_LARGEST, _DEFAULT = {"l1": 3_000, "l2": 100_000}, {"l1": 300, "l2": 10_000}
_IN_L1 = {"l1": ' with norm="l1"', "l2": ""}
_STEADY = 0.01  # change of what a client does over all calls that is still taken for rounding
_LONGER = 1.05  # clients that share an update may move the output by so much more than one client moves it at most


class ClientMechanism:
    """A mechanism of clients, replayed once, that can be called with a sum of updates of norm 1.

    Args:
        release: Function from a list of clients to their noisy sum or average.
        clients: The clients of an ordinary round, or how many: each is then a float32 array of shape ``(dim,)``.
        dim: Number of coordinates of an update, if ``clients`` is a number; 10,000 by default, 300 with ``norm="l1"``.
        clip_norm: The claimed clip norm.
        noise_multiplier: The claimed noise multiplier. If it is None, replay compares movements with the clip norm
            alone, and leaves the noise to the battery.
        seed: Seed of the replay.
        norm: Which norm of an update the clip norm limits: ``"l2"`` or ``"l1"``.

    Attributes:
        dim: Number of coordinates.
        replay: What the replay with the given clients found.

    Raises:
        InputError: If the clients do not fit, or the output does not depend on them.
    """

    def __init__(
        self,
        release: Callable[[list[Any]], object],
        clients: int | Sequence[Any],
        *,
        dim: int | None,
        clip_norm: float,
        noise_multiplier: float | None,
        seed: int,
        norm: str = "l2",
    ) -> None:
        if not callable(release):
            raise InputError(f"mechanism must be a function of a list of clients, got {type(release).__name__}")
        order = checked_order(norm)
        self._release, self._seed, self._norm = release, seed, norm
        self._clip = check_positive("clip_norm", clip_norm)
        if isinstance(clients, int):
            blank = Template(np.zeros(check_count("dim", _DEFAULT[norm] if dim is None else dim), dtype=np.float32))
            clients = blank.random(check_count("clients", clients), norm=2 * self._clip, seed=seed)
        if not len(clients):
            raise InputError("clients must be a list of at least one client, got none")
        self._template = Template(clients[0])
        self.dim = self._template.dim
        if self.dim > _LARGEST[norm]:
            raise InputError(
                f"with clients, an update may have at most {_LARGEST[norm]:,} numbers{_IN_L1[norm]}, got "
                f"{self.dim:,}: test a smaller model"
            )
        self.replay: Replay = replay(
            release, clients, clip_norm=self._clip, noise_multiplier=noise_multiplier, norm=norm, seed=seed,
            # An average over few clients moves further, rightly if its noise grows as much.
            dropouts=noise_multiplier is not None,
        )  # fmt: skip
        # Canaries of the battery have a coordinate each, so their sum is no longer than √dim, or dim in ℓ₁.
        self._carriers = max(len(clients) + 1, math.ceil(1.1 * self.dim ** (1 / order)) + 1)
        alone = self._alone()
        self._unit = alone.unit
        if not 0 < self._unit < math.inf:
            raise InputError("the mechanism's output does not depend on its clients: there is nothing to test")
        # A refuted replay says more than that the noise cannot be judged.
        if self.replay.ok and self.replay.reproducible:
            movements = [row.clip_norms for row in (*alone.moved, *self.replay.moved) if not row.hostile]
            self._check_shares(most=self._unit * max([1.0, *movements]))

    def __call__(self, total: Vector) -> Floats:
        """Return the noisy sum, in clip norms, of clients whose updates add up to ``total`` clip norms.

        Raises:
            InputError: If the release is not as long as an update.
        """
        released = self._release(self._sending(total))
        noisy = np.concatenate([numbers_of(leaf).ravel() for leaf in leaves(released).values()])
        if noisy.size != self.dim:
            raise InputError(
                f"the release has {noisy.size:,} numbers and an update has {self.dim:,}: pass a function that returns "
                "the noisy sum or average alone, and test the rest by assert_sensitivity"
            )
        return np.asarray(noisy / self._unit)

    def check_steady(self) -> None:
        """Raise `InputError` if what a client does has changed over the calls, as with adaptive clipping."""
        factor = self._alone().unit / self._unit
        if abs(factor - 1) > _STEADY:
            raise InputError(
                f"one client now moves the output by {factor:.3g} times as much as before the calls, so its noise "
                "cannot be judged: turn off what changes from round to round, such as adaptive clipping or a decaying "
                "learning rate, or use assert_sensitivity"
            )

    def _sending(self, total: Vector) -> list[Any]:
        """Return clients that share a sum equally; new ones, since an aggregation may add up in place."""
        share = np.asarray(total, dtype=np.float64) * (self._clip / self._carriers)
        return [self._template.build(share) for _ in range(self._carriers)]

    def _check_shares(self, most: float) -> None:
        """Raise `InputError` if clients that share an update count for more than any single one.

        Args:
            most: How far one client moves the output at most, as far as the replays tried.
        """
        runner = Runner(self._release, seed=self._seed)
        nobody, one = np.zeros(self.dim, dtype=np.float32), np.zeros(self.dim, dtype=np.float32)
        one[0] = 1.0  # the battery's canaries have one coordinate each
        silent = self._sending(nobody)
        sender = self._template.build(one.astype(np.float64) * self._clip)
        with runner.leaves_no_trace():
            rounds = (silent, [*silent[1:], sender], self._sending(one))
            before, alone, shared = (runner.run([clients]).vector for clients in rounds)
        if before is None or alone is None or shared is None:
            return
        moved = float(np.linalg.norm(shared - before))
        if moved > _LONGER * max(most, float(np.linalg.norm(alone - before))):
            raise InputError(
                f"{self._carriers:,} clients that share an update of the clip norm move the output by "
                f"{moved / self._unit:.3g} times as much as one client that sends it, so short updates are made "
                "longer and the noise cannot be judged by sums: use assert_sensitivity"
            )

    def _alone(self) -> Replay:
        """Measure what one client does beside as many as carry a sum, who send nothing, without judging the noise."""
        others = self._sending(np.zeros(self.dim, dtype=np.float32))[1:]
        return replay(
            self._release, others, clip_norm=self._clip, noise_multiplier=None, rounds=1, dropouts=False, quick=True,
            norm=self._norm, seed=self._seed,
        )  # fmt: skip
