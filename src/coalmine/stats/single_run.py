"""Bounds from a single training run in which many canaries were planted by coin flips.

The canaries' scores may depend on each other in any way; only the coin flips must be independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from coalmine.arrays import Bools, Floats, Ints
from coalmine.errors import InputError, check_confidence, check_count, check_delta
from coalmine.stats.epsilon import COIN_FLIPS, GAUSSIAN, Estimate
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.stats.rank_tests import TWO_TAILS_WEIGHT, Tests, check_coin_flips
from coalmine.stats.ranks import both_tails, top_ranks
from coalmine.stats.scores import Scores
from coalmine.stats.search import largest
from coalmine.stats.simultaneous_bound import largest_rejected
from coalmine.stats.tradeoff import ApproximateDP, Curve, GaussianDP


@dataclass(frozen=True)
class Guesses:
    """``correct`` of ``guesses`` guesses about ``canaries`` coin flips were right; the rest was abstained from."""

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        check_count("canaries", self.canaries)
        check_count("guesses", self.guesses, least=0)
        check_count("correct", self.correct, least=0)
        if not self.correct <= self.guesses <= self.canaries:
            raise InputError(
                "there cannot be more correct guesses than guesses, nor more guesses than canaries, got "
                f"{self.correct} correct of {self.guesses} guesses about {self.canaries} canaries"
            )


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Largest probability of so many right guesses under (ε, δ)-DP (Steinke, Nasr & Jagielski 2023, Theorem 5.2).

    β + 2mδ·max over i of P(v − i ≤ W < v)/i, where W ~ Binomial(r, e^ε/(1+e^ε)) and β = P(W ≥ v).
    """
    r, v = guesses.guesses, guesses.correct
    if v == 0:
        return 1.0
    q = float(special.expit(epsilon))
    beta = float(special.betainc(v, r - v + 1, q))
    if delta == 0:
        return beta
    # P(v − i ≤ W < v)/i is the mean of the i values of W's unimodal probabilities just below v. It grows until the
    # next value lies below the mean, which happens within a few deviations left of the mode: no need to look further.
    mode, spread = r * q, math.sqrt(r * q * (1 - q))
    k = np.arange(v - 1, max(-1, min(v, math.floor(mode)) - math.ceil(12 * spread) - 12), -1.0)
    log_choose = special.gammaln(r + 1) - special.gammaln(k + 1) - special.gammaln(r - k + 1)
    mass = np.exp(log_choose + special.xlogy(k, q) + special.xlogy(r - k, special.expit(-epsilon)))
    alpha = float(np.max(np.cumsum(mass) / np.arange(1, k.size + 1)))
    return min(1.0, beta + 2 * guesses.canaries * delta * alpha)


def one_run_rejects_gdp(guesses: Guesses, mu: float, significance: float) -> bool:
    """Whether so many right guesses are less likely than ``significance`` under μ-GDP.

    The recursion of Mahloujifar, Melis & Chaudhuri (2024) for general trade-off curves, with the Gaussian one. Both
    sums only grow, so it ends as soon as the answer is known.
    """
    m, total, correct = guesses.canaries, guesses.guesses, guesses.correct
    if correct == 0:
        return False
    right, wrong = significance * correct / m, significance * (total - correct) / m
    goal = total / m
    for i in range(correct - 1, -1, -1):
        if right + wrong >= goal:
            return True
        reachable = _normal_cdf(float(special.ndtri(right)) - mu)
        if reachable <= wrong:
            return False
        right = min(1.0, right + i / (total - i) * (reachable - wrong))
        wrong = reachable
    return right + wrong >= goal


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def one_run_from_guesses(guesses: Guesses, *, delta: float = 0.0, confidence: float = 0.95) -> Estimate:
    """Lower bound on ε from a number of guesses fixed in advance (Steinke, Nasr & Jagielski 2023)."""
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    lower = largest(lambda epsilon: one_run_p_value(guesses, epsilon, delta) <= alpha)
    assumes = f"{COIN_FLIPS}; the number of guesses was fixed"
    return Estimate.bound("one-run", lower, delta=delta, confidence=confidence, assumes=assumes)


