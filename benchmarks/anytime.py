"""Benchmark of bounds that hold at any time: false alarms, and trials until a claim is refuted. Prints Markdown.

python benchmarks/anytime.py [--audits 1000] [--trials 2000]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats
from coalmine.stats.claim_tests import ClaimTests
from coalmine.stats.scores import Scores
from coalmine.stats.sequential import EProcess, supporting_intercepts
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP

ALPHA = 0.05
Sample = Callable[[int, np.random.Generator], tuple[Bools, Floats]]


def randomized_response(epsilon: float) -> Sample:
    """Trials of randomized response."""

    def sample(trials: int, rng: np.random.Generator) -> tuple[Bools, Floats]:
        coins, right = rng.random(trials) < 0.5, rng.random(trials) < special.expit(epsilon)
        return coins, np.where(coins == right, 1.0, -1.0)

    return sample


def laplace(epsilon: float) -> Sample:
    """Trials of the Laplace mechanism with sensitivity 1."""

    def sample(trials: int, rng: np.random.Generator) -> tuple[Bools, Floats]:
        coins = rng.random(trials) < 0.5
        return coins, coins + rng.laplace(0, 1 / epsilon, trials)

    return sample


def gaussian(mu: float) -> Sample:
    """Trials of the Gaussian mechanism with sensitivity over noise μ."""

    def sample(trials: int, rng: np.random.Generator) -> tuple[Bools, Floats]:
        coins = rng.random(trials) < 0.5
        return coins, rng.normal(mu * coins, 1.0)

    return sample


def pure(epsilon: float, delta: float = 0.0) -> Callable[[], EProcess]:
    """A gambler against (ε, δ)-DP."""
    return lambda: EProcess(np.array([[math.exp(-epsilon)]]), np.array([[delta]]))


def used(new: Callable[[], EProcess], sample: Sample, trials: int, audits: int, step: int) -> Floats:
    """Return the trials until each audit refutes the claim, looking every ``step`` trials; infinity if it does not."""
    rng = np.random.default_rng(0)
    counts = np.full(audits, np.inf)
    for i in range(audits):
        gambler, (coins, scores) = new(), sample(trials, rng)
        for start in range(0, trials, step):
            gambler.update(coins[start : start + step], scores[start : start + step])
            if gambler.log_peak[0] >= -math.log(ALPHA):
                counts[i] = gambler.trials
                break
    return counts


def fixed_number(claim: Curve, sample: Sample, audits: int = 100) -> int:
    """Return the number of trials with which the claim test refutes 80% of audits, from a grid 10% apart."""
    rng, trials = np.random.default_rng(0), 20.0
    while True:
        refuted = 0
        for _ in range(audits):
            coins, scores = sample(int(trials), rng)
            refuted += ClaimTests(Scores(scores[coins], scores[~coins])).p_value(claim) <= ALPHA
        if refuted >= 0.8 * audits:
            return int(trials)
        trials *= 1.1


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=2000)
    arguments = parser.parse_args()
    delta = float(special.ndtr(0.5 - 1.0) - math.e * special.ndtr(-0.5 - 1.0))  # of μ = 1 at ε = 1
    slopes = np.exp(np.linspace(0, 8, 25))  # as in SequentialTest
    intercepts = supporting_intercepts(GaussianDP(1.0), slopes)

    def against_curve() -> EProcess:
        return EProcess(1 / slopes[None], intercepts[None])

    true_claims: dict[str, tuple[Callable[[], EProcess], Sample]] = {
        "randomized response, ε = 1": (pure(1.0), randomized_response(1.0)),
        "Laplace, ε = 1": (pure(1.0), laplace(1.0)),
        f"Gaussian, μ = 1, claimed (1, {delta:.4f})": (pure(1.0, delta), gaussian(1.0)),
        "Gaussian, μ = 1, claimed curve": (against_curve, gaussian(1.0)),
        "no leak, ε = 0": (pure(0.0), gaussian(0.0)),
    }
    print("| mechanism | refuted, ever |\n|---|---|")
    for name, (new, sample) in true_claims.items():
        alarms = np.isfinite(used(new, sample, arguments.trials, arguments.audits, arguments.trials)).mean()
        print(f"| {name} | {100 * alarms:.1f}% |", flush=True)
    false_claims: dict[str, tuple[Callable[[], EProcess], Sample, Curve]] = {
        "randomized response: claimed ε = 1, true 2": (pure(1.0), randomized_response(2.0), ApproximateDP(1.0, 0.0)),
        "Laplace: claimed ε = 1, true 2": (pure(1.0), laplace(2.0), ApproximateDP(1.0, 0.0)),
        "Gaussian: claimed curve of μ = 1, true 1.5": (against_curve, gaussian(1.5), GaussianDP(1.0)),
        "Gaussian: claimed curve of μ = 1, true 2": (against_curve, gaussian(2.0), GaussianDP(1.0)),
    }
    print("\n| mechanism | any time: mean (90% of audits) | fixed number, 80% power |\n|---|---|---|")
    for name, (new, sample, claim) in false_claims.items():
        counts = used(new, sample, arguments.trials, max(100, arguments.audits // 5), 1)
        shown = f"{counts.mean():.0f} ({np.quantile(counts, 0.9):.0f})"
        print(f"| {name} | {shown} | {fixed_number(claim, sample)} |", flush=True)


if __name__ == "__main__":
    main()
