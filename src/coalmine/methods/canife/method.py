"""CANIFE in the registry of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coalmine.config import SettingError
from coalmine.methods.canife.settings import CanifeSettings
from coalmine.methods.job import Job, JobContext
from coalmine.methods.registry import Method
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Table
from coalmine.results.units import ROUND, USER

if TYPE_CHECKING:
    from coalmine.drawing.sections import Section
    from coalmine.simulation.settings import TrainingSettings


def _training() -> type[TrainingSettings]:
    from coalmine.simulation.settings import TrainingSettings

    return TrainingSettings


def _job(context: JobContext) -> Job:
    from coalmine.methods.canife.job import CanifeJob

    return CanifeJob(context)


def _check(run: Any) -> None:
    """Raise an error for settings that do not go together with the rest of a run."""
    training = run.trainings.get("training")
    if training is None:
        return
    if training.clip_norm == "none":
        raise SettingError(
            "CANIFE needs clipped updates, since its canaries have the clip norm: set clip_norm to a number",
            ["training", "clip_norm"],
        )
    if "one-shot" in run.methods and run.methods["canife"].mode == "running" and training.noise_multiplier == 0:
        raise SettingError(
            "without noise, the random canaries of [one-shot] would hide those of CANIFE in mode running: set mode to "
            "frozen, or audit with a separate file for each method",
            ["canife", "mode"],
        )


def _section(method_results: MethodResults) -> Section:
    from coalmine.methods.canife.report_section import section

    return section(METHOD, method_results)


def _tables(method_results: MethodResults) -> list[Table]:
    from coalmine.methods.canife.report_section import tables

    return tables(method_results)


def _charts(method_results: MethodResults) -> Mapping[str, Any]:
    from coalmine.methods.canife.figures import charts

    return charts(method_results)


def _recompute(result: Result, siblings: Sequence[Result]) -> Result:
    from coalmine.methods.canife.recomputing import recomputed

    return recomputed(result, siblings)


METHOD = Method(
    name="canife",
    title="Crafted samples in single rounds",
    question="How much does one round's noisy sum reveal about a client with worst-case data?",
    description=(
        "A sample was crafted whose update is unlike everyone else's, and coin flips decided in which rounds it took "
        "part. The score measures how much of it a round's noisy sum contains: about 1 with the canary, 0 without. ε "
        "is that of one round, for a client known to take part in it. Rounds composed give an estimate for the whole "
        "training, never a bound."
    ),
    reference="Maddock, Sablayrolles and Stock 2023",
    settings=CanifeSettings,
    job=_job,
    recompute=_recompute,
    unit=lambda result: USER if result.view.endswith(", composed") else ROUND,
    training=_training,
    init={"every": 20, "trials": 100, "delta": 1e-5},
    check=_check,
    section=_section,
    tables=_tables,
    charts=_charts,
    caveats={
        "composed": (
            "Estimates of single rounds, composed to the whole training as if the mechanism were Gaussian. An "
            "estimate, even where a single round has a lower bound."
        ),
    },
)
