"""Losses at many parameter vectors: the fast ways against the plain one, and all against the module itself."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coalmine.errors import InputError
from coalmine.methods.ldp.audit import VIEWS, Ldp
from coalmine.methods.ldp.crafters import Benign
from coalmine.methods.ldp.line_losses import affine_layers
from coalmine.methods.ldp.losses import ExampleLosses
from coalmine.methods.ldp.pair import Pair
from coalmine.simulation import models
from coalmine.simulation.data import load
from coalmine.simulation.data.federated import Examples
from coalmine.simulation.mechanisms.local import LDPSGD
from ldp_games import IMAGES


class Other(nn.Module):
    """A network that is not a plain sequence of layers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(576, 3)

    def forward(self, images):
        return torch.tanh(self.inner(images.flatten(1))) * 2


ODD = [
    nn.Sequential(nn.Conv2d(1, 3, 5, padding=1), nn.MaxPool2d(3), nn.ReLU(), nn.Flatten(),
                  nn.Linear(147, 3, bias=False)),
    nn.Sequential(nn.Conv2d(1, 2, 4, stride=3, bias=False), nn.ReLU(), nn.Conv2d(2, 4, 3, padding=2), nn.Flatten(),
                  nn.Linear(324, 3)),
    nn.Sequential(nn.Flatten(), nn.Linear(576, 8), nn.ReLU(), nn.ReLU(), nn.Linear(8, 3)),
]  # fmt: skip
UNKNOWN = [
    Other(),
    nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2), nn.Flatten(), nn.Linear(800, 3)),
    nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(144, 3)),
    nn.Sequential(nn.Flatten(), nn.Linear(576, 8), nn.Tanh(), nn.Linear(8, 3)),
]


@pytest.mark.parametrize(
    "module", [models.build("ldp-cnn", IMAGES), *ODD, *UNKNOWN], ids=lambda m: str(len(list(m.modules())))
)
def test_losses_on_lines_are_those_of_the_module_itself(module):
    rng = np.random.default_rng(0)
    image, target = torch.rand(1, 1, 24, 24), torch.tensor([1])
    base = nn.utils.parameters_to_vector(module.parameters()).detach()
    directions = torch.from_numpy(rng.standard_normal((5, len(base)), dtype=np.float32))
    steps = rng.normal(scale=0.05, size=(5, 3))
    fast, plain = (ExampleLosses(module, IMAGES, image, target, plain=plain) for plain in (False, True))
    assert (affine_layers(module, image) is not None) == (module not in UNKNOWN)  # the fast path is what is compared
    along_lines = fast.along(directions, steps)
    np.testing.assert_allclose(along_lines, plain.along(directions, steps), rtol=1e-4, atol=1e-5)
    for i in range(5):
        for j in range(3):
            vector = base + float(steps[i, j]) * directions[i]
            nn.utils.vector_to_parameters(vector, module.parameters())
            with torch.no_grad():
                alone = float(F.cross_entropy(module(image), target))
            nn.utils.vector_to_parameters(base, module.parameters())
            assert along_lines[i, j] == pytest.approx(alone, rel=1e-4, abs=1e-5)
            for losses in (fast, plain):
                assert losses.at(vector[None])[0, 0] == pytest.approx(alone, rel=1e-4, abs=1e-5)


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
    pair = Pair.of(Examples(examples.inputs[:2], examples.targets[:2]), data.task)
    base = nn.utils.parameters_to_vector(module.parameters()).detach()
    vectors = base + 0.1 * torch.from_numpy(np.random.default_rng(0).standard_normal((3, len(base)), dtype=np.float32))
    computed = ExampleLosses(module, data.task, pair.inputs, pair.targets).at(vectors)
    for vector, losses in zip(vectors, computed, strict=True):
        other = Recurrent()
        nn.utils.vector_to_parameters(vector, other.parameters())
        assert [pair.loss(other, example).item() for example in (0, 1)] == pytest.approx(losses.tolist(), rel=1e-5)
    audit = Ldp(
        data=data, model=lambda seed: Recurrent(), crafters=[Benign()], mechanisms=[LDPSGD(epsilon=2.0)], trials=60
    )
    assert [r.view for r in audit.run()] == list(VIEWS)


def test_a_model_that_fails_at_other_parameters_is_refused_with_the_views_that_need_none():
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(576, 3)

        def forward(self, images):
            if self.inner.bias.abs().max() > 1:
                raise RuntimeError("too large")
            return self.inner(images.flatten(1))

    fragile = ExampleLosses(Fragile(), IMAGES, torch.zeros(1, 1, 24, 24), torch.zeros(1, dtype=torch.long))
    with pytest.raises(InputError, match=r"too large.*white-box and likelihood-ratio"):
        fragile.at(torch.full((1, 3 * 577), 2.0))


@pytest.mark.parametrize("part", [nn.Dropout(0.5), nn.BatchNorm2d(1)])
def test_black_box_trials_refuse_models_whose_loss_is_random_or_of_a_batch(part):
    module = nn.Sequential(part, nn.Flatten(), nn.Linear(576, 3))
    image, target = torch.zeros(1, 1, 24, 24), torch.zeros(1, dtype=torch.long)
    with pytest.raises(InputError, match=type(part).__name__):
        ExampleLosses(module, IMAGES, image, target)
    losses = ExampleLosses(module.eval(), IMAGES, image, target)
    assert losses.at(nn.utils.parameters_to_vector(module.parameters()).detach()[None]).shape == (1, 1)
