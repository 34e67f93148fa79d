"""Canaries made of text: the recurrence's derivatives, relaxed texts, texts as they stand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn

from coalmine.errors import InputError
from coalmine.methods.canife.design.loop import DesignSettings
from coalmine.methods.canife.design.loss import CovarianceLoss, DesignLoss
from coalmine.methods.canife.design.numeric import design_samples
from coalmine.methods.canife.design.texts import design_texts
from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.mock_clients import pool_updates, updates
from coalmine.methods.canife.per_sample_gradients import FromLayers, TwiceBack, sample_gradients
from coalmine.methods.canife.per_sample_gradients.lstm_recurrence import Recurrence
from coalmine.simulation import SGD, LocalTraining, models
from coalmine.simulation.data.federated import FederatedData, Task
from federations import federation, mlp, texts, word_model

CLIENT = LocalTraining(optimizer=SGD(learning_rate=0.5))
LABELLED = Task(input_shape=(6,), classes=2, tokens=13)


def tweets(count, seed=0):
    """Clients of three labeled texts."""
    draw = np.random.default_rng(seed)
    inputs = draw.integers(0, 13, (3 * count, 6))
    return FederatedData(
        inputs=inputs,
        targets=inputs[:, :3].sum(1) % 2,
        bounds=3 * np.stack([np.arange(count), np.arange(1, count + 1)], axis=1),
        names=[f"user-{i}" for i in range(count)],
        task=LABELLED,
    )


def lstm(seed=0, task=LABELLED):
    return models.build("sent140-lstm", task, seed=seed, embedding=5, hidden=4, layers=2)


@examples(max_examples=10)
@given(positions=st.integers(1, 4), count=st.integers(1, 3), units=st.integers(1, 3), seed=st.integers(0, 9))
def test_the_recurrence_can_be_differentiated_twice(positions, count, units, seed):
    draw = torch.Generator().manual_seed(seed)
    shares = torch.randn(count, positions, 4 * units, generator=draw, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4 * units, units, generator=draw, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: Recurrence.apply(s, weight), shares)
    assert torch.autograd.gradgradcheck(lambda s: Recurrence.apply(s, weight), shares)


def test_the_recurrence_is_that_of_torchs_lstm():
    torch.manual_seed(0)
    layer = nn.LSTM(3, 5, batch_first=True).double()
    inputs = torch.randn(2, 7, 3, dtype=torch.float64)
    shares = F.linear(inputs, layer.weight_ih_l0, layer.bias_ih_l0 + layer.bias_hh_l0)
    torch.testing.assert_close(Recurrence.apply(shares, layer.weight_hh_l0), layer(inputs)[0])


def model_and_texts(name):
    if name == "labeled":
        return lstm(), LABELLED
    task = Task(input_shape=(6,), classes=13, tokens=13, per_position=True, ignored=0)
    if name == "characters":
        return models.build("shakespeare-lstm", task, embedding=3, hidden=4), task
    if name == "linear":
        return word_model(tokens=13), task
    if name == "tied":
        return models.build("word-lstm", task, embedding=4, units=5), task
    return models.build("transformer", task, width=8, heads=2), task


@pytest.mark.parametrize("name", ["labeled", "characters", "linear", "tied", "transformer"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_every_way_gives_the_naive_derivative_of_relaxed_texts(name, dtype, tolerance):
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

    ways = [TwiceBack(module)]
    if name in ("labeled", "characters", "linear"):
        ways.append(FromLayers(module, *split(chances)))
    for way in ways:
        loss = DesignLoss(pool, CovarianceLoss(), step=1.0, norm_constant=3.0, boxes=way.boxes)
        leaf = chances.clone().requires_grad_()
        found_rows = way.of(*split(leaf))
        valued = loss.derivative([r.detach() for r in found_rows])
        found = torch.autograd.grad(found_rows, leaf, valued.derivatives)[0]
        for i in range(2):
            one = chances[i : i + 1].clone().requires_grad_()
            inputs, aims = split(one)
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
            expected = torch.autograd.grad(value, one)[0]
            assert float(valued.losses[i]) == pytest.approx(float(value.detach()), rel=tolerance)
            assert (found[i : i + 1] - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("labeled", FromLayers),
        ("characters", FromLayers),
        ("linear", FromLayers),
        ("tied", TwiceBack),
        ("transformer", TwiceBack),
    ],
)
def test_the_way_by_layers_is_taken_where_it_holds(name, way):
    module, task = model_and_texts(name)
    hot = F.one_hot(torch.arange(14).view(2, 7) % 12, 13).float()
    samples = (hot[:, :-1], hot[:, 1:]) if task.per_position else (hot[:, :-1], torch.tensor([0, 1]))
    assert type(sample_gradients(module, *samples)) is way


def test_a_row_for_padding_is_never_learned():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(13, 6, padding_idx=0), nn.Linear(6, 13))
    chances = torch.randn(2, 7, 13).softmax(-1)
    for way in (TwiceBack(module), FromLayers(module, chances[:, :-1], chances[:, 1:])):
        table = way.of(chances[:, :-1], chances[:, 1:])[0]
        assert not table[:, 0].any()
        assert table[:, 1:].any()
    assert type(sample_gradients(module, chances[:, :-1], chances[:, 1:])) is FromLayers


@pytest.mark.parametrize("name", ["labeled", "characters", "tied"])
def test_a_text_is_valued_as_what_its_client_sends(name):
    module, task = model_and_texts(name)
    data = tweets(8) if name == "labeled" else texts([3] * 8, positions=6, tokens=13)
    pool = pool_updates(module, data, CLIENT, 0.2)
    settings = DesignSettings(iterations=12, loss=CovarianceLoss())
    made = design_texts(module, pool, task=task, client=CLIENT, count=2, settings=settings, draws=6)
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
    pool = pool_updates(module, data, CLIENT, 0.2)
    kwargs = {"task": task, "client": CLIENT, "count": 3, "settings": DesignSettings(iterations=4), "draws": 4}
    for start in (None, data):
        for canary in design_texts(module, pool, start=start, **kwargs).canaries:
            assert (canary.inputs != 0).all()
            assert (canary.targets != 0).all()
            np.testing.assert_array_equal(canary.inputs[1:], canary.targets[:-1])


def test_design_makes_texts_better():
    module, task = model_and_texts("linear")
    pool = pool_updates(module, texts([3] * 30, positions=6, tokens=13), CLIENT, 0.1)
    made = design_texts(
        module, pool, task=task, client=CLIENT, count=4, settings=DesignSettings(iterations=80, learning_rate=1.0)
    )
    assert np.mean([canary.health for canary in made.canaries]) > 0.3


def test_a_labeled_canary_has_the_class_asked_for():
    pool = pool_updates(lstm(), tweets(6), CLIENT, 0.05)
    made = design_texts(
        lstm(), pool, task=LABELLED, client=CLIENT, count=4, target=1, settings=DesignSettings(iterations=3)
    )
    assert [int(canary.targets) for canary in made.canaries] == [1] * 4


def test_more_draws_are_never_worse():
    data, module = tweets(10), lstm()
    pool = pool_updates(module, data, CLIENT, 0.05)
    kwargs = {"task": LABELLED, "client": CLIENT, "settings": DesignSettings(iterations=20)}
    few, many = (design_texts(module, pool, draws=draws, **kwargs).canaries[0].loss for draws in (1, 64))
    assert many <= few * (1 + 1e-6)


def test_the_same_seed_gives_the_same_texts():
    data, module = tweets(6), lstm()
    pool = pool_updates(module, data, CLIENT, 0.05)
    kwargs = {"task": LABELLED, "client": CLIENT, "count": 2, "settings": DesignSettings(iterations=6)}
    first, again = (design_texts(module, pool, seed=5, **kwargs) for _ in range(2))
    for one, other in zip(first.canaries, again.canaries, strict=True):
        np.testing.assert_array_equal(one.inputs, other.inputs)


def test_words_that_no_client_has_take_no_room_in_the_pool():
    task = Task(input_shape=(6,), classes=2, tokens=400)
    small = tweets(5)
    data = FederatedData(inputs=small.inputs, targets=small.targets, bounds=small.bounds, names=small.names, task=task)
    module = lstm(task=task)
    pool = pool_updates(module, data, CLIENT, 0.05)
    assert pool.blocks[0].rows.shape == (5, 13 * 5)
    design = design_texts(module, pool, task=task, client=CLIENT, settings=DesignSettings(iterations=5))
    assert math.isfinite(design.canaries[0].loss)


def test_a_design_that_is_no_longer_finite_keeps_a_text():
    data, module = tweets(6), lstm()
    pool = pool_updates(module, data, CLIENT, 0.05)
    broken = DesignSettings(iterations=50, learning_rate=1e30, schedule="constant")
    made = design_texts(module, pool, task=LABELLED, client=CLIENT, settings=broken)
    assert math.isfinite(made.canaries[0].loss)
    assert made.canaries[0].loss <= made.canaries[0].initial_loss


def test_numbers_and_tokens_are_not_mixed_up():
    data, numbers = tweets(4), federation([3, 3])
    pool = pool_updates(mlp(), numbers, CLIENT, 1.0)
    with pytest.raises(InputError, match="design_samples"):
        design_texts(mlp(), pool, task=numbers.task, client=CLIENT)
    pool = pool_updates(lstm(), data, CLIENT, 1.0)
    with pytest.raises(InputError, match="design_texts"):
        design_samples(lstm(), pool, task=data.task, client=CLIENT)
    for kwargs, message in [
        ({"target": 2}, r"0\.\.1"),
        ({"target": "x"}, "random or best"),
        ({"temperature": 0}, "temperature"),
        ({"draws": 0}, "draws"),
        ({"start": data.client(0), "count": 9}, "9 canaries cannot start from 3 texts"),
    ]:
        with pytest.raises(InputError, match=message):
            design_texts(lstm(), pool, task=data.task, client=CLIENT, **kwargs)
