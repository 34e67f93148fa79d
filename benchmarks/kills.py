"""Kill a run at random moments, resume it at once, and compare its results byte for byte with an undisturbed run.

``python benchmarks/kills.py [--kills 100]`` prints how many results were identical and how many were not. It kills in
four ways in turn: SIGKILL and SIGTERM to the process, SIGKILL to one of its workers, and SIGKILL by itself right before
or after it renames a file. A run that refuses to resume, for instance since its directory is still locked, ends the
benchmark.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from coalmine.results.io import check_manifest

SETTINGS = """
[run]
checkpoint_every = 2

[training]
partition = "iid:16"
cohort = "poisson:1.0"
rounds = 6
workers = 2
noise_multiplier = 20
model_settings = {hidden = 8}
client = {epochs = 1, batch_size = "all"}

[one-shot]
canaries = 20
view = ["final-change"]

[canife]
every = 6
trials = 24
design = {iterations = 4}

[ldp]
crafter = "dummy-gradient"
epsilon = 2
trials = 400
"""


KINDS = ("SIGKILL", "SIGTERM", "a worker", "inside a write")
WORKERS = 2


_PRELOADED = [
    "coalmine.runs.running",
    "coalmine.cli.main",
    "sklearn.datasets",
    "dp_accounting",
    "torch.func",
]  # imported once by the fork server, not by every run


def command(arguments: list[str], dies_at: int | None) -> None:
    """Run the command line in a separate process, which kills itself before or after a rename if ``dies_at`` is set."""
    from coalmine.cli import main as cli

    if dies_at is not None:
        die_at_rename(dies_at)
    sys.argv = ["coalmine", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli.main()


def die_at_rename(number: int) -> None:
    """Kill this process at rename ``number // 2`` of a file: before it if the number is even, after it if it is odd."""
    rename, renamed = os.replace, 0

    def dying(*arguments: str) -> None:
        nonlocal renamed
        if renamed == number // 2 and number % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*arguments)
        if renamed == number // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        renamed += 1

    os.replace = dying  # type: ignore[assignment]


def start(file: Path, out: Path, dies_at: int | None = None) -> multiprocessing.process.BaseProcess:
    """Start the run, or resume it, as a user would."""
    arguments = ["resume", str(out)] if (out / "run.json").exists() else ["run", str(file), "--out", str(out)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=command, args=([*arguments, "--quiet"], dies_at))
    process.start()
    return process


def run_to_end(file: Path, out: Path) -> float:
    """Run to the end and return the seconds it took."""
    begin, process = time.perf_counter(), start(file, out)
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"the run in {out} ended with code {process.exitcode}")
    return time.perf_counter() - begin


def disturbed(file: Path, out: Path, kind: str, rng: np.random.Generator, duration: float) -> tuple[bool, bool]:
    """Run and disturb the run in one of the ways of `KINDS`; return whether a process was killed, and whether it ended.

    A worker may be killed while it has nothing to do: then the run goes on to its end.
    """
    process = start(file, out, int(rng.integers(0, 60)) if kind == "inside a write" else None)
    killed = False
    if kind != "inside a write":
        assert process.pid is not None
        workers: list[int] = []
        while kind == "a worker" and process.is_alive() and len(workers) < WORKERS:
            time.sleep(0.002)
            workers = children(process.pid)
        process.join(float(rng.uniform(0, 0.1 if kind == "a worker" else duration)))
        if process.exitcode is None and (workers or kind != "a worker"):
            target = int(rng.choice(workers)) if workers else process.pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)
                killed = True
    process.join()
    # 130 after SIGTERM, or -15 before the run has begun; 2 with a sentence where a worker died.
    if process.exitcode not in (0, 130, -signal.SIGTERM, -signal.SIGKILL, 2 if kind == "a worker" else 0):
        raise SystemExit(f"{kind}: the run in {out} ended with code {process.exitcode}")
    ended = process.exitcode == 0
    return not ended or (kind == "a worker" and killed), ended


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    try:
        return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def phase(out: Path) -> str:
    """Return what a run had done last when it was disturbed."""
    parts = {path.stem: path.stat().st_mtime_ns for path in out.glob("parts/*.json")}
    if parts:
        return f"after the part {max(parts, key=parts.__getitem__)}"
    if was_logged(out, "round"):
        return "in the training"
    return "at the start" if was_logged(out, "running") else "before the start"


def was_logged(out: Path, event: str) -> bool:
    """Whether the log of a run has an event."""
    log = out / "log.jsonl"
    return log.exists() and f'"event": "{event}"' in log.read_text()


def kill_when(file: Path, out: Path, reached: Callable[[], bool], delay: float) -> None:
    """Kill the run ``delay`` seconds after it has reached a point."""
    process = start(file, out)
    while process.is_alive() and not reached():
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.join()


def read_results(out: Path) -> dict[str, bytes]:
    """Return the bytes of the results and of all scores, by file name."""
    paths = [out / "result.json", *sorted(out.glob("scores*.npz")), *sorted(out.glob("trials*.npz"))]
    return {path.name: path.read_bytes() for path in paths}


def leftovers(out: Path) -> list[str]:
    """Return temporary files and old checkpoints, of which there must be none."""
    tensors = sorted(out.glob("checkpoint*/round-*"))
    return [str(path) for path in [*out.rglob(".*.new"), *tensors[:-1]]]


def main() -> None:
    """Disturb and resume runs until there were enough kills, and compare each finished run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
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
        kinds, phases, runs, corrupted = Counter[str](), Counter[str](), 0, 0
        while kinds.total() < options.kills:
            out, runs = root / f"killed-{runs}", runs + 1
            for _ in range(int(rng.integers(1, 8))):
                kind = KINDS[kinds.total() % len(KINDS)]
                begin = time.perf_counter()
                killed, ended = disturbed(file, out, kind, rng, duration)
                if killed:
                    kinds[kind] += 1
                    phases[phase(out)] += 1
                if ended:
                    # It was faster than we thought, unless it found most of its work done.
                    duration = min(duration, max(1.0, time.perf_counter() - begin))
                    break
            run_to_end(file, out)
            check_manifest(out)
            corrupted += read_results(out) != expected or bool(leftovers(out))
            print(f"{kinds.total()} kills in {runs} runs: {runs - corrupted} identical, {corrupted} not", flush=True)
    print("; ".join(f"{kind}: {count}" for kind, count in kinds.items()))
    print("; ".join(f"{name}: {count}" for name, count in phases.most_common()))
    sys.exit(1 if corrupted else 0)


if __name__ == "__main__":
    main()
