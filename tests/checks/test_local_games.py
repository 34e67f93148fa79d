"""The games of a local test: their bounds hold at the claim, and the second finds the coordinate that leaks."""

import numpy as np
import pytest
from scipy import special

from coalmine.claims import Claim, EveryRound
from coalmine.methods.ldp.lower_bounds import local_p_value, shared_bound
from coalmine.testing import two_games

DIM = 20
GRADIENT = np.full(DIM, DIM**-0.5, dtype=np.float32)


def played(randomize, *, trials=100, seed=0):
    rng = np.random.default_rng([seed, 1])
    return dict(two_games(lambda g: randomize(g, rng), GRADIENT, rng.random(trials) < 0.5, rng=rng))


def response(gradient, rng):
    return (1.0 if rng.random() < special.expit(1.0) else -1.0) * gradient.astype(float)


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

    games = played(bare)
    assert list(games) == ["a random direction", "coordinate 13"]
    assert games["coordinate 13"].guesses.correct == 100
    assert games["a random direction"].guesses.correct < 80


def test_reports_without_noise_have_the_extreme_scores():
    def silent_at_times(gradient, rng):
        return gaussian(gradient, rng, sigma=0.0 if rng.random() < 0.2 else 20.0)

    game = played(silent_at_times, trials=200)["a random direction"]
    extreme = np.argsort(-np.abs(game.scores))[:20]
    assert ((game.scores[extreme] > 0) == game.sent_first[extreme]).all()
