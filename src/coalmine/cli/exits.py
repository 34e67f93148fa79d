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

DONE, REFUSED, BAD_INPUT, INTERNAL_ERROR, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 130, 143

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
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        console.show_usage_error(error)
        return error.exit_code
    except click.Abort:
        console.complain("stopped")
        return INTERRUPTED
    except BaseException as error:
        if debug:
            traceback.print_exc()
        code, sentence = _verdict(error)
        if code == INTERNAL_ERROR:
            sentence = f"{sentence} {_where_to_report(error, arguments)}"
        console.complain(sentence)
        return code
    return DONE


def _verdict(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the sentence for an exception."""
    if isinstance(error, InputError | TimeIsUp):
        return BAD_INPUT, str(error)
    notes = "; ".join(getattr(error, "__notes__", []))
    if isinstance(error, Terminated):
        return TERMINATED, "; ".join([str(error), *getattr(error, "__notes__", [])])
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, f"stopped{'; ' if notes else ''}{notes}"
    if sentence := blamed(error):
        return BAD_INPUT, f"your code failed: {sentence}"
    if isinstance(error, MemoryError | OverflowError) or (isinstance(error, RuntimeError) and "alloc" in str(error)):
        reason = " ".join(str(error).split()) or type(error).__name__  # torch reports it as a RuntimeError
        return BAD_INPUT, f"a number is too large for this machine: {reason:.200}"
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return INTERNAL_ERROR, f"internal error ({reason:.200})."


def _where_to_report(error: BaseException, arguments: Sequence[str]) -> str:
    """Write the traceback to a file, and return where it is and what to do with it."""
    advice = "This is a bug in coalmine: please open an issue in its repository"
    try:
        descriptor, name = tempfile.mkstemp(prefix="coalmine-error-", suffix=".log")
        with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"coalmine {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
            file.write(f"$ coalmine {shlex.join(arguments)}\n\n")
            traceback.print_exception(error, file=file)
    except OSError:  # a full disk must not hide the error itself
        return f"{advice} with what --debug shows."
    return f"{advice} with the log {name} (--debug shows the traceback)."


@contextmanager
def time_limit(seconds: float | None, directory: Path | None = None) -> Iterator[None]:
    """Raise `TimeIsUp` in the main thread after so many seconds, wherever it is; None means no limit.

    Code that catches even that gets a few more seconds, and then the process ends with exit code 2.
    """
    if seconds is None:
        yield
        return
    if not hasattr(signal, "setitimer"):
        raise InputError("--timeout needs a signal that this operating system does not have")
    alarms = 0

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal alarms
        alarms += 1
        where = blamed(TimeIsUp(), frame)
        sentence = f"{where or 'not finished'} after {seconds:g} seconds (--timeout)"
        if directory is not None:
            sentence += f"; continue with `coalmine resume {directory}`"
        if alarms > _GRACE:
            console.complain(sentence)
            sys.stderr.flush()
            os._exit(BAD_INPUT)
        raise TimeIsUp(sentence)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def resumable(directory: Path | None) -> Iterator[None]:
    """Let Ctrl-C say how the run in ``directory`` goes on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if directory is not None and (directory / "run.json").is_file():
            stop.add_note(f"continue with `coalmine resume {directory}`")
        raise


@contextmanager
def repeatable(*, kept: bool = True) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM say that the same command continues, if what is finished is ``kept``."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        if kept:
            stop.add_note("the same command continues")
        raise
