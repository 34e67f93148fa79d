"""``coalmine check``, ``compare``, ``serve`` and ``init``: what goes before and after runs. Parses, calls, prints."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coalmine.cli import console
from coalmine.errors import InputError

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Directory = Annotated[Path, typer.Argument(help="A run's directory, as --out names it.", show_default=False)]


class Preset(StrEnum):
    """The cases that ``init`` writes a file for."""

    digits = "digits"
    text = "text"
    images = "images"
    local = "local"
    all = "all"


def check(
    directory: Directory,
    max_epsilon: Annotated[
        float | None, typer.Option(help="The largest ε that is allowed; promises are checked either way.")
    ] = None,
    view: Annotated[list[str] | None, typer.Option(help="Only this view; may be given again.")] = None,
    audit: Annotated[list[str] | None, typer.Option(help="Only this audit; may be given again.")] = None,
    confidence: Annotated[
        float, typer.Option(help="Of all bounds together; 1 minus this is the gate's false-alarm rate.")
    ] = 0.95,
    junit: Annotated[Path | None, typer.Option(help="Write the verdict as JUnit XML too.")] = None,
    as_json: AsJson = False,
) -> None:
    """A gate for CI: exit code 1 where a valid bound exceeds the limit or what was promised."""
    from coalmine.results.gate import COLUMNS, judge
    from coalmine.results.saved import read_run_directory

    run = read_run_directory(directory)
    verdict = judge(run, max_epsilon=max_epsilon, audits=audit or [], views=view or [], confidence=confidence)
    if junit is not None:
        from coalmine.results.junit import write_junit

        write_junit(verdict, run.title, junit)
    if as_json:
        console.print_json(verdict.to_dict())
    else:
        console.print_table(run.title, COLUMNS, verdict.rows())
        console.print_sentence(verdict.sentence)
    if verdict.failed:
        raise typer.Exit(1)


def compare(
    directories: Annotated[
        list[Path], typer.Argument(help="Two runs or more; the others are compared with the first.", show_default=False)
    ],
    html: Annotated[Path | None, typer.Option(help="Write it as a page too.", show_default=False)] = None,
) -> None:
    """Runs side by side: settings that differ, theory, bounds and estimates, and which differences are noise."""
    from coalmine.results.saved import read_run_directory
    from coalmine.runs.comparison import COLUMNS, SETTINGS_COLUMNS
    from coalmine.runs.comparison import compare as compare_all

    found = compare_all([read_run_directory(path) for path in directories])
    if found.settings:
        console.print_table("settings that differ", [*SETTINGS_COLUMNS, *found.runs], found.settings)
        print()
    console.print_table("what each shows", COLUMNS, [row.cells() for row in found.rows])
    console.print_sentence(found.sentence)
    if html is not None:
        from coalmine.files import write_text
        from coalmine.runs.comparison_page import comparison_page

        write_text(html, comparison_page(found))
        print(f"\nwritten to {html}")


def serve(
    directory: Annotated[Path, typer.Argument(help="The directory that holds the runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="On this machine; 0 for any that is free.")] = 8123,
) -> None:
    """A page of all runs, live while they go on, for this machine alone (127.0.0.1)."""
    from coalmine.runs.server import Server

    with Server(directory, port) as server:
        print(f"runs in {directory}: {server.address} (stop with Ctrl-C)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("audit.toml"),
    preset: Annotated[
        Preset | None, typer.Option(help="The case it is for; asked for if not given.", show_default=False)
    ] = None,
) -> None:
    """Write a commented file of settings for `coalmine run`."""
    from coalmine.runs.presets import PRESETS, written

    if file.exists():
        raise InputError(f"{file} is there already: choose another name")
    if preset is not None:
        text = written(PRESETS[preset.value])
    elif sys.stdin.isatty():
        text = _asked()
    else:
        raise InputError(f"say what it is for: --preset {', '.join(PRESETS)} (questions need a terminal)")

    from coalmine.files import write_text

    write_text(file, text)
    print(f"written to {file}: `coalmine run {file}` runs it")


def _asked() -> str:
    """The file that a few answers lead to."""
    from coalmine.runs.presets import PRESETS, adapted, written

    print("What shall be audited? An empty answer takes what is in brackets.")
    for name, preset in PRESETS.items():
        print(f"  {name:8} {preset.about}")
    name = typer.prompt("case", default="digits")
    if name not in PRESETS:
        raise InputError(f"there is no case {name!r}; there are {', '.join(PRESETS)}")
    answers = {key: typer.prompt(question, default=default) for key, question, default in PRESETS[name].questions()}
    return written(adapted(PRESETS[name], answers))