def one_run_fdp_from_guesses(guesses: Guesses, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Lower bound on the ε(δ) of a Gaussian mechanism from a number of guesses fixed in advance (f-DP)."""
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    mu = largest(lambda mu: one_run_rejects_gdp(guesses, mu, alpha))
    assumes = f"{COIN_FLIPS}; the number of guesses was fixed; {GAUSSIAN}"
    lower = float(epsilon_gdp(mu, delta))
    return Estimate.bound("one-run-fdp", lower, delta=delta, confidence=confidence, assumes=assumes, valid=False)


def one_run(scores: Scores, *, delta: float = 0.0, confidence: float = 0.95) -> Estimate:
    """Lower bound on ε from one run, simultaneous over numbers of guesses in one tail or in both.

    Steinke, Nasr & Jagielski (2023), for any dependence between the scores. The numbers of guesses are a grid fixed in
    advance; the significance is shared out among them.
    """
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    families = dp_families(scores)
    lower, threshold = largest_rejected(families, alpha, lambda epsilon: ApproximateDP(epsilon, delta))
    return Estimate.bound("one-run", lower, delta=delta, confidence=confidence, assumes=COIN_FLIPS, threshold=threshold)


def one_run_fdp(scores: Scores, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Lower bound on the ε(δ) of a Gaussian mechanism from one run (Mahloujifar, Melis & Chaudhuri 2024)."""
    check_delta(delta)
    alpha = 1 - check_confidence(confidence)
    mu, threshold = largest_rejected(gaussian_families(scores), alpha, GaussianDP)
    lower = float(epsilon_gdp(mu, delta))
    return Estimate.bound(
        "one-run-fdp",
        lower,
        delta=delta,
        confidence=confidence,
        assumes=f"{COIN_FLIPS}; {GAUSSIAN}",
        threshold=threshold,
        valid=False,
    )


# These bounds pay dearly for significance, so they look at fewer numbers of guesses than those for independent scores.
_MOST, _RATIO = 0.5, 4


def _canaries(scores: Scores) -> int:
    check_coin_flips(scores.members.size, scores.observed.size)
    return scores.members.size + scores.observed.size


def dp_families(scores: Scores) -> list[Tests]:
    """Guesses in both tails and in the top alone, to be tested against (ε, δ)-DP."""
    canaries = _canaries(scores)
    families: list[Tests] = []
    for grid, weight in ((both_tails, TWO_TAILS_WEIGHT), (top_ranks, 1.0)):
        thresholds, guesses, right = grid(scores.members, scores.observed, int(_MOST * canaries), _RATIO)
        families.append(DPGuesses(thresholds, _rows(canaries, guesses, right), weight))
    return families


def gaussian_families(scores: Scores) -> list[Tests]:
    """Guesses in both tails, to be tested against μ-GDP: Gaussian mechanisms are symmetric."""
    canaries = _canaries(scores)
    thresholds, guesses, right = both_tails(scores.members, scores.observed, int(_MOST * canaries), _RATIO)
    return [GaussianGuesses(thresholds, _rows(canaries, guesses, right))]


def _rows(canaries: int, guesses: Ints, right: Ints) -> list[Guesses]:
    return [Guesses(canaries, int(r), int(v)) for r, v in zip(guesses, right, strict=True)]


@dataclass(frozen=True)
class DPGuesses:
    """Numbers of guesses fixed in advance, put to the test of (ε, δ)-DP."""

    thresholds: Floats
    rows: list[Guesses]
    weight: float = 1.0

    def rejects(self, claim: Curve, which: Ints, level: float) -> Bools:
        """Which of the tests in ``which`` reject the claim at significance ``level``."""
        if not isinstance(claim, ApproximateDP):
            raise TypeError(f"these guesses test (ε, δ)-DP, got {claim}")
        return np.array([one_run_p_value(self.rows[i], claim.epsilon, claim.delta) <= level for i in which])


@dataclass(frozen=True)
class GaussianGuesses:
    """Numbers of guesses fixed in advance, put to the test of μ-GDP."""

    thresholds: Floats
    rows: list[Guesses]
    weight: float = 1.0

    def rejects(self, claim: Curve, which: Ints, level: float) -> Bools:
        """Which of the tests in ``which`` reject the claim at significance ``level``."""
        if not isinstance(claim, GaussianDP):
            raise TypeError(f"these guesses test μ-GDP, got {claim}")
        return np.array([one_run_rejects_gdp(self.rows[i], claim.mu, level) for i in which])
