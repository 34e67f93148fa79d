"""What do NVFLARE's privacy filters guarantee? Audits those of the installed version.

    python studies/nvflare_dp                     # all of them, as a Markdown table
    python studies/nvflare_dp --only svt-nan      # only this one

README.md has the method and the findings.
"""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from paths import PATHS
from table import main

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main("nvflare", PATHS)
