"""The LDP audit in a run. It needs no training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from coalmine.methods.ldp.section import panels, summary, tables
from coalmine.methods.ldp.settings import LDPSettings
from coalmine.methods.method import Method
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Table
from coalmine.results.verdict import REPORT, Unit

if TYPE_CHECKING:
    from coalmine.simulation.rounds import Rounds


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
    def recompute(cls, result: Result, siblings: Sequence[Result]) -> Result:
        """Return a result with its estimates, joint bound and claim test computed again from its trials."""
        from coalmine.methods.ldp.lower_bounds import recomputed

        return recomputed(result)

    @classmethod
    def unit_of(cls, result: Result) -> Unit:
        """Return one report."""
        return REPORT

    @classmethod
    def section(cls, found: MethodResults) -> Mapping[str, Any]:
        """Return the summary and the panels for the report."""
        return {"summary": summary(found.results), "panels": panels(found.results)}

    @classmethod
    def tables(cls, found: MethodResults) -> list[Table]:
        """Return the tables for the terminal."""
        return tables(found)
