"""``coalmine run``, ``resume`` and what reads a run's directory: parses, calls, prints."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coalmine.cli import console

Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Directory = Annotated[Path, typer.Argument(help="A run's directory, as --out names it.", show_default=False)]


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    out: Annotated[Path, typer.Option(help="The run's directory.")] = Path("runs/demo"),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """All five audits on data that come along: about a minute, and a report in the end."""
    from coalmine.runs.demo import demo_settings
    from coalmine.runs.running import run as run_all

    with console.bars(quiet=quiet or as_json):
        found = run_all(demo_settings(seed), out=out)
    _finish(found.content, out, as_json)


def run(
    file: Annotated[Path, typer.Argument(help="The run as TOML; `coalmine init` writes one.", show_default=False)],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting over the file's, as table.key=value; may be given again."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's directory; runs/NAME, by the file's name, if not given.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """One training with all audits of a file, in a directory that survives a kill.

    Where the directory holds this run already, it goes on from there.
    """
    from coalmine.runs.public import directory_for
    from coalmine.runs.running import run as run_all
    from coalmine.runs.settings import read_run

    given = read_run(file, settings or [])
    directory = out or directory_for(file)
    with console.bars(quiet=quiet or as_json):
        found = run_all(given, out=directory)
    _finish(found.content, directory, as_json)


def resume(directory: Directory, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Go on with a run that was stopped, to the same bits as if it had not been."""
    from coalmine.results.directory import RunDirectory
    from coalmine.runs.running import run as run_all
    from coalmine.runs.settings import run_from_text

    stopped = RunDirectory(directory)
    stopped.about()
    given = run_from_text(stopped.config, str(directory / "config.toml"))
    with console.bars(quiet=quiet or as_json):
        found = run_all(given, out=directory)
    _finish(found.content, directory, as_json)


def report(
    directory: Directory,
    png: Annotated[
        Path | None, typer.Option("--png", help="Write every figure as PNG into this directory.", show_default=False)
    ] = None,
) -> None:
    """Draw a run that is done: report.html, one page that opens without a network."""
    from coalmine.report.page import write_figures, write_report

    with console.busy("drawing"):
        written = [write_report(directory), *([] if png is None else write_figures(directory, png))]
    for path in written:
        print(path)


def _finish(content: Mapping[str, Any], directory: Path, as_json: bool) -> None:
    """Show what was found, and draw it."""
    if as_json:
        console.print_json(dict(content))
    else:
        from coalmine.results.summary import columns, rows

        results = content.get("results", [content])
        console.print_table(str(content.get("title") or directory), columns(), rows(results))
        for sentence in dict(content.get("meanings", {})).values():
            console.print_sentence(sentence)
    draw(directory, as_json)


def draw(directory: Path, as_json: bool) -> None:
    """Draw the report of a directory, and say where all is.

    The results are written by now: a page that cannot be drawn loses nothing.
    """
    written = [f"written to {directory}"]
    try:
        from coalmine.report.page import write_report

        with console.busy("drawing"):
            written.append(f"written to {write_report(directory)}")
    except Exception as error:  # whatever it is, the run itself has succeeded
        print(
            f"coalmine: the report could not be drawn ({error}); the results are complete, and `coalmine report "
            f"{directory}` tries again",
            file=sys.stderr,
        )
    if not as_json:
        print("\n" + "\n".join(written))
