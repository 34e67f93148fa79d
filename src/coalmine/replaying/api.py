"""`replay`: run an aggregation with and without one client, with the same randomness, and compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from coalmine.errors import InputError, check_count, check_number, check_positive
from coalmine.progress import shown_if_slow, track
from coalmine.replaying.clients import check_alike
from coalmine.replaying.extras import Extra, Extras
from coalmine.replaying.result import Replay
from coalmine.replaying.running import Runner
from coalmine.replaying.search import LEAST_DRAWS, Claim, Search, always
from coalmine.results.finding import Check


def replay(
    release: Callable[..., Any],
    clients: Sequence[Any],
    extra: Any = None,
    *,
    clip_norm: float,
    noise_multiplier: float | None,
    adjacency: str = "zero-out",
    hostile: bool = False,
    dropouts: bool = True,
    rounds: int = 3,
    divisor: float | None = None,
    draws: int | None = None,
    quick: bool = False,
    size_released: bool = False,
    who: str = "client",
    norm: str = "l2",
    seed: int = 0,
) -> Replay:
    """Run an aggregation with and without one client, with the same randomness, and compare.

    With all generators in the same state, both releases have the same noise, and their difference is what the client
    did. It must not exceed what the noise covers: (standard deviation of the noise) / (noise multiplier). That noise is
    measured by a few runs with other random numbers, so sums and averages are alike.
    The clients that join are as difficult as possible: huge, tiny, in one array only, with many examples, of other
    types, NaN, and so on. What moves the release too far is a bug, whatever the data: this is no statistical test,
    except that the noise is measured, for which a correct aggregation is refuted in at most one of 1,000 replays.

    Args:
        release: Function from a list of clients to what is released: arrays, or lists, dicts or dataclasses of them.
            Parameters ``seed`` and ``rng`` without a default receive a seed and a NumPy generator. State that it keeps
            is copied before each run, and generators are restored afterwards.
        clients: The clients of an ordinary round, at least one: arrays or tensors, or tuples, lists, dicts or
            dataclasses of them and of whole numbers, such as `Client`.
        extra: A client, or a list of clients, to try beside those that replay makes up.
        clip_norm: The claimed clip norm.
        noise_multiplier: The claimed noise multiplier: standard deviation of the noise over sensitivity. 0 or None if
            the release is not meant to carry noise; movements are then compared with the clip norm / ``divisor``.
        adjacency: What it means to leave out a client: ``"zero-out"`` (its update is zero; the number of clients is
            public) or ``"add-remove"`` (it is not there at all).
        hostile: Whether clients may send what no honest client does, such as NaN, a negative number of examples or
            arrays of the wrong shape. Findings about these then refute the claim; otherwise they are warnings.
        dropouts: Whether rounds with few clients happen, too.
        rounds: Number of rounds in which a client of the first one may still be seen; 1 turns this check off.
        divisor: What the release divides the sum of updates by, which sentences call m; 1 for a sum. By default it is
            measured, by what an update of the clip norm does in the place of its opposite.
        draws: Number of runs with other random numbers that measure the noise, at least 6; by default from the size of
            the release. More of them see a smaller excess in arrays of a few numbers.
        quick: Whether to try only the clients and rounds that find most, in about a third of the runs.
        size_released: Whether the size of the noise follows from what is released, such as a clip norm that is part of
            it. Otherwise a size that depends on a client counts as a movement.
        who: What a client is called in sentences, such as ``"example"``.
        norm: Which norm of an update the clip norm limits: ``"l2"`` or ``"l1"``.
        seed: Seed of all randomness.

    Returns:
        The findings, and how far each client moved the release.

    Raises:
        InputError: If the clients hold no floating-point arrays or differ in their shapes, or if the aggregation fails
            on the clients as they are.

    Example:
        >>> from coalmine.replaying import Client
        >>> rng = np.random.default_rng(0)
        >>> def noisy_average(clients):  # weights by examples, but the noise is for equal weights
        ...     clipped = [c.update / max(1.0, np.linalg.norm(c.update)) for c in clients]
        ...     average = np.average(clipped, axis=0, weights=[c.examples for c in clients])
        ...     return average + rng.normal(0, 2.0 / len(clients), average.size)
        >>> clients = [Client(rng.normal(size=500), examples=20) for _ in range(9)]
        >>> result = replay(noisy_average, clients, clip_norm=1.0, noise_multiplier=2.0)
        >>> result.ok, result.findings[0].check
        (False, 'examples')
    """
    if isinstance(clients, Mapping):
        raise InputError(
            f"clients must be a list of at least one client, got a {type(clients).__name__} with {len(clients)} keys: "
            "pass list(clients.values()) if its values are the clients, or a list of such dicts if it is one client"
        )
    if isinstance(clients, str | bytes) or not hasattr(clients, "__len__") or len(clients) == 0:
        raise InputError(f"clients must be a list of at least one client, got {clients!r:.60}")
    if adjacency not in ("zero-out", "add-remove"):
        raise InputError(f'adjacency must be "zero-out" or "add-remove", got {adjacency!r}')
    order = checked_order(norm)
    noise = 0.0 if noise_multiplier is None else _number("noise_multiplier", noise_multiplier)
    if not (math.isfinite(noise) and noise >= 0):
        raise InputError(f"noise_multiplier must be at least 0 and finite, got {noise_multiplier}")
    clip = check_positive("clip_norm", _number("clip_norm", clip_norm))
    check_count("rounds", rounds)
    if draws is not None:
        check_count("draws", draws, least=LEAST_DRAWS)
    if divisor is not None:
        check_positive("divisor", _number("divisor", divisor))
    runner = Runner(release, seed=check_count("seed", seed, least=0))
    extras = Extras(list(clients), clip_norm=clip, who=who, seed=seed, order=order)
    check_alike(extras.clients)
    claim = Claim(noise_multiplier=noise, adjacency=adjacency, divisor=divisor, hostile=hostile,
                  size_released=size_released, who=who)  # fmt: skip
    with runner.leaves_no_trace(), shown_if_slow():
        while True:
            search = Search(runner, extras, claim, draws=draws, quick=quick)
            steps = search.steps(_users_own(extra, clients), dropouts=dropouts, rounds=rounds)
            for step in track(steps, "replay", words=lambda: f"{runner.seconds / runner.calls:.2g} s per run"):
                step()
            result = search.result(seed)
            # What is refuted may have noise that other random numbers do not change.
            if result.ok or runner.state_varies or not search.vary_state(rounds):
                return result


def checked_order(norm: str) -> int:
    """Return the order of a norm, 1 or 2; raise `InputError` for another name."""
    if norm not in ("l1", "l2"):
        raise InputError(f'norm must be "l1" or "l2", got {norm!r}')
    return int(norm[1])


def _number(name: str, value: Any) -> float:
    """Return a number or an array of one number as a float."""
    if isinstance(value, bool) or np.size(value) != 1 or isinstance(value, list | tuple):
        raise InputError(f"{name} must be a number, got {value!r:.60}")
    return check_number(name, value)


def _users_own(extra: Any, clients: Sequence[Any]) -> list[Extra]:
    """Return the user's extra clients."""
    if extra is None:
        return []
    several = isinstance(extra, list) and type(extra) is not type(clients[0])
    return [
        Extra(check=Check.EXTRA, sends="as given", code=f"extra[{i}]", build=partial(always, client))
        for i, client in enumerate(extra if several else [extra])
    ]
