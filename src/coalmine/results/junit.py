"""A gate as JUnit XML, which CI servers show."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from coalmine.files import write_text
from coalmine.results.gate import Gate

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(gate: Gate, name: str, path: Path) -> None:
    """Write one test case for each result: passed, failed, or skipped if nothing was tested.

    A gate that fails as a whole has one more, since CI servers count failed cases.
    """
    whole = bool(gate.unchecked)
    counts = {
        "tests": len(gate.judgments) + whole,
        "failures": len(gate.failures) + whole,
        "errors": 0,
        "skipped": sum(not judgment.checked and not gate.stops(judgment) for judgment in gate.judgments),
    }
    attributes = {key: str(value) for key, value in counts.items()}
    suites = ET.Element("testsuites", attributes)
    suite = ET.SubElement(suites, "testsuite", {"name": _text(name), **attributes, "time": "0"})
    for judgment in gate.judgments:
        result = judgment.result
        names = {"classname": f"coalmine.{_text(result.method)}", "name": _text(result.label), "time": "0"}
        case = ET.SubElement(suite, "testcase", names)
        if gate.stops(judgment):
            kind = "over-limit" if judgment.over_limit else judgment.verdict.value
            failure = ET.SubElement(case, "failure", {"message": _text(gate.reason(judgment)), "type": kind})
            failure.text = _text(gate.sentence)
        elif not judgment.checked:
            reason = "no lower bound" if judgment.bound is None else "neither a claim nor a limit that applies"
            ET.SubElement(case, "skipped", {"message": reason})
    if whole:
        case = ET.SubElement(suite, "testcase", {"classname": "coalmine", "name": "gate", "time": "0"})
        ET.SubElement(case, "failure", {"message": _text(gate.unchecked), "type": "not checked"}).text = gate.sentence
    ET.indent(suites)
    write_text(path, '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n")


def _text(text: str) -> str:
    """Replace the characters that no XML file may hold."""
    return _NOT_XML.sub("�", text)
