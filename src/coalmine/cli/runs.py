"""``coalmine demo``, ``init``, ``run``, ``resume``, ``sweep`` and ``log``: everything that makes run directories."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coalmine.cli import console
from coalmine.cli.console import AsJson, Directory, Quiet, Timeout, Tracker
from coalmine.cli.exits import continued_by, time_limit
from coalmine.errors import InputError

if TYPE_CHECKING:
    from coalmine.runs.settings import RunSettings

SettingsFile = Annotated[Path, typer.Argument(help="Settings as TOML; `coalmine init` writes them.")]


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed for all random choices.")] = 0,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("runs/demo"),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run five methods on bundled data, then a training with a bug, and write both reports (about a minute)."""
    from coalmine.runs.settings import demo_settings

    _run(demo_settings("demo", seed), out, quiet, as_json)
    if not as_json:  # which prints one object, of one run
        console.print_sentence("Now a training whose mechanism forgets to add noise to one tensor:")
        _run(demo_settings("demo-bug", seed), out.with_name(f"{out.name}-bug"), quiet, as_json)


def init(
    file: Annotated[Path, typer.Argument(help="File to write.")] = Path("audit.toml"),
    preset: Annotated[
        Literal["digits", "text", "images", "local", "all"] | None, typer.Option(help="The case it is for.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Instead of a preset: a method to audit with. Repeatable.")
    ] = None,
) -> None:
    """Write a commented settings file for `coalmine run`."""
    from coalmine.files import write_text
    from coalmine.runs.settings import PRESETS, about, for_methods, from_preset

    if file.exists():  # its settings may have been edited
        raise InputError(f"{file} already exists: choose another name")
    if preset is not None and not method:
        write_text(file, from_preset(preset))
    elif method and preset is None:
        write_text(file, for_methods(method))
    else:
        cases = "; ".join(f"{case} ({about(case)})" for case in PRESETS)
        raise InputError(f"choose either --method NAME or --preset NAME, one of: {cases}")
    console.say(f"written to {file}: run it with `coalmine run {file}`")


def run(
    file: SettingsFile,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting of the file: table.key=value. Repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; by default runs/NAME for NAME.toml.")] = None,
    track: Annotated[Tracker | None, typer.Option(help="Log rounds and results to an experiment tracker.")] = None,
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
    stopped.about()  # raises unless this is a directory of coalmine's own
    _run(run_from_text(stopped.config, str(directory / "config.toml")), directory, quiet, as_json, timeout)


def sweep(
    file: SettingsFile,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Values of a setting: table.key=A,B,C. Repeat for all combinations."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination, with seeds counted up.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the sweep; by default runs/NAME-sweep for NAME.toml.")
    ] = None,
    timeout: Timeout = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a settings file with several values and seeds, and draw ε against the first setting.

    A sweep that was stopped continues with the same command. More values or seeds reuse the runs that are there.
    """
    from coalmine.report.charts import FORMATS, save
    from coalmine.results.io import envelope
    from coalmine.runs.sweep import sweep as run_all
    from coalmine.runs.sweep import values_from_texts

    again = continued_by("the same command continues", kept=file)
    # The files of finished runs stay where they are: nothing but the command is needed to go on.
    with time_limit(timeout), again, console.bars(quiet=quiet or as_json):
        swept = run_all(file, values_from_texts(settings or []), seeds=seeds, workers=workers, out=out)
    with console.busy("drawing"):
        figure = swept.plot()
        written = [save(figure, swept.directory / f"epsilon{ending}") for ending in FORMATS]
    if as_json:
        console.print_json(envelope([], sweep=swept.to_dict()))
        return
    console.print_table(swept.table)
    console.print_sentence(swept.sentence)
    console.say("", f"runs in {swept.directory}", *(f"written to {path}" for path in written))


def log(
    directory: Directory,
    to: Annotated[Tracker, typer.Option(help="The tracker.")],
    where: Annotated[
        str | None, typer.Option(help="MLflow's tracking URI, or a directory for the tracker's files.")
    ] = None,
    project: Annotated[str, typer.Option(help="MLflow's experiment, or the project of Weights & Biases.")] = "coalmine",
    name: Annotated[str | None, typer.Option(help="Name of the run there; by default that of the directory.")] = None,
) -> None:
    """Log a finished run to an experiment tracker: numbers of each round, settings, results and report."""
    from coalmine.integrations.tracking import log_run, tracker

    with tracker(to, where=where, project=project, name=name or directory.resolve().name) as tracked:
        log_run(directory, tracked)
    console.say(f"{directory} is logged to {to}")


def _run(
    settings: RunSettings, out: Path, quiet: bool, as_json: bool, timeout: float | None = None, track: str | None = None
) -> None:
    """Run, print a summary of all methods, and draw the report."""
    from coalmine.results.summary import finding_sentences
    from coalmine.results.tables import Table
    from coalmine.runs.running import run as run_all

    with ExitStack() as stack:
        watch = None
        if track is not None:
            from coalmine.integrations.tracking import log_run, tracker

            tracked = stack.enter_context(tracker(track, name=out.resolve().name))
            watch = tracked.log_round
        # Bars come last, so that they vanish before a sentence about the end is printed.
        stack.enter_context(time_limit(timeout))
        stack.enter_context(continued_by(f"continue with `coalmine resume {out}`", kept=out / "run.json"))
        stack.enter_context(console.bars(quiet=quiet or as_json))
        finished = run_all(settings, out=out, watch=watch)
        if track is not None:
            log_run(out, tracked, rounds=False)  # they were logged while it ran
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
        retry = f"the results are complete, and `coalmine report {directory}` tries again"
        console.complain(f"the report could not be drawn ({error}); {retry}")
    if not as_json:
        console.say("", *written)
