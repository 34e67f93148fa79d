"""Error types, and checks that reject bad input where it enters the library.

Each check returns the value it accepts, so that it can be used inside an expression. Messages name the argument, what
is accepted and the offending value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import SupportsFloat, TypeVar

Parsed = TypeVar("Parsed")


class InputError(ValueError):
    """Invalid user input. The message says what is wrong, where, and what is accepted.

    The command line prints the message without a traceback and exits with code 2.

    Example:
        >>> from coalmine.stats import Scores
        >>> Scores([0.7, 0.1], [])
        Traceback (most recent call last):
        ...
        coalmine.errors.InputError: nonmembers must hold at least one number, got none
    """


class DataWarning(UserWarning):
    """Part of the data is not used. The message says how much, and why; the command line prints it."""


class CanaryWarning(UserWarning):
    """The canaries of an audit outweigh the training they join. The message says by how much, and what to do."""


class NotApplicableError(InputError):
    """An estimator does not apply to these scores: an error if requested by name, skipped when running all of them."""


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], example: str) -> None:
    """Raise `InputError` unless ``value`` is an instance of ``kinds``; ``example`` says what is accepted."""
    if not isinstance(value, kinds):
        raise InputError(f"{name} must be {example}, got {type(value).__name__}")


def check_number(
    name: str, value: SupportsFloat, accepted: str = "a number", within: Callable[[float], bool] = lambda _: True
) -> float:
    """Return ``value`` as a float if it is a number for which ``within`` holds; NaN is none, infinity is.

    Args:
        name: What the number is, for the message.
        value: The number.
        accepted: What is accepted, continuing "must be".
        within: Whether a number is accepted.
    """
    # Strings have no __float__, so "0.5" gets a sentence instead of a failed comparison.
    if not hasattr(value, "__float__") or math.isnan(value.__float__()):
        raise InputError(f"{name} must be a number, got {value!r}")
    if not within(float(value)):
        raise InputError(f"{name} must be {accepted}, got {value}")
    return float(value)


check_positive = partial(check_number, accepted="a positive number", within=lambda x: 0 < x < math.inf)
check_nonnegative = partial(check_number, accepted="at least 0", within=lambda x: x >= 0)
check_probability = partial(check_number, accepted="in (0, 1)", within=lambda x: 0 < x < 1)
check_delta = partial(check_number, "delta", accepted="in [0, 1)", within=lambda x: 0 <= x < 1)
# Below one half, two-sided intervals would be empty.
check_confidence = partial(check_number, "confidence", accepted="in [0.5, 1)", within=lambda x: 0.5 <= x < 1)


def check_count(name: str, value: float, least: int = 1) -> int:
    """Return ``value`` as an int if it is a whole number of at least ``least``."""
    # Whole floats such as 1e3 are counts too. NaN and infinity leave a remainder of NaN.
    if isinstance(value, bool | str) or value % 1 != 0 or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r:.60}")
    return int(value)


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Say which run or table an `InputError` is about, where several have settings of the same names."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place} {error}") from error


def did_you_mean(name: str, available: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest one that exists, and all of them."""
    import difflib  # only needed once something is wrong

    names = list(available)
    hint = f"Available: {', '.join(names)}."
    for near in difflib.get_close_matches(name.lower(), names, n=1):
        hint = f'Did you mean "{near}"? {hint}'
    return hint


def parse_kind(
    text: str, kinds: Mapping[str, Callable[[str], Parsed]], error: str, names: Iterable[str] = ()
) -> Parsed:
    """Return what a text of a setting such as ``poisson:0.5`` describes: a kind, and what follows its colon.

    Args:
        text: The text, such as ``"poisson:0.5"``.
        kinds: For each kind, what to make of the text after its colon. The names of kinds that have one end with it.
        error: What to say if there is no such kind, or if what follows the colon is no number.
        names: Names of the kinds as users write them; the error ends with the nearest of them.

    Raises:
        InputError: With ``error``, or as the function of the kind raises it.

    Example:
        >>> parse_kind("last:3", {"all": lambda rest: 0, "last:": int}, "use all or last:N")
        3
    """
    kind, colon, rest = text.partition(":")
    try:
        return kinds[kind + colon](rest)
    except InputError:  # a ValueError as well, whose own message says more
        raise
    except (KeyError, ValueError) as cause:
        hint = f" {did_you_mean(text, names)}" if names else ""
        raise InputError(error + hint) from cause
