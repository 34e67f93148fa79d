"""A mechanism that takes a list of clients, as one that takes their sum.

Whether clients are clipped and weighted as claimed needs no statistics: `coalmine.replay` finds out. Whether the noise
is right is for the battery, which chooses the sum. So it gets the noise of rounds whose clients send nothing, and adds
the sum itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coalmine.errors import InputError, check_count, check_positive
from coalmine.protocol import Vector
from coalmine.replaying import Replay, replay
from coalmine.replaying.clients import Template, leaves, numbers_of


def replayed(
    release: Callable[[list[Any]], object],
    clients: int | Sequence[Any],
    *,
    dim: int | None,
    clip_norm: float,
    noise_multiplier: float | None,
    seed: int,
) -> tuple[Callable[[Vector], Vector], int, Replay]:
    """Replay an aggregation of clients, and return it as a mechanism that takes their sum.

    Args:
        release: Function from a list of clients to their noisy sum or average.
        clients: The clients of an ordinary round, or how many: each is then a float32 array of shape ``(dim,)``.
        dim: Number of coordinates of an update; needed if ``clients`` is a number.
        clip_norm: The claimed clip norm.
        noise_multiplier: The claimed noise multiplier, or that of Gaussian noise that keeps the claim.
        seed: Seed of the replay.

    Returns:
        The function of a sum of updates, in units of the clip norm; its number of coordinates; and the replay.

    Raises:
        InputError: If there is no noise multiplier, the clients do not fit, or the release is not as long as an update.
    """
    if not callable(release):
        raise InputError(f"mechanism must be a function of a list of clients, got {type(release).__name__}")
    if noise_multiplier is None:
        raise InputError("a mechanism of clients needs a claim to be compared with: a noise multiplier, or ε at δ > 0")
    check_positive("clip_norm", clip_norm)
    if isinstance(clients, int):
        blank = Template(np.zeros(check_count("dim", 10_000 if dim is None else dim), dtype=np.float32))
        clients = blank.random(check_count("clients", clients), norm=2 * clip_norm, seed=seed)
    result = replay(release, clients, clip_norm=clip_norm, noise_multiplier=noise_multiplier, seed=seed)
    if not 0 < result.unit < np.inf:
        raise InputError("the mechanism's output does not depend on its clients: there is nothing to test")
    template = Template(clients[0])
    silent = np.zeros(template.dim)
    # The replay measured its unit in rounds with one client more, and an average depends on their number.
    cohort = [*clients, clients[0]]

    def noisy_sum(total: Vector) -> Vector:
        # Built anew in each call, since an aggregation may add up in place.
        released = release([template.build(silent, base=client) for client in cohort])
        noise = np.concatenate([numbers_of(leaf).ravel() for leaf in leaves(released).values()])
        if noise.size != template.dim:
            raise InputError(
                f"the release has {noise.size:,} numbers and an update has {template.dim:,}: pass a function that "
                "returns the noisy sum or average alone, and test the rest by assert_sensitivity"
            )
        return np.asarray(total + noise / result.unit, dtype=np.float64)

    return noisy_sum, template.dim, result
