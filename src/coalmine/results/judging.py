"""Results judged together: who gets which share of the false-alarm rate, and which claims are refuted at that.

Some of many tests raise a false alarm by chance. Each method gets an equal share of the false-alarm rate and the
results of a method share that. Claims with a p-value are tested by Holm's method, which passes the share of a refuted
claim on to the others; a bound is taken at the confidence that its share leaves it, and where a result is tested by
both, they get half of its share each. By the union bound, a mechanism within the limit and its claims is then stopped
no more often than the false-alarm rate, however the results depend on each other. Findings of checks count too; they
are made at a far lower false-alarm rate of their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coalmine.results.result import Result, in_json, refutes
from coalmine.results.verdict import Verdict
from coalmine.stats import Estimate


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
    bounded = [result for result in results if result.bound is not None]
    sizes = Counter(result.method for result in bounded)
    shares = [rate / (len(sizes) * sizes[result.method]) if result.bound else 0.0 for result in results]
    # A bound that is compared with a limit beside a claim that has a test of its own: both get half of the share.
    halved = [
        _p_value(result) is not None and limit is not None and applies
        for result, applies in zip(results, limited, strict=True)
    ]
    shares = [share / 2 if half else share for share, half in zip(shares, halved, strict=True)]
    refuted = _holm([_p_value(result) for result in results], shares)
    judgments, total = [], 0.0
    for i, result in enumerate(results):
        lower = significance = None
        if result.bound is not None:
            lower, significance = _at(result.bound, shares[i])
            by_bound = _p_value(result) is None or halved[i]
            total += significance * by_bound + shares[i] * (_p_value(result) is not None)
        verdict = _verdict(result, lower, refuted=i in refuted)
        compared = limited[i] and limit is not None and lower is not None
        over_limit = limited[i] and limit is not None and lower is not None and lower > limit
        judgments.append(
            Judgment(
                result=result,
                bound=lower,
                confidence=None if significance is None else 1 - significance,
                p_value=_p_value(result),
                verdict=verdict,
                over_limit=over_limit,
                limit_applies=limited[i],
                checked=verdict is Verdict.REFUTED or (lower is not None and _has_claim(result)) or compared,
            )
        )
    return judgments, total


def _has_claim(result: Result) -> bool:
    """Whether there is a finite claim to test."""
    return result.claim is not None and result.claim.epsilon < math.inf


def _p_value(result: Result) -> float | None:
    return None if result.claim_test is None or result.bound is None else result.claim_test.p_value


def _holm(p_values: Sequence[float | None], shares: Sequence[float]) -> set[int]:
    """Return which claims are refuted at a joint significance of the sum of their shares (Holm, 1979, with weights)."""
    left = {i: share for i, share in enumerate(shares) if p_values[i] is not None and share > 0}
    total, refuted = sum(left.values()), set()
    while left:
        smallest = min(left, key=lambda i: (p_values[i] or 0.0) / left[i])
        # The shares of claims that were refuted already go to the remaining ones, in proportion to theirs.
        if (p_values[smallest] or 0.0) > total * left[smallest] / sum(left.values()) * (1 + 1e-9):
            break
        refuted.add(smallest)
        del left[smallest]
    return refuted


def _verdict(result: Result, lower: float | None, *, refuted: bool) -> Verdict:
    """Return the verdict at the confidence that judging all results together takes."""
    if _p_value(result) is None and result.claim is not None and result.bound is not None and lower is not None:
        refuted = refutes(lower, result.bound.delta, result.claim)
    if refuted or (result.bugs and result.claim_test is not None):  # findings have a false-alarm rate of their own
        return Verdict.REFUTED
    # Refuted by itself, but not among all the others.
    return Verdict.SUSPICIOUS if result.verdict is Verdict.REFUTED else result.verdict


def _at(bound: Estimate, share: float) -> tuple[float, float]:
    """Return the bound at a significance of at most ``share`` and that significance, else the strictest stored."""
    levels = [(1 - (bound.confidence or 0.0), bound.epsilon), *((1 - level, lower) for level, lower in bound.stricter)]
    fitting = [level for level in levels if level[0] <= share * (1 + 1e-9)]
    significance, lower = max(fitting) if fitting else min(levels)
    return lower, significance
