"""The gate: are the claims refuted, or do lower bounds exceed a limit? Shared by ``estimate``, ``audit`` and ``check``.

All results are judged together, at one false-alarm rate. Each method has an equal share of the rate, and each of its
results an equal share of that. Claims with a p-value are tested by Holm's procedure with these weights; all other
bounds are taken at the confidence that their share leaves. A mechanism within the limit and its claims is then stopped
no more often than the false-alarm rate, however the results depend on each other. Findings of checks count too; they
are made at a far lower false-alarm rate of their own.

``check`` hands the gate results that were computed again from their scores (`coalmine.runs.recompute`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coalmine.errors import InputError, check_confidence, check_number
from coalmine.results import summary
from coalmine.results.result import Result, in_json
from coalmine.results.tables import shown_results
from coalmine.results.verdict import CHECK_RATE, Verdict, exceeds, verdict_on

COLUMNS = ["method", "view", "unit", "lower bound", "judged at", "claim", "p-value", "verdict", ""]

_ROUNDING = 1 + 1e-9  # a share of 0.05 / 2 is not exactly 1 - 0.975


@dataclass(frozen=True, kw_only=True, eq=False)
class Judgment:
    """One result as the gate sees it.

    Args:
        result: The result.
        bound: Its lower bound at ``confidence``, or None if it has no valid bound.
        delta: The δ of the bound.
        confidence: Confidence at which it is judged among the others.
        claim: The claimed ε, or None.
        p_value: p-value of its claim, if that has been tested by more than the bound.
        verdict: Verdict on its claim at that confidence.
        over_limit: Whether the bound exceeds the limit.
        limit_applies: Whether the limit is about this result's unit.
        checked: Whether anything was tested: a claim, or a limit that applies to a lower bound.
    """

    result: Result
    bound: float | None
    delta: float
    confidence: float | None
    claim: float | None
    p_value: float | None
    verdict: Verdict
    over_limit: bool
    limit_applies: bool
    checked: bool


@dataclass(frozen=True, kw_only=True)
class Gate:
    """All results, judged together.

    Args:
        judgments: One for each result.
        failures: Those that stop the gate.
        doubtful: Those that would stop it only if it were strict.
        unchecked: Why the gate fails as a whole: what it was asked to check was compared with nothing. Empty if it was.
        limit: The largest ε allowed, or None if only claims are tested.
        false_alarm_rate: How often a gate like this stops a mechanism that keeps within limit and claims, at most.
        requested_rate: The false-alarm rate that was asked for.
        strict: Whether ``suspicious`` and ``too weak`` stop the gate too, and a gate that checked nothing.
    """

    judgments: Sequence[Judgment]
    failures: Sequence[Judgment]
    doubtful: Sequence[Judgment]
    unchecked: str
    limit: float | None
    false_alarm_rate: float
    requested_rate: float
    strict: bool = False

    @property
    def failed(self) -> bool:
        """Whether a result stops the gate, or nothing was compared with what it was asked to check."""
        return bool(self.failures or self.unchecked)

    def reason(self, judgment: Judgment) -> str:
        """Say in one sentence why a result stops the gate."""
        proven = f"ε ≥ {_short(judgment.bound)} at δ = {judgment.delta:g}"
        if judgment.over_limit:
            return f"{proven}, above the limit of {_short(self.limit)}"
        if judgment.verdict is not Verdict.REFUTED:
            return f"{judgment.verdict.value}, and the gate is strict"
        if judgment.result.bugs:
            return " ".join(map(str, judgment.result.bugs)).rstrip(".")
        test = judgment.result.claim_test
        if judgment.p_value is None or test is None:
            return f"{proven} refutes the claim of {_short(judgment.claim)}"
        noise = summary.noise_sentence(test).strip().rstrip(".")
        refuted = f"the claim of ε = {_short(judgment.claim)} is refuted, {summary.p_value_text(judgment.p_value)}"
        return f"{refuted}. {noise}" if noise else refuted

    @property
    def sentence(self) -> str:
        """The outcome and the false-alarm rate."""
        parts = []
        if self.failures:
            # A bug says more than a p-value or a bound.
            first = next((failure for failure in self.failures if failure.result.bugs), self.failures[0])
            parts.append(f"{len(self.failures)} of {len(self.judgments)} results fail the gate.")
            parts.append(f"{first.result.name}: {self.reason(first)}.")
        if self.unchecked:
            parts.append(f"The gate fails: {self.unchecked}.")
        if not self.failed:
            parts += self._passed()
        rate = f"False-alarm rate: at most {100 * min(1.0, self.false_alarm_rate):.3g}% for all results together"
        if any(judgment.result.checks for judgment in self.judgments):
            rate += f", and {100 * CHECK_RATE:g}% for the checks of each result"
        parts.append(f"{rate}.")
        if self.false_alarm_rate > self.requested_rate * _ROUNDING:
            above = f"That is above the requested {100 * self.requested_rate:.3g}%"
            parts.append(f"{above}, because this run did not store bounds at a high enough confidence.")
        return " ".join(parts)

    def _passed(self) -> list[str]:
        """Say what a gate that nothing stops has tested, and what speaks against relying on it."""
        parts, results = [], len(self.judgments)
        if any(judgment.bound is not None and judgment.claim is not None for judgment in self.judgments):
            parts.append("No claim is refuted.")
        if self.limit is not None:
            parts.append(f"No lower bound exceeds the limit of {_short(self.limit)}.")
        if not parts:
            parts.append("Nothing was tested: no claim was stated and no limit given.")
        if self.doubtful:
            verdicts = " or ".join(dict.fromkeys(judgment.verdict.value for judgment in self.doubtful))
            parts.append(
                f"{verdicts.capitalize()}: {len(self.doubtful)} of {results} results (--strict fails on that)."
            )
        parts.append("This is not a proof of privacy.")
        unchecked = sum(not judgment.checked for judgment in self.judgments)
        if unchecked:
            parts.append(f"Not checked: {unchecked} of {results} results.")
        return parts

    def folded(self) -> list[Judgment]:
        """Return the judgments to list: all that stop the gate, and of other variants the most telling of each view."""
        passing = [judgment.result for judgment in self.judgments if judgment not in self.failures]
        shown = {id(result) for result in shown_results(passing)}
        return [judgment for judgment in self.judgments if judgment in self.failures or id(judgment.result) in shown]

    def rows(self, judgments: Sequence[Judgment] | None = None) -> list[list[str]]:
        """Return the rows of the table that the terminal shows, under `COLUMNS`.

        Args:
            judgments: The judgments to list, by default all.
        """
        rows = []
        for judgment in self.judgments if judgments is None else judgments:
            remark = ""
            if self.limit is not None and not judgment.limit_applies:
                remark = "limit does not apply to this unit"
                if not judgment.result.about_claim:
                    remark = f"limit does not apply: the bound is about canaries {judgment.result.participation}"
            if not judgment.checked:
                reason = "no lower bound" if judgment.bound is None else remark
                remark = f"not checked: {reason}" if reason else "not checked"
            if judgment.result.bugs:
                remark = "a check found a bug"
            if judgment.over_limit:
                remark = "ABOVE THE LIMIT"
            result, confidence, p_value = judgment.result, judgment.confidence, judgment.p_value
            rows.append(
                [
                    result.method,
                    result.label,
                    result.unit.name,
                    _short(judgment.bound),
                    "-" if confidence is None else f"{100 * confidence:.6g}%",
                    _short(judgment.claim),
                    _short(p_value, ".2g"),
                    judgment.verdict.value,
                    remark,
                ]
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the gate, ready for JSON."""
        judgments = []
        for judgment in self.judgments:
            result, verdict = judgment.result, judgment.verdict.value
            about = {"method": result.method, "view": result.label, "unit": result.unit.name}
            numbers = {"bound": in_json(judgment.bound), "claim": in_json(judgment.claim), "p_value": judgment.p_value}
            tested = {"confidence": judgment.confidence, "over_limit": judgment.over_limit, "checked": judgment.checked}
            judgments.append({**about, **numbers, "verdict": verdict, **tested})
        return {
            "failed": self.failed,
            "max_epsilon": in_json(self.limit),
            "strict": self.strict,
            "false_alarm_rate": min(1.0, self.false_alarm_rate),
            "judgments": judgments,
            "summary": self.sentence,
        }


