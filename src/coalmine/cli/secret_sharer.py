"""``coalmine audit secret-sharer``: parses, calls, prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine.cli import console
from coalmine.cli.audit import (
    AsJson,
    Figures,
    ListSettings,
    MaxEpsilon,
    Out,
    Set,
    finish,
    make,
    print_facts,
    print_result,
)
from coalmine.cli.runs import Quiet
from coalmine.errors import InputError

if TYPE_CHECKING:
    from coalmine.methods.secret_sharer.job import SecretSharerRun
    from coalmine.methods.secret_sharer.settings import SecretSharerSettings
    from coalmine.simulation.settings import TrainingSettings


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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Random phrases in users' data, then the final model is asked (Thakkar et al. 2020): what does it remember?"""
    from coalmine.config import settings_from_texts
    from coalmine.methods.secret_sharer.settings import SecretSharerSettings, TextTrainingSettings

    if list_settings:
        console.print_settings(SecretSharerSettings, TextTrainingSettings)
        return
    training, audit = settings_from_texts(settings or [], TextTrainingSettings, SecretSharerSettings)
    make(figures)
    given = [option for option in (model, weights, canaries) if option is not None]
    if given and len(given) < 3:
        raise InputError("a model that is there is audited with all of --model, --weights and --canaries")

    from coalmine.methods.secret_sharer.job import SecretSharerMethod, audit_stored
    from coalmine.runs.running import run as run_all
    from coalmine.runs.settings import RunSettings

    if model is not None and weights is not None and canaries is not None:
        _check_asking_alone(training, audit)
        named = "model_settings" in training.model_fields_set
        with console.bars(quiet=quiet or as_json):
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
            )
    else:
        with console.bars(quiet=quiet or as_json):
            found = run_all(RunSettings(training=training, secret_sharer=audit), out=out, again=True)
        (method,) = found.methods
        assert isinstance(method, SecretSharerMethod)
        run = replace(method.run, results=list(found.results))
    drawn = []
    if figures is not None:
        from coalmine.drawing.files import save_in_every_format
        from coalmine.methods.secret_sharer import figures as secret_sharer_figures

        content = run.to_dict()
        charts = secret_sharer_figures.charts({"results": content["results"]}, content["memorization"])
        drawn = save_in_every_format(charts, figures)
    shown = [result for result in run.results if result.view in ("exposure:user", "exposure:phrase", "users")]
    if as_json:
        console.print_json(run.to_dict())
    else:
        _print_memorization(run)
        if run.without_epsilon:
            console.print_sentence(run.without_epsilon)
        for result in shown:
            print_result(result)
        for result in shown[:1]:
            print_facts(result)
    # a phrase's ε is that of all who share it, which is no promise to one user
    judged = [result for result in shown if result.view != "exposure:phrase"]
    if not run.results:  # nothing to draw a report of
        drawn, out = [*([out] if out is not None else []), *drawn], None
    finish(judged, out, drawn, max_epsilon, as_json)


def _check_asking_alone(training: TrainingSettings, audit: SecretSharerSettings) -> None:
    """Refuse settings of a training, and of what is planted in it, where a model is there already."""
    used = {"model_settings", "prefix", "references", "limit", "width", "whole_space", "delta", "confidence"}
    ignored = sorted((training.model_fields_set | audit.model_fields_set) - used)
    if ignored:
        raise InputError(
            f"{', '.join(ignored)}: a model that is there is asked, not trained, and its canaries are those of the "
            f"file; settings that apply are {', '.join(sorted(used))}"
        )


def _print_memorization(run: SecretSharerRun) -> None:
    found = run.memorization
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
        f"{planted} planted phrases: {int(found.memorized.sum())} memorized (likelier than all "
        f"{found.sampled.references:,} random ones), {int(found.found.sum())} extracted (first answer of a beam search)"
    )
    console.print_table(title, ["p_u", "p_e", "users", "copies", "memorized", "extracted", "median exposure"], rows)
    print()


def _span(span: tuple[int, int] | None) -> str:
    return "-" if span is None else f"{span[0]:,} to {span[1]:,}"
