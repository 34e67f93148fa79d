"""Tables of Hugging Face's ``datasets``: in memory, as partitions, saved to disk, .parquet or .arrow files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.errors import InputError
from coalmine.simulation.data.federated import Array, FederatedData, Task
from coalmine.simulation.data.images import NAMES, ArrayData, as_inputs, as_labels, without_users
from coalmine.simulation.data.text import Corpus

SUFFIXES = (".parquet", ".arrow")

# What a directory holds that ``save_to_disk`` wrote.
_SAVED = ("dataset_info.json", "dataset_dict.json")

_USUAL = {**NAMES, "inputs": ("image", "img", "pixel_values", "text", "sentence", *NAMES["inputs"])}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of one part of the data, all of one length: ``inputs`` are numbers, or texts in a list."""

    inputs: Array | list[str]
    labels: Array | None
    users: list[str] | None


def is_saved(path: Path) -> bool:
    """Whether ``save_to_disk`` wrote this directory."""
    return path.is_dir() and any((path / name).is_file() for name in _SAVED)


def open_table(path: Path) -> Any:
    """The dataset, or dict of them, in a directory or a file: read where it lies, nothing is downloaded or cached."""
    datasets = _library()
    try:
        if path.is_dir():
            return datasets.load_from_disk(str(path))
        if path.suffix == ".parquet":
            import pyarrow.parquet

            return datasets.Dataset(pyarrow.parquet.read_table(path))
        return datasets.Dataset.from_file(str(path))
    except Exception as error:  # whatever Arrow raises at a broken file
        raise InputError(f"{path} cannot be read as a table: {type(error).__name__}: {error!s:.200}") from error


def parts_of(source: Any) -> tuple[Any, Any]:
    """What to train on, and what the data itself sets apart for testing, or None."""
    if not isinstance(source, _library().DatasetDict):
        return source, None
    if "train" not in source:
        raise InputError(f"the data must have a split train, it has {', '.join(source)}")
    return source["train"], source.get("test")


def read(source: Any, *, keys: Mapping[str, str]) -> Table:
    """The columns of a Dataset, or of partitions: a list, a dict or a Partitioner of them, each one user's."""
    datasets = _library()
    for role in keys:
        if role not in _USUAL:
            raise InputError(f"keys must be among {', '.join(_USUAL)}, got {role!r}")
    if isinstance(source, datasets.Dataset):
        return _columns(source, keys)
    if callable(getattr(source, "load_partition", None)) and hasattr(source, "num_partitions"):
        source = [source.load_partition(i) for i in range(source.num_partitions)]
    named = dict(source) if isinstance(source, Mapping) else dict(enumerate(_listed(source)))
    if not named or not all(isinstance(part, datasets.Dataset) for part in named.values()):
        raise InputError(
            f"the data must be a Dataset of the library datasets, or a list or dict of them, got {source!r:.80}"
        )
    if "users" in keys:
        raise InputError(f"partitions are users already: leave out user={keys['users']!r}, or give one Dataset")
    tables = [_columns(part, keys, partitioned=True) for part in named.values()]
    users = [str(name) for name, table in zip(named, tables, strict=True) for _ in table.inputs]
    return _joined(tables, users)


