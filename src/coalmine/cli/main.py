"""The command line: parses, calls, prints."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from coalmine import __version__
from coalmine.cli import audit, claims, console, runs, saved, scores
from coalmine.cli.exits import EPILOG, exit_code
from coalmine.errors import InputError

COMMANDS = "coalmine.commands"
"""Entry-point group of commands of other packages: each entry is a function with typer's annotations, or a Typer."""


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
    epilog=EPILOG,
    context_settings={"help_option_names": ["--help", "-h"]},  # inherited by all commands
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    runs.demo,
    runs.init,
    runs.run,
    runs.resume,
    runs.sweep,
    saved.report,
    saved.model_card,
    saved.check,
    saved.verify,
    saved.compare,
    runs.log,
    scores.estimate,
    claims.account,
    claims.plan,
)
# In the order of the help: from the first try to the single calculation.
for command in _COMMANDS:
    app.command()(command)
app.add_typer(audit.app, name="audit")


_COMPLETION = (["--install-completion"], ["--show-completion"])


def main() -> None:
    """Run the command line, and exit with one of the codes of `coalmine.cli.exits`."""
    console.prepare()
    if "_COALMINE_COMPLETE" in os.environ or sys.argv[1:2] in _COMPLETION:  # a shell asks, or is to be taught to ask
        typer.main.get_command(app).main(prog_name="coalmine")
    # Wherever it stands: who sees an error adds --debug at the end of the line.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    sys.exit(exit_code(lambda: _invoke(arguments), arguments, debug=arguments != sys.argv[1:]))


def _invoke(arguments: Sequence[str]) -> None:
    """Run the command that the arguments name. Unlike typer's own way, this lets every exception through."""
    command = typer.main.get_command(app)
    with command.make_context("coalmine", list(arguments)) as context:
        command.invoke(context)


def _version(show: bool) -> None:
    if show:
        numbers = [f"{name} {metadata.version(name)}" for name in ("numpy", "scipy", "torch", "dp-accounting")]
        console.say(f"coalmine {__version__}", ", ".join([f"Python {platform.python_version()}", *numbers]))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_version,
            is_eager=True,
            help="Print the versions of coalmine and of what it uses.",
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Works behind any command too.")
    ] = False,
) -> None:
    """Audit the privacy of federated learning: test a claimed ε against evidence."""
