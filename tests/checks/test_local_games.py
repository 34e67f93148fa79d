"""The games of a local test: their bounds hold at the claim, they find what leaks, and the likeliest fault is named."""

import itertools

import numpy as np
import pytest
from scipy import special

from coalmine.claims import Claim, EveryRound
from coalmine.methods.ldp.games import GAMES, games
from coalmine.methods.ldp.lower_bounds import local_p_value, shared_bound
from coalmine.testing import assert_locally_private

DIM, SIGMA = 20, 4.0
GRADIENT = np.full(DIM, DIM**-0.5, dtype=np.float32)


def played(randomize, *, trials=100, seed=0):
    rng = np.random.default_rng([seed, 1])
    return {game.about: game.trials for game in games(lambda g: randomize(g, rng), GRADIENT, trials, rng)}


def response(gradient, rng):
    """Randomized response of one bit, the same in all coordinates."""
    side = 1.0 if gradient.sum() > 0 else -1.0
    return np.full(DIM, side if rng.random() < special.expit(1.0) else -side)


def gaussian(gradient, rng, sigma=2.0):
    return gradient + rng.normal(0, sigma, DIM)


def exceeds_pair(game):
    return shared_bound([game], delta=0.0, confidence=0.8) > 1.0


def exceeds_curve(game):
    # Opposite gradients of norm 1 are 2 apart.
    claim = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=1, delta=1e-5)
    return local_p_value([game], claim) <= 0.2


@pytest.mark.parametrize(("randomize", "exceeds"), [(response, exceeds_pair), (gaussian, exceeds_curve)])
def test_a_mechanism_that_uses_up_its_claim_fails_each_game_at_most_as_often_as_stated(randomize, exceeds):
    """150 plays at a rate of 20%: exceeding it by four standard errors has probability 3e-5."""
    alarms = np.array([[exceeds(game) for game in played(randomize, seed=seed).values()] for seed in range(150)])
    assert (alarms.mean(axis=0) <= 0.2 + 4 * 0.033).all()


def test_the_second_game_is_played_along_the_coordinate_without_noise():
    def bare(gradient, rng):
        return np.where(np.arange(DIM) == 13, gradient, gaussian(gradient, rng, sigma=20.0))

    told = played(bare)
    assert len(told) == GAMES
    assert told["coordinate 13"].guesses.correct == 100
    assert told["a random direction"].guesses.correct < 0.8 * 500


def test_reports_without_noise_have_the_extreme_scores():
    def silent_at_times(gradient, rng):
        return gaussian(gradient, rng, sigma=0.0 if rng.random() < 0.2 else 20.0)

    game = played(silent_at_times, trials=200)["a random direction"]
    extreme = np.argsort(-np.abs(game.scores))[:20]
    assert ((game.scores[extreme] > 0) == game.sent_first[extreme]).all()


def repeated():
    """Every draw serves two reports."""
    calls, draws = itertools.count(), {}

    def randomize(gradient, rng):
        call = next(calls)
        draws.setdefault(call // 2, rng.normal(0, SIGMA, gradient.size))
        return gradient + draws[call // 2]

    return randomize


def seeded():
    trial = itertools.count()
    return lambda gradient, rng: gradient + np.random.default_rng(next(trial)).normal(0, SIGMA, gradient.size)


def sums_to_zero(gradient, rng):
    noise = rng.normal(0, SIGMA, gradient.size)
    return gradient + noise - noise.mean()


def only_where_not_zero(gradient, rng):
    return gradient + (gradient != 0) * rng.normal(0, SIGMA, gradient.size)


def with_the_truth_at_times(gradient, rng):
    return gradient + (rng.random() < 0.9) * rng.normal(0, SIGMA, gradient.size)


FAULTS = {
    "seeds that are numbers of trials": (seeded(), r"noise of numpy.random.default_rng\(\d\), and others"),
    "two reports with one draw": (repeated(), "fault: noise reused"),
    "coordinates that show together": (
        sums_to_zero,
        "fault: noise shared. The noise of 20 coordinates has only 19 dim",
    ),
    "a gradient and zero": (only_where_not_zero, "a random direction and zero"),
    "the truth in some reports": (with_the_truth_at_times, "fault: noise missing in some calls. .*% of the reports"),
    "noise that depends on the norm": (
        lambda g, rng: gaussian(g, rng, SIGMA * (0.5 + 0.5 * np.linalg.norm(g))),
        "fault: wrong kind of noise. The noise depends on the gradient: .* of norm 0",
    ),
    "0.7 of the noise": (lambda g, rng: gaussian(g, rng, 0.7 * SIGMA), "fault: too little noise. .*% of guesses"),
    "clips at twice the clip norm": (
        lambda g, rng: gaussian(g * min(1.0, 2 / np.linalg.norm(g)), rng, SIGMA),
        "fault: clipping skipped. Of gradients of 10 clip norms",
    ),
    "half of the noise": (lambda g, rng: gaussian(g, rng, SIGMA / 2), "fault: too little noise. .*% of guesses"),
    "no clipping": (lambda g, rng: g + rng.normal(0, SIGMA, g.size), "fault: clipping skipped. A gradient ten times"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_refuted_randomizer_gets_its_likeliest_fault_named(name):
    randomize, said = FAULTS[name]
    rng = np.random.default_rng(0)
    norm = 10.0 if "clip" in name else 1.0
    with pytest.raises(AssertionError, match=said):
        assert_locally_private(lambda g: randomize(g, rng), noise_multiplier=SIGMA, dim=DIM, norm=norm, trials=1000)


def test_a_randomizer_that_has_no_report_of_zero_is_tested_without_it():
    rng = np.random.default_rng(0)

    def normalized(gradient):
        return gradient / np.linalg.norm(gradient) + rng.normal(0, SIGMA, gradient.size)

    assert assert_locally_private(normalized, noise_multiplier=SIGMA, dim=DIM, trials=500).valid
