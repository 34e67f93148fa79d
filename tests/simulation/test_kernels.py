import functools

import numpy as np
import pytest
import torch
from torch import nn

from coalmine.errors import InputError
from coalmine.simulation import SGD, Adam, LocalTraining, flat
from coalmine.simulation.kernels import choose_kernel, layerwise
from coalmine.simulation.kernels.kernel import LeanLoop, Stacked, clip_factors, group_sizes
from coalmine.simulation.kernels.layerwise import Layerwise, WordLSTMClients
from coalmine.simulation.models.text import WordLSTM
from federations import cnn, federation, mlp, naive_sum, parts, texts, word_model

RAGGED = [7, 1, 12, 3, 5, 5]
PLAIN = functools.partial(torch.optim.SGD, lr=0.3)


def check(kernel, module, data, training, optimizer, clip_norm=0.05):
    expected, norms = naive_sum(module, data, training, optimizer, clip_norm)
    weights = flat.parameter_vector(module).double()
    actual = kernel.clipped_sum(weights, parts(data), clip_norm, torch.empty_like(expected))
    # kernels clip to one part in 65,536 less, so that rounding never exceeds the clip norm
    torch.testing.assert_close(actual.total, expected, rtol=2e-5, atol=1e-12)
    np.testing.assert_allclose(actual.norms, norms, rtol=1e-12)


@pytest.mark.parametrize(
    ("optimizer", "textbook"),
    [
        (SGD(learning_rate=0.3), PLAIN),
        (SGD(learning_rate=0.3, momentum=0.9), functools.partial(torch.optim.SGD, lr=0.3, momentum=0.9)),
        (Adam(learning_rate=0.01), functools.partial(torch.optim.Adam, lr=0.01)),
    ],
)
@pytest.mark.parametrize("model", [mlp, cnn])
def test_the_loop_gives_what_copies_and_torch_optimizers_give(optimizer, textbook, model):
    data = federation(RAGGED)
    training = LocalTraining(optimizer=optimizer, epochs=2, batch_size=4)
    check(LeanLoop(model(), data.task, training, dtype=torch.float64), model(), data, training, textbook)


@pytest.mark.parametrize("model", [mlp, cnn])
@pytest.mark.parametrize("sizes", [RAGGED, [4] * 5, [1] * 9])
def test_one_step_for_all_gives_what_each_alone_gives(model, sizes):
    data = federation(sizes)
    training = LocalTraining(optimizer=SGD(learning_rate=0.3))
    check(Layerwise(model(), data.task, training, dtype=torch.float64), model(), data, training, PLAIN)


def test_large_layers_are_streamed_and_give_the_same(monkeypatch):
    data = federation(RAGGED)
    training = LocalTraining(optimizer=SGD(learning_rate=0.3))
    monkeypatch.setattr(layerwise, "_MOST_FORMED", 0)
    for model in (mlp, cnn):
        check(Layerwise(model(), data.task, training, dtype=torch.float64), model(), data, training, PLAIN)


def test_one_step_knows_embeddings_and_padding():
    data = texts([4, 1, 6])
    training = LocalTraining(optimizer=SGD(learning_rate=0.3))
    check(Layerwise(word_model(), data.task, training, dtype=torch.float64), word_model(), data, training, PLAIN)


@pytest.mark.parametrize(("model", "data"), [(mlp, federation(RAGGED)), (word_model, texts(RAGGED))])
def test_stacked_clients_give_what_each_alone_gives(model, data):
    training = LocalTraining(optimizer=SGD(learning_rate=0.3), epochs=2, batch_size=4)
    check(Stacked(model(), data.task, training, dtype=torch.float64), model(), data, training, PLAIN)


def test_an_infinite_clip_norm_clips_nothing():
    data = federation(RAGGED)
    training = LocalTraining(optimizer=SGD(learning_rate=0.3))
    for kernel in (LeanLoop, Layerwise, Stacked):
        built = kernel(mlp(), data.task, training, dtype=torch.float64)
        check(built, mlp(), data, training, PLAIN, clip_norm=float("inf"))


