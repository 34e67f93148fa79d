"""A gate for GitHub Actions: a step summary in Markdown, and annotations.

Titles, views and sentences may come from outside, so what could start another annotation or Markdown is escaped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from coalmine.errors import InputError
from coalmine.results.gate import COLUMNS, Gate
from coalmine.results.judging import Judgment
from coalmine.results.tables import Table, inline_markdown
from coalmine.results.words import plural

VARIABLE = "GITHUB_STEP_SUMMARY"
"""The environment variable with the path of the step summary."""

_MOST = 10
"""Annotations of each kind that GitHub shows for a step."""


def summary(gate: Gate, title: str) -> str:
    """Return the gate as Markdown: the outcome, a table of what matters, and why it failed.

    Args:
        gate: The gate.
        title: Title of the run.
    """
    outcome = "failed" if gate.failed else "passed" if _checked(gate) else "nothing was checked"
    cells = [[inline_markdown(cell) for cell in row] for row in gate.rows(gate.folded())]
    reasons = [
        f"- {inline_markdown(_label(judgment))}: {inline_markdown(gate.reason(judgment))}."
        for judgment in gate.failures
    ]
    parts = [
        f"### coalmine check: {outcome} ({inline_markdown(title)})",
        inline_markdown(gate.sentence),
        Table("", COLUMNS, cells).to_markdown(),
        "\n".join(reasons),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def annotation_lines(gate: Gate) -> list[str]:
    """Return an error for each result that fails the gate, and a warning for each that only a strict gate would fail.

    A gate that was asked for a check that applies to nothing is an error, too.

    Args:
        gate: The gate.

    Example:
        >>> from coalmine import audit_mechanism
        >>> from coalmine.results.gate import judge
        >>> result = audit_mechanism(lambda total: total, dim=500, canaries=100, family="gaussian")
        >>> annotation_lines(judge([result], max_epsilon=1.0))
        ['::error title=mechanism%2C release::ε ≥ 5.506 at δ = 1e-05, above the limit of 1']
    """
    unchecked = [judgment for judgment in gate.judgments if not judgment.checked]
    errors = [("gate", gate.unchecked)] if gate.unchecked else []
    lines = _listed("error", errors + [(_label(judgment), gate.reason(judgment)) for judgment in gate.failures])
    warnings = [(_label(judgment), judgment.verdict.value) for judgment in gate.doubtful]
    if unchecked:
        names = "; ".join(map(_label, unchecked[:_MOST]))
        counted = f"{plural(len(unchecked), 'result')} of {len(gate.judgments)}"
        warnings.insert(
            0, ("not checked", f"{counted} without a lower bound, or without a claim and a limit that applies: {names}")
        )
    return [*lines, *_listed("warning", warnings)]


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


def _checked(gate: Gate) -> bool:
    return any(judgment.checked for judgment in gate.judgments)


def _label(judgment: Judgment) -> str:
    return f"{judgment.result.method}, {judgment.result.label}"


def _listed(command: str, messages: Sequence[tuple[str, str]]) -> list[str]:
    """Return one annotation per message; the last one that GitHub shows says how many it does not."""
    shown = list(messages[: _MOST if len(messages) <= _MOST else _MOST - 1])
    if len(messages) > len(shown):
        shown.append(("more", f"{len(messages) - len(shown)} more results; the step summary has them"))
    return [f"::{command} title={_property(title)}::{_data(text)}" for title, text in shown]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
