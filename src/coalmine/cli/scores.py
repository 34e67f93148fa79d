"""``coalmine estimate``: evidence about ε from any scores."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from coalmine.cli import console
from coalmine.cli.console import AsJson, Confidence, Delta
from coalmine.errors import InputError


def estimate(
    scores: Annotated[
        Path | None,
        typer.Argument(
            help="CSV, NPZ or JSON with columns score and member (1/0), or with columns members and nonmembers."
        ),
    ] = None,
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this estimator, by its name in the table. Repeatable.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="A threshold fixed before seeing the scores: adds intervals of its counts.")
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
    counts: Annotated[str | None, typer.Option(help="Instead of a file: TP,FN,FP,TN at one threshold.")] = None,
    guesses: Annotated[str | None, typer.Option(help="Instead of a file: CANARIES,GUESSES,CORRECT of one run.")] = None,
    claim: Annotated[
        str | None,
        typer.Option(help="A claimed guarantee to test: noise=1.0,sampling=poisson:0.01,rounds=800 or epsilon=8."),
    ] = None,
    max_epsilon: Annotated[float | None, typer.Option(help="Exit with code 1 if a lower bound exceeds this ε.")] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate ε from any scores: every estimator that applies, in one table.

    Higher scores mean members. docs/runs.md describes all file layouts, docs/estimators.md all estimators.
    """
    from coalmine import stats
    from coalmine.results.gate import judge
    from coalmine.results.io import results_to_dict
    from coalmine.results.result import Result
    from coalmine.results.tables import Table
    from coalmine.results.verdict import SCORES

    if sum(source is not None for source in (scores, counts, guesses)) != 1:
        raise InputError("give one of: a file of scores, --counts TP,FN,FP,TN, or --guesses CANARIES,GUESSES,CORRECT")
    # Refused instead of ignored: a claim that was never tested would look like one that passed.
    defaults = (None, None, "fixed", 1, False, None)
    if scores is None and (threshold, null, design, copies, lower_is_member, claim) != defaults:
        raise InputError(
            "--threshold, --null, --design, --copies, --lower-is-member and --claim apply to a file of scores, not to "
            "--counts or --guesses"
        )
    terms: dict[str, Any] = {"delta": delta, "confidence": confidence, "methods": method}
    if counts is not None:
        cells = stats.Counts(*_whole_numbers("--counts", counts, 4))
        fields: dict[str, Any] = {"config": {"counts": asdict(cells)}}
        fields["estimates"] = stats.estimates_from_counts(cells, **terms)
    elif guesses is not None:
        guessed = stats.Guesses(*_whole_numbers("--guesses", guesses, 3))
        fields = {"config": {"guesses": asdict(guessed)}}
        fields["estimates"] = stats.estimates_from_guesses(guessed, **terms)
    else:
        assert scores is not None
        terms |= {"design": design, "copies": copies, "threshold": threshold, "lower_is_member": lower_is_member}
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
    gate = judge([result], max_epsilon=max_epsilon, confidence=confidence)
    if as_json:
        console.print_json(results_to_dict([result], gate=gate.to_dict()))
    else:
        title = f"ε at δ = {delta:g}, {100 * confidence:g}% confidence"
        console.print_table(Table.of_estimates(result.estimates, title))
        console.print_sentence(result.summary)
        console.print_warnings(result.warnings)
    console.exit_if_failed(gate)


def _from_file(path: Path, null: str | None, claim: str | None, terms: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a result that follow from a file of scores; ``terms`` are those of `stats.estimate`."""
    from coalmine import stats
    from coalmine.claims.claim import parse_claim
    from coalmine.files import read_table, two_groups
    from coalmine.results.claim_test import check_claim
    from coalmine.stats.claim_tests import seem_inverted
    from coalmine.stats.nulls import parse_null

    # A known null replaces the non-members' scores. With both, it would be unclear which one the bound is from.
    known = parse_null(null)
    members, others = two_groups(read_table(path), single=known is not None)
    if known is not None and others is not None:
        raise InputError(f"{path} contains non-members: leave out --null, or remove them from the file")
    # Everything after this line takes higher scores for members.
    lower = terms["lower_is_member"]
    sign = -1 if lower else 1
    sides = stats.Scores(sign * members, None if others is None else sign * others, known)
    config = {"members": members.size, "nonmembers": None if others is None else others.size}
    fields: dict[str, Any] = {"scores": sides, "config": config}
    fields["estimates"] = stats.estimate(members, others, null=known, **terms)
    shared = {name: terms[name] for name in ("confidence", "design", "copies")}
    if others is not None:
        # The most that so many scores can show, so that a small bound is not taken for privacy.
        fields["ceiling"] = stats.ceiling(members.size, others.size, delta=terms["delta"], **shared)
    if claim is not None:
        stated = parse_claim(claim, delta=terms["delta"])
        test = check_claim(sides.members, sides.nonmembers, stated, null=known, **shared)
        fields |= {"claim": stated, "claim_test": test}
    # Losses given as scores are the most frequent mistake, and give a bound of 0 without any error.
    if seem_inverted(sides):
        way, advice = ("higher", "Drop") if lower else ("lower", "Add")
        wrong = f"members score {way} than non-members, the wrong way round, so nothing is shown"
        fields["warnings"] = [f"{wrong}. {advice} --lower-is-member?"]
    return fields


def _whole_numbers(option: str, text: str, count: int) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise InputError(f"{option} must be {count} whole numbers separated by commas, got {text!r}")
    return numbers
