"""Changes of an example's loss at many parameter vectors: the fast ways against the module itself."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coalmine.errors import InputError
from coalmine.methods.ldp.audit import Ldp
from coalmine.methods.ldp.crafters import Benign
from coalmine.methods.ldp.distinguishers import LossChange
from coalmine.methods.ldp.settings import VIEWS
from coalmine.simulation import models
from coalmine.simulation.data import load
from coalmine.simulation.mechanisms.local import LDPSGD
from ldp_games import IMAGES, crafted, pair_of


class Other(nn.Module):
    """A network that is not a plain sequence of layers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(576, 3)

    def forward(self, images):
        return torch.tanh(self.inner(images.flatten(1))) * 2


class Tied(Other):
    """A network that uses a layer's weights without calling the layer."""

    def forward(self, images):
        return images.flatten(1) @ self.inner.weight.T + self.inner.bias


LINEAR = [
    models.build("ldp-cnn", IMAGES),
    nn.Sequential(nn.Conv2d(1, 3, 5, padding=1), nn.MaxPool2d(3), nn.ReLU(), nn.Flatten(),
                  nn.Linear(147, 3, bias=False)),
    nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2, padding=2, padding_mode="circular"), nn.AvgPool2d(4), nn.Flatten(),
                  nn.Linear(72, 3)),
    Other(),
]  # fmt: skip
OTHERS = [
    Tied(),
    nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(968, 3)),
]


def image_pair():
    return pair_of(np.random.default_rng(1).random((2, 1, 24, 24)).astype(np.float32), np.array([1, 2]), IMAGES)


def change(module, pair=None, plain=False):
    """The change of the first example's loss."""
    vector = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    return LossChange(crafted(vector, -vector, module=module, pair=pair or image_pair()), 0, plain=plain)


@pytest.mark.parametrize("module", [*LINEAR, *OTHERS], ids=lambda module: str(len(list(module.modules()))))
def test_all_ways_give_the_losses_of_the_module_itself(module):
    rng, pair = np.random.default_rng(0), image_pair()
    base = nn.utils.parameters_to_vector(module.parameters()).detach()
    directions = torch.from_numpy(rng.standard_normal((5, len(base)), dtype=np.float32))
    steps = rng.normal(scale=0.05, size=(5, 3))
    fast, plain = change(module, pair), change(module, pair, plain=True)
    assert fast._has_lines == (module in LINEAR)  # the fast way is what is compared
    assert fast._vmapped
    assert not plain._vmapped
    along_lines = fast.along(directions, steps)
    np.testing.assert_allclose(along_lines, plain.along(directions, steps), rtol=1e-4, atol=1e-5)
    for i, j in ((0, 0), (4, 2)):
        vector = base + float(steps[i, j]) * directions[i]
        losses = []
        with torch.no_grad():
            for parameters in (base, vector, base):
                nn.utils.vector_to_parameters(parameters, module.parameters())
                losses.append(float(F.cross_entropy(module(pair.inputs[:1]), pair.targets[:1])))
        for ours in (along_lines[i, j], fast.at(vector[None])[0], plain.at(vector[None])[0]):
            assert ours == pytest.approx(losses[1] - losses[0], rel=1e-4, abs=1e-5)


class Recurrent(nn.Module):
    """torch's own LSTM, which vmap cannot take."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(50, 4), nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 50)

    def forward(self, tokens):
        return self.out(self.lstm(self.embedding(tokens))[0])


def test_a_model_that_cannot_be_batched_is_evaluated_one_vector_at_a_time():
    data = load("generated-text", positions=8, vocabulary_size=50).train
    examples, module = data.pooled(), Recurrent()
    pair = pair_of(examples.inputs, examples.targets, data.task)
    base = nn.utils.parameters_to_vector(module.parameters()).detach()
    vectors = base + 0.1 * torch.from_numpy(np.random.default_rng(0).standard_normal((3, len(base)), dtype=np.float32))
    for vector, computed in zip(vectors, change(module, pair).at(vectors), strict=True):
        other = Recurrent()
        nn.utils.vector_to_parameters(vector, other.parameters())
        assert (pair.loss(other, 0) - pair.loss(module, 0)).item() == pytest.approx(computed, rel=1e-4)
    audit = Ldp(
        data=data, model=lambda seed: Recurrent(), crafters=[Benign()], mechanisms=[LDPSGD(epsilon=2.0)], trials=60
    )
    assert [r.view for r in audit.run()] == list(VIEWS)


def test_a_model_that_fails_at_other_parameters_is_refused_with_the_views_that_need_none():
    class Fragile(Other):
        def forward(self, images):
            if self.inner.bias.abs().max() > 1:
                raise RuntimeError("too large")
            return self.inner(images.flatten(1))

    with pytest.raises(InputError, match=r"white-box and likelihood-ratio.*too large"):
        change(Fragile()).at(torch.full((1, 3 * 577), 2.0))


@pytest.mark.parametrize("part", [nn.Dropout(0.5), nn.BatchNorm2d(1)])
def test_black_box_trials_refuse_models_whose_loss_is_random_or_of_a_batch(part):
    module = nn.Sequential(part, nn.Flatten(), nn.Linear(576, 3))
    with pytest.raises(InputError, match=type(part).__name__):
        change(module)
    parameters = nn.utils.parameters_to_vector(module.parameters()).detach()
    assert change(module.eval()).at(parameters[None]) == pytest.approx([0.0])
