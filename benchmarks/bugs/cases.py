"""What a case of the bench is, and how an audit's answer to it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


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
    """Return what an assertion of `coalmine.testing` said."""
    first, _, rest = str(failure).partition("\n")
    check = rest.split('check "')[1].split('"')[0] if 'check "' in rest else "bound"
    return Answer(check, first)


def from_results(results: Any) -> Answer:
    """Return what the results of one training say together: the first named bug, or else the refuted claim."""
    for result in results:
        for finding in result.bugs:
            return Answer(finding.check, finding.sentence)
    for result in results:
        if result.refuted:
            return Answer("claim", result.summary.split("\n")[0])
    return Answer()
