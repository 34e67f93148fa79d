"""Loading by name, from files and from tables, and the errors of files that cannot be loaded."""

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.simulation.data import NAMES, _read, load
from coalmine.simulation.data.splitting import repartition

needs_data = pytest.mark.skipif("COALMINE_DATA" not in os.environ, reason="COALMINE_DATA names no directory of data")
RNG = np.random.default_rng(0)


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def write_lines(path, *records, opener=open):
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def write_leaf(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"users": list(users), "num_samples": [], "user_data": users}))
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
    with pytest.raises(InputError, match=r"'fashionmnist'.*fashion-mnist"):
        load("fashionmnist")
    with pytest.raises(InputError, match=", ".join(NAMES)):
        load("zzzzzz")


def test_a_name_without_its_directory_raises(monkeypatch, tmp_path):
    monkeypatch.delenv("COALMINE_DATA", raising=False)
    with pytest.raises(InputError, match=r"mnist\.npz.* COALMINE_DATA"):
        load("mnist")
    monkeypatch.setenv("COALMINE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"scotus_speakers\.jsonl\.gz.* COALMINE_DATA"):
        load("scotus")


def test_digits_need_no_file_and_have_no_users():
    splits = load("digits")
    assert len(splits.train) == 50
    assert splits.train.sizes.sum() + splits.test.sizes.sum() == 1797
    assert splits.train.task.input_shape == (1, 8, 8)
    assert splits.train.inputs.dtype == np.float32
    assert (splits.train.inputs.min(), splits.train.inputs.max()) == (0, 1)
    for partition in ("natural", "balanced:5"):
        with pytest.raises(InputError, match="digits has no users"):
            load("digits", partition=partition)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    (columns,) = _read("digits", {})
    expected = load_digits()
    np.testing.assert_array_equal(columns.inputs[:, 0] * 16, expected.images)
    np.testing.assert_array_equal(columns.labels, expected.target)


def test_a_pool_of_digits_is_set_aside_as_clients_like_the_others():
    splits = load("digits", partition="dirichlet:1/30", test_fraction=0.2, pool_fraction=0.1)
    rows = [set(part.indices.tolist()) for part in (splits.train, splits.test, splits.pool)]
    assert sum(map(len, rows)) == len(set.union(*rows)) == 1797
    assert abs(splits.pool.sizes.mean() - splits.train.sizes.mean()) < 5


def test_generated_text_has_a_name_and_is_the_same_for_the_same_seed():
    splits = load("generated-text", positions=10, vocabulary_size=120, partition="balanced:5")
    assert splits.train.task.input_shape == (10,)
    assert splits.train.task.classes <= 120
    assert (splits.train.sizes == 5).all()
    first, second, other = (load("generated-text", partition="iid:7", seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.train.client(3).inputs, second.train.client(3).inputs)
    assert not np.array_equal(first.train.client(3).inputs, other.train.client(3).inputs)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("digits", {"positions": 5}, "apply to texts"),
        ("digits", {"keys": {"input": "x"}}, "your own files"),
        ("generated-text", {"level": "words"}, "leave out level"),
        ("generated-text", {"partition": "iid"}, "unknown partition"),
    ],
)
def test_an_option_that_does_not_apply_raises(name, option, message):
    with pytest.raises(InputError, match=message):
        load(name, **option)