def assembled(train: Table, test: Table | None, *, source: str) -> ArrayData | Corpus:
    """Data of numbers with their labels, or texts by user."""
    if isinstance(train.inputs, list):
        if test is not None:
            raise InputError(f"{source}: texts are split by user: put all of them into one table, without a test part")
        if train.users is None:
            raise InputError(f"{source}: texts need a column that says whose each is: give user=")
        classes = None if train.labels is None else as_labels(train.labels, source)
        if classes is not None and classes.min() < 0:
            raise InputError(f"{source}: a label must be a whole number from 0 on, got {classes.min()}")
        return Corpus.of(source=source, users=train.users, texts=train.inputs, labels=classes)
    parts = [part for part in (train, test) if part is not None]
    arrays, labels = [], []
    for part in parts:
        if part.labels is None:
            raise InputError(f"{source} has no labels: give label=, the name of their column")
        if isinstance(part.inputs, list):
            raise InputError(f"{source}: inputs are numbers in train and texts in test")
        arrays.append(as_inputs(part.inputs, source))
        labels.append(as_labels(part.labels, source))
    task = Task(input_shape=arrays[0].shape[1:], classes=max(2, *(int(some.max()) + 1 for some in labels)))
    found, first = [], 0
    for part, inputs, targets in zip(parts, arrays, labels, strict=True):
        if part.users is None:
            found.append(without_users(inputs, targets, task, first=first))
        else:
            column = np.array(part.users)
            found.append(FederatedData.of_users(inputs=inputs, targets=targets, users=column, task=task))
        first += len(inputs)
    return ArrayData(data=found[0], test=found[1] if test is not None else None, has_users=train.users is not None)


def _columns(dataset: Any, keys: Mapping[str, str], *, partitioned: bool = False) -> Table:
    names = {role: _named(dataset, role, keys) for role in _USUAL if role != "users" or not partitioned}
    if names["inputs"] is None:
        raise InputError(
            f"the data has no inputs ({keys.get('inputs', 'image, text, x, …')}); its columns are: "
            f"{', '.join(dataset.column_names)}"
        )
    if not len(dataset):
        raise InputError("the data has no rows")
    wanted = list(dict.fromkeys(name for name in names.values() if name is not None))
    try:
        columns = dataset.select_columns(wanted).with_format("numpy")[:]
    except ImportError as error:
        raise InputError(f"{error}: pictures that are stored as files need it") from None
    inputs: Array | list[str] = columns[names["inputs"]]
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "UO" and all(isinstance(one, str) for one in inputs):
        inputs = [str(one) for one in inputs]
    elif isinstance(inputs, np.ndarray) and _is_bytes(dataset.features[names["inputs"]]):
        inputs = inputs.astype(np.uint8)  # which the library widens
    elif not isinstance(inputs, np.ndarray) or inputs.dtype == object:
        raise InputError(f"the column {names['inputs']} must hold texts, or numbers of the same shape in every row")
    labels = None if names["labels"] is None else np.asarray(columns[names["labels"]])
    found = names.get("users")
    return Table(inputs=inputs, labels=labels, users=None if found is None else [str(user) for user in columns[found]])


def _named(dataset: Any, role: str, keys: Mapping[str, str]) -> str | None:
    if role in keys:
        if keys[role] not in dataset.column_names:
            raise InputError(f"there is no column {keys[role]!r}; there are {', '.join(dataset.column_names)}")
        return keys[role]
    return next((name for name in _USUAL[role] if name in dataset.column_names), None)


def _is_bytes(feature: Any) -> bool:
    """Whether a column holds pixels: pictures, or arrays and lists of uint8."""
    while getattr(feature, "feature", None) is not None:
        feature = feature.feature
    return type(feature).__name__ == "Image" or getattr(feature, "dtype", None) == "uint8"


def _joined(tables: Sequence[Table], users: list[str]) -> Table:
    first = tables[0].inputs
    if isinstance(first, list):
        inputs: Array | list[str] = [text for table in tables for text in table.inputs]
    else:
        shapes = {np.shape(table.inputs)[1:] for table in tables}
        if len(shapes) > 1:
            raise InputError(f"all partitions must have examples of one shape, got {sorted(shapes)[:3]}")
        inputs = np.concatenate([np.asarray(table.inputs) for table in tables])
    labels = [table.labels for table in tables if table.labels is not None]
    return Table(inputs=inputs, labels=np.concatenate(labels) if len(labels) == len(tables) else None, users=users)


def _listed(source: Any) -> list[Any]:
    try:
        return list(source)
    except TypeError:
        return []


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError(
            "the library datasets is not installed, which such tables need: pip install 'coalmine[datasets]'"
        ) from None
    return datasets
