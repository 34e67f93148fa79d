"""Designed canaries: what their clients send, along which directions they are scored, and errors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from canary_models import CLIP, DATA, designed, small_mlp, training
from coalmine.errors import InputError
from coalmine.methods.canife import designed_canaries
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import orthogonalize_directions
from coalmine.simulation import SGD, Adam, LocalTraining
from federations import word_model


def test_several_canaries_do_not_disturb_one_anothers_scores():
    made = designed(3)
    made.design(None, clip_norm=CLIP, round=0)
    crafted = made.crafted(None, clip_norm=CLIP)
    for present in ([True, False, False], [False, True, True], [True, True, True]):
        assert crafted.scores(crafted.updates[np.array(present)].sum(axis=0)) == pytest.approx(
            np.array(present, dtype=float), abs=1e-4
        )
    assert np.linalg.norm(crafted.updates, axis=1).max() <= CLIP
    assert np.linalg.norm(crafted.directions, axis=1) == pytest.approx(1, abs=1e-5)
    with pytest.raises(InputError, match="span of the others"):
        orthogonalize_directions(np.ones((2, 5), dtype=np.float32), np.full((2, 5), 0.2**0.5), np.ones(2))


def test_a_canary_that_the_model_has_learned_gets_another_class_and_goes_on_from_there():
    made = designed(1, start="last", clients=None)
    made.design(None, clip_norm=CLIP, round=0)
    inputs, targets = made.samples.inputs, made.samples.targets
    assert np.linalg.norm(made.crafted(None, clip_norm=CLIP).updates) > 0.9 * CLIP
    module = small_mlp()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(inputs)), torch.from_numpy(targets)).backward()
        optimizer.step()
    learned = torch.cat([p.detach().flatten() for p in module.parameters()]).numpy()
    renewed = made.crafted(learned, clip_norm=CLIP)
    assert made.samples.targets == (targets + 1) % 3
    assert np.array_equal(made.samples.inputs, inputs)
    assert np.linalg.norm(renewed.updates) > 0.9 * CLIP
    assert np.array_equal(made.crafted(learned, clip_norm=CLIP).updates, renewed.updates)
    health = made.design(learned, clip_norm=CLIP, round=3)[0, 0]
    again = designed(1, start="random", clients=None).design(learned, clip_norm=CLIP, round=3)[0, 0]
    assert health != again


def test_the_canarys_client_is_scored_by_all_its_local_epochs():
    several = LocalTraining(optimizer=SGD(learning_rate=0.05), epochs=4)
    made = designed(client=several)
    facts = made.design(None, clip_norm=10.0, round=0)
    sent = made.crafted(None, clip_norm=10.0).updates[0]
    module = small_mlp()
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for _ in range(4):
        optimizer.zero_grad()
        inputs, targets = torch.from_numpy(made.samples.inputs), torch.from_numpy(made.samples.targets)
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    after = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert sent == pytest.approx((after - before).numpy(), abs=1e-6)
    # The design takes four steps along the first gradient for it.
    assert facts[0, 1] * 10 == pytest.approx(np.linalg.norm(sent), rel=0.3)
    assert facts[0, 1] * 10 != pytest.approx(np.linalg.norm(sent), rel=1e-3)


def test_a_clip_norm_that_moves_after_the_design_leaves_the_expected_sigma():
    made = designed(noise_multiplier=1.0)
    made.design(None, clip_norm=CLIP, round=0)
    # As short as this everything is clipped, and a shorter norm shortens the canary, the noise and the others alike.
    made_for, shorter = (made.crafted(None, clip_norm=norm) for norm in (CLIP / 10, CLIP / 20))
    assert np.linalg.norm(shorter.updates) == pytest.approx(CLIP / 20, rel=1e-3)
    assert shorter.effective_sigma == pytest.approx(made_for.effective_sigma, rel=1e-3)
    noise = 1.0 * CLIP / 20 / shorter.signals
    assert noise < shorter.effective_sigma < 1.5 * noise


def test_a_design_that_meets_nan_warns_with_its_iteration_and_keeps_the_best_before(monkeypatch):
    real = designed_canaries.design_samples
    monkeypatch.setattr(designed_canaries, "design_samples", lambda *a, **k: replace(real(*a, **k), not_finite=3))
    audit = Canife(canaries=designed(), rounds=1, every=1, trials=20)
    training([audit], rounds=1).run()
    assert any("not finite in iteration 3" in warning for warning in audit.result().warnings)

    def hopeless(*a, **k):
        optimized = real(*a, **k)
        return replace(optimized, not_finite=1, canaries=tuple(replace(c, loss=math.nan) for c in optimized.canaries))

    monkeypatch.setattr(designed_canaries, "design_samples", hopeless)
    with pytest.raises(InputError, match="round 0 is not finite in iteration 1"):
        training([Canife(canaries=designed(), rounds=1, every=1, trials=2)], rounds=1).run()


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
def test_bad_arguments_raise_an_error(changes, message):
    with pytest.raises(InputError, match=message):
        designed(**changes)
