"""Results in rows, grouped by what their ε is about: figures for different things stay apart.

The ε of a whole training, of one round, of one report and of a phrase that several users share are different
quantities. A row has what was promised, what was proved, and what was estimated, for one adversary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coalmine.report.caveats import adversary
from coalmine.results.saved import SavedRun
from coalmine.results.summary import line, number

Result = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One adversary: ``bound`` holds with its ``confidence``, ``estimate`` may be off either way."""

    audit: str
    view: str
    adversary: str
    promise: float | None
    delta: float | None
    bound: float | None = None
    confidence: float | None = None
    bound_method: str | None = None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    estimate_method: str | None = None
    refuted: bool = False
    sampling: str | None = None
    opacus: float | None = None
    """What Opacus says of an example that it draws at random, where the promise is of canaries that come otherwise."""

    @property
    def verdict(self) -> str:
        """In two or three words."""
        if self.refuted:
            return "promise refuted"
        if self.promise is None:
            return "no promise"
        found = "not contradicted" if self.bound is not None else "estimate only"
        return f"{found}; an estimate above the promise refutes nothing" if self.overshoots else found

    @property
    def overshoots(self) -> bool:
        """Whether the estimate exceeds the promise, as one that may be off either way can."""
        return self.estimate is not None and self.promise is not None and self.estimate > self.promise


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows whose ε is about the same thing. ``about`` continues "ε of"."""

    key: str
    title: str
    about: str
    rows: Sequence[Row]

    @property
    def bounds(self) -> list[Row]:
        """The rows with a bound that holds."""
        return [row for row in self.rows if row.bound is not None]

    @property
    def strongest(self) -> Row | None:
        """The row to tell: of those that refute a promise, else of all, that of the largest bound."""
        among = [row for row in self.bounds if row.refuted] or self.bounds
        return max(among, key=lambda row: (_share(row), row.bound or 0.0), default=None)

    @property
    def promise(self) -> float | None:
        """The promise to tell: what the strongest evidence is compared with, else the largest of the group."""
        best = self.strongest
        if best is not None and best.promise is not None:
            return best.promise
        return max((row.promise for row in self.rows if row.promise is not None), default=None)


_GROUPS = {
    "training": ("The whole training, one user", "the whole training, for one user"),
    "example": ("The whole training, one example", "the whole training, for one example"),
    "text-training": ("The language model's training, one user", "the language model's training, for one user"),
    "round": ("One round, a client known to take part", "one round, for a client known to take part in it"),
    "report": ("One report of one client (local privacy)", "one report of one client"),
    "phrase": ("One phrase, all who share it together", "one phrase, for all users who share it together"),
    "file": ("Canaries of a score file", "the canaries of a score file"),
}


def groups(results: Sequence[Result], *, apart: bool = False) -> list[Group]:
    """All results, by what their ε is about; of the LDP audit's many, those of the largest share for each view.

    ``apart``: the secret-sharer audit had a training of its own.
    """
    rows: dict[str, list[Row]] = {key: [] for key in _GROUPS}
    for result in [*(r for r in results if r["audit"] != "ldp"), *_strongest_by_view(results)]:
        about = _about(result)
        own = apart and about == "training" and result["audit"] == "secret-sharer"
        rows["text-training" if own else about].append(_row(result))
        if result["audit"] == "canife":
            rows["training"] += _composed(result)
    return [
        Group(key=key, title=title, about=about, rows=rows[key]) for key, (title, about) in _GROUPS.items() if rows[key]
    ]


def groups_of(run: SavedRun) -> list[Group]:
    """All results of a run."""
    return groups(run.results, apart="text-training" in run.content)


def in_order(found: Sequence[Group]) -> list[Group]:
    """The groups in the order in which they are told: what is refuted first, then as they are given."""
    return sorted(found, key=lambda group: not any(row.refuted for row in group.rows))


def crafter(result: Result) -> str:
    """The LDP audit's adversary and what it was promised, by which its results differ within a view."""
    config = result["config"]
    norm = config.get("gradient_norm")
    of_norm = "" if norm in (None, config.get("norm")) else f" of norm {norm:g}"
    return f"{config.get('crafter')}{of_norm}, ε = {config.get('epsilon'):g}"


