"""What a run says in one table: a row for each audit and view, theory beside bound beside estimate, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

VERDICTS = {"refuted": "PROMISE REFUTED", "consistent": "consistent", "none": "no promise"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One result in short. ``bound`` holds with its confidence, ``estimate`` may be off either way."""

    audit: str
    view: str
    theory: float | None
    bound: float | None
    confidence: float | None
    estimate: float | None
    estimate_method: str | None
    delta: float | None
    verdict: str


def lines(results: Sequence[Mapping[str, Any]]) -> list[Line]:
    """A line for each result; of the LDP audit's many, those of its largest bound for each view."""
    return [line(result) for result in _shown(results)]


def line(result: Mapping[str, Any]) -> Line:
    """One result in short."""
    estimates = result["estimates"]
    bound = next((e for e in estimates if e["valid"]), None)
    estimate = next((e for e in estimates if e["method"] in _ESTIMATES and not e.get("doubtful")), None)
    measured = result["metrics"].get("empirical")
    theory = result.get("theory")
    promised = None if theory is None else number(theory["epsilon"])
    # Of many bounds some exceed a promise by chance: the LDP audit's are judged together.
    joint = result["metrics"].get("bound_of_all")
    lower = number(joint) if joint is not None else None if bound is None else number(bound["epsilon"])
    verdict = "none" if promised is None else "refuted" if result.get("refuted") else "consistent"
    return Line(
        audit=result["audit"],
        view=label(result),
        theory=promised,
        bound=lower,
        confidence=None if bound is None else bound.get("confidence"),
        estimate=number(measured)
        if measured is not None
        else None
        if estimate is None
        else number(estimate["epsilon"]),
        estimate_method="ε_empirical" if measured is not None else None if estimate is None else estimate["method"],
        delta=None if bound is None else bound.get("delta"),
        verdict=verdict,
    )


def label(result: Mapping[str, Any]) -> str:
    """The view, with what else tells results of one audit apart."""
    if result["audit"] == "ldp":
        return f"{result['config'].get('crafter')}, {result['view']}, ε = {result['config'].get('epsilon')}"
    return str(result["view"]) + (", one round" if result["audit"] == "canife" else "")


def columns() -> list[str]:
    """Of the table that people see."""
    return ["audit", "view", "theory ε", "valid bound", "estimate", "", "verdict"]


def rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Of the table that people see."""
    return [
        [
            found.audit,
            found.view,
            shown(found.theory),
            shown(found.bound),
            shown(found.estimate),
            found.estimate_method or "",
            VERDICTS[found.verdict],
        ]
        for found in lines(results)
    ]


def number(value: object) -> float:
    """A number of a result file, in which infinity is a word."""
    return inf if value == "inf" else float(value)  # type: ignore[arg-type]


def shown(value: float | None) -> str:
    """Three digits after the point; a dash for None, ∞ for infinity."""
    return "-" if value is None else "∞" if value == inf else f"{value:.3f}"


_ESTIMATES = ("gaussian-shift", "gaussian-fit", "best-threshold", "median-exposure")


def _shown(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = [result for result in results if result["audit"] != "ldp"]
    local = [result for result in results if result["audit"] == "ldp"]
    for view in dict.fromkeys(result["view"] for result in local):
        found.append(max((result for result in local if result["view"] == view), key=_share))
    return found


def _share(result: Mapping[str, Any]) -> float:
    """How much of the promise the bound shows."""
    found = line(result)
    return (found.bound or 0.0) / found.theory if found.theory else 0.0
