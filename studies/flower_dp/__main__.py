"""Does Flower's differential privacy keep its claim? Audits every DP path of the installed version.

    python studies/flower_dp                                  # all paths, as a Markdown table
    python studies/flower_dp --only scalar --only FedAdam     # only these

README.md has the method and the findings.
"""

import argparse
import logging
from importlib import metadata

from findings import CONFIDENCE, HEADER
from paths import PATHS


def main() -> None:
    """Print the table, a row at a time."""
    parser = argparse.ArgumentParser(
        prog="python studies/flower_dp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=list(PATHS), metavar="PATH", help=f"only this path: {', '.join(PATHS)}"
    )
    chosen = parser.parse_args().only or list(PATHS)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(f"flwr {metadata.version('flwr')}, confidence {CONFIDENCE:.1%}\n\n{HEADER}", flush=True)
    for name in chosen:
        print(PATHS[name]().row(), flush=True)


if __name__ == "__main__":
    main()
