"""Which bugs are caught, by which check, in which target; and correct runs for false alarms.

    python benchmarks/bugs --rows bugs.jsonl                          # all bugs in all targets, three seeds each
    python benchmarks/bugs --rows bugs.jsonl --targets loop,ldp       # some targets
    python benchmarks/bugs --rows bugs.jsonl --correct 200            # correct runs, so many in each target
    python benchmarks/bugs --rows bugs.jsonl --table                  # tables from these rows
    python benchmarks/bugs --quick                                    # the first bug of each target, one seed

Rows are written as they are done, and a second call goes on where the first stopped. Targets whose package is not
installed are skipped, so rows of several environments can go to one file.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module, util
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from cases import Case
from tables import Row, print_tables

MODULES = {
    "mechanism": "mechanism_target", "loop": "loop_target", "replay": "replay_target", "simulator": "simulator_target",
    "flower": "flower_target", "opacus": "opacus_target", "ldp": "ldp_target", "ldp_audit": "ldp_target",
}  # fmt: skip
"""The module of each target."""

PACKAGES = {"flower": "flwr", "opacus": "opacus"}
"""What targets need beside coalmine."""


def cases_of(target: str) -> list[Case]:
    """Return the cases of a target."""
    return [case for case in import_module(MODULES[target]).cases() if case.target == target]


def row_of(target: str, name: str, seed: int) -> Row:
    """Run a case, and return its row."""
    [case] = [case for case in cases_of(target) if case.name == name]
    start = time.process_time()
    answer = case.run(seed)
    return {
        "target": target,
        "kind": case.kind,
        "bug": name,
        "seed": seed,
        "check": answer.check,
        "sentence": answer.sentence,
        "seconds": round(time.process_time() - start, 2),
    }


def read_rows(path: Path | None) -> list[Row]:
    """Return the rows of a file, the last of each run."""
    if path is None or not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return list({(row["target"], row["bug"], row["seed"]): row for row in rows}.values())


def planned(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield target, name and seed of each run that was asked for."""
    for target in options.targets.split(","):
        package = PACKAGES.get(target, "coalmine")
        if util.find_spec(package) is None:
            print(f"{target} is skipped: {package} is not installed")
            continue
        cases = [case for case in cases_of(target) if options.only in case.name]
        correct = [case for case in cases if case.kind == "correct"]
        bugs = [case for case in cases if case.kind != "correct"]
        if options.quick:
            yield target, bugs[0].name, 0
        elif options.correct:
            for run in range(options.correct):
                yield target, correct[run % len(correct)].name, run // len(correct)
        else:
            for seed in range(options.seeds):
                yield from ((target, case.name, seed) for case in bugs)


def main() -> None:
    """Run cases, or print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(MODULES), help=f"of {', '.join(MODULES)}")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--correct", type=int, default=0, help="number of correct runs of each target")
    parser.add_argument("--quick", action="store_true", help="one bug of each target")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="file of rows, one JSON object per line")
    parser.add_argument("--table", action="store_true", help="only print the tables of the rows")
    options = parser.parse_args()
    if unknown := set(options.targets.split(",")) - set(MODULES):
        parser.error(f"unknown target {', '.join(unknown)}: use {', '.join(MODULES)}")
    if options.table:
        print_tables(read_rows(options.rows))
        return
    done = {(row["target"], row["bug"], row["seed"]) for row in read_rows(options.rows)}
    todo = [run for run in planned(options) if run not in done]
    with ProcessPoolExecutor(options.workers) as pool:
        for future in as_completed([pool.submit(row_of, *run) for run in todo]):
            row = future.result()
            print(
                f"{row['target']:<10} {row['bug']:<45} {row['seed']} {row['check'] or '-'}: {row['sentence']}",
                flush=True,
            )
            if options.rows is not None:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
