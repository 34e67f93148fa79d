"""What people see: tables, sentences, progress. And what machines see."""

from __future__ import annotations

import json
import math
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from coalmine import __version__

if TYPE_CHECKING:
    from coalmine.config.settings import Settings
    from coalmine.stats import Estimate


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


def round_bar(rounds: int, done: int, what: str) -> Callable[[Mapping[str, float]], None] | None:
    """What to call after each round so that a bar moves on standard error; None where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(what, total=rounds, completed=done)
    bar.start()

    def advance(metrics: Mapping[str, float]) -> None:
        bar.update(task, completed=metrics["round"] + 1)
        if metrics["round"] + 1 == rounds:
            bar.stop()

    return advance


def number(value: float | None, digits: int) -> str:
    """A number with so many digits after the point; a dash for None, ∞ for infinity."""
    if value is None:
        return "-"
    return "∞" if value == math.inf else f"{value:.{digits}f}"


def print_estimates(found: list[Estimate], title: str) -> None:
    """A row for each estimate: what it says, and what it is."""
    from coalmine import words

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
