"""Examples by client: sharing, validation, saving."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalmine.errors import InputError
from coalmine.simulation.data import FederatedData, Splits, Task, Vocabulary, checks, federated, open_saved, save

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


def language(texts=20, positions=5, entries=9):
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, entries, size=(texts, positions + 1)).astype(np.int16)
    tokens[::3, -2:] = 0
    words = Vocabulary(("<pad>", "<begin>", "<end>", "<unknown>", *"abcdefgh"[: entries - 4]))
    task = Task(input_shape=(positions,), classes=entries, tokens=entries, per_position=True, ignored=0)
    return FederatedData(
        inputs=tokens[:, :-1],
        targets=tokens[:, 1:],
        bounds=np.array([[0, 5], [5, 20]]),
        names=["ann", "bob"],
        task=task,
        vocabulary=words,
    )


def test_a_client_is_a_view_of_the_one_array():
    data = make()
    client = data.client(1)
    assert np.shares_memory(client.inputs, data.inputs)
    assert np.shares_memory(client.targets, data.targets)
    assert len(client) == 3
    assert client.inputs[0, 0] == 4
    assert [len(client) for client in data] == data.sizes.tolist() == [2, 3, 1]
    assert np.array_equal(data.client(-1).inputs, data.client(2).inputs)


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


def test_a_subset_does_not_check_the_arrays_again(monkeypatch):
    data = make()
    for check in ("check_inputs", "check_targets"):
        monkeypatch.setattr(federated, check, lambda *_: pytest.fail("checked again"))
    assert len(data.subset([1, 2])) == 2


def test_pooled_examples_are_a_view_where_clients_are_neighbors():
    data = make()
    assert np.shares_memory(data.subset([1, 2]).pooled().inputs, data.inputs)
    assert not np.shares_memory(data.subset([0, 2]).pooled().inputs, data.inputs)


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


@pytest.mark.parametrize("users", [np.zeros(3, int), np.zeros((6, 1), int), np.zeros(6)])
def test_a_column_of_users_must_fit(users):
    with pytest.raises(InputError, match="users must be"):
        FederatedData.from_users(inputs=np.zeros((6, 2), np.float32), targets=np.zeros(6, int), users=users, task=TASK)


def test_an_empty_client_raises_by_name():
    with pytest.raises(InputError, match="client 'w1' has no examples"):
        make(bounds=np.array([[0, 2], [2, 2], [2, 6]]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": np.empty((0, 2), int), "names": []}, "no clients"),
        ({"bounds": np.array([[0, 2], [2, 4], [4, 7]])}, r"client 'w2' has the bounds 4:7, outside of 0:6"),
        ({"bounds": np.array([[-1, 2], [2, 4], [4, 6]])}, r"client 'w0' has the bounds -1:2"),
        ({"bounds": np.array([0, 2, 6])}, "bounds must be pairs"),
        ({"bounds": np.array([[0.0, 6.0]])}, "bounds must be pairs"),
        ({"names": ["a"]}, "every client needs a name, got 1 names for 3 clients"),
        ({"rows": np.array([0, 1, 2, 3, 4, 6])}, r"rows must be in 0..5, got 6"),
        ({"rows": np.zeros(6)}, "rows must be a list"),
        ({"targets": np.array([0, 1, 2, 3, 0, 0])}, r"label must be in 0..2, got 3 in example 3"),
        ({"targets": np.array([0, 1, 2, -1, 0, 0])}, r"label must be in 0..2, got -1 in example 3"),
        ({"targets": np.zeros(6)}, "labels must .* got float64"),
        ({"targets": np.zeros((6, 2), int)}, "targets of an example"),
        ({"targets": np.zeros(5, int)}, "6 inputs, 5 targets"),
        ({"inputs": np.zeros((6, 3), np.float32)}, r"must have the shape \(2,\), got \(3,\)"),
        ({"inputs": np.zeros((6, 2), np.int64)}, "uint8 pixels or floating-point"),
        ({"inputs": np.array([[0, 0]] * 5 + [[0, np.nan]])}, "must be finite, got nan in example 5"),
        ({"inputs": np.array([[0, 0]] * 4 + [[-np.inf, 0]] * 2)}, "must be finite, got -inf in example 4"),
        ({"task": Task(input_shape=(2,), classes=3, tokens=4)}, "tokens must be"),
        ({"vocabulary": Vocabulary("abc", level="characters", marks=0)}, "3 entries, .* None tokens"),
    ],
)
def test_invalid_arrays_raise(changes, message, monkeypatch):
    monkeypatch.setattr(checks, "_BLOCK", 4)  # two examples at a time: the row must be right in later blocks too
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


@pytest.mark.parametrize("index", [3, -4])
def test_a_client_that_is_not_there_raises(index):
    with pytest.raises(InputError, match=rf"must be in 0..2, got {index}"):
        make().client(index)


@pytest.mark.parametrize("indices", [[], [3], [-1], [0.5], [[0]]])
def test_a_subset_of_clients_that_are_not_there_raises(indices):
    with pytest.raises(InputError, match="ind"):
        make().subset(indices)


@pytest.mark.parametrize(
    "settings",
    [
        {"input_shape": (), "classes": 2},
        {"input_shape": (0,), "classes": 2},
        {"input_shape": (2,), "classes": 1},
        {"input_shape": (2,), "classes": 2, "tokens": 1},
        {"input_shape": (2, 2), "classes": 2, "per_position": True},
    ],
)
def test_a_task_that_makes_no_sense_raises(settings):
    with pytest.raises(InputError):
        Task(**settings)


def test_splits_of_different_tasks_raise():
    with pytest.raises(InputError, match="one task"):
        Splits(train=make(), test=make(task=Task(input_shape=(2,), classes=4)), pool=None)


def test_data_shows_its_size_instead_of_its_arrays():
    assert repr(make()) == "FederatedData(3 clients of 1 to 3 examples, 6 in all, 2, 3 classes)"


def test_saved_data_comes_back_memory_mapped(tmp_path):
    data = make(rows=np.array([5, 4, 3, 2, 1, 0]))
    save(Splits(train=data, test=data.subset([1]), pool=data.subset([2])), tmp_path / "kept")
    back = open_saved(tmp_path / "kept")
    assert isinstance(back.train.inputs, np.memmap)
    assert not back.train.inputs.flags.writeable
    assert back.train.task == data.task
    assert back.train.names == data.names
    assert back.test.names == ["w1"]
    assert back.pool is not None
    for i in range(3):
        assert np.array_equal(back.train.client(i).inputs, data.client(i).inputs)
        assert np.array_equal(back.train.client(i).targets, data.client(i).targets)
    assert np.array_equal(back.pool.client(0).inputs, data.client(2).inputs)


def test_saved_language_data_is_written_once_and_comes_back_as_views_of_one_array(tmp_path):
    data = language()
    save(Splits(train=data, test=data.subset([1])), tmp_path)
    assert sorted(file.name for file in (tmp_path / "train").iterdir()) == ["bounds.npy", "tokens.npy"]
    back = open_saved(tmp_path)
    assert np.shares_memory(back.train.inputs, back.train.targets)
    assert np.array_equal(back.train.inputs, data.inputs)
    assert np.array_equal(back.train.targets, data.targets)
    assert back.train.vocabulary.entries == data.vocabulary.entries
    assert back.pool is None


def test_saving_again_replaces_what_was_saved(tmp_path):
    save(Splits(train=language(), test=language()), tmp_path)
    save(Splits(train=make(), test=make()), tmp_path)
    assert np.array_equal(open_saved(tmp_path).train.inputs, make().inputs)


def test_data_is_not_saved_among_other_files(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="must be a new"):
        save(Splits(train=make(), test=make()), tmp_path)


def test_a_directory_without_an_index_holds_no_saved_data(tmp_path):
    with pytest.raises(InputError, match=r"coalmine-data\.json is missing"):
        open_saved(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("coalmine-data.json", b"{", "not JSON"),
        ("coalmine-data.json", b'{"version": 2}', "version 2"),
        ("coalmine-data.json", b'{"version": 1}', "not an index of saved data"),
        ("train/inputs.npy", b"\x93NUMPY", "truncated"),
        ("train/inputs.npy", None, "is missing"),
    ],
)
def test_saved_data_that_was_damaged_raises(tmp_path, file, content, message):
    save(Splits(train=make(), test=make()), tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_saved(tmp_path)


def test_saved_labels_are_checked_when_opened(tmp_path):
    save(Splits(train=make(), test=make()), tmp_path)
    np.save(tmp_path / "train" / "targets.npy", np.full(6, 7))
    with pytest.raises(InputError, match=r"label must be in 0..2, got 7"):
        open_saved(tmp_path)


def test_saved_data_never_needs_pickle(tmp_path):
    save(Splits(train=make(), test=make()), tmp_path)
    np.save(tmp_path / "train" / "targets.npy", np.array([{}] * 6, dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"not an \.npy file"):
        open_saved(tmp_path)


def test_the_index_of_saved_data_is_plain_json(tmp_path):
    save(Splits(train=make(), test=make()), tmp_path)
    assert json.loads((tmp_path / "coalmine-data.json").read_text())["names"]["train"] == ["w0", "w1", "w2"]


def test_importing_the_data_package_loads_neither_torch_nor_scikit_learn():
    check = (
        "import coalmine.simulation.data, sys; print([m for m in ('torch', 'sklearn', 'scipy') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
