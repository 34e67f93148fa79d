"""Views of a training by name: what the adversary of the one-shot audit sees."""

from __future__ import annotations

from collections.abc import Callable

from coalmine.errors import check_count, check_kind, parse_kind
from coalmine.protocol import View

VIEWS = ("final", "final-change", "updates", "every:N", "rounds:A,B,…")
"""The views that have a name."""


def parse_view(text: str) -> View:
    """Return the view that a text names.

    Args:
        text: ``final`` (the final model), ``final-change`` (the final minus the initial model), ``updates`` (every
            round's noisy average), ``every:N`` (the model after every N rounds and the final one) or ``rounds:A,B``
            (the model after these rounds, counted from 0, and the final one).

    Raises:
        InputError: If the text names no view.

    Example:
        >>> parse_view("every:5")
        View(kind='model', every=5, at=())
    """
    check_kind("view", text, str, f"a text: {', '.join(VIEWS)}")
    kinds: dict[str, Callable[[str], View]] = {
        "final": lambda _: View("model", every=None),
        "final-change": lambda _: View("model", every=None),
        "updates": lambda _: View("update"),
        "every:": lambda rounds: View("model", every=check_count("every", int(rounds))),
        "rounds:": lambda rounds: View("model", every=None, at=tuple(map(int, rounds.split(",")))),
    }
    return parse_kind(text, kinds, f'unknown view "{text}".', VIEWS)


def needs_initial(view: str) -> bool:
    """Return whether a view compares models, so that the initial model must be known."""
    return parse_view(view).kind == "model" and view != "final"


def shows_one_release(view: View) -> bool:
    """Return whether the final release is all that a view shows."""
    return view.every is None and not view.at


def adversary(view: str) -> str:
    """Describe the adversary with this view, continuing "an adversary who"."""
    kind, _, rest = view.partition(":")
    adversaries = {
        "final": "sees the final model",
        "final-change": "sees the final model and knows the initial one",
        "updates": "sees every round's noisy average",
        "every": f"sees the model after every {rest} rounds and the final model",
        "rounds": f"sees the models after rounds {rest} and the final model",
    }
    return adversaries[kind]
