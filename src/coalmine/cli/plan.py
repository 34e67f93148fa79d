"""``coalmine plan``: how many canaries an audit needs, and what they cost."""

from __future__ import annotations

from typing import Annotated

import typer

from coalmine.cli import console
from coalmine.cli.options import AsJson, Confidence, Delta


def plan(
    noise_multiplier: Annotated[
        float,
        typer.Option(
            help="Claimed noise multiplier: standard deviation of a round's noise over the clip norm.",
            show_default=False,
        ),
    ],
    sampling: Annotated[
        str,
        typer.Option(help="How clients and canaries take part: poisson:Q, fixed:SIZE/POPULATION, epochs:N, …"),
    ] = "every-round",
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 1,
    clients: Annotated[
        float | None,
        typer.Option(help="Expected clients per round, for what canaries cost.", show_default=False),
    ] = None,
    dim: Annotated[
        int | None, typer.Option(help="Number of parameters, for the noise that canaries add.", show_default=False)
    ] = None,
    view: Annotated[str, typer.Option(help="What the adversary sees, such as updates or final-change.")] = "updates",
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    as_json: AsJson = False,
) -> None:
    """Plan an audit: how many canaries detect missing noise, and what they cost the training.

    docs/one-shot.md explains the numbers.
    """
    import coalmine
    from coalmine.results.io import envelope
    from coalmine.results.tables import Table

    with console.busy("computing the power of the audit"):
        planned = coalmine.plan(
            noise_multiplier=noise_multiplier,
            sampling=sampling,
            rounds=rounds,
            clients=clients,
            dim=dim,
            view=view,
            delta=delta,
            confidence=confidence,
        )
    if as_json:
        claim = planned.claim.to_dict()
        console.print_json(envelope([], claims=[claim], plan=planned.to_dict(), summary=planned.summary))
        return
    title = f"canaries that detect less than the claimed noise ({planned.test} test, view {planned.view})"
    console.print_table(Table(title, *planned.cells()))
    console.print_sentence(planned.summary)
