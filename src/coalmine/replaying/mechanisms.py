"""Replay of the mechanisms of `coalmine.simulation`: one client more, the same randomness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from coalmine.errors import InputError, check_count, check_kind, check_positive
from coalmine.replaying.api import replay
from coalmine.replaying.clients import Client, Template
from coalmine.replaying.result import Replay
from coalmine.simulation.kernels.kernel import clip_factors
from coalmine.simulation.mechanisms.central import Mechanism, NoClipping


def replay_mechanism(
    mechanism: Mechanism,
    clients: int | Sequence[Client] = 8,
    *,
    dim: int = 1000,
    expected_clients: float | None = None,
    hostile: bool = False,
    rounds: int = 3,
    draws: int | None = None,
    quick: bool = False,
    seed: int = 0,
) -> Replay:
    """Replay rounds of a simulation's central mechanism with and without one client.

    Leaving out a client means that it is not there at all: the mechanism divides by the expected number of clients,
    so that the actual number is protected, too. With adaptive clipping the next clip norm is part of the release.

    Args:
        mechanism: The mechanism, or one of a subclass that changes a part of it.
        clients: The other clients, or their number: they then have random updates of twice the clip norm.
        dim: Number of parameters, if clients are made up.
        expected_clients: Expected number of clients per round; by default one more than ``clients``.
        hostile: Whether findings about replies that no honest client sends refute the claim.
        rounds: Number of rounds in which a client of the first one may still be seen.
        draws: Number of runs that measure the noise (see `coalmine.replay`).
        quick: Whether to try only the clients and rounds that find most.
        seed: Seed of all randomness.

    Returns:
        The findings, and how far each client moved the release.

    Raises:
        InputError: If the mechanism does not clip, so that there is no sensitivity to check.

    Example:
        >>> from coalmine.simulation import FixedClipping
        >>> mechanism = Mechanism(clipping=FixedClipping(0.5), noise_multiplier=2.0)
        >>> replay_mechanism(mechanism, dim=200, rounds=1).ok
        True
    """
    check_kind("mechanism", mechanism, Mechanism, "a coalmine.simulation Mechanism")
    if isinstance(mechanism.clipping, NoClipping):
        raise InputError("the mechanism does not clip, so one client may move the release without limit: set clipping")
    clip_norm = mechanism.clipping.start()
    if isinstance(clients, int | float):
        like = Template(Client(np.zeros(check_count("dim", dim))))
        clients = like.random(check_count("clients", clients), norm=2 * clip_norm, seed=seed)
    expected = len(clients) + 1.0 if expected_clients is None else check_positive("expected_clients", expected_clients)
    return replay(
        MechanismRelease(mechanism, expected_clients=expected), clients, clip_norm=clip_norm,
        noise_multiplier=mechanism.noise_multiplier, adjacency="add-remove", hostile=hostile, rounds=rounds,
        divisor=expected, draws=draws, quick=quick, seed=seed,
    )  # fmt: skip


class MechanismRelease:
    """Rounds of a mechanism as a function from clients to what is released, as `coalmine.simulation.Training` does it.

    Args:
        mechanism: The mechanism.
        expected_clients: Expected number of clients per round, which the sum is divided by.

    Example:
        >>> from coalmine.simulation import FixedClipping
        >>> release = MechanismRelease(Mechanism(clipping=FixedClipping(1.0)), expected_clients=2)
        >>> release([Client(np.array([3.0, 4.0])), Client(np.zeros(2))], seed=0)["update"].round(3)
        array([0.3, 0.4])
    """

    def __init__(self, mechanism: Mechanism, *, expected_clients: float) -> None:
        self._mechanism, self._expected = mechanism, expected_clients
        self._clip_norm, self._round = mechanism.clipping.start(), 0

    def __call__(self, clients: Sequence[Client], seed: int) -> dict[str, Any] | None:
        """Run the next round."""
        updates = np.stack([np.asarray(client.update, dtype=np.float64) for client in clients])
        norms = np.linalg.norm(updates, axis=1)
        weights = self._mechanism.weighting.weights(np.array([client.examples for client in clients]))
        total = clip_factors(norms, weights, self._clip_norm) @ updates
        if self._mechanism.private:
            dim = updates.shape[1]
            total = total + self._mechanism.noise(dim, seed, self._clip_norm, self._expected, self._round)
        released: dict[str, Any] = {"update": total / self._expected}
        after = self._mechanism.next_clip_norm(self._clip_norm, norms, self._expected, seed, self._round)
        if after != self._clip_norm and self._mechanism.private:  # its noise is Gaussian in the logarithm
            released["log clip norm"] = math.log(after)
        self._clip_norm, self._round = after, self._round + 1
        return released
