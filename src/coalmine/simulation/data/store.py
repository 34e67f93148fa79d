"""Data kept as plain .npy files, opened without being read: for data that is slow to load or larger than memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.errors import InputError
from coalmine.simulation.data.federated import Array, FederatedData, Splits, Task
from coalmine.simulation.data.vocabulary import Vocabulary

INDEX = "coalmine-data.json"
_VERSION = 1
_PARTS = ("train", "test", "pool")


def save(splits: Splits, directory: Path | str) -> None:
    """Write the splits into a directory: the arrays as .npy, the rest as JSON.

    Only the examples that some client holds are written. Language data, whose targets are its inputs one step on, is
    written once.
    """
    root = Path(directory)
    if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not (root / INDEX).exists())):
        raise InputError(f"{root} must be a new directory, an empty one, or one with saved data in it")
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
    # Last, so that a directory half written is not taken for a whole one.
    (root / INDEX).write_text(json.dumps(index), encoding="utf-8")


def open_saved(directory: Path | str) -> Splits:
    """Open what ``save`` wrote; the arrays are memory-mapped, read only."""
    root = Path(directory)
    try:
        index = json.loads((root / INDEX).read_text(encoding="utf-8"))
        if index["version"] != _VERSION:
            raise InputError(f"{root / INDEX} is of version {index['version']}, and this reads version {_VERSION}")
        task = Task(**index["task"])
        names = {part: list(index["names"][part]) for part in _PARTS if part in index["names"]}
        vocabulary = index["vocabulary"]
    except OSError:
        raise InputError(f"{root} holds no saved data: {INDEX} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{root / INDEX} is not an index of saved data: {error!r}") from None
    if not {"train", "test"} <= names.keys():
        raise InputError(f"{root / INDEX} must name train and test clients, got {', '.join(names) or 'none'}")
    words = None if vocabulary is None else Vocabulary.from_json(vocabulary, str(root / INDEX))
    parts = {part: _open_arrays(root / part, names[part], task, words) for part in names}
    return Splits(train=parts["train"], test=parts["test"], pool=parts.get("pool"))


def _save_arrays(data: FederatedData, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    examples = data.pooled()
    stops = np.cumsum(data.sizes)
    arrays = {"bounds": np.stack([stops - data.sizes, stops], axis=1)}
    if data.task.per_position and np.array_equal(examples.inputs[:, 1:], examples.targets[:, :-1]):
        arrays["tokens"] = np.concatenate([examples.inputs[:, :1], examples.targets], axis=1)
    else:
        arrays |= {"inputs": examples.inputs, "targets": examples.targets}
    for old in directory.glob("*.npy"):
        old.unlink()
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array, allow_pickle=False)


def _open_arrays(directory: Path, names: list[str], task: Task, vocabulary: Vocabulary | None) -> FederatedData:
    if (directory / "tokens.npy").exists():
        tokens = _mapped(directory / "tokens.npy")
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
    else:
        inputs, targets = _mapped(directory / "inputs.npy"), _mapped(directory / "targets.npy")
    return FederatedData(
        inputs=inputs,
        targets=targets,
        bounds=np.array(_mapped(directory / "bounds.npy")),
        names=names,
        task=task,
        vocabulary=vocabulary,
    )


def _mapped(path: Path) -> Array:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise InputError(f"saved data is incomplete: {path} is missing") from None
    except (OSError, ValueError, EOFError):
        raise InputError(f"{path} is not a .npy file of numbers, or was cut short") from None
