"""Tables of texts, for terminals and files."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from coalmine.results import words
from coalmine.results.groups import shown_results
from coalmine.results.result import Result, in_json
from coalmine.stats import Estimate


@dataclass(frozen=True)
class Table:
    """A table with a title: one text for each cell."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of_estimates(cls, estimates: Sequence[Estimate], title: str) -> Self:
        """Return one row per estimate: its figures, and what sort of figure it is."""
        rows = [
            [
                e.method,
                fixed(e.epsilon, 3),
                fixed(e.lower, 3),
                fixed(e.upper, 3),
                "-" if e.threshold is None else f"{e.threshold:.4g}",
                words.kind(e),
            ]
            for e in estimates
        ]
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


EVIDENCE = ["claimed ε", "lower bound", "best guess", "by", "verdict"]
"""Columns of `evidence_cells`."""


def results_text(results: Sequence[Result]) -> str:
    """Return results in columns, and below them what was found."""
    return "\n".join([Table.of_results(results, "").to_text(), *words.finding_sentences(results)])


def results_markdown(results: Sequence[Result]) -> str:
    """Return results as a Markdown table, and below it what was found."""
    remarks = [f"- {remark}" for remark in words.finding_sentences(results)]
    return "\n".join([Table.of_results(results, "").to_markdown(), *([""] if remarks else []), *remarks])


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
    return [*(fixed(value, 3) for value in epsilons(result)), by, result.verdict.value]


def evidence_in_json(result: Result) -> dict[str, Any]:
    """Return what a result shows, ready for JSON."""
    numbers = {name: in_json(value) for name, value in evidence_numbers(result).items()}
    return {**numbers, "verdict": result.verdict.value}


def evidence_numbers(result: Result) -> dict[str, float | None]:
    """Return the claim, the lower bound, and the best guess with its interval, by the names in JSON and trackers."""
    claim, bound, guess = epsilons(result)
    best = result.best_guess
    return {
        "claimed_epsilon": claim,
        "lower_bound": bound,
        "best_guess": guess,
        "best_guess_lower": None if best is None else best.lower,
        "best_guess_upper": None if best is None else best.upper,
    }


def epsilons(result: Result) -> tuple[float | None, float | None, float | None]:
    """Return the claim, the lower bound and the best guess of a result."""
    claim, bound, guess = (
        None if source is None else source.epsilon for source in (result.claim, result.decisive, result.best_guess)
    )
    return claim, bound, guess


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
