"""Files and tables of examples: .npz, .jsonl, LEAF's JSON, and whatever the library ``datasets`` reads.

Each reader returns the columns of all examples, or of a training and a test part.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.arrays import Array
from coalmine.errors import InputError
from coalmine.reading import json_lines, parse_json, read_arrays, read_text

TABLES = (".csv", ".parquet", ".arrow")
"""Endings of the files that ``datasets`` reads."""

# Names that the column of each role may have, in order of preference.
_NAMES = {
    "input": ("x", "inputs", "input", "images", "image", "img", "text", "sentence", "data", "features"),
    "label": ("y", "labels", "label", "targets", "target"),
    "user": ("user", "users", "user_id", "writer", "writers", "writer_id", "client", "client_id", "subject", "author"),
}

# LEAF's Shakespeare has these 80 characters; the token id of a character is its place here.
_ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_FEMNIST_PIXELS, _FEMNIST_CLASSES = 784, 62
_TWEET_FIELD = 4  # the text in a row of LEAF's Sent140


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """Examples as columns of equal length.

    Args:
        inputs: Numbers, one row per example, or texts.
        labels: Integers, or None for texts to predict the next word of.
        users: The user of each example, or None if the data has no users.
        classes: Number of labels, if known beforehand.
        tokens: Number of tokens if ``inputs`` are token ids.
        unknown: Names of columns that have no known role.
    """

    inputs: Array | list[str]
    labels: Array | None
    users: list[str] | None
    classes: int | None = None
    tokens: int | None = None
    unknown: tuple[str, ...] = ()


Parts = tuple[Columns, Columns | None]
"""All examples, or training examples and test examples."""


def column_names(available: Iterable[str], keys: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the column of each role that a table has: as ``keys`` name it, or the first usual name."""
    columns = list(available)
    chosen: dict[str, str] = {}
    for role, usual_names in _NAMES.items():
        candidates = (keys[role],) if role in keys else usual_names
        name = next((name for name in candidates if name in columns), None)
        if name is not None:
            chosen[role] = name
        elif role == "input" or role in keys:
            raise InputError(
                f"{source} has no column {' or '.join(candidates)}; its columns are: {', '.join(columns)}. Name the "
                f"column of {role}s with keys"
            )
    return chosen


def columns_of(table: Mapping[str, Any], keys: Mapping[str, str], source: str) -> Columns:
    """Pick the columns of a table."""
    chosen = column_names(table, keys, source)
    inputs = table[chosen["input"]]
    if not isinstance(inputs, np.ndarray) or inputs.dtype.kind in "UO":
        inputs = list(inputs)
        if not all(isinstance(text, str) for text in inputs):
            raise InputError(f"{source}: {chosen['input']} must hold texts, or numbers of one shape in every row")
    return Columns(
        inputs=inputs,
        labels=np.asarray(table[chosen["label"]]) if "label" in chosen else None,
        users=[str(user) for user in table[chosen["user"]]] if "user" in chosen else None,
        unknown=tuple(name for name in table if name not in chosen.values()),
    )


def read_npz(path: Path, keys: Mapping[str, str]) -> Parts:
    """Read an .npz file with each column once, or twice with _train and _test (or train_ and test_)."""
    arrays = read_arrays(path)
    parts = []
    for part in ("train", "test"):
        named = {name: name.removeprefix(f"{part}_").removesuffix(f"_{part}") for name in arrays}
        parts.append({short: arrays[name] for name, short in named.items() if short != name})
    train, test = parts
    if not train:
        return columns_of(arrays, keys, str(path)), None
    return columns_of(train, keys, str(path)), columns_of(test, keys, str(path)) if test else None


def read_jsonl(path: Path, keys: Mapping[str, str]) -> Parts:
    """Read lines such as {"user": "ann", "text": "…", "label": 1}; either all lines have a label or none."""
    table: dict[str, list[Any]] = {}
    for number, record in json_lines(path):
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}: a line must be an object with user and text, got {record!r:.40}")
        line = f"{path}, line {number},"
        names = column_names(record, keys, line).values()
        table = table or {name: [] for name in names}
        if set(names) != table.keys():
            raise InputError(f"{line} has {', '.join(names)}, but lines before it have {', '.join(table)}")
        for name in names:
            table[name].append(record[name])
    if not table:
        raise InputError(f"{path} is empty: it needs at least one line")
    return columns_of(table, keys, str(path)), None


def read_table(source: Any, keys: Mapping[str, str]) -> Parts:
    """Read a file or directory by ``datasets``, or a Dataset or DatasetDict in memory."""
    try:
        import datasets
    except ImportError:
        raise InputError(
            "this table needs the library datasets, which is not installed: pip install 'coalmine[datasets]'"
        ) from None
    name = str(source) if isinstance(source, Path) else "the table"
    try:
        # The library converts files to its own format first; nothing of that is kept.
        with tempfile.TemporaryDirectory() as cache:
            table = _open(datasets, source, cache) if isinstance(source, Path) else source
            if not isinstance(table, datasets.DatasetDict):
                return columns_of(_numpy(table), keys, name), None
            if "train" not in table:
                raise InputError(f"{name} must have a split train, got {', '.join(table)}")
            test = columns_of(_numpy(table["test"]), keys, name) if "test" in table else None
            return columns_of(_numpy(table["train"]), keys, name), test
    except InputError:
        raise
    except Exception as error:  # Arrow and the library raise many kinds of errors on damaged files
        raise InputError(f"{name} cannot be read as a table: {type(error).__name__}: {error!s:.200}") from error


