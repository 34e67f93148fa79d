"""What the command line prints: tables, sentences, progress, JSON; and options that commands share.

Nothing else in `coalmine.cli` prints. Names of files, columns and phrases come from outside, so control characters in
them are shown escaped: ESC could recolor, rewrite or hide what a terminal shows.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from coalmine import progress
from coalmine.errors import CanaryWarning, DataWarning

if TYPE_CHECKING:
    from coalmine.results.gate import Gate, Objection
    from coalmine.results.tables import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress.")]
Tracker = Literal["mlflow", "tensorboard", "wandb"]
Directory = Annotated[Path, typer.Argument(help="A run directory.")]
Delta = Annotated[float, typer.Option(help="δ at which ε is stated.")]
Confidence = Annotated[float, typer.Option(help="Confidence of bounds and intervals.")]

BAD_INPUT = 2
"""Exit code for errors that the user can mend."""

_NUMBER = re.compile(r"-*\d|-$|∞$")  # the beginning of a cell that is right-aligned
_COLORS = {"refuted": "bold red", "suspicious": "yellow", "too weak": "yellow", "not refuted": "green"}
_PATIENCE = 2.0  # seconds before progress is printed without a terminal


def printable(text: str) -> str:
    """Return a text with control characters escaped, line breaks included.

    Example:
        >>> printable("a\\x1b[31m.csv")
        'a\\\\x1b[31m.csv'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(*lines: object) -> None:
    """Print lines on standard output."""
    for line in lines:
        print(printable(str(line)), flush=True)


def complain(sentence: object) -> None:
    """Print a sentence on one line of standard error, after the program's name."""
    with suppress(OSError):  # a full disk: the exit code still says what happened
        print(f"coalmine: {printable(' '.join(str(sentence).split()))}", file=sys.stderr, flush=True)


warned: set[str] = set()
"""Warnings of this command so far: each is printed once, however many runs give it."""


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of ours as a sentence, since it is about the user's data; a library's keeps its place in code."""
    if not issubclass(category, CanaryWarning | DataWarning):
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))
    elif str(message) not in warned:
        warned.add(str(message))
        complain(message)


def show_traceback(error: BaseException) -> None:
    """Print the traceback of an error on standard error."""
    for line in "".join(traceback.format_exception(error)).splitlines():
        print(printable(line), file=sys.stderr)


# Progress


def busy(what: str) -> AbstractContextManager[Any]:
    """Show a spinner on standard error, if that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


@contextmanager
def working(go_on: str, *, kept: Path | None, quiet: bool = False) -> Iterator[None]:
    """Show progress on standard error, and let whatever stops the work say how to go on.

    Args:
        go_on: How to go on after Ctrl-C or SIGTERM.
        kept: The file that marks finished work. Without it there is nothing to go on with.
        quiet: Whether to hide progress. Otherwise there are bars, or without a terminal a line at each tenth.
    """
    bars = progress.bars() if sys.stderr.isatty() else progress.listening(_tenths)
    try:
        # Inside, so that bars vanish before a sentence about the end is printed.
        with progress.listening(None) if quiet else bars:
            yield
    except KeyboardInterrupt as stop:
        if kept is not None and kept.exists():
            stop.add_note(go_on)
        raise


def _tenths(what: str, total: int) -> tuple[progress.Advance, Callable[[], None]]:
    """Print a line at each tenth of work that takes more than two seconds."""
    start, last_tenth = time.monotonic(), 0

    def advance(done: int, words: str) -> None:
        nonlocal last_tenth
        tenth = 10 * done // max(1, total)
        if tenth > last_tenth and time.monotonic() - start > _PATIENCE:
            last_tenth = tenth
            line = f"{what}: {10 * tenth}% ({done:,} of {total:,})" + f"  {words}".rstrip()
            print(printable(line), file=sys.stderr, flush=True)

    return advance, lambda: None


# Results


def print_table(table: Table) -> None:
    """Print a table with numbers aligned to the right; on a narrow terminal each row as a block of lines."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    def text(cell: str) -> Text:
        return Text(printable(cell), style=_COLORS.get(cell, ""))

    drawn = RichTable(title=text(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(table.columns):
        # The first column names the row, even where all names are numbers.
        numeric = i > 0 and all(_NUMBER.match(row[i]) for row in table.rows)
        drawn.add_column(text(column), justify="right" if numeric else "left", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*map(text, row))
    terminal = Console(width=None if sys.stdout.isatty() else 240)  # a pipe has no width to wrap to
    needed = terminal.measure(drawn, options=terminal.options.update(width=10_000)).maximum
    if needed <= terminal.width:
        terminal.print(drawn)
        return
    terminal.print(text(table.title))
    names = max(map(len, table.columns)) + 2
    for row in table.rows:
        terminal.print()
        for column, cell in zip(table.columns, row, strict=True):
            if cell not in ("", "-"):
                terminal.print(Text(f"{column or 'note':{names}}") + text(cell))


def print_sentence(text: str | None) -> None:
    """Print a paragraph after an empty line, wrapped to the terminal; nothing if there is none."""
    if text:
        say("", *_wrapped(text))


def _wrapped(text: str) -> list[str]:
    """Return the lines of a paragraph, without line breaks or other control characters of its own."""
    width = min(shutil.get_terminal_size((118, 24)).columns, 118)
    # Long words such as paths stay whole, to be copied.
    return textwrap.wrap(printable(" ".join(text.split())), width, break_on_hyphens=False, break_long_words=False)


def print_decision(gate: Gate, objections: Sequence[Objection] = ()) -> None:
    """Print the gate's decision in color, if this is a terminal, before everything else.

    Args:
        gate: The gate.
        objections: What `coalmine check` would stop at. If there is something, nothing is said to have passed.
    """
    from rich.console import Console  # which heeds NO_COLOR

    text, color = gate.decision, {"PASSED": "green", "FAILED": "red"}.get(gate.outcome, "yellow")
    if objections and not gate.failed:
        reasons = "; ".join(objection.sentence for objection in objections)
        text, color = f"{reasons[:1].upper()}{reasons[1:]}: `coalmine check` fails on this.", "red"
    lines = "\n".join(_wrapped(text))
    Console().print(f"{lines}\n", style=f"bold {color}", markup=False, highlight=False, soft_wrap=True)


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
    for about, reason in gate.reasons:
        complain(f"{about}: {reason}")
    if gate.failed:
        raise typer.Exit(1)
