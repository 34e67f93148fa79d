"""Bounds and the test of a claim: how fast, how tight, how often wrong, how powerful. Each prints a Markdown table.

python benchmarks/bounds.py speed                       # against sorting and jax-privacy, in one process
python benchmarks/bounds.py tightness --audits 100      # mean bounds beside those of jax-privacy
python benchmarks/bounds.py coverage --audits 10000     # how often each 95% bound exceeds the true ε
python benchmarks/bounds.py power --audits 200          # how often a claim of ε = 8 is refuted with less noise
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax_privacy.auditing as peer
import numpy as np
from joblib import Parallel, delayed
from scipy.special import ndtri

from coalmine.claims import Claim, EveryRound
from coalmine.results.claim_test import check_claim
from coalmine.stats import NormalNull, Scores, epsilon_gdp, simultaneous
from coalmine.stats.claim_tests import ClaimTests
from coalmine.stats.one_run import one_run, one_run_fdp
from coalmine.stats.scores import epsilon_from_counts
from coalmine.stats.simultaneous_bound import gdp, p_value
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP

DELTA, ALPHA = 1e-5, 0.05


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the least processor time of several calls, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def speed(options: argparse.Namespace) -> None:
    """Time bounds against sorting and against jax-privacy's of the same kind."""
    rng = np.random.default_rng(0)
    million = rng.normal(1, 1, 10**6), rng.normal(0, 1, 10**6)
    canaries = rng.normal(1, 1, 50_000), rng.normal(0, 1, 50_000)
    bound, peer_bound = simultaneous, peer.CanaryScoreAuditor.epsilon_clopper_pearson
    rows: list[tuple[str, Callable[[], object], str, Callable[[], object]]] = [
        ("simultaneous, 10⁶ + 10⁶ scores", lambda: bound(Scores(*million), delta=DELTA),
         "`np.sort` of the scores", lambda: (np.sort(million[0]), np.sort(million[1]))),
        ("simultaneous, 10⁶ + 10⁶ scores", lambda: bound(Scores(*million), delta=DELTA),
         "jax-privacy Clopper–Pearson", lambda: peer_bound(peer.CanaryScoreAuditor(*million), ALPHA, DELTA)),
        ("one-run, 10⁵ canaries", lambda: one_run(Scores(*canaries), delta=DELTA),
         "jax-privacy one-run", lambda: peer.CanaryScoreAuditor(*canaries).epsilon_one_run(ALPHA, DELTA)),
        ("one-run f-DP, 10⁵ canaries", lambda: one_run_fdp(Scores(*canaries), delta=DELTA),
         "jax-privacy one-run f-DP", lambda: peer.CanaryScoreAuditor(*canaries).epsilon_one_run_fdp(ALPHA, DELTA)),
    ]  # fmt: skip
    print("| ours | ms | compared with | ms | times as fast |\n|---|---|---|---|---|")
    for name, ours, other, theirs in rows:
        ours_s, theirs_s = seconds(ours, options.repeats), seconds(theirs, 3 if "one-run" not in name else 1)
        print(f"| {name} | {1e3 * ours_s:.1f} | {other} | {1e3 * theirs_s:.1f} | {theirs_s / ours_s:.2f} |", flush=True)
    claim = Claim(noise_multiplier=0.6, sampling=EveryRound(), rounds=1, delta=DELTA)
    for n in (50, 100, 1000):
        members, nonmembers = rng.normal(1 / 0.6, 1, n), rng.normal(0, 1, n)
        counted = seconds(lambda m=members, n=nonmembers: check_claim(m, n, claim), options.repeats)
        known = seconds(lambda m=members: check_claim(m, None, claim, null=NormalNull()), options.repeats)
        print(f"| check_claim, {n} + {n} scores | {1e3 * counted:.1f} | with a known null | {1e3 * known:.1f} | |")
    for module in ("coalmine", "coalmine.stats"):
        script = f"import time; s = time.perf_counter(); import {module}; print(time.perf_counter() - s)"
        took = min(float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(3))
        print(f"| import {module} | {1e3 * took:.0f} | | | |")


