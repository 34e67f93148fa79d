"""The gate: are the claims refuted, or do lower bounds exceed a limit? Shared by ``estimate``, ``audit`` and ``check``.

`coalmine.results.multiple_testing` judges all results together; this module decides which of them stop the gate, and
says why. ``check`` hands it results that were computed again from their scores (`coalmine.runs.recompute`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from coalmine.errors import InputError, check_confidence, check_number
from coalmine.results import summary
from coalmine.results.finding import CHECK_RATE
from coalmine.results.multiple_testing import Judgment, judged_together
from coalmine.results.result import Result, in_json
from coalmine.results.tables import shown_results
from coalmine.results.verdict import Verdict

COLUMNS = ["method", "view", "unit", "lower bound", "judged at", "claim", "p-value", "verdict", ""]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """All results, judged together.

    Args:
        judgments: One for each result.
        limit: The largest ε allowed, or None if only claims are tested.
        false_alarm_rate: How often a gate like this stops a mechanism that keeps within limit and claims, at most.
        requested_rate: The false-alarm rate that was asked for.
        strict: Whether ``suspicious`` and ``too weak`` stop the gate too, and a gate that checked nothing.
    """

    judgments: Sequence[Judgment]
    limit: float | None
    false_alarm_rate: float
    requested_rate: float
    strict: bool = False

    @property
    def failures(self) -> list[Judgment]:
        """The judgments that stop the gate."""
        return [judgment for judgment in self.judgments if self.stops(judgment)]

    @property
    def checked(self) -> bool:
        """Whether anything was tested."""
        return any(judgment.checked for judgment in self.judgments)

    @property
    def unchecked(self) -> str:
        """Why the gate fails as a whole: what it was asked to check was compared with nothing. Empty if it was."""
        bounded = [judgment for judgment in self.judgments if judgment.bound is not None]
        if self.limit is not None and not any(judgment.limit_applies for judgment in bounded):
            reason = "no result has a lower bound"
            if bounded:
                reason = "it applies to none of these units. Name one with --method or --view to compare it"
            return f"the limit of {_short(self.limit)} was compared with nothing: {reason}"
        if self.strict and not self.checked:
            return "nothing was checked, and the gate is strict: state a claim, or a limit that applies"
        return ""

    @property
    def failed(self) -> bool:
        """Whether a result stops the gate, or nothing was compared with what it was asked to check."""
        return bool(self.failures or self.unchecked)

    def stops(self, judgment: Judgment) -> bool:
        """Whether a result stops the gate.

        A strict gate does not stop at a result that was too weak, or is only an estimate, if another one tested the
        same claim with enough power.
        """
        if judgment.over_limit or judgment.verdict.fails:
            return True
        if not self.strict or not judgment.verdict.fails_strictly:
            return False
        same_claim = [other for other in self.judgments if _claim_of(other) == _claim_of(judgment)]
        if judgment.verdict is Verdict.TOO_WEAK:
            return all(other.verdict is not Verdict.NOT_REFUTED for other in same_claim)
        return judgment.bound is not None or all(other.bound is None for other in same_claim)

    def reason(self, judgment: Judgment) -> str:
        """Say in one sentence why a result stops the gate."""
        bound = judgment.result.bound
        proven = f"ε ≥ {_short(judgment.bound)} at δ = {'-' if bound is None else f'{bound.delta:g}'}"
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
        if self.failures:
            # The evidence that is least likely by chance comes first.
            first = min(self.failures, key=_least_likely)
            text = (
                f"{len(self.failures)} of {len(self.judgments)} results fail the gate. {first.result.method}, "
                f"{first.result.label}: {self.reason(first)}."
            )
            if self.unchecked:
                text += f" {_capitalized(self.unchecked)}."
        elif self.unchecked:
            text = f"The gate fails: {self.unchecked}."
        else:
            text = self._passed()
        return f"{text} {self._rates()}"

    def _passed(self) -> str:
        """Say what a gate that nothing stops has tested, and what speaks against relying on it."""
        judged = [judgment for judgment in self.judgments if judgment.bound is not None]
        claims = sum(judgment.claim is not None for judgment in judged)
        parts = []
        if claims:
            parts.append("the claim is not refuted" if claims == 1 else f"none of the {claims} claims is refuted")
        if self.limit is not None:
            parts.append(f"no lower bound exceeds the limit of {_short(self.limit)}")
        text = ", and ".join(parts) or "nothing was tested: no claim was stated and no limit given"
        doubtful, results = self.doubtful, len(self.judgments)
        if doubtful:
            which = f"{len(doubtful)} of {results} results {'is' if len(doubtful) == 1 else 'are'}"
            verdicts = " or ".join(dict.fromkeys(judgment.verdict.value for judgment in doubtful))
            text += f", but {'the result is' if results == 1 else which} {verdicts} (--strict fails on that)"
        text = f"{_capitalized(text)}. This is not a proof of privacy."
        unchecked = sum(not judgment.checked for judgment in self.judgments)
        if 0 < unchecked < results:
            text += f" {unchecked} of {results} results {'was' if unchecked == 1 else 'were'} not checked."
        return text

    def _rates(self) -> str:
        """Say how often a gate like this stops a correct mechanism."""
        text = f"False-alarm rate: at most {100 * min(1.0, self.false_alarm_rate):.3g}%"
        if sum(judgment.bound is not None for judgment in self.judgments) > 1:
            text += " for all results together"
        with_checks = sum(bool(judgment.result.checks) for judgment in self.judgments)
        if with_checks:
            each = "the result" if with_checks == 1 else "each result"
            text += f", and {100 * CHECK_RATE:g}% for the checks of {each}"
        if self.strict:
            text += ", not counting the verdicts suspicious and too weak, which also fail a strict gate"
        if self.false_alarm_rate > self.requested_rate * (1 + 1e-9):
            text += (
                f". That is above the requested {100 * self.requested_rate:.3g}%, because this run did not store "
                "bounds at a high enough confidence"
            )
        return f"{text}."

    @property
    def doubtful(self) -> list[Judgment]:
        """The judgments that stop the gate only if it is strict."""
        strict = replace(self, strict=True)
        return [judgment for judgment in strict.failures if judgment.checked and not self.stops(judgment)]

    def folded(self) -> list[Judgment]:
        """Return the judgments to list: all that stop the gate, and of other variants the most telling of each view."""
        passing = [judgment.result for judgment in self.judgments if not self.stops(judgment)]
        shown = {id(result) for result in shown_results(passing)}
        return [judgment for judgment in self.judgments if self.stops(judgment) or id(judgment.result) in shown]

    def rows(self, judgments: Sequence[Judgment] | None = None) -> list[list[str]]:
        """Return the rows of the table that the terminal shows, under `COLUMNS`.

        Args:
            judgments: The judgments to list, by default all.
        """
        rows = []
        for judgment in self.judgments if judgments is None else judgments:
            result, confidence, p_value = judgment.result, judgment.confidence, judgment.p_value
            rows.append(
                [
                    result.method,
                    result.label,
                    result.unit.name,
                    _short(judgment.bound),
                    "-" if confidence is None else f"{100 * confidence:.6g}%",
                    _short(judgment.claim),
                    "-" if p_value is None else f"{p_value:.2g}",
                    judgment.verdict.value,
                    self._remark(judgment),
                ]
            )
        return rows

    def _remark(self, judgment: Judgment) -> str:
        if judgment.over_limit:
            return "ABOVE THE LIMIT"
        if judgment.result.bugs:
            return "a check found a bug"
        exempt = "" if judgment.limit_applies or self.limit is None else "limit does not apply to this unit"
        if judgment.checked:
            return exempt
        reason = "no lower bound" if judgment.bound is None else exempt
        return f"not checked: {reason}" if reason else "not checked"

    def to_dict(self) -> dict[str, Any]:
        """Return the gate, ready for JSON."""
        return {
            "failed": self.failed,
            "max_epsilon": in_json(self.limit),
            "strict": self.strict,
            "false_alarm_rate": min(1.0, self.false_alarm_rate),
            "judgments": [judgment.to_dict() for judgment in self.judgments],
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
            A limit that applies to no lower bound fails the gate.
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
    for kind, names in (("method", methods), ("view", views)):
        available = list(dict.fromkeys(str(getattr(result, kind)) for result in results))
        for name in names:
            if name not in available:
                raise InputError(f"unknown {kind} {name!r}. This run has {', '.join(available)}.")
    chosen = [r for r in results if (not methods or r.method in methods) and (not views or r.view in views)]
    if not chosen:
        raise InputError(f"no result of {', '.join(methods)} has the view {', '.join(views)}")
    limited = [result.method in methods or result.view in views or result.unit.limited for result in chosen]
    judgments, rate = judged_together(chosen, rate=requested, limit=max_epsilon, limited=limited)
    return Gate(judgments=judgments, limit=max_epsilon, false_alarm_rate=rate, requested_rate=requested, strict=strict)


def _claim_of(judgment: Judgment) -> tuple[object, ...]:
    """Return what a result's claim says, and about whom: the unit, the training, ε and δ."""
    result = judgment.result
    claim = None if result.claim is None else (result.claim.epsilon, result.claim.delta)
    return result.unit, result.training, claim


def _least_likely(judgment: Judgment) -> tuple[float, float, float]:
    bug = min((finding.p_value for finding in judgment.result.bugs), default=1.0)
    return (bug, 1.0 if judgment.p_value is None else judgment.p_value, -(judgment.bound or 0.0))


def _capitalized(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _short(value: float | None) -> str:
    return "-" if value is None else "∞" if value == math.inf else f"{value:.4g}"
