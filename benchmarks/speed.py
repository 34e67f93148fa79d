"""How long the hot paths take, as ratios to sorting or to a peer in the same process. Prints a Markdown table.

python benchmarks/speed.py [--repeats 7]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import jax_privacy.auditing as peer
import numpy as np

from coalmine.reproductions.gaussian_mechanism import canary_cosines
from coalmine.stats import Scores, one_run, one_run_fdp, simultaneous

DELTA, ALPHA = 1e-5, 0.05


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median wall time of ``repeats`` calls after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def row(what: str, ours: float, than: str, theirs: float) -> None:
    """One line of the table."""
    print(f"| {what} | {1e3 * ours:.1f} ms | {than} | {1e3 * theirs:.1f} ms | {theirs / ours:.1f}× |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    print("| ours | time | compared with | time | how much faster |\n|---|---|---|---|---|")

    million = rng.normal(1, 1, 10**6), rng.normal(0, 1, 10**6)
    ours = seconds(lambda: simultaneous(Scores(*million), delta=DELTA), repeats)
    sorting = seconds(lambda: (np.sort(million[0]), np.sort(million[1])), repeats)
    row("simultaneous bound, 10⁶ + 10⁶ scores", ours, "np.sort of the same scores", sorting)
    theirs = seconds(lambda: peer.CanaryScoreAuditor(*million).epsilon_clopper_pearson(ALPHA, DELTA), 3)
    row("simultaneous bound, 10⁶ + 10⁶ scores", ours, "jax-privacy CP, Bonferroni", theirs)

    canaries = rng.normal(1, 1, 50_000), rng.normal(0, 1, 50_000)
    ours = seconds(lambda: one_run(Scores(*canaries), delta=DELTA), repeats)
    theirs = seconds(lambda: peer.CanaryScoreAuditor(*canaries).epsilon_one_run(ALPHA, DELTA), 3)
    row("one-run bound, 10⁵ canaries", ours, "jax-privacy one-run, Bonferroni", theirs)
    ours = seconds(lambda: one_run_fdp(Scores(*canaries), delta=DELTA), repeats)
    theirs = seconds(lambda: peer.CanaryScoreAuditor(*canaries).epsilon_one_run_fdp(ALPHA, DELTA), 1)
    row("one-run f-DP bound, 10⁵ canaries", ours, "jax-privacy one-run f-DP, Bonferroni", theirs)

    def vectors() -> None:
        """A tenth of the canaries, each regenerated, none kept: the usual way."""
        dim, total = 10**6, np.zeros(10**6)
        for i in range(100):
            c = np.random.default_rng(i).standard_normal(dim)
            total += c / np.linalg.norm(c)

    ours = seconds(lambda: canary_cosines(dim=10**6, canaries=1000, noise_multiplier=1.0, rng=rng), repeats)
    theirs = 20 * seconds(vectors, 1)  # 1,000 canaries, made once for the sum and once for the cosines
    row("1,000 canary cosines in 10⁶ dimensions", ours, "with vectors, regenerated twice (extrapolated)", theirs)


if __name__ == "__main__":
    main()
