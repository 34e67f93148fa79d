"""Calls a crafter, which may be a user's own function, and checks what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from torch import Tensor, nn

from coalmine.errors import InputError, check_kind
from coalmine.methods.ldp.crafters import Crafter, Rule
from coalmine.methods.ldp.pair import Pair
from coalmine.protocol import Vector
from coalmine.simulation.data.federated import Examples
from coalmine.simulation.flat import parameter_vector
from coalmine.usercode import errors_of


def name_of(crafter: Crafter) -> str:
    """Return a crafter's ``name``, or the name of the function or class."""
    return str(getattr(crafter, "name", None) or getattr(crafter, "__name__", type(crafter).__name__))


def rule_of(crafter: Crafter) -> Rule:
    """Return the black-box test that fits a crafter: its ``rule``, or Equation 4 if it has none."""
    rule: Rule = getattr(crafter, "rule", "loss-falls")
    if rule not in get_args(Rule):
        raise InputError(
            f"the rule of crafter {name_of(crafter)} must be one of {', '.join(get_args(Rule))}, got {rule!r}"
        )
    return rule


def prepare_model(
    crafter: Crafter, model: nn.Module, examples: Examples, pair: Pair, rng: np.random.Generator
) -> nn.Module:
    """Return the model that the server sends: what the crafter's ``prepare`` makes, or ``model`` if it has none."""
    prepare = getattr(crafter, "prepare", None)
    if prepare is None:
        return model
    prepared = _call(f"prepare of crafter {name_of(crafter)}", prepare, model, examples, pair, rng)
    check_kind(f"the result of prepare of crafter {name_of(crafter)}", prepared, nn.Module, "a torch module")
    return prepared  # type: ignore[no-any-return]


def craft(crafter: Crafter, model: nn.Module, pair: Pair) -> tuple[Vector, Vector]:
    """Return the crafter's two gradients as float32 vectors.

    Raises:
        InputError: If they are not two different, finite, nonzero vectors of the model's length.
    """
    who, dim = f"crafter {name_of(crafter)}", parameter_vector(model).numel()
    gradients = _call(who, crafter, model, pair)
    if not isinstance(gradients, tuple) or len(gradients) != 2:
        raise InputError(f"{who} must return a tuple of two gradients, got {type(gradients).__name__}")
    first, second = (_vector(g, f"{name} of {who}", dim) for name, g in zip(("g1", "g2"), gradients, strict=True))
    if np.array_equal(first, second):
        raise InputError(f"{who} returned the same gradient twice: there is nothing to distinguish")
    return first, second


def _vector(gradient: object, name: str, dim: int) -> Vector:
    """Return a gradient as a float32 vector, if it is finite, nonzero and of the model's length."""
    array = gradient.detach().cpu().numpy() if isinstance(gradient, Tensor) else gradient
    check_kind(name, array, np.ndarray, "a NumPy vector or a tensor")
    assert isinstance(array, np.ndarray)
    if array.shape != (dim,):
        raise InputError(f"{name} must have shape ({dim},), one number per parameter, got {array.shape}")
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must have real numbers, got {array.dtype}")
    vector: Vector = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(vector).all():
        raise InputError(f"{name} must be finite, got infinity or NaN")
    if not vector.any():
        raise InputError(f"{name} must not be zero: reports of a zero gradient are pure noise")
    return vector


def _call(what: str, function: Callable[..., object], *arguments: object) -> Any:
    """Call a user's function; its own errors name it."""
    with errors_of(f"{what} failed"):
        return function(*arguments)
