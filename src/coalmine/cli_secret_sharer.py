"""``coalmine audit secret-sharer``: parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine import console
from coalmine.cli_audits import (
    AsJson,
    Figures,
    ListSettings,
    MaxEpsilon,
    Out,
    Set,
    check_bounds,
    make,
    print_facts,
    print_result,
)
from coalmine.errors import InputError

if TYPE_CHECKING:
    from coalmine.secret_sharer_runs import SecretSharerRun


def secret_sharer(
    settings: Set = None,
    model: Annotated[
        str | None,
        typer.Option(help="Instead of training: path.py:function, or a model's name.", show_default=False),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Its weights, a safetensors file.", show_default=False)] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="What was planted, as canaries.json of an earlier run.", show_default=False)
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Weights of a model that never saw the canaries, to calibrate.", show_default=False),
    ] = None,
    out: Out = None,
    figures: Figures = None,
    max_epsilon: MaxEpsilon = None,
    list_settings: ListSettings = False,
    as_json: AsJson = False,
) -> None:
    """Random phrases in users' data, then the final model is asked (Thakkar et al. 2020): what does it remember?"""
    from coalmine.config import settings_from_texts
    from coalmine.config.secret_sharer import SecretSharerSettings, TextTrainingSettings

    if list_settings:
        console.print_settings(SecretSharerSettings, TextTrainingSettings)
        return
    training, audit = settings_from_texts(settings or [], TextTrainingSettings, SecretSharerSettings)
    for directory in (out, figures):
        make(directory)
    given = [option for option in (model, weights, canaries) if option is not None]
    if given and len(given) < 3:
        raise InputError("a model that is there is audited with all of --model, --weights and --canaries")

    from coalmine.secret_sharer_runs import audit_stored, run_secret_sharer

    track = iter if as_json else console.track
    if model is not None and weights is not None and canaries is not None:
        named = "model_settings" in training.model_fields_set
        run = audit_stored(
            model=model,
            weights=weights,
            canaries=canaries,
            reference=reference,
            model_settings=training.model_settings if named else None,
            asking=audit.asking(),
            delta=audit.delta,
            confidence=audit.confidence,
            out=out,
            track=track,
        )
    else:
        run = run_secret_sharer(
            training,
            audit,
            out=out,
            progress=lambda run: None if as_json else console.round_bar(run.rounds, run.state.round, "training"),
            track=track,
        )
    drawn = []
    if figures is not None:
        from coalmine.report import secret_sharer_figures
        from coalmine.report.figures import save_in_every_format

        content = run.to_dict()
        charts = secret_sharer_figures.charts({"results": content["results"]}, content["memorisation"])
        drawn = save_in_every_format(charts, figures)
    shown = [result for result in run.results if result.view in ("exposure:user", "exposure:phrase", "users")]
    if as_json:
        console.print_json(run.to_dict())
    else:
        _print_memorisation(run)
        for result in shown:
            print_result(result)
        for result in shown[:1]:
            print_facts(result)
        for path in [*([out] if out is not None else []), *drawn]:
            print(f"Written: {path}")
    # a phrase's ε is that of all who share it, which is no promise to one user
    check_bounds([result for result in shown if result.view != "exposure:phrase"], max_epsilon)


def _print_memorisation(run: SecretSharerRun) -> None:
    found = run.memorisation
    rows = [
        [
            f"{row.configuration.p_u:.4g}",
            f"{row.configuration.p_e:.4g}",
            _span(row.users),
            _span(row.copies),
            f"{row.sampled} of {row.canaries}",
            f"{row.extracted} of {row.canaries}",
            console.number(row.median_exposure, 2),
        ]
        for row in found.rows(run.users, run.copies)
    ]
    planted = int(found.canaries.planted.sum())
    title = (
        f"memorised phrases: {int(found.memorised.sum())} of {planted} by random sampling among "
        f"{found.sampled.references:,}, {int(found.found.sum())} by beam search"
    )
    console.print_table(title, ["p_u", "p_e", "users", "copies", "sampling", "beam", "median exposure"], rows)
    print()


def _span(span: tuple[int, int] | None) -> str:
    return "-" if span is None else f"{span[0]:,} to {span[1]:,}"