def test_a_modules_own_loss_is_used():
    class Squared(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs.flatten(1))

        def loss(self, inputs, targets):
            return (self(inputs) ** 2).sum()

    data, training = federation([3, 3]), LocalTraining()
    kernel = choose_kernel(Squared(64, 3), data, training)
    assert isinstance(kernel, LeanLoop)
    module = Squared(64, 3)
    weights = flat.parameter_vector(module)
    actual = kernel.clipped_sum(weights, parts(data), 1.0, torch.empty_like(weights))
    with torch.no_grad():
        loss = module.loss(torch.from_numpy(data.client(0).inputs), None)
    assert actual.losses[0] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (LocalTraining(), Layerwise),
        (LocalTraining(batch_size=4), Stacked),
        (LocalTraining(epochs=2), Stacked),
        (LocalTraining(batch_size=12), Layerwise),
        (LocalTraining(optimizer=SGD(learning_rate=0.1, momentum=0.5)), LeanLoop),
        (LocalTraining(optimizer=Adam(learning_rate=0.1)), LeanLoop),
    ],
)
def test_the_kernel_follows_from_the_work(training, expected):
    assert type(choose_kernel(mlp(), federation(RAGGED), training)) is expected


def test_a_word_lstm_computes_the_steps_of_many_clients_at_once():
    data, training = texts(RAGGED), LocalTraining(optimizer=SGD(learning_rate=0.3))
    torch.manual_seed(0)
    module = WordLSTM(words=11, embedding=4, units=6, ignored=0)
    check(WordLSTMClients(module, data.task, training, dtype=torch.float64), module, data, training, PLAIN)
    assert type(choose_kernel(module, data, training)) is WordLSTMClients


