"""Runs: a training with its audits, from settings to results, in a directory that survives a kill."""

from coalmine.results.directory import RunDirectory
from coalmine.results.files import results_to_dict, save
from coalmine.results.saved import SavedRun, read_run_directory

__all__ = ["RunDirectory", "SavedRun", "read_run_directory", "results_to_dict", "save"]
