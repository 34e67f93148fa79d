"""The exposure method, as the registry knows it (Jagielski 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coalmine.config import SettingError
from coalmine.methods.exposure.settings import ExposureSettings
from coalmine.methods.job import Job, JobContext
from coalmine.methods.registry import Method
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Table, fixed
from coalmine.results.units import PHRASE, SCORES, Unit

if TYPE_CHECKING:
    from coalmine.drawing.sections import Section


def _job(context: JobContext) -> Job:
    from coalmine.methods.exposure.job import ExposureJob

    return ExposureJob(context)


def check(run: Any) -> None:
    """Raise a `SettingError` if there is nothing to rank."""
    settings: ExposureSettings = run.methods["exposure"]
    sharer = run.methods.get("secret-sharer")
    if settings.file is not None:
        return
    if sharer is None:
        raise SettingError(
            "exposure needs a file of losses, or the phrases of a table [secret-sharer]: set file", ["exposure", "file"]
        )
    if sharer.twins == 0 and sharer.model_weights is None:
        raise SettingError(
            "exposure ranks inserted phrases among held-out ones, and twins = 0 holds out none: set twins to 1 or more",
            ["secret-sharer", "twins"],
        )
    for key in ("references", "calibrate"):
        if getattr(settings, key):
            raise SettingError(f"{key} applies to a file of losses or ranks: set file, or remove it", ["exposure", key])


def tables(method_results: MethodResults) -> list[Table]:
    """Return the summary of the exposures compared with random guessing, then the estimates, of each result."""
    return [table for result in method_results.results for table in (_summary_table(result), _estimate_table(result))]


def _section(method_results: MethodResults) -> Section:
    """Return the section of the report: the usual one, with the summary compared with random guessing."""
    from coalmine.drawing.html import table
    from coalmine.drawing.sections import method_section, result_part

    parts = []
    for i, result in enumerate(method_results.results):
        summary = _summary_table(result)
        parts.append(result_part(result, i, more=[table(summary.title, summary.columns, summary.rows)]))
    return method_section(METHOD, parts)


def _summary_table(result: Result) -> Table:
    rows = [
        [
            row["summary"],
            fixed(row["canaries"], 3),
            fixed(row["random_guessing"], 3),
            "-" if row["low"] is None else f"{fixed(row['low'], 3)} to {fixed(row['high'], 3)}",
        ]
        for row in result.details["rows"]
    ]
    counts = f"{result.details['canaries']:,} canaries among {result.details['references']:,} references"
    columns = ["summary", "canaries", "random guessing", f"{_confidence(result)} of random guesses"]
    return Table(f"exposure in bits, log2(references / rank): {counts}", columns, rows)


def _estimate_table(result: Result) -> Table:
    delta = 0.0 if result.bound is None else result.bound.delta
    bound = f"lower bound at δ = {delta:g} with {_confidence(result)} confidence"
    return Table.of_estimates(result.estimates, f"ε: {bound}, estimates at δ = 0; thresholds are ranks")


def _confidence(result: Result) -> str:
    level = None if result.bound is None else result.bound.confidence
    return f"{100 * (level or 0.0):g}%"


def _recompute(result: Result, siblings: Sequence[Result]) -> Result:
    from coalmine.methods.exposure.audit import recomputed

    return recomputed(result)


def _unit(result: Result) -> Unit:
    """Return whose ε it is: that of a file's canaries, or of the phrases of a run; in Python, the caller says."""
    if "file" not in result.config:
        return result.unit
    return PHRASE if result.config["file"] is None else SCORES


METHOD = Method(
    name="exposure",
    title="Ranks among references",
    question="What do canaries' losses or ranks say about ε? Compares their exposure with random guessing.",
    description=(
        "Canaries are ranked by the model's loss among references that were never inserted. Exposure is "
        "log2(references / rank), in bits; random guessing has a median of one bit. Scores are minus the rank, so that "
        "higher means more exposed, and \u22120.5 is ahead of all references. ε is stated at δ = 0 unless set "
        "otherwise."
    ),
    reference="Jagielski 2023",
    settings=ExposureSettings,
    job=_job,
    recompute=_recompute,
    unit=_unit,
    options=("file", "references", "calibrate", "copies", "delta", "confidence"),
    init={"delta": 0.0},
    check=check,
    section=_section,
    tables=tables,
    caveats={
        "median-exposure": "ε from the median rank of the canaries among the references (Jagielski 2023). A point "
        "estimate without an interval.",
        "low-fpr": "Log-ratio of TPR and FPR where few references are flagged. A point estimate without an interval.",
    },
)
