"""The LDP audit in a run, and what the report and the terminal show of it. It needs no training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from coalmine.methods.ldp.settings import VIEWS, LDPSettings, adversary_name
from coalmine.methods.method import Method
from coalmine.results.result import MethodResults, Result
from coalmine.results.summary import causes
from coalmine.results.tables import Group, Table, fixed, share_of_claim
from coalmine.results.verdict import REPORT, Verdict

if TYPE_CHECKING:
    from coalmine.simulation.rounds import Rounds

# What to say about the worst verdict of all results.
_SENTENCES = {
    Verdict.REFUTED: "Refuted: {count} of {tests} tests refute the claimed ε, so the mechanism has a bug.{fault}",
    Verdict.SUSPICIOUS: "Suspicious: no test refutes its claim, but {count} of {tests} lower bounds exceed it.",
    Verdict.TOO_WEAK: "Too weak: {count} of {tests} tests would not have noticed half of the claimed noise.",
    Verdict.NOT_REFUTED: "Not refuted: none of {tests} tests refutes its claim. This is not a proof of privacy.",
    Verdict.NO_CLAIM: "No claim: {count} of {tests} results are about a mechanism without a finite ε.",
}


class LdpMethod(Method):
    """Runs the audit that the settings describe: one result per crafter, claimed ε and view."""

    name = "ldp"
    title = "Local privacy: one client's report"
    question = "Can an adversary tell which of two gradients a locally private client sent?"
    template = Path(__file__).with_name("section.html.j2")
    description = (
        "A client randomizes one of two crafted gradients with a locally private mechanism. An adversary who sees the "
        "report, or the model after the update, guesses which gradient it was. The claimed ε is that of a single "
        "report, not of a training. There is one lower bound for each crafter, claimed ε and view. Some of many single "
        "bounds exceed a correct claim by chance, so claims are tested with bounds that hold jointly."
    )
    reference = "Matsumoto et al. 2022"
    unit = REPORT
    settings_type = LDPSettings
    init: ClassVar[Mapping[str, Any]] = {
        "data": "digits",
        "mechanism": "ldp-sgd",
        "epsilon": [1, 4],
        "trials": 10_000,
        "seed": 0,
    }
    caveats: ClassVar[Mapping[str, str]] = {
        "ldp": (
            "The largest of three bounds (right guesses, error rates, extreme scores) that share one significance "
            "level. A lower bound: fair coins choose what is sent, and thresholds are fixed in advance."
        ),
        "ranks": "Tests of the highest and lowest scores at ranks fixed in advance. A lower bound.",
        "empirical": (
            "The paper's ε_empirical: the log-ratio of the observed error rates at one threshold, averaged over "
            "measurements, ± one standard deviation. An estimate, above 0 by chance alone."
        ),
    }

    settings: LDPSettings

    def prepare(self) -> None:
        """Refuse a wrong crafter or mechanism."""
        # Other methods of the run may train for hours before this one's turn.
        self.settings.mechanisms()
        self.settings.crafters()

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return one result per crafter, claimed ε and view."""
        results = []
        for result in self.settings.audit().run():
            results.append(replace(result, config=self.config | dict(result.config)))
        return MethodResults(method=self.name, results=results, summary=summary(results))

    @classmethod
    def labels(cls, settings: LDPSettings) -> Sequence[str]:
        """Return the label of each crafter, claimed ε and view."""
        return settings.labels()

    @classmethod
    def recompute(cls, result: Result, siblings: Sequence[Result]) -> Result:
        """Return a result with its estimates, joint bound and claim test computed again from its trials."""
        from coalmine.methods.ldp.lower_bounds import recomputed

        return recomputed(result)

    @classmethod
    def section(cls, found: MethodResults) -> Mapping[str, Any]:
        """Return ε found against ε claimed by adversary, and the largest share of its claim that a bound shows."""
        by_adversary: dict[str, dict[str, Any]] = {}
        for result in found.results:
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
        return {"summary": summary(found.results), "panels": by_adversary}

    @classmethod
    def tables(cls, found: MethodResults) -> list[Table]:
        """Return ε_empirical, lower bounds and right guesses: one row per adversary and ε, one column per view."""
        results = found.results
        first = results[0]
        bound, mechanisms = first.estimates[0], dict.fromkeys(str(result.config["mechanism"]) for result in results)
        trials = f"{first.config['trials'] * first.config['measurements']:,} trials"
        titles = [
            f"ε_empirical, the paper's estimate (not a bound): {', '.join(mechanisms)}, {trials}, δ = {bound.delta:g}",
            f"lower bounds on ε, each at {100 * (bound.confidence or 0):g}% confidence by itself (of many, some exceed "
            "a correct claim by chance)",
            "right guesses, and the share of trials guessed where it is not 100%",
        ]
        views: list[str] = [view for view in VIEWS if any(result.view == view for result in results)]
        rows: list[dict[str, list[str]]] = [{}, {}, {}]
        for result in results:
            metrics = result.metrics
            empirical = fixed(metrics["empirical"], 3)
            if result.config["measurements"] > 1:
                empirical += f" ± {fixed(metrics['empirical_std'], 3)}"
            # The likelihood ratio guesses only where evidence is strong, and may not guess at all.
            guesses = "no guesses"
            if "accuracy" in metrics:
                guesses = f"{100 * metrics['accuracy']:.1f}%"
                if metrics["guessed"] != 1:
                    guesses += f" of {100 * metrics['guessed']:.2g}%"
            start = [adversary_name(result.variant), f"{result.config['epsilon']:g}", *["-"] * len(views)]
            cells = (empirical, fixed(result.estimates[0].lower, 3), guesses)
            for by_variant, cell in zip(rows, cells, strict=True):
                by_variant.setdefault(result.variant, list(start))[2 + views.index(result.view)] = cell
        columns = ["adversary", "claimed ε", *views]
        shown = [Table(title, columns, list(part.values())) for title, part in zip(titles, rows, strict=True)]
        # A single result has room for all its estimates.
        if len(results) == 1:
            shown.append(Table.of_estimates(first.estimates, "all lower bounds and estimates"))
        return shown


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
    faults = [f" {cause}" for result in results for cause in causes(result.findings)]
    fault = "".join(faults[:1])
    return f"{_SENTENCES[verdict].format(count=count, tests=len(results), fault=fault)} {leak}"
