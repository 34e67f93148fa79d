"""``coalmine estimate``: evidence about ε from any scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coalmine.cli import console
from coalmine.cli.options import AsJson, Confidence, Delta, MaxEpsilon
from coalmine.errors import InputError

if TYPE_CHECKING:
    from coalmine.stats import Estimate, Scores

_INVERTED = "members score {} than non-members, the wrong way round, so nothing is shown. {} --lower-is-member?"


def estimate(
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
        typer.Option(help="Only this estimator, by its name in the table. Repeatable.", show_default=False),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="A threshold fixed before seeing the scores: adds intervals of its counts."),
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
    score_column: Annotated[str, typer.Option(help="Column of the scores.")] = "score",
    member_column: Annotated[str, typer.Option(help="Column of the membership.")] = "member",
    counts: Annotated[
        str | None, typer.Option(help="Instead of a file: TP,FN,FP,TN at one threshold.", show_default=False)
    ] = None,
    guesses: Annotated[
        str | None,
        typer.Option(help="Instead of a file: CANARIES,GUESSES,CORRECT of one run.", show_default=False),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            help="A claimed guarantee to test: noise=1.0,sampling=poisson:0.01,rounds=800 or epsilon=8.",
            show_default=False,
        ),
    ] = None,
    max_epsilon: MaxEpsilon = None,
    as_json: AsJson = False,
) -> None:
    """Estimate ε from any scores: every estimator that applies, in one table.

    Higher scores mean members. docs/files.md describes all file layouts, docs/estimators.md all estimators.
    """
    from coalmine import stats
    from coalmine.claims.claim import Claim, parse_claim
    from coalmine.results.claim_test import check_claim
    from coalmine.results.gate import judge
    from coalmine.results.io import results_to_dict
    from coalmine.results.result import Result
    from coalmine.results.tables import Table
    from coalmine.results.verdict import SCORES
    from coalmine.stats.claim_tests import seem_inverted

    if sum(source is not None for source in (scores, counts, guesses)) != 1:
        raise InputError("give one of: a file of scores, --counts TP,FN,FP,TN, or --guesses CANARIES,GUESSES,CORRECT")
    of_files = {
        "--threshold": threshold is not None,
        "--null": null is not None,
        "--design": design != "fixed",
        "--copies": copies != 1,
        "--lower-is-member": lower_is_member,
        "--score-column": score_column != "score",
        "--member-column": member_column != "member",
        "--claim": claim is not None,
    }
    if scores is None and any(of_files.values()):
        wrong = ", ".join(name for name, used in of_files.items() if used)
        raise InputError(f"{wrong} applies to a file of scores, not to --counts or --guesses")
    terms: dict[str, Any] = {"delta": delta, "confidence": confidence}
    sides: Scores | None = None
    ceiling: float | None = None
    tested: Claim | None = None
    test, warnings = None, list[str]()
    if counts is not None:
        cells = stats.Counts(*_whole_numbers("--counts", counts, 4))
        estimates = stats.estimates_from_counts(cells, **terms, methods=method)
        config: dict[str, Any] = {"counts": asdict(cells)}
    elif guesses is not None:
        guessed = stats.Guesses(*_whole_numbers("--guesses", guesses, 3))
        estimates = stats.estimates_from_guesses(guessed, **terms, methods=method)
        config = {"guesses": asdict(guessed)}
    else:
        assert scores is not None
        terms |= {"design": design, "copies": copies}
        options = {"lower_is_member": lower_is_member, "threshold": threshold, "methods": method}
        with console.busy("reading and testing the scores"):
            estimates, sides, ceiling = _from_file(scores, (score_column, member_column), null, terms, options)
            if claim is not None:
                tested = parse_claim(claim, delta=delta)
                test = check_claim(
                    sides.members,
                    sides.nonmembers,
                    tested,
                    null=sides.null,
                    confidence=confidence,
                    design=design,
                    copies=copies,
                )
            if seem_inverted(sides):
                warnings.append(_INVERTED.format(*(("higher", "Drop") if lower_is_member else ("lower", "Add"))))
        config = {"members": sides.members.size, "nonmembers": None if sides.null else sides.observed.size}
    result = Result(
        method="estimate",
        view="scores",
        unit=SCORES,
        adversary="computed the scores",
        score_name="score",
        side_names=("members", "non-members"),
        seed=0,
        estimates=estimates,
        scores=sides,
        null=null,
        claim=tested,
        claim_test=test,
        ceiling=ceiling,
        warnings=warnings,
        config=config,
    )
    gate = judge([result], max_epsilon=max_epsilon, confidence=confidence)
    if as_json:
        console.print_json(results_to_dict([result], gate=gate.to_dict()))
    else:
        console.print_table(Table.of_estimates(estimates, f"ε at δ = {delta:g}, {100 * confidence:g}% confidence"))
        console.print_sentence(result.summary)
        console.print_warnings(warnings)
    console.exit_if_failed(gate)


def _from_file(
    path: Path, columns: tuple[str, str], null: str | None, terms: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[list[Estimate], Scores, float | None]:
    """Return the estimates of a score file, its scores, and the ceiling of bounds from that many."""
    from coalmine import stats
    from coalmine.scorefile import read_scores
    from coalmine.stats.nulls import parse_null

    known = parse_null(null)
    members, nonmembers = read_scores(path, *columns, known_null=known is not None)
    estimates = stats.estimate(members, nonmembers, null=known, **terms, **options)
    sign = -1 if options["lower_is_member"] else 1
    sides = stats.Scores(sign * members, None if nonmembers is None else sign * nonmembers, known)
    ceiling = None if nonmembers is None else stats.ceiling(members.size, nonmembers.size, **terms)
    return estimates, sides, ceiling


def _whole_numbers(option: str, text: str, count: int) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise InputError(f"{option} must be {count} whole numbers separated by commas, got {text!r}")
    return numbers
