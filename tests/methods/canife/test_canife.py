"""The CANIFE audit: coins, frozen and running rounds, what is left behind (nothing), figures and their limits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from coalmine import accounting
from coalmine.accounting.sampling import AtMost, EveryRound, FixedSize, Poisson
from coalmine.errors import InputError
from coalmine.methods.canife import designed
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import GivenUpdates, looked_at_apart
from coalmine.methods.canife.design.loop import DesignSettings
from coalmine.methods.canife.designed_canaries import DesignedCanaries
from coalmine.methods.canife.result import canife_result, compose
from coalmine.methods.canife.round_estimates import Period, rate_ceiling, round_estimate
from coalmine.protocol import Release
from coalmine.simulation import (
    SGD,
    Adam,
    FixedClipping,
    LocalTraining,
    Mechanism,
    PoissonCohorts,
    Training,
    WeightsBySize,
)
from coalmine.simulation.data.federated import FederatedData
from coalmine.stats import estimate
from federations import federation, mlp, texts, word_model

SHAPE, CLIP = (1, 4, 4), 0.5
CLIENT = LocalTraining(optimizer=SGD(learning_rate=0.5))
DATA = federation([2] * 12, shape=SHAPE, learnable=True)
POOL = federation([2] * 8, shape=SHAPE, seed=5, learnable=True)


def model():
    return mlp(shape=SHAPE)


def maker(count=1, iterations=4, **changes):
    settings = {
        "model": model(),
        "pool": POOL,
        "client": CLIENT,
        "noise_multiplier": 0.5,
        "cohort": 6,
        "clients": DATA,
        "count": count,
        "settings": DesignSettings(iterations=iterations),
    }
    return DesignedCanaries(**(settings | changes))


def training(audits=(), rounds=6, noise=0.5, data=DATA, module=None, seed=0):
    return Training(
        model=module or model(),
        data=data,
        rounds=rounds,
        cohorts=PoissonCohorts(0.5),
        client=CLIENT,
        mechanism=Mechanism(clipping=FixedClipping(CLIP), noise_multiplier=noise),
        audits=audits,
        seed=seed,
    )


def silent():
    """Clients whose first pixel is dark: the first weight never moves, and is free for a perfect canary."""
    inputs = DATA.inputs.copy()
    inputs[:, 0, 0, 0] = 0
    return FederatedData(inputs=inputs, targets=DATA.targets, bounds=DATA.bounds, names=DATA.names, task=DATA.task)


def first_axis(count=1):
    """The update that only moves the first weight (of each of the first ``count`` hidden units)."""
    dim = sum(p.numel() for p in model().parameters())
    found = np.zeros((count, dim))
    found[np.arange(count), np.arange(count) * 16] = 1
    return found


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
        found = audit.result(delta=delta, confidence=0.999, noise_multiplier=1.0)
        exact = accounting.round_epsilon(noise_multiplier=1.0, delta=delta)
        assert found.theory.epsilon == exact
        assert found["gaussian-shift"].lower < exact < found["gaussian-shift"].upper
        assert found["gaussian-fit"].lower < exact < found["gaussian-fit"].upper
        assert 0 < found.bound.epsilon < exact
        assert found["gdp"].epsilon < exact
        assert not found.refuted
    # At δ = 0.01 rates see where the Gaussian mechanism is worst; at 1e-5 that is out of their reach.
    assert found["best-threshold"].lower < exact < found["best-threshold"].upper


def test_several_perfect_canaries_are_as_good_as_several_trials():
    audit = Canife(canaries=GivenUpdates(first_axis(8)), rounds=1, every=1, trials=50)
    training([audit], rounds=1, noise=1.0, data=silent()).run()
    found, exact = audit.result(noise_multiplier=1.0), accounting.round_epsilon(noise_multiplier=1.0, delta=1e-5)
    assert found.scores.members.size + found.scores.observed.size == 400
    assert found["gaussian-shift"].lower < exact < found["gaussian-shift"].upper
    assert found.bound.method == "one-run"


def test_a_designed_canary_is_seen_in_frozen_rounds_and_the_model_moves_on():
    audit = Canife(canaries=maker(iterations=30), rounds=6, every=3, trials=40)
    run = training([audit], noise=0.2)
    run.run()
    found = audit.result(noise_multiplier=0.2, theory=run.theory(1e-5))
    assert [(p.round, p.rounds) for p in found.periods] == [(0, 3), (3, 3)]
    # Guessing blindly is right in half of 40 trials, and in 32 of them once in 10,000 times.
    assert all(p.accuracy > 0.8 for p in found.periods)
    assert all(0 < p.bound.epsilon <= p.ceiling for p in found.periods)
    assert list(found.designs) == [0, 3]
    assert found.designs[0] != found.designs[3]
    assert found.theory.rounds == 1
    assert found.training.rounds == 6
    assert not found.refuted


def test_coins_are_fair_do_not_alternate_and_are_each_canarys_own():
    audit = Canife(canaries=GivenUpdates(np.eye(2, 9)), rounds=1, every=1, trials=1000)
    (period,) = audit.periods
    # Six standard errors of 1,000 fair flips: a false alarm in fewer than 1e-8.
    assert np.abs(period.present.mean(0) - 0.5).max() < 0.095
    changes = (period.present[1:] != period.present[:-1]).mean(0)
    assert np.abs(changes - 0.5).max() < 0.095
    assert abs((period.present[:, 0] == period.present[:, 1]).mean() - 0.5) < 0.095
    other = Canife(canaries=GivenUpdates(np.eye(2, 9)), rounds=1, every=1, trials=1000, seed=1)
    assert (other.periods[0].present != period.present).any()


def test_frozen_rounds_leave_the_training_as_it_is():
    plain, audited = training(), training([Canife(canaries=maker(2), rounds=6, every=2, trials=5)])
    plain.run()
    audited.run()
    assert torch.equal(plain.state.model, audited.state.model)


def test_a_running_round_without_a_canary_is_as_if_there_were_no_audit():
    audits = (Canife(canaries=maker(), rounds=6, every=3, trials=6, mode="running", seed=seed) for seed in range(50))
    audit = next(a for a in audits if not a.periods[0].present[0, 0] and a.periods[0].present[:, 0].any())
    first = int(np.argmax(audit.periods[0].present[:, 0]))
    plain, audited = training(), training([audit])
    plain.run(until=first)
    audited.run(until=first)
    assert torch.equal(plain.state.model, audited.state.model)
    plain.run(until=first + 1)
    audited.run(until=first + 1)
    assert not torch.equal(plain.state.model, audited.state.model)


def test_the_divisor_does_not_tell_and_absent_canaries_plant_nothing():
    class Watched(Canife):
        def plant(self, round, *, clip_norm, trial=None):
            planted = super().plant(round, clip_norm=clip_norm, trial=trial)
            if trial is not None:
                seen.append((planted is None, planted.clients if planted else 0.0))
            return planted

        def observe(self, release):
            super().observe(release)
            if release.trial is not None:
                divisors.append(release.divisor)

    seen, divisors = [], []
    audit = Watched(canaries=maker(), rounds=1, every=1, trials=20)
    training([audit], rounds=1).run()
    (period,) = audit.periods
    assert [absent for absent, _ in seen] == (~period.present[:, 0]).tolist()
    assert {clients for _, clients in seen} == {0.0}
    assert set(divisors) == {6.0}


@pytest.mark.parametrize("mode", ["frozen", "running"])
def test_a_killed_run_resumes_to_the_same_bits(mode, tmp_path):
    def both():
        audit = Canife(canaries=maker(2), rounds=6, every=4, trials=6, mode=mode)
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
    other = Canife(canaries=maker(2, iterations=5), rounds=6, every=4, trials=6, mode=mode)
    with pytest.raises(InputError, match="audits"):
        training([other]).run(checkpoints=tmp_path)


def test_running_canaries_of_an_untrained_model_are_renewed_early():
    assert list(Canife(canaries=maker(), rounds=25, every=10, trials=5, mode="running").facts) == [0, 2, 10, 20]
    assert list(Canife(canaries=maker(), rounds=2, every=2, trials=2, mode="running").facts) == [0]
    assert list(Canife(canaries=maker(), rounds=25, every=10, trials=5).facts) == [0, 10, 20]


def test_running_rounds_are_cut_into_estimates_and_the_last_takes_the_rest():
    audit = Canife(canaries=maker(3), rounds=11, every=4, trials=5, mode="running")
    training([audit], rounds=11).run()
    found = audit.result()
    assert [(p.round, p.rounds) for p in found.periods] == [(0, 5), (5, 6)]
    assert sum(p.with_canary[0] + p.without_canary[0] for p in found.periods) == 33
    assert len(found.designs) == 3


def test_only_what_needs_no_independence_is_valid_where_scores_share_rounds():
    draw = np.random.default_rng(0)
    present = draw.random((60, 1)) < 0.5
    period = Period(0, 5, present + draw.normal(0, 0.3, present.shape), present, np.full(present.shape, 0.3))
    alone = round_estimate(period, independent=True, delta=1e-5, confidence=0.95)
    shared = round_estimate(period, independent=False, delta=1e-5, confidence=0.95)
    assert [e.method for e in alone.estimates if e.valid] == ["simultaneous", "one-run"]
    assert [e.method for e in shared.estimates if e.valid] == ["one-run"]
    for method in ("simultaneous", "gdp"):
        assert "not so here" in next(e.assumes for e in shared.estimates if e.method == method)
        assert "not so here" not in next(e.assumes for e in alone.estimates if e.method == method)


def test_trials_that_tell_little_do_not_drown_those_that_tell_much():
    draw = np.random.default_rng(0)
    present, sigma = draw.random((200, 1)) < 0.5, np.where(np.arange(200) < 60, 0.3, 20.0)[:, None]
    period = Period(0, 5, present + sigma * draw.standard_normal((200, 1)), present, sigma)
    weighed = round_estimate(period, independent=False, delta=1e-5, confidence=0.95)
    raw = round_estimate(replace(period, sigma=np.ones((200, 1))), independent=False, delta=1e-5, confidence=0.95)
    assert weighed.bound.epsilon > 1 > 3 * raw.bound.epsilon
    assert period.faded
    same = replace(period, sigma=np.full((200, 1), 0.3))
    assert np.allclose(same.comparable, same.scores)
    certain = replace(period, sigma=np.where(np.arange(200) < 60, 0.0, 1.0)[:, None])
    assert np.array_equal(certain.comparable, certain.scores)
    assert not same.faded


def figures(scores, present, **changes):
    values = np.asarray(scores, dtype=float)[:, None]
    period = Period(0, 10, values, np.asarray(present)[:, None], np.full_like(values, np.nan))
    terms = {
        "independent": True, "view": "frozen", "seed": 0, "delta": 1e-5, "confidence": 0.95, "noise_multiplier": 1.0,
        "sampling": None, "training": None, "facts": {}, "canaries": [], "arrays": {}, "metrics": {},
        "timing": {}, "config": {},
    }  # fmt: skip
    return canife_result([period], **(terms | changes))


PRESENT = np.arange(100) % 2 == 0


def test_so_few_scores_that_no_bound_could_exceed_0_are_warned_of():
    few, many = figures([1.0, 0.0, 1.1, 0.1], PRESENT[:4]), figures(PRESENT + np.linspace(0, 0.5, 100), PRESENT)
    assert (few.ceiling, len([w for w in few.warnings if "no bound could exceed 0" in w])) == (0, 1)
    assert not any("no bound could exceed 0" in warning for warning in many.warnings)


def test_separable_scores_reach_the_ceilings_and_no_further():
    found = figures(PRESENT + np.linspace(0, 0.1, 100), PRESENT, sampling=EveryRound())
    (period,) = found.periods
    assert period.accuracy == 1
    assert period.bound.epsilon == period.ceiling
    assert period.epsilon("best-threshold") == math.inf
    assert period.rate_ceiling == pytest.approx(math.log(50), abs=1e-4)
    assert found.epsilon_hat("best-threshold") == found.epsilon_hat("ceiling") < math.inf
    assert any("separate perfectly" in warning for warning in found.warnings)
    assert "could not exceed" in found.meaning
    assert found.to_dict()["rounds"][0]["estimates"][-1]["epsilon"] == "inf"


def test_reversed_constant_and_few_scores_are_survived():
    backwards = figures(-1.0 * PRESENT + np.linspace(0, 0.1, 100), PRESENT)
    assert backwards.bound.epsilon == backwards.periods[0].epsilon("gaussian-shift") == 0
    constant = figures(np.zeros(100), PRESENT)
    assert constant.bound.epsilon == 0
    assert constant.periods[0].epsilon("gaussian-fit") is None
    pair = figures([0.0, 1.0], [False, True])
    assert pair.bound.epsilon == 0
    assert "NaN" not in str(pair.to_dict())
    with pytest.raises(InputError, match="in all rounds or in none"):
        figures([0.0, 1.0], [True, True])


def test_one_delta_throughout():
    found = figures(PRESENT + np.random.default_rng(0).normal(0, 0.5, 100), PRESENT, delta=1e-3, sampling=EveryRound())
    assert {e.delta for e in (*found.estimates, *found.periods[0].estimates)} == {1e-3}
    assert found.theory.delta == 1e-3
    composed = accounting.compose_rounds(
        [(found.periods[0].epsilon("best-threshold"), 10)], sampling=EveryRound(), delta=1e-3
    )
    assert found.epsilon_hat("best-threshold", "exact") == composed
    audit = Canife(canaries=GivenUpdates(np.eye(1, 5)), rounds=1, every=1)
    promise = accounting.theory(noise_multiplier=1, sampling=Poisson(0.1), rounds=1, delta=1e-5)
    with pytest.raises(InputError, match=r"delta = 0\.01"):
        audit.result(delta=0.01, theory=promise)


def test_rates_cannot_exceed_the_papers_ceiling():
    assert rate_ceiling(50, 50, 0.01) == pytest.approx(3.902, abs=1e-3)
    assert rate_ceiling(50, 50, 0.0) == pytest.approx(math.log(50))


def test_a_period_without_figures_takes_those_of_its_neighbor():
    draw = np.random.default_rng(0)
    scores = PRESENT + draw.normal(0, 0.5, 100)
    terms = {"independent": True, "delta": 1e-5, "confidence": 0.95}
    told = round_estimate(Period(0, 4, scores[:, None], PRESENT[:, None], np.ones((100, 1))), **terms)
    empty = round_estimate(Period(4, 3, np.zeros((2, 1)), np.ones((2, 1), dtype=bool), np.ones((2, 1))), **terms)
    both, _ = compose([told, empty], sampling=AtMost(2), delta=1e-5)
    longer, _ = compose([replace(told, rounds=7)], sampling=AtMost(2), delta=1e-5)
    assert both == longer


def test_replacing_a_client_moves_the_sum_twice_as_far():
    found = figures(PRESENT + np.random.default_rng(0).normal(0, 1, 100), PRESENT, sampling=FixedSize(10, 100))
    noise = accounting.noise_from_round_epsilon(found.periods[0].epsilon("best-threshold"), 1e-5)
    half = accounting.theory(noise_multiplier=noise / 2, sampling=FixedSize(10, 100), rounds=10, delta=1e-5)
    assert found.epsilon_hat("best-threshold", "exact") == pytest.approx(half.epsilon, rel=1e-6)


def test_several_canaries_do_not_disturb_one_anothers_scores():
    made = maker(3)
    made.design(None, clip_norm=CLIP, round=0)
    crafted = made.crafted(None, clip_norm=CLIP)
    for present in ([True, False, False], [False, True, True], [True, True, True]):
        assert crafted.scores(crafted.total(np.array(present))) == pytest.approx(
            np.array(present, dtype=float), abs=1e-4
        )
    assert np.linalg.norm(crafted.updates, axis=1).max() <= CLIP
    assert np.linalg.norm(crafted.directions, axis=1) == pytest.approx(1, abs=1e-5)
    with pytest.raises(InputError, match="cannot be told from the others"):
        looked_at_apart(np.ones((2, 5), dtype=np.float32), np.full((2, 5), 0.2**0.5), np.ones(2))


def test_a_canary_that_the_model_has_learnt_gets_another_class_and_goes_on_from_there():
    made = maker(1, start="last", clients=None)
    made.design(None, clip_norm=CLIP, round=0)
    inputs, targets = made.samples
    assert np.linalg.norm(made.crafted(None, clip_norm=CLIP).updates) > 0.9 * CLIP
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(inputs)), torch.from_numpy(targets)).backward()
        optimizer.step()
    learnt = torch.cat([p.detach().flatten() for p in module.parameters()]).numpy()
    renewed = made.crafted(learnt, clip_norm=CLIP)
    assert made.samples[1] == (targets + 1) % 3
    assert np.array_equal(made.samples[0], inputs)
    assert np.linalg.norm(renewed.updates) > 0.9 * CLIP
    assert np.array_equal(made.crafted(learnt, clip_norm=CLIP).updates, renewed.updates)
    health = made.design(learnt, clip_norm=CLIP, round=3)[0, 0]
    again = maker(1, start="random", clients=None).design(learnt, clip_norm=CLIP, round=3)[0, 0]
    assert health != again


def test_mock_clients_are_weighed_and_need_to_know_the_cap():
    light, plain = maker(weighting=WeightsBySize(8), iterations=0), maker(iterations=0)
    for one in (light, plain):
        one.design(None, clip_norm=CLIP, round=0)
    sizes = [float(one._pool.gram.trace()) for one in (light, plain)]
    assert sizes[0] == pytest.approx(sizes[1] / 16, rel=1e-4)  # two examples of eight
    with pytest.raises(InputError, match="need a cap"):
        maker(weighting=WeightsBySize(None))


def test_the_canarys_client_is_scored_by_all_its_local_epochs():
    several = LocalTraining(optimizer=SGD(learning_rate=0.05), epochs=4)
    made = maker(client=several)
    facts = made.design(None, clip_norm=10.0, round=0)
    sent = made.crafted(None, clip_norm=10.0).updates[0]
    module = model()
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for _ in range(4):
        optimizer.zero_grad()
        inputs, targets = (torch.from_numpy(part) for part in made.samples)
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    after = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert sent == pytest.approx((after - before).numpy(), abs=1e-6)
    # The design takes four steps along the first gradient for it.
    assert facts[0, 1] * 10 == pytest.approx(np.linalg.norm(sent), rel=0.3)
    assert facts[0, 1] * 10 != pytest.approx(np.linalg.norm(sent), rel=1e-3)


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
            audit.observe(Release(number, "update", vector, divisor=1.0))
        (period,) = audit.periods
        (bound,) = estimate(
            period.comparable[period.present], period.comparable[~period.present], design="coin-flips",
            methods=["one-run"],
        )  # fmt: skip
        above += bound.epsilon > 0
    # At 5%, more than 21 of 200 come up in one of a thousand simulations.
    assert above <= 21


def test_a_client_that_comes_more_often_than_there_are_rounds_is_composed_as_the_promise_is():
    # Listed three times in a round, a client moves the sum thrice as far: that counts as nine rounds.
    exact = accounting.round_epsilon(noise_multiplier=2.0, delta=1e-5)
    known = figures(PRESENT + np.random.default_rng(0).normal(0, 1, 100), PRESENT).periods[0]
    period = replace(
        known, rounds=4, estimates=(replace(known.estimates[0], method="gdp", epsilon=exact, valid=False),)
    )
    composed, _ = compose([period], sampling=AtMost(9), delta=1e-5)
    promise = accounting.theory(noise_multiplier=2.0, sampling=AtMost(9), rounds=9, delta=1e-5)
    found = next(c.epsilon for c in composed if (c.method, c.inversion) == ("gdp", "exact"))
    assert found == pytest.approx(promise.epsilon, rel=1e-6)


def test_a_clip_norm_that_moves_after_the_design_leaves_the_expected_sigma():
    made = maker(noise_multiplier=1.0)
    made.design(None, clip_norm=CLIP, round=0)
    # As short as this everything is clipped, and a shorter norm shortens the canary, the noise and the others alike.
    made_for, shorter = (made.crafted(None, clip_norm=norm) for norm in (CLIP / 10, CLIP / 20))
    assert np.linalg.norm(shorter.updates) == pytest.approx(CLIP / 20, rel=1e-3)
    assert shorter.effective_sigma == pytest.approx(made_for.effective_sigma, rel=1e-3)
    noise = 1.0 * CLIP / 20 / shorter.signals
    assert noise < shorter.effective_sigma < 1.5 * noise


def test_a_round_that_failed_is_held_again_with_the_same_canaries():
    found = []
    for failures in (0, 2):
        settings = DesignSettings(iterations=5, learning_rate=0.02)
        audit = Canife(canaries=maker(2, settings=settings, start="last"), rounds=4, every=2, trials=4, mode="running")
        for round in range(4):
            for _ in range(failures):
                audit.plant(round, clip_norm=CLIP)
                audit.discard(round)
            audit.plant(round, clip_norm=CLIP)
            dim = first_axis().shape[1]
            audit.observe(Release(round, "update", np.full(dim, 0.01, dtype=np.float32), divisor=1.0))
        found.append(audit.arrays["scores"])
    np.testing.assert_array_equal(*found)


def test_texts_are_designed_and_scored_too():
    data, pool = texts([2] * 8), texts([2] * 6, seed=3)
    made = maker(2, model=word_model(), pool=pool, clients=data)
    audit = Canife(canaries=made, rounds=2, every=2, trials=8)
    training([audit], rounds=2, data=data, module=word_model()).run()
    assert audit.result().scores.members.size + audit.result().scores.observed.size == 16
    assert made.samples[0].shape == (2, 5)


def test_a_design_that_meets_nan_says_where_and_keeps_the_best_until_then(monkeypatch):
    real = designed.design_samples
    monkeypatch.setattr(designed, "design_samples", lambda *a, **k: replace(real(*a, **k), not_finite=3))
    audit = Canife(canaries=maker(), rounds=1, every=1, trials=20)
    training([audit], rounds=1).run()
    assert any("not finite in iteration 3" in warning for warning in audit.result().warnings)

    def hopeless(*a, **k):
        found = real(*a, **k)
        return replace(found, not_finite=1, canaries=tuple(replace(c, loss=math.nan) for c in found.canaries))

    monkeypatch.setattr(designed, "design_samples", hopeless)
    with pytest.raises(InputError, match="round 0 is not finite in iteration 1"):
        training([Canife(canaries=maker(), rounds=1, every=1, trials=2)], rounds=1).run()


def batch_norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": batch_norm()}, "GroupNorm"),
        ({"pool": None}, "the design pool is empty"),
        ({"pool": DATA}, "clients under audit"),
        ({"client": LocalTraining(optimizer=Adam(learning_rate=0.1))}, "SGD"),
        ({"score": "cosine"}, "likelihood-ratio or plain"),
        ({"start": "test"}, "random, pool or last"),
        ({"noise_multiplier": -1}, "at least 0"),
        ({"model": word_model()}, "word_model|Sequential|fit"),
    ],
)
def test_what_cannot_be_designed_for_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        maker(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "thawed"}, "frozen or running"),
        ({"every": 9}, "at most the 6 rounds"),
        ({"trials": 1}, "at least 2"),
        ({"mode": "running", "trials": 7}, "one score"),
        ({"canaries": 3}, "DesignedCanaries"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    settings = {"canaries": GivenUpdates(np.eye(1, 5)), "rounds": 6, "every": 2, "trials": 4}
    with pytest.raises(InputError, match=message):
        Canife(**(settings | changes))


def test_what_a_loop_of_ones_own_gets_wrong_is_said():
    audit = Canife(canaries=GivenUpdates(np.eye(1, 5)), rounds=4, every=2, trials=3)
    vector = np.zeros(5, dtype=np.float32)
    with pytest.raises(InputError, match="scores are missing"):
        audit.result()
    with pytest.raises(InputError, match="before it was planted"):
        audit.observe(Release(0, "update", vector, trial=0, divisor=1.0))
    with pytest.raises(InputError, match="clip norm"):
        audit.plant(0, clip_norm=math.inf, trial=0)
    with pytest.raises(InputError, match="3 frozen rounds"):
        audit.plant(1, clip_norm=1.0, trial=0)
    audit.plant(0, clip_norm=1.0, trial=0)
    with pytest.raises(InputError, match="divisor"):
        audit.observe(Release(0, "update", vector, trial=0))
    with pytest.raises(InputError, match="shape"):
        audit.observe(Release(0, "update", vector[:3], trial=0, divisor=1.0))
    with pytest.raises(InputError, match="must be finite"):
        audit.observe(Release(0, "update", vector + np.float32(np.nan), trial=0, divisor=1.0))
    with pytest.raises(InputError, match="not zero"):
        GivenUpdates(np.zeros((1, 5)))
    made = maker()
    with pytest.raises(InputError, match="does not fit"):
        made.design(vector, clip_norm=1.0, round=0)


def test_running_adversaries_need_coins_of_their_own():
    audits = [Canife(canaries=maker(), rounds=6, every=3, trials=6, mode="running", seed=seed) for seed in (0, 0, 1)]
    with pytest.raises(InputError, match="same CANIFE canaries by the coins of seed 0"):
        training(audits[:2])
    training(audits[1:], rounds=6).run()
