"""``coalmine demo``, ``run``, ``resume``, ``report`` and ``model-card``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine.cli import console
from coalmine.cli.exits import resumable, time_limit
from coalmine.cli.log import log_results, tracker_of
from coalmine.cli.options import AsJson, Directory, Quiet, Timeout, Track

if TYPE_CHECKING:
    from coalmine.runs.settings import RunSettings


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed for all random choices.")] = 0,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("runs/demo"),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run five methods on bundled data, then a training with a bug, and write both reports (about a minute)."""
    from coalmine.runs.presets import demo_settings

    _run(demo_settings("demo", seed), out, quiet, as_json)
    if not as_json:
        console.print_sentence("Now a training whose mechanism forgets to add noise to one tensor:")
        _run(demo_settings("demo-bug", seed), out.with_name(f"{out.name}-bug"), quiet, as_json)


def run(
    file: Annotated[
        Path, typer.Argument(help="Settings of the run as TOML; `coalmine init` writes them.", show_default=False)
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting of the file: table.key=value. Repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; by default runs/NAME for NAME.toml.")] = None,
    track: Track = None,
    timeout: Timeout = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train with all audits of a settings file, in a resumable run directory.

    If the directory already holds this run, it continues.
    """
    from coalmine.runs.running import directory_for
    from coalmine.runs.settings import read_run

    directory = out or directory_for(file)
    _run(read_run(file, settings or []), directory, quiet, as_json, timeout, track)
    if out is None:  # runs/ is ours; whatever else is beside a directory of the user's choice is not
        from coalmine.runs.comparison import write_index

        write_index(directory.parent)


def resume(directory: Directory, timeout: Timeout = None, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Resume a stopped run; the results are bit-identical to an uninterrupted run."""
    from coalmine.results.directory import RunDirectory
    from coalmine.runs.settings import run_from_text

    stopped = RunDirectory(directory)
    stopped.about()
    _run(run_from_text(stopped.config, str(directory / "config.toml")), directory, quiet, as_json, timeout)


def report(
    directory: Directory,
    png: Annotated[
        Path | None,
        typer.Option("--png", help="Also write every figure as PNG into this directory.", show_default=False),
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
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead.", show_default=False)] = None,
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


def _run(
    settings: RunSettings, out: Path, quiet: bool, as_json: bool, timeout: float | None = None, track: str | None = None
) -> None:
    """Run, print a summary of all methods, and draw the report."""
    from coalmine.results.summary import finding_sentences
    from coalmine.results.tables import Table
    from coalmine.runs.running import run as run_all

    with ExitStack() as stack:
        tracked = None if track is None else stack.enter_context(tracker_of(track, out))
        stack.enter_context(time_limit(timeout, out))
        stack.enter_context(resumable(out))
        stack.enter_context(console.bars(quiet=quiet or as_json))
        finished = run_all(settings, out=out, watch=None if tracked is None else tracked.log_round)
        if tracked is not None:
            log_results(out, tracked)
    if as_json:
        console.print_json(dict(finished.content))
    else:
        console.print_table(Table.of_results(finished.results, settings.run.title or str(out)))
        for method in finished.methods:
            if method.summary:
                console.print_sentence(method.summary)
        for sentence in finding_sentences(finished.results):
            console.print_sentence(sentence)
    draw(out, as_json)


def draw(directory: Path, as_json: bool) -> None:
    """Draw the report of a directory and say where everything is.

    The results are written by now, so a failure to draw loses nothing.
    """
    written = [f"written to {directory}"]
    try:
        from coalmine.report.page import write_report

        with console.busy("drawing"):
            written.append(f"written to {write_report(directory)}")
    except Exception as error:  # whatever goes wrong here, the run itself has succeeded
        console.complain(
            f"the report could not be drawn ({error}); the results are complete, and `coalmine report {directory}` "
            "tries again"
        )
    if not as_json:
        console.say("", *written)
