"""Users and their clients: a partition may cut one user into several clients, named ``name#0``, ``name#1``, …"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Ints
from coalmine.errors import InputError
from coalmine.seeds import generator
from coalmine.simulation.data.federated import FederatedData


def owners(data: FederatedData) -> npt.NDArray[np.str_]:
    """Return the user that each client belongs to, shape (clients,)."""
    return np.array([name.rpartition("#")[0] or name for name in data.names])


def synthetic(data: FederatedData) -> bool:
    """Return whether the clients are synthetic: examples dealt at random, which belong to nobody."""
    return data.names[0].startswith("iid-")


def first_clients(data: FederatedData) -> Ints:
    """Return the first client of each user; a user's other clients are not independent of it."""
    if synthetic(data):
        raise InputError("synthetic clients of shuffled examples are not users: attack natural or balanced clients")
    return np.sort(np.unique(owners(data), return_index=True)[1])


def most_clients(data: FederatedData) -> int:
    """Return the largest number of clients that one user was cut into."""
    return int(np.unique(owners(data), return_counts=True)[1].max())


def set_aside(data: FederatedData, share: float, *, seed: int = 0) -> tuple[FederatedData, FederatedData | None]:
    """Split off the clients of a random share of the users, for a reference model that never sees a canary.

    Users are chosen at random because their order may mean something, and the users who remain must be exchangeable
    with the test users.

    Args:
        data: The training clients.
        share: Share of the users to set aside, in [0, 1).
        seed: Seed for the choice.

    Returns:
        The clients to train on, and those set aside (None if there are none). No user is in both.

    Raises:
        InputError: If the share is outside [0, 1) or leaves no user to train on.
    """
    if not 0 <= share < 1:
        raise InputError(f"reference_share must be in [0, 1), got {share}")
    user_of = np.unique(owners(data), return_inverse=True)[1]
    users = int(user_of.max()) + 1
    count = round(share * users)
    if not count:
        return data, None
    if count == users:
        raise InputError(f"reference_share = {share} leaves none of {users} users to train on: lower it")
    aside = np.isin(user_of, generator(seed, "aside").permutation(users)[:count])
    return data.subset(np.flatnonzero(~aside)), data.subset(np.flatnonzero(aside))
