"""A long training seen by 20 adversaries: memory along its rounds, and the size of its report.

``python benchmarks/long_run.py [--rounds 3000]`` prints the resident memory at tenths of the training (Linux), the
bytes of the report, and, where Chromium or Chrome is installed, how long that takes to draw it, beside an empty page.
``--picture FILE`` keeps what it drew.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
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


def opening_seconds(browser: str, page: str, picture: Path) -> float:
    """Return how long a browser takes from its start to a picture of a page; the fastest of three attempts."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,1600", f"--screenshot={picture}"]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([browser, *options, page], check=True, capture_output=True, timeout=120)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    """Train, and print memory, size and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    rounds = options.rounds
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
        report = write_report(out)
        size = report.stat().st_size / 1e6
        print(f"report of {len(views)} views and {rounds // 6} evaluations: {size:.2f} MB")
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if browser is not None:
            picture = options.picture or Path(directory) / "report.png"
            empty = opening_seconds(browser, "about:blank", Path(directory) / "empty.png")
            opened = opening_seconds(browser, report.resolve().as_uri(), picture)
            print(f"opens in {opened:.2f} s with the start of the browser, an empty page in {empty:.2f} s")


if __name__ == "__main__":
    main()
