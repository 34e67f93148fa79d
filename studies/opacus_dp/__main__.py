"""Does Opacus' differential privacy keep its claim? Audits optimizers, engine and accountants of the installed version.

    python studies/opacus_dp                     # all of them, as a Markdown table
    python studies/opacus_dp --only ghost        # only this one

README.md has the method and the findings.
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from paths import PATHS
from table import main

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # about backward hooks, secure mode and seeds
    main("opacus", PATHS)
