"""Canaries made of numbers: what a design achieves, and errors."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from canary_models import CLIENT, random_pool
from coalmine.errors import InputError
from coalmine.methods.canife.design import DesignSettings, step_size
from coalmine.methods.canife.pool import MockClients, updates
from coalmine.methods.canife.sample_gradients import sample_gradients
from coalmine.methods.canife.samples import Canary, design_samples, valid_range
from coalmine.simulation import SGD, Adam, LocalTraining
from coalmine.simulation.data.federated import FederatedData
from federations import cnn, federation, mlp

TASK = federation([1]).task


def test_frozen_parameters_have_no_part_in_the_design():
    module = cnn()
    module[0].weight.requires_grad_(False)
    data = federation([4] * 6)
    pool = MockClients(module, data, CLIENT).pool(1.0)
    assert pool.rows.shape[1] == sum(p.numel() for p in module.parameters() if p.requires_grad)
    design = design_samples(module, pool, task=data.task, client=CLIENT, settings=DesignSettings(iterations=20))
    assert design.canaries[0].health > 0


def test_design_makes_the_canary_orthogonal_to_new_clients():
    data = federation([8] * 60, learnable=True)
    pool = MockClients(mlp(), data.subset(np.arange(30)), CLIENT, clients=data.subset(np.arange(30, 60))).pool(0.1)
    others = updates(mlp(), data.subset(np.arange(30, 60)), CLIENT, 0.1)
    kwargs = {"task": data.task, "client": CLIENT, "count": 3, "valid": (-0.5, 0.5), "seed": 1}
    design = design_samples(mlp(), pool, settings=DesignSettings(iterations=150), **kwargs)
    start = design_samples(mlp(), pool, settings=DesignSettings(iterations=0), **kwargs)

    def stirred(made):
        sent = updates(mlp(), made.clients, CLIENT, 0.1)
        return float((sent / sent.norm(dim=1, keepdim=True) @ others.T).square().mean())

    assert all(canary.health > 0.5 for canary in design.canaries)
    assert stirred(design) < 0.5 * stirred(start)
    assert [c.loss for c in design.canaries] == sorted(c.loss for c in design.canaries)
    assert all(np.abs(c.inputs).max() <= 0.5 for c in design.canaries)


def test_a_canarys_loss_is_that_of_what_its_client_sends():
    data = federation([4] * 8)
    pool = MockClients(cnn(), data, CLIENT).pool(0.3)
    settings = DesignSettings(iterations=10, loss="covariance")
    design = design_samples(cnn(), pool, task=data.task, client=CLIENT, settings=settings)
    (canary,) = design.canaries
    sent = updates(cnn(), design.clients, CLIENT, 1e6)[0].double()
    b = pool.dots(sent[None] / sent.norm())[0] / 0.3
    norm = float(sent.norm()) / 0.3
    assert canary.norm == pytest.approx(norm, rel=1e-4)
    assert canary.loss == pytest.approx(float(b.square().mean()) + max(1 - norm, 0) ** 2, rel=1e-3)


def test_canaries_of_a_batch_are_those_designed_alone():
    data = federation([4] * 8)
    pool, start = MockClients(cnn(), data, CLIENT).pool(0.3), data.client(0)
    kwargs = {
        "task": data.task,
        "client": CLIENT,
        "settings": DesignSettings(iterations=15),
        "start": start,
        "valid": None,
    }
    together = design_samples(cnn(), pool, count=4, **kwargs)
    assert together.iterations == 15
    by_loss = {round(c.initial_loss, 6): c for c in together.canaries}
    alone = design_samples(cnn(), pool, count=1, **kwargs)
    match = by_loss[round(alone.canaries[0].initial_loss, 6)]
    np.testing.assert_allclose(match.inputs, alone.canaries[0].inputs, atol=2e-3)


def test_the_same_seed_gives_the_same_canaries():
    data = federation([4] * 4)
    pool = MockClients(mlp(), data, CLIENT).pool(0.3)
    kwargs = {"task": data.task, "client": CLIENT, "settings": DesignSettings(iterations=5), "count": 2}
    first, again, other = (design_samples(mlp(), pool, seed=seed, **kwargs) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.canaries[0].inputs, again.canaries[0].inputs)
    assert not np.array_equal(first.canaries[0].inputs, other.canaries[0].inputs)


def test_design_stops_where_nothing_improves():
    data = federation([4] * 4)
    pool = MockClients(mlp(), data, CLIENT).pool(0.3)
    settings = DesignSettings(iterations=400, learning_rate=1e-9, schedule="constant", patience=7)
    design = design_samples(mlp(), pool, task=data.task, client=CLIENT, settings=settings)
    assert design.iterations == 8


def test_a_larger_learning_rate_of_the_client_makes_a_longer_canary():
    data = federation([4] * 4)
    pool = MockClients(mlp(), data, CLIENT).pool(0.3)
    kwargs = {"task": data.task, "settings": DesignSettings(iterations=0)}
    norms = [
        design_samples(mlp(), pool, client=LocalTraining(optimizer=SGD(learning_rate=rate)), **kwargs).canaries[0].norm
        for rate in (0.1, 0.3)
    ]
    assert norms[1] == pytest.approx(3 * norms[0], rel=1e-4)
    assert step_size(LocalTraining(optimizer=SGD(learning_rate=0.2), epochs=5, batch_size=4)) == pytest.approx(1.0)


def test_the_norm_of_a_canary_is_that_of_what_its_client_sends_with_momentum_too():
    data = federation([4] * 4)
    for momentum in (0.0, 0.9):
        # So slow that the gradient stays what it is for all ten steps.
        client = LocalTraining(optimizer=SGD(learning_rate=1e-4, momentum=momentum), epochs=10)
        pool = MockClients(mlp(), data, client).pool(1.0)
        design = design_samples(mlp(), pool, task=data.task, client=client, settings=DesignSettings(iterations=0))
        (sent,) = updates(mlp(), design.clients, client, 1.0)
        assert design.canaries[0].norm == pytest.approx(float(sent.norm()), rel=0.01)


class Explodes(nn.Module):
    """Goes to infinity where the pixels have moved far."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        rows = images.flatten(1)
        return self.head(rows + 0 * torch.exp(rows.square().sum(1, keepdim=True) * 3))


