"""The six crafters against closed forms of softmax regression, and the checks of a user's own."""

import numpy as np
import pytest
import torch
from torch import nn

from coalmine.errors import InputError
from coalmine.methods.ldp.crafters import (
    CRAFTERS,
    Benign,
    Collusion,
    DummyGradient,
    GradientFlip,
    InputPerturbation,
    Pair,
    ParameterRetrogression,
    crafter_named,
    name_of,
    rule_of,
)
from coalmine.methods.ldp.crafters import craft as craft_for
from coalmine.simulation import models
from coalmine.simulation.data.federated import Examples, Task
from ldp_games import pair_of

TASK = Task(input_shape=(4,), classes=3)


def craft(crafter, model, pair):
    """The crafter's gradients, at whatever model its server sends."""
    _, first, second = craft_for(crafter, model, None, pair, None)
    return first, second


@pytest.fixture
def model():
    return models.build("logistic", TASK, seed=1)


@pytest.fixture
def pair():
    inputs = np.random.default_rng(0).random((2, 4)).astype(np.float32)
    return pair_of(inputs, np.array([0, 2]), TASK)


def closed_form(weight, bias, inputs, label):
    """Loss, gradient in (weight, bias) and gradient in the input, of softmax regression."""
    logits = weight @ inputs + bias
    p = np.exp(logits) / np.exp(logits).sum()
    error = p - np.eye(len(p))[label]
    return -np.log(p[label]), np.concatenate([np.outer(error, inputs).ravel(), error]), weight.T @ error


def parts(model, pair):
    linear = model[1]
    weight, bias = (value.detach().numpy().astype(float) for value in (linear.weight, linear.bias))
    return weight, bias, pair.inputs.numpy().astype(float), pair.targets.numpy()


def test_benign_gradients_are_those_of_the_two_examples(model, pair):
    weight, bias, inputs, labels = parts(model, pair)
    for gradient, x, y in zip(craft(Benign(), model, pair), inputs, labels, strict=True):
        np.testing.assert_allclose(gradient, closed_form(weight, bias, x, y)[1], atol=1e-6)
        assert gradient.dtype == np.float32


@pytest.mark.parametrize("alpha", [1.0, 0.25])
def test_input_perturbation_moves_every_pixel_by_alpha_up_the_loss(model, pair, alpha):
    weight, bias, inputs, labels = parts(model, pair)
    before, gradient, slope = closed_form(weight, bias, inputs[0], labels[0])
    after, expected, _ = closed_form(weight, bias, inputs[0] + alpha * np.sign(slope), labels[0])
    first, second = craft(InputPerturbation(alpha=alpha), model, pair)
    np.testing.assert_allclose(first, gradient, atol=1e-6)
    np.testing.assert_allclose(second, expected, atol=1e-6)
    assert after > before


def test_parameter_retrogression_is_the_gradient_where_the_loss_is_higher(model, pair):
    weight, bias, inputs, labels = parts(model, pair)
    before, gradient, _ = closed_form(weight, bias, inputs[0], labels[0])
    moved = weight + gradient[:12].reshape(3, 4), bias + gradient[12:]
    after, expected, _ = closed_form(*moved, inputs[0], labels[0])
    first, second = craft(ParameterRetrogression(), model, pair)
    np.testing.assert_allclose(first, gradient, atol=1e-6)
    np.testing.assert_allclose(second, expected, atol=1e-5)
    assert after > before
    np.testing.assert_allclose(model[1].weight.detach().numpy(), weight)  # the model itself is unchanged


def test_a_flip_is_the_negative_of_any_crafters_first_gradient(model, pair):
    first, second = craft(GradientFlip(), model, pair)
    np.testing.assert_array_equal(second, -first)
    np.testing.assert_array_equal(first, craft(Benign(), model, pair)[0])
    of_another = craft(GradientFlip(of=lambda model, pair: (np.full(15, 2, np.float32), None)), model, pair)
    np.testing.assert_array_equal(of_another[1], np.full(15, -2))


@pytest.mark.parametrize("norm", [1.0, 0.2])
def test_the_dummy_gradient_is_constant_and_has_its_norm(model, pair, norm):
    first, second = craft(DummyGradient(norm=norm), model, pair)
    np.testing.assert_allclose(first, norm / np.sqrt(15), rtol=1e-6)
    np.testing.assert_array_equal(second, -first)


def digits_pair():
    from coalmine.simulation.data import load

    data = load("digits").train
    examples = data.pooled()
    return data.task, examples, pair_of(examples.inputs, examples.targets, data.task)


