"""Does Flower's differential privacy keep its claim? Audits every DP path of the installed version.

    python studies/flower_dp                                  # all paths, as a Markdown table
    python studies/flower_dp --only scalar --only FedAdam     # only these
    python studies/flower_dp --replay                         # by replay, in seconds

README.md has the method and the findings.
"""

import argparse
import logging
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import table
from findings import CONFIDENCE, HEADER
from paths import PATHS
from replays import REPLAYS


def main() -> None:
    """Print the table, a row at a time."""
    parser = argparse.ArgumentParser(
        prog="python studies/flower_dp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=list(PATHS), metavar="PATH", help=f"only this path: {', '.join(PATHS)}"
    )
    parser.add_argument("--replay", action="store_true", help="replay each path with and without one client instead")
    arguments = parser.parse_args()
    chosen = arguments.only or list(PATHS)
    logging.getLogger("flwr").setLevel(logging.CRITICAL if arguments.replay else logging.ERROR)
    if arguments.replay:
        print(f"flwr {metadata.version('flwr')}, by replay\n\n{table.HEADER}", flush=True)
        for name in [name for name in chosen if name in REPLAYS]:
            print(table.row(REPLAYS[name]), flush=True)
        return
    print(f"flwr {metadata.version('flwr')}, confidence {CONFIDENCE:.1%}\n\n{HEADER}", flush=True)
    for name in chosen:
        print(PATHS[name]().row(), flush=True)


if __name__ == "__main__":
    main()
