"""``coalmine sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coalmine.cli import console
from coalmine.cli.exits import repeatable, time_limit
from coalmine.cli.options import AsJson, Quiet, Timeout


def sweep(
    file: Annotated[
        Path, typer.Argument(help="Settings of the runs as TOML; `coalmine init` writes them.", show_default=False)
    ],
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

    with time_limit(timeout), repeatable(), console.bars(quiet=quiet or as_json):
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
