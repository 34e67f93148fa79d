"""The CANIFE audit: coin flips, frozen and running rounds, checkpoints, and errors."""

import math

import numpy as np
import pytest
import torch

from canary_models import CLIP, designed, first_axis, silent, training
from coalmine import claims
from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.methods.canife.design import DesignSettings
from coalmine.stats import estimate
from federations import texts, word_model


def test_a_perfect_canary_measures_the_gaussian_mechanism():
    audit = Canife(canaries=GivenUpdates(first_axis()), rounds=1, every=1, trials=400)
    training([audit], rounds=1, noise=1.0, data=silent()).run()
    (period,) = audit.periods
    # Six standard errors: a false alarm in fewer than 1e-8.
    assert period.scores[period.present].mean() == pytest.approx(1, abs=6 / math.sqrt(180))
    assert period.scores[~period.present].mean() == pytest.approx(0, abs=6 / math.sqrt(180))
    assert period.scores[~period.present].std() == pytest.approx(1, abs=6 / math.sqrt(2 * 180))
    for delta in (1e-5, 0.01):
        # Intervals of 99.9%, so that one seed in a thousand fails.
        result = audit.result(claim=Claim(noise_multiplier=1.0, delta=delta), confidence=0.999)
        exact = claims.round_epsilon(noise_multiplier=1.0, delta=delta)
        assert result.claim.epsilon == exact
        assert result["gaussian-shift"].lower < exact < result["gaussian-shift"].upper
        assert 0 < result.bound.epsilon < exact
        assert result["gdp"].epsilon < exact
        assert not result.refuted
    # At δ = 0.01 rates see where the Gaussian mechanism is worst; at 1e-5 that is out of their reach.
    assert result["best-threshold"].lower < exact < result["best-threshold"].upper


def test_several_perfect_canaries_are_as_good_as_several_trials():
    audit = Canife(canaries=GivenUpdates(first_axis(8)), rounds=1, every=1, trials=50)
    training([audit], rounds=1, noise=1.0, data=silent()).run()
    result, exact = (
        audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5)),
        claims.round_epsilon(noise_multiplier=1.0, delta=1e-5),
    )
    assert result.scores.members.size + result.scores.observed.size == 400
    assert result["gaussian-shift"].lower < exact < result["gaussian-shift"].upper
    assert result.bound.method == "one-run"


def test_a_designed_canary_is_seen_in_frozen_rounds_and_the_model_moves_on():
    audit = Canife(canaries=designed(iterations=30), rounds=6, every=3, trials=40)
    run = training([audit], noise=0.2)
    run.run()
    result = audit.result(claim=Claim(noise_multiplier=0.2, delta=1e-5))
    assert [(p.round, p.rounds) for p in result.periods] == [(0, 3), (3, 3)]
    # Guessing blindly is right in half of 40 trials, and in 32 of them once in 10,000 times.
    for period in result.periods:
        assert period.scores.max_accuracy > 0.8
        assert 0 < next(e.epsilon for e in period.estimates if e.valid) <= period.ceiling
    first, second = result.details["designs"]
    assert (first["round"], second["round"]) == (0, 3)
    assert first["effective_sigma"] != second["effective_sigma"]
    assert result.claim.rounds == 1
    assert result.training_claim.rounds == 6
    assert not result.refuted


def test_coins_are_fair_do_not_alternate_and_are_each_canarys_own():
    audit = Canife(canaries=GivenUpdates(np.eye(2, 9)), rounds=1, every=1, trials=1000)
    coins = audit._coins
    # Six standard errors of 1,000 fair flips: a false alarm in fewer than 1e-8.
    assert np.abs(coins.mean(0) - 0.5).max() < 0.095
    changes = (coins[1:] != coins[:-1]).mean(0)
    assert np.abs(changes - 0.5).max() < 0.095
    assert abs((coins[:, 0] == coins[:, 1]).mean() - 0.5) < 0.095
    other = Canife(canaries=GivenUpdates(np.eye(2, 9)), rounds=1, every=1, trials=1000, seed=1)
    assert (other._coins != coins).any()


