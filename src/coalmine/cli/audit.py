"""``coalmine audit NAME``: one command per method of the registry, built from what the method says of itself."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup, TyperOption

from coalmine.cli import console
from coalmine.cli.exits import resumable, time_limit
from coalmine.cli.runs import draw
from coalmine.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from coalmine.methods.method import Method
    from coalmine.results.result import MethodResults, Result
    from coalmine.runs.settings import RunSettings


class MethodGroup(TyperGroup):
    """A command for each method that a run can use, third-party ones included."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the methods."""
        from coalmine.methods import registry

        return [method.name for method in registry.runnable()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a method, or None if there is no such method."""
        from coalmine.methods import registry

        return _command(registry.get(cmd_name)) if cmd_name in self.list_commands(ctx) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with the nearest name."""
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            ctx.fail(f"unknown method '{args[0]}'. {did_you_mean(args[0], names)}")
        return super().resolve_command(ctx, args)


class MethodCommand(TyperCommand):
    """The command of a method, which knows that most settings are no options."""

    settings: Sequence[str] = ()
    """Names of all settings, for hints."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; an option that is the name of a setting, or nearly, fails with a hint."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            near = difflib.get_close_matches(name, self.settings, n=1, cutoff=0.75)
            if error.possibilities or not near:
                raise
            message = f"No such option '{error.option_name}'. Did you mean the setting '--set {near[0]}=…'?"
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None


app = typer.Typer(
    cls=MethodGroup,
    help="Run one method: insert canaries, look at what an adversary sees, report evidence about ε.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _group() -> None:
    """Run one method: insert canaries, look at what an adversary sees, report evidence about ε."""


def _command(method: type[Method]) -> click.Command:
    """Return the command of a method: its own options, and those that all methods share."""
    reference = f" ({method.reference})" if method.reference else ""

    def callback(**values: Any) -> None:
        _audit(method, values)

    command = MethodCommand(
        method.name,
        callback=callback,
        help=f"{method.question}{reference}",
        short_help=method.question,
        params=[*_own_options(method), *_shared_options(method)],
        rich_markup_mode="rich",
    )
    assert method.settings_type is not None
    tables = [method.settings_type, *([] if method.training_type is None else [method.training_type])]
    command.settings = [path for table in tables for path, _, _ in table().walk()]
    return command


def _own_options(method: type[Method]) -> list[click.Parameter]:
    """Return an option for each setting that the method wants as one."""
    assert method.settings_type is not None
    options: list[click.Parameter] = []
    for name in method.options:
        field = method.settings_type.model_fields[name]
        several = "tuple" in str(field.annotation)
        more: dict[str, Any] = {"is_flag": True, "default": None} if field.annotation is bool else {"multiple": several}
        if field.annotation is not bool:
            more["metavar"] = _metavar(field.annotation)
        repeatable = "; repeatable" if several else ""
        default = "" if field.default is None else f" [default: {console.default_text(field.default)}]"
        text = escape(f"{field.description}{repeatable}{default}")  # brackets are not markup
        options.append(TyperOption(param_decls=[f"--{name.replace('_', '-')}", name], help=text, **more))
    return options


def _metavar(annotation: Any) -> str:
    """Return what the help shows as the type of a setting."""
    text = str(annotation)
    return "NUMBER" if "float" in text else "INTEGER" if "int" in text else "TEXT"


def _shared_options(method: type[Method]) -> list[click.Parameter]:
    """Return the options that all methods have."""
    path = click.Path(path_type=Path)
    names: list[tuple[list[str], str, dict[str, Any]]] = [
        (["--set", "settings"], "A setting as key=value. Repeatable. --settings lists them.", {"multiple": True}),
        (
            ["--out", "out"],
            "Directory for results, scores, report and checkpoints; rerun to resume.",
            {"type": path},
        ),
        (["--max-epsilon", "max_epsilon"], "Exit with code 1 if a lower bound exceeds this ε.", {"type": float}),
        (["--settings", "list_settings"], "List all settings with their defaults, and exit.", {"is_flag": True}),
        (
            ["--timeout", "timeout"],
            "Stop after so many seconds.",
            {"type": click.FloatRange(min=0, min_open=True), "metavar": "SECONDS"},
        ),
        (["--quiet", "quiet"], "Hide progress.", {"is_flag": True}),
        (["--json", "as_json"], "Print the result as JSON and nothing else.", {"is_flag": True}),
    ]
    if method.training_type is not None:
        text = "Also train without canaries, to see what they cost in accuracy."
        names.insert(1, (["--baseline", "baseline"], text, {"is_flag": True}))
    return [TyperOption(param_decls=declarations, help=text, **more) for declarations, text, more in names]


def _audit(method: type[Method], values: Mapping[str, Any]) -> None:
    """Run one method and show its results."""
    assert method.settings_type is not None
    tables = [method.settings_type] if method.training_type is None else [method.training_type, method.settings_type]
    if values["list_settings"]:
        console.print_settings(*reversed(tables))
        return
    settings = _run_settings(method, tables, values)
    out, quiet, as_json = (values[name] for name in ("out", "quiet", "as_json"))

    from coalmine.results.gate import judge
    from coalmine.runs.running import run

    bars = console.bars(quiet=bool(quiet or as_json))
    with time_limit(values["timeout"], out), resumable(out), bars:
        finished = run(settings, out=out)
    (method_results,) = finished.methods
    confidence = getattr(settings.methods[method.name], "confidence", 0.95)
    # Whoever audits one method names it, so that a limit applies to each of its units.
    named = [method.name] if method_results.results else []
    terms = {"max_epsilon": values["max_epsilon"], "confidence": confidence}
    gate = judge(method_results.results, methods=named, **terms)
    if as_json:
        console.print_json({**finished.content, "gate": gate.to_dict()})
    else:
        print_method(method, method_results)
        if values["max_epsilon"] is not None or sum(result.bound is not None for result in method_results.results) > 1:
            console.print_sentence(gate.sentence)
    if out is not None and method_results.results:
        draw(out, bool(as_json))
    console.exit_if_failed(gate)


def _run_settings(method: type[Method], tables: list[Any], values: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a run of this method alone."""
    from coalmine.config import settings_from_mapping
    from coalmine.config.settings import texts_to_mapping
    from coalmine.runs.settings import TRAINING, RunOptions, RunSettings

    content = texts_to_mapping(values["settings"])
    for name in method.options:
        value = values[name]
        if value is None or value == ():
            continue
        if name in content:
            raise InputError(f"{name} is set twice: by --{name.replace('_', '-')} and by --set")
        content[name] = list(value) if isinstance(value, tuple) else value
    *training, method_settings = settings_from_mapping(content, *tables)
    return RunSettings(
        run=RunOptions(baseline=bool(values.get("baseline"))),
        trainings={TRAINING: training[0]} if training else {},
        methods={method.name: method_settings},
    )


def print_method(method: type[Method], results: MethodResults) -> None:
    """Print a method's tables, then what its results say."""
    from coalmine.results.summary import finding_sentences

    for table in method.tables(results):
        console.print_table(table)
    if results.summary:
        console.print_sentence(results.summary)
    plain = [result for result in results.results if not result.variant]  # others are summarized together
    for sentence in finding_sentences(plain):
        console.print_sentence(sentence)
    for result in plain:
        _print_result(result)
    console.print_warnings(warning for result in results.results for warning in result.warnings)
    if results.results and results.results[0].training:
        _print_facts(results.results[0])


def _print_result(result: Result) -> None:
    """Print the verdict and evidence of one result, and the terms of its claim."""
    from coalmine.results.summary import evidence_sentences, plural

    console.print_sentence(f"{result.label}: {evidence_sentences(result)}")
    claim = result.claim
    if claim is not None:
        terms = claim.accountant
        if claim.rounds is not None:  # an ε that was stated says nothing about them
            terms += f", {claim.sampling}, {plural(claim.rounds, 'round')}"
        console.print_sentence(
            f"Claim: ε = {claim.epsilon:.4g} at δ = {claim.delta:g} for {result.unit.name} ({terms})."
        )


def _print_facts(result: Result) -> None:
    """Print the quality of the model, and the seconds taken."""
    from coalmine.runs.running import QUALITY

    quality = [name for name in result.metrics if name.partition(" ")[0] in QUALITY]
    facts = [f"{name} {result.metrics[name]:.4g}" for name in quality]
    if "train_s" in result.timing:
        facts.append(f"{result.timing['train_s']:.3g} s, of which the audit took {result.timing['audit_s']:.2g} s")
    if facts:
        console.print_sentence("; ".join(facts))
