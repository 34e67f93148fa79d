"""Bounds from one training run with coin-flip canaries."""

import math

import jax_privacy.auditing as peer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coalmine.errors import InputError
from coalmine.stats import Guesses, Scores, epsilon_gdp
from coalmine.stats.one_run import one_run, one_run_fdp, one_run_p_value
from mechanisms import randomized_response


@pytest.mark.parametrize(
    ("cells", "delta", "expected"),
    [((1000, 100, 90), 0.0, 1.6308232), ((1000, 100, 90), 1e-5, 1.6261437), ((1000, 1000, 600), 0.0, 0.2974679)],
)
def test_steinkes_bound_has_its_known_values(cells, delta, expected):
    assert one_run(Guesses(*cells), delta=delta).lower == pytest.approx(expected, abs=1e-6)


def test_the_fdp_bound_has_its_known_value():
    lower = one_run_fdp(Guesses(1000, 100, 90), delta=1e-5).lower
    assert lower == pytest.approx(2.4564051, abs=1e-6)


@given(st.integers(1, 300), st.data(), st.floats(0, 4), st.floats(0, 0.01))
def test_the_p_value_is_the_maximum_over_all_shifts(guesses, data, epsilon, delta):
    correct = data.draw(st.integers(0, guesses))
    canaries = data.draw(st.integers(guesses, 2 * guesses))
    law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    beta = law.sf(correct - 1)
    alpha = max(((law.sf(correct - i - 1) - beta) / i for i in range(1, correct + 1)), default=0.0)
    expected = min(1.0, beta + 2 * canaries * delta * alpha)
    assert one_run_p_value(Guesses(canaries, guesses, correct), epsilon, delta) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("guesses", "correct"), [(10, 10), (200, 150), (5000, 4000), (5000, 2600)])
def test_both_bounds_agree_with_jax_privacy(guesses, correct):
    cells = Guesses(10_000, guesses, correct)
    theirs = peer._epsilon_one_run(0, 10_000, guesses, correct, 0.05, 1e-5)
    assert one_run(cells, delta=1e-5).lower == pytest.approx(theirs, abs=2e-6)
    theirs = peer._epsilon_one_run_fdp(0, 10_000, guesses, correct, 0.05, 1e-5)
    assert one_run_fdp(cells, delta=1e-5).lower == pytest.approx(theirs, abs=2e-6)


@given(st.integers(2, 200), st.data())
def test_more_right_guesses_never_lower_the_bound(guesses, data):
    correct = data.draw(st.integers(0, guesses - 1))
    fewer, more = (one_run(Guesses(500, guesses, c), delta=1e-4).lower for c in (correct, correct + 1))
    assert fewer <= more


def audits(draw, canaries, count, rng):
    """Audits in which each canary is a member by a coin flip."""
    for members in rng.binomial(canaries, 0.5, count):
        yield draw(rng, members, canaries - members)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (1.0, 1e-3)])
def test_one_run_exceeds_the_truth_in_at_most_5_percent_of_audits(epsilon, delta):
    draw, _ = randomized_response(epsilon, delta)
    rng = np.random.default_rng([8, round(epsilon)])
    wrong = sum(one_run(scores, delta=delta).lower > epsilon for scores in audits(draw, 200, 300, rng))
    assert wrong <= 300 * 0.05 + 3 * math.sqrt(300 * 0.05 * 0.95)


def test_one_run_holds_where_all_canaries_succeed_or_fail_together():
    # With probability δ·m the mechanism shows every membership at once: (0, δ·m)-DP for the whole, δ for one canary
    # if only that one is shown; here the dependent version with a total δ of 2% is (0, 0.02)-DP for each canary.
    rng = np.random.default_rng(9)
    wrong = 0
    for _ in range(300):
        flips = rng.random(100) < 0.5
        scores = np.where(flips, 1.0, -1.0) if rng.random() < 0.02 else rng.normal(size=100)
        if 0 < flips.sum() < 100:
            wrong += one_run(Scores(scores[flips], scores[~flips]), delta=0.02).lower > 0
    assert wrong <= 300 * 0.05 + 3 * math.sqrt(300 * 0.05 * 0.95)


def test_one_run_fdp_exceeds_the_truth_in_at_most_5_percent_of_gaussian_audits():
    rng = np.random.default_rng(10)
    truth = float(epsilon_gdp(1.0, 1e-5))

    def draw(rng, m, n):
        return Scores(rng.normal(1, 1, m), rng.normal(0, 1, n))

    wrong = sum(one_run_fdp(scores, delta=1e-5).lower > truth for scores in audits(draw, 200, 200, rng))
    assert wrong <= 200 * 0.05 + 3 * math.sqrt(200 * 0.05 * 0.95)


def test_guesses_in_both_tails_beat_the_peers_one_sided_ones():
    rng = np.random.default_rng([20230208, 1000, 10])
    members, nonmembers = rng.normal(1, 1, 1000), rng.normal(0, 1, 1000)
    theirs = peer.CanaryScoreAuditor(members, nonmembers).epsilon_one_run(0.05, 1e-5)
    assert one_run(Scores(members, nonmembers), delta=1e-5).lower > max(1.7, theirs)


def test_no_guesses_show_nothing():
    assert one_run(Guesses(10, 0, 0)).lower == 0
    assert one_run_fdp(Guesses(10, 0, 0), delta=1e-5).lower == 0


@pytest.mark.parametrize("cells", [(10, 11, 5), (10, 5, 6), (0, 0, 0), (10, -1, 0), (10, 5, 2.5), (10, math.nan, 1)])
def test_impossible_guesses_raise(cells):
    with pytest.raises(InputError):
        Guesses(*cells)
