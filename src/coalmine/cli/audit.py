"""``coalmine audit NAME``: one command per method of the registry, built from what the method says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup, TyperOption

from coalmine.cli import console
from coalmine.cli.exits import continued_by, time_limit
from coalmine.cli.runs import draw
from coalmine.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from coalmine.methods.method import Method
    from coalmine.results.result import MethodResults

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


def _command(method: type[Method]) -> click.Command:
    """Return the command of a method: its own options, and those that all methods share."""
    assert method.settings_type is not None
    options: list[click.Parameter] = []
    for name in method.options:
        field = method.settings_type.model_fields[name]
        kind = str(field.annotation)
        several = "tuple" in kind
        text = f"{field.description}{'; repeatable' if several else ''}"
        if field.default is not None:
            text += f" [default: {console.default_text(field.default)}]"
        # No default of its own: an option that was not typed must leave the setting to --set.
        more: dict[str, Any] = {"is_flag": True, "default": None}
        if field.annotation is not bool:
            metavar = "NUMBER" if "float" in kind else "INTEGER" if "int" in kind else "TEXT"
            more = {"multiple": several, "metavar": metavar}
        # In the help, brackets would be markup.
        options.append(TyperOption(param_decls=[f"--{name.replace('_', '-')}", name], help=escape(text), **more))

    def option(declaration: str, name: str, text: str, **more: Any) -> None:
        options.append(TyperOption(param_decls=[declaration, name], help=text, **more))

    path = click.Path(path_type=Path)
    seconds = click.FloatRange(min=0, min_open=True)
    option("--set", "settings", "A setting as key=value. Repeatable. --settings lists them.", multiple=True)
    if method.training_type is not None:
        text = "Also train without canaries, to see what they cost in accuracy."
        option("--baseline", "baseline", text, is_flag=True)
    option("--out", "out", "Directory for results, scores, report and checkpoints; rerun to resume.", type=path)
    option("--max-epsilon", "max_epsilon", "Exit with code 1 if a lower bound exceeds this ε.", type=float)
    option("--settings", "list_settings", "List all settings with their defaults, and exit.", is_flag=True)
    option("--timeout", "timeout", "Stop after so many seconds.", type=seconds, metavar="SECONDS")
    option("--quiet", "quiet", "Hide progress.", is_flag=True)
    option("--json", "as_json", "Print the result as JSON and nothing else.", is_flag=True)
    reference = f" ({method.reference})" if method.reference else ""
    return TyperCommand(
        method.name,
        callback=lambda **values: _audit(method, values),
        help=f"{method.question}{reference}",
        short_help=method.question,
        params=options,
        rich_markup_mode="rich",
    )


def _audit(method: type[Method], values: Mapping[str, Any]) -> None:
    """Run one method and show its results."""
    assert method.settings_type is not None
    tables = [method.settings_type] if method.training_type is None else [method.training_type, method.settings_type]
    if values["list_settings"]:
        from coalmine.results.tables import Table

        rows = []
        for table in reversed(tables):  # the method's own settings first
            for name, field, default in table().walk():
                rows.append([name, console.default_text(default), field.description or ""])
        console.print_table(Table("settings: --set key=value", ["key", "default", "meaning"], rows))
        return
    from coalmine.config import settings_from_mapping
    from coalmine.config.settings import texts_to_mapping
    from coalmine.results.gate import judge
    from coalmine.runs.running import run
    from coalmine.runs.settings import TRAINING, RunOptions, RunSettings

    content = texts_to_mapping(values["settings"])
    for name in method.options:
        value = values[name]
        if value is None or value == ():
            continue
        if name in content:  # neither of them obviously counts
            raise InputError(f"{name} is set twice: by --{name.replace('_', '-')} and by --set")
        content[name] = list(value) if isinstance(value, tuple) else value
    *training, method_settings = settings_from_mapping(content, *tables)
    settings = RunSettings(
        run=RunOptions(baseline=bool(values.get("baseline"))),
        trainings={TRAINING: training[0]} if training else {},
        methods={method.name: method_settings},
    )
    out, as_json, max_epsilon = values["out"], values["as_json"], values["max_epsilon"]
    # Only a directory with run.json has something that `resume` could continue.
    resume = continued_by(f"continue with `coalmine resume {out}`", kept=out and out / "run.json")
    with time_limit(values["timeout"]), resume, console.bars(quiet=values["quiet"] or as_json):
        finished = run(settings, out=out)
    (found,) = finished.methods
    confidence = getattr(settings.methods[method.name], "confidence", 0.95)
    # Whoever audits one method names it, so that a limit applies to each of its units.
    named = [method.name] if found.results else []
    gate = judge(found.results, methods=named, max_epsilon=max_epsilon, confidence=confidence)
    if as_json:
        console.print_json({**finished.content, "gate": gate.to_dict()})
    else:
        print_method(method, found)
        if max_epsilon is not None or sum(result.bound is not None for result in found.results) > 1:
            console.print_sentence(gate.sentence)
    if out is not None and found.results:
        draw(out, as_json)
    # Last, so that a failed gate leaves a complete directory and report.
    console.exit_if_failed(gate)


def print_method(method: type[Method], found: MethodResults) -> None:
    """Print a method's tables, then what its results say, the claims, and the quality of the model."""
    from coalmine.results.summary import evidence_sentences, finding_sentences, plural
    from coalmine.runs.running import QUALITY

    for table in method.tables(found):
        console.print_table(table)
    if found.summary:
        console.print_sentence(found.summary)
    plain = [result for result in found.results if not result.variant]  # others are summarized together
    for sentence in finding_sentences(plain):
        console.print_sentence(sentence)
    for result in plain:
        console.print_sentence(f"{result.label}: {evidence_sentences(result)}")
        claim = result.claim
        if claim is not None:
            terms = claim.accountant
            if claim.rounds is not None:  # an ε that was stated says nothing about them
                terms += f", {claim.sampling}, {plural(claim.rounds, 'round')}"
            stated = f"ε = {claim.epsilon:.4g} at δ = {claim.delta:g}"
            console.print_sentence(f"Claim: {stated} for {result.unit.name} ({terms}).")
    console.print_warnings(warning for result in found.results for warning in result.warnings)
    # Every result of a method comes from the same training, so its quality and time are printed once.
    if not found.results or not found.results[0].training:
        return
    metrics = found.results[0].metrics
    facts = [f"{name} {value:.4g}" for name, value in metrics.items() if name.partition(" ")[0] in QUALITY]
    if facts:
        console.print_sentence("; ".join(facts))
