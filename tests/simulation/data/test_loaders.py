"""Loading by name and from files, and the errors of files that cannot be loaded."""

import doctest
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.simulation.data import NAMES, Balanced, Dirichlet, Iid, load, open_saved, repartition, save

needs_data = pytest.mark.skipif("COALMINE_DATA" not in os.environ, reason="COALMINE_DATA names no directory of data")
RNG = np.random.default_rng(0)


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def write_lines(path, *records, opener=open):
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def plain_arrays(users=10, each=4):
    count = users * each
    return {
        "x": RNG.integers(0, 256, size=(count, 5, 5), dtype=np.uint8),
        "y": np.arange(count) % 3,
        "user": np.tile(np.arange(users), each),
    }


def talk(users=10, lines=3):
    return [{"user": f"u{i}", "text": f"hello number {i} line {j}"} for j in range(lines) for i in range(users)]


def test_an_unknown_name_raises_with_the_nearest_names():
    with pytest.raises(InputError, match=r"no data set and no file 'fashionmnist'; did you mean fashion-mnist"):
        load("fashionmnist")
    with pytest.raises(InputError, match=r"digits, generated-text, mnist"):
        load("zzzzzz")


def test_a_name_without_its_directory_raises(monkeypatch, tmp_path):
    monkeypatch.delenv("COALMINE_DATA", raising=False)
    with pytest.raises(
        InputError, match=r"mnist needs the file mnist\.npz: set the environment variable COALMINE_DATA"
    ):
        load("mnist")
    monkeypatch.setenv("COALMINE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"scotus_speakers\.jsonl\.gz, which is not in .* \(COALMINE_DATA\)"):
        load("scotus")


def test_digits_need_no_file():
    pytest.importorskip("sklearn")
    splits = load("digits")
    assert len(splits.train) == 50
    assert splits.train.sizes.sum() + splits.test.sizes.sum() == 1797
    assert splits.train.task.input_shape == (1, 8, 8)
    assert splits.train.inputs.dtype == np.float32
    assert (splits.train.inputs.min(), splits.train.inputs.max()) == (0, 1)


def test_digits_have_no_natural_users():
    pytest.importorskip("sklearn")
    for partition in ("natural", "balanced:5"):
        with pytest.raises(InputError, match="digits has no users"):
            load("digits", partition=partition)


def test_a_pool_of_digits_is_set_aside_as_clients_like_the_others():
    pytest.importorskip("sklearn")
    splits = load("digits", partition="dirichlet:1/30", test_fraction=0.2, pool_fraction=0.1)
    rows = [set(part.indices.tolist()) for part in (splits.train, splits.test, splits.pool)]
    assert sum(map(len, rows)) == len(set.union(*rows)) == 1797
    assert abs(splits.pool.sizes.mean() - splits.train.sizes.mean()) < 5


def test_generated_text_has_a_name():
    splits = load("generated-text", positions=10, vocabulary_size=120, partition="balanced:5")
    assert splits.train.task.input_shape == (10,)
    assert splits.train.task.classes <= 120
    assert (splits.train.sizes == 5).all()


def test_loading_is_the_same_for_the_same_seed():
    first, second, other = (load("generated-text", partition="iid:7", seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.train.client(3).inputs, second.train.client(3).inputs)
    assert not np.array_equal(first.train.client(3).inputs, other.train.client(3).inputs)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("digits", {"positions": 5}),
        ("digits", {"keys": {"inputs": "x"}}),
        ("generated-text", {"level": "words"}),
        ("generated-text", {"images": "faces.npz"}),
    ],
)
def test_an_option_that_does_not_apply_raises(name, option):
    with pytest.raises(InputError, match=f"{name} cannot be loaded with {next(iter(option))}="):
        load(name, **option)


@pytest.mark.parametrize("partition", ["iid", 5, ["iid:3"]])
def test_a_partition_that_is_none_raises(partition):
    with pytest.raises(InputError, match=r"unknown partition .* accepted"):
        load("generated-text", partition=partition)


def test_a_partition_may_be_given_as_an_object():
    assert len(load("generated-text", partition=Iid(12)).train) == 12


