"""The LDP audit in the report and the terminal: panels, tables, and a few sentences about all results together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from coalmine.methods.ldp.settings import VIEWS, adversary_name
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Group, Table, fixed, share_of_claim
from coalmine.results.verdict import Verdict

# What to say about the worst verdict of all results.
_SENTENCES = {
    Verdict.REFUTED: "Refuted: {count} of {tests} tests refute the claimed ε, so the mechanism has a bug. Look for "
    "missing noise or skipped clipping.",
    Verdict.SUSPICIOUS: "Suspicious: no test refutes its claim, but {count} of {tests} lower bounds exceed it.",
    Verdict.TOO_WEAK: "Too weak: {count} of {tests} tests would not have noticed half of the claimed noise.",
    Verdict.NOT_REFUTED: "Not refuted: none of {tests} tests refutes its claim. This is not a proof of privacy.",
    Verdict.NO_CLAIM: "No claim: {count} of {tests} results are about a mechanism without a finite ε.",
}


def tables(method_results: MethodResults) -> list[Table]:
    """Return ε_empirical, the lower bounds and the right guesses: one row per adversary and ε, one column per view."""
    results = method_results.results
    first = results[0]
    bound, mechanisms = first.estimates[0], dict.fromkeys(str(result.config["mechanism"]) for result in results)
    trials = f"{first.config['trials'] * first.config['measurements']:,} trials"
    shown = [
        _table(
            f"ε_empirical, the paper's estimate (not a bound): {', '.join(mechanisms)}, {trials}, δ = {bound.delta:g}",
            results,
            _empirical,
        ),
        _table(
            f"lower bounds on ε, each at {100 * (bound.confidence or 0):g}% confidence by itself (of many, some exceed "
            "a correct claim by chance)",
            results,
            lambda result: fixed(result.estimates[0].lower, 3),
        ),
        _table("right guesses, and the share of trials guessed where it is not 100%", results, _right_guesses),
    ]
    # A single result has room for all its estimates.
    if len(results) == 1:
        shown.append(Table.of_estimates(first.estimates, "all lower bounds and estimates"))
    return shown


def panels(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """Return ε found against ε claimed by adversary, and the largest share of its claim that a bound shows."""
    by_adversary: dict[str, dict[str, Any]] = {}
    for result in results:
        panel = by_adversary.setdefault(adversary_name(result.variant), {"rows": [], "share": 0.0})
        claimed, empirical = float(result.config["epsilon"]), result.metrics["empirical"]
        # ε_empirical is infinite if every guess is right, which no chart can show.
        estimate = empirical if math.isfinite(empirical) else None
        row = {"x": claimed, "bound": result.joint_bound, "estimate": estimate, "about": result.view}
        panel["rows"].append(row)
        panel["share"] = max(panel["share"], share_of_claim(result))
    for panel in by_adversary.values():
        # The diagonal from 0 is all of the claimed ε.
        claims = sorted({0.0, *(row["x"] for row in panel["rows"])})
        panel["claims"] = [{"x": claim, "claim": claim} for claim in claims]
    return by_adversary


def summary(results: Sequence[Result]) -> str:
    """Describe all results together: the claims are tested with lower bounds that hold jointly."""
    if len(results) == 1:
        return results[0].summary
    verdict, closest = Group(title="", results=results).verdict, max(results, key=share_of_claim)
    confidence = f"{100 * (results[0].estimates[0].confidence or 0):g}% confidence for all {len(results)} together"
    if share_of_claim(closest) == 0:
        leak = f"All lower bounds are 0 ({confidence}): no leak shown."
    else:
        leak = (
            f"The bound closest to its claim is ε ≥ {closest.joint_bound:.3g} of ε = {closest.config['epsilon']:g} "
            f"({100 * share_of_claim(closest):.0f}%; {adversary_name(closest.variant)}, {closest.view}; {confidence})."
        )
    count = sum(result.verdict is verdict for result in results)
    return f"{_SENTENCES[verdict].format(count=count, tests=len(results))} {leak}"


def _table(title: str, results: Sequence[Result], cell: Callable[[Result], str]) -> Table:
    """Return one row per variant, one column per view."""
    views: list[str] = [view for view in VIEWS if any(result.view == view for result in results)]
    rows: dict[str, list[str]] = {}
    for result in results:
        start = [adversary_name(result.variant), f"{result.config['epsilon']:g}", *["-"] * len(views)]
        rows.setdefault(result.variant, start)[2 + views.index(result.view)] = cell(result)
    return Table(title, ["adversary", "claimed ε", *views], list(rows.values()))


def _empirical(result: Result) -> str:
    """Return ε_empirical, with its standard deviation if there are several measurements."""
    mean = fixed(result.metrics["empirical"], 3)
    if result.config["measurements"] == 1:
        return mean
    return f"{mean} ± {fixed(result.metrics['empirical_std'], 3)}"


def _right_guesses(result: Result) -> str:
    """Return the share of right guesses, and the share of trials guessed if it is not all of them."""
    metrics = result.metrics
    # The likelihood ratio guesses only where evidence is strong, and may not guess at all.
    if "accuracy" not in metrics:
        return "no guesses"
    share = "" if metrics["guessed"] == 1 else f" of {100 * metrics['guessed']:.2g}%"
    return f"{100 * metrics['accuracy']:.1f}%{share}"
