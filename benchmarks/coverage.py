"""How often each valid 95% bound exceeds the truth, in simulated audits. Prints a Markdown table.

python benchmarks/coverage.py [--audits 10000] [--workers 2]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coalmine.stats import (
    ApproximateDP,
    NormalNull,
    Scores,
    epsilon_from_counts,
    epsilon_gdp,
    published_lower_bound,
    refutes,
    split,
)
from coalmine.stats.simultaneous_bound import any_rejects
from coalmine.stats.single_run import dp_families


@dataclass(frozen=True)
class Case:
    """Audits of one mechanism: how many scores a side, at which δ, what the true ε is."""

    mechanism: str
    parameter: float
    n: int
    delta: float

    @cached_property
    def truth(self) -> float:
        """The exact ε at δ."""
        return float(epsilon_gdp(self.parameter, self.delta)) if self.mechanism == "gaussian" else self.parameter

    def draw(self, rng: np.random.Generator) -> Scores:
        """The scores of one audit."""
        n, x = self.n, self.parameter
        if self.mechanism == "gaussian":
            return Scores(rng.normal(x, 1, n), rng.normal(0, 1, n))
        if self.mechanism == "laplace":
            return Scores(rng.laplace(x, 1, n), rng.laplace(0, 1, n))
        sides = []
        for member in (True, False):
            right = rng.random(n) < 1 / (1 + math.exp(-x))
            symbol = np.where(right == member, 1.0, 0.0)
            symbol = np.where(rng.random(n) < self.delta, 2.0 if member else -1.0, symbol)
            sides.append(symbol + rng.random(n) / 2)
        return Scores(*sides)

    def draw_known_null(self, rng: np.random.Generator) -> Scores:
        """Members' scores whose tail under N(0, 1) follows the (ε, δ) curve exactly: the least favorable ones."""
        grid = np.linspace(0, 1, 20_001)
        tails = np.interp(rng.random(self.n), ApproximateDP(self.truth, self.delta).tpr(grid), grid)
        null = NormalNull()
        if self.mechanism == "gaussian":
            return Scores(rng.normal(self.parameter, 1, self.n), null=null)
        from scipy.special import ndtri

        return Scores(-ndtri(np.clip(tails, 1e-300, 1)), null=null)


def violations(case: Case, audits: int, seed: int) -> dict[str, float]:
    """The share of audits in which each bound exceeds the truth."""
    truth = case.truth * (1 + 1e-9) + 1e-9
    methods: dict[str, Callable[[Scores, Scores], bool]] = {
        "simultaneous": lambda s, k: refutes(s, truth, delta=case.delta),
        "exact-null": lambda s, k: refutes(k, truth, delta=case.delta),
        "split": lambda s, k: (split(s, delta=case.delta).lower or 0) > truth,
        "one-run": lambda s, k: any_rejects(dp_families(s), 0.05, ApproximateDP(truth, case.delta)),
        "clopper-pearson": lambda s, k: (epsilon_from_counts(s.counts(1.0), delta=case.delta).lower or 0) > truth,
        "published (invalid)": lambda s, k: (published_lower_bound(k, delta=case.delta).lower or 0) > truth,
    }
    rng = np.random.default_rng([seed, case.n, round(1000 * case.parameter), round(1e6 * case.delta)])
    count = dict.fromkeys(methods, 0)
    for _ in range(audits):
        scores, known = case.draw(rng), case.draw_known_null(rng)
        for name, exceeds in methods.items():
            count[name] += exceeds(scores, known)
    return {name: value / audits for name, value in count.items()}


CASES = [
    *[Case("gaussian", mu, n, 1e-5) for n in (50, 1000) for mu in (0.0, 1.0, 2.0)],
    *[Case("gaussian", 1.0, n, 0.1) for n in (50, 1000)],
    *[Case("laplace", 1.0, n, 0.0) for n in (50, 1000)],
    *[Case("randomized response", epsilon, n, 0.0) for n in (50, 1000) for epsilon in (0.5, 2.0)],
    *[Case("randomized response", 1.0, n, 0.05) for n in (50, 1000)],
]


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    error = math.sqrt(0.05 * 0.95 / options.audits)
    print(f"Violations of a nominal 5% in {options.audits:,} audits; 5% + 3 standard errors = {5 + 300 * error:.2f}%\n")
    with ProcessPoolExecutor(options.workers) as pool:
        jobs = [(case, pool.submit(violations, case, options.audits, options.seed)) for case in CASES]
        for i, (case, job) in enumerate(jobs):
            found = job.result()
            if i == 0:
                print("| mechanism | n a side | δ | true ε | " + " | ".join(found) + " |")
                print("|---" * (4 + len(found)) + "|")
            cells = " | ".join(f"{100 * share:.2f}%" for share in found.values())
            name = f"{case.mechanism} {case.parameter:g}"
            print(f"| {name} | {case.n:,} | {case.delta:g} | {case.truth:.3f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
