"""Runs: a training with its audits, from settings to results, in a directory that survives a kill."""

from coalmine.runs.directory import RunDirectory
from coalmine.runs.files import results_to_dict, save
from coalmine.runs.saved import SavedRun, read_run_directory

__all__ = ["RunDirectory", "SavedRun", "read_run_directory", "results_to_dict", "save"]
