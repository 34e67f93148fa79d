"""The LDP audit with an early stop: gross bugs end it, correct claims run to the end, and only ``anytime`` is valid."""

import numpy as np
import pytest

from coalmine.methods.ldp.crafters import DummyGradient
from coalmine.methods.ldp.settings import LDPSettings
from coalmine.methods.ldp.trials import Trials
from coalmine.methods.ldp.until_refuted import WatchedGame
from coalmine.progress import listening
from coalmine.results.verdict import Verdict
from coalmine.simulation.mechanisms.local import LDPSGD, OwnMechanism
from ldp_games import DoubledEpsilon, digits_audit


def test_a_refuted_claim_ends_the_audit_early_with_a_bound_that_allows_it():
    shown = []
    audit = digits_audit(
        crafters=[DummyGradient()],
        mechanisms=[DoubledEpsilon(epsilon=1.0)],
        views=["white-box", "parameter-change"],
        trials=5000,
        stop_when_refuted=True,
    )
    with listening(lambda what, total: (lambda done, words: shown.append((what, total, words)), lambda: None)):
        results = audit.run()
    assert Verdict.REFUTED in {result.verdict for result in results}
    for result in results:
        assert result.metrics["trials"] < 2500
        assert result.scores.members.size + result.scores.observed.size == result.metrics["trials"]
        assert [e.method for e in result.estimates if e.valid] == ["anytime"]
        assert "fixed in advance" in result["ldp"].assumes
        assert result.joint_bound <= result.bound.epsilon
        assert "stopped after" in result.warnings[-1]
    watched = [(total, words) for what, total, words in shown if what == "LDP trials"]
    assert watched[-1][0] == 20  # blocks of 250 trials
    assert watched[-1][1].startswith("ε ≥ 1")


def test_a_correct_claim_plays_all_trials():
    (result,) = digits_audit(
        crafters=[DummyGradient()],
        mechanisms=[LDPSGD(epsilon=1.0)],
        views=["white-box"],
        trials=1001,
        measurements=2,
        stop_when_refuted=True,
    ).run()
    assert result.verdict is Verdict.NOT_REFUTED
    assert result.metrics["trials"] == 2002
    assert not result.warnings
    assert 0.5 < result.bound.epsilon <= 1


@pytest.mark.parametrize("memoryless", [True, False])
def test_only_independent_trials_are_shuffled(memoryless):
    mechanism = LDPSGD(epsilon=1.0)
    if not memoryless:
        mechanism = OwnMechanism(function=lambda gradient, rng: gradient, epsilon=1.0, norm=1.0, delta=0.0)
    game, order = WatchedGame(mechanism), []
    game.bound.update = lambda coins, scores: order.extend(scores)
    game.add(Trials(np.arange(100.0), np.arange(100) < 50), np.random.default_rng(0))
    assert sorted(order) == list(range(100))
    assert (order == list(range(100))) != memoryless


def test_sorted_coins_of_a_correct_mechanism_raise_no_false_alarms():
    # g₁ is always sent first in a block; only a random order makes the coins fair. Fails by chance with p < 0.3%.
    rng, alarms = np.random.default_rng(0), 0
    right = 1 / (1 + np.exp(-1.0))
    for _ in range(100):
        game = WatchedGame(LDPSGD(epsilon=1.0))
        for _ in range(3):
            sent = np.arange(100) < rng.binomial(100, 0.5)
            game.add(Trials(np.where(sent == (rng.random(100) < right), 1.0, -1.0), sent), rng)
        alarms += game.bound.refuted(0.95)
    assert alarms <= 100 * 0.05 + 3 * np.sqrt(100 * 0.05 * 0.95)


def test_the_setting_reaches_the_audit():
    assert LDPSettings(data="digits", stop_when_refuted=True).audit().stop_when_refuted
    assert not LDPSettings(data="digits").audit().stop_when_refuted
