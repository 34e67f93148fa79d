"""Clients and releases as trees: arrays and numbers inside dicts, lists, tuples and dataclasses.

Replay changes clients without knowing what they are. Arrays and Python floats are the update; whole numbers, and floats
with a name such as ``num_examples``, are what a client says about itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from coalmine.arrays import Floats
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


def leaves(tree: Any) -> dict[Path, Any]:
    """Return the leaves of a tree by their paths, in order."""
    return dict(_flattened(tree)[0])


def _flattened(tree: Any) -> tuple[list[tuple[Path, Any]], Any]:
    def is_vector(value: Any) -> bool:  # a list of plain Python floats is one array
        return isinstance(value, list) and len(value) > 0 and all(type(number) is float for number in value)

    while True:
        pairs, structure = pytree.tree_flatten_with_path(tree, is_leaf=is_vector)
        unknown = {type(leaf) for _, leaf in pairs if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)}
        if not unknown:
            break
        for kind in unknown:  # torch looks only into the dataclasses that it knows
            pytree.register_dataclass(kind)
    attributes = ("key", "idx", "name")  # of torch's three kinds of path entries
    paths = [tuple(getattr(entry, next(a for a in attributes if hasattr(entry, a))) for entry in p) for p, _ in pairs]
    return [(path, leaf) for path, (_, leaf) in zip(paths, pairs, strict=True)], structure


def numbers_of(leaf: Any) -> Floats:
    """Return a leaf as float64 numbers of the leaf's shape."""
    if isinstance(leaf, torch.Tensor):
        leaf = leaf.detach().cpu().double().numpy()
    return np.asarray(leaf, dtype=np.float64)


def like(leaf: Any, values: Floats) -> Any:
    """Return numbers as the same type of array as ``leaf``: its library, precision and device."""
    if isinstance(leaf, torch.Tensor):
        return torch.as_tensor(values).to(dtype=leaf.dtype, device=leaf.device)
    if isinstance(leaf, float | list):
        return values.tolist()
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.asarray(values).astype(np.asarray(leaf).dtype)
    return array[()] if isinstance(leaf, np.generic) else array


def precision(leaf: Any) -> float:
    """Return the machine precision of a leaf; of float32 for anything that is not a floating-point array."""
    if isinstance(leaf, torch.Tensor):
        return float(torch.finfo(leaf.dtype).eps) if leaf.dtype.is_floating_point else 1.2e-7
    dtype = np.asarray(leaf).dtype
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 1.2e-7


def dotted(path: Path) -> str:
    """Return a path as one reads it: ``layers.0.bias``."""
    return ".".join(str(part) for part in path)


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

    def __init__(self, client: Any) -> None:
        self.client = client
        self.update: dict[Path, Any] = {}
        self.whole: dict[Path, Any] = {}
        self.reported: dict[Path, Any] = {}
        parts = {"update": self.update, "whole": self.whole, "reported": self.reported, "other": {}}
        for path, leaf in leaves(client).items():
            parts[_kind(path, leaf)][path] = leaf
        if not self.update:
            raise InputError(
                "a client must hold floating-point arrays (NumPy or torch), in lists, dicts or dataclasses; got "
                f"{type(client).__name__}"
            )
        self.slices: dict[Path, slice] = {}
        self.dim = 0
        for path, leaf in self.update.items():
            size = numbers_of(leaf).size
            self.slices[path] = slice(self.dim, self.dim + size)
            self.dim += size
        self.precision = max(precision(leaf) for leaf in self.update.values())

    def vector(self, client: Any) -> Floats:
        """Return a client's update as one vector."""
        present = leaves(client)
        return np.concatenate([numbers_of(present[path]).ravel() for path in self.update])

    def build(
        self, vector: Floats, *, reported: Mapping[Path, Any] | None = None, whole: int = 0, base: Any = None
    ) -> Any:
        """Return a client with this update.

        Args:
            vector: The update, (dim,).
            reported: Numbers to report instead of the template's.
            whole: Value of all integer arrays.
            base: The client whose numbers to keep; by default the template's.
        """
        pairs, structure = _flattened(self.client if base is None else base)
        changed = []
        for path, leaf in pairs:
            value = leaf
            if path in self.slices:
                shape = numbers_of(self.update[path]).shape
                value = like(self.update[path], vector[self.slices[path]].reshape(shape))
            elif path in self.whole:
                value = like(leaf, np.full(numbers_of(leaf).shape, whole))
            elif reported is not None:
                value = reported.get(path, leaf)
            changed.append(value)
        return pytree.tree_unflatten(changed, structure)

    def random(self, count: int, *, norm: float, seed: int) -> list[Any]:
        """Return clients whose updates have random directions and this ℓ₂ norm. Integer arrays are zero."""
        directions = np.random.default_rng([seed, 7]).standard_normal((count, self.dim))
        return [self.build(direction * (norm / np.linalg.norm(direction))) for direction in directions]


def check_alike(clients: Sequence[Any]) -> None:
    """Raise `InputError` unless all clients hold arrays of the same names and shapes."""
    shapes = [
        {path: numbers_of(leaf).shape for path, leaf in leaves(c).items() if _kind(path, leaf) in ("update", "whole")}
        for c in clients
    ]
    for index, present in enumerate(shapes):
        for path in {**shapes[0], **present}:
            here, there = present.get(path, "missing"), shapes[0].get(path, "missing")
            if here != there:
                raise InputError(
                    f"clients must hold arrays of the same names and shapes: {dotted(path)!r} of clients[{index}] is "
                    f"{here}, that of clients[0] is {there}"
                )


def _kind(path: Path, leaf: Any) -> str:
    """Return which part of a client a leaf is: ``"update"``, ``"whole"``, ``"reported"`` or ``"other"``."""
    named = bool(path) and isinstance(path[-1], str) and bool(_SAYS_HOW_MANY.search(path[-1]))
    if isinstance(leaf, bool | str | bytes) or leaf is None:
        return "other"
    if isinstance(leaf, int) or (isinstance(leaf, float) and named):
        return "reported"
    if isinstance(leaf, torch.Tensor):
        return "update" if leaf.dtype.is_floating_point else "whole"
    if isinstance(leaf, float | list | np.ndarray | np.generic):
        return {"f": "update", "i": "whole", "u": "whole"}.get(np.asarray(leaf).dtype.kind, "other")
    return "other"
