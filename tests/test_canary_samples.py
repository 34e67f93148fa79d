"""Canaries made of numbers: exact derivatives, a pool without zeros, a design that does what it says."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coalmine import models
from coalmine.canaries.design import Canary, DesignSettings, step_of
from coalmine.canaries.design_loss import CovarianceLoss, DesignLoss, LikelihoodRatioLoss, MeanLoss
from coalmine.canaries.gradients_of_samples import FromLayers, TwiceBack, sample_gradients
from coalmine.canaries.pool import Pool, check_apart, pool_updates, updates
from coalmine.canaries.recorded_layers import RecordedConv2d, Standardised, Tape
from coalmine.canaries.samples import design_samples, valid_range
from coalmine.data.federated import FederatedData, Task
from coalmine.errors import InputError
from coalmine.fl import SGD, Adam, LocalTraining
from federations import cnn, federation, mlp, naive_sum

CLIENT = LocalTraining(optimiser=SGD(learning_rate=0.5))
TASK = federation([1]).task
GREY = Task(input_shape=(1, 28, 28), classes=3)
COLOUR = Task(input_shape=(3, 16, 16), classes=4)


def naive_loss(module, inputs, targets, pool, metric, clip_norm, step, constant):
    """The loss of one canary with a graph through everything, as the definition has it."""
    loss = F.cross_entropy(module(inputs[None]), targets[None])
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    b = pool @ (gradient / gradient.norm()) / clip_norm
    return b @ metric @ b + (constant - step * gradient.norm() / clip_norm).clamp(min=0) ** 2


def random_pool(module, count=7, clip_norm=0.8, dtype=torch.float32, seed=0):
    """Dense updates, and the pool that they make."""
    shapes = [p.shape for p in module.parameters() if p.requires_grad]
    dim = sum(shape.numel() for shape in shapes)
    rows = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    rows = rows * (clip_norm * 0.9 / rows.norm(dim=1, keepdim=True))
    pool = Pool.of(rows, shapes, clip_norm=clip_norm)
    if dtype == torch.float64:
        rows = rows.double()
        pool = Pool(blocks=[type(b)(b.shape, b.index, b.rows.double()) for b in pool.blocks], clip_norm=clip_norm)
    return rows, pool


def modules():
    return {
        "mlp": (mlp(), TASK),
        "cnn": (cnn(), TASK),
        "leaf": (models.build("leaf-cnn", COLOUR), COLOUR),
        "ldp": (
            models.build("ldp-cnn", Task(input_shape=(1, 28, 28), classes=3)),
            Task(input_shape=(1, 28, 28), classes=3),
        ),
        "resnet": (small_resnet(), COLOUR),
    }


def small_resnet():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False),
        nn.GroupNorm(4, 8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.GroupNorm(8, 16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, stride=2, padding=1, bias=False),
        nn.GELU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


@pytest.mark.parametrize("name", ["mlp", "cnn", "leaf", "ldp", "resnet"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_both_ways_give_the_naive_derivative(name, dtype, tolerance):
    module, task = modules()[name]
    module = module.to(dtype)
    draw = torch.Generator().manual_seed(1)
    inputs = torch.rand(3, *task.input_shape, generator=draw).to(dtype)
    targets = torch.tensor([0, 2, 1])
    dense, pool = random_pool(module, dtype=dtype)
    for ways in (TwiceBack(module), FromLayers(module, inputs, targets)):
        loss = DesignLoss(pool, CovarianceLoss(), step=0.01, norm_constant=5.0, boxes=[()] * len(pool.blocks))
        leaf = inputs.clone().requires_grad_()
        rows = ways.of(leaf, targets)
        rows = [_whole(some, box, block.shape) for some, box, block in zip(rows, ways.boxes, pool.blocks, strict=True)]
        valued = loss.derivative([some.detach() for some in rows])
        found = torch.autograd.grad(rows, leaf, valued.derivatives)[0]
        metric = CovarianceLoss().metric(pool).to(dtype)
        for i in range(3):
            one = inputs[i].clone().requires_grad_()
            value = naive_loss(module, one, targets[i], dense, metric, 0.8, 0.01, 5.0)
            expected = torch.autograd.grad(value, one)[0]
            assert float(valued.losses[i]) == pytest.approx(float(value.detach()), rel=tolerance)
            assert (found[i] - expected).abs().max() <= tolerance * expected.abs().max()


def _whole(rows, box, shape):
    whole = torch.zeros(len(rows), *shape, dtype=rows.dtype)
    whole[(slice(None), *box)] = rows
    return whole


@pytest.mark.parametrize("loss", [MeanLoss(), CovarianceLoss(), LikelihoodRatioLoss(noise_multiplier=0.3, cohort=10)])
def test_the_closed_form_is_the_derivative_of_each_loss(loss):
    rows, pool = random_pool(mlp(), dtype=torch.float64)
    metric, step, constant = loss.metric(pool), 0.3, 2.0
    gradient = torch.randn(4, rows.shape[1], dtype=torch.float64).mul_(torch.tensor([[0.01], [0.1], [1], [10]]))
    gradient.requires_grad_()
    b = gradient / gradient.norm(dim=1, keepdim=True) @ rows.T / 0.8
    short = (constant - step * gradient.norm(dim=1) / 0.8).clamp(min=0)
    expected = ((b @ metric) * b).sum(1) + short**2
    by_gradient = torch.autograd.grad(expected.sum(), gradient)[0]
    shapes = [block.shape for block in pool.blocks]
    pieces = [
        p.unflatten(1, s) for p, s in zip(gradient.detach().split([s.numel() for s in shapes], 1), shapes, strict=True)
    ]
    found = DesignLoss(pool, loss, step=step, norm_constant=constant, boxes=[()] * len(shapes)).derivative(pieces)
    torch.testing.assert_close(found.losses, expected.detach(), rtol=1e-9, atol=0)
    torch.testing.assert_close(
        torch.cat([v.flatten(1) for v in found.derivatives], 1), by_gradient, rtol=1e-9, atol=1e-14
    )


def test_the_likelihood_ratio_loss_is_what_the_noise_and_the_pool_leave_of_the_separation():
    rows, pool = random_pool(mlp(), dtype=torch.float64)
    g = torch.randn(rows.shape[1], dtype=torch.float64)
    g /= g.norm()
    loss = LikelihoodRatioLoss(noise_multiplier=0.2, cohort=30)
    b = rows @ g / 0.8
    lost = b @ loss.metric(pool) @ b
    covariance = 30 / len(rows) * rows.T @ rows / 0.8**2 + 0.2**2 * torch.eye(len(g), dtype=torch.float64)
    assert float(1 - lost) == pytest.approx(float(0.2**2 * g @ torch.linalg.solve(covariance, g)), rel=1e-9)


def test_a_canary_without_a_gradient_stays_where_it_is():
    _, pool = random_pool(mlp())
    loss = DesignLoss(pool, CovarianceLoss(), step=1.0, norm_constant=1.0, boxes=[()] * len(pool.blocks))
    found = loss.derivative([torch.zeros(1, *block.shape) for block in pool.blocks])
    assert found.losses.tolist() == [1.0]
    assert not any(bool(v.any()) for v in found.derivatives)


@given(
    side=st.integers(1, 6),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
)
def test_a_cropped_convolution_is_the_whole_one(side, kernel, stride, padding, dilation):
    if side + 2 * padding < dilation * (kernel - 1) + 1 or padding >= dilation * (kernel - 1) + 1 + side:
        return
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, kernel, stride=stride, padding=padding, dilation=dilation).double()
    images = torch.randn(2, 2, side, side, dtype=torch.float64)
    tape = Tape()
    mine = RecordedConv2d(copy.deepcopy(layer), tape)
    expected, deltas = layer(images), torch.randn_like(layer(images))
    torch.testing.assert_close(mine(images), expected)
    found = tape.uses[0].gradients(deltas, 2)
    for i in range(2):
        weight, bias = torch.autograd.grad((layer(images[i : i + 1]) * deltas[i]).sum(), [layer.weight, layer.bias])
        whole = torch.zeros_like(weight)
        whole[(slice(None), slice(None), *mine.taps)] = found[0][i]
        torch.testing.assert_close(whole, weight)
        torch.testing.assert_close(found[1][i], bias)


def test_standardised_rows_can_be_differentiated_twice():
    rows = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r: Standardised.apply(r, 1e-5), rows)
    assert torch.autograd.gradgradcheck(lambda r: Standardised.apply(r, 1e-5), rows)


def test_the_way_by_layers_is_taken_where_it_holds():
    inputs, targets = torch.rand(2, *COLOUR.input_shape), torch.tensor([0, 1])
    assert isinstance(sample_gradients(small_resnet(), inputs, targets), FromLayers)
    assert isinstance(sample_gradients(models.build("leaf-cnn", COLOUR), inputs, targets), FromLayers)


class UsesItsWeightTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        hidden = torch.tanh(self.layer(images.flatten(1)))
        return self.head(torch.tanh(hidden @ self.layer.weight))


class MixesItsBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        rows = images.flatten(1)
        return self.head(torch.tanh(rows - rows.mean(0)) + rows)


@pytest.mark.parametrize("module", [UsesItsWeightTwice(), MixesItsBatch()])
def test_modules_that_layers_do_not_explain_take_the_general_way(module):
    inputs = torch.rand(2, *TASK.input_shape)
    assert isinstance(sample_gradients(module, inputs, torch.tensor([0, 1])), TwiceBack)


def test_frozen_parameters_have_no_part_in_the_design():
    module = cnn()
    module[0].weight.requires_grad_(False)
    data = federation([4] * 6)
    pool = pool_updates(module, data, CLIENT, 1.0)
    assert pool.dim == sum(p.numel() for p in module.parameters() if p.requires_grad)
    design = design_samples(module, pool, task=data.task, client=CLIENT, settings=DesignSettings(iterations=20))
    assert design.way == "FromLayers"
    assert design.canaries[0].health > 0


def test_pool_updates_are_what_clients_send():
    data = federation([3, 5, 1, 4])
    training = LocalTraining(optimiser=SGD(learning_rate=0.5), epochs=2, batch_size=2)
    pool = pool_updates(cnn(), data, training, 0.05)
    found = pool.combined(torch.ones(1, 4))[0]
    expected = torch.stack(list(updates(cnn(), data, training, 0.05))).double().sum(0)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-6)
    assert torch.linalg.vector_norm(pool.gram.diagonal().sqrt(), math.inf) <= 0.05
    one = data.subset([1])
    exact, _ = naive_sum(cnn(), one, CLIENT, lambda p: torch.optim.SGD(p, lr=0.5), 0.05)
    sent = next(updates(cnn(), one, CLIENT, 0.05))
    torch.testing.assert_close(sent.double(), exact, atol=2e-6, rtol=1e-3)


def test_columns_that_no_client_touches_are_left_out_exactly():
    module, data = small_resnet(), federation([2] * 5, shape=(3, 16, 16), classes=4)
    pool = pool_updates(module, data, CLIENT, 1.0)
    dense = torch.stack(list(updates(module, data, CLIENT, 1.0)))
    assert pool.bytes < 0.75 * dense.nbytes
    vectors = torch.randn(3, pool.dim)
    torch.testing.assert_close(pool.dots(vectors), vectors.double() @ dense.double().T)
    torch.testing.assert_close(pool.gram, dense.double() @ dense.double().T)
    weights = torch.randn(2, len(pool))
    torch.testing.assert_close(pool.combined(weights), weights.double() @ dense.double())


def test_design_makes_the_canary_orthogonal_to_new_clients():
    data = federation([8] * 60, learnable=True)
    pool = pool_updates(mlp(), data.subset(np.arange(30)), CLIENT, 0.1, clients=data.subset(np.arange(30, 60)))
    others = torch.stack(list(updates(mlp(), data.subset(np.arange(30, 60)), CLIENT, 0.1)))
    kwargs = {"task": data.task, "client": CLIENT, "count": 3, "valid": (-0.5, 0.5), "seed": 1}
    design = design_samples(mlp(), pool, settings=DesignSettings(iterations=150), **kwargs)
    start = design_samples(mlp(), pool, settings=DesignSettings(iterations=0), **kwargs)

    def stirred(made):
        sent = torch.stack(list(updates(mlp(), made.clients, CLIENT, 0.1)))
        return float((sent / sent.norm(dim=1, keepdim=True) @ others.T).square().mean())

    assert all(canary.health > 0.5 for canary in design.canaries)
    assert stirred(design) < 0.5 * stirred(start)
    assert [c.loss for c in design.canaries] == sorted(c.loss for c in design.canaries)
    assert all(np.abs(c.inputs).max() <= 0.5 for c in design.canaries)


def test_a_canarys_loss_is_that_of_what_its_client_sends():
    data = federation([4] * 8)
    pool = pool_updates(cnn(), data, CLIENT, 0.3)
    settings = DesignSettings(iterations=10, loss=CovarianceLoss())
    design = design_samples(cnn(), pool, task=data.task, client=CLIENT, settings=settings)
    (canary,) = design.canaries
    sent = next(updates(cnn(), design.clients, CLIENT, 1e6)).double()
    b = pool.dots(sent[None] / sent.norm())[0] / 0.3
    norm = float(sent.norm()) / 0.3
    assert canary.norm == pytest.approx(norm, rel=1e-4)
    assert canary.loss == pytest.approx(float(b.square().mean()) + max(1 - norm, 0) ** 2, rel=1e-3)


def test_canaries_of_a_batch_are_those_designed_alone():
    data = federation([4] * 8)
    pool, start = pool_updates(cnn(), data, CLIENT, 0.3), data.client(0)
    kwargs = {
        "task": data.task,
        "client": CLIENT,
        "settings": DesignSettings(iterations=15),
        "start": start,
        "valid": None,
    }
    together = design_samples(cnn(), pool, count=4, **kwargs)
    assert together.losses.shape == (15, 4)
    by_loss = {round(c.initial_loss, 6): c for c in together.canaries}
    alone = design_samples(cnn(), pool, count=1, **kwargs)
    match = by_loss[round(alone.canaries[0].initial_loss, 6)]
    np.testing.assert_allclose(match.inputs, alone.canaries[0].inputs, atol=2e-3)


def test_the_same_seed_gives_the_same_canaries():
    data = federation([4] * 4)
    pool = pool_updates(mlp(), data, CLIENT, 0.3)
    kwargs = {"task": data.task, "client": CLIENT, "settings": DesignSettings(iterations=5), "count": 2}
    first, again, other = (design_samples(mlp(), pool, seed=seed, **kwargs) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.canaries[0].inputs, again.canaries[0].inputs)
    assert not np.array_equal(first.canaries[0].inputs, other.canaries[0].inputs)


def test_the_best_class_is_no_worse_than_any_chosen_one():
    data = federation([4] * 6)
    pool = pool_updates(mlp(), data, CLIENT, 0.3)
    kwargs = {"task": data.task, "client": CLIENT, "settings": DesignSettings(iterations=0)}
    best = design_samples(mlp(), pool, target="best", **kwargs).canaries[0]
    losses = [design_samples(mlp(), pool, target=label, **kwargs).canaries[0].loss for label in range(3)]
    assert best.loss == pytest.approx(min(losses), rel=1e-6)
    assert int(best.targets) == int(np.argmin(losses))


def test_design_stops_where_nothing_improves():
    data = federation([4] * 4)
    pool = pool_updates(mlp(), data, CLIENT, 0.3)
    settings = DesignSettings(iterations=400, learning_rate=1e-9, schedule="constant", patience=7)
    design = design_samples(mlp(), pool, task=data.task, client=CLIENT, settings=settings)
    assert design.iterations == 8


def test_a_larger_learning_rate_of_the_client_makes_a_longer_canary():
    data = federation([4] * 4)
    pool = pool_updates(mlp(), data, CLIENT, 0.3)
    kwargs = {"task": data.task, "settings": DesignSettings(iterations=0)}
    norms = [
        design_samples(mlp(), pool, client=LocalTraining(optimiser=SGD(learning_rate=rate)), **kwargs).canaries[0].norm
        for rate in (0.1, 0.3)
    ]
    assert norms[1] == pytest.approx(3 * norms[0], rel=1e-4)
    assert step_of(LocalTraining(optimiser=SGD(learning_rate=0.2), epochs=5, batch_size=4)) == pytest.approx(1.0)


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
    pool = pool_updates(module, data, CLIENT, 0.3)
    settings = DesignSettings(iterations=100, learning_rate=0.02, schedule="constant", norm_constant=100.0)
    design = design_samples(module, pool, task=data.task, client=CLIENT, settings=settings, valid=None)
    assert design.not_finite is not None
    assert design.iterations == design.not_finite < 100
    (canary,) = design.canaries
    assert math.isfinite(canary.loss)
    assert canary.loss == pytest.approx(np.nanmin(design.losses), rel=1e-4)
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
    pools = [pool_updates(module, data, CLIENT, 0.3) for module in (mlp(), mlp().double())]
    single, double = (
        design_samples(module, pool, task=data.task, client=CLIENT, settings=DesignSettings(iterations=5))
        for module, pool in zip((mlp(), mlp().double()), pools, strict=True)
    )
    np.testing.assert_allclose(single.canaries[0].inputs, double.canaries[0].inputs, atol=1e-4)


def test_health_is_the_share_of_the_loss_taken_away():
    sample = np.zeros(1)
    assert Canary(inputs=sample, targets=sample, loss=0.5, initial_loss=2.0, norm=1.0).health == 0.75
    assert Canary(inputs=sample, targets=sample, loss=0.0, initial_loss=0.0, norm=1.0).health == 1.0


def test_batch_norm_is_refused_with_the_remedy():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    with pytest.raises(InputError, match=r"GroupNorm"):
        pool_updates(module, federation([2]), CLIENT, 1.0)
    with pytest.raises(InputError, match=r"GroupNorm"):
        sample_gradients(module, torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))


def test_a_model_without_trainable_parameters_is_refused():
    module = mlp().requires_grad_(False)
    with pytest.raises(InputError, match="no trainable parameters"):
        pool_updates(module, federation([2]), CLIENT, 1.0)


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


@pytest.mark.parametrize("module", [IgnoresItsInput(), Rounds()])
def test_inputs_that_cannot_be_differentiated_are_refused(module):
    data = federation([2, 2])
    pool = pool_updates(module, data, CLIENT, 1.0)
    with pytest.raises(InputError, match="cannot be differentiated by its inputs"):
        design_samples(module, pool, task=data.task, client=CLIENT)


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
        pool_updates(Silent(), data, CLIENT, 1.0)


def test_an_empty_pool_is_refused():
    with pytest.raises(InputError, match="the design pool is empty"):
        Pool.of([], [(3, 2)], clip_norm=1.0)


def test_updates_that_were_not_clipped_are_refused():
    with pytest.raises(InputError, match=r"update 1 of the pool has norm 1\.5"):
        Pool.of([torch.tensor([0.5, 0.0]), torch.tensor([1.5, 0.0])], [(2,)], clip_norm=1.0)
    with pytest.raises(InputError, match="update 0 of the pool has norm nan"):
        Pool.of([torch.tensor([math.nan, 0.0])], [(2,)], clip_norm=1.0)


def test_a_pool_that_shares_clients_is_refused():
    data = federation([4] * 6)
    with pytest.raises(InputError, match=r"4 of 12 examples of the design pool"):
        check_apart(data.subset([0, 1, 2]), data.subset([2, 3, 4]))
    with pytest.raises(InputError, match="set users aside"):
        pool_updates(mlp(), data, CLIENT, 1.0, clients=data)
    check_apart(data.subset([0, 1, 2]), data.subset([3, 4, 5]))
    check_apart(data, federation([4] * 6, seed=1))


def test_a_pool_of_another_model_is_refused():
    data = federation([2, 2])
    _, pool = random_pool(mlp(classes=4))
    with pytest.raises(InputError, match="another model"):
        design_samples(mlp(), pool, task=data.task, client=CLIENT)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"target": 3}, r"a class in 0\.\.2"),
        ({"target": "worst"}, "random or best"),
        ({"valid": (1.0, 0.0)}, "valid must be a range"),
        ({"count": 0}, "count must be"),
        ({"count": 9, "start": federation([4]).client(0)}, "9 canaries cannot start from 4"),
        ({"client": LocalTraining(optimiser=Adam(learning_rate=0.1))}, "with SGD"),
        ({"task": Task(input_shape=(5,), classes=3, tokens=9)}, "design_texts"),
    ],
)
def test_what_makes_no_sense_is_refused(kwargs, message):
    _, pool = random_pool(mlp())
    with pytest.raises(InputError, match=message):
        design_samples(mlp(), pool, **({"task": TASK, "client": CLIENT} | kwargs))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": -1}, "iterations"),
        ({"norm_constant": -1}, "norm_constant"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"schedule": "linear"}, "cosine or constant"),
        ({"tolerance": 1}, "tolerance"),
        ({"loss": "covariance"}, r"CovarianceLoss\(\)"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        DesignSettings(**settings)
