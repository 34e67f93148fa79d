"""What audits return, and what everything above reads.

A method makes a `Result` per adversary: scores, estimates (`coalmine.stats`), a `ClaimTest` (``claim_test``) and
findings of checks, from which its `Verdict` follows (both in ``verdict``). ``gate`` judges several results together,
at one false-alarm rate, and tells CI servers. ``summary`` and ``tables`` put results into words and side by side.
``io`` writes and reads them; ``directory`` is the directory of a run that can be resumed.
"""

from coalmine.results.io import read_run_directory
from coalmine.results.result import MethodResults, Result, Results
from coalmine.results.verdict import Unit, Verdict

__all__ = ["MethodResults", "Result", "Results", "Unit", "Verdict", "read_run_directory"]
