"""Facts of a run in words, which the first page of the report and the model card share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coalmine.methods import registry
from coalmine.report.subjects import Subject
from coalmine.results.finding import Check
from coalmine.results.io import SavedRun
from coalmine.results.result import Result
from coalmine.results.summary import listed
from coalmine.results.verdict import Verdict

FEW = 3
"""Adversaries, bugs and warnings that fit on the first page; the sections below have all of them."""


def adversaries(results: Sequence[Result], *, most: int | None = FEW) -> str:
    """Return who attacked, each with the methods.

    Args:
        results: The results.
        most: How many to name, or None for all.
    """
    methods: dict[str, list[str]] = {}
    for result in results:
        methods.setdefault(result.adversary, [])
        if result.method not in methods[result.adversary]:
            methods[result.adversary].append(result.method)
    shown = [f"one who {adversary} ({listed(names)})" for adversary, names in methods.items()]
    hidden = len(shown[most:]) if most is not None else 0
    text = "; ".join(shown[:most]) + (f"; and {hidden} more" if hidden else "")
    return f"{text[:1].upper()}{text[1:]}."


def highlights(run: SavedRun, subject: Subject) -> list[str]:
    """Return what the methods of a subject want to have read beside ε, such as extracted phrases."""
    methods = [registry.find(name) for name in dict.fromkeys(result.method for result in subject.results)]
    return [text for method in methods for text in method.highlights(run.of(method.name, method.extras))]


def not_tested(run: SavedRun, audited: Sequence[Subject]) -> Iterator[str]:
    """Yield what this audit says nothing about."""
    units = list(dict.fromkeys(result.unit.name for result in run.results))
    yield f"Only {'this unit was' if len(units) == 1 else 'these units were'} tested: {'; '.join(units)}"
    weak = [
        f"{result.method}, {result.label}"
        for subject in audited
        for group in subject.groups
        if group is not subject.lead
        for result in group.results
        if result.verdict is Verdict.TOO_WEAK
    ]
    if weak:
        yield f"Tested, but too weakly to count: {'; '.join(weak[:FEW])}"
    checks = {check for result in run.results for check in result.checks}
    missing = [str(check) for check in (Check.CLIPPING, Check.SENSITIVITY) if check not in checks]
    if not checks and not all(subject.unprotected for subject in audited):
        yield "No check looked for bugs of the noise, the clipping or the participation"
    elif checks and missing:
        yield f"Not checked: {listed(missing)} of the real clients' updates (coalmine.replay checks them)"
    yield "Stronger adversaries may exist; servers, networks and logs were not looked at"


def origin(run: SavedRun) -> str:
    """Return when and with what the results were computed, and the fingerprint of the directory."""
    recorded = run.provenance
    commit, seeds = recorded.get("commit"), recorded.get("seeds")
    parts = [
        str(recorded["date"]).replace("T", " ").replace("+00:00", " UTC")
        if "date" in recorded
        else "date not recorded",
        f"coalmine {run.content.get('coalmine', 'unknown')}" + (f" (commit {_short(str(commit))})" if commit else ""),
        f"seed {', '.join(dict.fromkeys(map(str, seeds.values())))}" if isinstance(seeds, dict) and seeds else "",
        f"fingerprint of the results {run.fingerprint}" if run.fingerprint else "",
    ]
    return ", ".join(part for part in parts if part)


def _short(commit: str) -> str:
    """Return a commit with 12 digits, and whether files differed from it."""
    digits, dirty, _ = commit.partition("-dirty")
    return f"{digits[:12]}{dirty}"
