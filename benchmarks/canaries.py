"""Time scores and sums of update canaries against regenerating one canary at a time. Prints Markdown tables.

python benchmarks/canaries.py [--quick] [--repeats 5]
python benchmarks/canaries.py --false-alarms 2000 [--dims 8191,8192] [--canaries 1024]

Everything runs in turns in one process with one thread at d = 10⁶; a ratio is the median over the turns. The baseline
seeds a generator for every canary, draws a normal vector, normalizes it, and takes its dot product with the update or
adds it to a sum. It runs for 50 canaries and is scaled up to the number it is compared with. coalmine's canaries run in
full, except with --quick.

With --false-alarms nothing is timed: Hadamard canaries are audited against releases that ignore them, and the table has
the share of audits whose exact-null bound exceeds 0 (95% confidence, so at most 5%).
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy loads its BLAS

import argparse
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from coalmine.methods.one_shot.canaries import draw_members
from coalmine.methods.one_shot.gaussian import GaussianCanaries
from coalmine.methods.one_shot.hadamard import HadamardCanaries
from coalmine.methods.one_shot.scores import cosine_null, cosines
from coalmine.stats import ApproximateDP, Scores
from coalmine.stats.rank_tests import threshold_tests
from coalmine.vectors import norm

DIM, NAIVE, SEED = 10**6, 50, 0


@dataclass(frozen=True)
class Row:
    """A measurement.

    Args:
        what: Name of the row.
        canaries: Number of canaries.
        work: What is timed.
        inserting: Whether it sums canaries, which is compared with summing one at a time; otherwise it scores them.
        updates: Number of updates that one call scores.
        target: Speedup over the baseline to reach.
    """

    what: str
    canaries: int
    work: Callable[[], object]
    inserting: bool = False
    updates: int = 1
    target: float | None = None


def seconds(work: Callable[[], object]) -> float:
    """Return the median wall time of as many calls as fit into a fifth of a second, at least one."""
    times: list[float] = []
    while sum(times) < 0.2:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def naive_dots(update: torch.Tensor) -> list[float]:
    """Score the canaries, one at a time."""
    scores = []
    for i in range(NAIVE):
        canary = torch.randn(DIM, generator=torch.Generator().manual_seed(i))
        canary /= canary.norm()
        scores.append(float(canary @ update))
    return scores


def naive_total() -> torch.Tensor:
    """Sum the canaries, one at a time."""
    total = torch.zeros(DIM)
    for i in range(NAIVE):
        canary = torch.randn(DIM, generator=torch.Generator().manual_seed(i))
        canary /= canary.norm()
        total += canary
    return total


def rows(gaussian: int, updates: np.ndarray) -> list[Row]:
    """Return the measurements, with ``gaussian`` canaries of the slower family."""

    def hadamard(count: int) -> HadamardCanaries:
        return HadamardCanaries(dim=DIM, count=count, seed=SEED)

    def normal() -> GaussianCanaries:
        return GaussianCanaries(dim=DIM, count=gaussian, seed=SEED)

    update, count, weights = updates[0], len(updates), np.ones(gaussian)
    # Canaries cache their signs and norms on first use, so first and later calls are separate rows.
    thousand, many, cached = hadamard(1000), hadamard(10**5), normal()
    cached.dots(update)
    return [
        Row("Hadamard scores", 1000, lambda: thousand.dots(update), target=500),
        Row("Hadamard scores", 10**5, lambda: many.dots(update)),
        Row("Hadamard scores, first call (draws the signs)", 1000, lambda: hadamard(1000).dots(update)),
        Row("Hadamard sum", 1000, lambda: thousand.total(np.ones(1000)), inserting=True),
        Row("Gaussian scores, first call (computes the norms)", gaussian, lambda: normal().dots(update), target=2),
        Row(
            f"Gaussian scores of {count} updates, per update",
            gaussian,
            lambda: normal().dots_of(updates),
            updates=count,
        ),
        Row("Gaussian sum", gaussian, lambda: cached.total(weights), inserting=True),
        Row("Gaussian sum, first call (computes the norms)", gaussian, lambda: normal().total(weights), inserting=True),
    ]


def speed(gaussian: int, repeats: int) -> None:
    """Print the table of times."""
    updates = np.random.default_rng(SEED).standard_normal((50, DIM), dtype=np.float32)
    update, table = torch.from_numpy(updates[0]), rows(gaussian, updates)
    naive_dots(update), naive_total(), [row.work() for row in table[:2]]
    turns = []
    for _ in range(repeats):
        before = seconds(lambda: naive_dots(update)), seconds(naive_total)
        ours = [seconds(row.work) / row.updates for row in table]
        after = seconds(lambda: naive_dots(update)), seconds(naive_total)
        turns.append((np.add(before, after) / 2 / NAIVE, np.array(ours)))
    naive, ours = (np.array(part) for part in zip(*turns, strict=True))
    print(f"| at d = 10⁶ | canaries | time | one at a time (scaled from {NAIVE}) | ratio |\n|---|---|---|---|---|")
    for i, row in enumerate(table):
        baseline = naive[:, int(row.inserting)] * row.canaries
        ratio = float(np.median(baseline / ours[:, i]))
        target = "" if row.target is None else f" (≥ {row.target:g}{'' if ratio >= row.target else ', missed'})"
        times = f"{1e3 * np.median(ours[:, i]):,.1f} ms | {1e3 * np.median(baseline):,.0f} ms"
        print(f"| {row.what} | {row.canaries:,} | {times} | {ratio:,.1f}×{target} |", flush=True)
    growth = float(np.median(ours[:, 1] / ours[:, 0]))
    target = "< 5" if growth < 5 else "< 5, missed"
    print(f"\n100,000 Hadamard scores take {growth:.2f} times as long as 1,000 ({target}).\n")


def memory() -> None:
    """Print peak memory: what a call allocates beyond its input, including its output."""
    dim, count = 4 * 10**6, 1000
    update = np.ones(dim, dtype=np.float32)
    print("| at d = 4×10⁶, 1,000 canaries | peak memory beyond the input (< 64 MiB) |\n|---|---|")
    for family in (HadamardCanaries, GaussianCanaries):
        canaries = family(dim=dim, count=count, seed=SEED)
        weights = (np.arange(count) < 2).astype(float)
        for what, work in (("scores", lambda c: c.dots(update)), ("sum", lambda c, w=weights: c.total(w))):
            tracemalloc.start()
            work(canaries)
            peak = tracemalloc.get_traced_memory()[1] / 2**20
            tracemalloc.stop()
            print(f"| {family.__name__} {what} | {peak:.1f} MiB{'' if peak < 64 else ', missed'} |", flush=True)


def _few_rows(draw: np.random.Generator, dim: int) -> np.ndarray:
    """Return an update of an embedding: energy in a fiftieth of the rows of 16 coordinates."""
    rows = draw.permutation(-(-dim // 16))
    return draw.standard_normal(dim) * (rows < max(1, len(rows) // 50))[np.arange(dim) // 16]


RELEASES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "half of the coordinates": lambda draw, dim: (np.arange(dim) < dim // 2).astype(float),
    "one coordinate": lambda draw, dim: np.eye(1, dim, draw.integers(dim))[0],
    "four adjacent numbers": lambda draw, dim: (np.arange(dim) < 4).astype(float),
    "1% of the coordinates": lambda draw, dim: draw.standard_normal(dim) * (draw.permutation(dim) < max(1, dim // 100)),
    "constant": lambda draw, dim: np.ones(dim),
    "few embedding rows": _few_rows,
    "normal": lambda draw, dim: draw.standard_normal(dim),
    "heavy-tailed": lambda draw, dim: draw.standard_t(1.2, dim),
}


def false_alarms(dim: int, canaries: int, audits: int, release: str) -> np.ndarray:
    """Return the share of audits with a bound above 0: (fixed, coin flips) × (by the null alone, as quoted)."""
    alarms = np.zeros((2, 2))
    for seed in range(audits):
        update = RELEASES[release](np.random.default_rng([seed, dim]), dim).astype(np.float32)
        updates = HadamardCanaries(dim=dim, count=2 * canaries, seed=seed)
        scores, null = cosines(updates, update, norm(update)), cosine_null(updates)
        for i, design in enumerate(("fixed", "coin-flips")):
            members = draw_members(canaries, design=design, seed=seed)
            tests = threshold_tests(Scores(scores[members], null=null))
            alone = replace(tests, floor=0.0).p_values(ApproximateDP(0.0, 1e-5), np.arange(tests.rank.size)).min()
            alarms[i] += np.array([alone, max(alone, tests.floor)]) <= 0.05 / tests.rank.size
    return alarms / audits


def print_false_alarms(dims: list[int], canaries: list[int], audits: int) -> None:
    """Print the table of false alarms, for as many canaries as fit a dimension."""
    columns = ("dim", "inserted", "release", "null alone: fixed", "coin flips", "quoted: fixed", "coin flips")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for dim in dims:
        for count in (count for count in canaries if 4 * count <= dim):
            for release in RELEASES:
                rates = false_alarms(dim, count, audits, release).T.ravel()
                print(
                    f"| {dim:,} | {count:,} | {release} | {' | '.join(f'{rate:.1%}' for rate in rates)} |", flush=True
                )


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="100 Gaussian canaries instead of 1,000")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--false-alarms", type=int, metavar="AUDITS", help="measure false alarms instead of speed")
    parser.add_argument("--dims", default="100,1000,1009,1023,1025,1536,1945,8191,8192,8193,8209,15565")
    parser.add_argument("--canaries", default="25,64,256,1024", help="numbers of inserted canaries")
    options = parser.parse_args()
    if options.false_alarms:
        numbers = [[int(number) for number in text.split(",")] for text in (options.dims, options.canaries)]
        print_false_alarms(*numbers, audits=options.false_alarms)
        return
    torch.set_num_threads(1)
    speed(100 if options.quick else 1000, options.repeats)
    memory()


if __name__ == "__main__":
    main()
