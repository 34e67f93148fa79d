"""Tables of docs/benchmarks.md, from the bench's rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

from named import is_named

Row = dict[str, Any]

TITLES = {
    "mechanism": "mechanism", "loop": "own loop", "simulator": "simulator", "flower": "Flower", "opacus": "Opacus",
    "replay": "replay", "ldp": "LDP test", "ldp_audit": "LDP audit",
}  # fmt: skip
"""Targets in the order of the columns."""

KINDS = (
    "size", "support", "freshness", "correlation", "shape", "schedule", "data-dependent", "clipping", "weighting",
    "sampling", "accounting",
)  # fmt: skip

SHORT = {
    "size of the noise": "size", "shape of the noise": "shape", "values of the noise": "values",
    "noise on every tensor": "places", "noise in every call": "calls", "fresh noise": "fresh",
    "independent noise": "copies", "participation": "cohorts",
    "canaries in the releases": "canaries",
}  # fmt: skip
"""Names of checks in cells of the table."""


def short_name(check: str) -> str:
    """Return the name of a check in a cell."""
    check = check.removeprefix("replay: ")
    return SHORT.get(check, check)


def cell(rows: list[Row]) -> str:
    """Return how many runs caught a bug, and the check that did so most often."""
    caught = [row for row in rows if row["check"]]
    if not rows:
        return "·"
    if not caught:
        return "**missed**"
    check = Counter(short_name(row["check"]) for row in caught).most_common(1)[0][0]
    return check if len(caught) == len(rows) else f"{check} ({len(caught)} of {len(rows)})"


def totals(rows: list[Row]) -> list[str]:
    """Return the table of all targets."""
    heads = ("target", "bugs", "by all seeds", "runs caught", "named", "correct runs", "alarms", "claims refuted")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    every = []
    for target, title in TITLES.items():
        buggy = [row for row in rows if row["target"] == target and row["kind"] != "correct"]
        correct = [row for row in rows if row["target"] == target and row["kind"] == "correct"]
        names = {row["bug"] for row in buggy}
        missed = {row["bug"] for row in buggy if not row["check"]}
        caught = [row for row in buggy if row["check"]]
        named = sum(is_named(row["kind"], row["bug"], row["sentence"]) for row in caught)
        every.append((len(names), len(names - missed), len(caught), named, len(buggy)))
        refuted = sum(row["check"] == "claim" for row in correct)
        every[-1] += (len(correct), sum(bool(row["check"]) for row in correct) - refuted, refuted)
        lines.append(_total(title, *every[-1]))
    return [*lines, _total("all", *(sum(column) for column in zip(*every, strict=True)))]


def _total(title: str, names: int, always: int, caught: int, named: int, runs: int, *correct: int) -> str:
    share = f"{caught:,} of {runs:,} ({caught / runs:.0%})" if runs else "–"
    named_share = f"{named:,} ({named / runs:.0%})" if runs else "–"
    counts = " | ".join(f"{count:,}" for count in correct)
    return f"| {title} | {names} | {always} | {share} | {named_share} | {counts} |"


def matrix(rows: list[Row]) -> list[str]:
    """Return the table of all bugs in all targets."""
    targets = [target for target in TITLES if any(row["target"] == target for row in rows)]
    lines = [f"| kind | bug | {' | '.join(TITLES[target] for target in targets)} |"]
    lines.append("|---" * (2 + len(targets)) + "|")
    for kind in KINDS:
        names = dict.fromkeys(row["bug"] for row in rows if row["kind"] == kind)
        for name in names:
            of_bug = [row for row in rows if row["bug"] == name and row["kind"] == kind]
            cells = [cell([row for row in of_bug if row["target"] == target]) for target in targets]
            lines.append(f"| {kind} | {name} | {' | '.join(cells)} |")
    return lines


def messages(rows: list[Row], target: str) -> list[str]:
    """Return the table of what the audit of a target says about each bug, with the first seed."""
    first = [row for row in rows if row["target"] == target and row["kind"] != "correct" and row["seed"] == 0]
    ordered = sorted(first, key=lambda row: KINDS.index(row["kind"]))
    lines = [f"| {row['kind']} | {row['bug']} | {row['sentence'].split(' (p ')[0]} |" for row in ordered]
    return ["| kind | bug | message |", "|---|---|---|", *lines]


def losses(rows: list[Row]) -> list[str]:
    """Return the bugs that were missed, and those whose sentence does not lead to them."""
    buggy = [row for row in rows if row["kind"] != "correct"]
    missed = [f"missed: {row['target']}, {row['bug']}" for row in buggy if not row["check"]]
    unnamed = [row for row in buggy if row["check"] and not is_named(row["kind"], row["bug"], row["sentence"])]
    return [*missed, *(f"not named: {row['target']}, {row['bug']}: {row['sentence']}" for row in unnamed)]


def print_tables(rows: list[Row]) -> None:
    """Print all tables."""
    for table in (totals(rows), matrix(rows), messages(rows, "mechanism"), losses(rows)):
        print("\n".join(table), end="\n\n")
