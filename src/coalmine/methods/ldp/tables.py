"""What people, machines and files get of the LDP audit's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coalmine.cli.console import number
from coalmine.errors import InputError
from coalmine.methods.ldp.audit import VIEWS
from coalmine.results.result import AuditResult
from coalmine.results.words import adversary

Table = tuple[str, list[str], list[list[str]]]


def _check_distinct(results: Sequence[AuditResult]) -> None:
    """Refuse results that would overwrite each other."""
    seen: set[tuple[str, str, str]] = set()
    for result in results:
        key = (adversary(result.config), f"{result.config['epsilon']:g}", result.view)
        if key in seen:
            raise InputError(f"there are two results of {key[0]} at ε = {key[1]}, {key[2]}: report them one by one")
        seen.add(key)


def tables(results: Sequence[AuditResult]) -> list[Table]:
    """ε_empirical, the valid bounds and the accuracy: a row for each adversary and ε, a column for each view."""
    _check_distinct(results)
    first = results[0]
    views = [view for view in VIEWS if any(result.view == view for result in results)]
    columns = ["adversary", "ε promised", *views]
    measured: dict[tuple[str, float], list[str]] = {}
    bounds: dict[tuple[str, float], list[str]] = {}
    accuracy: dict[tuple[str, float], list[str]] = {}
    for result in results:
        key = (adversary(result.config), float(result.config["epsilon"]))
        spread = result.metrics["empirical_std"]
        shown = number(result.metrics["empirical"], 3)
        measured.setdefault(key, []).append(
            f"{shown} ± {number(spread, 3)}" if result.config["measurements"] > 1 else shown
        )
        bounds.setdefault(key, []).append(number(result.estimates[0].lower, 3))
        accuracy.setdefault(key, []).append(_right_guesses(result.metrics))
    trials = f"{first.config['trials']:,} trials" + (
        f" in each of {first.config['measurements']} measurements" if first.config["measurements"] > 1 else ""
    )
    assert first.theory is not None
    confidence = 100 * (first.estimates[0].confidence or 0.0)
    alone = f"valid lower bounds on ε, each at {confidence:g}% by itself (of many, some exceed a promise by chance)"
    where = f"{first.config['mechanism']}, {trials}, δ = {first.theory.delta:g}"

    def laid_out(cells: Mapping[tuple[str, float], list[str]]) -> list[list[str]]:
        return [[name, f"{epsilon:g}", *row] for (name, epsilon), row in cells.items()]

    return [
        (f"ε_empirical, the paper's estimate (no bound): {where}", columns, laid_out(measured)),
        (alone, columns, laid_out(bounds)),
        ("right guesses (ours guess a share of the trials only)", columns, laid_out(accuracy)),
    ]


def _right_guesses(metrics: Mapping[str, float]) -> str:
    """How many guesses are right, and of how many trials where not every one was guessed."""
    if "accuracy" not in metrics:
        return "no guesses"
    share = 100 * metrics["guessed"]
    of = "" if share == 100 else f" of {share:.0f}%" if share >= 0.5 else f" of {share:.2g}%"
    return f"{100 * metrics['accuracy']:.1f}%{of}"


def sentence(results: Sequence[AuditResult]) -> str:
    """What it comes to, in words: of many bounds some exceed a promise by chance, so they are judged together."""
    if len(results) == 1:
        return results[0].meaning
    best = max(results, key=_share)
    confidence = 100 * (results[0].estimates[0].confidence or 0.0)
    text = f"With {confidence:g}% confidence for all {len(results)} bounds together"
    if _share(best) == 0:
        return f"{text} no leak is shown: all of them are 0."
    text += (
        f" the largest beside its promise is {best.metrics['bound_of_all']:.3g} of ε = {best.config['epsilon']:g} "
        f"({100 * _share(best):.0f}%): {adversary(best.config)}, {best.view}."
    )
    refuted = sum(result.refuted for result in results)
    if not refuted:
        return f"{text} No promise is refuted."
    exceed = "One exceeds" if refuted == 1 else f"{refuted} exceed"
    return f"{text} {exceed} what was promised: the mechanism has a bug."


def _share(result: AuditResult) -> float:
    """How much of the promise the bound shows that holds together with all others."""
    return float(result.metrics["bound_of_all"] / result.config["epsilon"])


def to_dict(results: Sequence[AuditResult], settings: Mapping[str, Any]) -> dict[str, Any]:
    """JSON-ready, without the scores."""
    return {"audit": "ldp", "settings": dict(settings), "results": [r.to_dict() for r in results],
            "meaning": sentence(results)}  # fmt: skip


def arrays(results: Sequence[AuditResult]) -> dict[str, Any]:
    """Of ``scores.npz``: scores of trials that sent g₁, ``adversary.epsilon.view.g1``, and ``….g2``."""
    _check_distinct(results)
    found: dict[str, Any] = {}
    for result in results:
        name = f"{adversary(result.config)}.{result.config['epsilon']:g}.{result.view}"
        found |= {f"{name}.g1": result.scores.members, f"{name}.g2": result.scores.observed}
    return found
