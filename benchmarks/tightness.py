"""Compare the mean lower bounds of coalmine, of textbook methods and of jax-privacy on the same scores.

Prints a Markdown table.

python benchmarks/tightness.py [--audits 100]
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor

import jax_privacy.auditing as peer
import numpy as np

from coalmine.stats import (
    ApproximateDP,
    Scores,
    best_threshold,
    epsilon_from_counts,
    epsilon_from_rates,
    epsilon_gdp,
    gdp,
    one_run,
    one_run_fdp,
    simultaneous,
    split,
)
from coalmine.stats.rank_tests import threshold_tests, two_tailed_tests
from coalmine.stats.simultaneous_bound import largest_rejected

DELTA, ALPHA = 1e-5, 0.05
GAUSSIAN_ONLY = "valid for Gaussian mechanisms only"


def without_walk(scores: Scores) -> float:
    """Return the simultaneous bound with a union bound over the two-tailed tests, at ranks a factor of 2 apart."""
    families = [two_tailed_tests(scores, "fixed"), threshold_tests(scores)]
    return largest_rejected(families, ALPHA, lambda epsilon: ApproximateDP(epsilon, DELTA))[0]


def dkw(scores: Scores) -> float:
    """Return the largest ε over all thresholds from confidence bands around the two distribution functions.

    One-sided bands of Dvoretzky, Kiefer and Wolfowitz with Massart's constant, half of the significance each.
    """
    _, tp, fp = scores.all_counts
    m, n = scores.members.size, scores.observed.size
    reach = math.sqrt(math.log(2 / ALPHA) / 2)
    tpr, fpr = np.maximum(tp / m - reach / math.sqrt(m), 0), np.minimum(fp / n + reach / math.sqrt(n), 1)
    return float(np.max(epsilon_from_rates(tpr, fpr, DELTA)))


def k_fold(scores: Scores, seed: int, folds: int = 5) -> float:
    """Return the best Clopper–Pearson bound of all folds, each at the threshold that is best on the other folds."""
    rng = np.random.default_rng(seed)
    members = np.array_split(rng.permutation(scores.members), folds)
    nonmembers = np.array_split(rng.permutation(scores.observed), folds)
    bounds = []
    for k in range(folds):
        others = Scores(*(np.concatenate(side[:k] + side[k + 1 :]) for side in (members, nonmembers)))
        threshold = best_threshold(others, delta=DELTA).threshold or 0.0
        counts = Scores(members[k], nonmembers[k]).counts(threshold)
        bounds.append(epsilon_from_counts(counts, delta=DELTA, confidence=1 - ALPHA / folds).lower or 0.0)
    return max(bounds)


def bounds(n: int, mu: float, audits: int) -> dict[str, tuple[str, float]]:
    """Return the validity and the mean bound of each method."""
    bounds_of: dict[str, tuple[str, list[float]]] = {}

    def record(name: str, validity: str, bound: float | None) -> None:
        bounds_of.setdefault(name, (validity, []))[1].append(float(bound or 0))

    for seed in range(audits):
        rng = np.random.default_rng([seed, n, round(10 * mu)])
        members, nonmembers = rng.normal(mu, 1, n), rng.normal(0, 1, n)
        scores, theirs = Scores(members, nonmembers), peer.CanaryScoreAuditor(members, nonmembers)
        split_peer = peer.Split(seed=seed)
        record("coalmine simultaneous", "valid", simultaneous(scores, delta=DELTA).lower)
        record(
            "coalmine simultaneous, coin flips", "valid", simultaneous(scores, delta=DELTA, design="coin-flips").lower
        )
        record("coalmine without the walk", "valid", without_walk(scores))
        record("coalmine split", "valid", split(scores, delta=DELTA, seed=seed).lower)
        record("coalmine one-run", "valid", one_run(scores, delta=DELTA).lower)
        record("DKW bands", "valid", dkw(scores))
        record("5-fold, CP", "valid", k_fold(scores, seed))
        record("jax-privacy CP, Bonferroni", "valid", theirs.epsilon_clopper_pearson(ALPHA, DELTA))
        record(
            "jax-privacy CP, split",
            "valid",
            theirs.epsilon_clopper_pearson(ALPHA, DELTA, threshold_strategy=split_peer),
        )
        record(
            "jax-privacy CP, multi-split",
            "valid",
            theirs.epsilon_clopper_pearson(ALPHA, DELTA, threshold_strategy=peer.MultiSplit(20, seed=seed)),
        )
        record(
            "jax-privacy one-run, split",
            "valid",
            theirs.epsilon_one_run(ALPHA, DELTA, threshold_strategy=split_peer),
        )
        record("jax-privacy one-run, Bonferroni", "unproved", theirs.epsilon_one_run(ALPHA, DELTA))
        record("coalmine gdp", GAUSSIAN_ONLY, gdp(scores, delta=DELTA).lower)
        record("coalmine gdp, coin flips", GAUSSIAN_ONLY, gdp(scores, delta=DELTA, design="coin-flips").lower)
        record("jax-privacy GDP", GAUSSIAN_ONLY, theirs.epsilon_from_gdp(ALPHA, DELTA))
        record("coalmine one-run f-DP", GAUSSIAN_ONLY, one_run_fdp(scores, delta=DELTA).lower)
        record(
            "jax-privacy one-run f-DP, split",
            GAUSSIAN_ONLY,
            theirs.epsilon_one_run_fdp(ALPHA, DELTA, threshold_strategy=split_peer),
        )
    return {name: (validity, float(np.mean(values))) for name, (validity, values) in bounds_of.items()}


def main() -> None:
    """Simulate all settings and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10_000])
    options = parser.parse_args()
    settings = [(n, mu) for n in options.sizes for mu in (0.5, 1.0, 2.0)]
    with ProcessPoolExecutor(options.workers) as pool:
        jobs = [pool.submit(bounds, n, mu, options.audits) for n, mu in settings]
        columns = [job.result() for job in jobs]
    print(f"Mean 95% lower bound at δ = {DELTA:g} over {options.audits} audits, members N(μ, 1), non-members N(0, 1)\n")
    print("| method | validity | " + " | ".join(f"n={n:,} μ={mu:g}" for n, mu in settings) + " |")
    print("|---" * (2 + len(settings)) + "|")
    for name, (validity, _) in columns[0].items():
        print(f"| {name} | {validity} | " + " | ".join(f"{column[name][1]:.3f}" for column in columns) + " |")
    print("| true ε | | " + " | ".join(f"{float(epsilon_gdp(mu, DELTA)):.3f}" for _, mu in settings) + " |")


if __name__ == "__main__":
    main()
