"""The smallest input that shows a finding: fewer other clients, and the shortest update that still moves too far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coalmine.replaying.movement import Movement, Scale
from coalmine.replaying.rounds import Round
from coalmine.results.summary import plural

if TYPE_CHECKING:
    from coalmine.replaying.judge import Observation

_HALVINGS = 8


def shrunk(
    observation: Observation,
    without: Callable[[Sequence[Any]], list[Any]],
    new_round: Callable[..., Round],
    scale: Scale,
) -> str:
    """Return a short text, like code, of the smallest input that still shows an observation.

    Args:
        observation: What was observed.
        without: Function from the other clients to the round without the client in question.
        new_round: Function from the clients of each round to a `Round`.
        scale: What the claim allows.
    """
    extra, around, others = observation.extra, observation.around, list(observation.others)
    if not extra.shrinks or not observation.movement.exact:
        return _text(observation, len(others), extra.magnitude)

    def shows(near: Round, members: Sequence[Any], magnitude: float) -> bool:
        movement = near.compare([[*members, extra.build(magnitude)]], scale)
        return observation.similar(movement)

    for fewer in sorted({1, 2, len(others) // 2} - {0, len(others)}):
        if fewer >= len(others):
            break
        near = new_round([without(others[:fewer])], like=around)
        outcome = near.outcome(0)
        if outcome.vector is None or not np.isfinite(outcome.vector).all():
            continue
        if shows(near, others[:fewer], extra.magnitude):
            around, others = near, others[:fewer]
            break
    magnitude = extra.magnitude
    if "{magnitude}" in extra.code:
        magnitude = _smallest(lambda size: shows(around, others, size), magnitude)
    return _text(observation, len(others), magnitude)


def detected(movement: Movement, tolerance: float) -> bool:
    """Whether a movement exceeds what is allowed, beyond rounding and the error of the measured noise."""
    return movement.excess > limit(movement, tolerance)


def limit(movement: Movement, tolerance: float) -> float:
    """Return what a measured excess may come to by rounding and by the error of the measured noise."""
    return (1 + tolerance) / movement.margin if movement.margin else math.inf


def _smallest(shows: Callable[[float], bool], largest: float) -> float:
    """Return the smallest magnitude that still shows it, to within a tenth."""
    low, high = 1.0, largest
    if not high > low or shows(low):
        return min(low, high)
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if shows(middle) else (middle, high)
        if high / low < 1.1:
            break
    return high


def _text(observation: Observation, others: int, magnitude: float) -> str:
    size = f"{float(f'{magnitude:.3g}'):g}" if magnitude < 1e6 else f"{magnitude:.0e}"
    return f"{observation.extra.code.replace('{magnitude}', size)}, with {plural(others, f'other {observation.who}')}"
