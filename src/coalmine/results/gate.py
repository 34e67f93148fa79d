"""A gate for releases: are a run's valid bounds below what is allowed, and below what was promised?

Many bounds exceed the truth by chance now and then, so they are judged together: each audit has an equal share of the
gate's false-alarm rate, the results of an audit share its share, and each bound is taken at the confidence that this
leaves it. Then a mechanism that keeps within the limit and its promises is stopped no more often than that rate,
whatever the bounds have to do with each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coalmine.errors import InputError, check_confidence, check_number
from coalmine.results.saved import SavedRun
from coalmine.results.summary import label, line, number, shown

VERDICTS = {
    "too-large": "EXCEEDS THE LIMIT",
    "refuted": "PROMISE REFUTED",
    "alone": "ok; beyond its promise by itself, not among so many",
    "passed": "ok",
    "not-compared": "ok; the limit does not apply",
    "no-bound": "not judged: there is no valid bound",
}
FAILED = ("too-large", "refuted")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One result: its ``bound`` at the ``confidence`` that it is judged at, beside its promise. ``unit`` is whose ε."""

    audit: str
    view: str
    bound: float | None
    confidence: float | None
    delta: float | None
    promise: float | None
    unit: str
    verdict: str

    @property
    def failed(self) -> bool:
        """Whether it stops the gate."""
        return self.verdict in FAILED


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All results of a run, judged. ``false_alarms`` is how often a gate like this stops a mechanism without fault."""

    results: list[Judged]
    limit: float | None
    false_alarms: float
    wanted: float

    @property
    def failed(self) -> bool:
        """Whether any result stops the gate."""
        return any(result.failed for result in self.results)

    @property
    def sentence(self) -> str:
        """What it comes to, in words."""
        judged = [result for result in self.results if result.bound is not None]
        failed = [result for result in judged if result.failed]
        if failed:
            worst = max(failed, key=lambda result: result.bound or 0.0)
            over = [f"the limit of {self.limit:g}"] if worst.verdict == "too-large" else []
            over += [f"its promise of ε = {shown(worst.promise)}"] if _beyond(worst.bound, worst.promise) else []
            text = (
                f"{len(failed)} of {len(judged)} results {'stops' if len(failed) == 1 else 'stop'} the gate: "
                f"{worst.audit}, {worst.view} shows an ε of at least {shown(worst.bound)} at δ = {worst.delta:g}, "
                "more than "
                f"{' and '.join(over)}."
            )
        else:
            against = "its promise" if self.limit is None else f"the limit of {self.limit:g} or its promise"
            text = f"No bound of {len(judged)} exceeds {against}; what no bound shows may still be there."
        rate = f"{100 * min(1.0, self.false_alarms):.3g}%"
        text += f" A mechanism without fault is stopped in at most {rate} of runs, all results judged together"
        if len(judged) > 1:
            text += ": audits share that rate equally, and an audit's results its share, so that each is judged at a "
            text += "higher confidence of its own"
        text += "."
        if self.false_alarms > self.wanted * (1 + 1e-9):
            text += (
                f" That is more than the {100 * self.wanted:.3g}% asked for: this run's bounds are not known at the "
                "higher confidence that this takes."
            )
        return text

    def rows(self) -> list[list[str]]:
        """Of the table that people see."""
        return [
            [
                result.audit,
                result.view,
                shown(result.bound),
                "-" if result.confidence is None else f"{100 * result.confidence:.6g}%",
                shown(result.promise),
                VERDICTS[result.verdict],
            ]
            for result in self.results
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "failed": self.failed,
            "max_epsilon": _json(self.limit),
            "false_alarms": min(1.0, self.false_alarms),
            "results": [
                {**vars(result), "bound": _json(result.bound), "promise": _json(result.promise)}
                for result in self.results
            ],
            "meaning": self.sentence,
        }


COLUMNS = ["audit", "view", "bound", "judged at", "promise", "verdict"]


def judge(
    run: SavedRun,
    *,
    max_epsilon: float | None = None,
    audits: Sequence[str] = (),
    views: Sequence[str] = (),
    confidence: float = 0.95,
) -> Verdict:
    """Judge the results of a run, or those of the ``audits`` and ``views`` named.

    ``max_epsilon`` is a limit on the ε of one user, of one example where that is what is protected, or of one report
    that a user randomizes: figures of single rounds and of all users who share a phrase are compared with it only
    where they are asked for by name.
    """
    if max_epsilon is not None and not check_number("max-epsilon", max_epsilon) >= 0:
        raise InputError(f"max-epsilon must be 0 or more, got {max_epsilon}")
    wanted = 1 - check_confidence(confidence)
    chosen = _chosen(run, audits, views)
    bounds = [next((e for e in result["estimates"] if e["valid"]), None) for result in chosen]
    if not any(bounds):
        raise InputError(f"{run.path} has no valid bound to judge: its figures are estimates")
    sizes = Counter(result["audit"] for result, bound in zip(chosen, bounds, strict=True) if bound)
    judged, rate = [], 0.0
    for result, bound in zip(chosen, bounds, strict=True):
        share = wanted / (len(sizes) * sizes[result["audit"]]) if bound else 0.0
        lower, significance = _at(bound, share) if bound else (None, None)
        rate += significance or 0.0
        named = result["audit"] in audits or result["view"] in views
        judged.append(_judged(result, bound, lower, significance, max_epsilon, named))
    return Verdict(results=judged, limit=max_epsilon, false_alarms=rate, wanted=wanted)


def _chosen(run: SavedRun, audits: Sequence[str], views: Sequence[str]) -> list[dict[str, Any]]:
    for kind, names in (("audit", audits), ("view", views)):
        there = list(dict.fromkeys(str(result[kind]) for result in run.results))
        for name in names:
            if name not in there:
                raise InputError(f"{run.path} has no {kind} {name!r}; it has {', '.join(there)}")
    found = [
        result
        for result in run.results
        if (not audits or result["audit"] in audits) and (not views or result["view"] in views)
    ]
    if not found:
        raise InputError(f"{run.path} has no result of {', '.join(audits)} with the view {', '.join(views)}")
    return found


def _at(bound: Mapping[str, Any], share: float) -> tuple[float, float]:
    """The bound at a significance of at most ``share``, and that significance; as strict as there is if none is."""
    own = (1 - float(bound["confidence"]), number(bound["epsilon"]))
    levels = [own, *((1 - float(level), number(lower)) for level, lower in bound.get("stricter") or [])]
    fitting = [level for level in levels if level[0] <= share * (1 + 1e-9)]
    significance, lower = max(fitting) if fitting else min(levels)
    return lower, significance


def _judged(
    result: Mapping[str, Any],
    bound: Mapping[str, Any] | None,
    lower: float | None,
    significance: float | None,
    limit: float | None,
    named: bool,
) -> Judged:
    promise, unit = line(result).theory, _unit(result)
    compared = named or unit not in _OTHER_UNITS.values()
    if lower is None:
        verdict = "no-bound"
    elif compared and _beyond(lower, limit):
        verdict = "too-large"
    elif _beyond(lower, promise):
        verdict = "refuted"
    elif bound is not None and result["audit"] != "ldp" and _beyond(number(bound["epsilon"]), promise):
        verdict = "alone"
    else:
        verdict = "passed" if compared or limit is None else "not-compared"
    return Judged(
        audit=result["audit"],
        view=label(result),
        bound=lower,
        confidence=None if significance is None else 1 - significance,
        delta=None if bound is None else bound.get("delta"),
        promise=promise,
        unit=unit,
        verdict=verdict,
    )


_OTHER_UNITS = {"canife": "one round, for a client known to take part", ":phrase": "all users of a phrase together"}


def _unit(result: Mapping[str, Any]) -> str:
    """Whose ε it is."""
    for mark, unit in _OTHER_UNITS.items():
        if result["audit"] == mark or str(result["view"]).endswith(mark):
            return unit
    if result["config"].get("unit") == "example":
        return "one example"
    return "one report" if result["audit"] == "ldp" else "one user"


def _beyond(bound: float | None, limit: float | None) -> bool:
    return bound is not None and limit is not None and bound > limit


def _json(value: float | None) -> float | str | None:
    return "inf" if value == float("inf") else value
