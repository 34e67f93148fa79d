"""LEAF's files and the errors of invalid ones."""

import json
import re

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.simulation.data import load
from coalmine.simulation.data.leaf import ALPHABET

RNG = np.random.default_rng(0)


def write_leaf(path, users, /, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(data["x"]) for data in users.values()],
        "user_data": users,
    }
    path.write_text(json.dumps({**content, **changes}))
    return path


def shakespeare(users=10, each=3):
    text = "".join(RNG.choice(list(ALPHABET), size=80))
    return {f"PLAY_{i}": {"x": [text] * each, "y": ["e"] * each, "raw": text} for i in range(users)}


def tweets(users=10, each=2, labels=(0, 1)):
    row = ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "someone", "so Happy today", "training"]
    return {f"t{i}": {"x": [row] * each, "y": [labels[i % len(labels)]] * each} for i in range(users)}


def femnist(users=10, each=2):
    return {f"f{i:04}_00": {"x": [[1.0] * 783 + [i / 16]] * each, "y": [i] * each} for i in range(users)}


def test_leaf_shakespeare_predicts_one_character_after_eighty(tmp_path):
    users = shakespeare()
    splits = load(write_leaf(tmp_path / "all_data.json", users))
    task = splits.train.task
    assert (task.input_shape, task.classes, task.tokens, task.per_position) == ((80,), 80, 80, False)
    client = splits.train.client(0)
    assert splits.train.vocabulary.decode(client.inputs[0].tolist()) == users["PLAY_0"]["x"][0]
    assert ALPHABET[client.targets[0]] == "e"


@pytest.mark.parametrize("labels", [(0, 1), (0, 4), ("0", "4")])
def test_leaf_sent140_classifies_words(tmp_path, labels):
    splits = load(write_leaf(tmp_path / "a.json", tweets(labels=labels)), positions=6)
    assert splits.train.task.input_shape == (6,)
    assert splits.train.vocabulary.decode(splits.train.client(0).inputs[0].tolist()) == "so happy today"
    labels_by_user = {name: client.targets[0] for name, client in zip(splits.train.names, splits.train, strict=True)}
    assert all(label == int(name[1:]) % 2 for name, label in labels_by_user.items())


def test_leaf_femnist_keeps_its_values(tmp_path):
    splits = load(write_leaf(tmp_path / "a.json", femnist()), test_fraction=0.2)
    assert splits.train.task.input_shape == (1, 28, 28)
    assert splits.train.task.classes == 62
    assert splits.train.client(0).inputs[0, 0, 0, 0] == 1.0
    assert (len(splits.train), len(splits.test)) == (8, 2)


def test_other_numbers_of_leaf_are_vectors(tmp_path):
    users = {f"s{i}": {"x": [[0.5, i]], "y": [float(i % 3)]} for i in range(6)}
    splits = load(write_leaf(tmp_path / "a.json", users))
    assert splits.train.task.input_shape == (2,)
    assert splits.train.task.classes == 3


def test_leaf_celeba_takes_its_images_from_a_file(tmp_path):
    users = {str(i): {"x": [f"{i:06}.jpg"], "y": [i % 2]} for i in range(10)}
    path = write_leaf(tmp_path / "a.json", users)
    with pytest.raises(InputError, match=r"'000000\.jpg': pass images"):
        load(path)
    pictures = {f"{i:06}.jpg": np.full((6, 7, 3), i, dtype=np.uint8) for i in range(10)}
    np.savez(tmp_path / "faces.npz", **pictures)
    splits = load(path, images=tmp_path / "faces.npz")
    assert splits.train.task.input_shape == (3, 6, 7)
    assert splits.train.client(0).inputs[0, 0, 0, 0] == int(splits.train.names[0])
    assert np.array_equal(load(path, images=pictures).train.inputs, splits.train.inputs)
    with pytest.raises(InputError, match=r"'000009\.jpg'.* 9 images \(1 missing\)"):
        load(path, images={name: picture for name, picture in pictures.items() if name != "000009.jpg"})
    with pytest.raises(InputError, match=r"one shape, got \(6, 7, 3\) for 000000\.jpg, \(6, 7\) for 000003\.jpg"):
        load(path, images=pictures | {"000003.jpg": np.zeros((6, 7), np.uint8)})


@pytest.mark.parametrize("below", ["", "data"])
def test_leafs_folders_of_shards_are_train_and_test(tmp_path, below):
    everyone = list(femnist(users=9).items())
    for number, part in enumerate((everyone[:3], everyone[3:6])):
        write_leaf(tmp_path / below / "train" / f"all_data_{number}.json", dict(part))
    write_leaf(tmp_path / below / "test" / "all_data_0.json", dict(everyone[6:]))
    splits = load(tmp_path)
    assert splits.train.names == [name for name, _ in everyone[:6]]
    assert splits.test.names == [name for name, _ in everyone[6:]]


