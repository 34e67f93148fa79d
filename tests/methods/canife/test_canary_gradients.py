"""Derivatives of the design loss: every way gives what the definition gives."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from canary_models import random_pool, small_resnet
from coalmine.methods.canife.design.loss import CovarianceLoss, DesignLoss, LikelihoodRatioLoss, MeanLoss
from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.per_sample_gradients import FromLayers, TwiceBack, sample_gradients
from coalmine.methods.canife.per_sample_gradients.recorded_layers import RecordedConv2d, Standardized, Tape
from coalmine.simulation import SGD, LocalTraining, models
from coalmine.simulation.data.federated import Task
from federations import cnn, federation, mlp

CLIENT = LocalTraining(optimizer=SGD(learning_rate=0.5))
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


def test_the_derivative_stays_exact_where_all_updates_are_alike():
    draw = torch.Generator().manual_seed(0)
    common, own = torch.randn(1, 300_000, generator=draw), torch.randn(9, 300_000, generator=draw)
    rows = common + 0.03 * own
    rows *= 0.7 / rows.norm(dim=1, keepdim=True)
    gradient = common + 0.03 * torch.randn(1, 300_000, generator=draw)
    found = []
    for dtype in (torch.float32, torch.float64):
        pool = Pool(blocks=[Block(torch.Size([300_000]), (), rows.to(dtype))], clip_norm=0.8)
        loss = DesignLoss(pool, CovarianceLoss(), step=1.0, norm_constant=1.0, boxes=[()])
        found.append(loss.derivative([gradient.to(dtype)]).derivatives[0].double())
    assert (found[0] - found[1]).norm() < 1e-4 * found[1].norm()
    along = gradient.double() / gradient.double().norm()
    assert abs(float((found[0] * along).sum())) < 1e-5 * float(found[0].norm())


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


def test_standardized_rows_can_be_differentiated_twice():
    rows = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r: Standardized.apply(r, 1e-5), rows)
    assert torch.autograd.gradgradcheck(lambda r: Standardized.apply(r, 1e-5), rows)


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