def test_collusion_makes_the_loss_and_the_gradient_large():
    task, examples, pair = digits_pair()
    model = models.build("mlp", task)
    malicious = Collusion().prepare(model, examples, pair, np.random.default_rng(0))
    assert pair.loss(malicious, 0) > 2 * pair.loss(model, 0)
    honest, colluding = (np.linalg.norm(craft(GradientFlip(), m, pair)[0]) for m in (model, malicious))
    assert colluding > 2 * honest
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), models.build("mlp", task).parameters(), strict=True)
    )


def test_collusion_trains_on_one_other_label_alone():
    task, examples, pair = digits_pair()
    malicious = Collusion(steps=200).prepare(models.build("mlp", task), examples, pair, np.random.default_rng(1))
    guesses = malicious(torch.from_numpy(examples.inputs[:200])).argmax(dim=1)
    assert len(set(guesses.tolist())) == 1
    assert int(guesses[0]) != int(pair.targets[0])


def test_collusion_needs_a_second_class(model, pair):
    one_class = Examples(np.zeros((5, 4), np.float32), np.zeros(5, dtype=int))
    with pytest.raises(InputError, match=r"collusion .*at least two classes"):
        Collusion().prepare(model, one_class, pair, np.random.default_rng(0))


ONES = np.ones(15, np.float32)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((0 * ONES, ONES), "g1 of crafter mine .*not zero"),
        ((ONES, 0 * ONES), "g2 of crafter mine .*not zero"),
        ((ONES, ONES.copy()), "crafter mine returned the same gradient twice"),
        ((ONES, ONES[:14]), r"g2 of crafter mine .*shape \(15,\).*\(14,\)"),
        ((ONES.reshape(3, 5), ONES), r"g1 .*\(3, 5\)"),
        ((np.nan * ONES, ONES), "g1 of crafter mine must be finite"),
        ((ONES, ONES.astype(str)), "crafter mine failed"),
        (ONES, "crafter mine failed"),
    ],
)
def test_unusable_gradients_are_refused_with_the_crafters_name(model, pair, returned, message):
    def mine(model, pair):
        return returned

    with pytest.raises(InputError, match=message):
        craft(mine, model, pair)


def test_a_function_is_a_crafter_with_its_own_name_and_the_default_rule():
    def mine(model, pair):
        return np.ones(3, np.float32), -np.ones(3, np.float32)

    assert (name_of(mine), rule_of(mine)) == ("mine", "loss-falls")
    mine.rule = "guess"
    with pytest.raises(InputError, match=r"rule of crafter mine .*loss-falls, larger-change, signs.*'guess'"):
        rule_of(mine)


def test_every_crafter_has_its_name_and_its_black_box_test_of_table_1():
    rules = {name: rule_of(crafter_named(name)) for name in CRAFTERS}
    assert rules == {
        "benign": "larger-change",
        "input-perturbation": "loss-falls",
        "parameter-retrogression": "loss-falls",
        "gradient-flip": "loss-falls",
        "collusion": "loss-falls",
        "dummy-gradient": "signs",
    }
    assert [name_of(crafter_named(name)) for name in CRAFTERS] == list(CRAFTERS)


def test_tokens_cannot_be_perturbed():
    task = Task(input_shape=(3,), classes=2, tokens=5)
    pair = pair_of(np.ones((2, 3), int), np.array([0, 1]), task)
    module = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(InputError, match=r"input-perturbation .*tokens"):
        craft(InputPerturbation(), module, pair)
    assert craft(Benign(), module, pair)[0].shape == (24,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: crafter_named("benin"), 'unknown crafter "benin". Did you mean "benign"'),
        (lambda: DummyGradient(norm=0.0), "norm of the dummy gradient must be a positive number, got 0.0"),
    ],
)
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_crafter_that_fails_is_named(model, pair):
    def broken(model, pair):
        return pair.nothing

    with pytest.raises(InputError, match="crafter broken failed: AttributeError: 'Pair' object has no"):
        craft(broken, model, pair)
    broken.prepare = lambda model, examples, pair, rng: None
    with pytest.raises(InputError, match=r"crafter broken prepares .*torch module, got NoneType"):
        craft(broken, model, pair)


def test_collusion_is_refused_for_data_with_a_label_per_position():
    task = Task(input_shape=(3,), classes=5, tokens=5, per_position=True)
    pair = Pair(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long), task)
    with pytest.raises(InputError, match="one label per position"):
        Collusion().prepare(None, None, pair, None)


def test_crafters_may_return_tensors(model, pair):
    first, second = craft(lambda model, pair: (torch.ones(15), -torch.ones(15)), model, pair)
    np.testing.assert_array_equal(first, -second)
    assert first.dtype == np.float32
