"""The command line: parses, calls, prints, and ends with one of a few exit codes."""

from __future__ import annotations

import io
import os
import platform
import signal
import sys
import warnings
from importlib import metadata
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from coalmine import __version__
from coalmine.cli import audits, console, runs
from coalmine.errors import InputError
from coalmine.usercode import blamed

COMMANDS = "coalmine.commands"
"""Entry-point group of commands of other packages: each entry is a function with typer's annotations, or a Typer."""

_INTERNAL_ERROR, _INTERRUPTED, _BROKEN_PIPE = 3, 130, 141
_EPILOG = (
    "Exit codes: 0 done, 1 a gate or verdict says no, 2 bad input, 3 internal error, 130 stopped by Ctrl-C or SIGTERM."
)


class _Commands(TyperGroup):
    """Our commands, followed by those of the entry-point group `COMMANDS`.

    Entry points are looked up only for the help and for names that are none of ours: finding them means reading the
    metadata of every installed package, and loading one imports its package.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, ours first."""
        return [*self.commands, *sorted(metadata.entry_points(group=COMMANDS).names - set(self.commands))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name, or None if there is no such."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        for entry in metadata.entry_points(group=COMMANDS, name=cmd_name):
            loaded = entry.load()
            # A plain function becomes an app of one command, which typer treats as the command itself.
            if not isinstance(loaded, typer.Typer):
                function, loaded = loaded, typer.Typer(add_completion=False)
                loaded.command()(function)
            command = typer.main.get_command(loaded)
            command.name = cmd_name
            return command
        if cmd_name == "reproduce":  # the docs mention it, and the wheel does not contain it
            raise InputError(
                "the reproductions of the papers are a package of their own: install it with "
                "`pip install ./reproductions` in a checkout of coalmine's repository"
            )
        return None


app = typer.Typer(
    name="coalmine",
    cls=_Commands,
    help="Audit the privacy of federated learning: test a claimed ε against evidence.",
    no_args_is_help=True,
    invoke_without_command=True,  # for --version
    subcommand_metavar="COMMAND [ARGS]...",  # required nevertheless
    epilog=_EPILOG,
    context_settings={"help_option_names": ["--help", "-h"]},  # inherited by all commands
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)
# In the order of the help: from the first try to the single calculation.
for command in (
    runs.demo,
    runs.init,
    runs.run,
    runs.resume,
    runs.sweep,
    runs.report,
    runs.model_card,
    runs.check,
    runs.verify,
    runs.compare,
    runs.log,
    audits.estimate,
    audits.account,
    audits.plan,
):
    app.command()(command)
app.add_typer(audits.app, name="audit")


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the versions of coalmine and of what it uses.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Works behind any command too.")
    ] = False,
) -> None:
    """Audit the privacy of federated learning: test a claimed ε against evidence."""
    if version:
        numbers = [f"{name} {metadata.version(name)}" for name in ("numpy", "scipy", "torch", "dp-accounting")]
        console.say(f"coalmine {__version__}", ", ".join([f"Python {platform.python_version()}", *numbers]))
        raise typer.Exit


def main() -> None:
    """Run the command line, say how it ended if it was not as planned, and exit with a code of its own for that."""
    warnings.showwarning = console.show_warning
    # As batch systems send it before they kill a process: the run is then "stopped", as by Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console.warned.clear()
    # A process whose streams were closed has none; what it prints is then for nobody.
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 as long as the process
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # survives characters that it cannot encode
            stream.reconfigure(errors="replace")
    command = typer.main.get_command(app)
    # A shell asks what can come next, or is to be taught to ask.
    if "_COALMINE_COMPLETE" in os.environ or sys.argv[1:] in (["--install-completion"], ["--show-completion"]):
        command.main(prog_name="coalmine")
    # Wherever it stands: who sees an error adds --debug at the end of the line.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        # Unlike click's own way, this lets every exception through.
        with command.make_context("coalmine", list(arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        from typer.rich_utils import rich_format_error

        error.message = console.printable(error.message)  # type: ignore[misc]
        rich_format_error(error)  # what is wrong with the arguments, and how the command is used
        sys.exit(error.exit_code)
    except BaseException as error:
        if isinstance(error, BrokenPipeError | SystemExit) and not blamed(error):  # rich leaves by SystemExit
            # The reader has left. Not 0: a gate whose verdict nobody read must not look passed to `set -o pipefail`.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at the end
            sys.exit(_BROKEN_PIPE)
        code, sentence = _ending(error)
        if code == _INTERNAL_ERROR or arguments != sys.argv[1:]:
            console.show_traceback(error)
        console.complain(sentence)
        sys.exit(code)
    sys.exit(0)


def _ending(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the sentence for an exception."""
    notes = getattr(error, "__notes__", [])  # how to continue, by `console.working`
    if isinstance(error, InputError):
        return console.BAD_INPUT, "; ".join([str(error), *notes])
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _INTERRUPTED, "; ".join(["stopped", *notes])
    # Whatever a user's file raises is theirs to mend; only the rest is a bug of ours.
    if sentence := blamed(error):
        return console.BAD_INPUT, f"your code failed: {sentence}"
    if isinstance(error, OSError) and error.strerror:  # a name that is too long, a full disk, no permission
        return console.BAD_INPUT, f"{error.filename or 'the output'!s:.200} cannot be used: {error.strerror}"
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    # torch reports that memory is short as a RuntimeError.
    if isinstance(error, MemoryError | OverflowError) or (isinstance(error, RuntimeError) and "alloc" in str(error)):
        return console.BAD_INPUT, f"a number is too large for this machine: {reason:.200}"
    advice = "This is a bug in coalmine (or in a method that another package adds): please open an issue with all this."
    return _INTERNAL_ERROR, f"internal error ({reason:.200}). {advice}"
