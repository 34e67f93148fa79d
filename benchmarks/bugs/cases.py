"""What a case of the bench is, and how an audit's answer to it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from coalmine.results.summary import causes, verdict_sentence


class Answer(NamedTuple):
    """What an audit said: the check that refuted the claim or named the bug, and its sentence; empty if nothing did."""

    check: str = ""
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A bug in a target, or a correct run.

    Args:
        target: What is audited, such as ``"mechanism"``.
        kind: Kind of bug, such as ``"size"``, or ``"correct"``.
        name: The bug. The same bug has the same name in all targets.
        run: Function from a seed to what the audit said.
    """

    target: str
    kind: str
    name: str
    run: Callable[[int], Answer]


def from_failure(failure: AssertionError) -> Answer:
    """Return what an assertion of `coalmine.testing` said: its first line, or that with the likely fault."""
    lines = str(failure).split("\n")
    check = str(failure).split('check "')[1].split('"')[0] if 'check "' in str(failure) else "bound"
    return Answer(check, next((line for line in lines if line.startswith("Likely fault")), lines[0]))


def from_results(results: Any) -> Answer:
    """Return what the results of one training say together: the first named bug, or else the refuted claim."""
    for result in results:
        for finding in result.bugs:
            return Answer(finding.check, finding.sentence)
    for result in results:
        if result.refuted:
            # What stands first, without what is said of bounds and of what no check looked at.
            first = next(map(str, causes(result.findings)), verdict_sentence(result))
            return Answer("claim", first)
    return Answer()
