"""The commands that make run directories, from ``demo`` to ``sweep``, and those that read them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coalmine.cli import console
from coalmine.cli.console import AsJson, Directory, Quiet, Tracker
from coalmine.errors import InputError

if TYPE_CHECKING:
    from coalmine.results.gate import Gate
    from coalmine.runs.settings import RunSettings

SettingsFile = Annotated[Path, typer.Argument(help="Settings as TOML; `coalmine init` writes them.")]


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed for all random choices.")] = 0,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("runs/demo"),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Audit a training on bundled data in three ways, then the same training with a bug (half a minute)."""
    from coalmine.runs.settings import demo_settings

    _run(demo_settings(seed), out, quiet, as_json)
    if not as_json:  # which prints one object, of one run
        console.print_sentence("Now the same training, but its mechanism forgets to add noise to one tensor:")
        _run(demo_settings(seed, bug=True), out.with_name(f"{out.name}-bug"), quiet, as_json)


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
    if bool(preset) == bool(method):
        cases = "; ".join(f"{case} ({about(case)})" for case in PRESETS)
        raise InputError(f"choose either --method NAME or --preset NAME, one of: {cases}")
    write_text(file, from_preset(preset) if preset else for_methods(method or []))
    console.say(f"written to {file}: run it with `coalmine run {file}`")


