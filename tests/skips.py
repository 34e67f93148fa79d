"""What was skipped and why, on one line per reason; and packages whose tests must not be skipped (COALMINE_REQUIRE).

`conftest.py` imports these hooks of pytest.
"""

import os
import re
from collections import Counter

import pytest


def required(reason):
    """The packages in COALMINE_REQUIRE that a reason for skipping names."""
    names = filter(None, os.environ.get("COALMINE_REQUIRE", "").split(","))
    return [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", reason, re.IGNORECASE)]


def _judged(report):
    """The report, as a failure if it says that a required package was skipped."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _, _, reason = report.longrepr
        if names := required(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped, but COALMINE_REQUIRE lists {', '.join(names)} - {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _judged((yield))


def pytest_terminal_summary(terminalreporter):
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} × {reason}")
