"""``coalmine audit NAME``: parses, calls, prints."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Run one audit: plant canaries, look at what an adversary sees, report ε.",
    no_args_is_help=True,
    add_completion=False,
)
