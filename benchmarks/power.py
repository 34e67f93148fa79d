"""How often does the test of a claim refute it, if only a share of the claimed noise is there? Prints Markdown tables.

python benchmarks/power.py [--audits 400] [--false-alarms 2000] [--trainings 4] [--one-run]

The claim is ε = 8 at δ = 1e-5. `bound` is the comparison of the simultaneous lower bound with the claimed ε, which is
all that can be tested if nothing but (ε, δ) is claimed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from scipy import special

from coalmine.claims import Claim, EveryRound, Poisson
from coalmine.stats import NormalNull, Scores, refutes, sigma_gaussian
from coalmine.stats.claim_tests import ClaimTests
from coalmine.stats.one_run import guess_families, most_powerful_guesses, planned_tests
from coalmine.stats.simultaneous_bound import any_rejects
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP

EPSILON, DELTA, ALPHA = 8.0, 1e-5, 0.05
MU = 1 / sigma_gaussian(EPSILON, DELTA)
POWER = [(50, 0.5), (50, 0.7), (100, 0.5), (100, 0.7), (200, 0.8), (1000, 0.9), (1000, 0.8), (100, 1.0), (1000, 1.0)]
ONE_RUN_SIZES, ONE_RUN_SHARES = [50, 100, 200, 500, 1000], [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]

Draw = Callable[[np.random.Generator, int], np.ndarray]


def power_row(n: int, share: float, audits: int) -> str:
    """Return the share of audits that refute, by each test."""
    refuted: dict[str, list[bool]] = {"bound": [], "counted": [], "exact null": [], "one-run": []}
    claim = GaussianDP(MU)
    for seed in range(audits):
        rng = np.random.default_rng([seed, n, round(100 * share)])
        members, nonmembers = rng.normal(MU / share, 1, n), rng.normal(0, 1, n)
        scores = Scores(members, nonmembers)
        refuted["bound"].append(refutes(scores, EPSILON, delta=DELTA))
        refuted["counted"].append(ClaimTests(scores).p_value(claim) <= ALPHA)
        refuted["exact null"].append(ClaimTests(Scores(members, null=NormalNull())).p_value(claim) <= ALPHA)
        if seed < audits // 4:  # its recursion is the slowest
            coins = ClaimTests(scores, design="coin-flips", dependent=True, guesses=planned_guesses(n))
            refuted["one-run"].append(coins.p_value(claim) <= ALPHA)
    return f"| {n} | {share:g} | " + " | ".join(f"{np.mean(values):.0%}" for values in refuted.values()) + " |"


def planned_guesses(n: int) -> int:
    """Return the number of guesses that is best against half of the claimed noise, as `check_claim` chooses it."""
    return most_powerful_guesses(2 * n, GaussianDP(MU), GaussianDP(2 * MU), ALPHA)


def one_run_row(n: int, audits: int) -> str:
    """Return the share of audits that refute dependent scores: with a grid of numbers of guesses, and the best one."""
    claim, guesses, cells = GaussianDP(MU), planned_guesses(n), []
    for share in ONE_RUN_SHARES:
        by_grid, planned = 0, 0
        for seed in range(audits):
            rng = np.random.default_rng([seed, n, round(100 * share)])
            members = int(rng.binomial(2 * n, 0.5))
            scores = Scores(rng.normal(MU / share, 1, members), rng.normal(0, 1, 2 * n - members))
            by_grid += seed < audits // 4 and any_rejects(guess_families(scores), ALPHA, claim)
            planned += any_rejects(planned_tests(scores, guesses), ALPHA, claim)
        cells.append(f"{by_grid / (audits // 4):.0%} → {planned / audits:.0%}")
    return f"| {n} | {guesses} of {2 * n} | " + " | ".join(cells) + " |"


def power_limit(share: float, canaries: int) -> float:
    """Return a limit on the power of any valid test on dependent scores (docs/claim-test.md, "What nothing can do")."""
    thresholds = np.linspace(-2, 9, 4001)
    fpr, tpr = special.ndtr(-thresholds), special.ndtr(MU / share - thresholds)
    limits = [1.0]
    for swapped in np.geomspace(0.002, 0.2, 15):  # probability that some canary is swapped
        eta = swapped / canaries
        x, y = (1 - eta) * fpr + eta * tpr, (1 - eta) * tpr + eta * fpr
        x, y = x[x + y <= 1], y[x + y <= 1]
        low, high = 0.0, 1.0
        for _ in range(40):  # the largest probability of exposure that the claim allows
            p = (low + high) / 2
            low, high = (p, high) if np.all(p * y <= GaussianDP(MU).tpr(p * x)) else (low, p)
        limits.append(ALPHA / max(low, 1e-9) + swapped)
    return min(limits)


def _normal(mean: float) -> Draw:
    return lambda rng, n: rng.normal(mean, 1, n)


def _sampled(member: bool, sign: int) -> Draw:
    return lambda rng, n: sign * (rng.normal(0, 0.8, n) + (rng.random(n) < 0.3) * member)


def _response(epsilon: float) -> Draw:
    return lambda rng, n: (rng.random(n) < special.expit(epsilon)).astype(float)


def cases() -> dict[str, tuple[Curve, Draw, Draw]]:
    """Return true claims, each with the scores of members and of non-members."""
    sampled = Claim(noise_multiplier=0.8, sampling=Poisson(0.3), rounds=1, delta=DELTA).curve()
    rdp = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=1, delta=DELTA, accountant="rdp").curve()
    return {
        "Gaussian, μ = 1.67": (GaussianDP(MU), _normal(MU), _normal(0)),
        "Gaussian, claimed by RDP": (rdp, _normal(1), _normal(0)),
        "sampled Gaussian, adding": (sampled, _sampled(True, 1), _sampled(False, 1)),
        "sampled Gaussian, removing": (sampled, _sampled(False, -1), _sampled(True, -1)),
        "Laplace, ε = 1": (
            ApproximateDP(1.0, 0.0),
            lambda rng, n: rng.laplace(1, 1, n),
            lambda rng, n: rng.laplace(0, 1, n),
        ),
        "randomized response, ε = 1": (ApproximateDP(1.0, 0.0), _response(1.0), _response(-1.0)),
        "no leak, heavy tails": (
            ApproximateDP(0.0, 0.0),
            lambda rng, n: rng.standard_t(1, n),
            lambda rng, n: rng.standard_t(1, n),
        ),
    }


def false_alarm_row(name: str, audits: int) -> str:
    """Return how often a true claim is refuted, for several numbers of scores."""
    claim, members, nonmembers = cases()[name]
    rates = []
    for m, n in ((10, 10), (40, 25), (200, 200)):
        rng = np.random.default_rng([m, n])
        tests = (ClaimTests(Scores(members(rng, m), nonmembers(rng, n))) for _ in range(audits))
        rates.append(np.mean([test.p_value(claim) <= ALPHA for test in tests]))
    limit = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / audits)
    assert max(rates) <= limit, f"{name}: {max(rates):.1%} false alarms, more than {limit:.1%}"
    return f"| {name} | " + " | ".join(f"{rate:.1%}" for rate in rates) + " |"


def training_row(share: float, seeds: int) -> str:
    """Return how often real trainings are refuted, by the claim test and by the bound."""
    from torch.nn.utils import parameters_to_vector

    from coalmine import OneShot
    from coalmine.results.result import refutes as bound_refutes
    from coalmine.simulation import SGD, FixedClipping, LocalTraining, Mechanism, Training, models
    from coalmine.simulation.data import load

    digits, noise, rounds = load("digits", partition="iid:150"), 2.0, 40
    by_test, by_bound, runs, noise_at_most = 0, 0, 0, []
    for seed in range(seeds):
        module = models.build("mlp", digits.train.task, seed=seed)
        initial = parameters_to_vector(module.parameters()).detach().numpy()
        updates = OneShot(
            initial.size, rounds=rounds, canaries=100, view="updates", participation="poisson:0.5", seed=seed
        )
        audits = [updates, updates.seen_by("final-change", initial=initial)]
        training = Training(
            model=module,
            data=digits.train,
            rounds=rounds,
            sampling=Poisson(0.5),
            client=LocalTraining(optimizer=SGD(learning_rate=0.5), epochs=1, batch_size=5),
            mechanism=Mechanism(clipping=FixedClipping(1.0), noise_multiplier=noise * share),
            server=SGD(learning_rate=0.5),
            audits=audits,
            seed=seed,
        )
        training.run()
        for audit in audits:
            result = audit.result(claim=Claim(sampling=audit.participation, noise_multiplier=noise, delta=DELTA))
            by_test += result.refuted
            by_bound += bound_refutes(result.bound.epsilon, DELTA, result.claim)
            runs += 1
            if result.claim_test.noise_at_most is not None:
                noise_at_most.append(result.claim_test.noise_at_most)
    return f"| {share:g} | {by_test} of {runs} | {by_bound} of {runs} | {np.median(noise_at_most or [math.nan]):.2f} |"


def print_table(head: str, rows: Iterator[str]) -> None:
    """Print a Markdown table, row by row as they are finished."""
    print(head)
    print("|" + "---|" * head.count("|", 1))
    for row in rows:
        print(row, flush=True)
    print()


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audits", type=int, default=400, help="audits per row of the power table")
    parser.add_argument("--false-alarms", type=int, default=2000, help="audits per case of the false-alarm table")
    parser.add_argument("--trainings", type=int, default=4, help="trainings per row of the third table")
    parser.add_argument("--one-run", action="store_true", help="print the table of dependent scores only")
    options = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        print_table(
            "| n per side | guesses | " + " | ".join(f"{share:g} of the noise" for share in ONE_RUN_SHARES) + " |",
            pool.map(one_run_row, ONE_RUN_SIZES, [options.audits] * len(ONE_RUN_SIZES)),
        )
        print_table(
            "| n per side, any test at most | "
            + " | ".join(f"{share:g} of the noise" for share in ONE_RUN_SHARES)
            + " |",
            (
                f"| {n} | " + " | ".join(f"{power_limit(share, 2 * n):.0%}" for share in ONE_RUN_SHARES) + " |"
                for n in ONE_RUN_SIZES
            ),
        )
        if options.one_run:
            return
        print_table(
            "| n per side | noise really there | bound | claim test | with an exact null | one-run |",
            pool.map(power_row, *zip(*POWER, strict=True), [options.audits] * len(POWER)),
        )
        names = list(cases())
        print_table(
            "| a true claim | 10 + 10 | 40 + 25 | 200 + 200 |",
            pool.map(false_alarm_row, names, [options.false_alarms] * len(names)),
        )
        shares = [1.0, 0.7, 0.5]
        print_table(
            "| noise in a training | claim test | bound | noise at most (median) |",
            pool.map(training_row, shares, [options.trainings] * len(shares)),
        )


if __name__ == "__main__":
    main()
