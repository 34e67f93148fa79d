"""Loading data sets by name, from files and from tables in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.arrays import Array, Ints
from coalmine.errors import InputError, did_you_mean
from coalmine.simulation.data import files
from coalmine.simulation.data.federated import FederatedData, Splits, Task, group_by_user
from coalmine.simulation.data.files import Columns
from coalmine.simulation.data.generated_text import generated_text
from coalmine.simulation.data.splitting import SplitOptions, parse_partition, repartition, split_by_user
from coalmine.simulation.data.text import (
    Level,
    classification_splits,
    language_splits,
    tokenize_characters,
    tokenize_words,
)

_VARIABLE = "COALMINE_DATA"  # names the directory of these files
_FILES = {
    "mnist": "mnist.npz",
    "fashion-mnist": "fashion_mnist.npz",
    "cifar10": "cifar10.npz",
    "svhn": "svhn_digits.npz",
    "shakespeare": "shakespeare_roles.jsonl.gz",
    "stackexchange": "stackexchange_users.jsonl.gz",
    "ubuntu-irc": "ubuntu_irc_users.jsonl.gz",
    "scotus": "scotus_speakers.jsonl.gz",
    "sent140": "sent140_sample.jsonl.gz",
}

NAMES = ("digits", "generated-text", *_FILES)
"""Names of data sets that `load` takes; the first two need no file."""

_CLIENTS = 100  # default number of IID clients for data without users


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
            .jsonl or .jsonl.gz file of texts by user, a .json file or directory of LEAF, a .csv, .parquet or .arrow
            file, or a directory that ``save_to_disk`` of Hugging Face's ``datasets`` wrote; or a ``Dataset`` or
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
    kind = None if partition is None else parse_partition(partition)[0]
    split = SplitOptions(test_fraction=test_fraction, pool_fraction=pool_fraction, min_examples=min_examples, seed=seed)
    name = source if isinstance(source, str | Path) else "the table"
    try:
        if source == "generated-text":
            if level is not None:
                raise InputError("generated-text consists of words: leave out level")
            splits = generated_text(split=split, positions=positions or 20, vocabulary_size=vocabulary_size or 1000)
            return repartition(splits, partition or "natural", seed=seed)
        columns, test_names = _joined(*_read(source, keys or {}))
        if isinstance(columns.inputs, list):
            if source == "shakespeare":
                level = level or "characters"
            splits = _text_splits(columns, test_names, split, level, positions, vocabulary_size)
            return repartition(splits, partition or "natural", seed=seed)
        if (level, positions, vocabulary_size) != (None, None, None):
            raise InputError(f"{name} holds numbers, but level, positions and vocabulary_size apply to texts")
        if columns.users is None and kind in ("natural", "balanced"):
            raise InputError(f"{name} has no users, so the partition cannot be {partition}: use iid or dirichlet")
        # A column with an unknown name may hold the users. Ignoring it would audit the wrong clients, so ask.
        if columns.unknown and columns.users is None and partition is None and source not in NAMES:
            raise InputError(
                f"{name} has unrecognized columns: {', '.join(columns.unknown)}. If one holds the user of each example,"
                f' pass keys={{"user": "{columns.unknown[0]}"}}; if none does, pass a partition such as "iid:100"'
            )
        splits = _number_splits(columns, test_names, split)
        if partition is None and columns.users is None:
            partition = f"iid:{50 if source == 'digits' else min(_CLIENTS, len(splits.train))}"
        return repartition(splits, partition or "natural", seed=seed)
    except InputError as error:
        if str(name) in str(error):
            raise
        raise InputError(f"{name}: {error}") from error


def _read(source: str | Path | Any, keys: Mapping[str, str]) -> files.Parts:
    """Read a data set by its name, from a path or from a table in memory."""
    for key in keys:
        if key not in ("input", "label", "user") or source in NAMES:
            raise InputError(f"keys name the input, label and user of your own files, got {key!r} for {source}")
    if not isinstance(source, str | Path):
        return files.read_table(source, keys)
    if source == "digits":
        from sklearn.datasets import load_digits  # slow to import

        bunch = load_digits()
        images = (bunch.images / 16).astype(np.float32)[:, None]
        return Columns(inputs=images, labels=bunch.target.astype(np.uint8), users=None), None
    path = Path(source)
    if source in _FILES:
        directory = os.environ.get(_VARIABLE, "")
        path = Path(directory, _FILES[str(source)])
        if not directory or not path.is_file():
            raise InputError(
                f"{source} needs the file {path.name} in the directory that the environment variable {_VARIABLE} "
                f"names, got {directory!r}"
            )
    if not path.exists():
        hint = did_you_mean(str(source), NAMES)
        raise InputError(f"there is no data set and no file {str(source)!r}. {hint}")
    if path.suffix == ".npz":
        return files.read_npz(path, keys)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return files.read_jsonl(path, keys)
    if path.suffix in files.TABLES or files.is_saved_table(path):
        return files.read_table(path, keys)
    if path.is_dir() or path.suffix == ".json":
        return files.read_leaf(path)
    raise InputError(f"{path} must end in .npz, .jsonl, .jsonl.gz, .json, {', '.join(files.TABLES)}, or be a directory")


def _joined(train: Columns, test: Columns | None) -> tuple[Columns, set[str]]:
    """Join training and test examples into one table; return it with the names of the users that are for testing."""
    if test is None:
        return train, set()
    if (train.users is None) != (test.users is None) or (train.labels is None) != (test.labels is None):
        raise InputError("train and test must both have users, or labels, or neither")
    users = None if train.users is None else [*train.users, *(test.users or ())]
    labels = None if train.labels is None else np.concatenate([train.labels, test.labels])
    if isinstance(train.inputs, list):
        inputs: Array | list[str] = [*train.inputs, *test.inputs]
    elif train.inputs.shape[1:] != np.shape(test.inputs)[1:]:
        raise InputError(f"train and test must have one shape, got {train.inputs.shape} and {np.shape(test.inputs)}")
    else:
        inputs = np.concatenate([train.inputs, np.asarray(test.inputs)])
    names = set(test.users or (f"example-{i}" for i in range(len(train.inputs), len(inputs))))
    # After a split by example, such as LEAF's split by sample, users are in both parts: split by user instead.
    if not names.isdisjoint(train.users or ()):
        names = set()
    return replace(train, inputs=inputs, labels=labels, users=users), names


def _test_users(names: Sequence[str], test_names: set[str]) -> Ints | None:
    """Return the numbers of the users that are for testing; None if the data comes with none."""
    return np.flatnonzero([name in test_names for name in names]) if test_names else None


def _number_splits(columns: Columns, test_names: set[str], split: SplitOptions) -> Splits:
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
    classes = columns.classes or max(2, int(labels.max()) + 1)
    task = Task(input_shape=inputs.shape[1:], classes=classes, tokens=columns.tokens)
    # Without users every example is its own user, until a partition joins them.
    users = columns.users or [f"example-{i}" for i in range(len(inputs))]
    data = FederatedData.from_users(inputs=inputs, targets=labels, users=users, task=task)
    return split_by_user(data, split, test_users=_test_users(data.names, test_names))


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


def _text_splits(
    columns: Columns,
    test_names: set[str],
    split: SplitOptions,
    level: Level | None,
    positions: int | None,
    vocabulary_size: int | None,
) -> Splits:
    """Split texts by user, to classify if they have labels, else to predict the next word or character."""
    if level not in (None, "words", "characters"):
        raise InputError(f"level must be words or characters, got {level!r}")
    if not columns.users:
        raise InputError('texts need a column of users: name it, such as keys={"user": "author"}')
    names, owners, order = group_by_user(columns.users)
    texts = [columns.inputs[i] for i in order.tolist()]
    if columns.labels is not None:
        if level is not None:
            raise InputError("texts with labels are read by words: leave out level")
        tokenized = tokenize_words(names, owners, texts)
        labels, test_users = _labels(columns)[order], _test_users(names, test_names)
        return classification_splits(
            tokenized, labels, split, positions=positions, vocabulary_size=vocabulary_size, test_users=test_users
        )
    if level == "characters":
        tokenized = tokenize_characters(names, owners, texts)
    else:
        tokenized = tokenize_words(names, owners, texts, by_line=True)
    return language_splits(
        tokenized, split, level=level or "words", positions=positions, vocabulary_size=vocabulary_size
    )