@needs_data
@pytest.mark.parametrize(
    ("name", "clients", "shape", "classes"),
    [
        ("mnist", (539, 297), (1, 28, 28), 10),
        pytest.param("svhn", (100, 25), (3, 32, 32), 10, marks=pytest.mark.slow),
        ("shakespeare", (1269, 141), (80,), 75),
        pytest.param("fashion-mnist", (100, 25), (1, 28, 28), 10, marks=pytest.mark.slow),
        pytest.param("cifar10", (100, 20), (3, 32, 32), 10, marks=pytest.mark.slow),
        pytest.param("stackexchange", (3236, 360), (20,), 10_000, marks=pytest.mark.slow),
        pytest.param("ubuntu-irc", (7316, 813), (20,), 10_000, marks=pytest.mark.slow),
        pytest.param("scotus", (8346, 927), (20,), 10_000, marks=pytest.mark.slow),
        pytest.param("sent140", (37_644, 4183), (25,), 2, marks=pytest.mark.slow),
    ],
)
def test_every_named_set_has_its_users(name, clients, shape, classes):
    splits = load(name)
    task = splits.train.task
    assert (len(splits.train), len(splits.test)) == clients
    assert (task.input_shape, task.classes) == (shape, classes)
    assert task.per_position == (name in {"shakespeare", "stackexchange", "ubuntu-irc", "scotus"})
    if splits.train.rows is None:
        assert set(splits.train.names).isdisjoint(splits.test.names)


@needs_data
def test_mnist_takes_every_partition_and_a_pool():
    writers = load("mnist", pool_fraction=0.2)
    assert len(repartition(writers, "balanced:20").train) > len(writers.train)
    dealt = repartition(writers, "dirichlet:0.5/60")
    assert len(dealt.train) == 60
    assert dealt.train.sizes.sum() + dealt.pool.sizes.sum() == 60_000


def test_arrays_with_users_are_split_by_user(tmp_path):
    splits = load(write_npz(tmp_path / "a.npz", **plain_arrays()), test_fraction=0.2)
    assert (len(splits.train), len(splits.test)) == (8, 2)
    assert set(splits.train.names).isdisjoint(splits.test.names)
    assert splits.train.task.input_shape == (1, 5, 5)
    assert splits.train.task.classes == 3
    assert np.shares_memory(splits.train.client(0).inputs, splits.train.inputs)


def test_arrays_keep_their_own_test_users_unless_they_are_training_users_as_well(tmp_path):
    arrays = plain_arrays()
    test = {f"{name}_test": values[:8] for name, values in arrays.items()}
    train = {f"{name}_train": values for name, values in arrays.items()}
    splits = load(write_npz(tmp_path / "a.npz", **train, **test | {"user_test": np.arange(8) + 100}))
    assert (len(splits.train), len(splits.test)) == (10, 8)
    assert np.array_equal(splits.test.client(3).inputs[0, 0], arrays["x"][3])
    with pytest.raises(InputError, match="comes with test users"):
        load(tmp_path / "a.npz", test_fraction=0.3)
    joined = load(write_npz(tmp_path / "b.npz", **train, **test))
    assert (len(joined.train), len(joined.test)) == (9, 1)
    assert joined.train.sizes.sum() + joined.test.sizes.sum() == 48


def test_arrays_without_users_become_iid_clients(tmp_path):
    arrays = plain_arrays(users=50, each=10)
    del arrays["user"]
    splits = load(write_npz(tmp_path / "a.npz", **arrays))
    assert (len(splits.train), len(splits.test)) == (100, 11)
    assert splits.train.sizes.sum() == 450
    small = {f"train_{name}": values[:20] for name, values in arrays.items()}
    own_test = {f"test_{name}": values[20:26] for name, values in arrays.items()}
    splits = load(write_npz(tmp_path / "b.npz", **small, **own_test))
    assert (len(splits.train), splits.test.sizes.sum()) == (20, 6)


def test_columns_can_be_named(tmp_path):
    arrays = plain_arrays()
    path = write_npz(tmp_path / "a.npz", picture=arrays["x"], what=arrays["y"], who=arrays["user"].astype(str))
    assert len(load(path, keys={"input": "picture", "label": "what", "user": "who"}).train) == 9
    with pytest.raises(InputError, match="its columns are: picture, what, who"):
        load(path)
    with pytest.raises(InputError, match="no labels"):
        load(path, keys={"input": "picture"}, partition="iid:5")
    with pytest.raises(InputError, match=r"input, label and user .* got 'pixels'"):
        load(path, keys={"pixels": "picture"})
    with pytest.raises(InputError, match="no column author"):
        load(path, keys={"input": "picture", "label": "what", "user": "author"})


