"""Kill a run at random moments, let it go on, and compare what it wrote with a run that was left alone, byte for byte.

``python benchmarks/kills.py [--kills 50]`` prints how many results were identical and how many were not.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SETTINGS = """
[run]
checkpoint_every = 2

[training]
partition = "iid:16"
cohort = "poisson:1.0"
rounds = 6
noise = 20
model_settings = {hidden = 8}
client = {epochs = 1, batch_size = "all"}

[one-shot]
canaries = 20
view = ["final-change"]

[canife]
every = 6
trials = 24
design = {iterations = [4]}

[ldp]
crafter = "dummy-gradient"
epsilon = 2
trials = 400
"""


_PRELOADED = [
    "coalmine.runs.running",
    "coalmine.cli",
    "sklearn.datasets",
    "dp_accounting",
    "torch.func",
]  # once for all


def command(arguments: list[str]) -> None:
    """The command line, in a process of its own."""
    from coalmine.cli import main as cli

    sys.argv = ["coalmine", *arguments]
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main()


def start(file: Path, out: Path) -> multiprocessing.process.BaseProcess:
    """Start the run, or go on with it, as a user would."""
    words = ["resume", str(out)] if (out / "run.json").exists() else ["run", str(file), "--out", str(out)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=command, args=([*words, "--quiet"],))
    process.start()
    return process


def finished(file: Path, out: Path) -> float:
    """Let it run to its end; gives the seconds that took."""
    begun, process = time.perf_counter(), start(file, out)
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"the run in {out} ended with code {process.exitcode}")
    return time.perf_counter() - begun


def killed(file: Path, out: Path, seconds: float) -> bool:
    """Start it and kill it after so many seconds; False where it was done before."""
    process = start(file, out)
    process.join(seconds)
    if process.exitcode is not None:
        if process.exitcode != 0:
            raise SystemExit(f"the run in {out} ended with code {process.exitcode} before it was killed")
        return False
    process.kill()
    process.join()
    return True


def killed_after(file: Path, out: Path, event: str, delay: float) -> None:
    """Start it and kill it ``delay`` seconds after its log has a new line with ``event`` in it."""
    log = out / "log.jsonl"
    before = log.read_text().count(event) if log.exists() else 0
    process = start(file, out)
    while process.is_alive() and (not log.exists() or log.read_text().count(event) <= before):
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.join()


def written(out: Path) -> dict[str, bytes]:
    """What the run found: results and all scores."""
    paths = [out / "result.json", *sorted(out.glob("scores*.npz")), *sorted(out.glob("trials*.npz"))]
    return {path.name: path.read_bytes() for path in paths}


def main() -> None:
    """Kill again and again; each run is begun anew once it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        file = root / "audit.toml"
        file.write_text(SETTINGS)
        finished(file, root / "warm")
        length = finished(file, root / "alone")
        alone = written(root / "alone")
        kills, runs, corrupted = 0, 0, 0
        while kills < given.kills:
            out, runs = root / f"killed-{runs}", runs + 1
            for _ in range(int(rng.integers(1, 8))):
                if not killed(file, out, float(rng.uniform(0, length))):
                    break
                kills += 1
            finished(file, out)
            corrupted += written(out) != alone
    print(f"{kills} kills in {runs} runs of {length:.1f} s: {runs - corrupted} identical, {corrupted} corrupted")
    sys.exit(1 if corrupted else 0)


if __name__ == "__main__":
    main()
