"""``coalmine log``, and what ``--track`` of other commands does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coalmine.cli import console
from coalmine.cli.options import Directory

if TYPE_CHECKING:
    from coalmine.integrations.tracking import Tracker


def log(
    directory: Directory,
    to: Annotated[Literal["mlflow", "tensorboard", "wandb"], typer.Option(help="The tracker.", show_default=False)],
    where: Annotated[
        str | None,
        typer.Option(help="MLflow's tracking URI, or a directory for the tracker's files.", show_default=False),
    ] = None,
    project: Annotated[str, typer.Option(help="MLflow's experiment, or the project of Weights & Biases.")] = "coalmine",
    name: Annotated[
        str | None, typer.Option(help="Name of the run there; by default that of the directory.", show_default=False)
    ] = None,
) -> None:
    """Log a finished run to an experiment tracker: numbers of each round, settings, results and report."""
    from coalmine.integrations.tracking import log_run, tracker

    with tracker(to, where=where, project=project, name=name or directory.resolve().name) as tracked:
        log_run(directory, tracked)
    console.say(f"{directory} is logged to {to}")


def tracker_of(to: str, directory: Path) -> Tracker:
    """Return a tracker for a run that begins."""
    from coalmine.integrations.tracking import tracker

    return tracker(to, name=directory.resolve().name)


def log_results(directory: Path, tracked: Tracker) -> None:
    """Log the end of a run whose rounds were logged while it ran."""
    from coalmine.integrations.tracking import log_run

    log_run(directory, tracked, rounds=False)
