"""Numbers as people read them."""

from __future__ import annotations

import math


def epsilon(value: float | None) -> str:
    """About three digits that matter; a dash for None, ∞ for infinity."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞"
    if value < 0.01:
        return "0" if value == 0 else f"{value:.1g}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.3g}"


def at_least(value: float | None) -> str:
    """What is proved, on one line."""
    return f"ε\u00a0≥\u00a0{epsilon(value)}"


def at_most(value: float | None) -> str:
    """What is promised, on one line."""
    return f"ε\u00a0≤\u00a0{epsilon(value)}"


def equal(value: float | None) -> str:
    """What somebody else says it is, on one line."""
    return f"ε\u00a0=\u00a0{epsilon(value)}"


def about(value: float | None) -> str:
    """What is estimated, on one line."""
    return f"ε\u00a0≈\u00a0{epsilon(value)}"


def percent(share: float) -> str:
    """A share in percent, with two digits that matter where it is small."""
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.1f}%"


def count(value: float) -> str:
    """A whole number with its thousands apart."""
    return f"{round(value):,}"


def metric(value: object) -> str:
    """Any number of a result, four digits that matter."""
    if value == "inf":
        return "∞"
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
