"""Runs: training with its audits, in a resumable run directory, and what is done with finished runs."""

from coalmine.runs.running import Finished, run
from coalmine.runs.settings import RunSettings

__all__ = ["Finished", "RunSettings", "run"]