def together(bounds: Sequence[Row]) -> float:
    """The confidence with which all these bounds hold at once, at least (a union bound)."""
    return max(0.0, 1 - sum(1 - (row.confidence or 0.0) for row in bounds))


def _about(result: Result) -> str:
    audit, view = result["audit"], str(result["view"])
    if audit == "canife":
        return "round"
    if audit == "ldp":
        return "report"
    if audit == "exposure":
        return "file" if result["config"].get("file") else "phrase"
    if result["config"].get("unit") == "example":
        return "example"
    return "phrase" if view.endswith(":phrase") else "training"


def _row(result: Result) -> Row:
    found = line(result)
    first = next((e for e in result["estimates"] if e["valid"]), None)
    shown = next((e for e in result["estimates"] if e["method"] == found.estimate_method), None)
    low, high = (None, None) if shown is None else (_optional(shown.get("lower")), _optional(shown.get("upper")))
    if shown is None and found.estimate is not None:
        spread = number(result["metrics"].get("empirical_std") or 0.0)
        low, high = max(0.0, found.estimate - spread), found.estimate + spread
    theory = result.get("theory")
    local = result["audit"] == "ldp"
    joint = _optional(result["metrics"].get("bound_of_all"))
    return Row(
        audit=str(result["audit"]),
        view=f"{crafter(result)}, {result['view']}" if local else str(result["view"]),
        adversary=adversary(result),
        promise=found.theory,
        delta=found.delta if theory is None else theory.get("delta"),
        # Of many bounds some exceed a promise by chance: those of the LDP audit are judged together.
        bound=joint if joint is not None else None if first is None else _optional(first.get("lower")),
        confidence=found.confidence,
        bound_method=None if first is None else first["method"],
        estimate=found.estimate,
        low=low,
        high=high,
        estimate_method=found.estimate_method,
        refuted=bool(result.get("refuted")),
        sampling=None if theory is None else theory.get("sampling"),
        opacus=_opacus(result),
    )


def _opacus(result: Result) -> float | None:
    theory = result.get("theory")
    if theory is None or str(theory.get("accountant")).startswith("opacus-"):
        return None
    return _optional(result["metrics"].get("opacus_epsilon"))


def _composed(result: Result) -> list[Row]:
    """CANIFE's rounds put together, by the method that estimates the single round: an estimate, and never more."""
    exact = [c for c in result.get("composed", []) if c["inversion"] == "exact"]
    found = next((c for c in exact if c["method"] == line(result).estimate_method), exact[0] if exact else None)
    theory = result.get("training_theory")
    if found is None:
        return []
    return [
        Row(
            audit="canife",
            view=f"{result['view']}, composed",
            adversary="knows crafted samples and sees all rounds",
            promise=None if theory is None else number(theory["epsilon"]),
            delta=None if theory is None else theory.get("delta"),
            estimate=number(found["epsilon"]),
            estimate_method=f"composed from {found['method']}",
        )
    ]


def _strongest_by_view(results: Sequence[Result]) -> list[Result]:
    local = [result for result in results if result["audit"] == "ldp"]
    views = dict.fromkeys(str(result["view"]) for result in local)
    return [
        max((r for r in local if r["view"] == view), key=lambda r: (bool(r.get("refuted")), _share(_row(r))))
        for view in views
    ]


def _share(row: Row) -> float:
    """How much of the promise the bound shows; without a promise all are alike."""
    if row.bound is None or not row.promise or math.isinf(row.promise):
        return 0.0
    return row.bound / row.promise


def _optional(value: object) -> float | None:
    return None if value is None else number(value)
