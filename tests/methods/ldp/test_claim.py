"""Tests of local claims by trials: exact p-values, false alarms, and power."""

import math

import numpy as np
import pytest
from scipy import special, stats

from coalmine.claims import Claim, EveryRound
from coalmine.methods.ldp.distinguishers import Trials
from coalmine.methods.ldp.lower_bounds import _rates_p_value, check_local_claim, local_p_value, trials_needed
from coalmine.results.verdict import Verdict
from coalmine.simulation.mechanisms.local import OwnMechanism
from coalmine.stats.exact_tests import TrialGuesses, highest_accuracy
from coalmine.stats.scores import epsilon_from_counts
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP

GAUSSIAN = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=1, delta=1e-5)


def slow(*case):
    """A case for the nightly tests."""
    return pytest.param(*case, marks=pytest.mark.slow)


def randomized_response(rng, trials, epsilon):
    """Trials of the least favorable mechanism of pure ε."""
    coins = rng.random(trials) < 0.5
    return Trials(np.where(coins == (rng.random(trials) < special.expit(epsilon)), 1.0, -1.0), coins)


def laplace(rng, trials, epsilon):
    """Trials whose scores are log-likelihood ratios, guessed about only if they are at least half of ε."""
    coins = rng.random(trials) < 0.5
    report = coins + rng.laplace(0, 1 / epsilon, trials)
    scores = epsilon * (np.abs(report) - np.abs(report - 1))
    return Trials(scores, coins, upper=epsilon / 2, lower=-epsilon / 2)


def gaussian(rng, trials, mu):
    coins = rng.random(trials) < 0.5
    return Trials(rng.normal(mu * (coins - 0.5), 1.0), coins)


@pytest.mark.parametrize("claim", [ApproximateDP(1.0, 0.0), ApproximateDP(0.5, 0.1), GaussianDP(1.5)])
def test_no_attack_guesses_a_coin_better_than_the_highest_accuracy(claim):
    fpr = np.linspace(0, 1, 100_001)
    assert highest_accuracy(claim) == pytest.approx(np.max(claim.tpr(fpr) + 1 - fpr) / 2, abs=1e-5)


@pytest.mark.parametrize(("guesses", "right"), [(5, 5), (5, 3), (5, 0), (1000, 790)])
def test_the_p_value_of_guesses_is_a_binomial_tail(guesses, right):
    p_value = TrialGuesses(guesses, right).p_value(ApproximateDP(1.0, 0.0))
    assert p_value == pytest.approx(stats.binom.sf(right - 1, guesses, special.expit(1.0)))


def test_the_p_value_of_rates_is_the_level_at_which_their_bound_crosses_the_claim():
    counts = randomized_response(np.random.default_rng(0), 300, 2.0).counts
    p_value = _rates_p_value(counts, Claim(epsilon=1.0, delta=0.0))
    assert epsilon_from_counts(counts, delta=0.0, confidence=1 - 1.001 * p_value).epsilon > 1
    assert epsilon_from_counts(counts, delta=0.0, confidence=1 - 0.999 * p_value).epsilon < 1


@pytest.mark.parametrize(
    ("draw", "claim"),
    [
        slow(lambda rng: [randomized_response(rng, 100, 1.0)], Claim(epsilon=1.0, delta=0.0)),
        (lambda rng: [randomized_response(rng, 60, 1.0), laplace(rng, 60, 1.0)], Claim(epsilon=1.0, delta=0.0)),
        slow(lambda rng: [laplace(rng, 100, 1.0)], Claim(epsilon=1.0, delta=0.0)),
        (lambda rng: [gaussian(rng, 100, 1.0)], GAUSSIAN),
        slow(lambda rng: [gaussian(rng, 60, 1.0), gaussian(rng, 60, 0.3)], GAUSSIAN),
        slow(lambda rng: [gaussian(rng, 100, 0.0)], Claim(epsilon=0.0, delta=0.0)),
    ],
)
def test_a_true_local_claim_is_rarely_refuted(draw, claim):
    """300 audits: 5% and 3.5 standard errors are 9.4%."""
    rng = np.random.default_rng(1)
    refuted = [local_p_value(draw(rng), claim) <= 0.05 for _ in range(300)]
    assert np.mean(refuted) <= 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize(("trials", "epsilon"), [(60, 2.0), (120, 1.6)])
