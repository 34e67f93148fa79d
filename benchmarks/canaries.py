"""What scores and sums of update canaries cost against regenerating one at a time. Prints Markdown tables.

python benchmarks/canaries.py [--quick] [--repeats 5]

One thread, all in turns in one process, d = 10⁶: a ratio is the median over the turns. The usual way seeds a generator
for every canary, draws a normal vector, normalizes it and takes its dot product with the update, or adds it to a sum.
It is run for 50 canaries and scaled up to as many as it is compared with; the rest runs in full, except with --quick.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy loads its BLAS

import argparse
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from coalmine.methods.one_shot.gaussian import GaussianCanaries
from coalmine.methods.one_shot.hadamard import HadamardCanaries

DIM, NAIVE, SEED = 10**6, 50, 0


@dataclass(frozen=True)
class Row:
    """A measurement: ``per`` is how many updates a call scores, ``least`` how much faster than usual it should be."""

    what: str
    canaries: int
    work: Callable[[], object]
    planting: bool = False
    per: int = 1
    least: float | None = None


def seconds(work: Callable[[], object]) -> float:
    """Median wall time of calls that take a fifth of a second together, or of one that takes longer."""
    times: list[float] = []
    while sum(times) < 0.2:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def naive_dots(update: torch.Tensor) -> list[float]:
    """Scores, one canary at a time."""
    scores = []
    for i in range(NAIVE):
        canary = torch.randn(DIM, generator=torch.Generator().manual_seed(i))
        canary /= canary.norm()
        scores.append(float(canary @ update))
    return scores


def naive_total() -> torch.Tensor:
    """The sum of canaries, one at a time."""
    total = torch.zeros(DIM)
    for i in range(NAIVE):
        canary = torch.randn(DIM, generator=torch.Generator().manual_seed(i))
        canary /= canary.norm()
        total += canary
    return total


def rows(gaussian: int, updates: np.ndarray) -> list[Row]:
    """What is measured, with ``gaussian`` canaries of the slow family. Canaries keep signs and norms."""

    def hadamard(count: int) -> HadamardCanaries:
        return HadamardCanaries(dim=DIM, count=count, seed=SEED)

    def normal() -> GaussianCanaries:
        return GaussianCanaries(dim=DIM, count=gaussian, seed=SEED)

    one, many, kept, more, measured = updates[0], len(updates), hadamard(1000), hadamard(10**5), normal()
    measured.dots(one)
    return [
        Row("Hadamard scores", 1000, lambda: kept.dots(one), least=500),
        Row("Hadamard scores", 10**5, lambda: more.dots(one)),
        Row("Hadamard scores, the first, which draw signs", 1000, lambda: hadamard(1000).dots(one)),
        Row("Hadamard sum", 1000, lambda: kept.total(np.ones(1000)), planting=True),
        Row("Gaussian scores, the first, which find norms", gaussian, lambda: normal().dots(one), least=2),
        Row(f"Gaussian scores of {many} updates, per update", gaussian, lambda: normal().dots_of(updates), per=many),
        Row("Gaussian sum", gaussian, lambda: measured.total(np.ones(gaussian)), planting=True),
        Row("Gaussian sum, norms not known", gaussian, lambda: normal().total(np.ones(gaussian)), planting=True),
    ]


def speed(gaussian: int, repeats: int) -> None:
    """Print the table of times."""
    updates = np.random.default_rng(SEED).standard_normal((50, DIM), dtype=np.float32)
    update, table = torch.from_numpy(updates[0]), rows(gaussian, updates)
    naive_dots(update), naive_total(), [row.work() for row in table[:2]]
    turns = []
    for _ in range(repeats):
        before = seconds(lambda: naive_dots(update)), seconds(naive_total)
        ours = [seconds(row.work) / row.per for row in table]
        after = seconds(lambda: naive_dots(update)), seconds(naive_total)
        turns.append((np.add(before, after) / 2 / NAIVE, np.array(ours)))
    naive, ours = (np.array(part) for part in zip(*turns, strict=True))
    print(f"| at d = 10⁶ | canaries | time | one at a time (scaled from {NAIVE}) | ratio |\n|---|---|---|---|---|")
    for i, row in enumerate(table):
        theirs = naive[:, int(row.planting)] * row.canaries
        ratio = float(np.median(theirs / ours[:, i]))
        bar = "" if row.least is None else f" (≥ {row.least:g}{'' if ratio >= row.least else ', missed'})"
        times = f"{1e3 * np.median(ours[:, i]):,.1f} ms | {1e3 * np.median(theirs):,.0f} ms"
        print(f"| {row.what} | {row.canaries:,} | {times} | {ratio:,.1f}×{bar} |", flush=True)
    growth = float(np.median(ours[:, 1] / ours[:, 0]))
    verdict = "< 5" if growth < 5 else "< 5, missed"
    print(f"\n100,000 Hadamard scores take {growth:.2f} times as long as 1,000 ({verdict}).\n")


def memory() -> None:
    """Print the table of peaks: what a call allocates on top of its input, its output included."""
    dim, count = 4 * 10**6, 1000
    update = np.ones(dim, dtype=np.float32)
    print("| at d = 4×10⁶, 1,000 canaries | peak of memory beyond the input (< 64 MiB) |\n|---|---|")
    for family in (HadamardCanaries, GaussianCanaries):
        canaries = family(dim=dim, count=count, seed=SEED)
        weights = (np.arange(count) < 2).astype(float)
        for what, work in (("scores", lambda c: c.dots(update)), ("sum", lambda c, w=weights: c.total(w))):
            tracemalloc.start()
            work(canaries)
            peak = tracemalloc.get_traced_memory()[1] / 2**20
            tracemalloc.stop()
            print(f"| {family.__name__} {what} | {peak:.1f} MiB{'' if peak < 64 else ', missed'} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="100 Gaussian canaries in place of 1,000")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    speed(100 if options.quick else 1000, options.repeats)
    memory()


if __name__ == "__main__":
    main()
