"""Texts of settings such as ``poisson:0.5`` or ``every-round``: a kind, and what follows its colon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from coalmine.errors import InputError

Parsed = TypeVar("Parsed")


def parse_kind(text: str, kinds: Mapping[str, Callable[[str], Parsed]], error: str) -> Parsed:
    """Return what a text describes.

    Args:
        text: The text, such as ``"poisson:0.5"``.
        kinds: For each kind, what to make of the text after its colon. The names of kinds that have one end with it.
        error: What to say if there is no such kind, or if what follows the colon is no number.

    Raises:
        InputError: With ``error``, or as the function of the kind raises it.

    Example:
        >>> parse_kind("last:3", {"all": lambda rest: 0, "last:": int}, "use all or last:N")
        3
    """
    kind, colon, rest = text.partition(":")
    try:
        return kinds[kind + colon](rest)
    except InputError:
        raise
    except (KeyError, ValueError) as cause:
        raise InputError(error) from cause
