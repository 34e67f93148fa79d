"""What the figures mean, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalmine.accounting import Theory
    from coalmine.stats import Estimate


MEMBERSHIP = "what was released makes some accusation {} as likely against a member as against a non-member"
"""What a bound on ε says of canaries that were planted or held out."""


def meaning(estimates: Sequence[Estimate], ceiling: float | None = None, shown: str = MEMBERSHIP) -> str:
    """What the first valid bound among ``estimates`` says, and what it rests on.

    ``ceiling`` is the largest bound that so few scores could give; ``shown`` says of what ``{}``, at least e^ε times,
    is true.
    """
    best = next((e for e in estimates if e.valid), None)
    if best is None or best.lower is None or best.confidence is None:
        return "None of these figures is a bound that holds; read them as estimates."
    if ceiling == 0 and best.method == "simultaneous":
        return f"So few scores cannot show anything at {100 * best.confidence:g}% confidence: plant more canaries."
    if best.lower == 0:
        text = (
            f"No leak is shown: such scores can come from a mechanism with ε = 0 at δ = {best.delta:g} ({best.method})."
        )
        text += _beside(best, estimates)
    else:
        text = (
            f"With {100 * best.confidence:g}% confidence ε is at least {best.lower:.3g} at δ = {best.delta:g}"
            f" ({best.method}): {shown.format(times_at_least(best.lower))}. A smaller claimed ε is refuted."
        )
    if ceiling is not None and best.method == "simultaneous":
        text += f" With so many scores the bound could not exceed {ceiling:.3g}."
    return f"{text} It holds if {best.assumes}."


def _beside(quoted: Estimate, estimates: Sequence[Estimate]) -> str:
    """What another valid bound above 0 means beside a quoted one of 0."""
    other = max((e for e in estimates if e.valid), key=lambda e: e.epsilon)
    if other.epsilon == 0:
        return ""
    return (
        f" Which method to quote was fixed in advance: {quoted.method}. By itself the {other.epsilon:.3g} of "
        f"{other.method} is a valid bound too; quoting whichever is largest would err more often than the confidence "
        "allows."
    )


def times(epsilon: float) -> str:
    """e^ε, how many times as likely: three digits that matter, and no more than anybody can picture."""
    factor = math.exp(min(epsilon, 700))
    return "more than a million times" if factor >= 1e6 else f"{float(f'{factor:.3g}'):,g} times"


def times_at_least(epsilon: float) -> str:
    """The same for what is a lower bound."""
    found = times(epsilon)
    return found if found.startswith("more") else f"at least {found}"


def times_at_most(epsilon: float) -> str:
    """The same for what is an upper bound."""
    found = times(epsilon)
    return found if found.startswith("more") else f"up to {found}"


def adversary(config: Mapping[str, Any]) -> str:
    """The name of an LDP audit's adversary, with the dummy gradient's norm where it is not the clip norm."""
    crafter, norm = str(config["crafter"]), config["gradient_norm"]
    return crafter if norm in (None, config["norm"]) else f"{crafter} of norm {norm:g}"


def kind(estimate: Estimate) -> str:
    """What sort of figure it is, in two or three words."""
    if estimate.valid:
        return "valid bound"
    if estimate.doubtful:
        return "estimate, doubtful"
    return "bound if Gaussian" if estimate.method in {"gdp", "one-run-fdp"} else "estimate"


def theory(theories: Sequence[Theory], target: float | None = None) -> str:
    """What the best of several accountants' figures promises; ``target`` is the ε that a noise was sought for."""
    best = min(theories, key=lambda t: t.epsilon if target is None else t.noise_multiplier or 0.0)
    if best.epsilon == math.inf:
        return "There is no guarantee: ε is infinite."
    where = f"δ = {best.delta:g} ({best.accountant}, neighbors: {best.adjacency})"
    if target is not None:
        text = f"A noise multiplier of {best.noise_multiplier:.6g} is enough for ε = {target:g} at {where}."
    else:
        text = (
            f"Whatever the data, and even for an adversary who sees every round, ε is at most {best.epsilon:.4g} at"
            f" {where}. Each row is an upper bound that holds; the smallest is the one to quote."
        )
    if best.adjacency == "replace-one" and best.noise_multiplier is not None:
        text += (
            " Replacing a client moves a sum of clipped updates by up to twice the clip norm: for that guarantee the"
            " noise multiplier is the noise over twice the clip norm."
        )
    return text
