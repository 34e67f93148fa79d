"""Models: parameter counts, gradients of the fused losses, and errors."""

import copy
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from coalmine.errors import InputError
from coalmine.simulation.data.federated import Task
from coalmine.simulation.models import MODELS, build, default_model
from coalmine.simulation.models.text import WordLSTM

DOCS = Path(__file__).parents[3] / "docs" / "simulation.md"

DIGITS = Task(input_shape=(64,), classes=10)
MNIST = Task(input_shape=(1, 28, 28), classes=10)
CIFAR = Task(input_shape=(3, 32, 32), classes=10)
CELEBA = Task(input_shape=(3, 32, 32), classes=2)
CELEBA_84 = Task(input_shape=(3, 84, 84), classes=2)
SENTIMENT = Task(input_shape=(25,), classes=2, tokens=101)
NEXT_CHARACTER = Task(input_shape=(12,), classes=80, tokens=80)
CHARACTERS = Task(input_shape=(12,), classes=80, tokens=80, per_position=True, ignored=0)
WORDS = Task(input_shape=(9,), classes=300, tokens=300, per_position=True, ignored=0)

FITTING = [
    ("logistic", DIGITS),
    ("logistic", MNIST),
    ("mlp", DIGITS),
    ("mlp", CIFAR),
    ("ldp-cnn", MNIST),
    ("ldp-cnn", CIFAR),
    ("leaf-cnn", CELEBA),
    ("leaf-cnn", CELEBA_84),
    ("leaf-cnn", MNIST),
    ("leaf-cnn", Task(input_shape=(1, 8, 8), classes=10)),
    ("resnet18-gn", CELEBA),
    ("sent140-lstm", SENTIMENT),
    ("shakespeare-lstm", CHARACTERS),
    ("shakespeare-lstm", NEXT_CHARACTER),
    ("word-lstm", WORDS),
]
LANGUAGE = [pair for pair in FITTING if pair[1].tokens is not None]
FAST = {"word-lstm": {"embedding": 6, "units": 7}}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def batch(task: Task, n: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if task.tokens is None:
        inputs = torch.rand(n, *task.input_shape, generator=generator)
    else:
        inputs = torch.randint(1, task.tokens, (n, *task.input_shape), generator=generator)
    return inputs, torch.randint(1, task.classes, (n, *task.target_shape), generator=generator)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, task: Task) -> torch.Tensor:
    return functional.cross_entropy(logits.reshape(-1, task.classes), targets.reshape(-1), ignore_index=task.ignored)


class PlainWordLSTM(nn.Module):
    """The word LSTM as a textbook writes it: the reference for the fused loss."""

    def __init__(self, fast: WordLSTM) -> None:
        super().__init__()
        self.embedding = fast.embedding
        self.input_gates = fast.input_gates
        self.recurrent_gates = fast.recurrent_gates
        self.projection = fast.projection

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(tokens)
        units = self.projection.in_features
        hidden = embedded.new_zeros(len(tokens), embedded.shape[2])
        cell = embedded.new_zeros(len(tokens), units)
        logits = []
        for position in range(tokens.shape[1]):
            gates = self.input_gates(embedded[:, position]) + self.recurrent_gates(hidden)
            forget = torch.sigmoid(gates[:, :units])
            output = torch.sigmoid(gates[:, units : 2 * units])
            candidate = torch.tanh(gates[:, 2 * units :])
            cell = forget * cell + (1 - forget) * candidate
            hidden = self.projection(output * torch.tanh(cell))
            logits.append(hidden @ self.embedding.weight.t())
        return torch.stack(logits, 1)