def _open(datasets: Any, path: Path, cache: str) -> Any:
    """Open a table from a file, or from a directory that ``save_to_disk`` wrote."""
    if path.is_dir():
        return datasets.load_from_disk(str(path))
    if path.suffix == ".arrow":
        return datasets.Dataset.from_file(str(path))
    read = datasets.Dataset.from_csv if path.suffix == ".csv" else datasets.Dataset.from_parquet
    return read(str(path), cache_dir=cache, keep_in_memory=True)


def _numpy(dataset: Any) -> dict[str, Any]:
    """Return the columns of a Dataset as arrays, pixels as uint8."""
    columns: dict[str, Any] = dataset.with_format("numpy")[:]
    for name, feature in dataset.features.items():
        inner = feature
        while getattr(inner, "feature", None) is not None:  # lists, perhaps of lists
            inner = inner.feature
        # The library widens uint8 to int64.
        if type(inner).__name__ == "Image" or getattr(inner, "dtype", None) == "uint8":
            columns[name] = np.asarray(columns[name]).astype(np.uint8)
    return columns


def is_saved_table(path: Path) -> bool:
    """Whether ``save_to_disk`` of ``datasets`` wrote this directory."""
    return any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def read_leaf(path: Path) -> Parts:
    """Read data in the JSON format of LEAF (Caldas et al. 2018, "LEAF: a benchmark for federated settings").

    A file is ``{"users": […], "num_samples": […], "user_data": {user: {"x": […], "y": […]}}}``. A directory has such
    files, or train/ and test/ with such files (also under data/, where LEAF's scripts put them).
    """
    if path.is_file():
        return _leaf_columns([path]), None
    for root in (path, path / "data"):
        train, test = sorted(root.glob("train/*.json")), sorted(root.glob("test/*.json"))
        if train:
            return _leaf_columns(train), _leaf_columns(test) if test else None
        files = sorted(root.glob("*.json")) or sorted(root.glob("all_data/*.json"))
        if files:
            return _leaf_columns(files), None
    raise InputError(
        f"{path} has no .json files, nor directories train/ and test/ with .json files, as LEAF writes them"
    )


def _leaf_columns(files: Sequence[Path]) -> Columns:
    """Return the examples in several files of LEAF, recognized by their first ``x``."""
    x: list[Any] = []
    y: list[Any] = []
    users: list[str] = []
    for file in files:
        try:
            for user, data in parse_json(read_text(file), file)["user_data"].items():
                if len(data["x"]) != len(data["y"]):
                    raise InputError(f"{file}: user {user!r} has {len(data['x'])} x and {len(data['y'])} y")
                x += data["x"]
                y += data["y"]
                users += [user] * len(data["x"])
        except (KeyError, TypeError, AttributeError):
            raise InputError(f"{file} is not in LEAF's format: it needs user_data with x and y of each user") from None
    if not x:
        raise InputError(f"{files[0]} has no examples")
    try:
        return _leaf_kind(x, y, users)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError):
        raise InputError(
            f"{files[0]}: each x must be 80 characters (Shakespeare), a row of Sent140 or a list of numbers (FEMNIST), "
            f"and each y its label, got {x[0]!r:.60} and {y[0]!r:.20}. Convert image files to an .npz file"
        ) from None


def _leaf_kind(x: list[Any], y: list[Any], users: list[str]) -> Columns:
    """Return examples of Shakespeare, Sent140, or vectors such as FEMNIST's; raises if some are of another kind."""
    if isinstance(x[0], str):
        places = {character: place for place, character in enumerate(_ALPHABET)}
        windows = np.array([[places[character] for character in window] for window in x], dtype=np.int16)
        following = np.array([places[character] for character in y], dtype=np.int16)
        size = len(_ALPHABET)
        return Columns(inputs=windows, labels=following, users=users, classes=size, tokens=size)
    if any(isinstance(value, str) for value in x[0]):
        # Sentiment140 labels tweets 0 and 4; LEAF's scripts turn 4 into 1.
        sentiments = {"0": 0, "1": 1, "4": 1}
        texts = [str(row[_TWEET_FIELD]) for row in x]
        return Columns(inputs=texts, labels=np.array([sentiments[str(value)] for value in y]), users=users)
    inputs, labels = np.array(x, dtype=np.float32), np.array(y)
    if not np.array_equal(labels, labels.astype(np.int64)):
        raise ValueError
    if inputs.shape[1] == _FEMNIST_PIXELS:
        inputs = inputs.reshape(-1, 1, 28, 28)
    classes = _FEMNIST_CLASSES if inputs.shape[1:] == (1, 28, 28) else None
    return Columns(inputs=inputs, labels=labels.astype(np.int64), users=users, classes=classes)
