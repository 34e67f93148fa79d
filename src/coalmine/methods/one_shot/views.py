"""What an adversary of updates sees, by name."""

from __future__ import annotations

from coalmine.errors import InputError, check_kind
from coalmine.protocol import View

VIEWS = "final, final-change, updates, every:ROUNDS or rounds:A,B,…"


def parse_view(text: str) -> View:
    """``final``, ``final-change``, ``updates``, ``every:ROUNDS`` or ``rounds:A,B,…``."""
    check_kind("view", text, str, f"a text: {VIEWS}")
    kind, _, rest = text.partition(":")
    try:
        match kind:
            case "final" | "final-change" if not rest:
                return View("model", every=None)
            case "updates" if not rest:
                return View("update")
            case "every":
                return View("model", every=int(rest))
            case "rounds":
                return View("model", every=None, at=tuple(int(part) for part in rest.split(",")))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"there is no view {text!r}; there are {VIEWS}")
