"""Runs: trainings with their audits, in a resumable run directory, and what is done with finished ones."""

from coalmine.runs.running import Finished, run
from coalmine.runs.settings import RunSettings, read_run

__all__ = ["Finished", "RunSettings", "read_run", "run"]
