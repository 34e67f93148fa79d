"""``coalmine audit NAME``: parses, calls, prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine.cli import console
from coalmine.cli.runs import Quiet, draw
from coalmine.errors import InputError, check_number

if TYPE_CHECKING:
    from coalmine.methods.canife.result import CanifeResult
    from coalmine.results.result import AuditResult

app = typer.Typer(
    help="Run one audit: plant canaries, look at what an adversary sees, report ε.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click does
)

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A setting as key=value; may be given again. --settings lists them.", show_default=False
    ),
]
ListSettings = Annotated[bool, typer.Option("--settings", help="List all settings with their defaults, and stop.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Directory for result, scores, report and checkpoint; a killed run goes on from there.", show_default=False
    ),
]
MaxEpsilon = Annotated[
    float | None,
    typer.Option(
        help="Exit with code 1 where the bound to quote exceeds this ε, as where it exceeds the promise.",
        show_default=False,
    ),
]
Figures = Annotated[
    Path | None, typer.Option(help="Write figures (.html, .svg, .png) into this directory.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]


@app.command("one-shot")
def one_shot(
    settings: Set = None,
    view: Annotated[
        list[str] | None,
        typer.Option(
            help="What the adversary sees: final, final-change, updates, every:ROUNDS or rounds:A,B,…; may be given"
            " again.",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Train without canaries too, to see what they cost in accuracy.")
    ] = False,
    out: Out = None,
    max_epsilon: MaxEpsilon = None,
    list_settings: ListSettings = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Random updates as extra clients of one training run (Andrew et al. 2023): no retraining, any model."""
    from coalmine.config import settings_from_texts
    from coalmine.methods.one_shot.settings import OneShotSettings
    from coalmine.simulation.settings import TrainingSettings

    if list_settings:
        console.print_settings(OneShotSettings, TrainingSettings)
        return
    training, audit = settings_from_texts(settings or [], TrainingSettings, OneShotSettings)
    if view:
        if any(text.partition("=")[0].strip() == "view" for text in settings or []):
            raise InputError("the view is given twice: by --view and by --set view=")
        audit = audit.model_copy(update={"view": tuple(view)})

    from coalmine.runs.running import run
    from coalmine.runs.settings import RunOptions, RunSettings

    given = RunSettings(run=RunOptions(baseline=baseline), training=training, one_shot=audit)
    with console.bars(quiet=quiet or as_json):
        found = run(given, out=out, again=True)
    _show(found.results, out, max_epsilon, as_json)


