"""Do pfl's mechanisms keep their claims? Audits those of the installed version.

    python studies/pfl_dp                     # all of them, as a Markdown table
    python studies/pfl_dp --only joint        # only this one

README.md has the method and the findings.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from paths import PATHS
from table import main

if __name__ == "__main__":
    main("pfl", PATHS)
