"""A mechanism that takes a list of clients, as one that takes their sum.

Whether clients are clipped and weighted as claimed needs no statistics: replay finds out. Whether the noise is right is
for the attacks on it, which choose the sum. Here the sum is divided among so many clients that none is clipped.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.checks.clients import Template, leaves, numbers_of
from coalmine.checks.findings import Replay
from coalmine.checks.release import Runner
from coalmine.checks.sensitivity import ReplayOptions, replay
from coalmine.errors import InputError, check_count, check_positive
from coalmine.protocol import Vector

# Coordinates of an update at most, and by default: the clients that carry a sum take up 1.1 · dim^1.5 numbers together,
# or 1.1 · dim² if their ℓ₁ norm is clipped.
_LARGEST, _DEFAULT = {"l1": 3_000, "l2": 100_000}, {"l1": 300, "l2": 10_000}
_STEADY = 0.01  # change of what a client does over all calls that is still taken for rounding
_LONGER = 1.05  # clients that share an update may move the output by so much more than one client moves it at most


class ClientSums:
    """A mechanism of clients, replayed once, that can be called with a sum of updates of norm 1.

    Args:
        release: Function from a list of clients to their noisy sum or average.
        clients: The clients of an ordinary round, or how many: each is then a float32 array of shape ``(dim,)``.
        dim: Number of coordinates of an update, if ``clients`` is a number.
        clip_norm: The claimed clip norm.
        noise_multiplier: The claimed noise multiplier. If it is None, replay compares movements with the clip norm
            alone, and leaves the noise to the attacks on it.
        norm: Which norm of an update the clip norm limits: ``"l2"`` or ``"l1"``.
        seed: Seed of the replay.

    Attributes:
        dim: Number of coordinates.
        replay: What the replay with the given clients found.

    Raises:
        InputError: If the clients do not fit, or the output does not depend on them.
    """

    def __init__(
        self, release: Callable[[list[Any]], object], clients: int | Sequence[Any], *, dim: int | None,
        clip_norm: float, noise_multiplier: float | None, norm: str, seed: int,
    ) -> None:  # fmt: skip
        # An average over few clients moves further, rightly if its noise grows as much.
        options = ReplayOptions(norm=norm, seed=seed, dropouts=noise_multiplier is not None)
        self._release, self._seed, self._clip = release, seed, check_positive("clip_norm", clip_norm)
        if isinstance(clients, int):
            blank = Template(np.zeros(check_count("dim", _DEFAULT[norm] if dim is None else dim), dtype=np.float32))
            clients = blank.random(check_count("clients", clients), norm=2 * self._clip, seed=seed)
        if not len(clients):
            raise InputError("clients must be a list of at least one client, got none")
        self._template = Template(clients[0])
        self.dim = self._template.dim
        if self.dim > _LARGEST[norm]:
            raise InputError(
                f"with clients, an update may have at most {_LARGEST[norm]:,} coordinates (norm {norm}), got "
                f"{self.dim:,}: test a smaller model"
            )
        self.replay: Replay = replay(
            release, clients, clip_norm=self._clip, noise_multiplier=noise_multiplier, options=options
        )
        # Canaries have a coordinate each, so their sum is no longer than √dim, or dim in ℓ₁.
        order = int(norm[1])
        self._carriers = max(len(clients) + 1, math.ceil(1.1 * self.dim ** (1 / order)) + 1)
        self._unit, single, shared = self._movements(order)
        if not 0 < self._unit < math.inf:
            raise InputError("the mechanism's output does not depend on its clients: there is nothing to test")
        most = max([self._unit, single, *(self._unit * row.clip_norms for row in self.replay.moved if not row.hostile)])
        if self.replay.ok and shared > _LONGER * most:  # a refuted replay says more than this
            raise InputError(
                f"{self._carriers:,} clients that share an update of the clip norm move the output by "
                f"{shared / self._unit:.3g} times as much as one client that sends it, so short updates are made "
                "longer and the noise cannot be judged by sums: use assert_sensitivity"
            )

    def __call__(self, total: Vector) -> Floats:
        """Return the noisy sum, in clip norms, of clients whose updates add up to ``total`` clip norms."""
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
        ratio = self._movements(2)[0] / self._unit
        if abs(ratio - 1) > _STEADY:
            raise InputError(
                f"one client now moves the output by {ratio:.3g} times as much as before the calls, so its noise "
                "cannot be judged: turn off what changes from round to round, such as adaptive clipping or a decaying "
                "learning rate, or use assert_sensitivity"
            )

    def _sending(self, total: Vector | Floats) -> list[Any]:
        """Return clients that share a sum equally; new ones, since an aggregation may add up in place."""
        client = self._template.build(np.asarray(total, dtype=np.float64) * (self._clip / self._carriers))
        return [copy.deepcopy(client) for _ in range(self._carriers)]

    def _movements(self, order: int) -> tuple[float, float, float]:
        """Return how far the output moves by one client of the clip norm, by one of one coordinate, and by its shares.

        All others send nothing. The first is measured by swapping the client for its negative.
        """
        runner, nothing = Runner(self._release, seed=self._seed), np.zeros(self.dim)
        rng, one = np.random.default_rng(self._seed), np.eye(1, self.dim)[0]
        direction = rng.uniform(1.0, 1.2, self.dim) * rng.choice([-1.0, 1.0], self.dim)
        direction *= self._clip / np.linalg.norm(direction, order)
        silent = self._sending(nothing)
        rounds = [[*silent[1:], self._template.build(update)] for update in (direction, -direction, one * self._clip)]
        with runner.isolated.leaves_no_trace():
            outputs = [runner.run([clients]).vector for clients in (*rounds, self._sending(one), silent)]
        if any(output.size != outputs[0].size for output in outputs):
            return 0.0, 0.0, 0.0
        plus, minus, single, shared, before = outputs
        norms = [np.linalg.norm(moved) for moved in ((plus - minus) / 2, single - before, shared - before)]
        return float(norms[0]), float(norms[1]), float(norms[2])
