"""Data as LEAF writes it (Caldas et al. 2018, "LEAF: a benchmark for federated settings"): JSON by user.

A file is ``{"users": […], "num_samples": […], "user_data": {user: {"x": […], "y": […]}}}``. A directory holds such
files, or folders train/ and test/ of them (also under data/, where LEAF's scripts put them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coalmine.errors import InputError
from coalmine.simulation.data.federated import Array, FederatedData, Splits, Task
from coalmine.simulation.data.images import as_inputs
from coalmine.simulation.data.splitting import Cut, split_by_user
from coalmine.simulation.data.text import Corpus, classification_splits
from coalmine.simulation.data.vocabulary import Vocabulary

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_FEMNIST_CLASSES = 62
_TWEET = 4  # where a row of Sentiment140 has its text
_PICTURES = (".jpg", ".jpeg", ".png")

Kind = Literal["numbers", "characters", "tweets", "pictures"]
Images = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class LeafUsers:
    """Users with their raw ``x`` and ``y``, in order; ``test`` are those of a folder test/, if there is one."""

    source: str
    train: dict[str, tuple[list[Any], list[Any]]]
    test: dict[str, tuple[list[Any], list[Any]]]


def read_leaf(path: Path) -> LeafUsers:
    """The users of a LEAF file or directory.

    Where train/ and test/ share users, as after LEAF's split by sample, a user's two parts are joined and all users
    count as training users, to be split by user.
    """
    folders = _folders(path)
    train, test = ({} if folder is None else _users(folder) for folder in folders)
    if not train.keys().isdisjoint(test):
        for user, (x, y) in test.items():
            both = train.setdefault(user, ([], []))
            both[0].extend(x)
            both[1].extend(y)
        test = {}
    return LeafUsers(source=str(path), train=train, test=test)


def leaf_splits(
    users: LeafUsers,
    cut: Cut,
    *,
    positions: int | None = None,
    vocabulary_size: int | None = None,
    images: Images | None = None,
) -> Splits:
    """Splits of Shakespeare, Sent140, FEMNIST (and other vectors of numbers) or CelebA, told apart by their ``x``."""
    x, y = next(iter(users.train.values()))
    kind = _kind(x[0], y[0], users.source)
    if kind != "tweets" and (positions is not None or vocabulary_size is not None):
        raise InputError(f"{users.source} has a fixed form: positions and vocabulary_size are for Sent140")
    if kind != "pictures" and images is not None:
        raise InputError(f"{users.source} has no pictures: leave images out")
    if kind == "tweets":
        return _tweets(users, cut, positions, vocabulary_size)
    if kind == "pictures" and images is None:
        raise InputError(
            f"{users.source} names pictures such as {x[0]!r} instead of holding them: give images, an .npz file with"
            " one array of uint8 (height, width, 3) under each of these names"
        )
    test = _data(users, users.test, kind, images) if users.test else None
    data = _data(users, users.train, kind, images)
    if test is not None and test.task != data.task:
        classes = max(test.task.classes, data.task.classes)
        task = Task(input_shape=data.task.input_shape, classes=classes)
        data, test = (FederatedData(**{**vars(part), "task": task}) for part in (data, test))
    return split_by_user(data, cut, test=test)


def _kind(x: Any, y: Any, source: str) -> Kind:
    if isinstance(x, str):
        if x.lower().endswith(_PICTURES):
            return "pictures"
        if isinstance(y, str) and len(y) == 1:
            return "characters"
    if isinstance(x, list) and x:
        if len(x) > _TWEET and isinstance(x[_TWEET], str):
            return "tweets"
        if all(isinstance(value, int | float) for value in x):
            return "numbers"
    raise InputError(
        f"{source}: an example's x must be 80 characters (Shakespeare), a row of Sentiment140, a list of numbers"
        f" (FEMNIST) or a picture's name (CelebA), got {x!r:.60} with y {y!r:.20}"
    )


def _data(
    source: LeafUsers, users: dict[str, tuple[list[Any], list[Any]]], kind: Kind, images: Images | None
) -> FederatedData:
    x = [value for xs, _ in users.values() for value in xs]
    y = [value for _, ys in users.values() for value in ys]
    stops = np.cumsum([len(ys) for _, ys in users.values()])
    vocabulary = None
    if kind == "characters":
        vocabulary = Vocabulary(tuple(ALPHABET), level="characters", marks=0)
        inputs, targets = _windows(x, y, source.source, vocabulary)
        task = Task(input_shape=inputs.shape[1:], classes=len(ALPHABET), tokens=len(ALPHABET))
    else:
        inputs = _numbers(x, source.source) if kind == "numbers" else _pictures(x, images or {}, source.source)
        targets = _labels(y, source.source)
        classes = _FEMNIST_CLASSES if inputs.shape[1:] == (1, 28, 28) else max(2, int(targets.max()) + 1)
        task = Task(input_shape=inputs.shape[1:], classes=classes)
    return FederatedData(
        inputs=inputs,
        targets=targets,
        bounds=np.stack([np.append(0, stops[:-1]), stops], axis=1),
        names=list(users),
        task=task,
        vocabulary=vocabulary,
    )


def _windows(x: list[Any], y: list[Any], source: str, alphabet: Vocabulary) -> tuple[Array, Array]:
    for window, after in zip(x, y, strict=True):
        if not isinstance(window, str) or len(window) != len(x[0]) or not isinstance(after, str) or len(after) != 1:
            raise InputError(
                f"{source}: an example must be {len(x[0])} characters and the one after them, got {window!r:.40} and"
                f" {after!r:.40}"
            )
    text = "".join(x) + "".join(y)
    if strange := set(text) - set(ALPHABET):
        raise InputError(f"{source}: {min(strange)!r} is not among the 80 characters of LEAF's Shakespeare")
    # Looked up by code in a table: every character is below 128.
    codes = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    table = np.zeros(128, dtype=alphabet.dtype)
    table[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    ids = table[codes]
    return ids[: -len(y)].reshape(len(x), -1), ids[-len(y) :]


def _numbers(x: list[Any], source: str) -> Array:
    try:
        inputs = np.array(x, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{source}: every x must be a list of {len(x[0])} numbers") from None
    return inputs.reshape(-1, 1, 28, 28) if inputs.shape[1] == 784 else inputs


def _pictures(x: list[Any], images: Images, source: str) -> Array:
    missing = [name for name in x if not isinstance(name, str) or name not in images]
    if missing:
        raise InputError(
            f"{source} names {missing[0]!r}, which is not among the {len(images)} images given ({len(missing)} missing)"
        )
    arrays = [images[name] for name in x]
    for name, array in zip(x, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise InputError(
                f"all images must have one shape, got {arrays[0].shape} for {x[0]}, {array.shape} for {name}"
            )
    return as_inputs(np.stack(arrays), source)


def _labels(y: list[Any], source: str) -> Array:
    for value in y:
        if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer():
            raise InputError(f"{source}: every y must be a whole number, got {value!r:.40}")
        if abs(value) > 1e9:
            raise InputError(f"{source}: a label must be below 1e9, got {value!r:.40}")
    return np.array(y, dtype=np.int64)


def _tweets(users: LeafUsers, cut: Cut, positions: int | None, vocabulary_size: int | None) -> Splits:
    everyone = users.train | users.test
    texts, labels, owners = [], [], []
    for number, (xs, ys) in enumerate(everyone.values()):
        for row, sentiment in zip(xs, ys, strict=True):
            if not isinstance(row, list) or len(row) <= _TWEET or not isinstance(row[_TWEET], str):
                raise InputError(f"{users.source}: a row must have its text in place {_TWEET}, got {row!r:.60}")
            # Sentiment140 itself says 0 and 4; LEAF's scripts make 4 a 1.
            label = {"0": 0, "1": 1, "4": 1}.get(str(sentiment))
            if label is None:
                raise InputError(f"{users.source}: y must be 0 or 1 (or 4, for positive), got {sentiment!r}")
            texts.append(row[_TWEET])
            labels.append(label)
            owners.append(number)
    corpus = Corpus(
        source=users.source, users=list(everyone), owners=np.array(owners), texts=texts, labels=np.array(labels)
    )
    fixed = np.arange(len(users.train), len(everyone)) if users.test else None
    return classification_splits(corpus, cut, positions=positions, vocabulary_size=vocabulary_size, test_users=fixed)


def _folders(path: Path) -> tuple[list[Path], list[Path] | None]:
    if path.is_file():
        return [path], None
    for root in (path, path / "data"):
        train, test = sorted(root.glob("train/*.json")), sorted(root.glob("test/*.json"))
        if train:
            return train, test or None
        files = sorted(root.glob("*.json")) or sorted(root.glob("all_data/*.json"))
        if files:
            return files, None
    raise InputError(f"{path} holds no .json files, nor folders train/ and test/ with some, as LEAF writes them")


def _users(files: list[Path]) -> dict[str, tuple[list[Any], list[Any]]]:
    users: dict[str, tuple[list[Any], list[Any]]] = {}
    for file in files:
        content = _read(file)
        if len(set(map(str, content["users"]))) < len(content["users"]):
            raise InputError(f"{file} lists a user twice")
        for user, samples in zip(content["users"], content["num_samples"], strict=True):
            data = content["user_data"].get(user) if isinstance(user, str) else None
            if not isinstance(data, dict) or not isinstance(data.get("x"), list) or not isinstance(data.get("y"), list):
                raise InputError(f"{file}: user {user!r} is among users, but user_data has no x and y for them")
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
    if not users:
        raise InputError(f"{files[0]} holds no users")
    return users


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(
            f"{file} is not complete JSON: {error.msg} at line {error.lineno}, column {error.colno} (character"
            f" {error.pos} of {len(error.doc)})"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    wrong = [
        key for key, kind in kinds.items() if not isinstance(content, dict) or not isinstance(content.get(key), kind)
    ]
    if wrong:
        raise InputError(
            f"{file} is not of LEAF's form: {', '.join(wrong)} must be there (users, num_samples, user_data)"
        )
    if len(content["users"]) != len(content["num_samples"]):
        counts = f"{len(content['users'])} users and {len(content['num_samples'])} num_samples"
        raise InputError(f"{file} must have a number of samples for each user, got {counts}")
    return dict(content)
