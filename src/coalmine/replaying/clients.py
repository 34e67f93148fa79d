"""Clients and releases as trees: arrays and numbers inside dicts, lists, tuples and dataclasses.

Replay changes clients without knowing what they are. Arrays and Python floats are the update; whole numbers, and floats
with a name such as ``num_examples``, are what a client says about itself.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError

Path = tuple[str | int, ...]
"""Where a leaf lies in a tree: keys, positions and field names."""

_SAYS_HOW_MANY = re.compile(r"(?i)(^|_|-)(num|n|count|counts|size|examples?|samples?|steps?|weight)($|_|-)")


@dataclass(frozen=True)
class Client:
    """A client of one round: its update, and how many examples it says it has.

    Replay takes any client that consists of arrays and numbers; this class is for those that have none of their own.

    Args:
        update: An array or tensor, or a list or dict of them.
        examples: Number of examples, for aggregations that weight by it.

    Example:
        >>> Client(np.ones(3), examples=20).examples
        20
    """

    update: Any
    examples: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.update, str | bytes | bool | int) or self.update is None:
            raise InputError(f"a client's update must be an array, or a list or dict of arrays, got {self.update!r}")


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor; torch is not imported for the answer."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def mapped(tree: Any, change: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """Return a tree of the same form with every leaf replaced by ``change(path, leaf)``."""
    if isinstance(tree, Mapping):
        items = [(key, mapped(value, change, (*path, key))) for key, value in tree.items()]
        return type(tree)(items) if isinstance(tree, dict) else dict(items)
    if _is_vector(tree):
        return change(path, tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(v, change, (*path, k)) for k, v in zip(tree._fields, tree, strict=True)))
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, change, (*path, i)) for i, value in enumerate(tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [f.name for f in dataclasses.fields(tree) if f.init]
        return dataclasses.replace(tree, **{n: mapped(getattr(tree, n), change, (*path, n)) for n in names})
    return change(path, tree)


def leaves(tree: Any) -> dict[Path, Any]:
    """Return the leaves of a tree by their paths, in order."""
    collected: dict[Path, Any] = {}

    def collect(path: Path, leaf: Any) -> Any:
        collected[path] = leaf
        return leaf

    mapped(tree, collect)
    return collected


def numbers_of(leaf: Any) -> Floats:
    """Return a leaf as float64 numbers of the leaf's shape."""
    if is_tensor(leaf):
        leaf = leaf.detach().cpu().double().numpy()
    return np.asarray(leaf, dtype=np.float64)


