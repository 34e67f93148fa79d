"""Results grouped by unit: figures that are about different things stay apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coalmine.results.finding import Finding
from coalmine.results.result import Result
from coalmine.results.verdict import LEADING, WORST_FIRST, Verdict, overall


@dataclass(frozen=True, kw_only=True)
class Group:
    """Results about the same unit of the same training.

    Args:
        title: The unit, and the training if it is not the one that methods share.
        results: The results to show, the most telling of each variant.
    """

    title: str
    results: Sequence[Result]

    @property
    def bounded(self) -> list[Result]:
        """The results with a valid lower bound."""
        return [result for result in self.results if result.decisive is not None]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict on a claim; results that are only estimates do not decide beside those with a bound."""
        return _overall(_deciding(self.bounded or self.results))

    @property
    def strongest(self) -> Result | None:
        """The result to lead with: among the worst verdict, one with a bug, then by how close to its claim it comes."""
        verdict = self.verdict
        leading = [result for result in _deciding(self.bounded) if result.verdict is verdict]
        return max(leading, key=lambda r: (bool(r.bugs), share_of_claim(r), _bound(r)), default=None)

    @property
    def bugs(self) -> list[Finding]:
        """The findings that refute the claim: of each check, those of the result where they are least likely chance."""
        checks = list(dict.fromkeys(finding.check for result in self.results for finding in result.bugs))
        by_result = [[[f for f in result.bugs if f.check == check] for result in self.results] for check in checks]
        return [
            finding
            for candidates in by_result
            for finding in min(filter(None, candidates), key=lambda bugs: min(bug.p_value for bug in bugs))
        ]

    @property
    def claims(self) -> list[float]:
        """The different claimed ε, in ascending order."""
        return sorted({result.claim.epsilon for result in self.results if result.claim is not None})

    @property
    def claim(self) -> float | None:
        """The claim to show: the one that the strongest result is compared with, else the largest."""
        strongest = self.strongest
        if strongest is not None and strongest.claim is not None:
            return strongest.claim.epsilon
        return max(self.claims, default=None)


def grouped(results: Sequence[Result]) -> list[Group]:
    """Group results by unit and training: alarms, then whole releases, then rounds and phrases; the worst first.

    Of results that differ only in their variant, the most telling of each view is kept.
    """
    groups: dict[str, list[Result]] = {}
    for result in shown_results(results):
        special = result.training not in ("", "training")
        title = f"{result.unit.name} ({result.training})" if special else result.unit.name
        groups.setdefault(f"{title[:1].upper()}{title[1:]}", []).append(result)
    made = [Group(title=title, results=members) for title, members in groups.items()]
    return sorted(made, key=_place)


def _deciding(results: Sequence[Result]) -> list[Result]:
    """Return the results that test the claim with the worst verdict; those without a claim only if none has one."""
    by_claim: dict[object, list[Result]] = {}
    for result in results:
        claim = None if result.claim is None else (result.claim.epsilon, result.claim.delta)
        by_claim.setdefault(claim, []).append(result)
    tested = [tests for tests in by_claim.values() if _overall(tests) is not Verdict.NO_CLAIM]
    return min(tested or by_claim.values(), key=lambda tests: WORST_FIRST.index(_overall(tests)), default=[])


def _place(group: Group) -> tuple[bool, bool, int]:
    """Return what groups are sorted by."""
    alarm = group.verdict in (Verdict.REFUTED, Verdict.SUSPICIOUS)
    return not alarm, not group.results[0].unit.limited, WORST_FIRST.index(group.verdict)


def _overall(results: Sequence[Result]) -> Verdict:
    return overall(result.verdict for result in results)


def joint_confidence(results: Sequence[Result]) -> float:
    """Return the confidence with which all bounds hold at once, at least (a union bound)."""
    misses = [1 - (result.bound.confidence or 0.0) for result in results if result.bound is not None]
    return max(0.0, 1 - sum(misses))


def share_of_claim(result: Result) -> float:
    """Return the bound as a share of the claim; 0 without a finite claim."""
    bound, claim = result.decisive, result.claim
    if bound is None or claim is None or not claim.epsilon or math.isinf(claim.epsilon):
        return 0.0
    return bound.epsilon / claim.epsilon


def shown_results(results: Sequence[Result]) -> list[Result]:
    """Return the results to list: all, but of several variants only the most telling of each view."""
    variants: dict[tuple[str, ...], list[Result]] = {}
    for i, result in enumerate(results):
        variant = "" if result.variant else str(i)
        key = (result.method, result.view, result.training, result.unit.name, variant)
        variants.setdefault(key, []).append(result)
    return [max(_deciding(several), key=_telling) for several in variants.values()]


def _telling(result: Result) -> tuple[int, float, float]:
    """Return what to sort by: the worse verdict first, then the bound closest to its claim."""
    return (-LEADING.index(result.verdict), share_of_claim(result), _bound(result))


def _bound(result: Result) -> float:
    return 0.0 if result.decisive is None else result.decisive.epsilon