def test_an_array_that_may_hold_the_users_is_not_ignored(tmp_path):
    rows = {"x": np.zeros((30, 4), dtype=np.float32), "y": np.arange(30) % 3, "patient": np.arange(30) // 3}
    path = write_npz(tmp_path / "some.npz", **rows)
    with pytest.raises(InputError, match=r'unrecognized columns: patient.*keys={"user": "patient"}.*"iid:100"'):
        load(path)
    assert len(load(path, keys={"user": "patient"}).train) == 9
    assert len(load(path, partition="iid:6").train) == 6
    assert len(load(write_npz(tmp_path / "b.npz", x=rows["x"], y=rows["y"], user_id=rows["patient"])).train) == 9


def test_images_get_their_channels_in_front_and_other_numbers_become_float32(tmp_path):
    x = RNG.integers(0, 256, size=(20, 8, 6, 3), dtype=np.uint8)
    splits = load(write_npz(tmp_path / "a.npz", images=x, labels=np.arange(20)[:, None] % 2), partition="iid:4")
    assert splits.train.task.input_shape == (3, 8, 6)
    row = int(splits.train.indices[0])
    assert np.array_equal(splits.train.client(0).inputs[0], x[row].transpose(2, 0, 1))
    splits = load(write_npz(tmp_path / "b.npz", x=np.arange(40).reshape(20, 2), y=np.arange(20) % 2))
    assert splits.train.inputs.dtype == np.float32
    assert splits.train.task.input_shape == (2,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.arange(39)}, "one for each of 40 examples"),
        ({"y": np.linspace(0, 1, 40)}, "labels must be integers"),
        ({"y": np.full(40, -1)}, "labels must be in 0.* got -1"),
        ({"y": np.full(40, 10**9)}, "labels must be in 0.* 1000000000"),
        ({"x": np.full((40, 5), np.nan)}, r"a\.npz: inputs must be finite, got nan"),
        ({"x": np.arange(40)}, r"inputs must be numbers, .* shape \(40,\)"),
        ({"x": np.full((40, 2), "a")}, "must hold texts, or numbers"),
        ({"user": np.arange(39)}, "40 examples and 39 users"),
        ({"x": np.zeros((0, 5)), "y": np.zeros(0, int)}, "0 examples"),
        ({"user": np.array([{}] * 40, dtype=object)}, "plain arrays"),
    ],
)
def test_arrays_that_do_not_fit_raise(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        load(write_npz(tmp_path / "a.npz", **{**plain_arrays(), **changes}))


def test_files_that_are_damaged_missing_or_of_another_kind_raise(tmp_path):
    path = write_npz(tmp_path / "a.npz", **plain_arrays())
    for content in (path.read_bytes()[:500], b"", b"text"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.npz"):
            load(path)
    for missing in (tmp_path / "b.npz", str(tmp_path / "a.jsonl.gz")):
        with pytest.raises(InputError, match="no file"):
            load(missing)
    (tmp_path / "a.xml").write_text("x,y")
    with pytest.raises(InputError, match=r"must end in \.npz"):
        load(tmp_path / "a.xml")


@pytest.mark.parametrize(("name", "opener"), [("a.jsonl", open), ("a.jsonl.gz", gzip.open)])
def test_lines_by_user_need_not_be_consecutive(tmp_path, name, opener):
    path = write_lines(tmp_path / name, *talk(), opener=opener)
    splits = load(path)
    assert (len(splits.train), len(splits.test)) == (9, 1)
    assert (splits.train.sizes == 3).all()
    first = splits.train.client(0)
    who = splits.train.names[0][1:]
    assert splits.train.vocabulary.decode(first.inputs[1].tolist()) == f"hello number {who} line 1"
    assert load(path, level="characters", positions=7).train.task.input_shape == (7,)
    assert load(path, vocabulary_size=6).train.task.classes == 6


def test_lines_with_labels_are_classified(tmp_path):
    records = [{"author": i, "body": f"text {i}", "stars": i % 5, "else": None} for i in range(20)]
    path, keys = write_lines(tmp_path / "a.jsonl", *records), {"user": "author", "input": "body", "label": "stars"}
    splits = load(path, keys=keys)
    assert (splits.train.task.classes, splits.train.task.input_shape) == (5, (25,))
    for name, client in zip(splits.train.names, splits.train, strict=True):
        assert client.targets.tolist() == [int(name) % 5]
    with pytest.raises(InputError, match="leave out level"):
        load(path, keys=keys, level="words")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"user": "a", "text": "cut sho', r"line 3, .*as JSON"),
        (b'["a", "b"]', "line 3, .* object with user and text"),
        (b'{"user": "a"}', "line 3, has no column .*text"),
        (b'{"text": "a"}', "line 3, has text, but lines before it have text, user"),
        (b'{"user": "a", "text": "caf\xe9"}', "line 3, .*utf-8"),
        (b'{"user": "a", "text": "b", "label": 1}', "line 3, has text, label, user"),
    ],
)
def test_a_broken_line_raises_with_its_number(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"user": "a", "text": "b"}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=rf"a\.jsonl, {message}"):
        load(path)


