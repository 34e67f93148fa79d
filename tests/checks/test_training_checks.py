"""Releases that are not what their description says: canaries left out, wrong divisors, bare numbers in no layer."""

import re

import numpy as np
import pytest
import torch

from coalmine import OneShot
from coalmine.checks.training import TrainingChecks
from coalmine.claims import Claim
from coalmine.methods.one_shot.canaries import update_canaries
from coalmine.protocol import Release

DIM, CLIENTS = 4000, 30


def audited(
    *, add=1.0, noise=1.0, scale=1.0, divisor=None, bare=None, layers=None, canaries=20, rounds=5, clients=CLIENTS
):
    """A loop that adds a share of the canaries, and releases ``scale`` times the noisy mean."""
    audit = OneShot(DIM, rounds=rounds, canaries=canaries, view="updates", participation="every-round", layers=layers)
    rng = np.random.default_rng(0)
    for t in range(rounds):
        planted = audit.plant(t, clip_norm=1.0)
        sent = rng.standard_normal((clients, DIM))
        total = np.sum(sent / np.linalg.norm(sent, axis=1, keepdims=True), axis=0) + add * planted.total
        noisy = total + noise * rng.standard_normal(DIM) * (1 if bare is None else ~bare)
        count = clients + planted.clients
        update = (scale * noisy / count).astype(np.float32)
        audit.observe(t, update=update, divisor=divisor or count)
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
    assert audit._checks._canaries()[0][0] != pytest.approx(100 if divides else 1, rel=1e-6)
    assert audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5)).findings == []


def test_canaries_that_were_never_added_are_missed():
    result = audited(add=0.0)
    (finding,) = result.findings
    assert "use a view that shows more" not in str(result)
    assert finding.check == "canaries in the releases"
    assert not finding.refutes
    assert str(finding).endswith("Did you add planted.total to the sum of the clients' updates?")


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


def test_nothing_is_said_where_canaries_would_not_show():
    """With a hundred times the noise, the share is 0 within its error whether or not canaries were added."""
    assert "canaries in the releases" not in [f.check for f in audited(add=0.0, noise=100.0).findings]


@pytest.mark.parametrize("family", ["gaussian", "hadamard"])
@pytest.mark.parametrize("added", [0.0, 1.0])
def test_the_share_of_the_canaries_has_the_stated_error(family, added):
    """The standardized error of 400 audits has a variance of at most 1, up to four standard errors of that."""
    rng, dim, errors = np.random.default_rng(0), 256, []
    for seed in range(400):
        inserted = update_canaries(family, dim=dim, count=8, seed=seed).total(np.ones(8))
        inspection = TrainingChecks(dim, 1, seed, None)
        update = added * inserted + rng.standard_normal(dim) * np.linspace(0.2, 2, dim)
        inspection.record(Release(0, "update", update.astype(np.float32), divisor=1.0), 1.0, inserted)
        weighted, precision = inspection._presence[1]
        errors.append((weighted / precision - added) * precision**0.5)
    bound = 4 / np.sqrt(400)
    assert abs(np.mean(errors)) < bound
    assert np.var(errors) < 1 + np.sqrt(2) * bound


def test_a_mean_without_its_divisor_is_named():
    (finding,) = audited(divisor=1.0).bugs
    assert finding.check == "noise on every tensor"
    assert "The update has at most 0.02" in finding.sentence
    assert re.search(r"smaller by about (49|5\d).*perhaps the sum was divided by (49|5\d)", finding.sentence)


def test_an_update_that_was_divided_twice_is_named():
    sentence = audited(scale=1 / (CLIENTS + 20)).bugs[0].sentence
    assert "smaller by the divisor, 50: perhaps the update was divided twice" in sentence


@pytest.mark.parametrize("layers", [None, [3000, 1000]])
def test_a_sum_with_a_divisor_is_a_warning(layers):
    (finding,) = audited(scale=CLIENTS + 20, layers=layers).findings
    assert finding.check == "divisor of the releases"
    assert not finding.refutes
    assert "look like sums that were not divided by 50." in finding.sentence


def test_models_that_are_given_as_updates_are_a_possible_reason():
    (finding,) = audited(scale=8.0).findings
    assert not finding.refutes
    assert "or these are models." in finding.sentence


@pytest.mark.parametrize("canaries", [60, 100])
def test_a_divisor_that_forgets_the_canaries_is_named(canaries):
    """Divided by the 30 clients alone: canaries show up as larger."""
    (finding,) = audited(scale=(CLIENTS + canaries) / CLIENTS, canaries=canaries, rounds=40).findings
    assert finding.check == "divisor of the releases"
    assert not finding.refutes
    assert re.search(r"perhaps the sum was divided by (29|3[01])\b", finding.sentence)


@pytest.mark.parametrize("canaries", [10, 20, 100])
def test_a_right_divisor_is_not_blamed_for_missing_noise(canaries):
    sentences = [finding.sentence for finding in audited(noise=0.3, canaries=canaries, clients=2).findings]
    assert "The update has at most 0.3" in sentences[0]
    assert not any("divide" in sentence for sentence in sentences)


def test_the_share_of_bare_numbers_is_not_the_share_near_zero():
    """3% without noise: 11% of the numbers are within a tenth of a standard deviation, 8% by chance."""
    bare = np.random.default_rng(1).random(DIM) < 0.03
    (sentence,) = [
        f.sentence for f in audited(bare=bare, canaries=2, rounds=20, clients=1).bugs if "About" in f.sentence
    ]
    share = float(re.fullmatch(r"About (\S+)% of the coordinates of the update have next to no noise", sentence)[1])
    # Four standard errors of 8% of 2,048 sampled numbers in 20 rounds, and of how many of them are bare.
    error = np.sqrt(0.08 * 0.92 / (20 * 2048) + 0.03 * 0.97 / 2048)
    assert share == pytest.approx(100 * bare.mean(), abs=400 * error)
