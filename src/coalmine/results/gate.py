"""The gate: are the claims refuted, or do claims or lower bounds exceed a limit? Shared by ``estimate``, ``audit`` and
``check``.

All results are judged together, at one false-alarm rate. Each method has an equal share of the rate, and each of its
results an equal share of that. Claims with a p-value are tested by Holm's procedure with these weights; all other
bounds are taken at the confidence that their share leaves. A mechanism within the limit and its claims is then stopped
no more often than the false-alarm rate, however the results depend on each other. Findings of checks count too; they
are made at a far lower false-alarm rate of their own.

``check`` hands the gate results that were computed again from their scores, and what no ε shows, such as a training
without noise (`coalmine.runs.recompute`). These objections need no statistics, and stop it unless allowed by name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coalmine.errors import InputError, check_confidence, check_nonnegative, did_you_mean
from coalmine.results import summary
from coalmine.results.result import Result, in_json
from coalmine.results.tables import shown_results
from coalmine.results.verdict import CHECK_RATE, Finding, Verdict, exceeds, verdict_on

COLUMNS = ["method", "view", "unit", "lower bound", "judged at", "claim", "p-value", "verdict", ""]

NO_MECHANISM, EXTRACTED, FINDINGS = ALLOWABLE = ("no-mechanism", "extracted-phrases", "findings")
"""What stops the gate whatever ε is, unless it is allowed by name."""

PASSED, FAILED, NOT_CHECKED = "PASSED", "FAILED", "NOT CHECKED"
"""Outcomes, with which decisions begin."""

_ROUNDING = 1 + 1e-9  # a share of 0.05 / 2 is not exactly 1 - 0.975


@dataclass(frozen=True)
class Objection:
    """Something that stops the gate although no test shows it.

    Args:
        name: What it is about; one of `ALLOWABLE` can be allowed by this name.
        sentence: What is wrong, without a full stop.
        methods: The methods that it is about; none if it is about the whole run.
    """

    name: str
    sentence: str
    methods: Sequence[str] = ()


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
        bugs: The findings that stop the gate.
        over_limit: What exceeds its limit, ``"claimed"`` or ``"proven"`` or both, in words.
        limit_applies: Whether limits are about this result's unit.
        checked: Whether anything was tested: a claim, or a limit that applies to a lower bound.
    """

    result: Result
    bound: float | None
    delta: float
    confidence: float | None
    claim: float | None
    p_value: float | None
    verdict: Verdict
    bugs: Sequence[Finding]
    over_limit: Mapping[str, str]
    limit_applies: bool
    checked: bool

    @property
    def reason(self) -> str:
        """Why it stops the gate, without a full stop: a bug says more than a p-value or a bound."""
        bugs = [f"{cause.finding.label}: {cause.sentence.rstrip('.')}" for cause in summary.causes(self.bugs)]
        reasons = [*bugs, *self.over_limit.values()]
        if reasons:
            return "; ".join(reasons)
        if self.verdict is not Verdict.REFUTED:
            return f"{self.verdict.value}, and the gate is strict"
        test = self.result.claim_test
        if self.p_value is None or test is None:
            return f"{_proven(self.bound, self.delta)} refutes the claim of {_short(self.claim)}"
        refuted = f"the claim of ε = {_short(self.claim)} is refuted, {summary.p_value_text(self.p_value)}"
        return f"{refuted}.{summary.fault(self.result, test)}".rstrip(".")


