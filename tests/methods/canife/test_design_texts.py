"""Canaries made of text: designed as distributions, chosen as discrete texts."""

import math

import numpy as np
import pytest
import torch

from canary_models import CLIENT, LABELED, lstm, model_and_texts
from coalmine.errors import InputError
from coalmine.methods.canife import samples
from coalmine.methods.canife.design import Descent, DesignSettings
from coalmine.methods.canife.pool import MockClients, updates
from coalmine.methods.canife.samples import design_samples
from coalmine.simulation.data.federated import FederatedData
from federations import texts


def tweets(count, seed=0):
    """Clients of three labeled texts."""
    draw = np.random.default_rng(seed)
    inputs = draw.integers(0, 13, (3 * count, 6))
    return FederatedData(
        inputs=inputs,
        targets=inputs[:, :3].sum(1) % 2,
        bounds=3 * np.stack([np.arange(count), np.arange(1, count + 1)], axis=1),
        names=[f"user-{i}" for i in range(count)],
        task=LABELED,
    )


@pytest.mark.parametrize("name", ["labeled", "characters", "tied"])
def test_a_text_is_valued_as_what_its_client_sends(name):
    module, task = model_and_texts(name)
    data = tweets(8) if name == "labeled" else texts([3] * 8, positions=6, tokens=13)
    pool = MockClients(module, data, CLIENT).pool(0.2)
    settings = DesignSettings(iterations=12, loss="covariance")
    made = design_samples(module, pool, task=task, client=CLIENT, count=2, settings=settings)
    for canary, sent in zip(made.canaries, updates(module, made.clients, CLIENT, 1e6), strict=True):
        b = pool.dots(sent[None].double() / sent.double().norm())[0] / 0.2
        norm = float(sent.double().norm()) / 0.2
        assert canary.inputs.dtype == np.int64
        assert canary.norm == pytest.approx(norm, rel=1e-3)
        assert canary.loss == pytest.approx(float(b.square().mean()) + max(1 - norm, 0) ** 2, rel=2e-3)
        assert canary.loss <= canary.initial_loss
        assert canary.health >= 0


def test_a_language_models_canary_is_one_text_without_padding():
    module, task = model_and_texts("characters")
    data = texts([3] * 8, positions=6, tokens=13)
    pool = MockClients(module, data, CLIENT).pool(0.2)
    kwargs = {"task": task, "client": CLIENT, "count": 3, "settings": DesignSettings(iterations=4)}
    for start in (None, data):
        for canary in design_samples(module, pool, start=start, **kwargs).canaries:
            assert (canary.inputs != 0).all()
            assert (canary.targets != 0).all()
            np.testing.assert_array_equal(canary.inputs[1:], canary.targets[:-1])


def test_design_makes_texts_better():
    module, task = model_and_texts("linear")
    pool = MockClients(module, texts([3] * 30, positions=6, tokens=13), CLIENT).pool(0.1)
    made = design_samples(
        module, pool, task=task, client=CLIENT, count=4, settings=DesignSettings(iterations=80, learning_rate=1.0)
    )
    assert np.mean([canary.health for canary in made.canaries]) > 0.3


def test_designing_with_several_rates_at_once_is_designing_with_each():
    task, rates, start = LABELED, (1.0, 0.25), tweets(2)
    together = samples._Texts(task, 3, start, seed=0, device=None, rates=rates)
    plain = samples._Texts(task, 3, start, seed=0, device=None, rates=(1.0,))
    for values, rate in zip(together.variable.split(3), rates, strict=True):
        alone = samples._Texts(task, 3, start, seed=0, device=None, rates=(rate,))
        torch.testing.assert_close(values, alone.variable)
        torch.testing.assert_close(values * rate, plain.variable)
    assert together.labels.tolist() == 2 * plain.labels.tolist()
    texts, _ = together.samples(together.relaxed(together.variable), together.labels)
    torch.testing.assert_close(texts.sum(-1), torch.ones(6, 6))

    # The text that the second rate found for the last of three canaries is its own.
    last = together.variable
    wanted = torch.tensor([1, 2, 3, 4, 5, 6])
    last[5] = 1000 * torch.nn.functional.one_hot(wanted, 13)
    descent = Descent(last, last, 0, None)

    def far_from_wanted(inputs, targets):
        return (inputs.argmax(-1) != wanted).sum(-1).double(), torch.ones(len(inputs))

    made = together.canaries(descent, together.labels, far_from_wanted)
    assert made[2].inputs.tolist() == wanted.tolist()
    assert made[2].loss == 0 < min(made[0].loss, made[1].loss)


