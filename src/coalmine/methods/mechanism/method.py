"""The audit of a single mechanism in the registry of methods."""

from __future__ import annotations

from typing import Any

from coalmine.methods.job import Job, JobContext
from coalmine.methods.mechanism.settings import MechanismSettings
from coalmine.methods.registry import Method
from coalmine.results.units import APPLICATION


def _job(context: JobContext) -> Job:
    from coalmine.methods.mechanism.job import MechanismJob

    return MechanismJob(context)


def _check(run: Any) -> None:
    """Raise if no mechanism is named, a function has two claims, or layers do not fit the dimension."""
    run.methods["mechanism"].check_choice()
    run.methods["mechanism"].coordinates()


METHOD = Method(
    name="mechanism",
    title="One application of a mechanism",
    question="Does a mechanism satisfy its claimed ε when applied once, as a black box?",
    description=(
        "Random unit vectors were summed and the sum went through the mechanism once; others were held out. In high "
        "dimensions random directions are nearly orthogonal, so the cosine of a canary with the output shows how much "
        "of it the noise leaves visible. ε is about one update of norm 1 in one application, not a whole training."
    ),
    reference="Andrew et al. 2023, Section 3",
    settings=MechanismSettings,
    job=_job,
    unit=lambda result: APPLICATION,
    options=tuple(MechanismSettings.model_fields),
    init={"noise_multiplier": 1.0, "dim": 100_000},
    check=_check,
)
