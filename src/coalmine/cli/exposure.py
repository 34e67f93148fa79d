"""``coalmine exposure``: exposure of canaries, compared with random guessing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coalmine.cli import console
from coalmine.cli.options import AsJson, Confidence


def exposure(
    file: Annotated[
        Path,
        typer.Argument(
            help="CSV, NPZ or JSON with columns loss and canary (1/0), or canaries and references, or rank.",
            show_default=False,
        ),
    ],
    references: Annotated[
        int | None, typer.Option(help="Number of references, if the file has ranks.", show_default=False)
    ] = None,
    delta: Annotated[float, typer.Option(help="δ at which the lower bound is stated.")] = 0.0,
    confidence: Confidence = 0.95,
    copies: Annotated[int, typer.Option(help="How often each canary was inserted (group privacy).")] = 1,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Subtract the column reference_loss (a model without the canaries).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute the exposure of canaries compared with random guessing, and the ε it implies.

    A rank is 1 + the number of references whose loss is not higher. `coalmine audit exposure` does the same and can
    also save the result and draw a report.
    """
    from coalmine.cli.audit import print_method
    from coalmine.methods import registry
    from coalmine.runs.running import run
    from coalmine.runs.settings import run_from_mapping

    options = {"references": references, "delta": delta, "confidence": confidence, "copies": copies}
    table = {"file": str(file), "calibrate": calibrate, **options}
    finished = run(run_from_mapping({"exposure": {key: value for key, value in table.items() if value is not None}}))
    if as_json:
        console.print_json(dict(finished.content))
    else:
        print_method(registry.get("exposure"), finished.methods[0])