def test_random_starts_differ_by_rate_and_keep_the_class():
    kind = samples._Texts(LABELED, 3, None, seed=0, device=None, rates=(1.0, 0.25))
    starts = kind.start.argmax(-1)
    assert len(starts.unique(dim=0)) == 6
    assert kind.labels[:3].tolist() == kind.labels[3:].tolist()
    alone = samples._Texts(LABELED, 3, None, seed=0, device=None, rates=(1.0,))
    assert starts[:3].tolist() == alone.start.argmax(-1).tolist()


@pytest.mark.parametrize("iterations", [0, 4])
def test_losses_are_those_of_the_best_rate(iterations):
    module, pool = lstm(), MockClients(lstm(), tweets(6), CLIENT).pool(0.05)
    kwargs = {"task": LABELED, "client": CLIENT, "count": 2}
    design = design_samples(module, pool, settings=DesignSettings(iterations=iterations), **kwargs)
    assert design.iterations == iterations


def test_a_labeled_canary_has_the_class_asked_for():
    pool = MockClients(lstm(), tweets(6), CLIENT).pool(0.05)
    made = design_samples(
        lstm(), pool, task=LABELED, client=CLIENT, count=4, target=1, settings=DesignSettings(iterations=3)
    )
    assert [int(canary.targets) for canary in made.canaries] == [1] * 4


def test_more_draws_are_never_worse(monkeypatch):
    data, module = tweets(10), lstm()
    pool = MockClients(module, data, CLIENT).pool(0.05)
    kwargs = {"task": LABELED, "client": CLIENT, "settings": DesignSettings(iterations=20)}
    losses = []
    for draws in (1, 64):
        monkeypatch.setattr(samples, "_DRAWS", draws)
        losses.append(design_samples(module, pool, **kwargs).canaries[0].loss)
    assert losses[1] <= losses[0] * (1 + 1e-6)


def test_the_same_seed_gives_the_same_texts():
    data, module = tweets(6), lstm()
    pool = MockClients(module, data, CLIENT).pool(0.05)
    kwargs = {"task": LABELED, "client": CLIENT, "count": 2, "settings": DesignSettings(iterations=6)}
    first, again = (design_samples(module, pool, seed=5, **kwargs) for _ in range(2))
    for canary, other in zip(first.canaries, again.canaries, strict=True):
        np.testing.assert_array_equal(canary.inputs, other.inputs)


def test_a_design_that_is_no_longer_finite_keeps_a_text():
    data, module = tweets(6), lstm()
    pool = MockClients(module, data, CLIENT).pool(0.05)
    broken = DesignSettings(iterations=50, learning_rate=1e30, schedule="constant")
    made = design_samples(module, pool, task=LABELED, client=CLIENT, settings=broken)
    assert math.isfinite(made.canaries[0].loss)
    assert made.canaries[0].loss <= made.canaries[0].initial_loss


def test_bad_arguments_raise_an_error():
    data = tweets(4)
    pool = MockClients(lstm(), data, CLIENT).pool(1.0)
    for kwargs, message in [
        ({"target": 2}, r"0\.\.1"),
        ({"target": "x"}, "or random"),
        ({"start": data.client(0), "count": 9}, "9 canaries cannot start from 3"),
    ]:
        with pytest.raises(InputError, match=message):
            design_samples(lstm(), pool, task=data.task, client=CLIENT, **kwargs)
