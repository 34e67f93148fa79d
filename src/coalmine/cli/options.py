"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress.")]
Timeout = Annotated[
    float | None,
    typer.Option(min=1e-3, metavar="SECONDS", help="Stop after so many seconds.", show_default=False),
]
Track = Annotated[
    Literal["mlflow", "tensorboard", "wandb"] | None,
    typer.Option(help="Log rounds and results to an experiment tracker.", show_default=False),
]
Directory = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
Delta = Annotated[float, typer.Option(help="δ at which ε is stated.")]
Confidence = Annotated[float, typer.Option(help="Confidence of bounds and intervals.")]
MaxEpsilon = Annotated[
    float | None, typer.Option(help="Exit with code 1 if a lower bound exceeds this ε.", show_default=False)
]
