"""Numbers formatted for readers."""

from __future__ import annotations

import math


def epsilon(value: float | None) -> str:
    """Format with about three significant digits; a dash for None, ∞ for infinity."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞"
    if value < 0.01:
        return "0" if value == 0 else f"{value:.1g}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.3g}"


def at_least(value: float | None) -> str:
    """Format a lower bound."""
    return f"ε\u00a0≥\u00a0{epsilon(value)}"


def at_most(value: float | None) -> str:
    """Format a claim."""
    return f"ε\u00a0≤\u00a0{epsilon(value)}"


def about(value: float | None) -> str:
    """Format an estimate."""
    return f"ε\u00a0≈\u00a0{epsilon(value)}"


def percent(share: float) -> str:
    """Format a share in percent, with two significant digits if it is small."""
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.1f}%"


def count(value: float) -> str:
    """Format a count with thousands separators."""
    return f"{round(value):,}"


def metric(value: object) -> str:
    """Format any number of a result with four significant digits."""
    if value == "inf":
        return "∞"
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
