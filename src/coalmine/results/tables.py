"""Results side by side: grouped by what they are about, and as tables for terminals, files and pandas.

Figures for different units are different quantities, so groups keep them apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Self

from coalmine.errors import InputError
from coalmine.results import summary
from coalmine.results.result import Result
from coalmine.results.verdict import LEADING, WORST_FIRST, Verdict, overall
from coalmine.stats import Estimate


@dataclass(frozen=True, kw_only=True)
class Group:
    """Results about the same unit of the same training.

    Args:
        title: The unit, and the training if it is not the one that methods share.
        results: The results to show, the most telling of each variant.

    Attributes:
        bounded: The results with a valid lower bound.
        verdict: The worst verdict on a claim; results that are only estimates do not decide beside those with a bound.
        strongest: The result to lead with: among the worst verdict, one with a bug, then by how close to its claim it
            comes. None if no result has a bound.
        bugs: What refutes the claim beside scores, each cause once.
        claims: The different claimed ε, in ascending order.
        claim: The claim to show: the one that the strongest result is compared with, else the largest.
    """

    title: str
    results: Sequence[Result]
    bounded: list[Result] = field(init=False)
    verdict: Verdict = field(init=False)
    strongest: Result | None = field(init=False)
    bugs: list[summary.Cause] = field(init=False)
    claims: list[float] = field(init=False)
    claim: float | None = field(init=False)

    def __post_init__(self) -> None:
        bounded = [result for result in self.results if result.bound is not None]
        deciding = _deciding(bounded or self.results)
        verdict = overall(result.verdict for result in deciding)
        leading = [result for result in deciding if result.verdict is verdict and result.bound is not None]
        strongest = max(leading, key=lambda result: (bool(result.bugs), *_telling(result)), default=None)
        claims = sorted({result.claim.epsilon for result in self.results if result.claim is not None})
        claim = max(claims, default=None)
        if strongest is not None and strongest.claim is not None:
            claim = strongest.claim.epsilon
        bugs = [cause for cause in summary.causes_of(self.results) if cause.finding.refutes]
        derived = {"verdict": verdict, "strongest": strongest, "bugs": bugs, "claims": claims, "claim": claim}
        for name, value in (derived | {"bounded": bounded}).items():
            object.__setattr__(self, name, value)


def grouped(results: Sequence[Result]) -> list[Group]:
    """Group results by unit and training: alarms, then whole releases, then rounds and phrases; the worst first.

    Of results that differ only in their variant, the most telling of each view is kept.
    """
    by_title: dict[str, list[Result]] = {}
    for result in shown_results(results):
        title = f"{result.unit.name[:1].upper()}{result.unit.name[1:]}"
        if result.training not in ("", "training"):
            title += f" ({result.training})"
        by_title.setdefault(title, []).append(result)
    groups = [Group(title=title, results=members) for title, members in by_title.items()]
    alarms = (Verdict.REFUTED, Verdict.SUSPICIOUS)
    return sorted(
        groups,
        key=lambda group: (
            group.verdict not in alarms,
            not group.results[0].unit.limited,
            WORST_FIRST.index(group.verdict),
        ),
    )


def shown_results(results: Sequence[Result]) -> list[Result]:
    """Return the results to list: all, but of several variants only the most telling of each view."""
    variants: dict[tuple[str, ...], list[Result]] = {}
    for i, result in enumerate(results):
        variant = "" if result.variant else str(i)
        key = (result.method, result.view, result.training, result.unit.name, variant)
        variants.setdefault(key, []).append(result)
    return [max(_deciding(several), key=_telling) for several in variants.values()]


def side_by_side(runs: Sequence[Sequence[Result]]) -> list[tuple[str, list[Result | None]]]:
    """Return what several runs can be compared by: a title, and the result of each run, or None if it has none.

    Results are matched by method and label. Of the variants of an attack, one stands for all against each claim: that
    which shows most in any run. A run without it is represented by its own most telling variant.
    """
    rows: dict[tuple[str, str], list[dict[str, Result]]] = {}
    for i, results in enumerate(runs):
        claims = sorted({result.numbers["claimed_epsilon"] or 0.0 for result in results if result.variant})
        for result in results:
            about = attack = result.label
            if result.variant:
                # The claim may differ between runs, so its place among those of its run says which is meant.
                epsilon = result.numbers["claimed_epsilon"] or 0.0
                about = f"{result.unit.name}, claim {claims.index(epsilon)}"
                attack = result.label.replace(f", ε = {epsilon:g}", "")
            rows.setdefault((result.method, about), [{} for _ in runs])[i].setdefault(attack, result)
    matched = []
    for (method, _), row in rows.items():
        _, chosen = max((_telling(result), attack) for attacks in row for attack, result in attacks.items())
        strongest = [attacks.get(chosen) or max(attacks.values(), key=_telling, default=None) for attacks in row]
        labels = {result.label for result in strongest if result is not None}
        title = chosen if all(chosen in attacks for attacks in row if attacks) else "strongest attack"
        matched.append((f"{method}, {labels.pop() if len(labels) == 1 else title}", strongest))
    return matched


def share_of_claim(result: Result) -> float:
    """Return the bound as a share of what the claim promises to the canaries; 0 without a finite claim."""
    most, bound = None if result.tested is None else result.tested.epsilon, result.numbers["lower_bound"]
    return bound / most if bound and most and most < math.inf else 0.0


def _telling(result: Result) -> tuple[int, float, float]:
    """Return what to sort by: the worse verdict first, then the bound closest to its claim."""
    return -LEADING.index(result.verdict), share_of_claim(result), result.numbers["lower_bound"] or 0.0


def _deciding(results: Sequence[Result]) -> list[Result]:
    """Return the results that test the claim with the worst verdict; those without a claim only if none has one."""
    by_claim: dict[object, list[Result]] = {}
    for result in results:
        by_claim.setdefault(result.claimed, []).append(result)
    order = (*WORST_FIRST[:3], Verdict.NOT_REFUTED, Verdict.NO_CLAIM)
    return min(by_claim.values(), key=lambda tests: order.index(overall(r.verdict for r in tests)), default=[])


@dataclass(frozen=True)
class Table:
    """A table with a title: one text for each cell."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of_estimates(cls, estimates: Sequence[Estimate], title: str) -> Self:
        """Return one row per estimate: its figures, and what sort of figure it is."""
        rows = []
        for e in estimates:
            figures = [fixed(number, 3) for number in (e.epsilon, e.lower, e.upper)]
            threshold = "-" if e.threshold is None else f"{e.threshold:.4g}"
            rows.append([e.method, *figures, threshold, summary.kind(e)])
        return cls(title, ["method", "ε", "lower", "upper", "threshold", "what it is"], rows)

    @classmethod
    def of_results(cls, results: Sequence[Result], title: str) -> Self:
        """Return a run in one table: a row for each method and view."""
        rows = [[r.method, r.label, r.unit.name, *evidence_cells(r)] for r in shown_results(results)]
        return cls(title, ["method", "view", "unit", *EVIDENCE], rows)

    def to_text(self) -> str:
        """Return the cells in columns, without the title."""
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (self.columns, *self.rows)]
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """Return the table in Markdown, without the title."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


# Columns of `evidence_cells`.
EVIDENCE = ["claimed ε", "lower bound", "best guess", "by", "verdict"]


def results_markdown(results: Sequence[Result]) -> str:
    """Return results as a Markdown table, and below it what was found."""
    remarks = "\n".join(f"- {remark}" for remark in [*summary.causes_of(results), *tested_with(results)])
    return f"{Table.of_results(results, '').to_markdown()}\n\n{remarks}".rstrip()


def tested_with(results: Sequence[Result]) -> list[str]:
    """Return how results were tested that are not about the claimed ε, each sentence once."""
    return list(dict.fromkeys(filter(None, map(summary.tested_with, results))))


def inline_markdown(text: str) -> str:
    """Return text that Markdown shows as it is, on one line; `Table.to_markdown` escapes the bars.

    Example:
        >>> print(inline_markdown("a <b> *c*"))
        a \\<b\\> \\*c\\*
    """
    return re.sub(r"([\\`*_\[\]<>#])", r"\\\1", " ".join(text.split()))


def evidence_cells(result: Result) -> list[str]:
    """Return the cells that say what a result shows, under the columns `EVIDENCE`."""
    by = "" if result.best_guess is None else result.best_guess.method
    claim, *evidence = [fixed(value, 3) for value in result.numbers.values()][:3]
    if not result.about_claim:
        evidence = [f"{cell} {result.participation}" if cell != "-" else cell for cell in evidence]
    return [claim, *evidence, by, result.verdict.value]


def score_counts(result: Result) -> str | None:
    """Return how many scores each side has, or None if there are none."""
    if result.scores is None:
        return None
    sides = (result.scores.members, result.scores.nonmembers)
    counts = zip(sides, result.side_names, strict=True)
    return ", ".join(f"{side.size:,} {name}" for side, name in counts if side is not None)


def fixed(value: float | None, digits: int) -> str:
    """Format a number with that many digits after the point; a dash for None, ∞ for infinity."""
    if value is None:
        return "-"
    return "∞" if value == math.inf else f"{value:.{digits}f}"


def estimates_frame(results: Sequence[Result]) -> Any:
    """Return one row per estimate, beside the claim and the verdict.

    Args:
        results: The results.

    Raises:
        InputError: If pandas is not installed.
    """
    rows = []
    for result in results:
        about = {name: getattr(result, name) for name in ("method", "view", "variant", "training")}
        about |= {"unit": result.unit.name, "participation": result.participation, "verdict": result.verdict.value}
        about |= {"claimed_epsilon": result.numbers["claimed_epsilon"], "p_value": None}
        if result.claim_test is not None:
            about["p_value"] = result.claim_test.p_value
        for e in result.estimates:
            figures = {"epsilon": e.epsilon, "lower": e.lower, "upper": e.upper, "delta": e.delta}
            rows.append({**about, "estimator": e.method, **figures, "confidence": e.confidence, "is_bound": e.valid})
    return as_frame(rows, ["claimed_epsilon", "p_value", "epsilon", "lower", "upper", "delta", "confidence"])


def as_frame(rows: Sequence[Mapping[str, Any]], numbers: Sequence[str] = ()) -> Any:
    """Return rows as a pandas DataFrame.

    Args:
        rows: A value by the name of its column, for each row.
        numbers: Columns that hold numbers, also where all are missing.

    Raises:
        InputError: If pandas is not installed.
    """
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise InputError("DataFrames need pandas: pip install pandas") from None
    return pandas.DataFrame(list(rows)).astype(dict.fromkeys(numbers, float) if rows else {})
