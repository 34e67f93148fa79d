"""How the command line ends: its exit codes, what it says on the way out, and the time limit of ``--timeout``."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from coalmine import __version__
from coalmine.cli import console
from coalmine.errors import InputError, Terminated
from coalmine.usercode import blamed

DONE, REFUSED, BAD_INPUT, INTERNAL_ERROR, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 3, 130, 141, 143

EPILOG = (
    "Exit codes: 0 done, 1 a gate or verdict says no, 2 bad input, 3 internal error, 130 or 143 stopped by Ctrl-C or "
    "SIGTERM."
)


_GRACE = 5  # seconds that code which catches every exception gets before the process ends without it


class TimeIsUp(KeyboardInterrupt):
    """The time limit has passed. Not an `Exception`, since code that never returns may catch all of these."""


def exit_code(command: Callable[[], object], arguments: Sequence[str], *, debug: bool) -> int:
    """Run a command, say how it ended if it was not as planned, and return the exit code.

    Args:
        command: Runs the command. It may raise anything.
        arguments: Arguments of the command line, for the log of an internal error.
        debug: Whether to show tracebacks.
    """
    try:
        command()
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        from typer.rich_utils import rich_format_error

        error.message = console.printable(error.message)  # type: ignore[misc]
        rich_format_error(error)  # what is wrong with the arguments, and how the command is used
        return error.exit_code
    except BaseException as error:
        if isinstance(error, BrokenPipeError | SystemExit) and not blamed(error):  # rich leaves by SystemExit
            # The reader has left. Not 0: a gate whose verdict nobody read must not look passed to `set -o pipefail`.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at the end
            return BROKEN_PIPE
        if debug:
            traceback.print_exc()
        code, sentence = _ending(error, arguments)
        console.complain(sentence)
        return code
    return DONE


def _ending(error: BaseException, arguments: Sequence[str]) -> tuple[int, str]:
    """Return the exit code and the sentence for an exception."""
    notes = getattr(error, "__notes__", [])  # how to continue, by `continued_by`
    if isinstance(error, InputError | TimeIsUp):
        return BAD_INPUT, "; ".join([str(error), *notes])
    if isinstance(error, Terminated):
        return TERMINATED, "; ".join([str(error), *notes])
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED, "; ".join(["stopped", *notes])
    # Whatever a user's file raises is theirs to mend; only the rest is a bug of ours.
    if sentence := blamed(error):
        return BAD_INPUT, f"your code failed: {sentence}"
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    # torch reports that memory is short as a RuntimeError.
    if isinstance(error, MemoryError | OverflowError) or (isinstance(error, RuntimeError) and "alloc" in str(error)):
        return BAD_INPUT, f"a number is too large for this machine: {reason:.200}"
    advice = "This is a bug in coalmine: please open an issue in its repository with"
    try:
        descriptor, log = tempfile.mkstemp(prefix="coalmine-error-", suffix=".log")
        with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"coalmine {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
            file.write(f"$ coalmine {shlex.join(arguments)}\n\n")
            traceback.print_exception(error, file=file)
        advice += f" the log {log} (--debug shows the traceback)."
    except OSError:  # a full disk must not hide the error itself
        advice += " what --debug shows."
    return INTERNAL_ERROR, f"internal error ({reason:.200}). {advice}"


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise `TimeIsUp` in the main thread after so many seconds, wherever it is; None means no limit."""
    if seconds is None:
        yield
        return
    if not hasattr(signal, "setitimer"):
        raise InputError("--timeout needs a signal that this operating system does not have")
    alarms = 0

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal alarms
        alarms += 1
        sentence = f"{blamed(TimeIsUp(), frame) or 'not finished'} after {seconds:g} seconds (--timeout)"
        if alarms > _GRACE:  # the user's code catches everything
            console.complain(sentence)
            os._exit(BAD_INPUT)
        raise TimeIsUp(sentence)

    # Once a second from then on, for code that swallows the first exception.
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def continued_by(command: str, *, kept: Path | None) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and the time limit say how to continue, if the file that marks finished work is ``kept``."""
    try:
        yield
    except KeyboardInterrupt as stop:  # Terminated and TimeIsUp are such
        if kept is not None and kept.exists():
            stop.add_note(command)
        raise
