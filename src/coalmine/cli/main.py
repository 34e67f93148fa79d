"""The command line: parses, calls, prints."""

from __future__ import annotations

import io
import sys
import warnings
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine import __version__
from coalmine.cli import audit as cli_audits
from coalmine.cli import console
from coalmine.cli import runs as cli_runs
from coalmine.cli import saved as cli_saved
from coalmine.cli import secret_sharer as cli_secret_sharer
from coalmine.errors import InputError, check_count

if TYPE_CHECKING:
    from coalmine.stats import Null

app = typer.Typer(
    name="coalmine",
    help="Audit the privacy of federated learning: an empirical ε with honest error bars, beside the theoretical one.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)
cli_audits.app.command("secret-sharer")(cli_secret_sharer.secret_sharer)
app.add_typer(cli_audits.app, name="audit")
app.command()(cli_runs.demo)
app.command()(cli_runs.run)
app.command()(cli_runs.resume)
app.command()(cli_saved.check)
app.command()(cli_saved.compare)
app.command()(cli_saved.serve)
app.command()(cli_saved.init)
app.command()(cli_runs.report)


class Scale(StrEnum):
    """How much a reproduction takes."""

    quick = "quick"
    full = "full"


class Design(StrEnum):
    """How members were chosen among the canaries."""

    fixed = "fixed"
    coin_flips = "coin-flips"


Delta = Annotated[float, typer.Option(help="The δ at which ε is stated.")]
Confidence = Annotated[float, typer.Option(help="Confidence of bounds and intervals.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]


def main() -> None:
    """Run the command line; bad input becomes a sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot write ε shall see a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    warnings.showwarning = console.show_warning
    try:
        app()
    except InputError as error:
        print(f"coalmine: {error}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, OverflowError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error):  # how torch says it
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"coalmine: a number is too large for this machine: {reason:.200}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(0)


def _version(show: bool) -> None:
    if show:
        print(f"coalmine {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Audit the privacy of federated learning: an empirical ε with honest error bars, beside the theoretical one."""


@app.command("estimate")
def estimate_command(
    scores: Annotated[
        Path | None,
        typer.Argument(
            help="CSV, NPZ or JSON with columns score and member (1/0), or with columns members and nonmembers.",
            show_default=False,
        ),
    ] = None,
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only this estimator, by the name the table shows; may be given again.", show_default=False),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="A threshold fixed before the scores were seen: adds the intervals of its counts."),
    ] = None,
    null: Annotated[
        str | None,
        typer.Option(help="Known distribution of non-members: cosine:DIM, normal, or normal:MEAN,STD."),
    ] = None,
    design: Annotated[
        Design, typer.Option(help="How members were chosen: in fixed numbers, or each by a fair coin flip.")
    ] = Design.fixed,
    copies: Annotated[int, typer.Option(help="How often each member was planted (group privacy).")] = 1,
    lower_is_member: Annotated[
        bool, typer.Option("--lower-is-member", help="The scores are losses: lower means member.")
    ] = False,
    score_column: Annotated[str, typer.Option(help="Column of the scores.")] = "score",
    member_column: Annotated[str, typer.Option(help="Column that says who is a member.")] = "member",
    counts: Annotated[
        str | None, typer.Option(help="Instead of a file: TP,FN,FP,TN at one threshold.", show_default=False)
    ] = None,
    guesses: Annotated[
        str | None,
        typer.Option(help="Instead of a file: CANARIES,GUESSES,CORRECT of one run.", show_default=False),
    ] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="Exit with code 1 where a valid bound exceeds this ε.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """ε from anybody's scores: every estimator that applies, in one table.

    SCORES is a .csv, .npz or .json file with columns score and member (1/0), or with columns members and nonmembers;
    higher scores mean members. docs/files.md has all layouts, docs/estimators.md all methods.
    """
    from coalmine import stats
    from coalmine.results import words

    if sum(source is not None for source in (scores, counts, guesses)) != 1:
        raise InputError("give one of: a file of scores, --counts TP,FN,FP,TN, or --guesses CANARIES,GUESSES,CORRECT")
    given = {
        "--threshold": threshold is not None,
        "--null": null is not None,
        "--design": design is not Design.fixed,
        "--copies": copies != 1,
        "--lower-is-member": lower_is_member,
        "--score-column": score_column != "score",
        "--member-column": member_column != "member",
    }
    if scores is None and any(given.values()):
        wrong = ", ".join(name for name, there in given.items() if there)
        raise InputError(f"{wrong} goes with a file of scores, not with --counts or --guesses")
    about: dict[str, Any] = {}
    if counts is not None:
        cells = stats.Counts(*_whole_numbers("--counts", counts, 4))
        found = stats.estimates_from_counts(cells, delta=delta, confidence=confidence, methods=method)
        about = {"counts": asdict(cells)}
    elif guesses is not None:
        guessed = stats.Guesses(*_whole_numbers("--guesses", guesses, 3))
        found = stats.estimates_from_guesses(guessed, delta=delta, confidence=confidence, methods=method)
        about = {"guesses": asdict(guessed)}
    else:
        from coalmine.scorefile import read_scores

        assert scores is not None
        with console.busy("reading and testing the scores"):
            known = _parse_null(null)
            members, nonmembers = read_scores(scores, score_column, member_column, known_null=known is not None)
            found = stats.estimate(
                members,
                nonmembers,
                null=known,
                delta=delta,
                confidence=confidence,
                threshold=threshold,
                design=design.value,
                copies=copies,
                methods=method,
                lower_is_member=lower_is_member,
            )
            about = {"members": members.size, "nonmembers": nonmembers if nonmembers is None else nonmembers.size}
            about["ceiling"] = None
            if nonmembers is not None:
                about["ceiling"] = stats.ceiling(
                    members.size,
                    nonmembers.size,
                    delta=delta,
                    confidence=confidence,
                    design=design.value,
                    copies=copies,
                )
    meaning = words.meaning(found, about.get("ceiling"))
    if as_json:
        console.print_json({**about, "estimates": [e.to_dict() for e in found], "meaning": meaning})
    else:
        console.print_estimates(found, f"ε at δ = {delta:g}, {100 * confidence:g}% confidence")
        console.print_sentence(meaning)
    recommended = next((e for e in found if e.valid), None)
    if max_epsilon is not None and recommended is not None and recommended.epsilon > max_epsilon:
        print(f"coalmine: the bound of {recommended.epsilon:.4g} exceeds {max_epsilon:g}", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def account(
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            help="Noise multiplier: noise on the sum of a round over how far one client can move it.",
            show_default=False,
        ),
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            help="poisson:Q (or poisson:A/B), fixed:SIZE/POPULATION, epoch:ROUNDS, at-most:TIMES or every-round, the"
            " default.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 1,
    delta: Delta = 1e-5,
    epsilon: Annotated[
        float | None, typer.Option(help="Instead of --noise-multiplier: the ε to reach; prints the noise it needs.")
    ] = None,
    local_epsilon: Annotated[
        float | None, typer.Option(help="Instead of --noise-multiplier: ε of one locally randomized report (LDP).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What theory says: ε of DP-FedAvg by each accountant, or the noise that an ε needs."""
    from coalmine import accounting
    from coalmine.accounting.sampling import parse_sampling
    from coalmine.results import words

    if sum(given is not None for given in (noise_multiplier, epsilon, local_epsilon)) != 1:
        raise InputError("give one of --noise-multiplier, --epsilon (to get the noise it needs) or --local-epsilon")
    if local_epsilon is not None:
        if sampling is not None:
            raise InputError("--sampling does not go with --local-epsilon: every report is randomized on its device")
        found = [accounting.local_theory(epsilon=local_epsilon, rounds=rounds, delta=delta)]
    else:
        parsed = parse_sampling(sampling or "every-round")
        with console.busy("composing the rounds"):
            found = accounting.all_theories(
                noise_multiplier=noise_multiplier, epsilon=epsilon, sampling=parsed, rounds=rounds, delta=delta
            )
    if as_json:
        console.print_json({"theory": [t.to_dict() for t in found], "meaning": words.theory(found, epsilon)})
        return
    columns = ["accountant", "ε", "noise multiplier", "sampling", "rounds", "neighbors"]
    rows = [
        [
            t.accountant,
            console.number(t.epsilon, 4),
            "-" if t.noise_multiplier is None else f"{t.noise_multiplier:.6g}",
            t.sampling,
            f"{t.rounds:,}",
            t.adjacency,
        ]
        for t in found
    ]
    console.print_table(f"theory at δ = {delta:g}", columns, rows)
    console.print_sentence(words.theory(found, epsilon))


@app.command()
def exposure(
    file: Annotated[
        Path,
        typer.Argument(
            help="CSV, NPZ or JSON with columns loss and canary (1/0), or canaries and references, or rank.",
            show_default=False,
        ),
    ],
    references: Annotated[
        int | None, typer.Option(help="Number of references, where the file has ranks.", show_default=False)
    ] = None,
    delta: Annotated[float, typer.Option(help="The δ at which the bound on ε is stated.")] = 0.0,
    confidence: Confidence = 0.95,
    copies: Annotated[int, typer.Option(help="How often each canary was planted (group privacy).")] = 1,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Subtract the column reference_loss (a model without the canaries).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Exposure of canaries, beside what random guessing gives, and the ε it speaks of.

    FILE is a .csv, .npz or .json file with columns loss and canary (1/0), or canaries and references, or rank (1 + the
    number of references whose loss is not higher) with --references.
    """
    from coalmine.methods.exposure.audit import exposure_report
    from coalmine.scorefile import read_table

    report = exposure_report(
        read_table(file),
        references=references,
        delta=delta,
        confidence=confidence,
        copies=copies,
        calibrated=calibrate,
    )
    if as_json:
        console.print_json(report.to_dict())
        return
    rows = [
        [
            row.summary,
            console.number(row.canaries, 3),
            console.number(row.random_guessing, 3),
            "-" if row.low is None else f"{console.number(row.low, 3)} to {console.number(row.high, 3)}",
        ]
        for row in report.rows
    ]
    counts, sure = f"{report.canaries:,} canaries among {report.references:,} references", f"{100 * confidence:g}%"
    title, columns = f"exposure in bits, log2(references / rank): {counts}", ["", "canaries", "random guessing"]
    console.print_table(title, [*columns, f"{sure} of random guesses"], rows)
    print()
    at = f"{delta:g} (nothing is left out)" if delta == 0 else f"{delta:g}"
    title = f"ε: the bound at δ = {at} with {sure} confidence, estimates at δ = 0; thresholds are ranks"
    console.print_estimates(report.estimates, title)
    console.print_sentence(report.meaning)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which; all names are listed if not given.")] = None,
    scale: Annotated[Scale, typer.Option(help="quick (10 minutes at most) or full (up to a few hours).")] = Scale.quick,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulations.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the table, figures, and parts that are done: stopped and called again, it goes on."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    data: Annotated[
        str | None, typer.Option(help="Only this data set, where there are several.", show_default=False)
    ] = None,
) -> None:
    """A paper's table or figure, beside the paper's numbers."""
    from coalmine.drawing.files import save_in_every_format
    from coalmine.reproductions import REPRODUCTIONS, Context, find

    if name is None:
        print("\n".join(REPRODUCTIONS))
        return
    found = find(name)
    if found is None:
        raise InputError(f"there is no reproduction {name!r}; there are: {', '.join(REPRODUCTIONS)}")
    if data is not None and not found.startswith("ldp"):
        raise InputError(f"{found} has its own data: leave --data out")
    context = Context(seed, scale.value, console.track, out, workers, data)
    table = REPRODUCTIONS[found](context)
    written = context.keep_table(found, table)
    console.print_table(table.title, table.columns, table.rows)
    if table.note:
        console.print_sentence(table.note)
    if written is not None:
        print(f"\nwritten to {written}")
        for path in save_in_every_format(table.draw(), written.parent):
            print(f"written to {path}")


def _parse_null(text: str | None) -> Null | None:
    from coalmine.stats import CosineNull, NormalNull

    if text is None:
        return None
    kind, _, rest = text.partition(":")
    try:
        if kind == "cosine":
            return CosineNull(check_count("the dimension of --null cosine", float(rest), least=2))
        if kind == "normal":
            if not rest:
                return NormalNull()
            mean, std = (float(part) for part in rest.split(","))
            return NormalNull(mean, std)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"--null must be cosine:DIM, normal, or normal:MEAN,STD, got {text!r}")


def _whole_numbers(option: str, text: str, count: int) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise InputError(f"{option} must be {count} whole numbers separated by commas, got {text!r}")
    return numbers


if __name__ == "__main__":
    main()
