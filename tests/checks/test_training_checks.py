"""What a training does after the noise refutes nothing: the canaries in a release say how large its noise must be."""

import numpy as np
import pytest
import torch

from coalmine import OneShot
from coalmine.checks.update_record import NoiseRecord
from coalmine.checks.update_shares import ShareRecord, noise_floor
from coalmine.claims import Claim
from coalmine.layers import Layers
from coalmine.methods.one_shot.canaries import update_canaries

DIM, CLIENTS = 4000, 30


def audited(
    *, add=1.0, noise=1.0, scale=1.0, divisor=None, bare=None, layers=None, canaries=20, rounds=5, clients=CLIENTS,
):  # fmt: skip
    """A loop that adds a share of the canaries, and releases ``scale`` times the noisy mean."""
    audit = OneShot(DIM, rounds=rounds, canaries=canaries, view="updates", participation="every-round", layers=layers)
    rng = np.random.default_rng(0)
    for t in range(rounds):
        planted = audit.plant(t, clip_norm=1.0)
        sent = rng.standard_normal((clients, DIM))
        total = np.sum(sent / np.linalg.norm(sent, axis=1, keepdims=True), axis=0) + add * planted.total
        noisy = total + noise * rng.standard_normal(DIM) * (1 if bare is None else ~bare)
        update = (scale * noisy / (clients + planted.clients)).astype(np.float32)
        audit.observe(t, update=update, divisor=divisor)
    return audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5))


def test_a_correct_loop_gets_no_finding():
    assert audited().findings == []
    assert audited(layers=[3000, 1000]).findings == []


@pytest.mark.parametrize("kind", ["NumPy", "torch"])
@pytest.mark.parametrize("divides", [True, False])
def test_a_loop_may_add_its_noise_to_the_canaries_in_place(kind, divides):
    """The checks still see the canaries as planted, as in a loop that makes its own sum, and find nothing."""
    audit = OneShot(
        DIM if kind == "NumPy" else torch.zeros(DIM),
        rounds=3,
        canaries=100,
        view="updates",
        participation="every-round",
    )
    rng = np.random.default_rng(0)
    for t in range(3):
        planted = audit.plant(t, clip_norm=1.0)
        noise = rng.standard_normal(DIM).astype(np.float32)
        update = planted.total
        update += noise if kind == "NumPy" else torch.from_numpy(noise)
        if divides:
            update /= 100
        audit.observe(t, update=update, divisor=100 if divides else 1)
    shares = audit._checks._shares
    assert not np.allclose(shares.products.sum(axis=1) ** 2, (shares.canaries * shares.energies).sum(axis=1))
    assert audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5)).findings == []


def test_canaries_that_were_never_added_are_missed():
    result = audited(add=0.0)
    (finding,) = result.findings
    assert "use a view that shows more" not in str(result)
    assert finding.check == "canaries in the releases"
    assert not finding.refutes
    assert "they are not in the sum that is released (planted.total" in str(finding)


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_clients_that_push_canaries_out_of_the_model_are_no_reason_to_miss_them(strength):
    """Clients with a quadratic loss undo what canaries did, so that in later rounds the sums contain none of them."""
    audit = OneShot(DIM, rounds=30, canaries=20, view="updates", participation="every-round")
    rng, model, optimum = np.random.default_rng(0), np.zeros(DIM), np.zeros(DIM)
    for t in range(30):
        planted = audit.plant(t, clip_norm=1.0)
        step = strength * (optimum - model)
        total = 100 * step / max(1.0, np.linalg.norm(step)) + planted.total + rng.standard_normal(DIM)
        update = (total / 120).astype(np.float32)
        model += update
        audit.observe(t, update=update, divisor=120.0)
    assert audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5)).findings == []


def test_canaries_that_much_more_than_the_claimed_noise_hides_refute_nothing():
    """With a hundred times the noise, the share is 0 within its error whether or not canaries were added."""
    assert not audited(noise=100.0).refuted


@pytest.mark.parametrize("family", ["gaussian", "hadamard"])
@pytest.mark.parametrize("rounds", [1, 8])
def test_the_limits_on_the_noise_hold_as_often_as_they_say(family, rounds):
    """At a level of 0.3, all limits hold together in 70% of 200 audits, up to four standard errors.

    Tensors have factors of their own, and most of the signal is the same in all rounds.
    """
    rng, layers, broken = np.random.default_rng(0), Layers.of({"a": 200, "b": 40, "c": 16}), 0
    factors = np.array([1.0, 5.0, 0.2])
    for seed in range(200):
        canaries = update_canaries(family, dim=256, count=8, seed=seed).total(np.ones(8))
        record = NoiseRecord(layers, rounds, seed)
        shares, signal = ShareRecord(record), rng.standard_normal(256) * np.linspace(0.2, 2, 256)
        for t in range(rounds):
            sent = signal + 0.5 * rng.standard_normal(256) + canaries + rng.standard_normal(256)
            update = (np.repeat(factors, layers.sizes) * sent).astype(np.float32)
            record.add(t, update, 1.0, 0.0)
            shares.add(t, update, shares.news(update, canaries), canaries)
        floor = noise_floor(shares, record, np.ones(record.bins), 0.3)
        largest = floor.weights @ factors
        broken += bool((floor.typical > factors).any() or (floor.of_round > largest).any())
    assert broken / 200 <= 0.3 + 4 * np.sqrt(0.21 / 200)