@needs_data
@pytest.mark.parametrize(
    ("name", "clients", "shape", "classes"),
    [
        ("mnist", (539, 297), (1, 28, 28), 10),
        ("fashion-mnist", (100, 25), (1, 28, 28), 10),
        ("cifar10", (100, 20), (3, 32, 32), 10),
        ("svhn", (100, 25), (3, 32, 32), 10),
        ("shakespeare", (1269, 141), (80,), 75),
        ("stackexchange", (3236, 360), (20,), 10_000),
        ("ubuntu-irc", (7316, 813), (20,), 10_000),
        ("sent140", (37_644, 4183), (25,), 2),
    ],
)
def test_every_named_set_has_its_users(name, clients, shape, classes):
    splits = load(name)
    task = splits.train.task
    assert (len(splits.train), len(splits.test)) == clients
    assert (task.input_shape, task.classes) == (shape, classes)
    assert task.per_position == (name in {"shakespeare", "stackexchange", "ubuntu-irc"})
    if splits.train.rows is None:
        assert set(splits.train.names).isdisjoint(splits.test.names)
        assert np.shares_memory(splits.train.client(5).inputs, splits.train.inputs)


@needs_data
def test_mnist_takes_every_partition_and_a_pool():
    writers = load("mnist", pool_fraction=0.2)
    assert len(repartition(writers, Balanced(20)).train) > len(writers.train)
    dealt = repartition(writers, Dirichlet(alpha=0.5, clients=60))
    assert len(dealt.train) == 60
    assert dealt.train.sizes.sum() + dealt.pool.sizes.sum() == 60_000


def test_all_names_are_listed():
    assert {"digits", "generated-text", "mnist", "scotus"} <= set(NAMES)


def test_arrays_with_users_are_split_by_user(tmp_path):
    splits = load(write_npz(tmp_path / "a.npz", **plain_arrays()), test_fraction=0.2)
    assert (len(splits.train), len(splits.test)) == (8, 2)
    assert set(splits.train.names).isdisjoint(splits.test.names)
    assert splits.train.task.input_shape == (1, 5, 5)
    assert splits.train.task.classes == 3
    assert np.shares_memory(splits.train.client(0).inputs, splits.train.inputs)


def test_arrays_keep_their_own_test_users(tmp_path):
    arrays = plain_arrays()
    test = {f"{name}_test": values[:8] for name, values in arrays.items()} | {"user_test": np.arange(8) + 100}
    train = {f"{name}_train": values for name, values in arrays.items()}
    splits = load(write_npz(tmp_path / "a.npz", **train, **test))
    assert (len(splits.train), len(splits.test)) == (10, 8)
    with pytest.raises(InputError, match="comes with test users"):
        load(tmp_path / "a.npz", test_fraction=0.3)


def test_users_in_train_and_test_raise(tmp_path):
    arrays = {f"{name}_{part}": values for name, values in plain_arrays().items() for part in ("train", "test")}
    with pytest.raises(InputError, match="user 0 in train and in test"):
        load(write_npz(tmp_path / "a.npz", **arrays))


def test_arrays_without_users_become_iid_clients(tmp_path):
    arrays = plain_arrays(users=50, each=10)
    del arrays["user"]
    splits = load(write_npz(tmp_path / "a.npz", **arrays))
    assert (len(splits.train), len(splits.test)) == (100, 11)
    assert splits.train.sizes.sum() == 450
    small = {name: values[:20] for name, values in arrays.items()}
    assert len(load(write_npz(tmp_path / "b.npz", **small)).train) == 18


def test_keys_can_be_named(tmp_path):
    arrays = plain_arrays()
    path = write_npz(tmp_path / "a.npz", picture=arrays["x"], what=arrays["y"], who=arrays["user"].astype(str))
    splits = load(path, keys={"inputs": "picture", "labels": "what", "users": "who"})
    assert len(splits.train) == 9
    with pytest.raises(InputError, match=r"has no inputs \(x or x_train\); its keys are: picture, what, who"):
        load(path)
    with pytest.raises(InputError, match=r"has no labels \(y or y_train\); its keys are: picture"):
        load(path, keys={"inputs": "picture"})
    with pytest.raises(InputError, match="keys must be among inputs, labels, users, got 'pixels'"):
        load(path, keys={"pixels": "picture"})
    with pytest.raises(InputError, match="users for all examples"):
        load(path, keys={"inputs": "picture", "labels": "what", "users": "author"})


def test_channels_that_come_last_are_moved_to_the_front(tmp_path):
    x = RNG.integers(0, 256, size=(20, 8, 6, 3), dtype=np.uint8)
    splits = load(write_npz(tmp_path / "a.npz", images=x, labels=np.arange(20) % 2), partition="iid:4")
    assert splits.train.task.input_shape == (3, 8, 6)
    row = int(splits.train.indices[0])
    assert np.array_equal(splits.train.client(0).inputs[0], x[row].transpose(2, 0, 1))


