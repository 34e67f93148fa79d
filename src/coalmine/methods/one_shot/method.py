"""The one-shot audit in the registry of methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coalmine.config import SettingError
from coalmine.methods.job import Job, JobContext
from coalmine.methods.one_shot.settings import OneShotSettings
from coalmine.methods.registry import Method
from coalmine.results.units import USER

if TYPE_CHECKING:
    from coalmine.simulation.settings import TrainingSettings


def _training() -> type[TrainingSettings]:
    from coalmine.simulation.settings import TrainingSettings

    return TrainingSettings


def _job(context: JobContext) -> Job:
    from coalmine.methods.one_shot.job import OneShotJob

    return OneShotJob(context)


def _check(run: Any) -> None:
    """Raise if canaries would have no norm."""
    training = run.trainings.get("training")
    if training is not None and training.clip_norm == "none" and run.methods["one-shot"].norm is None:
        raise SettingError(
            "the training clips nothing (clip_norm = none), so the canaries have no norm: set norm in [one-shot]",
            ["one-shot", "norm"],
        )


METHOD = Method(
    name="one-shot",
    title="Random updates as canaries",
    question="How much does a training reveal about one user, measured with random updates in a single run?",
    description=(
        "Random updates were inserted into the training as extra clients; others, chosen by coin flips, were held out. "
        "In high dimensions a random direction is nearly orthogonal to every client's update, so whatever a release "
        "contains of it comes from the canary. The score of a canary measures how much of it the releases contain."
    ),
    reference="Andrew et al. 2023",
    settings=OneShotSettings,
    job=_job,
    unit=lambda result: USER,
    training=_training,
    options=("view",),
    init={"view": ["final-change", "updates"], "delta": 1e-5},
    check=_check,
)