@app.command()
def canife(
    settings: Set = None,
    out: Out = None,
    figures: Figures = None,
    max_epsilon: MaxEpsilon = None,
    list_settings: ListSettings = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Samples crafted for the current model, looked for in single rounds (Maddock et al. 2023): ε along a training."""
    from coalmine.config import settings_from_texts
    from coalmine.methods.canife.settings import CanifeSettings
    from coalmine.simulation.settings import TrainingSettings

    if list_settings:
        console.print_settings(CanifeSettings, TrainingSettings)
        return
    training, audit = settings_from_texts(settings or [], TrainingSettings, CanifeSettings)

    from coalmine.runs.running import run
    from coalmine.runs.settings import RunSettings

    make(figures)
    with console.bars(quiet=quiet or as_json):
        found = run(RunSettings(training=training, canife=audit), out=out, again=True)
    drawn = []
    if figures is not None:
        from coalmine.methods.canife import figures as canife_figures
        from coalmine.methods.canife.result import CanifeResult

        pairs = [(result.to_dict(), result.arrays) for result in found.results if isinstance(result, CanifeResult)]
        drawn = canife_figures.save_all(pairs, figures)
    _show(found.results, out, max_epsilon, as_json, drawn)


@app.command()
def gaussian(
    sigma: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise on each coordinate.", show_default=False)
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(help="Instead of --sigma: path.py:function, from a sum to a noisy sum.", show_default=False),
    ] = None,
    dim: Annotated[int, typer.Option(help="Number of coordinates.")] = 1_000_000,
    canaries: Annotated[int, typer.Option(help="Number of canaries in the sum.")] = 1000,
    family: Annotated[
        str | None, typer.Option(help="hadamard or gaussian; by the dimension if not given.", show_default=False)
    ] = None,
    claim: Annotated[
        float | None,
        typer.Option(help="The ε that the mechanism promises at δ, to be put to the test.", show_default=False),
    ] = None,
    delta: Annotated[float, typer.Option(help="The δ at which ε is stated.")] = 1e-5,
    confidence: Annotated[float, typer.Option(help="Confidence of bounds and intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Seed of canaries and noise.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Directory for result, scores and report.", show_default=False)
    ] = None,
    max_epsilon: MaxEpsilon = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """One application of a mechanism to a sum of canaries, as a black box (Andrew et al. 2023, Section 3)."""
    from coalmine import accounting
    from coalmine.accounting.sampling import EveryRound
    from coalmine.methods.mechanism.audit import audit_mechanism, gaussian_mechanism
    from coalmine.results.files import save
    from coalmine.usercode import load_function

    if (sigma is None) == (mechanism is None):
        raise InputError("give one of --sigma and --mechanism path.py:function")
    noisy = gaussian_mechanism(sigma, seed) if sigma is not None else load_function(str(mechanism))
    theory = None
    if claim is not None:
        theory = accounting.claimed(claim, delta)
    elif sigma:
        theory = accounting.theory(noise_multiplier=sigma, sampling=EveryRound(), rounds=1, delta=delta)
    make(out)
    with nullcontext() if quiet or as_json else console.busy("applying the mechanism"):
        result = audit_mechanism(
            noisy,
            dim=dim,
            canaries=canaries,
            family=family,
            delta=delta,
            confidence=confidence,
            theory=theory,
            seed=seed,
        )
    if out is not None:
        save([result], out)
    _show([result], out, max_epsilon, as_json)


def make(directory: Path | None) -> None:
    """Make a directory for results before any work is done for them."""
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{directory} cannot be written to: {error.strerror or error}") from error


def _show(
    results: Sequence[AuditResult],
    out: Path | None,
    max_epsilon: float | None,
    as_json: bool,
    drawn: Sequence[Path] = (),
) -> None:
    from coalmine.results.files import results_to_dict

    if as_json:
        console.print_json(results_to_dict(results))
    else:
        for result in results:
            print_result(result)
        print_facts(results[0])
    finish(results, out, drawn, max_epsilon, as_json)


def finish(
    results: Sequence[AuditResult],
    out: Path | None,
    drawn: Sequence[Path],
    max_epsilon: float | None,
    as_json: bool,
) -> None:
    """Draw the report, say where all is, and exit with code 1 where a bound exceeds ``max_epsilon`` or its promise."""
    if out is not None:
        draw(out, as_json)
    if not as_json:
        for path in drawn:
            print(f"written to {path}")
    if max_epsilon is not None:
        check_number("max-epsilon", max_epsilon)
    bounds = [result.decisive.epsilon for result in results if result.decisive is not None]
    if max_epsilon is not None and not bounds:
        raise InputError("there is no bound on ε to compare with --max-epsilon: nothing was held out")
    failed = [result for result in results if result.refuted]
    if max_epsilon is not None and max(bounds) > max_epsilon:
        print(f"coalmine: the bound of {max(bounds):.4g} exceeds {max_epsilon:g}", file=sys.stderr)
    elif failed:
        views = ", ".join(dict.fromkeys(result.view for result in failed))
        print(f"coalmine: the promise is refuted ({views})", file=sys.stderr)
    else:
        return
    raise typer.Exit(1)


def print_result(result: AuditResult) -> None:
    """Every figure of a result, and what they mean."""
    from coalmine.methods.canife.result import CanifeResult

    if isinstance(result, CanifeResult):
        _print_rounds(result)
        _print_words(result, "one round")
        return
    planted, held_out = (f"{result.metrics[name]:,.0f}" for name in ("planted", "held_out"))
    canaries = f"{planted} canaries planted, {held_out} held out"
    if result.view == "users":
        canaries = f"{planted} users trained on, {held_out} not"
    console.print_estimates(
        list(result.estimates), f"{result.audit}, view {result.view}, score {result.config['score']}: {canaries}"
    )
    _print_words(result, "")


def _print_rounds(result: CanifeResult) -> None:
    """A row for each estimate along the training, the scores behind them, then the rounds composed."""
    number, rows, behind = console.number, [], []
    for p in result.periods:
        best = next((e for e in p.estimates if e.method == "best-threshold"), None)
        rounds = str(p.round) if p.rounds == 1 else f"{p.round}–{p.round + p.rounds - 1}"
        rows.append(
            [
                rounds,
                "-" if p.bound is None else f"{number(p.bound.epsilon, 2)} of {number(p.ceiling, 2)}",
                "-" if best is None else f"{number(best.epsilon, 2)} of {number(p.rate_ceiling, 2)}",
                number(p.epsilon("gdp"), 2),
                number(p.epsilon("gaussian-shift"), 2),
            ]
        )
        behind.append(
            [
                rounds,
                f"{p.with_canary[0]} + {p.without_canary[0]}",
                f"{p.with_canary[2]:.3f}, {p.without_canary[2]:.3f}",
                "-" if p.accuracy is None else f"{p.accuracy:.1%}",
                "-" if best is None else f"{number(best.lower, 2)} to {number(best.upper, 2)}",
            ]
        )
    title = f"canife, {result.view}: ε of one round, of what so many scores can show"
    columns = ["rounds", "valid bound", "best threshold", "if Gaussian", "Gaussian shift"]
    console.print_table(title, columns, rows)
    columns = ["rounds", "with + without", "std with, without", "right guesses", "interval"]
    console.print_table("the scores behind it, and the best threshold's interval", columns, behind)
    if result.composed:
        methods = list(dict.fromkeys(c.method for c in result.composed))
        found = {(c.method, c.inversion): c.epsilon for c in result.composed}
        rows = [[m, *(number(found.get((m, way)), 3) for way in ("exact", "paper"))] for m in methods]
        console.print_table("all rounds composed: estimates of ε", ["from ε̂ᵣ by", "exact", "as in the paper"], rows)


def _print_words(result: AuditResult, what: str) -> None:
    console.print_sentence(result.meaning)
    if result.theory is not None:
        t = result.theory
        times = "1 round" if t.rounds == 1 else f"{t.rounds:,} rounds"
        of = f" of {what}" if what else ""
        console.print_sentence(
            f"Theory{of}: ε = {t.epsilon:.4g} at δ = {t.delta:g} ({t.accountant}, {t.sampling}, {times})."
        )
    for warning in result.warnings:
        console.print_sentence(f"Careful: {warning}.")
    print()


_CALLED = {
    "accuracy": "the model's accuracy",
    "loss": "the model's loss",
    "accuracy without canaries": "the model's accuracy without canaries",
    "loss without canaries": "the model's loss without canaries",
    "attack_accuracy": "right guesses of the attack",
    "round_epsilon_rdp": "ε of a round by RDP",
}


def print_facts(result: AuditResult) -> None:
    """What is the same for all views of a training."""
    own = ("planted", "held_out", "anderson_darling", "anderson_darling_p", "std_with", "std_without")
    facts = [f"{_CALLED.get(name, name)} {value:.4g}" for name, value in result.metrics.items() if name not in own]
    if "train_s" in result.timing:
        facts.append(f"{result.timing['audit_s']:.2g} s for the audit in {result.timing['train_s']:.3g} s of training")
    if facts:
        console.print_sentence("; ".join(facts))


@app.command()
def ldp(
    settings: Set = None,
    out: Out = None,
    figures: Figures = None,
    max_epsilon: MaxEpsilon = None,
    list_settings: ListSettings = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Six adversaries against a locally private client: which of two gradients did it send?

    crafter is all or some of benign, input-perturbation, parameter-retrogression, gradient-flip, collusion and
    dummy-gradient, or path.py:function; mechanism is ldp-sgd, gaussian, privunit or path.py:function. Several values
    are separated by commas; docs/ldp.md says what each setting is.
    """
    from coalmine.config import settings_from_texts
    from coalmine.methods.ldp import tables as ldp_report
    from coalmine.methods.ldp.settings import LDPSettings

    if list_settings:
        console.print_settings(LDPSettings)
        return
    (given,) = settings_from_texts(settings or [], LDPSettings)
    from coalmine.runs.running import run
    from coalmine.runs.settings import RunSettings

    make(figures)
    with console.bars(quiet=quiet or as_json):
        results = run(RunSettings(ldp=given), out=out, again=True).results
    content = ldp_report.to_dict(results, given.to_dict())
    drawn = []
    if figures is not None:
        from coalmine.drawing.files import save_in_every_format
        from coalmine.methods.ldp import figures as ldp_figures

        drawn = save_in_every_format(ldp_figures.charts(content["results"]), figures)
    if as_json:
        console.print_json(content)
    else:
        for title, columns, rows in ldp_report.tables(results):
            console.print_table(title, columns, rows)
        if len(results) == 1:
            console.print_estimates(list(results[0].estimates), "every bound on ε, and the estimate")
        console.print_sentence(ldp_report.sentence(results))
    finish(results, out, drawn, max_epsilon, as_json)
