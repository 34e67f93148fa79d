"""CANIFE with a bound that holds at every moment: the live number, and an early stop."""

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.methods.canife.anytime import AnytimeEvidence
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.results.verdict import Verdict


def play(audit, sigma, *, rounds=2, seed=1, stop=None):
    """Play the frozen rounds as a training does, with noise of standard deviation ``sigma``; return their number."""
    noise, played = np.random.default_rng(seed), 0
    for round in range(rounds):
        trial = 0
        while trial < audit.frozen_rounds(round) and played != stop:
            planted = audit.plant(round, clip_norm=1.0, trial=trial)
            total = noise.normal(0, sigma, 20).astype(np.float32)
            total += 0 if planted is None else planted.total
            audit.observe(round, update=total, trial=trial, divisor=1.0)
            trial, played = trial + 1, played + 1
    return played


def audit(**changes):
    settings = {"rounds": 2, "every": 1, "trials": 300, "stop_when_refuted": True, "claimed_noise": 1.0}
    return Canife(canaries=GivenUpdates(np.eye(1, 20)), **{**settings, **changes})


def test_half_of_the_claimed_noise_ends_the_frozen_rounds_early():
    stopped = audit()
    assert play(stopped, 0.5) < 200
    result = stopped.result(noise_multiplier=1.0)
    assert result.verdict is Verdict.REFUTED
    assert result.claim_test.p_value <= 0.05
    assert [e.method for e in result.estimates if e.valid] == ["anytime"]
    assert "stopped after" in result.warnings[-1]
    assert len(result.periods) == 1  # nothing was played in the second
    assert all(not e.valid for period in result.periods for e in period.estimates)
    assert result.bound.epsilon <= result.ceiling


def test_the_claimed_noise_plays_all_frozen_rounds():
    patient = audit()
    assert play(patient, 1.0) == 600
    result = patient.result(noise_multiplier=1.0)
    assert result.verdict is Verdict.NOT_REFUTED
    assert 0 < result.bound.epsilon < result.claim.epsilon
    assert patient.live().startswith(f"ε ≥ {result.bound.epsilon:.2f} (95%), ε̂ᵣ ")


def test_few_frozen_rounds_that_refute_nothing_are_too_weak():
    weak = audit(trials=15)
    play(weak, 1.0)
    assert weak.result(noise_multiplier=1.0).verdict is Verdict.TOO_WEAK


def test_without_an_early_stop_the_bound_comes_after_those_for_a_fixed_number():
    fixed = audit(stop_when_refuted=False, trials=100)
    assert play(fixed, 0.5) == 200
    result = fixed.result(noise_multiplier=1.0)
    valid = [e.method for e in result.estimates if e.valid]
    assert valid[-1] == "anytime"
    assert valid[0] == "one-run"


def test_a_resumed_audit_stops_at_the_same_trial():
    whole, first, second = audit(), audit(), audit()
    count = play(whole, 0.5)
    play(first, 0.5, stop=count - 3)
    assert first.frozen_rounds(0) == 300
    second.restore(first.state())
    assert second.frozen_rounds(0) == 300
    second.restore(whole.state())
    assert second.frozen_rounds(0) == second.frozen_rounds(1) == 0
    assert second.plant(1, clip_norm=1.0, trial=0) is None


def test_trials_with_different_noise_are_compared_by_their_likelihood_ratio():
    rng = np.random.default_rng(0)
    present = rng.random((400, 1)) < 0.5
    sigma = np.where(np.arange(400) % 2, 0.5, 20.0)[:, None]
    evidence = AnytimeEvidence(delta=1e-5, noise_multiplier=None)
    evidence.update(present + sigma * rng.standard_normal((400, 1)), present, sigma)
    alone = AnytimeEvidence(delta=1e-5, noise_multiplier=None)
    alone.update(present + sigma * rng.standard_normal((400, 1)), present, np.full((400, 1), np.nan))
    assert evidence.bound.lower() > 1 > alone.bound.lower()
    assert not evidence.refuted(0.95)  # there is no claim
    assert evidence.claim_test(None, None, 0.95) is None


@pytest.mark.parametrize("changes", [{"mode": "running", "trials": 2}, {"claimed_noise": None}, {"claimed_noise": 0.0}])
def test_an_early_stop_needs_frozen_rounds_and_a_claim(changes):
    with pytest.raises(InputError, match="stop_when_refuted"):
        audit(**changes)
