"""The loss of the stacked LSTMs, against autograd through ``nn.LSTM``."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from coalmine.simulation.data.federated import Task
from coalmine.simulation.models import build
from coalmine.simulation.models.text import TokenLSTM

SETTINGS = {"embedding": 3, "hidden": 5}
CHARACTERS = Task(input_shape=(6,), classes=7, tokens=9, per_position=True, ignored=0)
LABELS = Task(input_shape=(6,), classes=4, tokens=9)


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coalmine.simulation.models.text._MANY", 1)


def examples(
    task: Task, n: int = 4, positions: int = 6, seed: int = 0, lowest: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(task.tokens, (n, positions), generator=generator)
    shape = (n, positions) if task.per_position else (n,)
    return inputs, torch.randint(lowest, task.classes, shape, generator=generator)


def plain(model: TokenLSTM, inputs: torch.Tensor, targets: torch.Tensor, ignored: int | None) -> torch.Tensor:
    skipped = -100 if ignored is None else ignored
    return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten(), ignore_index=skipped)


def assert_same(model: TokenLSTM, inputs: torch.Tensor, targets: torch.Tensor, ignored: int | None) -> None:
    weights = list(model.parameters())
    expected, found = plain(model, inputs, targets, ignored), model.loss(inputs, targets)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(3 * expected, weights)
    for a, b in zip(torch.autograd.grad(3 * found, weights), gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@given(
    n=st.integers(1, 5),
    positions=st.integers(1, 7),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3)),
    per_position=st.booleans(),
    ignored=st.sampled_from([None, 0, 3, -1]),
    scale=st.sampled_from([1.0, 6.0]),
    seed=st.integers(0, 9),
)
def test_loss_and_gradients_are_those_of_autograd_through_the_layers(
    n: int,
    positions: int,
    sizes: tuple[int, int, int],
    per_position: bool,
    ignored: int | None,
    scale: float,
    seed: int,
) -> None:
    task = Task(input_shape=(positions,), classes=5, tokens=4, per_position=per_position, ignored=ignored)
    embedding, hidden, layers = sizes
    model = build("shakespeare-lstm", task, seed=seed, embedding=embedding, hidden=hidden, layers=layers).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)  # large weights saturate the gates
    inputs, targets = examples(task, n, positions, seed, lowest=min(0, ignored or 0))
    targets.view(-1)[0] = 1  # one counts, or the plain mean is that of nothing
    assert_same(model, inputs, targets, ignored)


def test_the_sentiment_model_has_it_too() -> None:
    model = build("sent140-lstm", LABELS, **SETTINGS).double()
    assert_same(model, *examples(LABELS, lowest=0), None)


def test_single_precision_is_close_to_double_at_the_published_size() -> None:
    task = Task(input_shape=(80,), classes=80, tokens=80, per_position=True, ignored=0)
    model = build("shakespeare-lstm", task)
    inputs, targets = examples(task, n=3, positions=80)
    found = torch.autograd.grad(model.loss(inputs, targets), list(model.parameters()))
    exact = copy.deepcopy(model).double()
    expected = torch.autograd.grad(plain(exact, inputs, targets, 0), list(exact.parameters()))
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() < 1e-5 * b.norm()


@pytest.mark.parametrize("many", [1, 99])
@pytest.mark.parametrize("task", [CHARACTERS, Task(input_shape=(6,), classes=7, tokens=9, ignored=0)])
def test_without_a_target_that_counts_loss_and_gradient_are_zero(
    task: Task, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coalmine.simulation.models.text._MANY", many)
    model = build("shakespeare-lstm", task, **SETTINGS)
    inputs, targets = examples(task)
    loss = model.loss(inputs, torch.zeros_like(targets))
    assert loss.item() == 0
    assert not any(g.any() for g in torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("task", [CHARACTERS, LABELS])
def test_few_examples_give_the_same_by_way_of_the_layers(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coalmine.simulation.models.text._MANY", 5)
    model = build("shakespeare-lstm", task, **SETTINGS).double()
    monkeypatch.setattr("coalmine.simulation.models.text.LSTMLoss", None)
    assert_same(model, *examples(task, lowest=0), task.ignored)


def test_inputs_after_the_last_target_that_counts_change_nothing() -> None:
    model = build("shakespeare-lstm", CHARACTERS, **SETTINGS).double()
    weights = list(model.parameters())
    inputs, targets = examples(CHARACTERS)
    targets[1, 2:] = 0
    changed = inputs.clone()
    changed[1, 2:] = 8 - inputs[1, 2:]
    gradients = [torch.autograd.grad(model.loss(tokens, targets), weights) for tokens in (inputs, changed)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_no_state_of_a_call_leaks_into_the_next() -> None:
    model = build("shakespeare-lstm", CHARACTERS, **SETTINGS)
    weights = list(model.parameters())
    inputs, targets = examples(CHARACTERS)
    first = model.loss(inputs, targets)
    model.loss(*examples(CHARACTERS, n=9, seed=1))
    kept = torch.autograd.grad(first, weights)
    for a, b in zip(torch.autograd.grad(model.loss(inputs, targets), weights), kept, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_used_model_share_no_scratch_memory(copied) -> None:
    model = build("shakespeare-lstm", CHARACTERS, **SETTINGS)
    inputs, targets = examples(CHARACTERS)
    loss = model.loss(inputs, targets)
    twin = copied(model)
    assert twin._workspace is not model._workspace
    assert not twin._workspace._buffers
    assert torch.equal(twin.loss(inputs, targets), loss)
