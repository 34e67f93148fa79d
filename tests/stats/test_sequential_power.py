"""Power of tests that may stop at any time: when simulated audits decide, with tests of known outcomes."""

import numpy as np
import pytest

from coalmine.stats.sequential import reaches_power


class Scripted:
    """A test that refutes once it has seen so many trials, or never."""

    def __init__(self, trials_needed):
        self.left, self.updates = trials_needed, []

    def update(self, coins, scores):
        assert coins.dtype == bool
        assert len(coins) == len(scores)
        self.left -= len(coins)
        self.updates.append(len(coins))

    def refuted(self, confidence):
        assert confidence == 0.9
        return self.left <= 0


def run(needed, *, trials, power=0.8):
    """Return the decision and the audits that it took, whose trials are in ``needed``."""
    started, remaining = [], iter(needed)

    def start():
        started.append(Scripted(next(remaining)))
        return started[-1]

    decision = reaches_power(start, lambda coins, rng: rng.normal(coins), trials=trials, power=power, confidence=0.9)
    return decision, started


@pytest.mark.parametrize(
    ("refuting", "missed", "decision", "audits"),
    [(40, 10, True, 50), (39, 11, False, 11), (50, 0, True, 40), (0, 50, False, 11)],
)
def test_audits_stop_as_soon_as_the_share_is_certain(refuting, missed, decision, audits):
    outcome, started = run([10**9] * missed + [1] * refuting, trials=5)
    assert outcome is decision
    assert len(started) == audits


@pytest.mark.parametrize("trials", [1, 249, 250, 251, 620])
def test_an_audit_has_exactly_its_trials_in_blocks(trials):
    outcome, (first, *_) = run([trials] * 50, trials=trials)
    assert outcome
    assert sum(first.updates) == trials
    assert max(first.updates) <= 250
    assert not run([trials + 1] * 50, trials=trials)[0]


def test_an_audit_ends_when_it_refutes():
    _, (first, *_) = run([300] * 50, trials=10_000)
    assert sum(first.updates) == 500


def test_coins_are_fair_and_other_in_every_audit():
    seen = []
    reaches_power(
        lambda: Scripted(10**9),
        lambda coins, rng: seen.append(np.array(coins)) or np.zeros(coins.size),
        trials=200,
        power=0.8,
        confidence=0.9,
    )
    assert abs(np.mean(np.concatenate(seen)) - 0.5) < 4 * 0.5 / np.sqrt(200 * len(seen))  # 4 standard errors
    assert len({coins.tobytes() for coins in seen}) == len(seen) == 11
