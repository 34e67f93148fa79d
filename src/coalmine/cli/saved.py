"""``coalmine check``, ``verify``, ``compare`` and ``init``."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from coalmine.cli import console
from coalmine.cli.options import AsJson, Directory
from coalmine.errors import InputError, did_you_mean


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
    junit: Annotated[Path | None, typer.Option(help="Also write the outcome as JUnit XML.")] = None,
    github: Annotated[
        bool, typer.Option("--github", help="In GitHub Actions: also write a step summary and annotations.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Gate for CI: recompute everything from the scores; exit code 1 if a claim is refuted or a limit exceeded.

    Bounds, claim tests and verdicts are computed again from the stored scores and settings, and stored numbers are
    ignored. Exit code 1 also if they differ from the recomputed ones, or if the limit applies to no result.
    """
    from coalmine.results import ci
    from coalmine.results.gate import COLUMNS, judge
    from coalmine.results.io import read_run_directory, refusing_damage, results_to_dict
    from coalmine.results.tables import Table
    from coalmine.runs.recompute import recompute

    if github and as_json:
        raise InputError("give --github or --json, not both: annotations are lines on standard output")
    if github:
        ci.append_to_summary()  # refuse before anything is printed
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
    if junit is not None:
        ci.write_junit(gate, run.title, junit)
    if as_json:
        judged = {"title": run.title, "gate": gate.to_dict(), "recomputed": recomputed.to_dict()}
        if run.provenance:
            judged["provenance"] = dict(run.provenance)
        console.print_json(results_to_dict([judgment.result for judgment in gate.judgments], **judged))
    else:
        shown = gate.judgments if every else gate.folded()
        # In GitHub Actions a line that starts with :: is a command, and titles and views come from files.
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
            console.say(f"::{token}::", *errors, *ci.annotation_lines(gate))
            ci.append_to_summary(ci.step_summary(gate, run.title))
    if gate.failed or recomputed.differences:
        raise typer.Exit(1)


def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Recompute every bound, claim test and verdict from the stored scores: `check` without limits."""
    check(directory, every=True, as_json=as_json)


def compare(
    directories: Annotated[
        list[Path],
        typer.Argument(help="Two run directories or more; all are compared with the first.", show_default=False),
    ],
    html: Annotated[Path | None, typer.Option(help="Also write an HTML page.", show_default=False)] = None,
    png: Annotated[Path | None, typer.Option(help="Also draw all runs, as PNG.", show_default=False)] = None,
    svg: Annotated[Path | None, typer.Option(help="Also draw all runs, as SVG.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: settings, claims, bounds and estimates side by side, and show which differences exceed noise."""
    from coalmine.runs.comparison import compare as compare_all

    comparison = compare_all(directories)
    written = []
    if html is not None:
        from coalmine.files import write_text

        written.append(write_text(html, comparison.to_html()))
    for path, ending in ((png, ".png"), (svg, ".svg")):
        if path is not None:
            from coalmine.report.charts import save

            written.append(save(comparison.plot(), path if path.suffix == ending else path.with_suffix(ending)))
    if as_json:
        console.print_json(comparison.to_dict())
        return
    for table in comparison.tables:
        console.print_table(table)
        console.say()
    console.print_sentence(comparison.sentence)
    for path in written:
        console.say("", f"written to {path}")


def init(
    file: Annotated[Path, typer.Argument(help="File to write.")] = Path("audit.toml"),
    preset: Annotated[
        Literal["digits", "text", "images", "local", "all"] | None,
        typer.Option(help="The case it is for; you are asked if not given.", show_default=False),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Instead of a preset: a method to audit with. Repeatable.", show_default=False),
    ] = None,
) -> None:
    """Write a commented settings file for `coalmine run`."""
    from coalmine.files import write_text
    from coalmine.runs.presets import PRESETS, about, for_methods, from_preset

    if file.exists():
        raise InputError(f"{file} already exists: choose another name")
    if preset is not None and method:
        raise InputError("give --preset or --method, not both")
    name: str | None = preset
    if name is None and not method:
        if not sys.stdin.isatty():
            raise InputError(f"choose a preset: --preset {', '.join(PRESETS)} (the question needs a terminal)")
        console.say("What do you want to audit?", *(f"  {case:8} {about(case)}" for case in PRESETS))
        name = typer.prompt("case", default="digits")
        if name not in PRESETS:
            raise InputError(f'unknown case "{name}". {did_you_mean(str(name), PRESETS)}')
    write_text(file, for_methods(method or []) if name is None else from_preset(name))
    console.say(f"written to {file}: run it with `coalmine run {file}`")
