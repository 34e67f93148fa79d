"""A gate for CI servers: JUnit XML, and for GitHub Actions a step summary in Markdown with annotations.

Titles, views and sentences may come from outside, so what could start another annotation or Markdown is escaped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from coalmine.errors import InputError
from coalmine.files import write_text
from coalmine.results.gate import COLUMNS, Gate
from coalmine.results.multiple_testing import Judgment
from coalmine.results.tables import Table, inline_markdown

# The environment variable with the path of the step summary.
VARIABLE = "GITHUB_STEP_SUMMARY"

_MOST = 10  # annotations of each kind that GitHub shows for a step
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def step_summary(gate: Gate, title: str) -> str:
    """Return the gate as Markdown: the outcome, a table of what matters, and why it failed.

    Args:
        gate: The gate.
        title: Title of the run.
    """
    outcome = "failed" if gate.failed else "passed" if gate.checked else "nothing was checked"
    cells = [[inline_markdown(cell) for cell in row] for row in gate.rows(gate.folded())]
    parts = [
        f"### coalmine check: {outcome} ({inline_markdown(title)})",
        inline_markdown(gate.sentence),
        Table("", COLUMNS, cells).to_markdown(),
    ]
    if gate.failures:
        reasons = [f"- {inline_markdown(f'{_label(failure)}: {gate.reason(failure)}')}." for failure in gate.failures]
        parts.append("\n".join(reasons))
    return "\n\n".join(parts) + "\n"


def annotation_lines(gate: Gate) -> list[str]:
    """Return an error for each result that fails the gate, and a warning for each that only a strict gate would fail.

    A gate that was asked for a check that applies to nothing is an error, too.

    Args:
        gate: The gate.

    Example:
        >>> from coalmine import check_mechanism
        >>> from coalmine.results.gate import judge
        >>> result = check_mechanism(lambda total: total, dim=500, canaries=100)
        >>> annotation_lines(judge([result], max_epsilon=1.0))
        ['::error title=mechanism%2C release::ε ≥ 1.222e+06 at δ = 1e-05, above the limit of 1']
    """
    errors = [("gate", gate.unchecked)] if gate.unchecked else []
    errors += [(_label(failure), gate.reason(failure)) for failure in gate.failures]
    warnings = []
    unchecked = [judgment for judgment in gate.judgments if not judgment.checked]
    if unchecked:
        names = "; ".join(map(_label, unchecked[:_MOST]))
        reason = "without a lower bound, or without a claim and a limit that applies"
        warnings.append(("not checked", f"{len(unchecked)} of {len(gate.judgments)} results {reason}: {names}"))
    warnings += [(_label(judgment), judgment.verdict.value) for judgment in gate.doubtful]
    return [*_annotations("error", errors), *_annotations("warning", warnings)]


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


def write_junit(gate: Gate, name: str, path: Path) -> None:
    """Write one test case for each result: passed, failed, or skipped if nothing was tested.

    A gate that fails as a whole has one more, since CI servers count failed cases.
    """
    suites = ET.Element("testsuites")
    suite = ET.SubElement(suites, "testsuite", {"name": _xml(name), "errors": "0", "time": "0"})
    failures = skipped = 0
    for judgment in gate.judgments:
        case = _case(suite, f"coalmine.{judgment.result.method}", judgment.result.label)
        if gate.stops(judgment):
            failures += 1
            kind = "over-limit" if judgment.over_limit else judgment.verdict.value
            message = {"message": _xml(gate.reason(judgment)), "type": kind}
            ET.SubElement(case, "failure", message).text = _xml(gate.sentence)
        elif not judgment.checked:
            skipped += 1
            reason = "no lower bound" if judgment.bound is None else "neither a claim nor a limit that applies"
            ET.SubElement(case, "skipped", {"message": reason})
    if gate.unchecked:
        failures += 1
        case = _case(suite, "coalmine", "gate")
        ET.SubElement(case, "failure", {"message": _xml(gate.unchecked), "type": "not checked"}).text = gate.sentence
    for element in (suites, suite):
        element.attrib |= {"tests": str(len(suite)), "failures": str(failures), "skipped": str(skipped)}
    ET.indent(suites)
    write_text(path, '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n")


def _case(suite: ET.Element, group: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", {"classname": _xml(group), "name": _xml(name), "time": "0"})


def _xml(text: str) -> str:
    """Replace the characters that no XML file may hold."""
    return _NOT_XML.sub("�", text)


def _label(judgment: Judgment) -> str:
    return f"{judgment.result.method}, {judgment.result.label}"


def _annotations(command: str, messages: Sequence[tuple[str, str]]) -> list[str]:
    """Return one annotation per message; the last one that GitHub shows says how many it does not."""
    shown = list(messages)
    if len(shown) > _MOST:
        left_out = len(shown) - _MOST + 1
        shown[_MOST - 1 :] = [("more", f"{left_out} more results; the step summary has them")]
    lines = []
    for title, text in shown:
        name = _escaped(title).replace(":", "%3A").replace(",", "%2C")
        lines.append(f"::{command} title={name}::{_escaped(text)}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
