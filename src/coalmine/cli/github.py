"""The gate in GitHub Actions: a step summary in Markdown, and annotations.

Titles, views and sentences may come from outside, so whatever could start another annotation or Markdown is escaped.
"""

from __future__ import annotations

import os
from pathlib import Path

from coalmine.errors import InputError
from coalmine.results.gate import COLUMNS, Gate
from coalmine.results.tables import Table, inline_markdown

# The environment variable with the path of the step summary.
VARIABLE = "GITHUB_STEP_SUMMARY"


def step_summary(gate: Gate, title: str) -> str:
    """Return the gate as Markdown: the outcome, a table of what matters, and why it failed.

    Args:
        gate: The gate.
        title: Title of the run.
    """
    cells = [list(map(inline_markdown, row)) for row in gate.rows(gate.folded())]
    parts = [
        f"### coalmine check: {gate.outcome} ({inline_markdown(title)})",
        inline_markdown(f"{gate.decision} {gate.terms}"),
        Table("", COLUMNS, cells).to_markdown(),
    ]
    if gate.failed:
        parts.append("\n".join("- " + inline_markdown(f"{about}: {reason}") + "." for about, reason in gate.reasons))
    return "\n\n".join(parts) + "\n"


def annotation_lines(gate: Gate) -> list[str]:
    """Return an error for each reason to fail the gate, and a warning for each that only a strict gate would fail on.

    GitHub shows ten of each kind; the step summary has all.

    Args:
        gate: The gate.

    Example:
        >>> from coalmine import check_mechanism
        >>> from coalmine.results.gate import judge
        >>> result = check_mechanism(lambda total: total, dim=500, canaries=100)
        >>> annotation_lines(judge([result], max_proven=1.0))
        ['::error title=mechanism%2C release::proven ε ≥ 1.222e+06 at δ = 1e-05, above the limit of 1']
    """
    warnings = []
    unchecked = [judgment.result.name for judgment in gate.judgments if not judgment.checked]
    if unchecked:
        reason = "without a lower bound, or without a claim and a limit that applies"
        count = f"{len(unchecked)} of {len(gate.judgments)} results"
        warnings.append(("not checked", f"{count} {reason}: {'; '.join(unchecked)}"))
    warnings += [(judgment.result.name, judgment.verdict.value) for judgment in gate.doubtful]
    lines = []
    for command, messages in (("error", gate.reasons), ("warning", warnings)):
        for title, text in messages:
            escaped = []
            for part in (title, text):
                escaped.append(part.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))
            name = escaped[0].replace(":", "%3A").replace(",", "%2C")
            lines.append(f"::{command} title={name}::{escaped[1]}")
    return lines


def append_to_summary(text: str = "") -> Path:
    """Append Markdown to the step summary and return its path. Without text, only see whether that is possible.

    Raises:
        InputError: If there is none, or it cannot be written.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        raise InputError(
            f"--github needs the environment variable {VARIABLE}, which GitHub Actions sets: to try it elsewhere, put "
            f"{VARIABLE}=summary.md before the command"
        )
    try:
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{name} cannot be written: {error.strerror or error}") from error
    return Path(name)
