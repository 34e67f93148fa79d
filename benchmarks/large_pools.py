"""What a design pool of a large model costs in memory and in temporary files: processor time, time and memory.

    python benchmarks/large_pools.py [--dim 10000000] [--clients 100] [--memory 1,8]

Each amount of ``pool_memory`` (GiB) is measured in a process of its own (Linux): making the pool from random updates,
its Gram matrix, and the direction of the likelihood ratio for one canary. Memory is anonymous memory, without pages of
files that the system may drop.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.score_direction import likelihood_ratio_direction
from coalmine.simulation.flat import norms


class Peak(threading.Thread):
    """Watches the anonymous memory of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.kib, self._stop_watching = 0, threading.Event()

    def run(self) -> None:
        """Look every few milliseconds."""
        while not self._stop_watching.wait(0.01):
            self.kib = max(self.kib, anonymous())

    def stop(self) -> float:
        """Return the peak in GiB."""
        self._stop_watching.set()
        self.join()
        return self.kib / 2**20


def anonymous() -> int:
    """Return the anonymous memory of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def updates(dim: int, clients: int) -> Iterator[torch.Tensor]:
    """Yield random updates of norm 1."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(clients):
        update = torch.randn(dim, generator=draw)
        update /= float(norms(update[None]))  # torch's own is 1% too small at 10⁸
        yield update


def measure(dim: int, clients: int, memory: float) -> None:
    """Print one row of the table."""
    torch.set_num_threads(1)
    peak = Peak()
    peak.start()
    cells, start = [], (time.process_time(), time.perf_counter())

    def lap() -> None:
        nonlocal start
        now = time.process_time(), time.perf_counter()
        cells.append(f"{now[0] - start[0]:.1f} / {now[1] - start[1]:.1f} s")
        start = now

    rows = -(-dim // 1000)
    pool = Pool.of(
        (torch.nn.functional.pad(update, (0, rows * 1000 - dim)) for update in updates(dim, clients)), [(rows, 1000)],
        clip_norm=1.01, pool_memory=memory,
    )  # fmt: skip
    lap()
    assert pool.gram.shape == (clients, clients)
    lap()
    canary = np.random.default_rng(1).standard_normal(pool.dim, dtype=np.float32)
    direction = likelihood_ratio_direction(canary, pool, noise_multiplier=0.5, cohort=100)
    lap()
    check = float(np.abs(direction.vector[:1000]).sum())
    print(f"| {dim:,} | {memory:g} GiB | {' | '.join(cells)} | {peak.stop():.1f} GiB | {check:.9g} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dim", type=int, default=10_000_000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--memory", default="8,1")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.dim, options.clients, float(options.memory))
        return
    print("| parameters | pool_memory | pool | Gram matrix | direction | memory | check |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for memory in options.memory.split(","):
        command = [sys.executable, __file__, "--one", "--dim", str(options.dim), "--clients", str(options.clients)]
        subprocess.run([*command, "--memory", memory], check=True)


if __name__ == "__main__":
    main()
