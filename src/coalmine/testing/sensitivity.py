"""`assert_sensitivity`: an aggregation of clients, as a unit test."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from coalmine.results.finding import Check

if TYPE_CHECKING:
    from coalmine.replaying import Replay


def assert_sensitivity(
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
    strict: bool = False,
    norm: str = "l2",
    seed: int = 0,
) -> Replay:
    """Assert that no client moves a release by more than the noise covers.

    Runs the aggregation with and without one client, with the same randomness (`coalmine.replay`, docs/replay.md).

    Args:
        release: Function from a list of clients to what is released.
        clients: The clients of an ordinary round, at least one.
        extra: A client, or a list of clients, to try beside those that replay makes up.
        clip_norm: The claimed clip norm.
        noise_multiplier: The claimed noise multiplier; 0 or None if the release is not meant to carry noise, so that
            movements are compared with the clip norm / divisor.
        adjacency: ``"zero-out"`` (the number of clients is public) or ``"add-remove"``.
        hostile: Whether clients may send what no honest client does, such as NaN.
        dropouts: Whether rounds with few clients happen, too.
        rounds: Number of rounds in which a client of the first one may still be seen.
        divisor: What the release divides the sum of updates by; measured by default.
        draws: Number of runs that measure the noise; more of them see a smaller excess in arrays of a few numbers.
        quick: Whether to try only the clients and rounds that find most, in about a third of the runs.
        strict: Whether warnings fail the test, too.
        norm: Which norm of an update the clip norm limits: ``"l2"`` or ``"l1"``.
        seed: Seed of all randomness.

    Returns:
        The replay.

    Raises:
        AssertionError: If a client moves the release too far; the message has the findings.
        InputError: If the arguments do not fit, or the aggregation fails on the clients as they are.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> def noisy_sum(updates):
        ...     clipped = [update / max(1.0, np.linalg.norm(update)) for update in updates]
        ...     return sum(clipped) + rng.normal(0, 2.0, 1000)
        >>> assert_sensitivity(noisy_sum, [rng.normal(size=1000)] * 5, clip_norm=1.0, noise_multiplier=2.0).ok
        True
    """
    __tracebackhide__ = True
    from coalmine.replaying import replay

    result = replay(
        release, clients, extra, clip_norm=clip_norm, noise_multiplier=noise_multiplier, adjacency=adjacency,
        hostile=hostile, dropouts=dropouts, rounds=rounds, divisor=divisor, draws=draws, quick=quick, norm=norm,
        seed=seed,
    )  # fmt: skip
    report(result, strict=strict)
    return result


def report(result: Replay, *, strict: bool = False) -> None:
    """Fail if a replay refutes the claim, or if ``strict`` with any finding; warn if it could not judge the noise.

    Other findings that refute nothing are about clients whom the claim does not cover.
    """
    __tracebackhide__ = True
    if not result.ok or (strict and result.findings):
        raise AssertionError(str(result))
    for finding in result.findings:
        if finding.check == Check.SIZE:
            warnings.warn(str(finding), stacklevel=3)
