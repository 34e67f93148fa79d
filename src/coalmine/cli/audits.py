"""The commands of single audits and calculations: ``audit METHOD``, ``estimate``, ``account`` and ``plan``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup, TyperOption

from coalmine.cli import console
from coalmine.cli.console import AsJson, Confidence, Delta
from coalmine.cli.runs import draw
from coalmine.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from coalmine.claims import Claim
    from coalmine.methods.method import Method
    from coalmine.results.result import MethodResults


# One command per method of the registry, built from what the method says of itself


_HELP = "Run one method: insert canaries, look at what an adversary sees, report evidence about ε."


class MethodGroup(TyperGroup):
    """A command for each method that a run can use, third-party ones included."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the methods."""
        from coalmine.methods import registry

        return [method.name for method in registry.runnable()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a method, or fail with the nearest name."""
        from coalmine.methods import registry  # made on demand, so that other commands import no method

        names = self.list_commands(ctx)
        if cmd_name not in names:
            ctx.fail(f"unknown method '{cmd_name}'. {did_you_mean(cmd_name, names)}")
        return _command(registry.get(cmd_name))


app = typer.Typer(cls=MethodGroup, help=_HELP, no_args_is_help=True, add_completion=False)


@app.callback(help=_HELP)
def _group() -> None:
    """Let typer treat this as a group, although its commands are made on demand."""


_FLAG, _PATH = {"is_flag": True}, {"type": click.Path(path_type=Path)}
_SHARED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--set settings", "A setting as key=value. Repeatable. docs/config.md lists them.", {"multiple": True}),
    ("--baseline", "Also train without canaries, to see what they cost in accuracy.", _FLAG),
    ("--out", "Directory for results, scores, report and checkpoints; rerun to resume.", _PATH),
    ("--max-epsilon", "Exit with code 1 if the claim or a lower bound exceeds this ε.", {"type": float}),
    ("--allow", "With --max-epsilon: what must not stop it, as in `coalmine check`. Repeatable.", {"multiple": True}),
    ("--quiet", "Hide progress.", _FLAG),
    ("--json as_json", "Print the result as JSON and nothing else.", _FLAG),
)


def _command(method: type[Method]) -> click.Command:
    """Return the command of a method: its own options, and those that all methods share."""
    assert method.settings_type is not None  # otherwise there is no command
    options: list[click.Parameter] = []
    for name in method.options:
        field = method.settings_type.model_fields[name]
        kind = str(field.annotation)
        several = "tuple" in kind
        text = f"{field.description}{'; repeatable' if several else ''}"
        if field.default is not None:
            default = ",".join(map(str, field.default)) if several else field.default
            text += f" [default: {default}]"
        # No default of its own: an option that was not typed must leave the setting to --set.
        more: dict[str, Any] = {"is_flag": True, "default": None}
        if field.annotation is not bool:
            metavar = "NUMBER" if "float" in kind else "INTEGER" if "int" in kind else "TEXT"
            more = {"multiple": several, "metavar": metavar}
        # In the help, brackets would be markup.
        options.append(TyperOption(param_decls=[f"--{name.replace('_', '-')}", name], help=escape(text), **more))

    for names, text, more in _SHARED:
        if names != "--baseline" or method.training_type is not None:
            options.append(TyperOption(param_decls=names.split(), help=text, **more))
    return TyperCommand(
        method.name,
        callback=lambda **values: _audit(method, values),
        help=f"{method.question} ({method.reference})".removesuffix(" ()"),
        short_help=method.question,
        params=options,
        rich_markup_mode="rich",
    )


def _audit(method: type[Method], values: Mapping[str, Any]) -> None:
    """Run one method and show its results."""
    tables = [table for table in (method.training_type, method.settings_type) if table is not None]
    from coalmine.config import settings_from_mapping, texts_to_mapping
    from coalmine.results.gate import judge
    from coalmine.runs.recompute import objections
    from coalmine.runs.running import run
    from coalmine.runs.settings import TRAINING, RunOptions, RunSettings

    content = texts_to_mapping(values["settings"])
    for name in method.options:
        value = values[name]
        if value in (None, ()):
            continue
        if name in content:  # neither of them obviously counts
            raise InputError(f"{name} is set twice: by --{name.replace('_', '-')} and by --set")
        content[name] = value
    *training, method_settings = settings_from_mapping(content, *tables)
    settings = RunSettings(
        run=RunOptions(baseline=bool(values.get("baseline"))),
        trainings={TRAINING: training[0]} if training else {},
        methods={method.name: method_settings},
    )
    out, as_json, max_epsilon = values["out"], values["as_json"], values["max_epsilon"]
    # Only a directory with run.json has something that `resume` could continue.
    go_on, kept = f"continue with `coalmine resume {out}`", out and out / "run.json"
    with console.working(go_on, kept=kept, quiet=values["quiet"] or as_json):
        finished = run(settings, out=out)
    (found,) = finished.methods
    # Whoever audits one method names it, so that a limit applies to each of its units. Without a limit, it only reports
    # what `coalmine check` would stop at.
    named, objecting = [method.name] if found.results else [], objections(finished.methods)
    stopping = [] if max_epsilon is None else objecting
    gate = judge(found.results, methods=named, max_epsilon=max_epsilon, objections=stopping, allow=values["allow"])
    if as_json:
        console.print_json({**finished.content, "gate": gate.to_dict()})
    else:
        console.print_decision(gate, objecting if max_epsilon is None else ())
        print_method(method, found)
        if max_epsilon is not None:
            console.print_sentence(gate.terms)
    if out is not None and found.results:
        draw(out, as_json)
    # Last, so that a failed gate leaves a complete directory and report.
    console.exit_if_failed(gate)


def print_method(method: type[Method], found: MethodResults) -> None:
    """Print a method's tables, then what its results say, and the quality of the model."""
    from coalmine.results.summary import causes_of, evidence_sentences, not_tested
    from coalmine.runs.running import QUALITY

    for table in method.tables(found):
        console.print_table(table)
    console.print_sentence(found.summary)
    plain = [result for result in found.results if not result.variant]  # others are summarized together
    evidence = [f"{result.label}: {evidence_sentences(result)}" for result in plain]
    for sentence in [*map(str, causes_of(plain)), *evidence, not_tested(plain)]:
        console.print_sentence(sentence)
    console.print_warnings(warning for result in found.results for warning in result.warnings)
    # Every result of a method comes from the same training, so its quality is printed once.
    if not found.results or not found.results[0].training:
        return
    metrics = found.results[0].metrics
    facts = [f"{name} {value:.4g}" for name, value in metrics.items() if name.partition(" ")[0] in QUALITY]
    console.print_sentence("; ".join(facts))


# Scores, claims and plans


def estimate(
    scores: Annotated[
        Path,
        typer.Argument(help="CSV or NPZ with columns score and member (1/0), or with columns members and nonmembers."),
    ],
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this estimator, by its name in the table. Repeatable.")
    ] = None,
    null: Annotated[
        str | None,
        typer.Option(help="Known distribution of non-members' scores: cosine:DIM, normal, or normal:MEAN,STD."),
    ] = None,
    design: Annotated[
        Literal["fixed", "coin-flips"],
        typer.Option(help="How members were chosen: a fixed number, or each by a fair coin flip."),
    ] = "fixed",
    copies: Annotated[int, typer.Option(help="How often each member was inserted (group privacy).")] = 1,
    lower_is_member: Annotated[
        bool, typer.Option("--lower-is-member", help="The scores are losses: lower means member.")
    ] = False,
    claim: Annotated[
        str | None,
        typer.Option(help="A claimed guarantee to test: noise=1.0,sampling=poisson:0.01,rounds=800 or epsilon=8."),
    ] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="Exit with code 1 if the claim or a lower bound exceeds this ε.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate ε from any scores: every estimator that applies, in one table.

    Higher scores mean members. docs/runs.md describes all file layouts, docs/estimators.md all estimators.
    """
    from coalmine.results.gate import NOT_CHECKED, judge
    from coalmine.results.io import results_to_dict
    from coalmine.results.result import Result
    from coalmine.results.tables import Table
    from coalmine.results.verdict import SCORES

    terms: dict[str, Any] = {"delta": delta, "confidence": confidence, "methods": method}
    terms |= {"design": design, "copies": copies, "lower_is_member": lower_is_member}
    with console.busy("reading and testing the scores"):
        fields = _from_file(scores, null, claim, terms)
    result = Result(
        method="estimate",
        view="scores",
        unit=SCORES,
        adversary="computed the scores",
        score_name="score",
        side_names=("members", "non-members"),
        seed=0,
        null=null,
        **fields,
    )
    # The same gate as of a run, so that --max-epsilon means the same everywhere.
    gate = judge([result], max_epsilon=max_epsilon)
    if as_json:
        console.print_json(results_to_dict([result], gate=gate.to_dict()))
    else:
        if gate.outcome != NOT_CHECKED:
            console.print_decision(gate)
        title = f"ε at δ = {delta:g}, {100 * confidence:g}% confidence"
        console.print_table(Table.of_estimates(result.estimates, title))
        console.print_sentence(result.summary)
        console.print_warnings(result.warnings)
    console.exit_if_failed(gate)


def _from_file(path: Path, null: str | None, claim: str | None, terms: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a result that follow from a file of scores; ``terms`` are those of `stats.estimate`."""
    from coalmine import stats
    from coalmine.checks.accounting import accounting_findings
    from coalmine.claims.claim import parse_claim
    from coalmine.files import read_table, two_groups
    from coalmine.results.claim_test import check_claim
    from coalmine.stats.claim_tests import seem_inverted
    from coalmine.stats.nulls import parse_null

    known = parse_null(null)
    members, others = two_groups(read_table(path), single=known is not None)
    # Everything but `stats.estimate` takes higher scores for members.
    sign, way, advice = (-1, "higher", "Drop") if terms["lower_is_member"] else (1, "lower", "Add")
    nonmembers, count, ceiling = None, None, None
    shared = {name: terms[name] for name in ("confidence", "design", "copies")}
    if others is not None:
        if known is not None:  # it would be unclear which of them the bound is from
            raise InputError(f"{path} contains non-members: leave out --null, or remove them from the file")
        nonmembers, count = sign * others, others.size
        # The most that so many scores can show, so that a small bound is not taken for privacy.
        ceiling = stats.ceiling(members.size, count, delta=terms["delta"], **shared)
    sides = stats.Scores(sign * members, nonmembers, known)
    fields: dict[str, Any] = {"scores": sides, "ceiling": ceiling}
    fields["config"] = {"members": members.size, "nonmembers": count}
    fields["estimates"] = stats.estimate(members, others, null=known, **terms)
    if claim is not None:
        stated = parse_claim(claim, delta=terms["delta"])
        test = check_claim(sides.members, sides.nonmembers, stated, null=known, **shared)
        fields |= {"claim": stated, "claim_test": test, "findings": list(accounting_findings(stated))}
    # Losses given as scores are the most frequent mistake, and give a bound of 0 without any error.
    if seem_inverted(sides):
        wrong = f"members score {way} than non-members, the wrong way round, so nothing is shown"
        fields["warnings"] = [f"{wrong}. {advice} --lower-is-member?"]
    return fields


def account(
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise multiplier: standard deviation of a round's noise over the clip norm.")
    ] = None,
    sampling: Annotated[
        str, typer.Option(help="poisson:Q (or poisson:A/B), fixed:SIZE/POPULATION, epoch:ROUNDS, at-most:TIMES, …")
    ] = "every-round",
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 1,
    delta: Delta = 1e-5,
    epsilon: Annotated[
        float | None, typer.Option(help="Instead of --noise-multiplier: a target ε; prints the noise required.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the guaranteed ε of DP-FedAvg by each accountant, or the noise needed for a target ε."""
    from coalmine.claims import Claim, noise_for, parse_sampling
    from coalmine.results.io import results_to_dict
    from coalmine.results.tables import Table, fixed

    if (noise_multiplier is None) == (epsilon is None):
        raise InputError("give one of --noise-multiplier and --epsilon (for the noise required)")
    scheme = parse_sampling(sampling)
    claims: list[Claim] = []
    with console.busy("composing the rounds"):
        for name in scheme.accountants:
            noise = noise_multiplier
            if epsilon is not None:
                noise = noise_for(epsilon=epsilon, sampling=scheme, rounds=rounds, delta=delta, accountant=name)
            claims.append(Claim(noise_multiplier=noise, sampling=scheme, rounds=rounds, delta=delta, accountant=name))
        summary = _summary(claims, epsilon)
    if as_json:
        console.print_json(results_to_dict([], claims=[claim.to_dict() for claim in claims], summary=summary))
        return
    rows = []
    for claim in claims:
        terms = [f"{claim.noise_multiplier:.6g}", str(claim.sampling), f"{claim.rounds:,}", claim.adjacency]
        rows.append([claim.accountant, fixed(claim.epsilon, 4), *terms])
    columns = ["accountant", "ε", "noise multiplier", "sampling", "rounds", "neighbors"]
    console.print_table(Table(f"guarantees at δ = {delta:g}", columns, rows))
    console.print_sentence(summary)


def _summary(claims: Sequence[Claim], target: float | None) -> str:
    """Describe the best guarantee; ``target`` is the ε that a noise was computed for."""
    # Every accountant gives a valid bound, so the smallest ε, or the least noise for a target, may be quoted.
    best = min(claims, key=lambda claim: claim.epsilon if target is None else claim.noise_multiplier or 0.0)
    if best.epsilon == math.inf:
        return "There is no guarantee: ε is infinite."
    terms = f"δ = {best.delta:g} ({best.accountant}, neighbors: {best.adjacency})"
    if target is not None:
        text = f"A noise multiplier of {best.noise_multiplier:.6g} gives ε = {target:g} at {terms}."
    else:
        text = (
            f"ε is at most {best.epsilon:.4g} at {terms}, even for an adversary who sees every round. Every row is a "
            "valid upper bound; quote the smallest."
        )
    # Easily missed, and it halves the noise multiplier that the same σ stands for.
    if best.adjacency == "replace-one":
        text += (
            " Replacing a client moves a sum of clipped updates by up to twice the clip norm, so here the noise "
            "multiplier is the noise over twice the clip norm."
        )
    return text


def plan(
    noise_multiplier: Annotated[
        float, typer.Option(help="Claimed noise multiplier: standard deviation of a round's noise over the clip norm.")
    ],
    sampling: Annotated[
        str, typer.Option(help="How clients and canaries take part: poisson:Q, fixed:SIZE/POPULATION, epochs:N, …")
    ] = "every-round",
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 1,
    clients: Annotated[float | None, typer.Option(help="Expected clients per round, for what canaries cost.")] = None,
    dim: Annotated[int | None, typer.Option(help="Number of parameters, for the noise that canaries add.")] = None,
    view: Annotated[str, typer.Option(help="What the adversary sees, such as updates or final-change.")] = "updates",
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    as_json: AsJson = False,
) -> None:
    """Plan an audit: how many canaries detect missing noise, and what they cost the training.

    docs/one-shot.md explains the numbers.
    """
    import coalmine
    from coalmine.results.io import results_to_dict
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
        console.print_json(results_to_dict([], claims=[claim], plan=planned.to_dict(), summary=planned.summary))
        return
    title = f"canaries that detect less than the claimed noise ({planned.test} test, view {planned.view})"
    console.print_table(Table(title, *planned.cells()))
    console.print_sentence(planned.summary)
