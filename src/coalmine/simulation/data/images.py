"""Images, or any arrays of numbers, from .npz files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from coalmine import reading
from coalmine.arrays import Array
from coalmine.errors import InputError
from coalmine.simulation.data.federated import FederatedData, Task

_MOST_CLASSES = 1_000_000

# Names that each column may have, in order of preference.
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
    """Data of numbers with labels: training data (or all data), and test data if the source sets some apart."""

    data: FederatedData
    test: FederatedData | None
    has_users: bool
    unrecognized: tuple[str, ...] = ()  # names of arrays that have no known role


def without_users(inputs: Array, targets: Array, task: Task, *, first: int = 0) -> FederatedData:
    """Return data in which every example is its own user, until a partition joins them."""
    starts = np.arange(len(inputs))
    return FederatedData(
        inputs=inputs,
        targets=targets,
        bounds=np.stack([starts, starts + 1], axis=1),
        names=[f"example-{first + i}" for i in range(len(inputs))],
        task=task,
    )


def digits() -> FederatedData:
    """Return scikit-learn's 1,797 handwritten digits (8 × 8 pixels) as float32 in [0, 1], each as its own user."""
    from sklearn.datasets import load_digits  # slow to import

    bunch = load_digits()
    images = (bunch.images / 16).astype(np.float32)[:, None]
    return without_users(images, bunch.target.astype(np.uint8), Task(input_shape=(1, 8, 8), classes=10))


def array_data(source: str, parts: Sequence[tuple[Array, Array, ArrayLike | None]]) -> ArrayData:
    """Return the data of one part, or of a training and a test part: inputs, labels and users (or None) of each."""
    inputs = [as_inputs(part[0], source) for part in parts]
    labels = [as_labels(part[1], source) for part in parts]
    for x, y in zip(inputs, labels, strict=True):
        if not len(x):
            raise InputError(f"{source} has no examples")
        if len(x) != len(y):
            raise InputError(f"{source} needs one label per example, got {len(x)} examples and {len(y)} labels")
    if (largest := max(int(y.max()) for y in labels)) > _MOST_CLASSES:
        raise InputError(f"{source}: labels must be below {_MOST_CLASSES:,}, got {largest}")
    task = Task(input_shape=inputs[0].shape[1:], classes=max(2, largest + 1))
    data, first = [], 0
    for x, y, (_, _, users) in zip(inputs, labels, parts, strict=True):
        if users is None:
            data.append(without_users(x, y, task, first=first))
        else:
            data.append(FederatedData.from_users(inputs=x, targets=y, users=users, task=task))
        first += len(x)
    has_users = all(users is not None for _, _, users in parts)
    if has_users and len(data) == 2 and (shared := set(data[0].names) & set(data[1].names)):
        raise InputError(
            f"{source} has user {min(shared)} in train and in test, but no user may be in both: rename the test users,"
            " or put all examples together to have them split by user"
        )
    return ArrayData(data=data[0], test=data[1] if len(data) == 2 else None, has_users=parts[0][2] is not None)


def read_arrays(path: Path, *, keys: Mapping[str, str] | None = None) -> ArrayData:
    """Read inputs, labels and, if present, users from an .npz file.

    ``keys`` names the columns, such as ``{"inputs": "scan", "users": "author"}``. The file may have each column once
    for all examples, or twice with _train and _test (or train_ and test_).
    """
    keys = keys or {}
    for role in keys:
        if role not in NAMES:
            raise InputError(f"keys must be among {', '.join(NAMES)}, got {role!r}")
    with _Columns(path) as archive:
        parts = [archive.columns(part, keys) for part in ("train", "test")]
        if "inputs" not in parts[0]:
            parts = [archive.columns("", keys)]
        elif "inputs" not in parts[1]:
            parts = parts[:1]
    names = ", ".join(archive.names) or "none"
    for part in parts:
        for role, default in (("inputs", "x"), ("labels", "y")):
            if role not in part:
                key = keys.get(role, default)
                raise InputError(f"{path} has no {role} ({key} or {key}_train); its keys are: {names}")
    with_users = ["users" in part for part in parts]
    if not all(with_users) and ("users" in keys or any(with_users)):
        raise InputError(f"{path} must have users for all examples; its keys are: {names}")
    data = array_data(str(path), [(part["inputs"], part["labels"], part.get("users")) for part in parts])
    return replace(data, unrecognized=tuple(name for name in archive.names if name not in archive.used))


def as_inputs(values: Array, source: str) -> Array:
    """Return images as (n, channels, height, width) and other inputs as they are; uint8 stays, the rest is float32.

    Images without channels get one. Channels that come last (1, 3 or 4 of them) are moved to the front.
    """
    if values.dtype.kind not in "biuf" or values.ndim < 2:
        raise InputError(f"{source}: inputs must be numbers with one row per example, got {_describe(values)}")
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[3] in (1, 3, 4) and values.shape[1] not in (1, 3, 4):
        values = np.ascontiguousarray(np.moveaxis(values, 3, 1))
    return values if values.dtype == np.uint8 else values.astype(np.float32, copy=False)


def as_labels(values: Array, source: str) -> Array:
    """Return integer labels (n,)."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise InputError(f"{source}: labels must be integers, one per example, got {_describe(values)}")
    return values


def read_named_arrays(path: Path) -> dict[str, Array]:
    """Read all arrays of an .npz file by name: CelebA's images, each under its file name."""
    return reading.read_arrays(path)


def _describe(values: Array) -> str:
    """Return type and shape for an error message."""
    return f"{values.dtype} of shape {values.shape}"


class _Columns(reading.Archive):
    """An .npz file whose arrays are found by their role."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.used: set[str] = set()

    def columns(self, part: str, keys: Mapping[str, str]) -> dict[str, Array]:
        """Return the columns of "train", "test" or, for "", of all examples, by role."""
        columns = {}
        for role, defaults in NAMES.items():
            bases = (keys[role],) if role in keys else defaults
            spellings = [name for base in bases for name in ((f"{base}_{part}", f"{part}_{base}") if part else (base,))]
            name = next((name for name in spellings if name in self.names), None)
            if name is not None:
                columns[role] = self.read(name)
                self.used.add(name)
        return columns