@dataclass(frozen=True, kw_only=True)
class Gate:
    """All results, judged together.

    Args:
        judgments: One for each result.
        failures: Those that stop the gate, bugs first.
        doubtful: Those that would stop it only if it were strict.
        max_claimed: The largest claimed ε allowed, or None.
        max_proven: The largest lower bound allowed, or None.
        false_alarm_rate: How often a gate like this stops a mechanism that keeps within limits and claims, at most.
        objections: What stops the gate besides results.
        strict: Whether ``suspicious`` and ``too weak`` stop the gate too, and a gate that checked nothing.

    Attributes:
        policy: The limits, in words.
        unchecked: Number of results that nothing was compared with.
        reasons: Why it fails: what each reason is about, and a sentence without a full stop.
        outcome: `PASSED`, `FAILED` or `NOT_CHECKED`.
    """

    judgments: Sequence[Judgment]
    failures: Sequence[Judgment]
    doubtful: Sequence[Judgment]
    max_claimed: float | None
    max_proven: float | None
    false_alarm_rate: float
    objections: Sequence[Objection]
    strict: bool
    policy: Sequence[str] = field(init=False)
    unchecked: int = field(init=False)
    reasons: Sequence[tuple[str, str]] = field(init=False)
    outcome: str = field(init=False)

    def __post_init__(self) -> None:
        reasons = []
        for objection in self.objections:
            allow = f" (--allow {objection.name})" if objection.name in ALLOWABLE else ""
            reasons.append((objection.name.replace("-", " "), objection.sentence + allow))
        alike: dict[str, list[str]] = {}  # several views may show the same bug
        for failure in self.failures:
            alike.setdefault(failure.reason, []).append(failure.result.name)
        reasons += [("; ".join(names), reason) for reason, names in alike.items()]
        unchecked = sum(not judgment.checked for judgment in self.judgments)
        outcome = FAILED if reasons else PASSED if unchecked < len(self.judgments) else NOT_CHECKED
        limits = {"claimed": self.max_claimed, "proven": self.max_proven}
        policy = [f"{kind} ε at most {_short(limit)}" for kind, limit in limits.items() if limit is not None]
        derived = {"policy": policy, "unchecked": unchecked, "reasons": reasons, "outcome": outcome}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def failed(self) -> bool:
        """Whether a result or an objection stops the gate."""
        return self.outcome == FAILED

    @property
    def decision(self) -> str:
        """The outcome and the first reason for it."""
        if self.failed:
            (about, reason), *others = self.reasons
            number = f" (Reason 1 of {len(others) + 1}.)" if others else ""
            return f"{FAILED}: {about}: {reason}.{number}"
        if self.outcome == NOT_CHECKED:
            return f"{NOT_CHECKED}: no claim was stated, and no limit applies."
        tested = [judgment for judgment in self.judgments if judgment.bound is not None and judgment.claim is not None]
        parts = ["no claim is refuted"] * bool(tested)
        parts += ["no result exceeds the policy"] * bool(self.policy)
        alone = [j.result.name for j in tested if j.result.refuted and j.verdict is not Verdict.REFUTED]
        if alone:  # as its own verdict in other tables says
            count = summary.plural(len(self.judgments), "result")
            parts.append(f"though {summary.first_few(alone)} would be by itself, without the {count} judged together")
        return f"{PASSED}: {', '.join(parts)}. This is not a proof of privacy."

    @property
    def terms(self) -> str:
        """The policy, what speaks against relying on a gate that passes, and the false-alarm rate."""
        parts, results = [], len(self.judgments)
        if self.policy:
            parts.append(f"Policy: {', '.join(self.policy)}.")
        if self.failures:
            parts.append(f"{len(self.failures)} of {results} results fail the gate.")
        if self.doubtful and not self.failed:
            verdicts = " or ".join(dict.fromkeys(judgment.verdict.value for judgment in self.doubtful))
            parts.append(
                f"{verdicts.capitalize()}: {len(self.doubtful)} of {results} results (--strict fails on that)."
            )
        if self.unchecked and not self.failed:
            parts.append(f"Not checked: {self.unchecked} of {results} results.")
        parts += filter(None, [summary.not_tested(judgment.result for judgment in self.judgments)])
        rate = f"False-alarm rate: at most {100 * min(1.0, self.false_alarm_rate):.3g}% for all results together"
        if any(judgment.result.checks for judgment in self.judgments):
            rate += f", and {100 * CHECK_RATE:g}% for the checks of each result"
        return " ".join([*parts, f"{rate}."])

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
            if self.policy and not judgment.limit_applies:
                remark = "limit does not apply to this unit"
            elif self.max_proven is not None and not judgment.result.about_claim:
                remark = f"proven about canaries {judgment.result.participation}: limit does not apply"
            if not judgment.checked:
                reason = "no lower bound" if judgment.bound is None else remark
                remark = f"not checked: {reason}" if reason else "not checked"
            if judgment.bugs:
                remark = "a check found a bug"
            if judgment.over_limit:
                remark = f"{' AND '.join(judgment.over_limit).upper()} ABOVE THE LIMIT"
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
            tested = {"confidence": judgment.confidence, "checked": judgment.checked}
            over = {"over_limit": list(judgment.over_limit)}
            judgments.append({**about, **numbers, "verdict": verdict, **tested, **over})
        return {
            "failed": self.failed,
            "max_claimed": in_json(self.max_claimed),
            "max_proven": in_json(self.max_proven),
            "strict": self.strict,
            "false_alarm_rate": min(1.0, self.false_alarm_rate),
            "objections": [{"name": objection.name, "sentence": objection.sentence} for objection in self.objections],
            "judgments": judgments,
            "summary": f"{self.decision} {self.terms}",
        }


