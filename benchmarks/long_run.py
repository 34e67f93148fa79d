"""A long training seen by 20 adversaries: memory along its rounds, and the size of its report.

``python benchmarks/long_run.py [--rounds 3000]`` prints the resident memory at tenths of the training (Linux) and the
bytes of the report.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from coalmine.progress import listening
from coalmine.report.page import write_report
from coalmine.runs.running import run
from coalmine.runs.settings import run_from_text

SETTINGS = """
[run]
checkpoint_every = 50
[training]
partition = "iid:12"
cohort = "poisson:0.5"
rounds = {rounds}
evaluate_every = 6
noise_multiplier = 20
model_settings = {{hidden = 8}}
client = {{epochs = 1, batch_size = "all"}}
[one-shot]
canaries = 60
participation = "poisson:0.5"
view = [{views}]
"""
EVERY = (2, 3, 5, 6, 7, 10, 12, 15, 20, 25, 30, 50, 60, 100, 150, 300, 500, 1000)


def resident_megabytes() -> float:
    """Return the resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> None:
    """Train, and print memory and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3000)
    rounds = parser.parse_args().rounds
    views = ["final-change", "updates", *(f"every:{n}" for n in EVERY if n <= rounds)]

    def listener(what: str, total: int):  # type: ignore[no-untyped-def]
        def advance(done: int, words: str) -> None:
            if total == rounds and done % max(1, rounds // 10) == 0:
                print(f"round {done:,}: {resident_megabytes():.0f} MB", flush=True)

        return advance, lambda: None

    with tempfile.TemporaryDirectory() as directory, listening(listener):
        out = Path(directory) / "run"
        quoted = ", ".join(f'"{view}"' for view in views)
        run(run_from_text(SETTINGS.format(rounds=rounds, views=quoted), "long"), out=out)
        size = write_report(out).stat().st_size
    print(f"report of {len(views)} views and {rounds // 6} evaluations: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