def test_frozen_rounds_leave_the_training_as_it_is():
    plain, audited = training(), training([Canife(canaries=designed(2), rounds=6, every=2, trials=5)])
    plain.run()
    audited.run()
    assert torch.equal(plain.state.model, audited.state.model)


def test_a_running_round_without_a_canary_is_the_same_as_without_the_audit():
    audits = (Canife(canaries=designed(), rounds=6, every=3, trials=6, mode="running", seed=seed) for seed in range(50))
    audit = next(a for a in audits if not a._coins[0, 0] and a._coins[:, 0].any())
    first = int(np.argmax(audit._coins[:, 0]))
    plain, audited = training(), training([audit])
    plain.run(until=first)
    audited.run(until=first)
    assert torch.equal(plain.state.model, audited.state.model)
    plain.run(until=first + 1)
    audited.run(until=first + 1)
    assert not torch.equal(plain.state.model, audited.state.model)


def test_the_divisor_reveals_nothing_and_absent_canaries_insert_nothing():
    class Watched(Canife):
        def plant(self, round, *, clip_norm, trial=None):
            planted = super().plant(round, clip_norm=clip_norm, trial=trial)
            if trial is not None:
                seen.append((planted is None, planted.clients if planted else 0.0))
            return planted

        def record(self, release):
            super().record(release)
            if release.trial is not None:
                divisors.append(release.divisor)

    seen, divisors = [], []
    audit = Watched(canaries=designed(), rounds=1, every=1, trials=20)
    training([audit], rounds=1).run()
    (period,) = audit.periods
    assert [absent for absent, _ in seen] == (~period.present[:, 0]).tolist()
    assert {clients for _, clients in seen} == {0.0}
    assert set(divisors) == {6.0}


@pytest.mark.parametrize("mode", ["frozen", "running"])
def test_a_killed_run_resumes_to_the_same_bits(mode, tmp_path):
    def both():
        audit = Canife(canaries=designed(2), rounds=6, every=4, trials=6, mode=mode)
        return audit, training([audit])

    straight, whole = both()
    whole.run()
    _, begun = both()
    begun.run(until=3, checkpoints=tmp_path)
    resumed, rest = both()
    rest.run(checkpoints=tmp_path)
    assert torch.equal(whole.state.model, rest.state.model)
    for a, b in zip(straight.periods, resumed.periods, strict=True):
        assert np.array_equal(a.scores, b.scores)
    assert straight.facts == resumed.facts
    assert straight.result().estimates == resumed.result().estimates
    other = Canife(canaries=designed(2, iterations=5), rounds=6, every=4, trials=6, mode=mode)
    with pytest.raises(InputError, match="audits"):
        training([other]).run(checkpoints=tmp_path)


def test_running_canaries_of_an_untrained_model_are_renewed_early():
    assert list(Canife(canaries=designed(), rounds=25, every=10, trials=5, mode="running").facts) == [0, 2, 10, 20]
    assert list(Canife(canaries=designed(), rounds=2, every=2, trials=2, mode="running").facts) == [0]
    assert list(Canife(canaries=designed(), rounds=25, every=10, trials=5).facts) == [0, 10, 20]


def test_running_rounds_are_cut_into_estimates_and_the_last_takes_the_rest():
    audit = Canife(canaries=designed(3), rounds=11, every=4, trials=5, mode="running")
    training([audit], rounds=11).run()
    result = audit.result()
    assert [(p.round, p.rounds) for p in result.periods] == [(0, 5), (5, 6)]
    assert sum(p.scores.members.size + p.scores.observed.size for p in result.periods) == 33
    assert len(result.details["designs"]) == 3


