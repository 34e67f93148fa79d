"""What the rest of coalmine needs to know about the LDP audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coalmine.methods.job import Job, JobContext
from coalmine.methods.ldp.settings import LDPSettings
from coalmine.methods.ldp.tables import tables
from coalmine.methods.registry import Method
from coalmine.results.result import MethodResults, Result
from coalmine.results.units import REPORT

if TYPE_CHECKING:
    from coalmine.drawing.sections import Section


def _job(context: JobContext) -> Job:
    from coalmine.methods.ldp.job import LDPJob

    return LDPJob(context.settings)


def _section(method_results: MethodResults) -> Section:
    from coalmine.drawing.sections import method_section
    from coalmine.methods.ldp.report_section import report_part

    return method_section(METHOD, [report_part(method_results)])


def _charts(method_results: MethodResults) -> Mapping[str, Any]:
    from coalmine.methods.ldp.figures import charts

    return charts(method_results.results)


def _recompute(result: Result, siblings: Sequence[Result]) -> Result:
    from coalmine.methods.ldp.lower_bounds import recomputed

    return recomputed(result)


METHOD = Method(
    name="ldp",
    title="Local privacy: one client's report",
    question="Can an adversary tell which of two gradients a locally private client sent?",
    description=(
        "A client randomizes one of two crafted gradients with a locally private mechanism. An adversary who sees the "
        "report, or the model after the update, guesses which gradient it was. The claimed ε is that of a single "
        "report, not of a training. There is one lower bound for each crafter, claimed ε and view. Some of many single "
        "bounds exceed a correct claim by chance, so claims are tested with bounds that hold jointly."
    ),
    reference="Matsumoto et al. 2022",
    settings=LDPSettings,
    job=_job,
    recompute=_recompute,
    unit=lambda result: REPORT,
    init={"data": "digits", "mechanism": "ldp-sgd", "epsilon": [1, 4], "trials": 10_000, "seed": 0},
    section=_section,
    tables=tables,
    charts=_charts,
    caveats={
        "ldp": (
            "The largest of three bounds (right guesses, error rates, extreme scores) that share one significance "
            "level. A lower bound: fair coins choose what is sent, and thresholds are fixed in advance."
        ),
        "ranks": "Tests of the highest and lowest scores at ranks fixed in advance. A lower bound.",
        "empirical": (
            "The paper's ε_empirical: the log-ratio of the observed error rates at one threshold, averaged over "
            "measurements, ± one standard deviation. An estimate, above 0 by chance alone."
        ),
    },
)