def padded(task: Task, lengths: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences of these lengths."""
    inputs, targets = batch(task, len(lengths), seed)
    for row, length in enumerate(lengths):
        inputs[row, length:] = 0
        targets[row, length:] = 0
    return inputs, targets


@pytest.mark.parametrize(
    ("name", "task", "count"),
    [
        ("logistic", DIGITS, 650),
        ("mlp", DIGITS, 9_610),
        ("ldp-cnn", MNIST, 10_650),
        ("leaf-cnn", CELEBA, 29_282),
        ("resnet18-gn", CELEBA, 11_177_538),
        ("sent140-lstm", SENTIMENT, 272_102),
        ("shakespeare-lstm", CHARACTERS, 819_920),
        ("word-lstm", Task(input_shape=(20,), classes=10_000, tokens=10_000, per_position=True), 1_412_250),
    ],
)
def test_the_number_of_parameters_is_the_papers_and_the_documented_one(name: str, task: Task, count: int) -> None:
    assert parameters(build(name, task)) == count
    row = next(line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{name}`"))
    assert f"{count:,}" in row
    for setting, default in (getattr(MODELS[name], "__kwdefaults__", None) or {}).items():
        assert f"`{setting}={default}`" in row


def test_every_model_is_documented_and_tried() -> None:
    assert {name for name, _ in FITTING} == set(MODELS)
    table = DOCS.read_text().split("## Models")[1]
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE)[: len(MODELS)] == list(MODELS)


def test_the_documented_counts_of_other_layouts_hold() -> None:
    assert parameters(build("sent140-lstm", Task(input_shape=(5,), classes=2, tokens=7))) == 241_802 + 300 * 7


@given(words=st.integers(2, 50), embedding=st.integers(1, 9), units=st.integers(1, 9))
def test_the_word_lstm_has_as_many_parameters_as_its_formula(words: int, embedding: int, units: int) -> None:
    task = Task(input_shape=(3,), classes=words, tokens=words, per_position=True)
    count = words * embedding + 3 * units * (2 * embedding + 1) + units * embedding
    assert parameters(build("word-lstm", task, embedding=embedding, units=units)) == count


@pytest.mark.parametrize(("name", "task"), FITTING)
def test_logits_have_the_shape_of_the_task(name: str, task: Task) -> None:
    logits = build(name, task, **FAST.get(name, {}))(batch(task)[0])
    assert logits.shape == (4, *task.target_shape, task.classes)
    assert logits.dtype == torch.float32


@pytest.mark.parametrize(("name", "task"), FITTING)
def test_no_model_has_a_batch_norm_or_statistics_outside_of_its_weights(name: str, task: Task) -> None:
    assert list(build(name, task, **FAST.get(name, {})).buffers()) == []


@pytest.mark.parametrize("name", ["mlp", "leaf-cnn"])
def test_the_same_seed_gives_the_same_bits_and_others_do_not(name: str) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, again, other = (build(name, MNIST, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [nn.utils.parameters_to_vector(model.parameters()) for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("name", "task"),
    [
        pytest.param(name, task, marks=[pytest.mark.slow] * (task is CELEBA_84 or name == "resnet18-gn"))
        for name, task in FITTING
    ],
)
def test_every_model_learns_a_tiny_batch_by_heart(name: str, task: Task) -> None:
    settings = {"word-lstm": {"embedding": 32, "units": 64}}.get(name, {})
    model = build(name, task, **settings)
    inputs, targets = batch(task)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001 if name == "resnet18-gn" else 0.01)
    start = cross_entropy(model(inputs), targets, task).item()
    assert start < 2.5 * math.log(task.classes)
    for _ in range(8 if name == "resnet18-gn" else 40):
        optimizer.zero_grad()
        loss = model.loss(inputs, targets) if hasattr(model, "loss") else cross_entropy(model(inputs), targets, task)
        loss.backward()
        optimizer.step()
    assert cross_entropy(model(inputs), targets, task).item() < 0.6 * start


@pytest.mark.parametrize(("name", "task"), LANGUAGE)
def test_language_models_can_be_differentiated_twice_by_embedded_tokens(name: str, task: Task) -> None:
    model = build(name, task, **FAST.get(name, {}))
    tokens, targets = batch(task, n=2)

    def penalty_gradient(dtype: torch.dtype) -> torch.Tensor:
        """Of the squared norm of the weights' gradient by the embedded tokens."""
        twin = copy.deepcopy(model).to(dtype)
        embedded = twin.embedding(tokens).detach().requires_grad_()
        weights = [p for p in twin.parameters() if p is not twin.embedding.weight]
        twin.embedding.register_forward_hook(lambda *_: embedded)
        loss = cross_entropy(twin(tokens), targets, task)
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        (by_embedded,) = torch.autograd.grad(sum(g.square().sum() for g in gradients), embedded)
        return by_embedded.double()

    exact, rounded = penalty_gradient(torch.float64), penalty_gradient(torch.float32)
    assert exact.abs().max() > 0
    torch.testing.assert_close(rounded, exact, rtol=1e-3, atol=1e-4 * exact.abs().max().item())


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    different=st.sampled_from([1, 2, 300]),
    seed=st.integers(0, 5),
)
def test_the_word_lstms_gradients_are_those_of_the_plain_one(lengths: list[int], different: int, seed: int) -> None:
    fast = build("word-lstm", WORDS, seed=seed, embedding=6, units=7).double()
    inputs, targets = padded(WORDS, lengths, seed)
    inputs %= different  # with few different words many sentences begin alike
    if sum(lengths) > 1:
        targets[lengths.index(max(lengths)), 0] = 0
    weights = list(fast.parameters())
    expected = cross_entropy(PlainWordLSTM(fast)(inputs), targets, WORDS)
    loss = fast.loss(inputs, targets)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(expected, weights)
    for a, b in zip(torch.autograd.grad(3 * loss, weights), gradients, strict=True):
        torch.testing.assert_close(a, 3 * b, rtol=0, atol=1e-10)
    torch.testing.assert_close(fast(inputs), PlainWordLSTM(fast)(inputs), rtol=0, atol=1e-12)


