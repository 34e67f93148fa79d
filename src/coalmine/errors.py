"""Bad input, refused where it enters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import SupportsFloat


class InputError(ValueError):
    """Something the user gave is wrong: the message says what, where, and what would be right.

    The command line prints it as one sentence and exits with code 2.
    """


class DataWarning(UserWarning):
    """Something of the data is not used: the message says how much of it, and why. The command line prints it."""


class NotApplicableError(InputError):
    """An estimator that does not fit these scores: asked for by name it is an error, among all it is left out."""


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], example: str) -> None:
    """Refuse a ``value`` that is not of these ``kinds``; ``example`` says what would be right."""
    if not isinstance(value, kinds) or isinstance(value, type):
        got = value.__name__ if isinstance(value, type) else type(value).__name__
        raise InputError(f"{name} must be {example}, got {'the class ' if isinstance(value, type) else ''}{got}")


def check_number(name: str, value: SupportsFloat) -> float:
    """Return ``value`` as a float if it is a number and not NaN, refuse it otherwise."""
    if isinstance(value, str) or not hasattr(value, "__float__") or math.isnan(value.__float__()):
        raise InputError(f"{name} must be a number, got {value!r}")
    return float(value)


def check_delta(delta: float) -> float:
    """Return ``delta`` if it lies in [0, 1), refuse it otherwise."""
    if isinstance(delta, str) or not 0 <= delta < 1:
        raise InputError(f"delta must be in [0, 1), got {delta}")
    return float(delta)


def check_confidence(confidence: float) -> float:
    """Return ``confidence`` if it lies in [0.5, 1), refuse it otherwise."""
    if isinstance(confidence, str) or not 0.5 <= confidence < 1:
        raise InputError(f"confidence must be in [0.5, 1), got {confidence}")
    return float(confidence)


def check_positive(name: str, value: float) -> float:
    """Return ``value`` if it is finite and above zero, refuse it otherwise."""
    if not (check_number(name, value) > 0 and math.isfinite(value)):
        raise InputError(f"{name} must be a positive number, got {value}")
    return float(value)


def check_probability(name: str, value: float) -> float:
    """Return ``value`` if it lies strictly between 0 and 1, refuse it otherwise."""
    if isinstance(value, str) or not 0 < value < 1:
        raise InputError(f"{name} must be in (0, 1), got {value}")
    return float(value)


def check_count(name: str, value: float, least: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``least``, refuse it otherwise."""
    whole = not isinstance(value, bool | str) and math.isfinite(value) and int(value) == value
    if not whole or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value}")
    return int(value)


def did_you_mean(name: str, available: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest one that exists, and all of them."""
    import difflib  # only needed once something is wrong

    names = list(available)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f"{f'Did you mean {chr(34)}{near[0]}{chr(34)}? ' if near else ''}Available: {', '.join(names)}."
