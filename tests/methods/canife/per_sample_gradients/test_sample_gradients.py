"""Per-sample gradients: the fast implementation gives what the reference and the definition give."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from canary_models import model_and_texts, random_pool, small_resnet
from coalmine.errors import InputError
from coalmine.methods.canife.design.loss import CovarianceLoss, DesignLoss
from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.per_sample_gradients import DoubleBackward, LayerwiseGradients, sample_gradients
from coalmine.simulation import models
from coalmine.simulation.data.federated import Task
from federations import cnn, federation, mlp

TASK = federation([1]).task
COLOR = Task(input_shape=(3, 16, 16), classes=4)


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
        "leaf": (models.build("leaf-cnn", COLOR), COLOR),
        "ldp": (
            models.build("ldp-cnn", Task(input_shape=(1, 28, 28), classes=3)),
            Task(input_shape=(1, 28, 28), classes=3),
        ),
        "resnet": (small_resnet(), COLOR),
    }


@pytest.mark.parametrize("name", ["mlp", "cnn", "leaf", "ldp", "resnet"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_both_implementations_give_the_naive_derivative(name, dtype, tolerance):
    module, task = modules()[name]
    module = module.to(dtype)
    draw = torch.Generator().manual_seed(1)
    inputs = torch.rand(3, *task.input_shape, generator=draw).to(dtype)
    targets = torch.tensor([0, 2, 1])
    dense, pool = random_pool(module, dtype=dtype)
    for implementation in (DoubleBackward(module), LayerwiseGradients(module, inputs, targets)):
        loss = DesignLoss(pool, CovarianceLoss(), step=0.01, norm_constant=5.0)
        leaf = inputs.clone().requires_grad_()
        rows = implementation.of(leaf, targets)
        if implementation.columns is not None:
            rows = torch.zeros(3, pool.dim, dtype=dtype).index_copy(1, implementation.columns, rows)
        valued = loss.derivative(rows.detach())
        actual = torch.autograd.grad(rows, leaf, valued.derivatives)[0]
        metric = CovarianceLoss().metric(pool).to(dtype)
        for i in range(3):
            sample = inputs[i].clone().requires_grad_()
            value = naive_loss(module, sample, targets[i], dense, metric, 0.8, 0.01, 5.0)
            expected = torch.autograd.grad(value, sample)[0]
            assert float(valued.losses[i]) == pytest.approx(float(value.detach()), rel=tolerance)
            assert (actual[i] - expected).abs().max() <= tolerance * expected.abs().max()


def test_image_models_use_the_fast_implementation():
    inputs, targets = torch.rand(2, *COLOR.input_shape), torch.tensor([0, 1])
    assert isinstance(sample_gradients(small_resnet(), inputs, targets), LayerwiseGradients)
    assert isinstance(sample_gradients(models.build("leaf-cnn", COLOR), inputs, targets), LayerwiseGradients)


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


class UsesItsWeightALittle(UsesItsWeightTwice):
    def forward(self, images):
        hidden = torch.tanh(self.layer(images.flatten(1)))
        return self.head(hidden) + 0.05 * (hidden @ self.layer.weight)[:, :3]


class ClampsItsOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        return self.head(images.flatten(1)).clamp_(-30.0, 30.0)


class ConvolvesTwoSizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.ModuleList([nn.Conv2d(1, 1, 3, padding=1)] * 2)
        self.head = nn.Linear(65, 3)

    def forward(self, images):
        images = images.view(-1, 1, 8, 8)
        small = self.shared[1](images.mean((2, 3), keepdim=True))
        return self.head(torch.cat([self.shared[0](images).flatten(1), small.flatten(1)], 1))


class LimitsItsKernel(nn.Conv2d):
    def forward(self, images):
        return self._conv_forward(images, self.weight.clamp(-10, 10), self.bias)


def after_a_convolution(layer):
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), layer, nn.Tanh(), nn.Flatten(), nn.Linear(128, 3))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "module",
    [
        UsesItsWeightTwice(),
        UsesItsWeightALittle(),
        MixesItsBatch(),
        ClampsItsOutput(),
        ConvolvesTwoSizes(),
        nn.Sequential(nn.Flatten(), after_a_convolution(LimitsItsKernel(1, 2, 3, padding=1))),
        nn.Sequential(nn.Flatten(), after_a_convolution(weight_norm(nn.Conv2d(1, 2, 3, padding=1)))),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_that_layers_do_not_explain_use_the_reference(module, count):
    inputs = torch.rand(count, *TASK.input_shape, generator=torch.Generator().manual_seed(0))
    assert isinstance(sample_gradients(module, inputs, torch.tensor([0, 1])[:count]), DoubleBackward)


@pytest.mark.parametrize("implementation", ["DoubleBackward", "LayerwiseGradients"])
def test_a_chosen_implementation_takes_a_module_of_any_float_type(implementation):
    inputs, targets = torch.rand(2, *TASK.input_shape), torch.tensor([0, 1])
    expected = sample_gradients(mlp(), inputs, targets).of(inputs, targets)
    double = sample_gradients(mlp().double(), inputs, targets, implementation=implementation)
    torch.testing.assert_close(double.of(inputs, targets), expected)


class ScaledEmbedding(nn.Embedding):
    def forward(self, tokens):
        return 3 * super().forward(tokens)


def hooked():
    layer = nn.Embedding(13, 6)
    layer.register_forward_hook(lambda _, __, output: 3 * output)
    return layer


@pytest.mark.parametrize(
    "embedding", [ScaledEmbedding(13, 6), hooked(), nn.Embedding(13, 6, scale_grad_by_freq=True)], ids=range(3)
)
def test_embeddings_that_do_more_than_look_up_are_refused(embedding):
    hot = F.one_hot(torch.arange(14).view(2, 7) % 12, 13).float()
    with pytest.raises(InputError, match=r"plain nn\.Embedding"):
        sample_gradients(nn.Sequential(embedding, nn.Linear(6, 13)), hot[:, :-1], hot[:, 1:])


@pytest.mark.parametrize("name", ["labeled", "characters", "linear", "tied", "attention"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_every_implementation_gives_the_naive_derivative_of_relaxed_texts(name, dtype, tolerance):
    module, task = model_and_texts(name)
    module = module.to(dtype)
    draw = torch.Generator().manual_seed(1)
    chances = (2 * torch.randn(2, 7, 13, generator=draw)).softmax(-1).to(dtype)
    labels = torch.tensor([0, 1])
    parameters = list(module.parameters())
    rows = torch.randn(5, sum(p.numel() for p in parameters), generator=draw)
    rows *= 0.5 / rows.norm(dim=1, keepdim=True)
    pool = Pool.of(rows, [p.shape for p in parameters], clip_norm=1.0)
    pool = Pool(blocks=[type(b)(b.shape, b.index, b.rows.to(dtype)) for b in pool.blocks], clip_norm=1.0)

    def split(values):
        return (values[:, :-1], values[:, 1:]) if task.per_position else (values[:, :-1], labels)

    ways = [DoubleBackward(module)]
    if name in ("labeled", "characters", "linear"):
        ways.append(LayerwiseGradients(module, *split(chances)))
    for way in ways:
        loss = DesignLoss(pool, CovarianceLoss(), step=1.0, norm_constant=3.0, columns=way.columns)
        leaf = chances.clone().requires_grad_()
        found_rows = way.of(*split(leaf))
        valued = loss.derivative(found_rows.detach())
        actual = torch.autograd.grad(found_rows, leaf, valued.derivatives)[0]
        for i in range(2):
            sample = chances[i : i + 1].clone().requires_grad_()
            inputs, aims = split(sample)
            table = module.embedding.weight if hasattr(module, "embedding") else module[0].weight
            embedded = inputs @ table
            logits = module.forward_embedded(embedded) if hasattr(module, "embedding") else module[1:](embedded)
            mean = (
                -(aims * logits.log_softmax(-1)).sum(-1).mean()
                if task.per_position
                else F.cross_entropy(logits, labels[i : i + 1])
            )
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(mean, parameters, create_graph=True)])
            value = (rows.to(dtype) @ gradient / gradient.norm()).square().mean()
            value = value + (3.0 - gradient.norm()).clamp(min=0) ** 2
            expected = torch.autograd.grad(value, sample)[0]
            assert float(valued.losses[i]) == pytest.approx(float(value.detach()), rel=tolerance)
            assert (actual[i : i + 1] - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        ("labeled", LayerwiseGradients),
        ("characters", LayerwiseGradients),
        ("linear", LayerwiseGradients),
        ("tied", DoubleBackward),
        ("attention", DoubleBackward),
    ],
)
def test_text_models_use_the_fast_implementation_where_it_is_right(name, implementation):
    module, task = model_and_texts(name)
    hot = F.one_hot(torch.arange(14).view(2, 7) % 12, 13).float()
    samples = (hot[:, :-1], hot[:, 1:]) if task.per_position else (hot[:, :-1], torch.tensor([0, 1]))
    assert type(sample_gradients(module, *samples)) is implementation


def test_a_row_for_padding_is_never_learned():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(13, 6, padding_idx=0), nn.Linear(6, 13))
    chances = torch.randn(2, 7, 13).softmax(-1)
    for way in (DoubleBackward(module), LayerwiseGradients(module, chances[:, :-1], chances[:, 1:])):
        table = way.of(chances[:, :-1], chances[:, 1:])[:, : 13 * 6].view(2, 13, 6)
        assert not table[:, 0].any()
        assert table[:, 1:].any()
    assert type(sample_gradients(module, chances[:, :-1], chances[:, 1:])) is LayerwiseGradients