@pytest.mark.parametrize(
    ("record", "keys", "message"),
    [
        *(({"label": label}, {}, "labels must be") for label in (-1, "good", 1.5, True)),
        ({}, {"label": "stars"}, "no column stars"),
        ({"text": 5}, {}, "must hold texts"),
    ],
)
def test_lines_that_do_not_fit_raise(tmp_path, record, keys, message):
    path = write_lines(tmp_path / "a.jsonl", {"user": "a", "text": "b", **record})
    with pytest.raises(InputError, match=message):
        load(path, keys=keys)


def test_compressed_lines_that_were_cut_short_and_empty_files_raise(tmp_path):
    records = [{"user": i, "text": str(RNG.integers(10**15))} for i in range(2000)]
    path = write_lines(tmp_path / "a.jsonl.gz", *records, opener=gzip.open)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(InputError, match="end-of-stream"):
        load(path)
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"a\.jsonl has no column"):
        load(tmp_path / "a.jsonl")


ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


def shakespeare(users=10):
    return {f"PLAY_{i}": {"x": [ALPHABET] * 3, "y": ["e"] * 3, "raw": ""} for i in range(users)}


def tweets(users=10, labels=(0, 1)):
    row = ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "someone", "so Happy today", "training"]
    return {f"t{i}": {"x": [row] * 2, "y": [labels[i % len(labels)]] * 2} for i in range(users)}


def femnist(users=10, each=2):
    return {f"f{i:04}_00": {"x": [[1.0] * 783 + [i / 16]] * each, "y": [float(i)] * each} for i in range(users)}


def test_leaf_shakespeare_predicts_one_character_after_eighty(tmp_path):
    splits = load(write_leaf(tmp_path / "all_data.json", shakespeare()))
    task = splits.train.task
    assert (task.input_shape, task.classes, task.tokens, task.per_position) == ((80,), 80, 80, False)
    client = splits.train.client(0)
    assert client.inputs[0].tolist() == list(range(80))
    assert ALPHABET[client.targets[0]] == "e"


@pytest.mark.parametrize("labels", [(0, 1), (0, 4), ("0", "4")])
def test_leaf_sent140_classifies_words(tmp_path, labels):
    splits = load(write_leaf(tmp_path / "a.json", tweets(labels=labels)), positions=6)
    assert splits.train.task.input_shape == (6,)
    assert splits.train.vocabulary.decode(splits.train.client(0).inputs[0].tolist()) == "so happy today"
    for name, client in zip(splits.train.names, splits.train, strict=True):
        assert client.targets[0] == int(name[1:]) % 2


