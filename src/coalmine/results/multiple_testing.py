"""Many results judged together, at one false-alarm rate for all of them.

Each method has an equal share of the rate, and each of its results an equal share of that. Claims with a p-value are
tested by Holm's procedure with these weights; all other bounds are taken at the confidence that their share leaves. A
mechanism within the limit and its claims is then stopped no more often than the false-alarm rate, however the results
depend on each other. Findings of checks count too; they are made at a far lower false-alarm rate of their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coalmine.results.result import Result, in_json, refutes
from coalmine.results.verdict import Verdict
from coalmine.stats import Estimate

_ROUNDING = 1 + 1e-9  # a share of 0.05 / 2 is not exactly 1 - 0.975


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """One result as the gate sees it.

    Args:
        result: The result.
        bound: Its lower bound at ``confidence``, or None if it has no valid bound.
        confidence: Confidence at which it is judged among the others.
        p_value: p-value of its claim, if that has been tested by more than the bound.
        verdict: Verdict on its claim at that confidence.
        over_limit: Whether the bound exceeds the limit.
        limit_applies: Whether the limit is about this result's unit.
        checked: Whether anything was tested: a claim, or a limit that applies to a lower bound.
    """

    result: Result
    bound: float | None
    confidence: float | None
    p_value: float | None
    verdict: Verdict
    over_limit: bool
    limit_applies: bool
    checked: bool

    @property
    def claim(self) -> float | None:
        """The claimed ε."""
        return None if self.result.claim is None else self.result.claim.epsilon

    def to_dict(self) -> dict[str, Any]:
        """Return the judgment, ready for JSON."""
        return {
            "method": self.result.method,
            "view": self.result.label,
            "unit": self.result.unit.name,
            "bound": in_json(self.bound),
            "confidence": self.confidence,
            "p_value": self.p_value,
            "claim": in_json(self.claim),
            "verdict": self.verdict.value,
            "over_limit": self.over_limit,
            "checked": self.checked,
        }


def judged_together(
    results: Sequence[Result], *, rate: float, limit: float | None, limited: Sequence[bool]
) -> tuple[list[Judgment], float]:
    """Return a judgment of each result, and the false-alarm rate of all of them together.

    Args:
        results: The results.
        rate: The false-alarm rate to share. The returned one is larger where no bound was stored at a high enough
            confidence.
        limit: The largest ε allowed, or None if only claims are tested.
        limited: Whether the limit applies to each result.
    """
    sizes = Counter(result.method for result in results if result.bound is not None)
    shares, p_values = [], []
    for result, applies in zip(results, limited, strict=True):
        share = p_value = None
        if result.bound is not None:
            p_value = None if result.claim_test is None else result.claim_test.p_value
            share = rate / (len(sizes) * sizes[result.method])
            # A bound that is compared with a limit beside a claim that has a test of its own: both get half the share.
            if p_value is not None and limit is not None and applies:
                share /= 2
        shares.append(share or 0.0)
        p_values.append(p_value)
    weights = {i: share for i, share in enumerate(shares) if p_values[i] is not None and share > 0}
    refuted = holm({i: p_values[i] or 0.0 for i in weights}, weights)
    judgments, total = [], 0.0
    for i, (result, share, p_value) in enumerate(zip(results, shares, p_values, strict=True)):
        lower = significance = None
        compared = False
        if result.bound is not None:
            lower, significance = _at(result.bound, share)
            compared = limited[i] and limit is not None
            total += share if p_value is not None else 0.0
            total += significance if p_value is None or compared else 0.0
        has_claim = result.claim is not None and result.claim.epsilon < math.inf
        verdict = _verdict(result, lower, p_value, refuted=i in refuted)
        judgments.append(
            Judgment(
                result=result,
                bound=lower,
                confidence=None if significance is None else 1 - significance,
                p_value=p_value,
                verdict=verdict,
                over_limit=compared and limit is not None and lower is not None and lower > limit,
                limit_applies=limited[i],
                checked=verdict is Verdict.REFUTED or (lower is not None and has_claim) or compared,
            )
        )
    return judgments, total


def holm(p_values: Mapping[int, float], shares: Mapping[int, float]) -> set[int]:
    """Return which claims are refuted at a joint significance of the sum of their shares (Holm, 1979, with weights)."""
    left, total, refuted = dict(shares), sum(shares.values()), set[int]()
    while left:
        smallest = min(left, key=lambda i: p_values[i] / left[i])
        # The shares of claims that were refuted already go to the remaining ones, in proportion to theirs.
        if p_values[smallest] > total * left[smallest] / sum(left.values()) * _ROUNDING:
            break
        refuted.add(smallest)
        del left[smallest]
    return refuted


def _verdict(result: Result, lower: float | None, p_value: float | None, *, refuted: bool) -> Verdict:
    """Return the verdict at the confidence that judging all results together takes."""
    if p_value is None and result.claim is not None and result.bound is not None and lower is not None:
        refuted = refutes(lower, result.bound.delta, result.claim)
    if refuted or (result.bugs and result.claim_test is not None):  # findings have a false-alarm rate of their own
        return Verdict.REFUTED
    # Refuted by itself, but not among all the others.
    return Verdict.SUSPICIOUS if result.verdict is Verdict.REFUTED else result.verdict


def _at(bound: Estimate, share: float) -> tuple[float, float]:
    """Return the bound at a significance of at most ``share`` and that significance, else the strictest stored."""
    levels = [(1 - (bound.confidence or 0.0), bound.epsilon)]
    levels += [(1 - level, lower) for level, lower in bound.stricter]
    fitting = [level for level in levels if level[0] <= share * _ROUNDING]
    significance, lower = max(fitting) if fitting else min(levels)
    return lower, significance
