"""A gate for CI servers: JUnit XML, and for GitHub Actions a step summary in Markdown with annotations.

Titles, views and sentences may come from outside, so what could start another annotation or Markdown is escaped.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree as ET

from coalmine.errors import InputError
from coalmine.files import write_text
from coalmine.results.gate import COLUMNS, Gate
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
    outcome = "failed" if gate.failed else "passed"
    if not gate.failed and not any(judgment.checked for judgment in gate.judgments):
        outcome = "nothing was checked"
    cells = [list(map(inline_markdown, row)) for row in gate.rows(gate.folded())]
    parts = [
        f"### coalmine check: {outcome} ({inline_markdown(title)})",
        inline_markdown(gate.sentence),
        Table("", COLUMNS, cells).to_markdown(),
    ]
    reasons = []
    for failure in gate.failures:
        reasons.append("- " + inline_markdown(f"{failure.result.name}: {gate.reason(failure)}") + ".")
    if reasons:
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
    errors += [(failure.result.name, gate.reason(failure)) for failure in gate.failures]
    warnings = []
    unchecked = [judgment.result.name for judgment in gate.judgments if not judgment.checked]
    if unchecked:
        reason = "without a lower bound, or without a claim and a limit that applies"
        count = f"{len(unchecked)} of {len(gate.judgments)} results"
        warnings.append(("not checked", f"{count} {reason}: {'; '.join(unchecked[:_MOST])}"))
    warnings += [(judgment.result.name, judgment.verdict.value) for judgment in gate.doubtful]
    lines = []
    for command, messages in (("error", errors), ("warning", warnings)):
        if len(messages) > _MOST:
            # GitHub drops what is beyond its limit without a word, so the last annotation says how many those are.
            left_out = f"{len(messages) - _MOST + 1} more results; the step summary has them"
            messages[_MOST - 1 :] = [("more", left_out)]
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


def write_junit(gate: Gate, name: str, path: Path) -> None:
    """Write one test case for each result: passed, failed, or skipped if nothing was tested.

    A gate that fails as a whole has one more, since CI servers count failed cases.
    """
    suites = ET.Element("testsuites")
    suite = ET.SubElement(suites, "testsuite", {"name": name, "errors": "0", "time": "0"})
    failures = skipped = 0
    for judgment in gate.judgments:
        about = {"classname": f"coalmine.{judgment.result.method}", "name": judgment.result.label, "time": "0"}
        case = ET.SubElement(suite, "testcase", about)
        if judgment in gate.failures:
            failures += 1
            kind = "over-limit" if judgment.over_limit else judgment.verdict.value
            message = {"message": gate.reason(judgment), "type": kind}
            ET.SubElement(case, "failure", message).text = gate.sentence
        elif not judgment.checked:
            skipped += 1
            reason = "no lower bound" if judgment.bound is None else "neither a claim nor a limit that applies"
            ET.SubElement(case, "skipped", {"message": reason})
    if gate.unchecked:
        failures += 1
        case = ET.SubElement(suite, "testcase", {"classname": "coalmine", "name": "gate", "time": "0"})
        ET.SubElement(case, "failure", {"message": gate.unchecked, "type": "not checked"}).text = gate.sentence
    for element in (suites, suite):
        element.attrib |= {"tests": str(len(suite)), "failures": str(failures), "skipped": str(skipped)}
    ET.indent(suites)
    # No XML file may hold certain characters, not even escaped ones.
    text = _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", ET.tostring(suites, encoding="unicode"))
    write_text(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')
