"""What the figures mean, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalmine.accounting import Theory
    from coalmine.stats import Estimate


MEMBERSHIP = (
    "what was released makes some accusation at least {} times as likely against a member as against a non-member"
)
"""What a bound on ε says of canaries that were planted or held out."""


def meaning(estimates: Sequence[Estimate], ceiling: float | None = None, shown: str = MEMBERSHIP) -> str:
    """What the first valid bound among ``estimates`` says, and what it rests on.

    ``ceiling`` is the largest bound that so few scores could give; ``shown`` says of what ``{}``, the number e^ε, is
    true.
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
    else:
        times = math.exp(min(best.lower, 700))
        text = (
            f"With {100 * best.confidence:g}% confidence ε is at least {best.lower:.3g} at δ = {best.delta:g}"
            f" ({best.method}): {shown.format(f'{times:.3g}')}. A smaller claimed ε is refuted."
        )
    if ceiling is not None and best.method == "simultaneous":
        text += f" With so many scores the bound could not exceed {ceiling:.3g}."
    return f"{text} It holds if {best.assumes}."


def adversary(config: Mapping[str, Any]) -> str:
    """The name of an LDP audit's adversary, with the dummy gradient's norm where it is not the clip norm."""
    crafter, norm = str(config["crafter"]), config["gradient_norm"]
    return crafter if norm in (None, config["norm"]) else f"{crafter} of norm {norm:g}"


def kind(estimate: Estimate) -> str:
    """What sort of figure it is, in two or three words."""
    if estimate.valid:
        return "valid bound"
    return "bound if Gaussian" if estimate.method in {"gdp", "one-run-fdp"} else "estimate"


def theory(theories: Sequence[Theory], target: float | None = None) -> str:
    """What the best of several accountants' figures promises; ``target`` is the ε that a noise was sought for."""
    best = min(theories, key=lambda t: t.epsilon if target is None else t.noise_multiplier or 0.0)
    if best.epsilon == math.inf:
        return "There is no guarantee: ε is infinite."
    where = f"δ = {best.delta:g} ({best.accountant}, neighbours: {best.adjacency})"
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