def test_power_is_the_share_of_audits_that_refute_by_their_guesses(trials, epsilon):
    """20,000 audits: four standard errors are 0.014. Observed guesses are those of the best attack on the claim."""
    claim, truth = ApproximateDP(1.0, 0.0), ApproximateDP(epsilon, 0.0)
    perfect = TrialGuesses(trials, trials)  # as strong as the curve allows
    right = np.random.default_rng(2).binomial(trials, special.expit(epsilon), 20_000)
    p_values = np.array([TrialGuesses(trials, v).p_value(claim) for v in range(trials + 1)])
    assert perfect.power(claim, truth, 0.025) == pytest.approx(np.mean(p_values[right] <= 0.025), abs=0.014)


def test_the_verdict_follows_from_power_and_not_from_the_size_of_the_bound():
    rng = np.random.default_rng(3)
    enough = check_local_claim([randomized_response(rng, 150, 1.0)], Claim(epsilon=1.0, delta=0.0), confidence=0.95)
    assert enough.verdict is Verdict.NOT_REFUTED
    assert 0.5 <= enough.detectable_noise < 0.7
    few, claim = [randomized_response(rng, 30, 1.0)], Claim(epsilon=1.0, delta=0.0)
    assert check_local_claim(few, claim, confidence=0.95).verdict is Verdict.TOO_WEAK
    assert 40 <= trials_needed(few, claim, 0.95) <= 150
    blind = check_local_claim([gaussian(rng, 500, 0.0)], Claim(epsilon=1.0, delta=0.0), confidence=0.95)
    assert blind.verdict is Verdict.TOO_WEAK
    double = check_local_claim([randomized_response(rng, 150, 2.0)], Claim(epsilon=1.0, delta=0.0), confidence=0.95)
    assert double.verdict is Verdict.REFUTED


def test_local_gaussian_noise_is_bounded_by_its_whole_curve():
    rng = np.random.default_rng(4)
    half = check_local_claim([gaussian(rng, 400, 2.0)], GAUSSIAN, confidence=0.95)
    assert half.verdict is Verdict.REFUTED
    assert 0.5 <= half.noise_at_most < 1
    whole = check_local_claim([gaussian(rng, 400, 1.0)], GAUSSIAN, confidence=0.95)
    assert whole.verdict is Verdict.NOT_REFUTED
    assert whole.noise_at_most >= 1


def test_no_claim_is_tested_without_noise():
    trials = [randomized_response(np.random.default_rng(5), 30, 1.0)]
    assert check_local_claim(trials, Claim(epsilon=math.inf, delta=0.0), confidence=0.95).verdict is Verdict.NO_CLAIM


def test_an_attack_no_better_than_a_coin_stays_one_under_any_curve():
    for truth in (ApproximateDP(1.0, 0.0), ApproximateDP(800.0, 0.0)):  # whose accuracy rounds to 1
        assert TrialGuesses(guesses=100, right=40).accuracy_under(truth, ApproximateDP(1.0, 0.0)) == 0.5


def test_the_delta_of_a_users_mechanism_is_part_of_its_claim():
    """Trials of the least favorable (1, 0.1)-DP mechanism: more than 12 refuted of 100 in less than 0.1% of runs."""
    mechanism = OwnMechanism(function=lambda gradient, rng: gradient, epsilon=1.0, delta=0.1)
    assert mechanism.claim().curve() == ApproximateDP(1.0, 0.1)
    assert OwnMechanism(function=mechanism.function, epsilon=1.0).claim().curve() == ApproximateDP(1.0, 0.0)
    rng, refuted = np.random.default_rng(0), 0
    for _ in range(100):
        coins = rng.random(400) < 0.5
        right = rng.random(400) < highest_accuracy(ApproximateDP(1.0, 0.1))
        trials = Trials(np.where(coins == right, 1.0, -1.0), coins)
        refuted += local_p_value([trials], mechanism.claim()) <= 0.05
    assert refuted <= 12


def test_abstaining_from_weak_evidence_does_not_refute_a_claim_for_several_reports():
    """Seven reports of randomized response: more than 8 refuted of 40 in less than 0.1% of runs."""
    claim, rng, refuted = Claim(local_epsilon=0.5, rounds=7, delta=0.0), np.random.default_rng(0), 0
    for _ in range(40):
        coins = rng.random(1000) < 0.5
        evidence = 0.5 * (2 * rng.binomial(7, special.expit(0.5), 1000) - 7)
        trials = Trials(np.where(coins, evidence, -evidence), coins, upper=1.5, lower=-1.4)
        refuted += local_p_value([trials], claim) <= 0.05
    assert refuted <= 8
