"""``coalmine audit NAME``: parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coalmine import console

app = typer.Typer(
    help="Run one audit: plant canaries, look at what an adversary sees, report ε.",
    no_args_is_help=True,
    add_completion=False,
)

Set = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, key=value; may be given again.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]


@app.callback()
def audit() -> None:
    """Run one audit: plant canaries, look at what an adversary sees, report ε."""


@app.command()
def ldp(
    settings: Set = None,
    out: Annotated[
        Path | None, typer.Option(help="Write result.json and scores.npz into this directory.", show_default=False)
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write figures (.html, .svg, .png) into this directory.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Six adversaries against a locally private client: which of two gradients did it send?

    Settings: data, model, crafter (all, or some of benign, input-perturbation, parameter-retrogression, gradient-flip,
    collusion, dummy-gradient, path.py:function), view, mechanism (ldp-sgd, gaussian, privunit, path.py:function),
    epsilon, delta, norm, gradient_norm, alpha, trials, measurements, clients, learning_rate, scaling, radius, rounds,
    round_clients, confidence, seed; docs/ldp.md says what each is. Several values are separated by commas.
    """
    from coalmine.audits import ldp_report
    from coalmine.config import LDPSettings, settings_from_texts

    (given,) = settings_from_texts(settings or [], LDPSettings)
    results = given.audit().run(console.track)
    content = ldp_report.to_dict(results, given.to_dict())
    if out is not None:
        ldp_report.save(results, content, out)
    drawn = []
    if figures is not None:
        from coalmine.report import ldp_figures

        drawn = ldp_figures.save_all(results, given.data, figures)
    if as_json:
        console.print_json(content)
        return
    for title, columns, rows in ldp_report.tables(results):
        console.print_table(title, columns, rows)
    if len(results) == 1:
        console.print_estimates(list(results[0].estimates), "every bound on ε")
    console.print_sentence(ldp_report.sentence(results))
    for path in [*([out] if out is not None else []), *drawn]:
        print(f"Written: {path}")