def test_numbers_that_are_not_pixels_become_float32(tmp_path):
    arrays = plain_arrays()
    arrays["x"] = arrays["x"].reshape(40, 25).astype(np.int64)
    splits = load(write_npz(tmp_path / "a.npz", **arrays))
    assert splits.train.inputs.dtype == np.float32
    assert splits.train.task.input_shape == (25,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.arange(39)}, "40 examples and 39 labels"),
        ({"y": np.linspace(0, 1, 40)}, "labels must .* got float64"),
        ({"y": np.full(40, -1)}, "label must be in 0..1, got -1 in example 0"),
        ({"x": np.full((40, 5), np.nan)}, "must be finite, got nan"),
        ({"x": np.arange(40)}, "inputs must be numbers .* shape"),
        ({"x": np.full((40, 2), "a")}, "inputs must be numbers"),
        ({"user": np.linspace(0, 1, 40)}, "users must be .* got float64"),
        ({"user": np.arange(39)}, "one for each of 40 examples"),
        ({"x": np.zeros((0, 5)), "y": np.zeros(0, int)}, "has no examples"),
        ({"user": np.array([{}] * 40, dtype=object)}, "holds Python objects"),
    ],
)
def test_arrays_that_do_not_fit_raise(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        load(write_npz(tmp_path / "a.npz", **{**plain_arrays(), **changes}))


def test_an_npz_file_that_was_cut_short_raises(tmp_path):
    path = write_npz(tmp_path / "a.npz", **plain_arrays())
    for content in (path.read_bytes()[:500], b"", b"PK\x03\x04", b"text"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.npz .* truncated"):
            load(path)


def test_an_npz_file_with_a_damaged_member_raises(tmp_path):
    path = write_npz(tmp_path / "a.npz", **plain_arrays())
    content = bytearray(path.read_bytes())
    content[300] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="truncated"):
        load(path)


def test_a_file_that_is_not_there_raises(tmp_path):
    for path in (tmp_path / "a.npz", str(tmp_path / "a.npz"), str(tmp_path / "a.jsonl.gz"), tmp_path / "nothing"):
        with pytest.raises(InputError, match="there is no file"):
            load(path)


def test_a_file_of_another_kind_raises(tmp_path):
    (tmp_path / "a.csv").write_text("x,y")
    with pytest.raises(InputError, match=r"must end in \.npz, \.jsonl, \.jsonl\.gz, \.json, \.parquet or \.arrow"):
        load(tmp_path / "a.csv")
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(InputError, match=r"single array \(\.npy\)"):
        load(tmp_path / "b.npz")


@pytest.mark.parametrize(("name", "opener"), [("a.jsonl", open), ("a.jsonl.gz", gzip.open)])
def test_lines_by_user_need_not_be_consecutive(tmp_path, name, opener):
    splits = load(write_lines(tmp_path / name, *talk(), opener=opener))
    assert (len(splits.train), len(splits.test)) == (9, 1)
    assert (splits.train.sizes == 3).all()
    first = splits.train.client(0)
    who = splits.train.names[0][1:]
    assert splits.train.vocabulary.decode(first.inputs[1].tolist()) == f"hello number {who} line 1"


def test_lines_take_the_options_of_text(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", *talk())
    assert load(path, level="characters", positions=7).train.task.input_shape == (7,)
    assert load(path, vocabulary_size=6).train.task.classes == 6
    with pytest.raises(InputError, match="level must be words or characters, got 'bytes'"):
        load(path, level="bytes")


def test_lines_with_labels_are_classified(tmp_path):
    records = [{"author": i, "body": f"text {i}", "stars": i % 5, "else": None} for i in range(20)]
    path = write_lines(tmp_path / "a.jsonl", *records)
    splits = load(path, keys={"user": "author", "text": "body", "label": "stars"})
    assert splits.train.task.classes == 5
    assert splits.train.task.input_shape == (25,)
    user = splits.train.names.index(next(iter(splits.train.names)))
    assert splits.train.client(user).targets.tolist() == [int(splits.train.names[user]) % 5]
    with pytest.raises(InputError, match="cannot be loaded with level='words'"):
        load(path, keys={"user": "author", "text": "body", "label": "stars"}, level="words")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"user": "a", "text": "cut sho', r"line 3, is not JSON: Unterminated string"),
        (b'["a", "b"]', "line 3: .* object with user and text"),
        (b'{"user": "a"}', "line 3: 'text' is missing; its keys are: user"),
        (b'{"text": "a"}', "line 3: 'user' is missing"),
        (b'{"user": "a", "text": 5}', "line 3: user must be .* got 'a' and 5"),
        (b'{"user": null, "text": "a"}', "line 3: user must be"),
        (b'{"user": "a", "text": "caf\xe9"}', "line 3: not UTF-8 text"),
        (b'{"user": "a", "text": "b", "label": 1}', "line 3: either every line has a label or none"),
    ],
)
def test_a_broken_line_raises_with_its_number(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"user": "a", "text": "b"}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=rf"a\.jsonl, {message}"):
        load(path)