def bounds(n: int, mu: float, audits: int) -> dict[str, tuple[str, float]]:
    """Return the validity and the mean of each bound on scores of a Gaussian mechanism."""
    values: dict[str, tuple[str, list[float]]] = {}
    for seed in range(audits):
        rng = np.random.default_rng([seed, n, round(10 * mu)])
        members, nonmembers = rng.normal(mu, 1, n), rng.normal(0, 1, n)
        ours, theirs, halves = (
            Scores(members, nonmembers),
            peer.CanaryScoreAuditor(members, nonmembers),
            peer.Split(0.5, seed),
        )
        rows = [
            ("coalmine simultaneous", "valid", simultaneous(ours, delta=DELTA).lower),
            ("coalmine simultaneous, coin flips", "valid", simultaneous(ours, delta=DELTA, design="coin-flips").lower),
            ("coalmine one-run", "valid", one_run(ours, delta=DELTA).lower),
            ("jax-privacy CP, Bonferroni", "valid", theirs.epsilon_clopper_pearson(ALPHA, DELTA)),
            ("jax-privacy CP, split", "valid", theirs.epsilon_clopper_pearson(ALPHA, DELTA, threshold_strategy=halves)),
            ("jax-privacy one-run, split", "valid", theirs.epsilon_one_run(ALPHA, DELTA, threshold_strategy=halves)),
            ("jax-privacy one-run, Bonferroni", "unproved", theirs.epsilon_one_run(ALPHA, DELTA)),
            ("coalmine gdp", "if Gaussian", gdp(ours, delta=DELTA).lower),
            ("jax-privacy GDP", "if Gaussian", theirs.epsilon_from_gdp(ALPHA, DELTA)),
            ("coalmine one-run f-DP", "if Gaussian", one_run_fdp(ours, delta=DELTA).lower),
        ]
        for name, validity, value in rows:
            values.setdefault(name, (validity, []))[1].append(float(value or 0.0))
    return {name: (validity, float(np.mean(found))) for name, (validity, found) in values.items()}


def tightness(options: argparse.Namespace) -> None:
    """Print mean bounds by number of scores and shift."""
    settings = [(n, mu) for n in (100, 1000, 10_000) for mu in (0.5, 1.0, 2.0)]
    columns = Parallel(options.workers)(delayed(bounds)(n, mu, options.audits) for n, mu in settings)
    print("| method | valid? | " + " | ".join(f"n={n:,} μ={mu:g}" for n, mu in settings) + " |")
    print("|---" * (2 + len(settings)) + "|")
    for name, (validity, _) in columns[0].items():
        print(f"| {name} | {validity} | " + " | ".join(f"{column[name][1]:.3f}" for column in columns) + " |")
    print("| true ε | | " + " | ".join(f"{float(epsilon_gdp(mu, DELTA)):.3f}" for _, mu in settings) + " |")


@dataclass(frozen=True)
class Case:
    """Simulated audits of a mechanism: "gaussian" or "laplace" by shift, "randomized response" by ε."""

    mechanism: str
    parameter: float
    n: int
    delta: float

    @property
    def truth(self) -> float:
        """Exact ε at δ."""
        return float(epsilon_gdp(self.parameter, self.delta)) if self.mechanism == "gaussian" else self.parameter

    def draw(self, rng: np.random.Generator) -> tuple[Scores, Scores]:
        """Draw the scores of an audit: counted, and least favorable ones with a known null."""
        grid = np.linspace(0, 1, 20_001)
        tails = np.interp(rng.random(self.n), ApproximateDP(self.truth, self.delta).tpr(grid), grid)
        known = Scores(-ndtri(np.clip(tails, 1e-300, 1)), null=NormalNull())
        if self.mechanism != "randomized response":
            noise = rng.normal if self.mechanism == "gaussian" else rng.laplace
            return Scores(noise(self.parameter, 1, self.n), noise(0, 1, self.n)), known
        sides = []
        for member in (True, False):
            # The four symbols of Kairouz, Oh and Viswanath: with probability δ the membership is revealed, otherwise a
            # bit is right with probability e^ε/(1 + e^ε).
            correct = rng.random(self.n) < 1 / (1 + math.exp(-self.parameter))
            symbol = np.where(correct == member, 1.0, 0.0)
            symbol = np.where(rng.random(self.n) < self.delta, 2.0 if member else -1.0, symbol)
            sides.append(symbol + rng.random(self.n) / 2)  # breaks ties at random
        return Scores(*sides), known


