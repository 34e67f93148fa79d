"""Does Flower's differential privacy keep its claim? Audits every DP path of the installed version.

    python studies/flower_dp                                  # all paths, as a Markdown table
    python studies/flower_dp --only scalar --only FedAdam     # only these
    python studies/flower_dp --replay                         # by replay, in seconds

README.md has the method and the findings.
"""

import argparse
import logging
from importlib import metadata

import replays
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
    parser.add_argument("--replay", action="store_true", help="replay each path with and without one client instead")
    arguments = parser.parse_args()
    chosen = arguments.only or list(PATHS)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if arguments.replay:
        print(f"flwr {metadata.version('flwr')}, by replay\n\n{replays.HEADER}", flush=True)
        print("\n".join(replays.rows(arguments.only)))
        return
    print(f"flwr {metadata.version('flwr')}, confidence {CONFIDENCE:.1%}\n\n{HEADER}", flush=True)
    for name in chosen:
        print(PATHS[name]().row(), flush=True)


if __name__ == "__main__":
    main()