@pytest.mark.parametrize("label", [-1, "good", 1.5, True])
def test_a_label_must_be_a_whole_number(tmp_path, label):
    path = write_lines(tmp_path / "a.jsonl", {"user": "a", "text": "b", "label": label})
    with pytest.raises(InputError, match="line 1: a label must be"):
        load(path)


def test_a_label_that_was_named_must_be_there(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", *talk())
    with pytest.raises(InputError, match="has no 'stars' in its lines"):
        load(path, keys={"label": "stars"})
    with pytest.raises(InputError, match="keys must be among user, text, label, got 'author'"):
        load(path, keys={"author": "user"})


def test_compressed_lines_that_were_cut_short_raise(tmp_path):
    records = [{"user": i, "text": str(RNG.integers(10**15))} for i in range(2000)]
    path = write_lines(tmp_path / "a.jsonl.gz", *records, opener=gzip.open)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(InputError, match=r"truncated after line \d+"):
        load(path)
    path.write_text("not compressed")
    with pytest.raises(InputError, match="cannot be read"):
        load(path)


def test_an_empty_file_of_lines_raises(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        load(tmp_path / "a.jsonl")


def test_saved_data_is_loaded_by_its_directory_and_partitioned_anew(tmp_path):
    splits = load("generated-text", pool_fraction=0.1)
    save(splits, tmp_path / "kept")
    back = load(tmp_path / "kept")
    assert np.array_equal(back.train.client(4).targets, splits.train.client(4).targets)
    assert np.array_equal(open_saved(tmp_path / "kept").pool.pooled().inputs, splits.pool.pooled().inputs)
    assert len(load(tmp_path / "kept", partition="iid:9").train) == 9
    with pytest.raises(InputError, match="already split"):
        load(tmp_path / "kept", test_fraction=0.5)
    with pytest.raises(InputError, match="cannot be loaded with positions=5"):
        load(tmp_path / "kept", positions=5)


@needs_data
def test_the_page_on_data_shows_real_output(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs" / "data.md"
    results = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert results.attempted > 20
    assert results.failed == 0


def test_an_array_that_may_hold_the_users_is_not_ignored(tmp_path):
    rows = {"x": np.zeros((30, 4), dtype=np.float32), "y": np.arange(30) % 3, "patient": np.arange(30) // 3}
    np.savez(tmp_path / "some.npz", **rows)
    with pytest.raises(InputError, match=r'unrecognized arrays: patient.*keys={"users": "patient"}.*"iid:100"'):
        load(tmp_path / "some.npz")
    assert len(load(tmp_path / "some.npz", keys={"users": "patient"}).train) == 9
    assert len(load(tmp_path / "some.npz", partition="iid:6").train) == 6
    np.savez(tmp_path / "usual.npz", x=rows["x"], y=rows["y"], user_id=rows["patient"])
    assert len(load(tmp_path / "usual.npz").train) == 9


def test_bad_values_are_placed_by_file_and_user(tmp_path):
    x = np.zeros((6, 4), dtype=np.float32)
    x[4, 0] = np.nan
    np.savez(tmp_path / "bad.npz", x=x, y=np.arange(6) % 2, user=np.array(["a", "a", "b", "b", "c", "c"]))
    with pytest.raises(InputError, match=r"bad.npz: inputs must be finite, got nan in example 4, of client 'c'"):
        load(tmp_path / "bad.npz")


def test_arrays_of_objects_raise_by_name(tmp_path):
    np.savez(tmp_path / "o.npz", x=np.zeros((2, 4)), y=np.arange(2), user=np.array(["a", None], dtype=object))
    with pytest.raises(InputError, match="the array 'user' holds Python objects"):
        load(tmp_path / "o.npz")
