"""What the command line prints: tables, sentences, progress, JSON; and the options that several commands share.

Nothing else in `coalmine.cli` prints. Names of files, columns and phrases come from outside, so control characters in
them are shown escaped: ESC could recolor, rewrite or hide what a terminal shows.
"""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from coalmine import progress
from coalmine.errors import CanaryWarning, DataWarning

if TYPE_CHECKING:
    from coalmine.results.gate import Gate
    from coalmine.results.tables import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress.")]
Timeout = Annotated[float | None, typer.Option(min=1e-3, metavar="SECONDS", help="Stop after so many seconds.")]
Tracker = Literal["mlflow", "tensorboard", "wandb"]
Directory = Annotated[Path, typer.Argument(help="A run directory.")]
Delta = Annotated[float, typer.Option(help="δ at which ε is stated.")]
Confidence = Annotated[float, typer.Option(help="Confidence of bounds and intervals.")]

_PATIENCE = 2.0  # seconds before progress is printed without a terminal
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode's categories of characters that control instead of being shown


def printable(text: str) -> str:
    """Return a text with control characters escaped, line breaks included.

    Example:
        >>> printable("a\\x1b[31m.csv")
        'a\\\\x1b[31m.csv'
    """
    if text.isascii() and text.isprintable():  # nearly always
        return text
    shown = []
    for character in text:
        unseen = unicodedata.category(character) in _UNSEEN
        shown.append(character.encode("unicode_escape").decode() if unseen else character)
    return "".join(shown)


def say(*lines: object) -> None:
    """Print lines on standard output."""
    for line in lines or ("",):
        print(printable(str(line)), flush=True)


def complain(sentence: object) -> None:
    """Print a sentence on one line of standard error, after the program's name."""
    line = " ".join(part.strip() for part in str(sentence).splitlines())
    print(f"coalmine: {printable(line)}", file=sys.stderr, flush=True)


def prepare() -> None:
    """Make the standard streams survive characters that they cannot encode, and print warnings as sentences."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    printed: set[str] = set()  # each warning is printed once, however many runs give it

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        # Our own warnings are about the user's data; those of libraries keep the place in the code.
        if not issubclass(category, CanaryWarning | DataWarning):
            sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))
        elif str(message) not in printed:
            printed.add(str(message))
            complain(message)

    warnings.showwarning = show


# Progress


def busy(what: str) -> AbstractContextManager[Any]:
    """Show a spinner on standard error, if that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


def bars(*, quiet: bool = False) -> AbstractContextManager[None]:
    """Show progress on standard error: bars with the remaining time, or without a terminal a line at each tenth."""
    if quiet or not sys.stderr.isatty():
        return progress.listening(None if quiet else _tenths)
    return progress.bars()


def _tenths(what: str, total: int) -> tuple[progress.Advance, Callable[[], None]]:
    """Print a line at each tenth of work that takes more than two seconds."""
    start, last_tenth = time.monotonic(), 0

    def advance(done: int, words: str) -> None:
        nonlocal last_tenth
        tenth = 10 * done // total if total else 0
        if tenth > last_tenth and time.monotonic() - start > _PATIENCE:
            last_tenth = tenth
            line = f"{what}: {10 * tenth}% ({done:,} of {total:,})" + f"  {words}".rstrip()
            print(printable(line), file=sys.stderr, flush=True)

    return advance, lambda: None


# Results


def print_table(table: Table) -> None:
    """Print a table with numbers aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    drawn = RichTable(title=escape(printable(table.title)), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(table.columns):
        # The first column names the row, even where all names are numbers.
        numeric = i > 0 and all(row[i].lstrip("-")[:1].isdigit() or row[i] in {"-", "∞"} for row in table.rows)
        drawn.add_column(escape(printable(column)), justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(escape(printable(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)  # a pipe has no width to wrap to
    console.print(drawn)


def default_text(value: object) -> str:
    """Return a default as the command line would take it; a dash for none."""
    if value is None or value == {}:
        return "-"
    return ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)


def print_sentence(text: str) -> None:
    """Print a paragraph after an empty line, wrapped to the terminal."""
    width = min(shutil.get_terminal_size((118, 24)).columns, 118)
    print()
    say(*textwrap.wrap(text, width, break_on_hyphens=False))  # which turns line breaks into spaces


def print_warnings(warnings: Iterable[str]) -> None:
    """Print each different warning as a sentence."""
    for warning in dict.fromkeys(warnings):
        print_sentence(f"Warning: {warning}" if warning.endswith((".", "?")) else f"Warning: {warning}.")


def print_json(content: dict[str, Any]) -> None:
    """Print JSON and nothing else."""
    from coalmine.files import json_text  # NumPy is loaded only if needed

    print(json_text(content, ensure_ascii=True))


def exit_if_failed(gate: Gate) -> None:
    """Exit with code 1 if the gate failed, with the reasons on standard error."""
    for judgment in gate.failures:
        complain(f"{judgment.result.name}: {gate.reason(judgment)}")
    if gate.unchecked:
        complain(gate.unchecked)
    if gate.failed:
        raise typer.Exit(1)