def test_the_fast_loss_is_right_where_the_targets_chance_underflows() -> None:
    model = build("word-lstm", WORDS, **FAST["word-lstm"])
    with torch.no_grad():
        model.embedding.weight.mul_(3000)
    inputs, targets = batch(WORDS)
    expected = cross_entropy(model(inputs), targets, WORDS)
    assert expected > 200
    torch.testing.assert_close(model.loss(inputs, targets), expected, rtol=1e-4, atol=0)


def test_padding_changes_nothing() -> None:
    model = build("word-lstm", WORDS, **FAST["word-lstm"])
    weights = list(model.parameters())
    inputs, targets = padded(WORDS, [9, 4, 7, 0])
    changed = torch.where(targets == 0, 17, inputs)
    gradients = [torch.autograd.grad(model.loss(tokens, targets), weights) for tokens in (inputs, changed)]
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


def test_without_a_target_that_counts_loss_and_gradient_are_zero() -> None:
    model = build("word-lstm", WORDS, **FAST["word-lstm"])
    inputs, targets = padded(WORDS, [0, 0])
    loss = model.loss(inputs, targets)
    assert loss.item() == 0
    assert not any(g.any() for g in torch.autograd.grad(loss, list(model.parameters())))


def test_a_task_without_ignored_targets_counts_all() -> None:
    task = Task(input_shape=(9,), classes=300, tokens=300, per_position=True)
    model = build("word-lstm", task, **FAST["word-lstm"])
    inputs, targets = padded(WORDS, [9, 4])
    torch.testing.assert_close(model.loss(inputs, targets), cross_entropy(model(inputs), targets, task))


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (DIGITS, "mlp"),
        (Task(input_shape=(1, 8, 8), classes=10), "mlp"),
        (MNIST, "ldp-cnn"),
        (CELEBA_84, "leaf-cnn"),
        (SENTIMENT, "sent140-lstm"),
        (NEXT_CHARACTER, "shakespeare-lstm"),
        (CHARACTERS, "shakespeare-lstm"),
        (WORDS, "word-lstm"),
    ],
)
def test_the_default_model_fits(task: Task, name: str) -> None:
    assert default_model(task) == name
    build(name, task)