def judge(
    results: Sequence[Result],
    *,
    max_epsilon: float | None = None,
    methods: Sequence[str] = (),
    views: Sequence[str] = (),
    confidence: float = 0.95,
    strict: bool = False,
) -> Gate:
    """Judge results together, against their claims and a limit.

    Args:
        results: The results of a run, an audit or a score file.
        max_epsilon: Largest ε allowed. It applies to units that are about one person or example and a whole release;
            a single round or a phrase shared by several users is compared only if named by ``methods`` or ``views``.
            A bound that is not about the claimed ε is never compared. A limit that applies to no lower bound fails the
            gate.
        methods: Only these methods.
        views: Only these views.
        confidence: One minus the false-alarm rate of all judgments together.
        strict: Whether ``suspicious`` and ``too weak`` stop the gate too, and a gate that checked nothing.

    Raises:
        InputError: If a method or view is unknown, or the limit or confidence is out of range.
    """
    if max_epsilon is not None and not check_number("max-epsilon", max_epsilon) >= 0:
        raise InputError(f"max-epsilon must be 0 or more, got {max_epsilon}")
    requested = 1 - check_confidence(confidence)
    chosen = list(results)
    for kind, names in (("method", methods), ("view", views)):
        available = list(dict.fromkeys(str(getattr(result, kind)) for result in results))
        for name in names:
            if name not in available:
                raise InputError(f"unknown {kind} {name!r}. This run has {', '.join(available)}.")
        if names:
            chosen = [result for result in chosen if getattr(result, kind) in names]
    if not chosen:
        raise InputError(f"no result of {', '.join(methods)} has the view {', '.join(views)}")
    limited = []
    for result in chosen:
        named = result.method in methods or result.view in views
        limited.append(result.about_claim and (named or result.unit.limited))
    judgments, rate = judged_together(chosen, rate=requested, limit=max_epsilon, limited=limited)
    failures = [judgment for judgment in judgments if _stops(judgment, judgments, strict)]
    doubtful = []
    for judgment in judgments:
        if judgment.checked and judgment not in failures and _stops(judgment, judgments, strict=True):
            doubtful.append(judgment)
    unchecked = ""
    bounded = [judgment for judgment in judgments if judgment.bound is not None]
    if max_epsilon is not None and not any(judgment.limit_applies for judgment in bounded):
        reason = "no result has a lower bound"
        if bounded:
            reason = "it applies to none of these units. Name one with --method or --view to compare it"
        unchecked = f"the limit of {_short(max_epsilon)} was compared with nothing: {reason}"
    elif strict and not any(judgment.checked for judgment in judgments):
        unchecked = "nothing was checked, and the gate is strict: state a claim, or a limit that applies"
    return Gate(
        judgments=judgments,
        failures=failures,
        doubtful=doubtful,
        unchecked=unchecked,
        limit=max_epsilon,
        false_alarm_rate=rate,
        requested_rate=requested,
        strict=strict,
    )