def like(leaf: Any, values: Floats) -> Any:
    """Return numbers as the same type of array as ``leaf``: its library, precision and device."""
    if is_tensor(leaf):
        import torch

        if not leaf.dtype.is_floating_point:
            values = _whole(values, torch.iinfo(leaf.dtype) if leaf.dtype != torch.bool else None)
        return torch.as_tensor(values).to(dtype=leaf.dtype, device=leaf.device)
    if isinstance(leaf, float):
        return float(values)
    if isinstance(leaf, list):
        return [float(value) for value in values]
    dtype = np.asarray(leaf).dtype
    if dtype.kind in "iu":
        values = _whole(values, np.iinfo(dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.asarray(values).astype(dtype)
    return array[()] if isinstance(leaf, np.generic) else array


def words(path: Path) -> str:
    """Return a path as one reads it: ``layers.0.bias``."""
    return ".".join(str(part) for part in path)


@dataclass(frozen=True)
class Template:
    """What clients look like: which leaves are the update, and which are numbers that a client reports.

    Args:
        client: A client.

    Raises:
        InputError: If the client holds no floating-point array.

    Example:
        >>> template = Template({"weight": np.zeros((2, 2)), "bias": np.zeros(2), "num_examples": 7})
        >>> template.dim, list(template.reported)
        (6, [('num_examples',)])
    """

    client: Any
    update: dict[Path, Any] = field(init=False)
    whole: dict[Path, Any] = field(init=False)
    reported: dict[Path, Any] = field(init=False)

    def __post_init__(self) -> None:
        kinds = {path: (_kind(path, leaf), leaf) for path, leaf in leaves(self.client).items()}
        for name in ("update", "whole", "reported"):
            object.__setattr__(self, name, {p: leaf for p, (kind, leaf) in kinds.items() if kind == name})
        if not self.update:
            kind = type(self.client).__name__
            raise InputError(
                f"a client must hold floating-point arrays (NumPy or torch), in lists, dicts or dataclasses; got {kind}"
            )

    @cached_property
    def sizes(self) -> dict[Path, int]:
        """Number of parameters of each array of the update."""
        return {path: numbers_of(leaf).size for path, leaf in self.update.items()}

    @property
    def dim(self) -> int:
        """Number of parameters of an update."""
        return sum(self.sizes.values())

    @property
    def half(self) -> bool:
        """Whether part of the update has half precision."""
        return any(precision(leaf) > 1e-4 for leaf in self.update.values())

    def vector(self, client: Any) -> Floats:
        """Return a client's update as one vector."""
        present = leaves(client)
        return np.concatenate([numbers_of(present[path]).ravel() for path in self.update])

    def slices(self) -> Iterator[tuple[Path, slice]]:
        """Yield where each array of the update lies in the vector."""
        start = 0
        for path, size in self.sizes.items():
            yield path, slice(start, start + size)
            start += size

    def positions(self, sizes: Sequence[int]) -> Ints:
        """Return which number of an update each number of a release is about, if arrays come in the same order.

        Args:
            sizes: Numbers of coordinates of the arrays of a release. Those that match no array of the update get −1.
        """
        positions, left = [], list(self.slices())
        for size in sizes:
            index = next((i for i, (_, part) in enumerate(left) if part.stop - part.start == size), None)
            part = slice(0) if index is None else left[index][1]
            positions.append(np.full(size, -1) if index is None else np.arange(part.start, part.stop))
            left = left if index is None else left[index + 1 :]
        return np.concatenate(positions)

    def build(
        self, vector: Floats, reported: Mapping[Path, Any] | None = None, whole: float = 0.0, base: Any = None
    ) -> Any:
        """Return a client with this update.

        Args:
            vector: The update, (dim,).
            reported: Numbers to report instead of the template's.
            whole: Value of all integer arrays.
            base: The client whose numbers to keep; by default the template's.
        """
        places = dict(self.slices())

        def change(path: Path, leaf: Any) -> Any:
            if path in places:
                return like(self.update[path], vector[places[path]].reshape(numbers_of(self.update[path]).shape))
            if path in self.whole:
                return like(leaf, np.full(numbers_of(leaf).shape, whole))
            return (reported or {}).get(path, leaf)

        return mapped(self.client if base is None else base, change)

    def random(self, count: int, *, norm: float, seed: int) -> list[Any]:
        """Return clients whose updates have random directions and the same norm.

        Args:
            count: Number of clients.
            norm: ℓ₂ norm of each update. Integer arrays are zero.
            seed: Seed of the directions.
        """
        directions = np.random.default_rng([seed, 7]).standard_normal((count, self.dim))
        return [self.build(direction * (norm / np.linalg.norm(direction))) for direction in directions]


def check_alike(clients: Sequence[Any]) -> None:
    """Raise `InputError` unless all clients hold arrays of the same names and shapes."""
    first = _shapes(clients[0])
    for index, client in enumerate(clients[1:], start=1):
        shapes = _shapes(client)
        if shapes == first:
            continue
        path = next(path for path in [*first, *shapes] if first.get(path) != shapes.get(path))
        name = f"{words(path)!r} of " if path else ""
        here, there = (part.get(path, "missing") for part in (shapes, first))
        raise InputError(
            f"clients must hold arrays of the same names and shapes: {name}clients[{index}] is {here}, that of "
            f"clients[0] is {there}"
        )


def _shapes(client: Any) -> dict[Path, tuple[int, ...]]:
    return {p: numbers_of(leaf).shape for p, leaf in leaves(client).items() if _kind(p, leaf) in ("update", "whole")}


def precision(leaf: Any) -> float:
    """Return the machine precision of a leaf; of float32 for anything that is not a floating-point array."""
    if is_tensor(leaf):
        import torch

        return float(torch.finfo(leaf.dtype).eps) if leaf.dtype.is_floating_point else 1.2e-7
    dtype = np.asarray(leaf).dtype
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 1.2e-7


def _kind(path: Path, leaf: Any) -> str:
    """Return which part of a client a leaf is: ``"update"``, ``"whole"``, ``"reported"`` or ``"other"``."""
    named = bool(path) and isinstance(path[-1], str) and bool(_SAYS_HOW_MANY.search(path[-1]))
    if isinstance(leaf, bool | str | bytes) or leaf is None:
        return "other"
    if isinstance(leaf, int) or (isinstance(leaf, float) and named):
        return "reported"
    if is_tensor(leaf):
        return "update" if leaf.dtype.is_floating_point else "whole"
    if isinstance(leaf, float | list | np.ndarray | np.generic):
        return {"f": "update", "i": "whole", "u": "whole"}.get(np.asarray(leaf).dtype.kind, "other")
    return "other"


def _is_vector(tree: Any) -> bool:
    """Whether a list is a vector of plain Python floats."""
    return isinstance(tree, list) and len(tree) > 0 and all(type(value) is float for value in tree)


def _whole(values: Floats, limits: Any) -> Floats:
    """Return numbers rounded to integers within the limits of a type."""
    rounded = np.nan_to_num(np.rint(values))
    return rounded if limits is None else np.clip(rounded, float(limits.min) / 2, float(limits.max) / 2)