def test_a_design_that_is_no_longer_finite_stops_and_keeps_the_best_until_then():
    torch.manual_seed(0)
    module, data = Explodes(), federation([4] * 4)
    pool = MockClients(module, data, CLIENT).pool(0.3)
    settings = DesignSettings(iterations=100, learning_rate=0.02, schedule="constant", norm_constant=100.0)
    design = design_samples(module, pool, task=data.task, client=CLIENT, settings=settings, valid=None)
    assert design.not_finite is not None
    assert design.iterations == design.not_finite < 100
    (canary,) = design.canaries
    assert math.isfinite(canary.loss)
    assert canary.loss < canary.initial_loss


def test_the_valid_range_is_that_of_pixels_or_of_the_numbers():
    data = federation([4])
    assert valid_range(data) == (float(data.inputs.min()), float(data.inputs.max()))
    pixels = FederatedData(
        inputs=np.full((1, 1, 8, 8), 7, np.uint8), targets=np.zeros(1, int), bounds=[[0, 1]], names=["a"], task=TASK
    )
    assert valid_range(pixels) == (0.0, 1.0)


def test_a_model_in_double_precision_is_designed_for_as_it_trains():
    data = federation([4] * 4)
    pools = [MockClients(module, data, CLIENT).pool(0.3) for module in (mlp(), mlp().double())]
    single, double = (
        design_samples(module, pool, task=data.task, client=CLIENT, settings=DesignSettings(iterations=5))
        for module, pool in zip((mlp(), mlp().double()), pools, strict=True)
    )
    np.testing.assert_allclose(single.canaries[0].inputs, double.canaries[0].inputs, atol=1e-4)