def _stops(judgment: Judgment, judgments: Sequence[Judgment], strict: bool) -> bool:
    """Whether a result stops the gate.

    A strict gate does not stop at a result that was too weak, or is only an estimate, if another one tested the same
    claim with enough power.
    """
    if judgment.over_limit or judgment.verdict is Verdict.REFUTED:
        return True
    if not strict or judgment.verdict not in (Verdict.SUSPICIOUS, Verdict.TOO_WEAK):
        return False
    about = (judgment.result.unit, judgment.result.training, judgment.result.claimed)
    same_claim = []
    for other in judgments:
        if (other.result.unit, other.result.training, other.result.claimed) == about:
            same_claim.append(other)
    if judgment.verdict is Verdict.TOO_WEAK:
        return all(other.verdict is not Verdict.NOT_REFUTED for other in same_claim)
    return judgment.bound is not None or all(other.bound is None for other in same_claim)


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
    shares: dict[int, float] = {}
    p_values: dict[int, float] = {}
    for i, result in enumerate(results):
        if result.bound is None:
            continue
        shares[i] = rate / (len(sizes) * sizes[result.method])
        if result.claim_test is not None and result.claim_test.p_value is not None:
            p_values[i] = result.claim_test.p_value
            # A bound that is compared with a limit beside a claim that has a test of its own: both get half the share.
            if limit is not None and limited[i]:
                shares[i] /= 2
    rejected = holm(p_values, {i: shares[i] for i in p_values})
    judgments, total = [], 0.0
    for i, result in enumerate(results):
        bound, claimed, p_value = result.bound, result.numbers["claimed_epsilon"], p_values.get(i)
        refuted, compared = i in rejected, False
        lower, delta, confidence = None, 0.0, None
        if bound is not None:
            # The bound at the significance that its share leaves, or else the strictest one that was stored.
            levels = [(1 - (bound.confidence or 0.0), bound.epsilon)]
            levels += [(1 - level, stricter) for level, stricter in bound.stricter]
            fitting = [level for level in levels if level[0] <= shares[i] * _ROUNDING]
            significance, lower = max(fitting, default=min(levels))
            delta, confidence = bound.delta, 1 - significance
            compared = limited[i] and limit is not None
            if p_value is not None:
                total += shares[i]
            else:
                refuted = exceeds(replace(bound, epsilon=lower, lower=lower), result.tested)
            if p_value is None or compared:
                total += significance
        verdict = verdict_on(
            result.claim,
            rejected=refuted,
            # What is refuted by itself, but not among all the others, is suspicious.
            exceeded=result.verdict in (Verdict.SUSPICIOUS, Verdict.REFUTED),
            detects_half=result.verdict is Verdict.NOT_REFUTED,
            bugs=result.bugs,
        )
        tested = lower is not None and claimed is not None and claimed < math.inf
        judgments.append(
            Judgment(
                result=result,
                bound=lower,
                delta=delta,
                confidence=confidence,
                claim=claimed,
                p_value=p_value,
                verdict=verdict,
                over_limit=compared and lower is not None and limit is not None and lower > limit,
                limit_applies=limited[i],
                checked=tested or compared or verdict is Verdict.REFUTED,
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


def _short(value: float | None, digits: str = ".4g") -> str:
    """Format a number for the table: a dash for none."""
    if value is None:
        return "-"
    return "∞" if value == math.inf else f"{value:{digits}}"