def test_no_bound_finds_what_is_not_there_however_many_canaries_share_a_round():
    """The training throws the canaries away, so that ε = 0: a bound above that is a violation."""
    audits, above = 200, 0
    noise = np.random.default_rng(0)
    for seed in range(audits):
        audit = Canife(canaries=GivenUpdates(np.eye(4, 6)), rounds=15, every=5, trials=15, mode="running", seed=seed)
        for number in range(15):
            audit.plant(number, clip_norm=1.0)
            # One number for all: scores that rise and fall together.
            vector = (noise.normal() + 0.3 * noise.normal(size=6)).astype(np.float32)
            audit.observe(number, update=vector, divisor=1.0)
        (period,) = audit.periods
        (bound,) = estimate(
            period.comparable[period.present], period.comparable[~period.present], design="coin-flips",
            methods=["one-run"],
        )  # fmt: skip
        above += bound.epsilon > 0
    # At 5%, more than 21 of 200 come up in one of a thousand simulations.
    assert above <= 21


def test_a_failed_round_is_repeated_with_the_same_canaries():
    scores = []
    for failures in (0, 2):
        settings = DesignSettings(iterations=5, learning_rate=0.02)
        audit = Canife(
            canaries=designed(2, settings=settings, start="last"), rounds=4, every=2, trials=4, mode="running"
        )
        for round in range(4):
            for _ in range(failures):
                audit.plant(round, clip_norm=CLIP)
                audit.discard(round)
            audit.plant(round, clip_norm=CLIP)
            dim = first_axis().shape[1]
            audit.observe(round, update=np.full(dim, 0.01, dtype=np.float32), divisor=1.0)
        scores.append(audit.state()["scores"])
    np.testing.assert_array_equal(*scores)


def test_texts_are_designed_and_scored_too():
    data, pool = texts([2] * 8), texts([2] * 6, seed=3)
    made = designed(2, model=word_model(), pool=pool, clients=data)
    audit = Canife(canaries=made, rounds=2, every=2, trials=8)
    training([audit], rounds=2, data=data, module=word_model()).run()
    assert audit.result().scores.members.size + audit.result().scores.observed.size == 16
    assert made.samples.inputs.shape == (2, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "thawed"}, "frozen or running"),
        ({"trials": 1}, "at least 2"),
        ({"mode": "running", "trials": 7}, "trials must be at most 6"),
    ],
)
def test_bad_arguments_raise_an_error(changes, message):
    settings = {"canaries": GivenUpdates(np.eye(1, 5)), "rounds": 6, "every": 2, "trials": 4}
    with pytest.raises(InputError, match=message):
        Canife(**(settings | changes))


def test_mistakes_of_a_custom_training_loop_are_explained():
    audit = Canife(canaries=GivenUpdates(np.eye(1, 5)), rounds=4, every=2, trials=3)
    vector = np.zeros(5, dtype=np.float32)
    with pytest.raises(InputError, match="scores are missing"):
        audit.result()
    with pytest.raises(InputError, match="call plant first"):
        audit.observe(0, update=vector, trial=0, divisor=1.0)
    with pytest.raises(InputError, match="clip norm"):
        audit.plant(0, clip_norm=math.inf, trial=0)
    with pytest.raises(InputError, match="3 frozen rounds"):
        audit.plant(1, clip_norm=1.0, trial=0)
    audit.plant(0, clip_norm=1.0, trial=0)
    with pytest.raises(InputError, match="divisor"):
        audit.observe(0, update=vector, trial=0)
    with pytest.raises(InputError, match="must be finite"):
        audit.observe(0, update=vector + np.float32(np.nan), trial=0, divisor=1.0)
    with pytest.raises(InputError, match="not zero"):
        GivenUpdates(np.zeros((1, 5)))
    made = designed()
    with pytest.raises(InputError, match="does not fit"):
        made.design(vector, clip_norm=1.0, round=0)


def test_running_adversaries_need_different_coins():
    audits = [Canife(canaries=designed(), rounds=6, every=3, trials=6, mode="running", seed=seed) for seed in (0, 0, 1)]
    with pytest.raises(InputError, match="same CANIFE canaries by the coins of seed 0"):
        training(audits[:2])
    training(audits[1:], rounds=6).run()
