"""Checks of a one-shot audit's arguments: each returns the checked value or raises an `InputError`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, get_args

import numpy as np

from coalmine.errors import InputError, check_count, check_number
from coalmine.layers import Layers
from coalmine.methods.one_shot.views import needs_initial
from coalmine.protocol import Vector, View
from coalmine.stats.rank_tests import Design
from coalmine.vector_kind import VectorKind
from coalmine.vectors import AnyVector, check_flat, flat, is_tensor

_Dim = tuple[int, VectorKind, Layers | None]

_MOST_CANARIES = 1_000_000  # as many as scores can be kept for


def parsed_dim(dim: Any) -> _Dim:
    """Return the number of parameters, what vectors to give, and the tensors of the model if they are known.

    Args:
        dim: A number, or what has tensors: a module, a state dict, a list of parameters, or one flat tensor.

    Raises:
        InputError: If it is none of these, or there are fewer than two parameters.
    """
    if isinstance(dim, int | float | str | np.generic):
        number: Any = dim
        return check_count("the number of parameters", number, least=2), VectorKind(), None
    if is_tensor(dim) or hasattr(dim, "__array__"):
        return check_count("the number of parameters", int(math.prod(dim.shape)), least=2), VectorKind.of(dim), None
    if isinstance(dim, Iterator):  # such as module.parameters(), which can be read only once
        dim = list(dim)
    if not (hasattr(dim, "named_parameters") or isinstance(dim, Layers | Mapping | list | tuple)):
        raise InputError(
            "model must be the number of parameters, or what has them (a module, a state dict, a list of parameters or "
            f"one flat tensor), got {type(dim).__name__}"
        )
    layers = Layers.of(dim)
    return check_count("the number of parameters", layers.dim, least=2), VectorKind.of(dim), layers


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


def check_initial(initial: AnyVector | None, view: str, dim: int, names: Sequence[str] = ()) -> Vector | None:
    """Return the initial model as a vector if the view compares with it, or None."""
    if initial is None:
        if needs_initial(view):
            raise InputError(f"the view {view} compares models: pass initial=, the model before the first round")
        return None
    if not needs_initial(view):
        raise InputError(f"the view {view} does not compare models: leave out initial=")
    return deepcopy(check_flat(flat(initial, names), "the initial model", dim))


def canary_norm(round: int, clip_norm: float, norm: float | None) -> float:
    """Return the norm of a round's canaries: the clip norm, but at most ``norm`` if that is given."""
    if not check_number("clip_norm", clip_norm) > 0:
        raise InputError(f"clip_norm must be positive, got {clip_norm} in round {round}")
    if math.isinf(clip_norm) and norm is None:
        raise InputError(f"round {round} clips nothing, so the canaries have no norm: pass norm= to the audit")
    return min(clip_norm, math.inf if norm is None else norm)