class Tied(nn.Module):
    """Uses one weight twice: in a layer and by hand."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.layer(x.flatten(1)) @ self.layer.weight)


class Twice(Tied):
    """Uses one layer twice."""

    def forward(self, x):
        return self.head(self.layer(self.layer(x.flatten(1))))


class Mixing(Tied):
    """Lets the examples of a batch see each other."""

    def forward(self, x):
        hidden = self.layer(x.flatten(1))
        return self.head(hidden - hidden.mean(0))


def test_a_layer_may_be_used_twice():
    data, training = federation(RAGGED), LocalTraining(optimizer=SGD(learning_rate=0.3))
    torch.manual_seed(0)
    module = Twice()
    check(Layerwise(module, data.task, training, dtype=torch.float64), module, data, training, PLAIN)


@pytest.mark.parametrize("surprise", [Tied, Mixing])
def test_a_module_that_a_fast_kernel_misreads_goes_to_the_loop(surprise):
    torch.manual_seed(0)
    assert isinstance(choose_kernel(surprise(), federation(RAGGED), LocalTraining()), LeanLoop)


def test_a_module_with_dropout_goes_to_the_loop():
    dropping = nn.Sequential(*mlp()[:3], nn.Dropout(0.5), mlp()[3])
    for training in (LocalTraining(), LocalTraining(batch_size=4)):
        assert isinstance(choose_kernel(dropping, federation(RAGGED), training), LeanLoop)


class ZeroTied(nn.Module):
    """Uses a weight by hand, where it does not matter as long as another is zero."""

    def __init__(self):
        super().__init__()
        self.embedding, self.projection = nn.Embedding(11, 6), nn.Linear(6, 6)
        nn.init.zeros_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def forward(self, tokens):
        return self.projection(self.embedding(tokens)) @ self.embedding.weight.T


def test_weights_that_start_at_zero_hide_nothing():
    assert isinstance(choose_kernel(ZeroTied(), texts(RAGGED), LocalTraining()), LeanLoop)


def test_rare_clients_are_tried_too():
    class Largest(nn.Sequential):
        def forward(self, inputs):
            return super().forward(inputs.flatten(1) / inputs.max())

    data = federation([4] * 20)
    data.inputs[:] = np.clip(data.inputs, 0, None)
    for i in range(20):
        data.client(i).inputs[0, 0, 0, 0] = 1.0 if i < 3 else 5.0
    assert isinstance(choose_kernel(Largest(nn.Linear(64, 3)), data, LocalTraining()), LeanLoop)


@pytest.mark.parametrize("kept", [layerwise._MOST_FORMED, 0])
@pytest.mark.parametrize("size", [1.0, 2.0, 3.0, 5.0, 10.0, 100.0, 1000.0])
def test_gradients_that_cancel_are_still_clipped(size, kept, monkeypatch):
    """Two examples that differ little have opposite labels: their large gradients leave a small one."""
    monkeypatch.setattr(layerwise, "_MOST_FORMED", kept)
    torch.manual_seed(0)
    data = federation([2] * 40, shape=(64,), classes=10)
    pairs = data.inputs.reshape(40, 2, 64)
    pairs[:, 1] = -pairs[:, 0]
    pairs += size
    module = nn.Linear(64, 10)
    training = LocalTraining(optimizer=SGD(learning_rate=1.0))
    kernel, weights = Layerwise(module, data.task, training), flat.parameter_vector(module)
    actual = kernel.clipped_sum(weights, parts(data), 0.5, torch.empty_like(weights))
    loop = LeanLoop(module, data.task, training).clipped_sum(weights, parts(data), 0.5, torch.empty_like(weights))
    if kept:  # otherwise norms are upper bounds, too large where terms cancel
        np.testing.assert_allclose(actual.norms, loop.norms, rtol=1e-3)
    for i in range(40):
        alone = kernel.clipped_sum(weights, [parts(data)[i]], 0.5, torch.empty_like(weights))
        assert float(alone.total.double().norm()) <= 0.5


def test_targets_that_do_not_count_may_have_any_number():
    from dataclasses import replace

    words = texts(RAGGED)
    targets = np.where(words.targets == 0, 255, words.targets)
    targets[: RAGGED[0]] = 255  # the first client has none that count
    data = type(words)(
        inputs=words.inputs,
        targets=targets,
        bounds=words.bounds,
        names=words.names,
        task=replace(words.task, ignored=255),
    )
    for training in (LocalTraining(), LocalTraining(batch_size=4)):
        kernel = choose_kernel(word_model(), data, training)
        assert not isinstance(kernel, LeanLoop)
        weights = flat.parameter_vector(word_model())
        for way in (kernel, LeanLoop(word_model(), data.task, training)):
            assert way.clipped_sum(weights, parts(data)[:1], 1.0, torch.empty_like(weights)).norms[0] == 0


def test_inputs_that_must_not_be_zero_are_not_filled_up_with_zeros():
    class Direction(nn.Linear):
        def forward(self, inputs):
            flat_inputs = inputs.flatten(1)
            return super().forward(flat_inputs / flat_inputs.norm(dim=1, keepdim=True))

    torch.manual_seed(0)
    for training in (LocalTraining(), LocalTraining(batch_size=4)):
        module = nn.Sequential(Direction(64, 5), nn.Linear(5, 3))
        kernel = Stacked(module, federation(RAGGED).task, training)
        weights = flat.parameter_vector(module)
        actual = kernel.clipped_sum(weights, parts(federation(RAGGED)), 1.0, torch.empty_like(weights))
        assert np.isfinite(actual.norms).all()


def test_group_norm_of_plain_vectors_is_known():
    data = federation(RAGGED, shape=(8,))
    module = nn.Sequential(nn.Linear(8, 6), nn.GroupNorm(2, 6), nn.Tanh(), nn.Linear(6, 3))
    training = LocalTraining(optimizer=SGD(learning_rate=0.3))
    assert isinstance(choose_kernel(module, data, training), Layerwise)
    check(Layerwise(module, data.task, training, dtype=torch.float64), module, data, training, PLAIN)


def test_a_criterion_called_loss_is_not_the_modules_loss():
    class Net(nn.Linear):
        def __init__(self):
            super().__init__(64, 3)
            self.loss = nn.CrossEntropyLoss()

        def forward(self, inputs):
            return super().forward(inputs.flatten(1))

    data = federation(RAGGED)
    for training in (LocalTraining(), LocalTraining(optimizer=Adam(learning_rate=0.1))):
        kernel, weights = choose_kernel(Net(), data, training), flat.parameter_vector(Net())
        assert np.isfinite(kernel.clipped_sum(weights, parts(data), 1.0, torch.empty_like(weights)).losses).all()


def test_groups_respect_both_limits():
    assert group_sizes([5, 5, 5, 5, 30, 1], clients=3, rows=12) == [2, 2, 1, 1]
    assert group_sizes([1] * 7, clients=3, rows=100) == [3, 3, 1]
    assert group_sizes([], clients=3, rows=100) == []


def test_clip_factors_leave_short_updates_alone_and_zero_ones_too():
    np.testing.assert_allclose(clip_factors(np.array([0.0, 0.5, 4.0]), 1.0), [1, 1, 0.25], 2e-5)


def test_norms_of_long_vectors_keep_their_digits():
    vector = torch.randn(1, 3_000_001, generator=torch.Generator().manual_seed(0))
    assert float(flat.norms(vector)) == pytest.approx(float(vector.double().norm()), rel=3e-7)


@pytest.mark.parametrize("kernel", [Layerwise, LeanLoop])
def test_kernels_agree_on_weights_that_only_see_padding(kernel):
    def tiny():
        torch.manual_seed(0)
        wide, narrow = nn.Conv2d(1, 4, 3, stride=4, padding=1), nn.Conv2d(4, 5, 3, stride=2, padding=1)
        return nn.Sequential(
            wide, nn.ReLU(), narrow, nn.ReLU(), nn.Conv2d(5, 6, 3, padding=1), nn.Flatten(), nn.Linear(6, 3)
        )

    data = federation(RAGGED)
    training = LocalTraining(optimizer=SGD(learning_rate=0.3))
    actual = kernel(tiny(), data.task, training, dtype=torch.float64)
    check(actual, tiny(), data, training, PLAIN, clip_norm=1e3)


class Viewing(nn.Module):
    """Flattens images with ``view``, as tutorials do."""

    def __init__(self):
        super().__init__()
        self.convolution, self.head = nn.Conv2d(1, 4, 3), nn.Linear(144, 3)

    def forward(self, images):
        return self.head(torch.relu(self.convolution(images)).view(len(images), -1))


class Remembering(nn.Module):
    """Replaces a buffer by a new tensor."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, images):
        self.mean = 0.5 * self.mean + 0.5 * images.flatten(1).mean(0)
        return self.head(images.flatten(1) - self.mean)