@pytest.mark.parametrize("make", [tweets, shakespeare])
def test_leafs_test_users_of_text_stay_test_users(tmp_path, make):
    everyone = list(make().items())
    write_leaf(tmp_path / "train" / "a.json", dict(everyone[:7]))
    write_leaf(tmp_path / "test" / "a.json", dict(everyone[7:]))
    splits = load(tmp_path, pool_fraction=0.2)
    assert splits.test.names == [name for name, _ in everyone[7:]]
    assert len(splits.pool) == 2
    with pytest.raises(InputError, match="comes with test users"):
        load(tmp_path, test_fraction=0.2)


def test_leafs_split_by_sample_is_split_again_by_user(tmp_path):
    users = femnist(users=10, each=3)
    write_leaf(tmp_path / "train" / "a.json", users)
    write_leaf(tmp_path / "test" / "a.json", femnist(users=10, each=1))
    splits = load(tmp_path)
    assert (len(splits.train), len(splits.test)) == (9, 1)
    assert (splits.train.sizes == 4).all()
    assert set(splits.train.names).isdisjoint(splits.test.names)


def test_leafs_test_users_may_have_a_label_that_training_users_lack(tmp_path):
    write_leaf(tmp_path / "train" / "a.json", {"a": {"x": [[0.1, 0.2]], "y": [0]}, "b": {"x": [[0.1, 0.2]], "y": [1]}})
    write_leaf(tmp_path / "test" / "a.json", {"c": {"x": [[0.1, 0.2]], "y": [4]}})
    splits = load(tmp_path)
    assert splits.train.task.classes == splits.test.task.classes == 5


def test_leaf_json_that_was_cut_short_raises_with_the_place(tmp_path):
    path = write_leaf(tmp_path / "a.json", femnist())
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(InputError, match=r"a\.json is not JSON: .*, line 1, column \d+ \(character \d+ of"):
        load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": [2] * 9 + [3]}, "num_samples says 3 for user 'f0009_00', but user_data has 2"),
        ({"num_samples": [2] * 9}, "10 users and 9 num_samples"),
        ({"users": [*list(femnist())[:9], "ghost"]}, "user 'ghost' .* no x and y"),
        ({"users": None}, "LEAF's format: .* users"),
        ({"user_data": []}, "LEAF's format: .* user_data"),
        ({"users": [], "num_samples": []}, "has no users"),
        (
            {"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[0.1]] * 2, "y": [1]}}},
            "user 'a' has 2 x and 1 y",
        ),
        ({"users": ["a"], "num_samples": [0], "user_data": {"a": {"x": [], "y": []}}}, "user 'a' has no examples"),
        (
            {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[["w"]]], "y": [1]}}},
            r"must be 80 characters \(Shakespeare\)",
        ),
        (
            {"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1, 2], [1]], "y": [1, 1]}}},
            "every x must be a list of 2 numbers",
        ),
        (
            {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1, 2]], "y": [0.5]}}},
            "every y must .* got 0.5",
        ),
        (
            {"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": ["ab", "a"], "y": ["c", "c"]}}},
            "an example must be 2 characters and the one after them, got 'a'",
        ),
        (
            {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": ["é"], "y": ["c"]}}},
            "'é' is not among the 80 characters",
        ),
        (
            {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [["", "", "", "", "hi"]], "y": [2]}}},
            "y must be 0 or 1",
        ),
        (
            {
                "users": ["a"],
                "num_samples": [2],
                "user_data": {"a": {"x": [["", "", "", "", "hi"], ["hi"]], "y": [1, 1]}},
            },
            "text in field 4",
        ),
    ],
)
def test_leaf_data_that_does_not_fit_raises(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        load(write_leaf(tmp_path / "a.json", femnist(), **changes))


def test_leaf_options_that_do_not_apply_raise(tmp_path):
    path = write_leaf(tmp_path / "a.json", femnist())
    with pytest.raises(InputError, match=r"positions and vocabulary_size .* Sent140"):
        load(path, positions=5)
    with pytest.raises(InputError, match="leave out images"):
        load(path, images={})


def test_a_directory_without_json_raises(tmp_path):
    with pytest.raises(InputError, match=r"has no \.json files"):
        load(tmp_path)


def test_leaf_json_of_another_encoding_raises(tmp_path):
    (tmp_path / "a.json").write_bytes('{"users": ["é"]}'.encode("latin-1"))
    with pytest.raises(InputError, match=re.escape("is not UTF-8 text")):
        load(tmp_path / "a.json")
