"""Tables of Hugging Face's ``datasets``: in memory, as partitions, saved to disk, .parquet or .arrow files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.arrays import Array
from coalmine.errors import InputError
from coalmine.simulation.data.arrow_size import check_arrow, check_parquet
from coalmine.simulation.data.images import NAMES, ArrayData, array_data, as_labels
from coalmine.simulation.data.text import Corpus

SUFFIXES = (".parquet", ".arrow")

# Files by which a directory of ``save_to_disk`` is recognized.
_MARKERS = ("dataset_info.json", "dataset_dict.json")

_COLUMN_NAMES = {**NAMES, "inputs": ("image", "img", "pixel_values", "text", "sentence", *NAMES["inputs"])}


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """Columns of equal length. ``inputs`` are numbers, or a list of texts."""

    inputs: Array | list[str]
    labels: Array | None
    users: list[str] | None


def is_saved(path: Path) -> bool:
    """Return whether ``save_to_disk`` wrote this directory."""
    return path.is_dir() and any((path / name).is_file() for name in _MARKERS)


def open_table(path: Path) -> Any:
    """Open the dataset, or dict of datasets, in a directory or file; nothing is downloaded or cached."""
    opened = _opened(path)
    for part in opened.values() if isinstance(opened, _library().DatasetDict) else [opened]:
        _refuse_links(part, path)
    return opened


def _refuse_links(dataset: Any, path: Path) -> None:
    """Refuse images, sounds and the like that are named instead of stored: reading them would open other files."""
    for name, feature in dataset.features.items():
        if not _is_decoded(feature):
            continue
        column = dataset.data.column(name).combine_chunks()
        kind = column.type
        stored = hasattr(kind, "get_field_index") and kind.get_field_index("bytes") >= 0
        if not stored or column.field("bytes").null_count > column.null_count:
            raise InputError(
                f"{path}: the column {name!r:.60} names files or addresses instead of holding their content, and no "
                "other file is opened for a table: save it with its content (`save_to_disk` does)"
            )


def _is_decoded(feature: Any) -> bool:
    """Whether the library decodes a column, or something inside it, as a file."""
    if isinstance(feature, Mapping):
        return any(map(_is_decoded, feature.values()))
    if isinstance(feature, list):
        return any(map(_is_decoded, feature))
    inner = getattr(feature, "feature", None)
    return hasattr(feature, "decode_example") or (inner is not None and _is_decoded(inner))


def _opened(path: Path) -> Any:
    """Return what the library reads."""
    datasets = _library()
    try:
        if path.is_dir():
            for file in sorted(path.glob("**/*.arrow")):
                check_arrow(file)
            return datasets.load_from_disk(str(path))
        if path.suffix == ".parquet":
            import pyarrow.parquet

            check_parquet(path)
            return datasets.Dataset(pyarrow.parquet.read_table(path))
        check_arrow(path)
        return datasets.Dataset.from_file(str(path))
    except InputError:
        raise
    except Exception as error:  # Arrow raises many kinds of errors on a damaged file
        raise InputError(f"{path} cannot be read as a table: {type(error).__name__}: {error!s:.200}") from error


def split_parts(source: Any) -> tuple[Any, Any]:
    """Return the training part of a dataset and its test part, or None if it has no test part."""
    if not isinstance(source, _library().DatasetDict):
        return source, None
    if "train" not in source:
        raise InputError(f"the data must have a split train, got {', '.join(source)}")
    return source["train"], source.get("test")


def read(source: Any, *, keys: Mapping[str, str]) -> DataTable:
    """Read the columns of a Dataset, or of partitions (a list, a dict or a Partitioner), each of which is a user."""
    datasets = _library()
    for role in keys:
        if role not in _COLUMN_NAMES:
            raise InputError(f"keys must be among {', '.join(_COLUMN_NAMES)}, got {role!r}")
    if isinstance(source, datasets.Dataset):
        return _columns(source, keys)
    if callable(getattr(source, "load_partition", None)) and hasattr(source, "num_partitions"):
        source = [source.load_partition(i) for i in range(source.num_partitions)]
    partitions = dict(source) if isinstance(source, Mapping) else dict(enumerate(_as_list(source)))
    if not partitions or not all(isinstance(part, datasets.Dataset) for part in partitions.values()):
        raise InputError(f"the data must be a datasets.Dataset, or a list or dict of them, got {source!r:.80}")
    if "users" in keys:
        raise InputError(f"partitions are users already: leave out user={keys['users']!r}, or pass one Dataset")
    tables = [_columns(part, keys, partitioned=True) for part in partitions.values()]
    users = [str(name) for name, table in zip(partitions, tables, strict=True) for _ in table.inputs]
    return _concatenate(tables, users)


def to_data(train: DataTable, test: DataTable | None, *, source: str) -> ArrayData | Corpus:
    """Return numbers with labels as arrays, and texts by user as a corpus."""
    if isinstance(train.inputs, list):
        if test is not None:
            raise InputError(f"{source}: texts are split by user: put all of them into one table without a test part")
        if train.users is None:
            raise InputError(f"{source}: texts need a column of users: pass user=")
        classes = None if train.labels is None else as_labels(train.labels, source)
        if classes is not None and classes.min() < 0:
            raise InputError(f"{source}: a label must be an integer of at least 0, got {classes.min()}")
        return Corpus.from_columns(source=source, users=train.users, texts=train.inputs, labels=classes)
    parts = []
    for part in (train, test):
        if part is None:
            continue
        if part.labels is None:
            raise InputError(f"{source} has no labels: pass label=, the name of their column")
        if isinstance(part.inputs, list):
            raise InputError(f"{source}: inputs are numbers in train and texts in test")
        parts.append((part.inputs, part.labels, part.users))
    return array_data(source, parts)


def _columns(dataset: Any, keys: Mapping[str, str], *, partitioned: bool = False) -> DataTable:
    """Read inputs, labels and users (unless ``partitioned``) of one Dataset."""
    names = {role: _column_name(dataset, role, keys) for role in _COLUMN_NAMES if role != "users" or not partitioned}
    if names["inputs"] is None:
        raise InputError(
            f"the data has no inputs ({keys.get('inputs', 'image, text, x, …')}); its columns are: "
            f"{', '.join(dataset.column_names)}"
        )
    if not len(dataset):
        raise InputError("the data has no rows")
    selected = list(dict.fromkeys(name for name in names.values() if name is not None))
    try:
        columns = dataset.select_columns(selected).with_format("numpy")[:]
    except ImportError as error:
        raise InputError(f"{error}: it is needed for images that are stored as files") from None
    except Exception as error:  # the library fails in many ways on missing values and images that cannot be decoded
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise InputError(f"the columns {', '.join(selected)} cannot be read: {reason}") from error
    inputs: Array | list[str] = columns[names["inputs"]]
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "UO" and all(isinstance(text, str) for text in inputs):
        inputs = [str(text) for text in inputs]
    elif isinstance(inputs, np.ndarray) and _has_pixels(dataset.features[names["inputs"]]):
        inputs = inputs.astype(np.uint8)  # the library widens uint8 to int64
    elif not isinstance(inputs, np.ndarray) or inputs.dtype == object:
        raise InputError(f"the column {names['inputs']} must hold texts, or numbers of the same shape in every row")
    labels = None if names["labels"] is None else np.asarray(columns[names["labels"]])
    users = names.get("users")
    return DataTable(
        inputs=inputs, labels=labels, users=None if users is None else [str(user) for user in columns[users]]
    )


def _column_name(dataset: Any, role: str, keys: Mapping[str, str]) -> str | None:
    """Return the name of the column for a role: from ``keys``, or the first default name that exists."""
    if role in keys:
        if keys[role] not in dataset.column_names:
            raise InputError(f"there is no column {keys[role]!r}; available: {', '.join(dataset.column_names)}")
        return keys[role]
    return next((name for name in _COLUMN_NAMES[role] if name in dataset.column_names), None)


def _has_pixels(feature: Any) -> bool:
    """Return whether a column holds pixels: images, or arrays and lists of uint8."""
    while getattr(feature, "feature", None) is not None:
        feature = feature.feature
    return type(feature).__name__ == "Image" or getattr(feature, "dtype", None) == "uint8"


def _concatenate(tables: Sequence[DataTable], users: list[str]) -> DataTable:
    """Return the rows of all tables, with their users."""
    if isinstance(tables[0].inputs, list):
        inputs: Array | list[str] = [text for table in tables for text in table.inputs]
    else:
        shapes = {np.shape(table.inputs)[1:] for table in tables}
        if len(shapes) > 1:
            raise InputError(f"all partitions must have examples of one shape, got {sorted(shapes)[:3]}")
        inputs = np.concatenate([np.asarray(table.inputs) for table in tables])
    labels = [table.labels for table in tables if table.labels is not None]
    return DataTable(inputs=inputs, labels=np.concatenate(labels) if len(labels) == len(tables) else None, users=users)


def _as_list(source: Any) -> list[Any]:
    """Return the items of an iterable; none if it is not iterable."""
    try:
        return list(source)
    except TypeError:
        return []


def _library() -> Any:
    """Import ``datasets``, an extra."""
    try:
        import datasets
    except ImportError:
        raise InputError(
            "these tables need the library datasets, which is not installed: pip install 'coalmine[datasets]'"
        ) from None
    return datasets
