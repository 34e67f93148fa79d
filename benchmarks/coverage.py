"""Measure how often each 95% bound exceeds the true ε, in simulated audits. Prints a Markdown table.

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
from coalmine.stats.one_run import guess_families
from coalmine.stats.simultaneous_bound import any_rejects


@dataclass(frozen=True)
class Case:
    """Simulated audits of one mechanism.

    Args:
        mechanism: ``"gaussian"``, ``"laplace"`` or ``"randomized response"``.
        parameter: Shift of the scores, or ε of the randomized response.
        n: Number of scores per side.
        delta: The δ of the bound.
    """

    mechanism: str
    parameter: float
    n: int
    delta: float

    @cached_property
    def truth(self) -> float:
        """Exact ε at δ."""
        return float(epsilon_gdp(self.parameter, self.delta)) if self.mechanism == "gaussian" else self.parameter

    def draw(self, rng: np.random.Generator) -> Scores:
        """Draw the scores of one audit."""
        n, x = self.n, self.parameter
        if self.mechanism == "gaussian":
            return Scores(rng.normal(x, 1, n), rng.normal(0, 1, n))
        if self.mechanism == "laplace":
            return Scores(rng.laplace(x, 1, n), rng.laplace(0, 1, n))
        sides = []
        for member in (True, False):
            # The four symbols of Kairouz, Oh and Viswanath: with probability δ the membership is revealed, otherwise a
            # bit is right with probability e^ε/(1 + e^ε).
            correct = rng.random(n) < 1 / (1 + math.exp(-x))
            symbol = np.where(correct == member, 1.0, 0.0)
            symbol = np.where(rng.random(n) < self.delta, 2.0 if member else -1.0, symbol)
            sides.append(symbol + rng.random(n) / 2)  # breaks ties at random
        return Scores(*sides)

    def draw_known_null(self, rng: np.random.Generator) -> Scores:
        """Draw least favorable members' scores: their tail under N(0, 1) follows the (ε, δ) curve exactly."""
        grid = np.linspace(0, 1, 20_001)
        tails = np.interp(rng.random(self.n), ApproximateDP(self.truth, self.delta).tpr(grid), grid)
        null = NormalNull()
        if self.mechanism == "gaussian":
            return Scores(rng.normal(self.parameter, 1, self.n), null=null)
        from scipy.special import ndtri

        return Scores(-ndtri(np.clip(tails, 1e-300, 1)), null=null)


def violations(case: Case, audits: int, seed: int) -> dict[str, float]:
    """Return the share of audits in which each bound exceeds the true ε."""
    truth = case.truth * (1 + 1e-9) + 1e-9
    methods: dict[str, Callable[[Scores, Scores], bool]] = {
        "simultaneous": lambda s, _: refutes(s, truth, delta=case.delta),
        "exact-null": lambda _, k: refutes(k, truth, delta=case.delta),
        "split": lambda s, _: (split(s, delta=case.delta).lower or 0) > truth,
        "one-run": lambda s, _: any_rejects(guess_families(s), 0.05, ApproximateDP(truth, case.delta)),
        "clopper-pearson": lambda s, _: (epsilon_from_counts(s.counts(1.0), delta=case.delta).lower or 0) > truth,
        "published (invalid)": lambda _, k: (published_lower_bound(k, delta=case.delta).lower or 0) > truth,
    }
    rng = np.random.default_rng([seed, case.n, round(1000 * case.parameter), round(1e6 * case.delta)])
    exceeded = dict.fromkeys(methods, 0)
    for _ in range(audits):
        scores, known_null = case.draw(rng), case.draw_known_null(rng)
        for name, exceeds in methods.items():
            exceeded[name] += exceeds(scores, known_null)
    return {name: count / audits for name, count in exceeded.items()}


CASES = [
    *[Case("gaussian", mu, n, 1e-5) for n in (50, 1000) for mu in (0.0, 1.0, 2.0)],
    *[Case("gaussian", 1.0, n, 0.1) for n in (50, 1000)],
    *[Case("laplace", 1.0, n, 0.0) for n in (50, 1000)],
    *[Case("randomized response", epsilon, n, 0.0) for n in (50, 1000) for epsilon in (0.5, 2.0)],
    *[Case("randomized response", 1.0, n, 0.05) for n in (50, 1000)],
]


def main() -> None:
    """Simulate all cases and print the table."""
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
            shares = job.result()
            if i == 0:
                print("| mechanism | n per side | δ | true ε | " + " | ".join(shares) + " |")
                print("|---" * (4 + len(shares)) + "|")
            cells = " | ".join(f"{100 * share:.2f}%" for share in shares.values())
            name = f"{case.mechanism} {case.parameter:g}"
            print(f"| {name} | {case.n:,} | {case.delta:g} | {case.truth:.3f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
