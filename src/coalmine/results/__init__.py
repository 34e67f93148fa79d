"""What audits return: results, verdicts, the gate, and the files they are written to."""

from coalmine.results.claim_test import ClaimTest, check_claim
from coalmine.results.directory import RunDirectory
from coalmine.results.files import results_to_dict, save
from coalmine.results.gate import Gate, judge
from coalmine.results.result import MethodResults, Result
from coalmine.results.saved import SavedRun, read_run_directory
from coalmine.results.units import Unit
from coalmine.results.verdict import Verdict

__all__ = [
    "ClaimTest",
    "Gate",
    "MethodResults",
    "Result",
    "RunDirectory",
    "SavedRun",
    "Unit",
    "Verdict",
    "check_claim",
    "judge",
    "read_run_directory",
    "results_to_dict",
    "save",
]
