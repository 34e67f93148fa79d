"""``coalmine verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coalmine.cli import console
from coalmine.cli.options import AsJson, Directory

if TYPE_CHECKING:
    from coalmine.results.saved import SavedRun


def verify(
    directory: Directory,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Write a new manifest of the files as they are, unless a recomputed result differs."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the manifest, then recompute every estimate, bound and verdict from the stored scores.

    Exit code 1 if a result differs from what is stored or none could be recomputed, 2 if a file was changed, removed
    or added.
    """
    from coalmine.results.files import results_to_dict
    from coalmine.results.manifest import Manifest
    from coalmine.results.saved import read_run_directory
    from coalmine.results.tables import Table
    from coalmine.runs.verification import Outcome, recompute

    accepted = Manifest.of_files(directory) if adopt else None
    run = read_run_directory(directory, scores=True, manifest=accepted)
    with console.busy("recomputing"):
        verification = recompute(run)
    different = verification.outcome is Outcome.DIFFERENT
    if as_json:
        content = {"title": run.title, "provenance": dict(run.provenance), "verification": verification.to_dict()}
        console.print_json(results_to_dict(run.results, **content))
    else:
        rows = [
            [entry.result.method, entry.result.label, entry.result.verdict.value, entry.outcome.value]
            for entry in verification.recomputed
        ]
        console.print_table(Table(run.title, ["method", "view", "stored verdict", "recomputed"], rows))
        for entry in verification.recomputed:
            for difference in entry.differences:
                console.print_sentence(f"{entry.result.method}, {entry.result.label}: {difference}.")
        for contradiction in verification.contradictions:
            console.print_sentence(f"{contradiction}.")
        left_out: dict[str, list[str]] = {}
        for entry in verification.recomputed:
            for sentence in entry.not_recomputed:
                left_out.setdefault(sentence, []).append(f"{entry.result.method} {entry.result.label}")
        for sentence, names in left_out.items():
            console.print_sentence(f"Not recomputed in {'; '.join(names)}: {sentence}.")
        console.print_sentence(verification.sentence)
        console.print_sentence(_origin(run))
    if accepted is not None and not different:
        accepted.write()
    unknown = verification.outcome is Outcome.NOT_RECOMPUTED
    if different or (unknown and not adopt):
        raise typer.Exit(1)


def _origin(run: SavedRun) -> str:
    """Return date, version and fingerprint."""
    origin = run.provenance
    version = f"coalmine {run.content.get('coalmine', 'unknown')}"
    commit = f", commit {origin['commit']}" if "commit" in origin else ""
    return f"Results of {origin.get('date', 'an unknown date')}, {version}{commit}. Fingerprint {run.fingerprint}."