def judge(
    results: Sequence[Result],
    *,
    max_epsilon: float | None = None,
    max_claimed: float | None = None,
    max_proven: float | None = None,
    methods: Sequence[str] = (),
    views: Sequence[str] = (),
    confidence: float | None = None,
    objections: Sequence[Objection] = (),
    allow: Sequence[str] = (),
    strict: bool = False,
) -> Gate:
    """Judge results together, against their claims and limits.

    Limits apply to units that are about one person or example and a whole release; a single round or a phrase shared by
    several users is compared only if named by ``methods`` or ``views``. A lower bound that is not about the claimed ε
    is compared with no limit. A limit that applies to nothing fails the gate.

    Args:
        results: The results of a run, an audit or a score file.
        max_epsilon: Largest ε allowed, claimed and proven, unless one of the next two says otherwise.
        max_claimed: Largest claimed ε allowed.
        max_proven: Largest lower bound allowed.
        methods: Only these methods.
        views: Only these views.
        confidence: One minus the false-alarm rate of all judgments together; by default the largest at which a lower
            bound was computed.
        objections: What stops the gate besides results.
        allow: Names in `ALLOWABLE`: what does not stop it.
        strict: Whether ``suspicious`` and ``too weak`` stop the gate too, and a gate that checked nothing.

    Raises:
        InputError: If a method, view or name is unknown, or a limit or the confidence is out of range.
    """
    for name in allow:
        if name not in ALLOWABLE:
            raise InputError(f"--allow: unknown name {name!r}. {did_you_mean(name, ALLOWABLE)}")
    max_claimed, max_proven = (max_epsilon if limit is None else limit for limit in (max_claimed, max_proven))
    for limit in (max_claimed, max_proven):
        if limit is not None:
            check_nonnegative("max-epsilon", limit)
    chosen = _chosen(results, methods, views)
    if confidence is None:
        confidence = max((result.bound.confidence or 0.0 for result in chosen if result.bound), default=0.95)
    requested = 1 - check_confidence(confidence)
    limited = [result.method in methods or result.view in views or result.unit.limited for result in chosen]
    sizes = Counter(result.method for result in chosen if result.bound is not None)
    shares: dict[int, float] = {}
    p_values: dict[int, float] = {}
    for i, result in enumerate(chosen):
        if result.bound is None:
            continue
        shares[i] = requested / (len(sizes) * sizes[result.method])
        if result.claim_test is not None and result.claim_test.p_value is not None:
            p_values[i] = result.claim_test.p_value
            # A bound that is compared with a limit beside a claim that has a test of its own: both get half the share.
            if max_proven is not None and limited[i] and result.about_claim:
                shares[i] /= 2
    rejected = holm(p_values, {i: shares[i] for i in p_values})
    judgments, total = [], 0.0
    for i, result in enumerate(chosen):
        judgment, rate = _judged(
            result,
            share=shares.get(i, 0.0),
            p_value=p_values.get(i),
            rejected=i in rejected,
            bugs=[] if FINDINGS in allow else result.bugs,
            limit_applies=limited[i],
            max_claimed=max_claimed,
            max_proven=max_proven,
        )
        judgments.append(judgment)
        total += rate
    # What is named decides which objections count; those about the whole run always do.
    about = {result.method for result in chosen}
    stopping = [o for o in objections if o.name not in allow and (not o.methods or about & {*o.methods} or not about)]
    stopping += _compared_with_nothing(judgments, max_claimed, max_proven, strict)
    failures = [judgment for judgment in judgments if _stops(judgment, judgments, strict)]
    return Gate(
        judgments=judgments,
        failures=sorted(failures, key=lambda failure: not failure.bugs),
        doubtful=[j for j in judgments if j.checked and j not in failures and _stops(j, judgments, strict=True)],
        max_claimed=max_claimed,
        max_proven=max_proven,
        false_alarm_rate=total,
        objections=stopping,
        strict=strict,
    )