def test_health_is_the_share_of_the_loss_taken_away():
    sample = np.zeros(1)
    assert Canary(sample, sample, loss=0.5, initial_loss=2.0, norm=1.0).health == 0.75
    assert Canary(sample, sample, loss=0.0, initial_loss=0.0, norm=1.0).health == 1.0


def test_batch_norm_is_refused_with_the_remedy():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    with pytest.raises(InputError, match=r"GroupNorm"):
        MockClients(module, federation([2]), CLIENT).pool(1.0)
    with pytest.raises(InputError, match=r"GroupNorm"):
        sample_gradients(module, torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))


class IgnoresItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, images):
        return self.bias.expand(len(images), 3)


class Rounds(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        return self.head((images.flatten(1) > 0.5).float())


class StepsThrough(nn.Module):
    """Differentiable, with a derivative of zero; and with a weight that it never uses."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        return self.head(self.seen(images.flatten(1)))

    def seen(self, images):
        return images.round()


class WithUnusedWeights(StepsThrough):
    def seen(self, images):
        return images


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (IgnoresItsInput(), "does not depend on its inputs"),
        (Rounds(), "does not depend on its inputs, or only through whole numbers"),
        (StepsThrough(), "does not change with its inputs"),
    ],
)
def test_inputs_that_cannot_be_differentiated_are_refused(module, message):
    data = federation([2, 2])
    pool = MockClients(module, data, CLIENT).pool(1.0)
    with pytest.raises(InputError, match=message):
        design_samples(module, pool, task=data.task, client=CLIENT)


def test_samples_for_a_model_that_rounds_its_inputs_are_taken_as_they_are():
    data = federation([2, 2])
    pool = MockClients(StepsThrough(), data, CLIENT).pool(1.0)
    made = design_samples(StepsThrough(), pool, task=data.task, client=CLIENT, settings=DesignSettings(iterations=0))
    assert made.canaries[0].health == 0
    assert made.canaries[0].norm > 0


def test_weights_that_are_never_used_or_frozen_do_not_stop_a_design():
    module, data = WithUnusedWeights(), federation([2, 2])
    module.head.bias.requires_grad_(False)
    pool = MockClients(module, data, CLIENT).pool(1.0)
    made = design_samples(module, pool, task=data.task, client=CLIENT, settings=DesignSettings(iterations=20))
    assert made.canaries[0].health > 0.1


class Silent(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        return self.head(images.flatten(1)) * 0.0


def test_a_loss_without_a_gradient_is_refused():
    data = federation([2, 2])
    _, pool = random_pool(Silent())
    with pytest.raises(InputError, match="no gradient"):
        design_samples(Silent(), pool, task=data.task, client=CLIENT)
    with pytest.raises(InputError, match="every update of the design pool is zero"):
        MockClients(Silent(), data, CLIENT).pool(1.0)


def test_a_pool_of_another_model_is_refused():
    data = federation([2, 2])
    _, pool = random_pool(mlp(classes=4))
    with pytest.raises(InputError, match="another model"):
        design_samples(mlp(), pool, task=data.task, client=CLIENT)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"target": 3}, r"a class in 0\.\.2"),
        ({"target": "worst"}, "or random"),
        ({"count": 9, "start": federation([4]).client(0)}, "9 canaries cannot start from 4"),
        ({"client": LocalTraining(optimizer=Adam(learning_rate=0.1))}, "with SGD"),
    ],
)
def test_bad_arguments_raise_an_error(kwargs, message):
    _, pool = random_pool(mlp())
    with pytest.raises(InputError, match=message):
        design_samples(mlp(), pool, **({"task": TASK, "client": CLIENT} | kwargs))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": -1}, "iterations"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"loss": "variance"}, "covariance"),
    ],
)
def test_bad_settings_raise_an_error(settings, message):
    with pytest.raises(InputError, match=message):
        DesignSettings(**settings)
