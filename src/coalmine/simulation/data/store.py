"""Saved data as plain .npy files that are opened memory-mapped: for data that is slow to load or larger than memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.arrays import Array
from coalmine.errors import InputError
from coalmine.reading import read_json
from coalmine.simulation.data.federated import FederatedData, Splits, Task, consecutive_bounds
from coalmine.simulation.data.vocabulary import Vocabulary

INDEX = "coalmine-data.json"
_VERSION = 1
_PARTS = ("train", "test", "pool")


def save(splits: Splits, directory: Path | str) -> None:
    """Save splits to a directory, to be opened by `load` or `open_saved`.

    Arrays are written as .npy files, the rest as JSON. Only examples that a client holds are written. Language data,
    whose targets are its inputs shifted by one, is written once.

    Args:
        splits: Data to save.
        directory: A new or empty directory, or one with saved data, which is replaced.

    Raises:
        InputError: If the directory contains other files.

    Example:
        >>> import tempfile
        >>> from coalmine.simulation.data import load
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     save(load("digits"), directory)
        ...     open_saved(directory).test
        FederatedData(6 clients of 30 examples, 180 in all, 1×8×8, 10 classes)
    """
    root = Path(directory)
    if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not (root / INDEX).exists())):
        raise InputError(f"{root} must be a new or empty directory, or one with saved data")
    root.mkdir(parents=True, exist_ok=True)
    (root / INDEX).unlink(missing_ok=True)
    train = splits.train
    index: dict[str, Any] = {
        "version": _VERSION,
        "task": {**vars(train.task), "input_shape": list(train.task.input_shape)},
        "vocabulary": None if train.vocabulary is None else train.vocabulary.to_json(),
        "names": {},
    }
    for name in _PARTS:
        part: FederatedData | None = getattr(splits, name)
        if part is not None:
            _save_arrays(part, root / name)
            index["names"][name] = list(part.names)
    # The index is written last, so that an interrupted save is not mistaken for a complete one.
    (root / INDEX).write_text(json.dumps(index), encoding="utf-8")


def open_saved(directory: Path | str) -> Splits:
    """Open data that `save` wrote.

    The arrays are memory-mapped and read-only: examples are read from disk when they are used.

    Args:
        directory: Directory of the saved data.

    Raises:
        InputError: If the directory holds no saved data, or if a file is damaged or missing.

    Example:
        >>> import tempfile
        >>> from coalmine.simulation.data import load
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     save(load("digits"), directory)
        ...     type(open_saved(directory).train.inputs).__name__
        'memmap'
    """
    root = Path(directory)
    if not (root / INDEX).is_file():
        raise InputError(f"{root} holds no saved data: {INDEX} is missing")
    try:
        index = read_json(root / INDEX)
        if index["version"] != _VERSION:
            raise InputError(f"{root / INDEX} has version {index['version']}; this coalmine reads version {_VERSION}")
        task = Task(**index["task"])
        names = {part: list(index["names"][part]) for part in _PARTS if part in index["names"]}
        vocabulary = index["vocabulary"]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{root / INDEX} is not an index of saved data: {error!r}") from None
    if not {"train", "test"} <= names.keys():
        raise InputError(f"{root / INDEX} must name train and test clients, got {', '.join(names) or 'none'}")
    words = None if vocabulary is None else Vocabulary.from_json(vocabulary, str(root / INDEX))
    parts = {part: _open_arrays(root / part, names[part], task, words) for part in names}
    return Splits(train=parts["train"], test=parts["test"], pool=parts.get("pool"))


def _save_arrays(data: FederatedData, directory: Path) -> None:
    """Write the arrays of one split, replacing older ones."""
    directory.mkdir(exist_ok=True)
    examples = data.pooled()
    arrays = {"bounds": consecutive_bounds(data.sizes)}
    if data.task.per_position and np.array_equal(examples.inputs[:, 1:], examples.targets[:, :-1]):
        arrays["tokens"] = np.concatenate([examples.inputs[:, :1], examples.targets], axis=1)
    else:
        arrays |= {"inputs": examples.inputs, "targets": examples.targets}
    for old in directory.glob("*.npy"):
        old.unlink()
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array, allow_pickle=False)


def _open_arrays(directory: Path, names: list[str], task: Task, vocabulary: Vocabulary | None) -> FederatedData:
    """Open the arrays of one split."""
    if (directory / "tokens.npy").exists():
        tokens = _memory_map(directory / "tokens.npy")
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
    else:
        inputs, targets = _memory_map(directory / "inputs.npy"), _memory_map(directory / "targets.npy")
    return FederatedData(
        inputs=inputs,
        targets=targets,
        bounds=np.array(_memory_map(directory / "bounds.npy")),
        names=names,
        task=task,
        vocabulary=vocabulary,
    )


def _memory_map(path: Path) -> Array:
    """Open an .npy file memory-mapped and read-only."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise InputError(f"saved data is incomplete: {path} is missing") from None
    except (OSError, ValueError, EOFError):
        raise InputError(f"{path} is not an .npy file of numbers, or it is truncated") from None
