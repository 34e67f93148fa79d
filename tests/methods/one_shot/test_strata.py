"""Canaries in single tensors: the noise of small tensors is compared with them."""

import numpy as np
import pytest

from coalmine import OneShot
from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.layers import Layers
from coalmine.methods.one_shot.canaries import CanarySet

LAYERS = Layers.of({"fc1.weight": (60, 100), "fc1.bias": 60, "fc2.weight": (10, 60), "fc2.bias": 10, "scale": ()})


def audit_of(**settings):
    settings = {"canaries": 100, "view": "updates", "participation": "every-round", "layers": LAYERS} | settings
    return OneShot(LAYERS.dim, rounds=5, **settings)


def run(audit, aggregate, *, noise=1.0, seed=0):
    """Run rounds in which `aggregate` clips one update, of five clip norms, and the sum gets noise."""
    rng = np.random.default_rng(seed)
    for t in range(5):
        planted = audit.plant(t, clip_norm=1.0)
        total = sum(map(aggregate, planted.each(norm=5.0)), start=np.zeros(LAYERS.dim))
        update = ((total + rng.normal(0, noise, LAYERS.dim)) / 100).astype(np.float32)
        audit.observe(t, update=update, divisor=100.0)
    return audit.result(claim=Claim(noise_multiplier=noise, delta=1e-5))


def clipped(update):
    return update / max(1.0, np.linalg.norm(update))


def unclipped_bias(update):
    """Clip everything but one bias."""
    whole, bias = update.copy(), slice(6000, 6060)
    whole[bias] = 0
    whole = clipped(whole)
    whole[bias] = update[bias]
    return whole


def test_a_tensor_that_is_not_clipped_is_named_although_dense_canaries_see_nothing():
    result = run(audit_of(), unclipped_bias)
    assert not result.claim_test.refuted
    assert [bug.where for bug in result.bugs] == ["fc1.bias"]
    assert "or is not clipped" in result.bugs[0].sentence
    assert not run(audit_of(), clipped).findings  # false-alarm probability 1e-3


def test_a_fifth_of_the_canaries_lies_in_tensors_and_only_dense_ones_are_scored():
    audit = audit_of()
    result = run(audit, clipped)
    assert result.scores.members.size + result.scores.observed.size == 160
    planted = audit_of().plant(0, clip_norm=2.0)
    updates = np.stack(list(planted.each()))
    assert np.linalg.norm(updates, axis=1) == pytest.approx(2.0, rel=1e-5)
    assert updates.sum(axis=0) == pytest.approx(planted.total, abs=1e-4)
    supports = [np.count_nonzero(update) for update in updates]
    assert supports.count(LAYERS.dim) == sum(member < 160 for member in planted.members)
    assert {60, 600} <= set(supports)
    assert any(0 < support <= 11 for support in supports)  # fc2.bias and scale together


def test_few_canaries_stay_dense():
    few, plain = audit_of(canaries=20), audit_of(canaries=20, layers=None)
    assert np.array_equal(few.plant(0, clip_norm=1.0).total, plain.plant(0, clip_norm=1.0).total)


def test_canaries_of_tensors_follow_the_dense_ones():
    scale = np.linspace(0.5, 2, LAYERS.dim, dtype=np.float32)
    canaries, plain = (
        CanarySet(dim=LAYERS.dim, canaries=50, family="gaussian", design="fixed", layers=LAYERS, seed=0, scale=factors)
        for factors in (scale, None)
    )
    matrix = np.stack(list(canaries.each(range(100))))
    chosen = [0, 3, 82, 95, 99]
    assert canaries.total(chosen) == pytest.approx(matrix[chosen].sum(axis=0), abs=1e-5)
    assert not canaries.total([]).any()
    inside = np.stack(list(plain.each(range(100))))[canaries.strata[0].indices]
    assert inside @ inside.T == pytest.approx(np.eye(len(inside)), abs=1e-6)
    assert canaries.dense.count == canaries.strata[0].indices.start == 80


def test_layers_are_read_from_what_users_have():
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    assert Layers.of(module).names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    state = Layers.of(module.state_dict())
    assert "1.running_mean" in state.names
    assert "1.num_batches_tracked" not in state.names
    assert Layers.of([4, (2, 3), ()]).sizes.tolist() == [4, 6, 1]
    with pytest.raises(InputError, match="13 parameters"):
        OneShot(12, rounds=1, canaries=2, layers=[4, 9])
    with pytest.raises(InputError, match="float"):
        Layers.of(3.5)
