"""Kill a run at random moments, resume it, and compare its results byte for byte with an undisturbed run.

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
noise_multiplier = 20
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
    "coalmine.cli.main",
    "sklearn.datasets",
    "dp_accounting",
    "torch.func",
]  # imported once by the fork server, not by every run


def command(arguments: list[str]) -> None:
    """Run the command line, in a separate process."""
    from coalmine.cli import main as cli

    sys.argv = ["coalmine", *arguments]
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main()


def start(file: Path, out: Path) -> multiprocessing.process.BaseProcess:
    """Start the run, or resume it, as a user would."""
    arguments = ["resume", str(out)] if (out / "run.json").exists() else ["run", str(file), "--out", str(out)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=command, args=([*arguments, "--quiet"],))
    process.start()
    return process


def run_to_end(file: Path, out: Path) -> float:
    """Run to the end and return the seconds it took."""
    begin, process = time.perf_counter(), start(file, out)
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"the run in {out} ended with code {process.exitcode}")
    return time.perf_counter() - begin


def run_and_kill(file: Path, out: Path, seconds: float) -> bool:
    """Kill the run after ``seconds`` and return True, or return False if it finished before."""
    process = start(file, out)
    process.join(seconds)
    if process.exitcode is not None:
        if process.exitcode != 0:
            raise SystemExit(f"the run in {out} ended with code {process.exitcode} before it was killed")
        return False
    process.kill()
    process.join()
    return True


def kill_after_event(file: Path, out: Path, event: str, delay: float) -> None:
    """Kill the run ``delay`` seconds after a new line of its log contains ``event``."""
    log = out / "log.jsonl"
    before = log.read_text().count(event) if log.exists() else 0
    process = start(file, out)
    while process.is_alive() and (not log.exists() or log.read_text().count(event) <= before):
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.join()


def read_results(out: Path) -> dict[str, bytes]:
    """Return the bytes of the results and of all scores, by file name."""
    paths = [out / "result.json", *sorted(out.glob("scores*.npz")), *sorted(out.glob("trials*.npz"))]
    return {path.name: path.read_bytes() for path in paths}


def main() -> None:
    """Kill and resume runs until there were enough kills, and compare each finished run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        file = root / "audit.toml"
        file.write_text(SETTINGS)
        run_to_end(file, root / "warm-up")
        duration = run_to_end(file, root / "undisturbed")
        expected = read_results(root / "undisturbed")
        kills, runs, corrupted = 0, 0, 0
        while kills < options.kills:
            out, runs = root / f"killed-{runs}", runs + 1
            for _ in range(int(rng.integers(1, 8))):
                if not run_and_kill(file, out, float(rng.uniform(0, duration))):
                    break
                kills += 1
            run_to_end(file, out)
            corrupted += read_results(out) != expected
    print(f"{kills} kills in {runs} runs of {duration:.1f} s: {runs - corrupted} identical, {corrupted} corrupted")
    sys.exit(1 if corrupted else 0)


if __name__ == "__main__":
    main()