def _judged(
    result: Result,
    *,
    share: float,
    p_value: float | None,
    rejected: bool,
    bugs: Sequence[Finding],
    limit_applies: bool,
    max_claimed: float | None,
    max_proven: float | None,
) -> tuple[Judgment, float]:
    """Return the judgment on a result with this share of the false-alarm rate, and how much of the rate it uses."""
    bound, claimed = result.bound, result.numbers["claimed_epsilon"]
    lower, delta, level, rate, compared = None, 0.0, None, 0.0, False
    over_limit: dict[str, str] = {}
    if limit_applies and claimed is not None and max_claimed is not None and claimed > max_claimed:
        over_limit["claimed"] = f"claimed ε = {_short(claimed)}, above the limit of {_short(max_claimed)}"
    if bound is not None:
        # The bound at the significance that its share leaves, or else the strictest one that was stored.
        levels = [(1 - (bound.confidence or 0.0), bound.epsilon)]
        levels += [(1 - stricter, epsilon) for stricter, epsilon in bound.stricter]
        fitting = [level for level in levels if level[0] <= share * _ROUNDING]
        significance, lower = max(fitting, default=min(levels))
        delta, level = bound.delta, 1 - significance
        if limit_applies and result.about_claim and max_proven is not None:
            compared = True
            if lower > max_proven:
                over_limit["proven"] = f"proven {_proven(lower, delta)}, above the limit of {_short(max_proven)}"
        if p_value is None:
            rejected = exceeds(replace(bound, epsilon=lower, lower=lower), result.tested)
        rate = (0.0 if p_value is None else share) + (significance if p_value is None or compared else 0.0)
    verdict = verdict_on(
        result.claim,
        rejected=rejected,
        # What is refuted by itself, but not among all the others, is suspicious.
        exceeded=result.verdict in (Verdict.SUSPICIOUS, Verdict.REFUTED),
        detects_half=result.verdict is Verdict.NOT_REFUTED,
        bugs=bugs,
    )
    tested = lower is not None and claimed is not None and claimed < math.inf
    judgment = Judgment(
        result=result,
        bound=lower,
        delta=delta,
        confidence=level,
        claim=claimed,
        p_value=p_value,
        verdict=verdict,
        bugs=bugs,
        over_limit=over_limit,
        limit_applies=limit_applies,
        checked=tested or compared or verdict is Verdict.REFUTED,
    )
    return judgment, rate


def _chosen(results: Sequence[Result], methods: Sequence[str], views: Sequence[str]) -> list[Result]:
    """Return the results of these methods and views; all if none are named."""
    chosen = list(results)
    for kind, names in (("method", methods), ("view", views)):
        available = list(dict.fromkeys(str(getattr(result, kind)) for result in results))
        for name in names:
            if name not in available:
                raise InputError(f"unknown {kind} {name!r}. This run has {', '.join(available)}.")
        if names:
            chosen = [result for result in chosen if getattr(result, kind) in names]
    if not chosen and (methods or views):
        raise InputError(f"no result of {', '.join(methods)} has the view {', '.join(views)}")
    return chosen


def _compared_with_nothing(
    judgments: Sequence[Judgment], max_claimed: float | None, max_proven: float | None, strict: bool
) -> Iterator[Objection]:
    """Yield the limit that applies to nothing, or that nothing was checked. A missing claim objects by itself."""
    claims = [judgment for judgment in judgments if judgment.claim is not None]
    bounds = [judgment for judgment in judgments if judgment.bound is not None]
    if max_claimed is None:  # otherwise the claimed ε is compared, and what tests it need not be
        bounds = [judgment for judgment in bounds if judgment.result.about_claim]
    for limit, compared in ((max_proven, bounds), (max_claimed, claims or bounds)):
        if limit is not None and not any(judgment.limit_applies for judgment in compared):
            reason = "no result has a lower bound on the claimed ε"
            if compared:
                reason = "it applies to none of these units. Name one with --method or --view to compare it"
            yield Objection("policy", f"the limit of {_short(limit)} was compared with nothing: {reason}")
            return
    if strict and not any(judgment.checked for judgment in judgments):
        yield Objection("policy", "nothing was checked, and the gate is strict: state a claim, or a limit that applies")


def _stops(judgment: Judgment, judgments: Sequence[Judgment], strict: bool) -> bool:
    """Whether a result stops the gate.

    A strict gate does not stop at a result that was too weak, or is only an estimate, if another one tested the same
    claim with enough power.
    """
    if judgment.over_limit or judgment.bugs or judgment.verdict is Verdict.REFUTED:
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


def _proven(bound: float | None, delta: float) -> str:
    """Say what a lower bound shows."""
    return f"ε ≥ {_short(bound)} at δ = {delta:g}"


def _short(value: float | None, digits: str = ".4g") -> str:
    """Format a number for the table: a dash for none."""
    if value is None:
        return "-"
    return "∞" if value == math.inf else f"{value:{digits}}"