def violations(case: Case, audits: int) -> dict[str, float]:
    """Return the share of audits in which each bound exceeds the true ε."""
    truth, delta = case.truth * (1 + 1e-9) + 1e-9, case.delta
    claim = ApproximateDP(truth, delta)
    rng = np.random.default_rng([case.n, round(1000 * case.parameter), round(1e6 * delta)])
    exceeded = dict.fromkeys(("simultaneous", "exact-null", "one-run", "clopper-pearson"), 0)
    for _ in range(audits):
        scores, known = case.draw(rng)
        # A bound exceeds the truth exactly if its tests refute it.
        exceeded["simultaneous"] += p_value(scores, claim) <= ALPHA
        exceeded["exact-null"] += p_value(known, claim) <= ALPHA
        exceeded["one-run"] += (one_run(scores, delta=delta).lower or 0) > truth
        exceeded["clopper-pearson"] += (epsilon_from_counts(scores.counts(1.0), delta=delta).lower or 0) > truth
    return {name: count / audits for name, count in exceeded.items()}


def coverage(options: argparse.Namespace) -> None:
    """Print violations of the nominal 5% where bounds are hardest to keep valid."""
    cases = []
    for n in (50, 1000):
        cases += [Case("gaussian", mu, n, 1e-5) for mu in (0.0, 1.0, 2.0)] + [Case("gaussian", 1.0, n, 0.1)]
        cases += [Case("laplace", 1.0, n, 0.0), Case("randomized response", 2.0, n, 0.0)]
        cases += [Case("randomized response", 1.0, n, 0.05)]
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / options.audits)
    print(f"Violations of a nominal 5% in {options.audits:,} audits; 5% + 3 standard errors = {limit:.2%}\n")
    shares = Parallel(options.workers)(delayed(violations)(case, options.audits) for case in cases)
    print("| mechanism | n per side | δ | true ε | " + " | ".join(shares[0]) + " |")
    print("|---" * (4 + len(shares[0])) + "|")
    for case, share in zip(cases, shares, strict=True):
        cells = " | ".join(f"{value:.2%}" for value in share.values())
        name = f"{case.mechanism} {case.parameter:g}"
        print(f"| {name} | {case.n:,} | {case.delta:g} | {case.truth:.3f} | {cells} |")


def refuted(n: int, share: float, audits: int) -> tuple[float, float, float]:
    """Return the shares of audits in which the bound, and the claim's curve counted and with a known null, refute."""
    mu = 1.666  # ε = 8 at δ = 1e-5
    counts = np.zeros(3)
    rng = np.random.default_rng([n, round(100 * share)])
    for _ in range(audits):
        members, nonmembers = rng.normal(mu / share, 1, n), rng.normal(0, 1, n)
        scores, claim = Scores(members, nonmembers), GaussianDP(mu)
        pair = ApproximateDP(float(epsilon_gdp(mu, DELTA)), DELTA)
        counts += [
            p_value(scores, pair) <= ALPHA,
            ClaimTests(scores).p_value(claim) <= ALPHA,
            ClaimTests(Scores(members, null=NormalNull())).p_value(claim) <= ALPHA,
        ]
    bound, counted, known = (counts / audits).tolist()
    return bound, counted, known


def power(options: argparse.Namespace) -> None:
    """Print how often a claim of ε = 8 is refuted by the bound / by its curve / by its curve with a known null."""
    sizes, shares = (25, 50, 100, 200, 1000), (1.0, 0.9, 0.8, 0.7, 0.5)
    cells = Parallel(options.workers)(delayed(refuted)(n, share, options.audits) for n in sizes for share in shares)
    print("| n per side | " + " | ".join(f"noise {share:g}" for share in shares) + " |")
    print("|---" * (1 + len(shares)) + "|")
    for i, n in enumerate(sizes):
        row = cells[i * len(shares) : (i + 1) * len(shares)]
        print(f"| {n} | " + " | ".join(" / ".join(f"{value:.1%}" for value in cell) for cell in row) + " |")


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"speed": speed, "tightness": tightness, "coverage": coverage, "power": power}
    parser.add_argument("table", choices=tables)
    parser.add_argument("--audits", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    tables[options.table](options)


if __name__ == "__main__":
    main()
