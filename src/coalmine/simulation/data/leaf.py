"""Data in the JSON format of LEAF (Caldas et al. 2018, "LEAF: a benchmark for federated settings").

A file is ``{"users": […], "num_samples": […], "user_data": {user: {"x": […], "y": […]}}}``. A directory has such files,
or subdirectories train/ and test/ with such files (also under data/, where LEAF's scripts put them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coalmine.arrays import Array
from coalmine.errors import InputError
from coalmine.reading import parse_json, read_text
from coalmine.simulation.data.federated import FederatedData, Splits, Task, consecutive_bounds
from coalmine.simulation.data.images import as_inputs
from coalmine.simulation.data.splitting import SplitOptions, split_by_user
from coalmine.simulation.data.text import Corpus, classification_splits
from coalmine.simulation.data.vocabulary import Vocabulary

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_FEMNIST_CLASSES = 62
_TEXT_FIELD = 4  # of a row of Sentiment140
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")

LeafKind = Literal["numbers", "characters", "tweets", "images"]
Images = Mapping[str, Array]
UserData = dict[str, tuple[list[Any], list[Any]]]


@dataclass(frozen=True, kw_only=True)
class LeafUsers:
    """Raw ``x`` and ``y`` of each user, in order; ``test`` has the users of a directory test/, if there is one."""

    source: str
    train: UserData
    test: UserData


def read_leaf(path: Path) -> LeafUsers:
    """Read the users of a LEAF file or directory.

    If train/ and test/ share users, as after LEAF's split by sample, the two parts of a user are joined and all users
    count as training users, to be split by user.
    """
    train, test = (_users(files) for files in _files(path))
    if not train.keys().isdisjoint(test):
        for user, (x, y) in test.items():
            all_x, all_y = train.setdefault(user, ([], []))
            all_x.extend(x)
            all_y.extend(y)
        test = {}
    return LeafUsers(source=str(path), train=train, test=test)


def leaf_splits(
    users: LeafUsers,
    split: SplitOptions,
    *,
    positions: int | None = None,
    vocabulary_size: int | None = None,
    images: Images | None = None,
) -> Splits:
    """Return splits of Shakespeare, Sent140, FEMNIST (and other vectors) or CelebA, recognized by their ``x``."""
    x, y = next(iter(users.train.values()))
    kind = _kind(x[0], y[0], users.source)
    if kind != "tweets" and (positions is not None or vocabulary_size is not None):
        raise InputError(
            f"{users.source} has examples of fixed length: positions and vocabulary_size apply to Sent140 only"
        )
    if kind != "images" and images is not None:
        raise InputError(f"{users.source} does not refer to image files: leave out images")
    if kind == "tweets":
        return _tweet_splits(users, split, positions, vocabulary_size)
    if kind == "images" and images is None:
        raise InputError(
            f"{users.source} refers to image files such as {x[0]!r}: pass images, an .npz file with one uint8 array"
            " (height, width, 3) under each of these names"
        )
    test = _data(users, users.test, kind, images) if users.test else None
    data = _data(users, users.train, kind, images)
    if test is not None and test.task != data.task:
        classes = max(test.task.classes, data.task.classes)
        task = Task(input_shape=data.task.input_shape, classes=classes)
        data, test = (FederatedData(**{**vars(part), "task": task}) for part in (data, test))
    return split_by_user(data, split, test=test)


def _kind(x: Any, y: Any, source: str) -> LeafKind:
    """Recognize the kind of data by its first example."""
    if isinstance(x, str):
        if x.lower().endswith(_IMAGE_SUFFIXES):
            return "images"
        if isinstance(y, str) and len(y) == 1:
            return "characters"
    if isinstance(x, list) and x:
        if len(x) > _TEXT_FIELD and isinstance(x[_TEXT_FIELD], str):
            return "tweets"
        if all(isinstance(value, int | float) for value in x):
            return "numbers"
    raise InputError(
        f"{source}: the x of an example must be 80 characters (Shakespeare), a row of Sentiment140, a list of numbers"
        f" (FEMNIST) or an image file (CelebA), got {x!r:.60} with y {y!r:.20}"
    )


def _data(source: LeafUsers, users: UserData, kind: LeafKind, images: Images | None) -> FederatedData:
    """Return characters, vectors or images by user."""
    x = [value for xs, _ in users.values() for value in xs]
    y = [value for _, ys in users.values() for value in ys]
    vocabulary = None
    if kind == "characters":
        vocabulary = Vocabulary(tuple(ALPHABET), level="characters", marks=0)
        inputs, targets = _windows(x, y, source.source, vocabulary)
        task = Task(input_shape=inputs.shape[1:], classes=len(ALPHABET), tokens=len(ALPHABET))
    else:
        inputs = _vectors(x, source.source) if kind == "numbers" else _images(x, images or {}, source.source)
        targets = _labels(y, source.source)
        classes = _FEMNIST_CLASSES if inputs.shape[1:] == (1, 28, 28) else max(2, int(targets.max()) + 1)
        task = Task(input_shape=inputs.shape[1:], classes=classes)
    return FederatedData(
        inputs=inputs,
        targets=targets,
        bounds=consecutive_bounds(np.array([len(ys) for _, ys in users.values()])),
        names=list(users),
        task=task,
        vocabulary=vocabulary,
    )


def _windows(x: list[Any], y: list[Any], source: str, alphabet: Vocabulary) -> tuple[Array, Array]:
    """Return windows of characters and the character after each, as tokens."""
    for window, following in zip(x, y, strict=True):
        valid = isinstance(window, str) and isinstance(following, str)
        if not valid or len(window) != len(x[0]) or len(following) != 1:
            raise InputError(
                f"{source}: an example must be {len(x[0])} characters and the one after them, got {window!r:.40} and"
                f" {following!r:.40}"
            )
    text = "".join(x) + "".join(y)
    if outside := set(text) - set(ALPHABET):
        raise InputError(f"{source}: {min(outside)!r} is not among the 80 characters of LEAF's Shakespeare")
    # All characters are ASCII, so a table of 128 codes replaces a dictionary lookup per character.
    codes = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    table = np.zeros(128, dtype=alphabet.dtype)
    table[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    ids = table[codes]
    return ids[: -len(y)].reshape(len(x), -1), ids[-len(y) :]


def _vectors(x: list[Any], source: str) -> Array:
    """Return vectors as float32; those of 784 numbers are FEMNIST's images."""
    try:
        inputs = np.array(x, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{source}: every x must be a list of {len(x[0])} numbers") from None
    return inputs.reshape(-1, 1, 28, 28) if inputs.shape[1] == 784 else inputs


def _images(x: list[Any], images: Images, source: str) -> Array:
    """Return the images whose names ``x`` lists."""
    missing = [name for name in x if not isinstance(name, str) or name not in images]
    if missing:
        raise InputError(
            f"{source} refers to {missing[0]!r}, which is not among the {len(images)} images ({len(missing)} missing)"
        )
    arrays = [images[name] for name in x]
    for name, array in zip(x, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise InputError(
                f"all images must have one shape, got {arrays[0].shape} for {x[0]}, {array.shape} for {name}"
            )
    return as_inputs(np.stack(arrays), source)


def _labels(y: list[Any], source: str) -> Array:
    """Return labels as int64; numbers such as 3.0 are accepted."""
    for value in y:
        if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer():
            raise InputError(f"{source}: every y must be an integer, got {value!r:.40}")
        if abs(value) > 1e9:
            raise InputError(f"{source}: a label must be below 1e9, got {value!r:.40}")
    return np.array(y, dtype=np.int64)


def _tweet_splits(users: LeafUsers, split: SplitOptions, positions: int | None, vocabulary_size: int | None) -> Splits:
    """Return Sent140's tweets with their sentiment."""
    everyone = users.train | users.test
    texts, labels, owners = [], [], []
    for number, (xs, ys) in enumerate(everyone.values()):
        for row, sentiment in zip(xs, ys, strict=True):
            if not isinstance(row, list) or len(row) <= _TEXT_FIELD or not isinstance(row[_TEXT_FIELD], str):
                raise InputError(f"{users.source}: a row must have its text in field {_TEXT_FIELD}, got {row!r:.60}")
            # Sentiment140 labels tweets 0 and 4; LEAF's scripts turn 4 into 1.
            label = {"0": 0, "1": 1, "4": 1}.get(str(sentiment))
            if label is None:
                raise InputError(f"{users.source}: y must be 0 or 1 (or 4, for positive), got {sentiment!r}")
            texts.append(row[_TEXT_FIELD])
            labels.append(label)
            owners.append(number)
    corpus = Corpus(
        source=users.source, users=list(everyone), owners=np.array(owners), texts=texts, labels=np.array(labels)
    )
    test_users = np.arange(len(users.train), len(everyone)) if users.test else None
    return classification_splits(
        corpus, split, positions=positions, vocabulary_size=vocabulary_size, test_users=test_users
    )


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of training users (or of all) and those of test users."""
    if path.is_file():
        return [path], []
    for root in (path, path / "data"):
        train, test = sorted(root.glob("train/*.json")), sorted(root.glob("test/*.json"))
        if train:
            return train, test
        files = sorted(root.glob("*.json")) or sorted(root.glob("all_data/*.json"))
        if files:
            return files, []
    raise InputError(
        f"{path} has no .json files, nor directories train/ and test/ with .json files, as LEAF writes them"
    )


def _users(files: list[Path]) -> UserData:
    """Read the users of several files; a user may be in more than one."""
    users: UserData = {}
    for file in files:
        content = _read(file)
        if len(set(map(str, content["users"]))) < len(content["users"]):
            raise InputError(f"{file} lists a user twice")
        for user, samples in zip(content["users"], content["num_samples"], strict=True):
            data = content["user_data"].get(user) if isinstance(user, str) else None
            if not isinstance(data, dict) or not isinstance(data.get("x"), list) or not isinstance(data.get("y"), list):
                raise InputError(f"{file}: user {user!r} is listed, but user_data has no x and y for it")
            x, y = data["x"], data["y"]
            if len(x) != len(y):
                raise InputError(f"{file}: user {user!r} has {len(x)} x and {len(y)} y")
            if len(x) != samples:
                raise InputError(f"{file}: num_samples says {samples} for user {user!r}, but user_data has {len(x)}")
            if not x:
                raise InputError(f"{file}: user {user!r} has no examples")
            all_x, all_y = users.setdefault(user, ([], []))
            all_x.extend(x)
            all_y.extend(y)
    if files and not users:
        raise InputError(f"{files[0]} has no users")
    return users


def _read(file: Path) -> dict[str, Any]:
    """Read one JSON file and check its outer form."""
    content = parse_json(read_text(file), file)
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    missing = [
        key for key, kind in kinds.items() if not isinstance(content, dict) or not isinstance(content.get(key), kind)
    ]
    if missing:
        raise InputError(f"{file} is not in LEAF's format: it needs {', '.join(missing)}")
    if len(content["users"]) != len(content["num_samples"]):
        counts = f"{len(content['users'])} users and {len(content['num_samples'])} num_samples"
        raise InputError(f"{file} needs one number of samples per user, got {counts}")
    return dict(content)