@pytest.mark.parametrize(
    ("name", "task", "settings", "message"),
    [
        ("leaf-cn", CELEBA, {}, "'leaf-cn'.*leaf-cnn"),
        ("zzz", CELEBA, {}, "'zzz'.*logistic, mlp"),
        ("mlp", DIGITS, {"hiden": 3}, "mlp has no setting 'hiden'.*hidden"),
        ("logistic", DIGITS, {"hidden": 3}, "logistic has no setting 'hidden'"),
        ("mlp", DIGITS, {"hidden": 0}, "hidden must .* got 0"),
        ("mlp", DIGITS, {"layers": 1.5}, "layers must .* got 1.5"),
        ("mlp", DIGITS, {"layers": "2"}, "layers .*number of at least 1, got '2'"),
        ("mlp", WORDS, {}, "mlp fails on inputs"),
        ("leaf-cnn", DIGITS, {}, "leaf-cnn failed"),
        ("ldp-cnn", Task(input_shape=(1, 8, 8), classes=10), {}, "ldp-cnn failed"),
        ("word-lstm", MNIST, {}, r"takes tokens.*\(1, 28, 28\)"),
        ("word-lstm", NEXT_CHARACTER, {}, "word-lstm must return logits"),
        (
            "word-lstm",
            Task(input_shape=(5,), classes=7, tokens=9, per_position=True),
            {},
            r"\(2, 5, 7\).* got \(2, 5, 9\)",
        ),
        ("mlp", Task(input_shape=(5,), classes=7, per_position=True), {}, "mlp must return logits"),
    ],
)
def test_a_model_that_does_not_fit_raises(name: str, task: Task, settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, task, **settings)


def test_the_documented_user_model_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = (
        code for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "small_cnn" in code
    )
    (tmp_path / "net.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    model = build("net.py:small_cnn", MNIST, seed=1, filters=16)
    assert model(torch.zeros(5, 1, 28, 28)).shape == (5, 10)
    assert model[0].out_channels == 16
    with pytest.raises(InputError, match=r"net.py:small_cnn has no setting 'filter'.*filters"):
        build("net.py:small_cnn", MNIST, filter=16)


@pytest.mark.parametrize(
    ("source", "function", "message"),
    [
        ("x = 1", "net", r"net.py has no function 'net'"),
        ("net = 1", "net", r"net.py has no function 'net'"),
        ("def net(): return 3", "net", r"net.py:net must return a torch.nn.Module, got int"),
        ("import nonsense_module", "net", r"net.py' fails when it is run: ModuleNotFoundError: .*nonsense_module"),
        ("def net(:", "net", r"net.py' fails when it is run: SyntaxError"),
        ("def net(task): raise KeyError('w')", "net", r"net.py:net failed: KeyError: 'w'"),
        (
            "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 9))",
            "net",
            r"logits of the shape \(2, 10\) .* got \(2, 9\)",
        ),
        (
            "from torch import nn\ndef net(): return nn.Linear(3, 10)",
            "net",
            r"fails on inputs of the shape \(2, 1, 28, 28\): RuntimeError",
        ),
        (
            "from torch import nn\nclass net(nn.Module):\n  def forward(self, x): return 3",
            "net",
            r"logits of the shape \(2, 10\) .* got int",
        ),
        ("", "", r"given as path.py:function, got"),
    ],
)
def test_a_broken_user_model_raises(tmp_path: Path, source: str, function: str, message: str) -> None:
    file = tmp_path / "net.py"
    file.write_text(source)
    with pytest.raises(InputError, match=message):
        build(f"{file}:{function}", MNIST)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file '.*gone.py'"):
        build(f"{tmp_path / 'gone.py'}:net", MNIST)
    with pytest.raises(InputError, match=r"given as path.py:function, got 'net.py'"):
        build("net.py", MNIST)


def test_a_user_model_may_predict_tokens(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\n"
        "def net(task): return nn.Sequential(nn.Embedding(task.tokens, 4), nn.Linear(4, task.classes))"
    )
    assert build(f"{file}:net", WORDS)(batch(WORDS)[0]).shape == (4, 9, 300)
