"""``coalmine reproduce``: tables and figures of the papers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from coalmine.cli import console
from coalmine.errors import InputError, did_you_mean


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which one; without a name, all are listed.")] = None,
    scale: Annotated[
        Literal["quick", "full"], typer.Option(help="quick (at most 10 minutes) or full (up to a few hours).")
    ] = "quick",
    seed: Annotated[int, typer.Option(min=0, help="Seed for all random choices.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from --seed on: shows means and spreads.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Directory for table, figures and finished parts; continues where it stopped.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    data: Annotated[
        str | None, typer.Option(help="Only this data set, where there are several.", show_default=False)
    ] = None,
) -> None:
    """Reproduce a table or figure of a paper, next to the paper's numbers."""
    from coalmine.results.tables import Table
    from coalmine_reproductions.catalog import REPRODUCTIONS, find
    from coalmine_reproductions.figures import save_in_every_format
    from coalmine_reproductions.table import Context

    if name is None:
        rows = [[title, _summary(function)] for title, function in REPRODUCTIONS.items()]
        console.print_table(Table("reproductions", ["name", "what it computes"], rows))
        return
    known = find(name)
    if known is None:
        raise InputError(f'unknown reproduction "{name}". {did_you_mean(name, REPRODUCTIONS)}')
    if data is not None and not known.startswith("ldp"):
        raise InputError(f"{known} has its own data: leave out --data")
    context = Context(seed, scale, _track, out, workers, data, seeds)
    with console.working("the same command continues", kept=out, quiet=True):
        table = context.over_seeds(REPRODUCTIONS[known])
    written = context.keep_table(known, table)
    console.print_table(Table(table.title, table.columns, table.rows))
    if table.note:
        console.print_sentence(table.note)
    for claim in table.judged():
        console.print_sentence(str(claim))
    if written is not None:
        console.say("", f"written to {written}")
        for path in save_in_every_format(table.draw(), written.parent):
            console.say(f"written to {path}")


def _summary(function: Callable[..., object]) -> str:
    """Return the first line of a docstring, without its full stop."""
    return (function.__doc__ or "").strip().splitlines()[0].rstrip(".")


def _track(work: Iterable[Any]) -> Iterable[Any]:
    """Show a progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    shown = Console(stderr=True)
    return track(work, console=shown, transient=True, disable=not shown.is_terminal)