@pytest.mark.parametrize("layers", [None, [3000, 1000]])
@pytest.mark.parametrize("scale", [1e-3, 0.5, 8.0, 120.0])
def test_a_common_factor_is_no_finding_whatever_the_divisor(scale, layers):
    for divisor in (None, 1.0, CLIENTS):
        assert audited(scale=scale, divisor=divisor, layers=layers, canaries=100).findings == []


def momentum(update, state):
    state["momentum"] = 0.9 * state.get("momentum", 0.0) + update
    return state["momentum"]


def nesterov(update, state):
    return 0.9 * momentum(update, state) + update


def average(update, state):
    before = state.get("average", 0.0)
    state["model"] = state.get("model", 0.0) + update
    state["average"] = 0.99 * before + 0.01 * state["model"]
    return state["average"] - before


def adam(update, state):
    state["first"] = 0.9 * state.get("first", 0.0) + 0.1 * update
    state["second"] = 0.99 * state.get("second", 0.0) + 0.01 * update**2
    return state["first"] / (np.sqrt(state["second"]) + 1e-9)


def largest(update, _):
    return np.where(np.abs(update) >= np.quantile(np.abs(update), 0.9), update, 0.0)


AFTER = {
    "momentum": momentum,
    "Nesterov momentum": nesterov,
    "average of models": average,
    "Adam": adam,
    "the largest tenth": largest,
    "a random tenth": lambda update, state: np.where(np.random.default_rng().random(DIM) < 0.1, update, 0.0),
    "a tensor left out": lambda update, _: np.where(np.arange(DIM) < 3000, update, 0.0),
    "rate of each layer": lambda update, _: np.where(np.arange(DIM) < 3000, update, 10 * update),
    "clipped": lambda update, _: np.clip(update, -2 * np.std(update), 2 * np.std(update)),
    "signs": lambda update, _: np.sign(update),
    "four bits": lambda update, _: np.round(4 * update / np.std(update)),
    "normalized": lambda update, _: update / np.linalg.norm(update),
}


@pytest.mark.parametrize("participation", ["every-round", "poisson:0.5"])
@pytest.mark.parametrize("name", AFTER)
def test_what_happens_after_the_noise_refutes_nothing(name, participation):
    """False-alarm probability at most 0.1% each, once for this seed. All canaries take part, or half of them."""
    assert not processed(AFTER[name], participation=participation).bugs


def processed(after, *, participation="every-round", noise=lambda rng, t, state: rng.standard_normal(DIM), rounds=12):
    """A loop whose noise is on the sum, and which releases what ``after`` makes of it."""
    audit = OneShot(
        DIM, rounds=rounds, canaries=200, view="updates", participation=participation, layers=[3000, 1000]
    )  # fmt: skip
    rng, state, drawn = np.random.default_rng(0), {}, {}
    signal = 0.1 * rng.standard_normal(DIM)
    for t in range(rounds):
        planted = audit.plant(t, clip_norm=1.0)
        update = (signal + planted.total + noise(rng, t, drawn)) / 230
        audit.observe(t, update=after(update, state).astype(np.float32))
    return audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5))


def missing(rng, t, drawn):
    return np.where(np.arange(DIM) < 3000, rng.standard_normal(DIM), 0.0)


def frozen(rng, t, drawn):
    return drawn.setdefault("noise", rng.standard_normal(DIM))


@pytest.mark.parametrize("participation", ["every-round", "poisson:0.5"])
@pytest.mark.parametrize("after", [lambda update, _: 0.3 * update, momentum], ids=["a factor", "momentum"])
def test_missing_noise_is_found_whatever_happens_after_it(after, participation):
    findings = processed(after, participation=participation, noise=missing).bugs
    assert any("tensor 1" in finding.sentence for finding in findings)
    assert not any("tensor 0" in finding.sentence for finding in findings)


@pytest.mark.parametrize("participation", ["every-round", "poisson:0.5"])
def test_noise_that_repeats_is_found_by_the_canaries_or_by_the_lack_of_them(participation):
    finding = processed(lambda update, _: 0.3 * update, participation=participation, noise=frozen).bugs[0]
    assert finding.check == "fresh noise"


@pytest.mark.parametrize("canaries", [20, 100])
def test_missing_noise_has_one_cause(canaries):
    sentences = [finding.sentence for finding in audited(noise=0.3, canaries=canaries, clients=2).findings]
    assert "The update has at most 0." in sentences[0]


def test_the_share_of_bare_numbers_is_not_the_share_near_zero():
    """10% without noise: 11% of the numbers are within a tenth of a standard deviation, 8% by chance."""
    bare = np.random.default_rng(1).random(DIM) < 0.1
    result = audited(bare=bare, canaries=200, rounds=40, clients=1)
    assert any("of the coordinates of the update have next to no noise" in f.sentence for f in result.bugs)