def test_leaf_numbers_are_femnists_images_or_vectors(tmp_path):
    splits = load(write_leaf(tmp_path / "a.json", femnist()), test_fraction=0.2)
    assert (splits.train.task.input_shape, splits.train.task.classes) == ((1, 28, 28), 62)
    assert splits.train.client(0).inputs[0, 0, 0, 0] == 1.0
    assert (len(splits.train), len(splits.test)) == (8, 2)
    vectors = {f"s{i}": {"x": [[0.5, i]], "y": [i % 3]} for i in range(6)}
    task = load(write_leaf(tmp_path / "b.json", vectors)).train.task
    assert (task.input_shape, task.classes) == ((2,), 3)


@pytest.mark.parametrize(("make", "below"), [(femnist, ""), (tweets, "data"), (shakespeare, "")])
def test_leafs_folders_of_shards_are_train_and_test(tmp_path, make, below):
    everyone = list(make().items())
    for number, part in enumerate((everyone[:3], everyone[3:7])):
        write_leaf(tmp_path / below / "train" / f"all_data_{number}.json", dict(part))
    write_leaf(tmp_path / below / "test" / "all_data_0.json", dict(everyone[7:]))
    splits = load(tmp_path, pool_fraction=0.2)
    assert splits.test.names == [name for name, _ in everyone[7:]]
    assert len(splits.pool) == 2
    with pytest.raises(InputError, match="comes with test users"):
        load(tmp_path, test_fraction=0.2)


def test_leafs_split_by_sample_is_split_again_by_user(tmp_path):
    write_leaf(tmp_path / "train" / "a.json", femnist(each=3))
    write_leaf(tmp_path / "test" / "a.json", femnist(each=1))
    splits = load(tmp_path)
    assert (len(splits.train), len(splits.test)) == (9, 1)
    assert (splits.train.sizes == 4).all()


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([], "not in LEAF's format"),
        ({}, "not in LEAF's format"),
        ({"a": {"x": [[0.1]] * 2, "y": [1]}}, "as many x as y .* shorter"),
        ({"a": {"x": [[["w"]]], "y": [1]}}, r"80 characters \(Shakespeare\)"),
        ({"a": {"x": [[1, 2], [1]], "y": [1, 1]}}, "list of numbers"),
        ({"a": {"x": [[1, 2]], "y": [0.5]}}, "whole numbers, got 0.5"),
        ({"a": {"x": ["ab", "a"], "y": ["c", "c"]}}, "80 characters"),
        ({"a": {"x": ["000001.jpg"], "y": [1]}}, r"image files to an \.npz"),
        ({"a": {"x": [["", "", "", "", "hi"]], "y": [2]}}, "row of Sent140"),
    ],
)
def test_leaf_data_that_does_not_fit_raises(tmp_path, users, message):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"users": list(users), "num_samples": [], "user_data": users}))
    with pytest.raises(InputError, match=message):
        load(path)


def test_a_directory_without_json_raises(tmp_path):
    with pytest.raises(InputError, match=r"has no \.json files"):
        load(tmp_path)


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets", reason="datasets is not installed: pip install 'coalmine[datasets]'")


def pictures(datasets, count=60, **columns):
    pixels = np.arange(count * 16, dtype=np.uint8).reshape(count, 4, 4)
    features = {"image": datasets.Array2D((4, 4), "uint8"), "label": datasets.ClassLabel(3)}
    features |= {name: datasets.Value("string") for name in columns}
    return datasets.Dataset.from_dict(
        {"image": pixels.tolist(), "label": [i % 3 for i in range(count)], **columns},
        features=datasets.Features(features),
    )


