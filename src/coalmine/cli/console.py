"""What people see: tables, sentences, progress. And what machines see."""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from coalmine import __version__
from coalmine.errors import DataWarning
from coalmine.progress import Advance, listening

if TYPE_CHECKING:
    from coalmine.config.settings import Settings
    from coalmine.stats import Estimate


_PATIENCE = 2.0  # seconds before anything is said where there is no terminal


def track(work: Iterable[Any]) -> Iterable[Any]:
    """A progress bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(work, console=console, transient=True, disable=not console.is_terminal)


def busy(what: str) -> AbstractContextManager[Any]:
    """A spinner on standard error while something takes its time, where that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


@contextmanager
def bars(*, quiet: bool = False) -> Iterator[None]:
    """Show on standard error how far everything is: bars with the time that is left, or a line at each tenth.

    The lines are for where standard error is no terminal, and for what takes longer than two seconds.
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


def _tenths(what: str, total: int) -> tuple[Advance, Callable[[], None]]:
    start, told = time.monotonic(), 0

    def advance(done: int, words: str) -> None:
        nonlocal told
        tenth = 10 * done // total if total else 0
        if tenth > told and time.monotonic() - start > _PATIENCE:
            told = tenth
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
    """Ours are sentences for people; others stay as Python shows them."""
    if issubclass(category, DataWarning):
        print(f"coalmine: {message}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def number(value: float | None, digits: int) -> str:
    """A number with so many digits after the point; a dash for None, ∞ for infinity."""
    if value is None:
        return "-"
    return "∞" if value == math.inf else f"{value:.{digits}f}"


def print_estimates(found: list[Estimate], title: str) -> None:
    """A row for each estimate: what it says, and what it is."""
    from coalmine.results import words

    rows = [
        [
            e.method,
            number(e.epsilon, 3),
            number(e.lower, 3),
            number(e.upper, 3),
            "-" if e.threshold is None else f"{e.threshold:.4g}",
            words.kind(e),
        ]
        for e in found
    ]
    print_table(title, ["method", "ε", "lower", "upper", "threshold", "what it is"], rows)


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table with numbers to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        numeric = i > 0 and all(row[i].lstrip("-")[:1].isdigit() or row[i] in {"-", "∞"} for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        # A pipe has no width to fit into: nothing is wrapped.
        console = Console(width=240)
    console.print(table)


def print_settings(*groups: type[Settings]) -> None:
    """All settings with their defaults and what they mean."""
    rows = [
        [name, _default(default), description] for group in groups for name, default, description in group.described()
    ]
    print_table("settings: --set key=value", ["key", "default", "what it is"], rows)


def _default(value: object) -> str:
    if value is None or value == {}:
        return "-"
    return ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)


def print_sentence(text: str) -> None:
    """Text after an empty line, wrapped to the terminal."""
    print("\n" + textwrap.fill(text, min(shutil.get_terminal_size((118, 24)).columns, 118), break_on_hyphens=False))


def print_json(content: dict[str, Any]) -> None:
    """The result for machines, with the schema and the version."""
    print(json.dumps({"schema": 1, "coalmine": __version__, **content}, indent=2, allow_nan=False))
