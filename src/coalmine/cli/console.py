"""What the command line prints: tables, sentences, progress bars, JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from coalmine.errors import CanaryWarning, DataWarning, Terminated
from coalmine.progress import Advance, listening

if TYPE_CHECKING:
    from coalmine.config.settings import Settings
    from coalmine.results.gate import Gate
    from coalmine.results.tables import Table


_PATIENCE = 2.0  # seconds before progress is printed without a terminal


def track(work: Iterable[Any]) -> Iterable[Any]:
    """Show a progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(work, console=console, transient=True, disable=not console.is_terminal)


def busy(what: str) -> AbstractContextManager[Any]:
    """Show a spinner on standard error, if that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


@contextmanager
def bars(*, quiet: bool = False) -> Iterator[None]:
    """Show progress on standard error: bars with the remaining time, or without a terminal a line at each tenth.

    Work of less than two seconds prints no lines.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        with listening(None if quiet else _tenths):
            yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=console, transient=True) as shown:

        def listener(what: str, total: int) -> tuple[Advance, Callable[[], None]]:
            task = shown.add_task(what, total=total or None, words="")
            return (
                lambda done, words: shown.update(task, completed=done, words=words),
                lambda: shown.remove_task(task),
            )

        with listening(listener):
            yield


@contextmanager
def exit_if_terminated(directory: Path | None) -> Iterator[None]:
    """Exit with code 143 after SIGTERM, and say how to go on."""
    try:
        yield
    except Terminated as stop:
        go_on = "" if directory is None else f"; continue with `coalmine resume {directory}`"
        print(f"coalmine: {stop}{go_on}", file=sys.stderr)
        raise typer.Exit(143) from None


def _tenths(what: str, total: int) -> tuple[Advance, Callable[[], None]]:
    start, last_tenth = time.monotonic(), 0

    def advance(done: int, words: str) -> None:
        nonlocal last_tenth
        tenth = 10 * done // total if total else 0
        if tenth > last_tenth and time.monotonic() - start > _PATIENCE:
            last_tenth = tenth
            print(f"{what}: {10 * tenth}% ({done:,} of {total:,})" + f"  {words}".rstrip(), file=sys.stderr, flush=True)

    return advance, lambda: None


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print our warnings as sentences, and others as Python does."""
    if issubclass(category, CanaryWarning | DataWarning):
        print(f"coalmine: {message}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def print_table(table: Table) -> None:
    """Print a table with numbers aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    drawn = RichTable(title=escape(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(table.columns):
        numeric = i > 0 and all(row[i].lstrip("-")[:1].isdigit() or row[i] in {"-", "∞"} for row in table.rows)
        drawn.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)  # a pipe has no width to wrap to
    console.print(drawn)


def print_settings(*groups: type[Settings]) -> None:
    """Print all settings with their defaults and meanings."""
    from coalmine.results.tables import Table

    rows = [
        [name, default_text(default), field.description or ""]
        for group in groups
        for name, field, default in group().walk()
    ]
    print_table(Table("settings: --set key=value", ["key", "default", "meaning"], rows))


def default_text(value: object) -> str:
    """Return a default as the command line would take it; a dash for none."""
    if value is None or value == {}:
        return "-"
    return ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)


def print_sentence(text: str) -> None:
    """Print a paragraph after an empty line, wrapped to the terminal."""
    print("\n" + textwrap.fill(text, min(shutil.get_terminal_size((118, 24)).columns, 118), break_on_hyphens=False))


def print_warnings(warnings: Iterable[str]) -> None:
    """Print each different warning as a sentence."""
    for warning in dict.fromkeys(warnings):
        print_sentence(f"Warning: {warning}" if warning.endswith((".", "?")) else f"Warning: {warning}.")


def print_json(content: dict[str, Any]) -> None:
    """Print JSON and nothing else."""
    print(json.dumps(content, indent=2, allow_nan=False))


def exit_if_failed(gate: Gate) -> None:
    """Exit with code 1 if the gate failed, with the reasons on standard error."""
    for judgment in gate.failures:
        label = f"{judgment.result.method}, {judgment.result.label}"
        print(f"coalmine: {label}: {gate.reason(judgment)}", file=sys.stderr)
    if gate.failed:
        raise typer.Exit(1)