def run(
    file: SettingsFile,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting of the file: table.key=value. Repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; by default runs/NAME for NAME.toml.")] = None,
    track: Annotated[Tracker | None, typer.Option(help="Log rounds and results to an experiment tracker.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train with all audits of a settings file, in a resumable run directory; exit code 1 if a claim is refuted.

    If the directory already holds this run, it continues.
    """
    from coalmine.files import read_text
    from coalmine.runs.running import RUNS
    from coalmine.runs.settings import run_from_text

    directory = out or RUNS / file.stem
    settings_of_run = run_from_text(read_text(file), str(file), settings or [])
    gate = _run(settings_of_run, directory, quiet, as_json, track)
    if out is None:  # runs/ is ours; whatever else is beside a directory of the user's choice is not
        from coalmine.runs.comparison import write_index

        write_index(directory.parent)
    console.exit_if_failed(gate)  # last, since everything is written all the same


def resume(directory: Directory, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Resume a stopped run; the results are bit-identical to an uninterrupted run."""
    from coalmine.results.directory import RunDirectory
    from coalmine.runs.settings import run_from_text

    stopped = RunDirectory(directory)
    stopped.about()  # raises unless this is a directory of coalmine's own
    settings = run_from_text(stopped.config, str(directory / "config.toml"))
    console.exit_if_failed(_run(settings, directory, quiet, as_json))


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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a settings file with several values and seeds, and draw ε against the first setting.

    Exit code 1 if a claim is refuted. A sweep that was stopped continues with the same command. More values or seeds
    reuse the runs that are there.
    """
    from coalmine.report.charts import FORMATS, save
    from coalmine.results.io import results_to_dict
    from coalmine.runs.sweep import sweep as run_all
    from coalmine.runs.sweep import values_from_texts

    # The files of finished runs stay where they are: nothing but the command is needed to go on.
    with console.working("the same command continues", kept=file, quiet=quiet or as_json):
        swept = run_all(file, values_from_texts(settings or []), seeds=seeds, workers=workers, out=out)
    # The runs took long, so what they show is printed before anything is drawn.
    if as_json:
        console.print_json(results_to_dict([], sweep=swept.to_dict()))
    else:
        console.print_table(swept.table)
        console.print_sentence(swept.sentence)
    with console.busy("drawing"):
        figure = swept.plot()
        written = [save(figure, swept.directory / f"epsilon{ending}") for ending in FORMATS[:3]]
    if not as_json:
        console.say("", f"runs in {swept.directory}", *(f"written to {path}" for path in written))
        if seeds > 1 and len(swept.axes) > 1:
            console.say(f"means over seeds: `coalmine compare {swept.directory} --group-by {next(iter(swept.axes))}`")
    for name, gate in swept.gates.items():
        for about, reason in gate.reasons:
            console.complain(f"{name}: {about}: {reason}")
    _report_failures(swept.failures, bool(swept.refuted))
    if swept.refuted:
        raise typer.Exit(1)


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
    console.say(f"{directory} is logged to {to}: {tracked.place}")


# Finished runs


def report(directory: Directory) -> None:
    """Draw the report of a finished run: one HTML file that opens offline."""
    from coalmine.report.page import write_report

    with console.busy("drawing"):
        written = write_report(directory)
    console.say(written)


def model_card(directory: Directory) -> None:
    """Print a section for a model card: the privacy statement and the audit's evidence, in Markdown."""
    from coalmine.report.page import model_card as card_of
    from coalmine.results.io import read_run_directory, refusing_damage

    with refusing_damage(directory):
        text = card_of(read_run_directory(directory))
    console.say(*text.splitlines())


def check(
    directory: Directory,
    max_epsilon: Annotated[float | None, typer.Option(help="Largest ε allowed, claimed and proven.")] = None,
    max_claimed: Annotated[float | None, typer.Option(help="Largest claimed ε allowed.")] = None,
    max_proven: Annotated[float | None, typer.Option(help="Largest lower bound on ε allowed.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What must not stop the gate: no-mechanism (no finite ε is claimed), extracted-phrases, or findings "
            "(bugs that checks found). Repeatable.",
        ),
    ] = None,
    view: Annotated[list[str] | None, typer.Option(help="Only this view. Repeatable.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method. Repeatable.")] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="One minus the false-alarm rate of the gate; by default as in the run's settings (0.95)."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Also fail on the verdicts suspicious and too weak, or if nothing was checked."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Gate for CI: recompute everything from the scores; exit code 1 if a claim is refuted or a limit exceeded.

    Bounds, claim tests and verdicts are computed again from the stored scores and settings, and stored numbers are
    ignored. Exit code 1 also if they differ from the recomputed ones, if a limit applies to no result, if there is no
    privacy mechanism, if inserted phrases can be extracted, or if a check found a bug. Claims are tested with or
    without limits.
    """
    from coalmine.results.gate import COLUMNS, judge
    from coalmine.results.io import read_run_directory, refusing_damage, results_to_dict
    from coalmine.results.tables import Table
    from coalmine.runs.recompute import recompute

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
            max_claimed=max_claimed,
            max_proven=max_proven,
            confidence=confidence,
            objections=recomputed.objections,
            allow=allow or [],
            strict=strict,
        )
    if as_json:
        judged = {"title": run.title, "gate": gate.to_dict(), "recomputed": recomputed.to_dict()}
        if run.provenance:
            judged["provenance"] = dict(run.provenance)
        console.print_json(results_to_dict([judgment.result for judgment in gate.judgments], **judged))
    else:
        shown = gate.folded()
        console.print_decision(gate)
        console.print_table(Table(run.title, COLUMNS, gate.rows(shown)))
        hidden = len(gate.judgments) - len(shown)
        if hidden:
            console.print_sentence(f"{hidden} variants further from their claims are not listed: --json has them.")
        for about, reason in gate.reasons[1:]:  # the first is part of the decision
            console.print_sentence(f"{about}: {reason}.")
        console.print_warnings(warning for judgment in gate.judgments for warning in judgment.result.warnings)
        console.print_sentence(gate.terms)
        console.print_sentence(f"{recomputed.sentence} Fingerprint {run.fingerprint}.")
    if gate.failed:
        raise typer.Exit(1)


def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Recompute every bound, claim test and verdict from the stored scores: `check` that asks for no mechanism."""
    from coalmine.results.gate import EXTRACTED, NO_MECHANISM

    check(directory, allow=[NO_MECHANISM, EXTRACTED], as_json=as_json)


def compare(
    directories: Annotated[
        list[Path],
        typer.Argument(help="Two run directories or more, or those in a sweep's; all are compared with the first."),
    ],
    group_by: Annotated[
        list[str] | None,
        typer.Option(help="Pool runs, such as seeds, with the same value of this setting. Repeatable."),
    ] = None,
    only: Annotated[str, typer.Option(help="Compare views that contain this text, such as 'one-shot, updates'.")] = "",
    html: Annotated[Path | None, typer.Option(help="Also write an HTML page.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw all runs: a file .svg, .pdf, .png or .html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: settings, claims, bounds and estimates side by side, and show which differences exceed noise.

    With --group-by, the runs of each value are pooled: means, spreads, and differences with their uncertainty.
    """
    from coalmine.results.directory import RESULT
    from coalmine.runs import comparison as comparing

    runs: list[Path] = []
    for directory in directories:
        runs += sorted(path.parent for path in directory.glob(f"*/{RESULT}")) or [directory]
    groups = comparing.groups_by_setting(runs, group_by) if group_by else None
    comparison = comparing.compare(runs, groups=groups, by=", ".join(group_by or []), only=only)
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
        console.say("")
    console.print_sentence(comparison.sentence)
    for path in written:
        console.say("", f"written to {path}")


# Shared


def _run(settings: RunSettings, out: Path, quiet: bool, as_json: bool, track: str | None = None) -> Gate:
    """Run, print a summary of all methods, draw the report, and return the gate."""
    from coalmine.integrations.tracking import log_run, tracker
    from coalmine.results.gate import judge
    from coalmine.results.summary import causes_of, not_tested
    from coalmine.results.tables import Table
    from coalmine.runs.recompute import objections
    from coalmine.runs.running import run as run_all

    with nullcontext() if track is None else tracker(track, name=out.resolve().name) as tracked:
        go_on, started = f"continue with `coalmine resume {out}`", out / "run.json"
        with console.working(go_on, kept=started, quiet=quiet or as_json):
            finished = run_all(settings, out=out, watch=None if tracked is None else tracked.log_round)
        if tracked is not None:
            log_run(out, tracked, rounds=False)  # they were logged while it ran
    gate = judge(finished.results)
    if as_json:
        console.print_json({**finished.content, "gate": gate.to_dict()})
    else:
        console.print_decision(gate, objections(finished.methods))
        console.print_table(Table.of_results(finished.results, settings.run.title or str(out)))
        summaries = [method.summary for method in finished.methods if method.summary]
        for sentence in [*summaries, *map(str, causes_of(finished.results)), not_tested(finished.results)]:
            console.print_sentence(sentence)
    draw(out, as_json)
    if tracked is not None and not as_json:
        console.say(f"logged to {track}: {tracked.place}")
    _report_failures([method.failure for method in finished.methods if method.failure], gate.failed)
    return gate


def _report_failures(failures: Sequence[str], refuted: bool) -> None:
    """Say which methods have no result: as an error, unless a claim is refuted, which matters more."""
    if failures and not refuted:
        raise InputError("; ".join(failures))
    for failure in failures:
        console.complain(failure)


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
