"""Results in sentences: what a bound means in odds, and what a verdict says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coalmine.results.verdict import Verdict

if TYPE_CHECKING:
    from coalmine.accounting import Theory
    from coalmine.stats import Estimate

FLAGGING = "an attacker can be {times} likelier to flag a member than a non-member"
"""What a lower bound on ε means for canaries that were inserted or held out; ``{times}`` is e^ε in words."""


def bound_sentence(
    estimates: Sequence[Estimate], ceiling: float | None = None, odds: str = FLAGGING, *, quoted: Estimate | None = None
) -> str:
    """Describe the lower bound to quote, in odds, with what it assumes.

    Args:
        estimates: All estimates of a result, recommended first.
        ceiling: Largest bound that this number of scores can show.
        odds: Sentence about e^ε with a place for ``{times}``.
        quoted: The bound to quote instead of the first valid one.
    """
    bound = quoted or next((e for e in estimates if e.valid), None)
    if bound is None or bound.lower is None or bound.confidence is None:
        return "No lower bound is available, only estimates."
    confidence = f"{100 * bound.confidence:g}% confidence"
    if ceiling == 0 and bound.method == "simultaneous":
        return f"There are too few scores to show anything at {confidence}. Use more canaries."
    if bound.lower == 0:
        text = f"Lower bound ε ≥ 0 at δ = {bound.delta:g} ({confidence}, {bound.method}): no leak shown."
        text += _larger_bound(bound, estimates)
    else:
        text = (
            f"Lower bound ε ≥ {bound.lower:.3g} at δ = {bound.delta:g} ({confidence}, {bound.method}): "
            f"{odds.format(times=times_at_least(bound.lower))}."
        )
    if ceiling is not None and bound.method == "simultaneous":
        text += f" With this many scores the bound cannot exceed {ceiling:.3g}."
    return f"{text} Valid if {bound.assumes}."


def claim_sentence(verdict: Verdict, theory: Theory | None, best_guess: Estimate | None) -> str:
    """Describe the verdict on a claim in one or two sentences."""
    if theory is None:
        return "No claim was stated."
    claim = f"ε = {theory.epsilon:.4g} at δ = {theory.delta:g}"
    match verdict:
        case Verdict.REFUTED:
            return (
                f"Refuted: the claimed {claim} does not hold. Look for missing noise, skipped clipping or an "
                "accountant that assumes other sampling."
            )
        case Verdict.SUSPICIOUS if best_guess is not None:
            return f"Suspicious: the best guess, {guess(best_guess)}, lies entirely above the claimed {claim}."
        case Verdict.TOO_WEAK:
            return f"Too weak to test the claimed {claim}."
        case _:
            return f"Not refuted: we found no evidence against the claimed {claim}. This is not a proof of privacy."


def guess(estimate: Estimate) -> str:
    """Format an estimate with its interval, such as ``6.7 (5.6–7.8)``."""
    if estimate.lower is None or estimate.upper is None:
        return number(estimate.epsilon)
    return f"{number(estimate.epsilon)} ({number(estimate.lower)}–{number(estimate.upper)})"


def number(value: float) -> str:
    """Format an ε with three significant digits, ∞ for infinity."""
    return "∞" if value == math.inf else f"{value:.3g}"


def _larger_bound(quoted: Estimate, estimates: Sequence[Estimate]) -> str:
    """Explain a larger valid bound beside a quoted one of 0."""
    largest = max((e for e in estimates if e.valid), key=lambda e: e.epsilon)
    if largest.epsilon == 0:
        return ""
    return (
        f" {largest.method} gives {largest.epsilon:.3g}, but {quoted.method} was fixed in advance: picking the "
        "largest bound afterwards would inflate the error rate."
    )


def times(epsilon: float) -> str:
    """Format e^ε as "6.5 times", and as "more than a million times" where nobody can picture it."""
    factor = math.exp(min(epsilon, 700))
    return "more than a million times" if factor >= 1e6 else f"{float(f'{factor:.3g}'):,g} times"


def times_at_least(epsilon: float) -> str:
    """Format e^ε for a lower bound."""
    return _with_prefix("at least", epsilon)


def times_at_most(epsilon: float) -> str:
    """Format e^ε for an upper bound."""
    return _with_prefix("up to", epsilon)


def _with_prefix(prefix: str, epsilon: float) -> str:
    text = times(epsilon)
    return text if text.startswith("more") else f"{prefix} {text}"


def kind(estimate: Estimate) -> str:
    """Name the sort of figure an estimate is."""
    if estimate.valid:
        return "lower bound"
    if estimate.doubtful:
        return "estimate, assumption fails"
    return "bound if Gaussian" if estimate.method in {"gdp", "one-run-fdp"} else "estimate"
