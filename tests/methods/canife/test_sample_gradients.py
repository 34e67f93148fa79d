"""Per-sample gradients: every implementation gives what the definition gives."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from canary_models import model_and_texts, random_pool, small_resnet
from coalmine.errors import InputError
from coalmine.methods.canife import sample_gradients as module_under_test
from coalmine.methods.canife.design import DesignLoss
from coalmine.methods.canife.pool import Pool
from coalmine.methods.canife.sample_gradients import Batched, ByLayers, OneByOne, sample_gradients
from coalmine.simulation import models
from coalmine.simulation.data.federated import Task
from federations import cnn, federation, mlp

TASK = federation([1]).task
COLOR = Task(input_shape=(3, 16, 16), classes=4)


def naive_loss(module, inputs, targets, pool, clip_norm, step, constant):
    """The loss of one canary with a graph through everything, as the definition has it."""
    loss = F.cross_entropy(module(inputs[None]), targets[None])
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    b = pool @ (gradient / gradient.norm()) / clip_norm
    return b.square().mean() + (constant - step * gradient.norm() / clip_norm).clamp(min=0) ** 2


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
def test_every_implementation_gives_the_naive_derivative(name, dtype, tolerance):
    module, task = modules()[name]
    module = module.to(dtype)
    draw = torch.Generator().manual_seed(1)
    inputs = torch.rand(3, *task.input_shape, generator=draw).to(dtype)
    targets = torch.tensor([0, 2, 1])
    dense, pool = random_pool(module, dtype=dtype)
    for implementation in (OneByOne(module), Batched(module, inputs[:1]), ByLayers(module, inputs[:1])):
        loss = DesignLoss(pool, step=0.01, norm_constant=5.0, used=implementation.used)
        leaf = inputs.clone().requires_grad_()
        rows = implementation.of(leaf, targets)
        valued = loss.derivative(rows.detach())
        actual = torch.autograd.grad(rows, leaf, valued[1])[0]
        for i in range(3):
            sample = inputs[i].clone().requires_grad_()
            value = naive_loss(module, sample, targets[i], dense, 0.8, 0.01, 5.0)
            expected = torch.autograd.grad(value, sample)[0]
            assert float(valued[0][i]) == pytest.approx(float(value.detach()), rel=tolerance)
            assert (actual[i] - expected).abs().max() <= tolerance * expected.abs().max()


def test_small_models_use_vmap_and_large_ones_their_layers(monkeypatch):
    inputs, targets = torch.rand(2, *COLOR.input_shape), torch.tensor([0, 1])
    assert type(sample_gradients(small_resnet(), inputs, targets)) is Batched
    monkeypatch.setattr(module_under_test, "_LEAST_PARAMETERS", 1000)
    assert type(sample_gradients(small_resnet(), inputs, targets)) is ByLayers


@pytest.mark.parametrize("kind", [Batched, ByLayers])
def test_parameters_can_be_replaced(kind):
    inputs, targets = torch.rand(2, *COLOR.input_shape), torch.tensor([0, 1])
    other = small_resnet()
    with torch.no_grad():
        for value in other.parameters():
            value.mul_(0.7)
    gradients = kind(small_resnet(), inputs[:1])
    gradients.load(torch.cat([value.detach().flatten() for value in other.parameters()]))
    expected = kind(other, inputs[:1]).of(inputs, targets)
    torch.testing.assert_close(gradients.of(inputs, targets), expected)


@given(
    side=st.integers(1, 6),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
)
def test_weights_that_only_meet_padding_are_dropped_exactly(side, kernel, stride, padding, dilation):
    if side + 2 * padding < dilation * (kernel - 1) + 1:
        return
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, kernel, stride=stride, padding=padding, dilation=dilation)
    module = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(4)).double()
    images = torch.randn(2, 2, side, side, dtype=torch.float64)
    module(images)
    expected = OneByOne(module).of(images, torch.tensor([0, 1]))
    cropped = Batched(module, images[:1])
    actual = torch.zeros_like(expected)
    actual[:, cropped.used] = cropped.of(images, torch.tensor([0, 1]))
    torch.testing.assert_close(actual, expected)


def test_of_a_kernel_on_one_pixel_only_the_middle_is_used():
    module = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(1, 2))
    assert Batched(module, torch.rand(1, 1, 1, 1)).used.nonzero()[:, 0].tolist() == [4, 9, 10, 11, 12]
    assert Batched(module[1:], torch.rand(1, 1)).used.all()


class UsesItsKernelElsewhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 1, 3, padding=1, bias=False)

    def forward(self, images):
        return self.convolution(images).flatten(1) * self.convolution.weight.flatten()[None, :2]


def test_a_kernel_that_is_used_elsewhere_keeps_all_its_weights():
    chosen = sample_gradients(UsesItsKernelElsewhere(), torch.rand(2, 1, 1, 1), torch.tensor([0, 1]))
    assert chosen.used.all()


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


def test_a_convolution_of_two_sizes_is_not_cropped():
    inputs, targets = torch.rand(2, *TASK.input_shape), torch.tensor([0, 1])
    module = ConvolvesTwoSizes()
    gradients = ByLayers(module, inputs[:1])
    assert gradients.used.all()
    torch.testing.assert_close(gradients.of(inputs, targets), OneByOne(module).of(inputs, targets))


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
        nn.Sequential(nn.Flatten(), after_a_convolution(LimitsItsKernel(1, 2, 3, padding=1))),
        nn.Sequential(nn.Flatten(), after_a_convolution(weight_norm(nn.Conv2d(1, 2, 3, padding=1)))),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_that_layers_do_not_explain_are_right_nevertheless(module, count, monkeypatch):
    monkeypatch.setattr(module_under_test, "_LEAST_PARAMETERS", 0)
    inputs = torch.rand(count, *TASK.input_shape, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1])[:count]
    gradients = sample_gradients(module, inputs, targets)
    assert type(gradients) is not ByLayers
    torch.testing.assert_close(gradients.of(inputs, targets), OneByOne(module).of(inputs, targets))


class ScaledEmbedding(nn.Embedding):
    def forward(self, tokens):
        return 3 * super().forward(tokens)


@pytest.mark.parametrize(
    "embedding", [ScaledEmbedding(13, 6), nn.Embedding(13, 6, scale_grad_by_freq=True)], ids=range(2)
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
    pool = Pool(rows=rows.to(dtype), clip_norm=1.0)

    def split(values):
        return (values[:, :-1], values[:, 1:]) if task.per_position else (values[:, :-1], labels)

    example = split(chances)[0][:1]
    ways = [OneByOne(module), Batched(module, example)]
    if name != "attention":
        ways.append(ByLayers(module, example))
    for way in ways:
        loss = DesignLoss(pool, step=1.0, norm_constant=3.0)
        leaf = chances.clone().requires_grad_()
        found_rows = way.of(*split(leaf))
        valued = loss.derivative(found_rows.detach())
        actual = torch.autograd.grad(found_rows, leaf, valued[1])[0]
        for i in range(2):
            sample = chances[i : i + 1].clone().requires_grad_()
            inputs, aims = split(sample)
            table = module.embedding.weight if hasattr(module, "embedding") else module[0].weight
            embedded = inputs @ table
            first = module.embedding if hasattr(module, "embedding") else module[0]
            hook = first.register_forward_hook(lambda *_, embedded=embedded: embedded)
            logits = module(torch.zeros(inputs.shape[:2], dtype=torch.int64))
            hook.remove()
            mean = (
                -(aims * logits.log_softmax(-1)).sum(-1).mean()
                if task.per_position
                else F.cross_entropy(logits, labels[i : i + 1])
            )
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(mean, parameters, create_graph=True)])
            value = (rows.to(dtype) @ gradient / gradient.norm()).square().mean()
            value = value + (3.0 - gradient.norm()).clamp(min=0) ** 2
            expected = torch.autograd.grad(value, sample)[0]
            assert float(valued[0][i]) == pytest.approx(float(value.detach()), rel=tolerance)
            assert (actual[i : i + 1] - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("name", ["labeled", "tied", "attention"])
def test_large_text_models_use_their_layers_where_that_is_right(name, monkeypatch):
    monkeypatch.setattr(module_under_test, "_LEAST_PARAMETERS", 0)
    module, task = model_and_texts(name)
    hot = F.one_hot(torch.arange(14).view(2, 7) % 12, 13).float()
    samples = (hot[:, :-1], hot[:, 1:]) if task.per_position else (hot[:, :-1], torch.tensor([0, 1]))
    assert type(sample_gradients(module, *samples)) is (Batched if name == "attention" else ByLayers)


def test_a_row_for_padding_is_never_learned():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(13, 6, padding_idx=0), nn.Linear(6, 13))
    chances = torch.randn(2, 7, 13).softmax(-1)
    for way in (OneByOne(module), Batched(module, chances[:1, :-1])):
        table = way.of(chances[:, :-1], chances[:, 1:])[:, : 13 * 6].view(2, 13, 6)
        assert not table[:, 0].any()
        assert table[:, 1:].any()
