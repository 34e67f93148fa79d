"""Views of a training by name: what the adversary of the one-shot audit sees."""

from __future__ import annotations

from coalmine.errors import InputError, check_kind, did_you_mean
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
    raise InputError(f'unknown view "{text}". {did_you_mean(text, VIEWS)}')


def needs_initial(view: str) -> bool:
    """Return whether a view compares models, so that the initial model must be known."""
    return parse_view(view).kind == "model" and view != "final"


def shows_one_release(view: View) -> bool:
    """Return whether the final release is all that a view shows."""
    return view.every is None and not view.at


def adversary(view: str) -> str:
    """Describe the adversary with this view, continuing "an adversary who"."""
    kind, _, rest = view.partition(":")
    match kind:
        case "final":
            return "sees the final model"
        case "final-change":
            return "sees the final model and knows the initial one"
        case "updates":
            return "sees every round's noisy average"
        case "every":
            return f"sees the model after every {rest} rounds and the final model"
        case _:
            return f"sees the models after rounds {rest} and the final model"