def test_users_of_a_column_are_clients_and_pixels_stay_pixels(datasets):
    writers = [f"writer {i % 12}" for i in range(60)]
    splits = load(pictures(datasets, hand=writers), keys={"user": "hand"}, test_fraction=0.25)
    assert (len(splits.train), len(splits.test)) == (9, 3)
    assert splits.train.task.input_shape == (1, 4, 4)
    assert splits.train.inputs.dtype == np.uint8
    client = splits.train.client(0)
    number = int(splits.train.names[0].split()[1])
    assert client.targets.tolist() == [i % 3 for i in range(number, 60, 12)]
    assert client.inputs[1].ravel().tolist() == (np.arange(16) + 16 * (number + 12)).astype(np.uint8).tolist()


def test_tables_without_users_are_assigned_to_clients(datasets):
    both = datasets.DatasetDict(train=pictures(datasets), test=pictures(datasets, count=30))
    splits = load(both, partition="iid:5")
    assert (len(splits.train), splits.train.sizes.sum(), splits.test.sizes.sum()) == (5, 60, 30)
    with pytest.raises(InputError, match=r"cannot be read as a table.*train"):
        load(datasets.DatasetDict(test=pictures(datasets)))


def test_texts_of_tables_become_language_or_classification_data(datasets):
    rows = {"author": [f"u{i % 20}" for i in range(100)], "text": [f"these are words number {i}" for i in range(100)]}
    spoken = load(datasets.Dataset.from_dict(rows), positions=6)
    assert spoken.train.task.per_position
    assert spoken.train.vocabulary.decode(spoken.train.client(0).inputs[0]).startswith("these are words number")
    judged = load(datasets.Dataset.from_dict(rows | {"label": [i % 2 for i in range(100)]}))
    assert (judged.train.task.classes, judged.train.task.per_position) == (2, False)
    with pytest.raises(InputError, match="column of users"):
        load(datasets.Dataset.from_dict({"text": rows["text"]}))


def test_saved_directories_and_files_load_by_their_path(datasets, tmp_path):
    table = pictures(datasets, user=[f"u{i % 10}" for i in range(60)])
    table.save_to_disk(str(tmp_path / "saved"))
    table.to_parquet(str(tmp_path / "table.parquet"))
    expected = load(table, seed=3)
    for path in (tmp_path / "saved", tmp_path / "table.parquet"):
        splits = load(path, seed=3)
        assert splits.train.names == expected.train.names
        assert np.array_equal(splits.train.inputs, expected.train.inputs)
    text = "".join(f'u{i % 10},"line {i}, of text"\n' for i in range(40))
    (tmp_path / "table.csv").write_text(f"user,text\n{text}")
    assert len(load(tmp_path / "table.csv").train) == 9
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InputError, match=r"broken.parquet cannot be read as a table"):
        load(tmp_path / "broken.parquet")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"x": [None, [1.0, 2.0]], "y": [0, 1]}, "cannot be read"),
        ({"x": [[1, 2], [3]], "y": [0, 1]}, "numbers of one shape in every row"),
        ({"x": [[1, 2], [3, 4]], "y": ["a", "b"]}, "labels must be integers"),
    ],
)
def test_rows_that_do_not_fit_raise(datasets, rows, message):
    with pytest.raises(InputError, match=message):
        load(datasets.Dataset.from_dict(rows), partition="iid:2")


def test_without_the_library_its_tables_say_what_to_install(tmp_path):
    """In a process of its own, where data sets of the library's are needed by nobody and torch is not imported."""
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    check = (
        "import sys; sys.modules['datasets'] = None\n"
        "from coalmine.simulation.data import load\n"
        f"try: load({str(tmp_path / 'table.parquet')!r})\n"
        "except ValueError as error: print(error)\n"
        "print(load('generated-text').train)\n"
        "print([m for m in ('torch', 'sklearn', 'scipy') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert "pip install 'coalmine[datasets]'" in output
    assert "FederatedData(" in output
    assert output.splitlines()[-1] == "[]"
