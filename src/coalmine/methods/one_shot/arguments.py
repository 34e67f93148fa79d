"""Checks of a one-shot audit's arguments: each returns the checked value or raises an `InputError`."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import numpy.typing as npt

from coalmine.errors import InputError
from coalmine.methods.one_shot.views import needs_initial
from coalmine.protocol import Vector, View
from coalmine.stats.rank_tests import Design

_MOST_CANARIES = 1_000_000  # as many as scores can be kept for


def check_canaries(canaries: int, design: str) -> None:
    """Raise if there are too many canaries, or if there is no such design."""
    if canaries > _MOST_CANARIES:
        raise InputError(f"canaries must be at most {_MOST_CANARIES:,}, got {canaries:,}")
    if design not in get_args(Design):
        raise InputError(f"design must be coin-flips or fixed, got {design!r}")


def check_view(name: str, view: View, rounds: int) -> None:
    """Raise if a view asks for rounds that the training does not have."""
    if view.every is not None and view.every > rounds:
        raise InputError(f"the view {name} skips all {rounds} rounds: use final, or a smaller N")
    for round in view.at:
        if round >= rounds:
            raise InputError(f"the view {name} includes round {round}, but rounds run from 0 to {rounds - 1}")


def check_initial(initial: npt.ArrayLike | None, view: str, dim: int) -> Vector | None:
    """Return the initial model as a vector if the view compares with it, or None."""
    if initial is None:
        if needs_initial(view):
            raise InputError(f"the view {view} compares models: pass initial=, the model before the first round")
        return None
    if not needs_initial(view):
        raise InputError(f"the view {view} does not compare models: leave out initial=")
    return check_vector(np.array(initial, dtype=np.float32), "the initial model", dim)


def check_vector(vector: Vector, name: str, dim: int) -> Vector:
    """Return the vector if it has ``dim`` finite numbers."""
    if vector.shape != (dim,):
        raise InputError(f"{name} must have shape ({dim},), got {vector.shape}")
    # The sum comes first because it needs no array of booleans; it is rarely infinite while all numbers are finite.
    if not math.isfinite(float(vector.sum(dtype=np.float64))) and not np.isfinite(vector).all():
        raise InputError(f"{name} must be finite, got NaN or infinity")
    return vector


def canary_norm(round: int, clip_norm: float, norm: float | None) -> float:
    """Return the norm of a round's canaries: the clip norm, but at most ``norm`` if that is given."""
    if not clip_norm > 0:
        raise InputError(f"clip_norm must be positive, got {clip_norm} in round {round}")
    if math.isinf(clip_norm) and norm is None:
        raise InputError(f"round {round} clips nothing, so the canaries have no norm: pass norm= to the audit")
    return min(clip_norm, math.inf if norm is None else norm)
