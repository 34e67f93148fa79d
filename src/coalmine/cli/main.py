"""The command line: parses, calls, prints."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from typing import Annotated

import typer

from coalmine import __version__
from coalmine.cli import audit, console, runs, saved
from coalmine.cli.account import account
from coalmine.cli.estimate import estimate
from coalmine.cli.exposure import exposure
from coalmine.cli.plan import plan
from coalmine.cli.reproduce import reproduce
from coalmine.cli.verify import verify
from coalmine.errors import InputError

app = typer.Typer(
    name="coalmine",
    help="Audit the privacy of federated learning: test a claimed ε against evidence.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    runs.demo,
    saved.init,
    runs.run,
    runs.resume,
    runs.report,
    saved.check,
    verify,
    saved.compare,
    saved.serve,
    estimate,
    exposure,
    account,
    plan,
    reproduce,
)
for command in _COMMANDS:
    app.command()(command)
app.add_typer(audit.app, name="audit")


def main() -> None:
    """Run the command line. Bad input becomes one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot print ε shows a question mark instead of a traceback.
            stream.reconfigure(errors="replace")
    warnings.showwarning = console.show_warning
    try:
        app()
    except InputError as error:
        print(f"coalmine: {error}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, OverflowError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error):  # how torch reports it
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"coalmine: a number is too large for this machine: {reason:.200}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(0)


def _version(show: bool) -> None:
    if show:
        print(f"coalmine {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Audit the privacy of federated learning: test a claimed ε against evidence."""


if __name__ == "__main__":
    main()
