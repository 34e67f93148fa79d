"""``coalmine check``, ``compare``, ``serve`` and ``init``."""

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
    """Gate for CI: exit code 1 if a lower bound exceeds the limit or refutes a claim, or the limit applies to none."""
    from coalmine.results import github as actions
    from coalmine.results.files import results_to_dict
    from coalmine.results.gate import COLUMNS, judge
    from coalmine.results.saved import read_run_directory
    from coalmine.results.tables import Table

    if github and as_json:
        raise InputError("give --github or --json, not both: annotations are lines on standard output")
    if github:
        actions.append_to_summary()  # refuse before anything is printed
    run = read_run_directory(directory)
    terms = {"max_epsilon": max_epsilon, "confidence": confidence, "strict": strict}
    gate = judge(run.results, methods=method or [], views=view or [], **terms)  # type: ignore[arg-type]
    if junit is not None:
        from coalmine.results.junit import write_junit

        write_junit(gate, run.title, junit)
    if as_json:
        judged = results_to_dict([j.result for j in gate.judgments], title=run.title, gate=gate.to_dict())
        console.print_json({**judged, **({"provenance": origin} if (origin := dict(run.provenance)) else {})})
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
        if github:
            console.say(f"::{token}::", *actions.annotation_lines(gate))
            actions.append_to_summary(actions.summary(gate, run.title))
    if gate.failed:
        raise typer.Exit(1)


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
    from coalmine.results.tables import Table
    from coalmine.runs.comparison import COLUMNS, SETTINGS_COLUMNS
    from coalmine.runs.comparison import compare as compare_all

    comparison = compare_all(directories)
    written = []
    if html is not None:
        from coalmine.files import write_text
        from coalmine.runs.comparison_page import comparison_page

        written.append(write_text(html, comparison_page(comparison)))
    for path, ending in ((png, ".png"), (svg, ".svg")):
        if path is not None:
            from coalmine.report.charts import save

            written.append(save(comparison.plot(), path if path.suffix == ending else path.with_suffix(ending)))
    if as_json:
        console.print_json(comparison.to_dict())
        return
    if comparison.settings:
        columns = [*SETTINGS_COLUMNS, *comparison.runs]
        console.print_table(Table("settings that differ", columns, comparison.settings))
        console.say()
    console.print_table(Table(f"compared with {comparison.runs[0]}", COLUMNS, [row.cells() for row in comparison.rows]))
    console.print_sentence(comparison.sentence)
    for path in written:
        console.say("", f"written to {path}")


def serve(
    directory: Annotated[Path, typer.Argument(help="Directory that holds the runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 picks a free one.")] = 8123,
) -> None:
    """Serve a live page of all runs, on this machine only (127.0.0.1)."""
    from coalmine.runs.server import Server

    with Server(directory, port) as server:
        console.say(f"runs in {directory}: {server.address} (stop with Ctrl-C)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.say("stopped")


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
    from coalmine.runs.presets import PRESETS, for_methods, written

    if file.exists():
        raise InputError(f"{file} already exists: choose another name")
    if preset is not None and method:
        raise InputError("give --preset or --method, not both")
    if preset is not None:
        text = written(PRESETS[preset])
    elif method:
        text = written(for_methods(method))
    elif sys.stdin.isatty():
        text = _ask()
    else:
        raise InputError(f"choose a preset: --preset {', '.join(PRESETS)} (interactive questions need a terminal)")
    write_text(file, text)
    console.say(f"written to {file}: run it with `coalmine run {file}`")


def _ask() -> str:
    """Return the file that a few answers lead to."""
    from coalmine.runs.presets import PRESETS, adapted, written

    console.say("What do you want to audit? Press Enter to accept the default in brackets.")
    for name, preset in PRESETS.items():
        console.say(f"  {name:8} {preset.about}")
    name = typer.prompt("case", default="digits")
    if name not in PRESETS:
        raise InputError(f'unknown case "{name}". {did_you_mean(name, PRESETS)}')
    answers = {key: typer.prompt(question, default=default) for key, question, default in PRESETS[name].questions()}
    return written(adapted(PRESETS[name], answers))
