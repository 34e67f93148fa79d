"""The claim test for dependent scores: exact limits from linear programs, false alarms, and power."""

import math

import numpy as np
import pytest
from scipy import optimize, special

from coalmine.claims import Claim, EveryRound
from coalmine.results.claim_test import check_claim
from coalmine.results.verdict import Verdict
from coalmine.stats import Scores
from coalmine.stats.claim_tests import ClaimTests
from coalmine.stats.one_run import (
    Guesses,
    GuessTests,
    guess_families,
    guess_power,
    most_powerful_guesses,
    one_run_curve_p_value,
    right_guesses_needed,
)
from coalmine.stats.simultaneous_bound import significance_levels
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP, PrivacyProfile


def largest_probability(canaries, guesses, right, epsilons, deltas):
    """Return the largest probability of so many right guesses that the (ε, δ) pairs allow, by linear programming.

    A mechanism that gets i guesses right with probability pᵢ, whichever they are, shows one canary no more than whether
    its guess is right, and i. If its coin is flipped, a right guess among i becomes a wrong one among i − 1. So the
    pairs hold if they hold for these outcomes: for every ε, Σ (aᵢ − e^ε bᵢ)⁺ + Σ (bᵢ − e^ε aᵢ)⁺ ≤ δ with aᵢ = i pᵢ / N
    and bᵢ = (r − i + 1) pᵢ₋₁ / N. Every mechanism has such pᵢ on average over its canaries.
    """
    i = np.arange(1, guesses + 1)
    a, b = np.zeros((guesses, guesses + 1)), np.zeros((guesses, guesses + 1))
    a[i - 1, i], b[i - 1, i - 1] = i / canaries, (guesses - i + 1) / canaries
    blocks, limits = [], []
    variables = 2 * guesses * len(epsilons)
    for k, (epsilon, delta) in enumerate(zip(epsilons, deltas, strict=True)):
        excess = np.zeros((2 * guesses, variables))
        excess[:, 2 * guesses * k : 2 * guesses * (k + 1)] = -np.eye(2 * guesses)
        differences = np.concatenate([a - math.exp(epsilon) * b, b - math.exp(epsilon) * a])
        blocks.append(np.concatenate([differences, excess], axis=1))
        limits += [0.0] * (2 * guesses)
        blocks.append(np.concatenate([np.zeros((1, guesses + 1)), -excess.sum(axis=0, keepdims=True)], axis=1))
        limits.append(delta)
    objective = np.concatenate([-(np.arange(guesses + 1) >= right).astype(float), np.zeros(variables)])
    total = np.concatenate([np.ones((1, guesses + 1)), np.zeros((1, variables))], axis=1)
    solved = optimize.linprog(objective, np.concatenate(blocks), limits, total, [1.0], bounds=(0, None))
    return -solved.fun


PROFILES = {
    "Gaussian": ([0.0, 0.5, 1.0, 1.5, 2.5, 4.0], [0.3829, 0.2384, 0.1269, 0.0569, 0.0066, 0.0001]),
    "pure": ([1.0], [0.0]),
    "approximate": ([0.7], [0.05]),
}


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize(("canaries", "guesses"), [(6, 4), (8, 8), (12, 9)])
def test_no_mechanism_exceeds_the_p_value_and_one_reaches_it_if_all_guesses_are_right(name, canaries, guesses):
    """The p-value is rounded up by at most 0.5%."""
    epsilons, deltas = (np.array(values) for values in PROFILES[name])
    claim = PrivacyProfile(epsilons, deltas)
    for right in range(1, guesses + 1):
        p_value = one_run_curve_p_value(Guesses(canaries, guesses, right), claim)
        largest = largest_probability(canaries, guesses, right, epsilons, deltas)
        assert p_value >= largest * (1 - 1e-7)
    assert p_value <= 1.0051 * largest


@pytest.mark.parametrize("claim", [GaussianDP(0.5), ApproximateDP(0.5, 1e-4)])
def test_the_needed_number_is_the_first_that_rejects(claim):
    for canaries, guesses in ((400, 60), (60, 50)):
        needed = right_guesses_needed(canaries, guesses, claim, 0.02)
        p_values = GuessTests(np.zeros(1), [Guesses(canaries, guesses, v) for v in (needed - 1, needed)]).p_values(
            claim
        )
        assert p_values[1] <= 0.02 * 1.0051
        assert p_values[0] > 0.02
    assert right_guesses_needed(20, 16, GaussianDP(6.0), 0.02) == 17


