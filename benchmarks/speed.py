"""Time the hot paths against sorting, or against a peer in the same process. Prints a Markdown table.

python benchmarks/speed.py [--repeats 7]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import jax_privacy.auditing as peer
import numpy as np

from coalmine.stats import Scores, one_run, one_run_fdp, simultaneous
from coalmine_reproductions.gaussian_mechanism import canary_cosines

DELTA, ALPHA = 1e-5, 0.05


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median wall time of ``repeats`` calls, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def print_row(name: str, ours: float, baseline: str, theirs: float) -> None:
    """Print one line of the table."""
    print(f"| {name} | {1e3 * ours:.1f} ms | {baseline} | {1e3 * theirs:.1f} ms | {theirs / ours:.1f}× |", flush=True)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    print("| ours | time | compared with | time | speedup |\n|---|---|---|---|---|")

    million = rng.normal(1, 1, 10**6), rng.normal(0, 1, 10**6)
    ours = seconds(lambda: simultaneous(Scores(*million), delta=DELTA), repeats)
    sorting = seconds(lambda: (np.sort(million[0]), np.sort(million[1])), repeats)
    print_row("simultaneous bound, 10⁶ + 10⁶ scores", ours, "np.sort of the same scores", sorting)
    theirs = seconds(lambda: peer.CanaryScoreAuditor(*million).epsilon_clopper_pearson(ALPHA, DELTA), 3)
    print_row("simultaneous bound, 10⁶ + 10⁶ scores", ours, "jax-privacy CP, Bonferroni", theirs)

    canaries = rng.normal(1, 1, 50_000), rng.normal(0, 1, 50_000)
    ours = seconds(lambda: one_run(Scores(*canaries), delta=DELTA), repeats)
    theirs = seconds(lambda: peer.CanaryScoreAuditor(*canaries).epsilon_one_run(ALPHA, DELTA), 3)
    print_row("one-run bound, 10⁵ canaries", ours, "jax-privacy one-run, Bonferroni", theirs)
    ours = seconds(lambda: one_run_fdp(Scores(*canaries), delta=DELTA), repeats)
    theirs = seconds(lambda: peer.CanaryScoreAuditor(*canaries).epsilon_one_run_fdp(ALPHA, DELTA), 1)
    print_row("one-run f-DP bound, 10⁵ canaries", ours, "jax-privacy one-run f-DP, Bonferroni", theirs)

    def vectors() -> None:
        """Sum a tenth of the canaries in the usual way: regenerate each and keep none."""
        dim, total = 10**6, np.zeros(10**6)
        for i in range(100):
            canary = np.random.default_rng(i).standard_normal(dim)
            total += canary / np.linalg.norm(canary)

    ours = seconds(lambda: canary_cosines(dim=10**6, canaries=1000, noise_multiplier=1.0, rng=rng), repeats)
    theirs = 20 * seconds(vectors, 1)  # 1,000 canaries, generated once for the sum and once for the cosines
    print_row("1,000 canary cosines in 10⁶ dimensions", ours, "with vectors, regenerated twice (extrapolated)", theirs)


if __name__ == "__main__":
    main()
