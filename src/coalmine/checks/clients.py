"""The clients of a round, and the difficult ones that replay lets join.

Replay changes clients without knowing what they are: arrays and numbers inside dicts, lists, tuples and dataclasses.
Arrays and Python floats are the update; whole numbers, and floats with a name such as ``num_examples``, are what a
client says about itself. `ProbeClients` makes clients in the likeness of given ones, and rounds for them to join.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.results.verdict import Check
from coalmine.seeds import default_rng

Path = tuple[str | int, ...]
"""Where a leaf lies in a tree: keys, positions and field names."""

_HUGE = 1000.0
_MOST_ARRAYS, _ESSENTIAL_ARRAYS = 24, 4  # that are tried one by one
_SPLITS = 8  # rounds with tiny and huge clients
_SMALL_COHORTS = (0, 1, 2, 3, 4, 9)  # others who are left when the rest drops out
_HALF_TOLERANCE = 0.03  # clipping in half precision loses this much of a norm
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
    return _flattened(tree)[0]


def _flattened(tree: Any) -> tuple[dict[Path, Any], Any]:
    """Return the leaves of a tree by their paths, and its structure."""
    unknown: set[type] | None = None
    while unknown is None or unknown:
        for kind in unknown or ():  # torch looks only into the dataclasses that it knows
            pytree.register_dataclass(kind)
        pairs, structure = pytree.tree_flatten_with_path(tree, is_leaf=_is_vector)
        unknown = {type(leaf) for _, leaf in pairs if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)}
    # An entry of a path is a dataclass of one field: a key, a position or a name.
    by_path: dict[Path, Any] = {}
    for path, leaf in pairs:
        entries: tuple[Any, ...] = path
        by_path[tuple(dataclasses.astuple(entry)[0] for entry in entries)] = leaf
    return by_path, structure


def _is_vector(value: Any) -> bool:
    """Whether this is a list of plain Python floats, which is one array."""
    return isinstance(value, list) and {type(number) for number in value} == {float}


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
        parts: dict[str, dict[Path, Any]] = {"update": {}, "whole": {}, "reported": {}, "other": {}}
        for path, leaf in leaves(client).items():
            parts[_kind(path, leaf)][path] = leaf
        self.update, self.whole, self.reported = parts["update"], parts["whole"], parts["reported"]
        if not self.update:
            raise InputError(
                "a client must hold floating-point arrays (NumPy or torch), in lists, dicts or dataclasses; got "
                f"{type(client).__name__}"
            )
        self.shapes = {path: numbers_of(leaf).shape for path, leaf in {**self.update, **self.whole}.items()}
        self.slices: dict[Path, slice] = {}
        self.dim = 0
        for path in self.update:
            size = math.prod(self.shapes[path])
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
        changed, structure = _flattened(self.client if base is None else base)
        changed |= reported or {}
        for path, part in self.slices.items():
            changed[path] = like(self.update[path], vector[part].reshape(self.shapes[path]))
        for path, leaf in self.whole.items():
            changed[path] = like(leaf, np.full(self.shapes[path], whole))
        return pytree.tree_unflatten(list(changed.values()), structure)

    def random(self, count: int, *, norm: float, seed: int) -> list[Any]:
        """Return clients whose updates have random directions and this ℓ₂ norm. Integer arrays are zero."""
        directions = default_rng([seed, 7]).standard_normal((count, self.dim))
        return [self.build(direction * (norm / np.linalg.norm(direction))) for direction in directions]


def _kind(path: Path, leaf: Any) -> str:
    """Return which part of a client a leaf is: ``"update"``, ``"whole"``, ``"reported"`` or ``"other"``."""
    named = bool(path) and isinstance(path[-1], str) and bool(_SAYS_HOW_MANY.search(path[-1]))
    if isinstance(leaf, int | float) and not isinstance(leaf, bool) and (named or isinstance(leaf, int)):
        return "reported"
    if isinstance(leaf, torch.Tensor):
        return "update" if leaf.dtype.is_floating_point else "whole"
    # Anything that is no array is one of text or of objects to NumPy.
    return {"f": "update", "i": "whole", "u": "whole"}.get(np.asarray(leaf).dtype.kind, "other")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A client that joins a round.

    Args:
        check: Name of the check that it belongs to.
        sends: What it sends, after "one client".
        code: What it sends as code, in the example of a finding.
        build: Function from the length of its update, in clip norms, to the client.
        length: The length of its update.
        does: What it does, after what it sends.
        hostile: Whether no honest client sends this.
        plain: Whether this is a plain update: a finding of another check must move the release further.
        essential: Whether to try it where only few clients can be tried.
        may_refuse: Whether an aggregation may raise an error instead.
    """

    check: str
    sends: str
    code: str
    build: Callable[[float], Any]
    length: float = 1.0
    does: str = "joined"
    hostile: bool = False
    plain: bool = False
    essential: bool = False
    may_refuse: bool = False


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The other clients of a round.

    Args:
        check: Name of the check that it belongs to.
        does: What a client does who joins them.
        others: The other clients.
        essential: Whether to try it where only few rounds can be tried.
        may_refuse: Whether an aggregation may raise an error instead.
        place: Its index among the clients; by default it is the last one.
    """

    check: str
    does: str
    others: Sequence[Any]
    essential: bool = False
    may_refuse: bool = False
    place: int | None = None


class ProbeClients:
    """Builds difficult clients in the likeness of given ones.

    Args:
        clients: The given clients.
        clip_norm: The clip norm.
        who: What a client is called.
        seed: Seed of the random direction that most of them point in.
        order: Order of the clip norm: 2, or 1 for an ℓ₁ norm.

    Raises:
        InputError: If the clients hold no arrays, or not all of the same names and shapes.
    """

    def __init__(self, clients: Sequence[Any], *, clip_norm: float, who: str, seed: int, order: int) -> None:
        self.template, self.clients, self.clip, self.order = Template(clients[0]), list(clients), clip_norm, order
        self._who, expected = who, self.template.shapes
        for index, client in enumerate(clients):
            shapes = Template(client).shapes
            for path in [path for path in {**expected, **shapes} if expected.get(path) != shapes.get(path)]:
                raise InputError(
                    f"clients must hold arrays of the same names and shapes: {dotted(path)!r} of clients[{index}] is "
                    f"{shapes.get(path, 'missing')}, that of clients[0] is {expected.get(path, 'missing')}"
                )
        rng, dim = default_rng(seed), self.template.dim
        # Of nearly one size, since movements are then judged most precisely (see `NoiseLevel.length`), without ties.
        self.direction: Floats = self._unit(rng.uniform(1.0, 1.2, dim) * rng.choice([-1.0, 1.0], dim))
        self.tolerance = _HALF_TOLERANCE if self.template.precision > 1e-4 else 1e-3

    def along(self, direction: Floats, length: float, **more: Any) -> Any:
        """Return a client whose update has this direction, and a norm of so many clip norms."""
        return self.template.build(direction * (length * self.clip), **more)

    def simplest(self) -> list[Probe]:
        """Return plain clients, for rounds with other clients than the given ones."""
        v = self.direction
        return [
            self._plain("with an update of the clip norm", "C * v", v, 1.0, essential=True),
            self._plain("with an update of the clip norm", "-C * v", -v, 1.0),
            self._plain(f"with an update of {_HUGE:,.0f} clip norms", "1000 * C * v", v, _HUGE, essential=True),
        ]

    def all(self) -> list[Probe]:
        """Return all clients to try, the simplest first."""
        return [*self.simplest(), *self._directions(), *self._reports(), *self._hostile()]

    def settings(self, *, dropouts: bool) -> list[Setting]:
        """Return rounds whose other clients make one client count for more."""
        directions = [self._unit(self.template.vector(client)) for client in self.clients]
        clip, count = self.clip, len(self.clients)
        # What the others are like, their updates, and whether to always try it.
        beside: list[tuple[str, list[Floats], bool]] = [
            ("whose updates are all clipped", [_HUGE * clip * d for d in directions], True),
            ("whose updates are nearly zero", [1e-6 * clip * d for d in directions], False),
        ]
        if count >= 2:
            # One client decides where a median of these lies. An odd one out pulls no way.
            signs = np.where(np.arange(count) % 2 == 0, 1.0, -1.0)
            signs[count - count % 2 :] = 1e-5
            halves = [sign * clip * self.direction for sign in signs]
            beside.append(("half of which pull one way, half the other", halves, True))
        # What is chosen by rank, such as a quantile of norms to clip to, changes its size when one client joins, if its
        # rank lies between tiny and huge ones. With many clients, sizes rise over several ranks.
        edges = np.unique(np.linspace(0, count, _SPLITS + 1).round().astype(int))
        for low, high in pairwise(edges.tolist()):
            rising = np.linspace(0.0, 1.0, high - low + 1)[1:]
            sizes = np.concatenate([np.full(low, 1e-3), rising, np.full(count - high, _HUGE)])
            how = f"of whom {low:,} send tiny and {count - high:,} huge updates"
            beside.append((how, [size * clip * self.direction for size in sizes], False))
        settings = []
        for how, updates, essential in beside:
            others = [self.template.build(u, base=c) for u, c in zip(updates, self.clients, strict=True)]
            does = f"joined beside {self._who}s {how}"
            settings.append(Setting(check=Check.OTHERS, does=does, others=others, essential=essential))
        # What is done to a certain reply, such as the first one, shows if the client sends it.
        for place in (0, (count + 1) // 2) if count > 1 else ():
            does = f"joined as number {place + 1} of {count + 1} {self._who}s"
            settings.append(
                Setting(check=Check.SENSITIVITY, does=does, others=self.clients, essential=not place, place=place)
            )
        # Rules for small cohorts show the client who makes one large enough.
        for number in [number for number in _SMALL_COHORTS if number < count] if dropouts else ():
            who = f"{count - number} of the {count} others" if number else "all others"
            settings.append(
                Setting(
                    check=Check.DROPOUTS, does=f"joined and {who} dropped out", others=self.clients[:number],
                    essential=number == 0, may_refuse=True,
                )
            )  # fmt: skip
        return settings

    def _unit(self, vector: Floats) -> Floats:
        return np.asarray(vector / max(float(np.linalg.norm(vector, self.order)), 1e-300))

    def _plain(self, sends: str, code: str, direction: Floats, length: float, *, essential: bool = False) -> Probe:
        build = partial(self.along, direction)
        check = Check.CLIPPING
        return Probe(check=check, sends=sends, code=code, build=build, length=length, plain=True, essential=essential)

    def _directions(self) -> Iterator[Probe]:
        """Yield updates of other lengths and directions: tiny, along the others, in one array or coordinate."""
        v, dim = self.direction, self.template.dim
        yield self._plain("with a tiny update", "1e-9 * C * v", v, 1e-9)
        yield self._plain("with an update of zero", "0 * v", v, 0.0)
        if self.template.precision < 1e-4:  # half precision has no such numbers
            yield self._plain("with an update of 1e25 clip norms", "1e25 * C * v", v, 1e25)
        sends = f"with an update of {_HUGE:,.0f} clip norms that is the same in every coordinate"
        yield self._plain(sends, "1000 * C * ones / norm(ones)", self._unit(np.ones(dim)), _HUGE)
        mean = self._unit(np.mean([self.template.vector(client) for client in self.clients], axis=0))
        for sign, how in ((1, "along"), (-1, "against")) if np.isfinite(mean).all() and mean.any() else ():
            sends = f"with a huge update {how} the others' average"
            yield self._plain(sends, f"{sign}000 * C * mean", sign * mean, _HUGE)
        # At most so many arrays, but always those of one number: they are what code forgets.
        arrays = [(dotted(path), part) for path, part in self.template.slices.items() if part.stop > part.start]
        arrays.sort(key=lambda item: item[1].stop - item[1].start)
        places: list[tuple[str, str, str, slice]] = []
        for name, part in arrays[:_MOST_ARRAYS] if len(arrays) > 1 else ():
            places.append((Check.ARRAY, f"{name!r},", f"v in {name!r}", part))
        for index in sorted({0, dim - 1}):
            places.append((Check.COORDINATE, f"coordinate {index},", f"e[{index}]", slice(index, index + 1)))
        for number, (check, where, code, part) in enumerate(places):
            direction = np.zeros(dim)
            direction[part] = self._unit(v[part] if check == Check.ARRAY else np.ones(1))
            yield Probe(
                check=check, sends=f"with an update of {_HUGE:,.0f} clip norms, all in {where}",
                code=f"1000 * C * {code}", build=partial(self.along, direction), length=_HUGE,
                essential=check == Check.ARRAY and number < _ESSENTIAL_ARRAYS,
            )  # fmt: skip

    def _reports(self) -> Iterator[Probe]:
        """Yield clients that differ in whole numbers: integer arrays, and numbers of examples and the like."""
        names = ", ".join(map(dotted, self.template.whole))
        for value in (1000, 1_000_000) if names else ():
            yield Probe(
                check=Check.INTEGERS, sends=f"whose integer arrays ({names}) hold {value:,}",
                code=f"C * v, {value} in integer arrays", build=partial(self.along, self.direction, whole=value),
                may_refuse=True, essential=value == 1000,
            )  # fmt: skip
        for path, reported in self.template.reported.items():
            name = dotted(path) if isinstance(path[-1], str) else "examples"
            honest = [max(1000, 1000 * int(reported)), 10**9, 0, 1]
            for number in (*honest, -max(1, int(reported)), -(10**6), math.nan):
                yield Probe(
                    check=Check.EXAMPLES, sends=f"with {name} = {number:,}", code=f"C * v, {name}={number}",
                    build=partial(self.along, self.direction, reported={path: number}), hostile=number not in honest,
                    essential=number == honest[0],
                )  # fmt: skip

    def _hostile(self) -> Iterator[Probe]:
        """Yield what no honest client sends: NaN and infinity, and arrays in another order."""
        for value, name in ((math.nan, "NaN"), (math.inf, "infinity")):
            for place, where in (("coordinate 0", slice(1)), ("all coordinates", slice(None))):
                direction = self.direction.copy()
                direction[where] = value
                yield Probe(
                    check=Check.NOT_FINITE, sends=f"that sends {name} in {place}", hostile=True, may_refuse=True,
                    code=f"1000 * C * v with {name} in {place}", build=partial(self.along, direction), length=_HUGE,
                    essential=name == "NaN" and where.stop == 1,
                )  # fmt: skip
        if list(leaves(_reversed(self.along(self.direction, 1.0)))) == list(leaves(self.clients[0])):
            return
        for length in (1.0, _HUGE):
            yield Probe(
                check=Check.ORDER, sends="whose arrays come in another order", length=length,
                build=lambda length: _reversed(self.along(self.direction, length)), hostile=True, may_refuse=True,
                code="dict(reversed(update.items()))", essential=length == _HUGE,
            )  # fmt: skip


def _reversed(tree: Any) -> Any:
    """Return a client with the keys of its dicts reversed, at the top or in its parts."""
    if isinstance(tree, dict):
        return type(tree)(reversed(list(tree.items())))
    if hasattr(tree, "update") and hasattr(tree, "examples"):
        return type(tree)(_reversed(tree.update), tree.examples)
    return tuple(_reversed(value) for value in tree) if type(tree) is tuple else tree
