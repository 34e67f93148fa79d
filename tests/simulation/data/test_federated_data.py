"""Examples by client: sharing and validation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalmine.errors import InputError
from coalmine.simulation.data import FederatedData, Task

TASK = Task(input_shape=(2,), classes=3)


def make(sizes=(2, 3, 1), *, task=TASK, **changes):
    count = sum(sizes)
    stops = np.cumsum(sizes)
    settings = {
        "inputs": np.arange(2 * count, dtype=np.float32).reshape(count, 2),
        "targets": np.arange(count) % 3,
        "bounds": np.stack([stops - sizes, stops], axis=1),
        "names": [f"w{i}" for i in range(len(sizes))],
    }
    return FederatedData(**{**settings, "task": task, **changes})


def test_a_client_is_a_view_of_the_one_array():
    data = make()
    client = data.client(1)
    assert np.shares_memory(client.inputs, data.inputs)
    assert np.shares_memory(client.targets, data.targets)
    assert len(client) == 3
    assert client.inputs[0, 0] == 4
    assert [len(client) for client in data] == data.sizes.tolist() == [2, 3, 1]


def test_rows_gather_a_clients_examples():
    data = make(rows=np.array([5, 4, 3, 2, 1, 0]))
    assert data.client(0).inputs[:, 0].tolist() == [10, 8]
    assert data.indices.tolist() == [5, 4, 3, 2, 1, 0]
    assert data.pooled().targets.tolist() == [2, 1, 0, 2, 1, 0]


def test_a_subset_shares_the_arrays_and_keeps_the_order_asked_for():
    data = make()
    part = data.subset([2, 0])
    assert part.inputs is data.inputs
    assert part.names == ["w2", "w0"]
    assert part.client(1).inputs.tolist() == data.client(0).inputs.tolist()
    assert part.pooled().inputs[:, 0].tolist() == [10, 0, 2]
    assert part.subset([1]).names == ["w0"]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_pooled_examples_are_the_clients_one_after_the_other(sizes, draw):
    data = make(tuple(sizes))
    chosen = draw.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True))
    part = data.subset(chosen)
    assert np.array_equal(part.pooled().inputs, np.concatenate([client.inputs for client in part]))
    assert np.array_equal(part.pooled().inputs, data.inputs[part.indices])


def test_users_in_a_column_become_clients_in_order_of_appearance():
    users = np.array([7, 7, 3, 7, 3, 9])
    inputs = np.arange(6.0, dtype=np.float32)[:, None]
    task = Task(input_shape=(1,), classes=2)
    data = FederatedData.from_users(inputs=inputs, targets=np.zeros(6, int), users=users, task=task)
    assert data.names == ["7", "3", "9"]
    assert [client.inputs[:, 0].tolist() for client in data] == [[0, 1, 3], [2, 4], [5]]
    assert np.shares_memory(data.client(0).inputs, data.inputs)


def test_users_already_in_order_are_not_copied():
    inputs = np.zeros((4, 2), dtype=np.float32)
    data = FederatedData.from_users(inputs=inputs, targets=np.zeros(4, int), users=["a", "a", "b", "b"], task=TASK)
    assert data.inputs is inputs


def test_every_example_needs_a_user():
    with pytest.raises(InputError, match="6 examples and 3 users"):
        FederatedData.from_users(
            inputs=np.zeros((6, 2), np.float32), targets=np.zeros(6, int), users=[0, 1, 2], task=TASK
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": np.array([[0, 2], [2, 2], [2, 6]])}, "client 'w1' must .* bounds \\[2, 2\\]"),
        ({"bounds": np.array([[0, 2], [2, 4], [4, 7]])}, "client 'w2' must .* bounds \\[4, 7\\]"),
        ({"bounds": np.array([[-1, 2], [2, 4], [4, 6]])}, "client 'w0' must .* bounds \\[-1, 2\\]"),
        ({"targets": np.array([0, 1, 2, 3, 0, 0])}, r"label must be in 0..2, got 3 in example 3"),
        ({"targets": np.array([0, 1, 2, -1, 0, 0])}, r"label must be in 0..2, got -1 in example 3"),
        ({"targets": np.zeros(6)}, "label must be an integer, got float64"),
        ({"targets": np.zeros((6, 2), int)}, r"target \(\), got .* \(2,\)"),
        ({"targets": np.zeros(5, int)}, "6 inputs, 5 targets"),
        ({"inputs": np.zeros((6, 3), np.float32)}, r"shape \(2,\) .* got \(3,\)"),
        ({"inputs": np.array([[0, 0]] * 5 + [[0, np.nan]])}, "must be finite, got nan"),
        ({"inputs": np.array([[0, 0]] * 4 + [[-np.inf, 0]] * 2)}, "must be finite, got -inf"),
        ({"task": Task(input_shape=(2,), classes=3, tokens=4)}, "token must be an integer"),
    ],
)
def test_invalid_arrays_raise(changes, message):
    with pytest.raises(InputError, match=message):
        make(**changes)


def test_tokens_outside_the_vocabulary_raise():
    tokens = np.zeros((6, 2), dtype=int)
    tokens[5, 1] = 11
    with pytest.raises(InputError, match=r"token must be in 0..3, got 11 in example 5"):
        make(inputs=tokens, task=Task(input_shape=(2,), classes=3, tokens=4))


def test_an_ignored_target_may_lie_outside_the_classes():
    task = Task(input_shape=(2,), classes=3, ignored=-100)
    assert len(make(task=task, targets=np.array([0, 1, -100, 2, 0, 1]))) == 3
    with pytest.raises(InputError, match="got -99 in example 2"):
        make(task=task, targets=np.array([0, 1, -99, -100, 0, 1]))


@pytest.mark.parametrize(
    "settings",
    [
        {"input_shape": (2,), "classes": 1},
        {"input_shape": (2, 2), "classes": 2, "per_position": True},
    ],
)
def test_a_task_that_makes_no_sense_raises(settings):
    with pytest.raises(InputError):
        Task(**settings)


def test_data_shows_its_size_instead_of_its_arrays():
    assert repr(make()) == "FederatedData(3 clients of 1 to 3 examples, 6 in all, 2, 3 classes)"


def test_a_fingerprint_tells_data_apart_by_examples_and_by_who_holds_them():
    data = make()
    others = [make(targets=np.arange(6)[::-1] % 3), make((3, 2, 1)), make(rows=np.arange(6)[::-1]), data.subset([0, 1])]
    assert make().fingerprint == data.fingerprint
    assert len({data.fingerprint, *(other.fingerprint for other in others)}) == 5
