"""Images, or any arrays of numbers, from .npz files."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coalmine.errors import InputError
from coalmine.simulation.data.federated import Array, FederatedData, Task

_MOST_CLASSES = 1_000_000

# The names under which each column is looked for, in this order.
NAMES = {
    "inputs": ("x", "inputs", "images", "data", "features"),
    "labels": ("y", "labels", "label", "targets", "target"),
    "users": tuple(
        f"{who}{ending}"
        for who in ("user", "writer", "client", "subject", "author")
        for ending in ("", "s", "_id", "_ids")
    ),
}


@dataclass(frozen=True, kw_only=True)
class ArrayData:
    """What a file of arrays holds: training data (or all of it), test data where it says which, with users or not."""

    data: FederatedData
    test: FederatedData | None
    has_users: bool
    others: tuple[str, ...] = ()  # arrays that were not understood


def without_users(inputs: Array, targets: Array, task: Task, *, first: int = 0) -> FederatedData:
    """Data that says nothing of users: every example is its own, until a partition joins them."""
    starts = np.arange(len(inputs))
    return FederatedData(
        inputs=inputs,
        targets=targets,
        bounds=np.stack([starts, starts + 1], axis=1),
        names=[f"example-{first + i}" for i in range(len(inputs))],
        task=task,
    )


def read_arrays(path: Path, *, keys: Mapping[str, str] | None = None) -> ArrayData:
    """Inputs, labels and perhaps users from an .npz file.

    ``keys`` names the file's own columns, such as ``{"inputs": "pictures", "users": "author"}``. A column may be there
    once for all examples, or twice with _train and _test (or train_ and test_).
    """
    for role in keys or {}:
        if role not in NAMES:
            raise InputError(f"keys must be among {', '.join(NAMES)}, got {role!r}")
    with _Archive(path) as archive:
        parts = [archive.columns(part, keys or {}) for part in ("train", "test")]
        if "inputs" not in parts[0]:
            parts = [archive.columns("", keys or {})]
        elif "inputs" not in parts[1]:
            parts = parts[:1]
    for part in parts:
        for role, usual in (("inputs", "x"), ("labels", "y")):
            if role not in part:
                wanted = (keys or {}).get(role, usual)
                there = ", ".join(archive.names) or "none"
                raise InputError(f"{path} has no {role} ({wanted} or {wanted}_train); its keys are: {there}")
    found = _assembled(path, parts, users_wanted="users" in (keys or {}), names=archive.names)
    return replace(found, others=tuple(name for name in archive.names if name not in archive.taken))


def _assembled(path: Path, parts: list[dict[str, Array]], *, users_wanted: bool, names: list[str]) -> ArrayData:
    has_users = all("users" in part for part in parts)
    if not has_users and (users_wanted or any("users" in part for part in parts)):
        raise InputError(f"{path} must give users for all examples; its keys are: {', '.join(names)}")
    inputs = [as_inputs(part["inputs"], str(path)) for part in parts]
    labels = [as_labels(part["labels"], str(path)) for part in parts]
    for x, y in zip(inputs, labels, strict=True):
        if not len(x):
            raise InputError(f"{path} has no examples")
        if len(x) != len(y):
            raise InputError(f"{path} must have a label for each example, got {len(x)} examples and {len(y)} labels")
    if (largest := max(int(y.max()) for y in labels)) > _MOST_CLASSES:
        raise InputError(f"{path}: labels must be below {_MOST_CLASSES:,}, got {largest}")
    task = Task(input_shape=inputs[0].shape[1:], classes=max(2, *(int(y.max()) + 1 for y in labels)))
    if has_users:
        found = [
            FederatedData.of_users(inputs=x, targets=y, users=part["users"], task=task)
            for x, y, part in zip(inputs, labels, parts, strict=True)
        ]
        if len(found) == 2 and (both := set(found[0].names) & set(found[1].names)):
            raise InputError(
                f"{path} has user {min(both)} in train and in test, and no user may be in both: give people other"
                " numbers in test, or put all examples under x, y and user to have them split by user"
            )
    else:
        firsts = np.cumsum([0, *map(len, inputs)]).tolist()
        found = [
            without_users(x, y, task, first=first) for x, y, first in zip(inputs, labels, firsts[:-1], strict=True)
        ]
    return ArrayData(data=found[0], test=found[1] if len(found) == 2 else None, has_users=has_users)


def as_inputs(values: Array, source: str) -> Array:
    """Images as (n, channels, height, width), other examples as they are; uint8 stays, all other numbers are float32.

    Images without channels get one; channels that come last (1, 3 or 4 of them) are moved to the front.
    """
    if values.dtype.kind not in "biuf" or values.ndim < 2:
        raise InputError(f"{source}: inputs must be numbers, a row for each example, got {_described(values)}")
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[3] in (1, 3, 4) and values.shape[1] not in (1, 3, 4):
        values = np.ascontiguousarray(np.moveaxis(values, 3, 1))
    return values if values.dtype == np.uint8 else values.astype(np.float32, copy=False)


def as_labels(values: Array, source: str) -> Array:
    """Whole numbers, one for each example."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise InputError(f"{source}: labels must be whole numbers, one for each example, got {_described(values)}")
    return values


def _described(values: Array) -> str:
    return f"{values.dtype} of shape {values.shape}"


class _Archive:
    """An .npz file, whose every failure is a sentence."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = np.load(path, allow_pickle=False)
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            raise self._broken() from None
        if isinstance(self._file, np.ndarray):
            raise InputError(f"{path} is a single array (.npy), not an .npz file of named ones")
        self.names: list[str] = list(self._file.files)
        self.taken: set[str] = set()

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def columns(self, part: str, keys: Mapping[str, str]) -> dict[str, Array]:
        """The columns of "train", "test" or (for "") of all examples, by role. Each is read once: that unpacks it."""
        found = {}
        for role, usual in NAMES.items():
            bases = (keys[role],) if role in keys else usual
            spelt = [name for base in bases for name in ((f"{base}_{part}", f"{part}_{base}") if part else (base,))]
            if there := [name for name in spelt if name in self.names]:
                found[role] = self.read(there[0])
                self.taken.add(there[0])
        return found

    def read(self, name: str) -> Array:
        """One array."""
        try:
            return np.asarray(self._file[name])
        except ValueError as error:
            if "allow_pickle" in str(error):
                raise InputError(
                    f"{self.path}: the array {name!r} holds Python objects, not numbers or texts"
                ) from None
            raise self._broken() from None
        except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, lzma.LZMAError):
            raise self._broken() from None

    def _broken(self) -> InputError:
        return InputError(f"{self.path} is not an .npz file of plain arrays, or was cut short")


def read_named_arrays(path: Path) -> dict[str, Array]:
    """Every array of an .npz file by its name: pictures, each under its file's name."""
    with _Archive(path) as archive:
        return {name: archive.read(name) for name in archive.names}
