"""The exposure method in a run: reads a file, or the losses of the phrases inserted by secret-sharer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coalmine.errors import InputError
from coalmine.methods.exposure.audit import Exposure
from coalmine.methods.exposure.settings import ExposureSettings
from coalmine.methods.job import Job, JobContext
from coalmine.results.result import MethodResults
from coalmine.results.units import PHRASE, SCORES
from coalmine.scorefile import ScoreTable, read_table

if TYPE_CHECKING:
    from coalmine.simulation.rounds import Rounds

SOURCE = "secret-sharer"
"""Method whose phrases are ranked if there is no file."""


class ExposureJob(Job):
    """Ranks canaries among references."""

    needs_training = False

    def __init__(self, context: JobContext) -> None:
        self.settings: ExposureSettings = context.settings
        self.reads = () if self.settings.file is not None else (SOURCE,)
        self._jobs = context.jobs
        # A file that cannot be read is reported before other methods of the run start a training.
        self._table = None if self.settings.file is None else read_table(Path(self.settings.file))

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return one result."""
        settings = self.settings
        exposure = Exposure.from_table(
            self._table or self._phrase_table(),
            references=settings.references,
            calibrate=settings.calibrate,
            copies=settings.copies,
        )
        unit = PHRASE if self._table is None else SCORES
        result = exposure.result(delta=settings.delta, confidence=settings.confidence, unit=unit)
        result = replace(result, config={**result.config, **settings.to_dict()})
        return MethodResults(method="exposure", results=[result])

    def _phrase_table(self) -> ScoreTable:
        """Return the losses of the run's inserted and held-out phrases."""
        from coalmine.methods.secret_sharer.job import PhraseJob

        job = self._jobs.get(SOURCE)
        if not isinstance(job, PhraseJob):
            raise InputError(f"exposure needs a file of losses, or {SOURCE} in the same run")
        inserted, held_out = job.losses()
        return ScoreTable("the phrases of this run", {"canaries": inserted, "references": held_out}, 0)
