"""A verdict as JUnit XML, which CI servers show."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from coalmine.files import write_text
from coalmine.results.gate import VERDICTS, Judged, Verdict
from coalmine.results.summary import shown

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(verdict: Verdict, name: str, path: Path) -> None:
    """One test case for each result: passed, failed, or skipped where there was nothing to judge."""
    counts = {
        "tests": len(verdict.results),
        "failures": sum(result.failed for result in verdict.results),
        "errors": 0,
        "skipped": sum(result.bound is None for result in verdict.results),
    }
    numbers = {key: str(value) for key, value in counts.items()}
    suites = ET.Element("testsuites", numbers)
    suite = ET.SubElement(suites, "testsuite", {"name": _text(name), **numbers, "time": "0"})
    for result in verdict.results:
        case = ET.SubElement(
            suite, "testcase", {"classname": f"coalmine.{_text(result.audit)}", "name": _text(result.view), "time": "0"}
        )
        if result.failed:
            failure = ET.SubElement(
                case, "failure", {"message": _text(_short(result, verdict)), "type": result.verdict}
            )
            failure.text = _text(verdict.sentence)
        elif result.bound is None:
            ET.SubElement(case, "skipped", {"message": VERDICTS[result.verdict]})
    ET.indent(suites)
    write_text(path, '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n")


def _short(result: Judged, verdict: Verdict) -> str:
    against = (
        f"the limit of {verdict.limit:g}"
        if result.verdict == "too-large"
        else f"the promise of {shown(result.promise)}"
    )
    return f"ε is at least {shown(result.bound)} at δ = {result.delta:g}, more than {against}"


def _text(text: str) -> str:
    """Without the characters that no XML file may hold."""
    return _NOT_XML.sub("�", text)