def coin_flip_audits(draw, canaries, count, rng):
    """Audits whose scores are drawn from all coins at once."""
    for _ in range(count):
        coins = rng.random(canaries) < 0.5
        scores = draw(coins, rng)
        yield Scores(scores[coins], scores[~coins])


def exposed_together(coins, rng):
    """With probability 15%, randomized response with ε = 3 about every canary, and else noise: 1.384-GDP for each."""
    answers = coins == (rng.random(coins.size) < special.expit(3.0))
    noise = rng.normal(0, 0.1, coins.size)
    return noise + np.where(answers, 1.0, -1.0) if rng.random() < 0.15 else noise


def test_canaries_that_are_exposed_together_raise_no_false_alarms():
    """Independent guesses would refute in about 14% of audits; 1,000 audits: 5% and 3.5 standard errors are 7.4%."""
    rng, claim = np.random.default_rng(0), GaussianDP(1.384)
    guesses = most_powerful_guesses(200, claim, GaussianDP(2.768), 0.05)
    refuted = []
    for scores in coin_flip_audits(exposed_together, 200, 1000, rng):
        tests = guess_families(scores, guesses)
        levels = significance_levels(tests, 0.05)
        refuted.append(any(np.any(t.margins(claim, level) <= 0) for t, level in zip(tests, levels, strict=True)))
    assert np.mean(refuted) <= 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / 1000)


@pytest.mark.parametrize(("mu", "share", "canaries"), [(1.67, 0.5, 400), (0.8, 0.5, 400), (1.67, 0.4, 200)])
def test_power_is_the_share_of_audits_that_refute(mu, share, canaries):
    """600 audits: four standard errors are at most 0.082, and the upper tail alone adds at most a few refutations."""
    rng, claim = np.random.default_rng(1), GaussianDP(mu)
    guesses = most_powerful_guesses(canaries, claim, GaussianDP(2 * mu), 0.05)
    audits = coin_flip_audits(lambda coins, rng: rng.normal(coins * mu / share, 1), canaries, 600, rng)
    needed = right_guesses_needed(canaries, guesses, claim, 0.9 * 0.05)
    refuted = [guess_families(scores, guesses)[0].rows[0].correct >= needed for scores in audits]
    power = guess_power(canaries, np.array([guesses]), claim, GaussianDP(mu / share), 0.05)[0]
    assert power == pytest.approx(np.mean(refuted), abs=4 * math.sqrt(power * (1 - power) / 600))


def test_half_the_noise_is_refuted_with_dependent_scores_and_a_true_claim_is_not():
    claim = Claim(noise_multiplier=0.6, sampling=EveryRound(), rounds=1, delta=1e-5)
    rng = np.random.default_rng(2)
    half = check_claim(rng.normal(1 / 0.3, 1, 500), rng.normal(0, 1, 500), claim, design="coin-flips", dependent=True)
    assert half.verdict is Verdict.REFUTED
    assert 0.5 <= half.noise_at_most <= 1
    # Scores that overlap exactly as claimed: random ones overlap more or less by chance.
    quantiles = special.ndtri((np.arange(500) + 0.5) / 500)
    whole = check_claim(1 / 0.6 + quantiles, quantiles, claim, design="coin-flips", dependent=True)
    assert whole.verdict is Verdict.NOT_REFUTED
    assert 0.5 <= whole.detectable_noise < 0.7


def test_shares_of_the_noise_share_their_number_of_guesses():
    """Otherwise `noise_at_most` would pick the best of several tests."""
    rng = np.random.default_rng(3)
    scores = Scores(rng.normal(3, 1, 100), rng.normal(0, 1, 100))
    tests = ClaimTests(scores, design="coin-flips", dependent=True, guesses=90)
    p_values = [tests.p_value(GaussianDP(mu)) for mu in (0.25, 0.5, 1.0, 2.0)]
    assert p_values == sorted(p_values)
    assert guess_families(scores, 90)[0].rows[0].guesses == 90


def test_too_few_canaries_get_half_of_them_guessed():
    assert most_powerful_guesses(20, GaussianDP(5.0), GaussianDP(10.0), 0.05) == 10
    weak = check_claim(
        [3.0, 2.0, 2.5, 1.9], [0.0, 1.0, 0.3], Claim(epsilon=8.0, delta=1e-5), design="coin-flips", dependent=True
    )
    assert weak.verdict is Verdict.TOO_WEAK