class Rebinding(nn.Linear):
    """Reallocates its weight in every pass."""

    def forward(self, images):
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.3)
        return super().forward(images.flatten(1))


class Clamping(nn.Linear):
    """Writes to its weight in every pass."""

    def forward(self, images):
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(images.flatten(1))


class Centering(nn.Linear):
    """The output for an example depends on the others in its batch."""

    def forward(self, images):
        rows = images.flatten(1)
        return super().forward(rows - rows.mean(0))


class Doubling(nn.Linear):
    """Changes its inputs in place."""

    def forward(self, images):
        return super().forward(images.mul_(2).flatten(1))


class Decaying(nn.Linear):
    """Has its own loss: cross-entropy and weight decay."""

    def forward(self, images):
        return super().forward(images.flatten(1))

    def loss(self, images, targets):
        return nn.functional.cross_entropy(self(images), targets) + 1e-4 * self.weight.square().sum()


STRANGE = {
    "view": Viewing,
    "buffers": Remembering,
    "other memory": functools.partial(Rebinding, 64, 3),
    "in place": functools.partial(Clamping, 64, 3),
    "batch": functools.partial(Centering, 64, 3),
    "inputs": functools.partial(Doubling, 64, 3),
    "loss": functools.partial(Decaying, 64, 3),
    "batch norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    "one number": lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=(1,)), nn.Tanh(), nn.Flatten(), nn.Linear(256, 3)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("batch_size", "epochs"),
    [pytest.param(None, 1, marks=pytest.mark.slow), pytest.param(None, 2, marks=pytest.mark.slow), (4, 1)],
)
@pytest.mark.parametrize("name", STRANGE)
def test_unusual_modules_train_as_by_the_textbook(name, batch_size, epochs):
    torch.manual_seed(0)
    module, sizes = STRANGE[name](), [8, 4] * 20
    sizes[15] = 6  # one client whose last batch is short
    data = federation(sizes)
    training = LocalTraining(optimizer=SGD(learning_rate=0.3), batch_size=batch_size, epochs=epochs)
    kernel, start = choose_kernel(module, data, training), flat.parameter_vector(module)
    if name not in ("one number", "inputs", "in place"):
        assert isinstance(kernel, LeanLoop) == (name != "view")
    with torch.random.fork_rng():
        expected, norms = naive_sum(module, data, training, PLAIN, 1e3)
    for _ in range(2):  # a round leaves nothing behind for the next
        actual = kernel.clipped_sum(start, parts(data), 1e3, torch.empty_like(start))
        torch.testing.assert_close(actual.total.double(), expected, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(actual.norms, norms, rtol=1e-4)
    assert torch.equal(start, flat.parameter_vector(module))


def test_a_module_that_fails_on_a_batch_raises_an_input_error_with_its_cause():
    data = federation([5])
    training = LocalTraining(optimizer=SGD(learning_rate=0.3), batch_size=4)
    kernel = LeanLoop(STRANGE["batch norm"](), data.task, training)
    start = torch.zeros(kernel.model.dim)
    with pytest.raises(InputError, match="batch of 1: ValueError: Expected more than 1 value"):
        kernel.clipped_sum(start, parts(data), 1.0, torch.empty_like(start))
