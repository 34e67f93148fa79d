"""Large inputs: ten million scores in a file, and a million canaries. Peak memory of each, in a process of its own.

``python benchmarks/large.py [--scores 10000000] [--canaries 1000000]`` (Linux, macOS)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from multiprocessing import Process
from pathlib import Path

import numpy as np

_UNIT = 1e-6 if sys.platform == "darwin" else 1e-3  # bytes there, kilobytes on Linux


def write_scores(path: Path, count: int) -> None:
    """Write scores N(1, 1) of members and N(0, 1) of non-members, as .csv or .npz."""
    rng = np.random.default_rng(0)
    member = rng.random(count) < 0.5
    score = rng.normal(size=count) + member
    if path.suffix == ".npz":
        np.savez(path, score=score, member=member)
        return
    with path.open("w") as file:
        file.write("score,member\n")
        for start in range(0, count, 10**5):
            part = slice(start, start + 10**5)
            rows = zip(score[part].tolist(), member[part].tolist(), strict=True)
            file.writelines(f"{value!r},{int(flag)}\n" for value, flag in rows)


def measure(name: str, arguments: list[str]) -> None:
    """Run a command of coalmine and print its peak memory and processor time."""
    process = subprocess.Popen([sys.executable, "-m", "coalmine", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    megabytes, seconds = usage.ru_maxrss * _UNIT, usage.ru_utime + usage.ru_stime
    print(f"| {name} | {os.waitstatus_to_exitcode(status)} | {megabytes:,.0f} MB | {seconds:.0f} s |", flush=True)


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scores", type=int, default=10**7)
    parser.add_argument("--canaries", type=int, default=10**6)
    options = parser.parse_args()
    print("| input | exit code | peak memory | processor time |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for suffix in (".npz", ".csv"):
            path = Path(directory) / f"scores{suffix}"
            # In a process of its own, since the peak of this one counts as that of the processes it starts.
            writer = Process(target=write_scores, args=(path, options.scores))
            writer.start()
            writer.join()
            measure(f"{options.scores:,} scores, {suffix}", ["estimate", str(path)])
            path.unlink()
    noise = ["--noise-multiplier", str(options.canaries / 1000)]
    sizes = ["--dim", str(10 * options.canaries), "--canaries", str(options.canaries)]
    measure(f"{options.canaries:,} canaries of a mechanism", ["audit", "mechanism", *noise, *sizes])


if __name__ == "__main__":
    main()
