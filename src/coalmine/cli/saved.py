"""``coalmine report``, ``model-card``, ``check``, ``verify`` and ``compare``: what reads finished runs."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from coalmine.cli import console
from coalmine.cli.console import AsJson, Directory
from coalmine.errors import InputError


def report(
    directory: Directory,
    png: Annotated[
        Path | None, typer.Option("--png", help="Also write every figure as PNG into this directory.")
    ] = None,
    by: Annotated[str, typer.Option(help="Who made the audit, for the first page.", show_default=False)] = "",
) -> None:
    """Draw the report of a finished run: one HTML file that opens offline."""
    from coalmine.report.page import write_figures, write_report

    with console.busy("drawing"):
        written = [write_report(directory, auditor=by), *([] if png is None else write_figures(directory, png))]
    console.say(*written)


def model_card(
    directory: Directory,
    by: Annotated[str, typer.Option(help="Who made the audit.", show_default=False)] = "",
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead.")] = None,
) -> None:
    """Print a section for a model card: the privacy statement and the audit's evidence, in Markdown."""
    from coalmine.files import write_text
    from coalmine.report.page import model_card as card_of
    from coalmine.results.io import read_run_directory, refusing_damage

    with refusing_damage(directory):
        text = card_of(read_run_directory(directory), auditor=by)
    if out is None:
        console.say(*text.splitlines())
    else:
        console.say(write_text(out, text))


def check(
    directory: Directory,
    max_epsilon: Annotated[
        float | None, typer.Option(help="Largest ε allowed. Claims are tested with or without it.")
    ] = None,
    view: Annotated[list[str] | None, typer.Option(help="Only this view. Repeatable.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method. Repeatable.")] = None,
    confidence: Annotated[
        float, typer.Option(help="Joint confidence of all bounds: one minus the false-alarm rate of the gate.")
    ] = 0.95,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Also fail on the verdicts suspicious and too weak, or if nothing was checked."),
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="List every variant, not only the most telling ones.")] = False,
    github: Annotated[
        bool, typer.Option("--github", help="In GitHub Actions: also write a step summary and annotations.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Gate for CI: recompute everything from the scores; exit code 1 if a claim is refuted or a limit exceeded.

    Bounds, claim tests and verdicts are computed again from the stored scores and settings, and stored numbers are
    ignored. Exit code 1 also if they differ from the recomputed ones, or if the limit applies to no result.
    """
    from coalmine.results.gate import COLUMNS, annotation_lines, append_to_summary, judge, step_summary
    from coalmine.results.io import read_run_directory, refusing_damage, results_to_dict
    from coalmine.results.tables import Table
    from coalmine.runs.recompute import recompute

    if github and as_json:
        raise InputError("give --github or --json, not both: annotations are lines on standard output")
    if github:
        append_to_summary()  # refuse before anything is printed
    # Stored bounds and verdicts count for nothing: whoever can write them could make the gate pass.
    run = read_run_directory(directory, scores=True)
    with console.busy("recomputing"):
        recomputed = recompute(run)
    with refusing_damage(directory):
        gate = judge(
            recomputed.results,
            methods=method or [],
            views=view or [],
            max_epsilon=max_epsilon,
            confidence=confidence,
            strict=strict,
        )
    if as_json:
        judged = {"title": run.title, "gate": gate.to_dict(), "recomputed": recomputed.to_dict()}
        if run.provenance:
            judged["provenance"] = dict(run.provenance)
        console.print_json(results_to_dict([judgment.result for judgment in gate.judgments], **judged))
    else:
        shown = gate.judgments if every else gate.folded()
        # In GitHub Actions a line that starts with :: is a command, and titles and views come from files. Commands
        # stay off until a token that no file can contain.
        token = secrets.token_hex(16)
        if github:
            console.say(f"::stop-commands::{token}")
        console.print_table(Table(run.title, COLUMNS, gate.rows(shown)))
        if len(shown) < len(gate.judgments):
            hidden = len(gate.judgments) - len(shown)
            console.print_sentence(f"{hidden} variants further from their claims are not listed: --all lists them.")
        console.print_sentence(gate.sentence)
        for difference in recomputed.differences:
            console.print_sentence(f"{difference}.")
        console.print_sentence(f"{recomputed.sentence} Fingerprint {run.fingerprint}.")
        if github:
            errors = [f"::error title=results::{difference}" for difference in recomputed.differences]
            console.say(f"::{token}::", *errors, *annotation_lines(gate))
            append_to_summary(step_summary(gate, run.title))
    # Results that differ from the recomputed ones fail even where the latter pass: one of the files was changed.
    if gate.failed or recomputed.differences:
        raise typer.Exit(1)


def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Recompute every bound, claim test and verdict from the stored scores: `check` without limits."""
    check(directory, every=True, as_json=as_json)


def compare(
    directories: Annotated[
        list[Path], typer.Argument(help="Two run directories or more; all are compared with the first.")
    ],
    html: Annotated[Path | None, typer.Option(help="Also write an HTML page.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw all runs: a file .svg, .png or .html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: settings, claims, bounds and estimates side by side, and show which differences exceed noise."""
    from coalmine.runs.comparison import compare as compare_all

    comparison = compare_all(directories)
    # Charts and pages are written with --json too, which only decides what is printed.
    written = []
    if html is not None:
        from coalmine.files import write_text

        written.append(write_text(html, comparison.to_html()))
    if figure is not None:
        from coalmine.report.charts import save

        written.append(save(comparison.plot(), figure))
    if as_json:
        console.print_json(comparison.to_dict())
        return
    for table in comparison.tables:
        console.print_table(table)
        console.say()
    console.print_sentence(comparison.sentence)
    for path in written:
        console.say("", f"written to {path}")
