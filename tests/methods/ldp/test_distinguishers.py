"""White-box trials of the LDP audit against closed forms, and coins that hide a drift."""

import itertools
import math

import numpy as np
import pytest
from scipy import special

from coalmine.errors import InputError
from coalmine.methods.ldp.distinguishers import Trials, toss_coins, white_box
from coalmine.methods.ldp.lower_bounds import estimates
from coalmine.simulation.mechanisms.local import LDPSGD, LocalGaussian, PrivUnit2
from coalmine.stats import Counts
from coalmine.stats.scores import plug_in
from ldp_games import EPSILONS, at_angle, dummy


def test_the_papers_example_of_equation_3_is_ln_8():
    assert plug_in(Counts(tp=80, fn=20, fp=10, tn=90)).epsilon == pytest.approx(math.log(8))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_worst_case_is_right_as_often_as_epsilon_allows(epsilon):
    trials = white_box(dummy(), LDPSGD(epsilon=epsilon), 200_000, np.random.default_rng(0))["white-box"]
    right = float(special.expit(epsilon))
    error = math.sqrt(right * (1 - right) / 200_000)
    assert trials.guesses.correct / 200_000 == pytest.approx(right, abs=4 * error)


@pytest.mark.parametrize("angle", [0.3, math.pi / 2, 2.5])
@pytest.mark.parametrize("lengths", [(1.0, 1.0), (0.5, 3.0)])
def test_cosines_distinguish_two_gradients_by_their_angle_and_norms(angle, lengths):
    # P(guess g1 | g1) = 1/2 + ‖x1‖/L · (2p − 1) · φ/2π, and likewise for g2: the angle between the gradient and the
    # boundary of the test is (π − φ)/2.
    trials = white_box(at_angle(angle, lengths), LDPSGD(epsilon=2.0), 200_000, np.random.default_rng(1))["white-box"]
    counts, gain = trials.counts, (2 * special.expit(2.0) - 1) * angle / (2 * math.pi)
    assert counts.tp / counts.members == pytest.approx(0.5 + min(1, lengths[0]) * gain, abs=0.007)
    assert counts.tn / counts.nonmembers == pytest.approx(0.5 + min(1, lengths[1]) * gain, abs=0.007)


def test_the_likelihood_ratio_shows_all_of_epsilon_where_cosines_show_a_quarter():
    trials = white_box(at_angle(math.pi / 2), LDPSGD(epsilon=4.0), 50_000, np.random.default_rng(2))
    assert plug_in(trials["white-box"].counts).epsilon < 1.2
    bound = estimates([trials["likelihood-ratio"]], delta=0.0, confidence=0.95)[0]
    assert 0.93 * 4 < bound.lower <= 4


@pytest.mark.parametrize("mechanism", [LDPSGD(epsilon=1.0), PrivUnit2(epsilon=1.0), LocalGaussian(epsilon=1.0)])
def test_likelihood_ratios_of_one_report_are_exact(mechanism):
    # Under g1 the mean of exp(−log ratio) is 1 for the true ratio, as both densities are positive everywhere.
    gradients = at_angle(1.0, (0.7, 2.0))
    total = mechanism.projections(gradients.plane[1], gradients.dim, np.random.default_rng(0), 200_000)
    inverse = np.exp(-gradients.log_ratio(total, mechanism, 1))
    assert inverse.mean() == pytest.approx(1, abs=5 * inverse.std() / math.sqrt(200_000))


def test_likelihood_ratios_among_several_clients_are_calibrated_in_many_dimensions():
    gradients, mechanism, rng = at_angle(2.0, dim=3000), LDPSGD(epsilon=2.0), np.random.default_rng(0)
    total = mechanism.projections(gradients.plane[1], 3000, rng, 100_000)
    for _ in range(3):
        others = rng.standard_normal(total.shape)
        total += others / np.sqrt(rng.chisquare(2998, 100_000) + (others**2).sum(axis=1))[:, None]
    inverse = np.exp(-gradients.log_ratio(total, mechanism, 4))
    assert inverse.mean() == pytest.approx(1, abs=5 * inverse.std() / math.sqrt(100_000))


def test_trials_that_all_sent_the_same_gradient_are_refused():
    with pytest.raises(InputError, match="all 2 trials sent the same gradient"):
        Trials(np.zeros(2), np.ones(2, dtype=bool))


@pytest.mark.parametrize("where", ["chance", "length", "clipped"])
def test_a_subclass_that_keeps_state_anywhere_gets_its_coins_in_random_order(where):
    # The first half of all reports differs from the second, whatever the gradient.
    calls = itertools.count()

    class Drifting(LDPSGD):
        @property
        def chance(self):
            return 1.0 if where == "chance" and next(calls) < 500 else 0.5

        def length(self, gradient):
            return 1.0 if where == "length" and next(calls) < 500 else 0.0

        def clipped(self, gradient):
            kept = where != "clipped" or next(calls) < 500
            return super().clipped(gradient) * (1.0 if kept else 1e-3)

    gradients = dummy(4)
    sent_first, batches = toss_coins(gradients, Drifting(epsilon=1.0), 1000, np.random.default_rng(0))
    assert 200 < sent_first[:500].sum() < 300  # if g₁ came first, the first 500 would all be its own
    assert [gradient is gradients.first for gradient, _ in batches] == sent_first.tolist()
