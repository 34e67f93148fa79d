"""What audits return, and what everything above reads.

A method makes a `Result` per adversary: scores, estimates (`coalmine.stats`), a `ClaimTest` (``claim_test``) and
findings of checks (``finding``), from which its `Verdict` (``verdict``) follows. ``gate`` judges several results
together, at one false-alarm rate, and ``ci`` tells CI servers. ``summary`` and ``tables``
put results into words and side by side. ``io`` writes and reads them; ``directory`` is the run directory of
a run that can be resumed.
"""

from coalmine.results.claim_test import ClaimTest, check_claim
from coalmine.results.directory import RunDirectory
from coalmine.results.gate import Gate, judge
from coalmine.results.io import SavedRun, read_run_directory, results_to_dict, save
from coalmine.results.result import MethodResults, Result, Results
from coalmine.results.verdict import Unit, Verdict

__all__ = [
    "ClaimTest",
    "Gate",
    "MethodResults",
    "Result",
    "Results",
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
