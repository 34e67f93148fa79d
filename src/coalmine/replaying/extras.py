"""The clients that replay lets join, chosen to be as difficult as possible, and the rounds that they join."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from coalmine.arrays import Floats, Ints
from coalmine.replaying.clients import Path, Template, is_tensor, leaves, like, mapped, numbers_of, words
from coalmine.results.finding import Check

_HUGE = 1000.0
_MOST_ARRAYS, _ESSENTIAL_ARRAYS = 24, 4
_SPLITS = 8
_CODE = "{magnitude} * C * v"

# Clipping in half precision loses this much of a norm.
_HALF_TOLERANCE = 0.03


@dataclass(frozen=True, kw_only=True)
class Extra:
    """A client that joins a round.

    Args:
        check: Name of the check that it belongs to.
        sends: What it sends, after "one client".
        does: What it does, after that.
        code: What it sends as code, in the example of a finding.
        build: Function from a magnitude, in clip norms, to the client.
        magnitude: The magnitude to begin with.
        hostile: Whether no honest client sends this.
        tolerance: Relative movement above the allowed one that is due to rounding.
        plain: Whether this is a plain update: a finding of another check must move the release further.
        essential: Whether to try it where only few clients can be tried.
        may_refuse: Whether an aggregation may raise an error instead.
        shrinks: Whether to look for a smaller example.
        remark: For what is only a warning: when it is a bug, after what happened.
    """

    check: str
    sends: str
    does: str = "joined"
    code: str
    build: Callable[[float], Any]
    magnitude: float = 1.0
    hostile: bool = False
    tolerance: float = 1e-3
    plain: bool = False
    essential: bool = False
    may_refuse: bool = False
    shrinks: bool = True
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The other clients of a round.

    Args:
        check: Name of the check that it belongs to.
        does: What a client does who joins them.
        others: The other clients.
        essential: Whether to try it where only few rounds can be tried.
        may_refuse: Whether an aggregation may raise an error instead.
        probes: The clients that join; by default the simplest.
    """

    check: str
    does: str
    others: Sequence[Any]
    essential: bool = False
    may_refuse: bool = False
    probes: Sequence[Extra] = ()


class Extras:
    """Builds difficult clients in the likeness of given ones.

    Args:
        clients: The given clients.
        clip_norm: The clip norm.
        who: What a client is called.
        seed: Seed of the random direction that most of them point in.
        order: Order of the clip norm: 2, or 1 for an ℓ₁ norm.
    """

    def __init__(self, clients: Sequence[Any], *, clip_norm: float, who: str, seed: int, order: int = 2) -> None:
        self.template, self.clients, self.clip, self._who = Template(clients[0]), clients, clip_norm, who
        self.order = order
        rng, dim = np.random.default_rng(seed), self.template.dim
        # Of nearly one size, since movements are then judged most precisely (see `Noise.length`), but without ties.
        direction = rng.uniform(1.0, 1.2, dim) * rng.choice([-1.0, 1.0], dim)
        self.direction: Floats = direction / np.linalg.norm(direction, order)
        self.tolerance = _HALF_TOLERANCE if self.template.half else 1e-3

    def along(self, direction: Floats, magnitude: float, **more: Any) -> Any:
        """Return a client whose update has this direction, and a norm of so many clip norms."""
        return self.template.build(direction * (magnitude * self.clip), **more)

    def probes(self) -> list[Extra]:
        """Return the simplest clients, for rounds with other clients than the given ones."""
        return [
            self._plain("with an update of the clip norm", "C * v", self.direction, 1.0, essential=True),
            self._plain("with an update of the clip norm", "-C * v", -self.direction, 1.0),
            self._plain(f"with an update of {_HUGE:,.0f} clip norms", _CODE, self.direction, _HUGE, essential=True),
        ]

    def all(self) -> list[Extra]:
        """Return all clients to try, the simplest first."""
        return [*self.probes(), *self._sizes(), *self._places(), *self._types(), *self._reports(), *self._hostile()]

    def at(self, places: Ints, where: str) -> Extra:
        """Return a client whose update has the clip norm and the same size in all of these coordinates."""
        direction = np.zeros(self.template.dim)
        # Of one size, since noise of different sizes is then judged without a loss (see `Noise.length`).
        direction[places] = np.where(self.direction[places] < 0, -1, 1) / places.size ** (1 / self.order)
        sends = f"with an update of the clip norm, all {where},"
        return self._extra(Check.PLACES, sends, f"C * sign(v) {where} only, with norm C", direction)

    def settings(self, *, dropouts: bool) -> Iterator[Setting]:
        """Yield rounds whose other clients make one client count for more."""
        vectors = [self.template.vector(client) for client in self.clients]
        count = len(self.clients)
        norms = [max(float(np.linalg.norm(vector, self.order)), 1e-300) for vector in vectors]

        def beside(how: str, make: Callable[[int], Floats], **more: Any) -> Setting:
            others = [self.template.build(make(i), base=self.clients[i]) for i in range(count)]
            return Setting(check=Check.OTHERS, does=f"joined beside {self._who}s {how}", others=others, **more)

        def clipped(i: int) -> Floats:
            return vectors[i] * (_HUGE * self.clip / norms[i])

        yield beside("whose updates are all clipped", clipped, essential=True)
        yield beside("whose updates are nearly zero", lambda i: vectors[i] * (1e-6 * self.clip / norms[i]))
        if count >= 2:
            even = count - count % 2  # an odd one out pulls no way
            yield beside(
                "half of which pull one way, half the other",
                lambda i: self.direction * self.clip * ((-1) ** i if i < even else 1e-5), essential=True,
            )  # fmt: skip
        yield from self._splits(beside)
        # Of all sizes, so that whatever overflows or wraps somewhere does so in a few numbers when one more joins.
        spread = np.geomspace(1.0, 1e-3, self.template.dim)
        spread /= np.linalg.norm(spread, self.order)
        same = self._plain("with the same update", "C * s", spread, 1.0)
        yield beside("that all send the same update", lambda i: spread * self.clip, probes=[same, *self.probes()])
        # The largest sum in one number: integers overflow there, and modular sums wrap.
        first = np.eye(1, self.template.dim)[0]
        largest = self._plain("with an update of the clip norm, all in coordinate 0,", "C * e[0]", first, 1.0)
        yield beside("that all do the same", lambda i: first * self.clip, probes=[largest])
        if dropouts and count > 2:
            does = f"joined and {count - 1} of the {count} others dropped out"
            yield Setting(check=Check.DROPOUTS, does=does, others=list(self.clients[:1]), may_refuse=True)
        if dropouts:
            does = "joined and all others dropped out"
            yield Setting(check=Check.DROPOUTS, does=does, others=[], essential=True, may_refuse=True)

    def _splits(self, beside: Callable[..., Setting]) -> Iterator[Setting]:
        """Rounds whose other clients are partly tiny and partly huge.

        What is chosen by rank, such as a quantile of norms to clip to, changes its size when one client joins, if its
        rank lies between both. With many clients, sizes rise from tiny to the clip norm over several ranks.
        """
        count = len(self.clients)
        edges = np.unique(np.linspace(0, count, _SPLITS + 1).round().astype(int))
        for low, high in pairwise(edges.tolist()):
            rising = np.linspace(0.0, 1.0, high - low + 1)[1:]
            sizes = np.concatenate([np.full(low, 1e-3), rising, np.full(count - high, _HUGE)]) * self.clip
            yield beside(
                f"of whom {low:,} send tiny and {count - high:,} huge updates",
                partial(_times, self.direction, sizes), probes=[self.probes()[-1]],
            )  # fmt: skip

    def _plain(self, sends: str, code: str, direction: Floats, magnitude: float, *, essential: bool = False) -> Extra:
        return self._extra(Check.CLIPPING, sends, code, direction, magnitude, plain=True, essential=essential)

    def _extra(
        self, check: str, sends: str, code: str, direction: Floats, magnitude: float = 1.0,
        values: Mapping[str, Any] | None = None, **flags: Any,
    ) -> Extra:  # fmt: skip
        return Extra(
            check=check, sends=sends, code=code, magnitude=magnitude, tolerance=self.tolerance,
            build=lambda size: self.along(direction, size, **(values or {})), **flags,
        )  # fmt: skip

    def _sizes(self) -> Iterator[Extra]:
        """Very long and very short updates, and those along and against the others."""
        yield self._plain("with a tiny update", "1e-9 * C * v", self.direction, 1e-9)
        yield self._plain("with an update of zero", "0 * v", self.direction, 0.0)
        if not self.template.half:
            yield self._plain("with an update of 1e25 clip norms", _CODE, self.direction, 1e25)
        equal = np.full(self.template.dim, self.template.dim ** (-1 / self.order))
        yield self._plain(
            f"with an update of {_HUGE:,.0f} clip norms that is the same in every coordinate",
            f"{{magnitude}} * C * ones / {'sqrt(d)' if self.order == 2 else 'd'}", equal, _HUGE,
        )  # fmt: skip
        mean = np.mean([self.template.vector(client) for client in self.clients], axis=0)
        length = float(np.linalg.norm(mean, self.order))
        if length > 0 and math.isfinite(length):
            for sign, how in ((1, "along"), (-1, "against")):
                sends = f"with a huge update {how} the others' average"
                yield self._plain(sends, "{magnitude} * C * mean", sign * mean / length, _HUGE)

    def _places(self) -> Iterator[Extra]:
        """Updates in one array, and in one coordinate, only."""
        slices = [(path, part) for path, part in self.template.slices() if part.stop > part.start]
        if len(slices) > 1:
            # At most so many arrays, but always those of one number: they are what code forgets.
            small = sorted(slices, key=lambda item: item[1].stop - item[1].start)[:_MOST_ARRAYS]
            for index, (path, part) in enumerate(small):
                direction = np.zeros(self.template.dim)
                direction[part] = self.direction[part] / np.linalg.norm(self.direction[part], self.order)
                yield self._extra(
                    Check.ARRAY, f"with an update of {_HUGE:,.0f} clip norms, all in {words(path)!r},",
                    f"{{magnitude}} * C * v in {words(path)!r}", direction, _HUGE, essential=index < _ESSENTIAL_ARRAYS,
                )  # fmt: skip
        for index in sorted({0, self.template.dim - 1}):
            direction = np.zeros(self.template.dim)
            direction[index] = 1.0
            sends = f"with an update of {_HUGE:,.0f} clip norms, all in coordinate {index},"
            yield self._extra(Check.COORDINATE, sends, f"{{magnitude}} * C * e[{index}]", direction, _HUGE)

    def _types(self) -> Iterator[Extra]:
        """Integer arrays; other types of numbers and arrays in another order, which honest clients do not send."""
        for value in (1e3, 1e6) if self.template.whole else ():
            yield self._extra(
                Check.INTEGERS, f"whose integer arrays ({self._names(self.template.whole)}) hold {value:,.0f}",
                f"{value:.0f} in integer arrays", self.direction, values={"whole": value}, may_refuse=True,
                essential=value == 1e3,
            )  # fmt: skip
        yield Extra(
            check=Check.INTEGERS, sends="whose arrays are integers",
            code="rint({magnitude} * v * sqrt(d)).astype(int64)",
            build=lambda size: self._cast(size * math.sqrt(self.template.dim), "int64"), magnitude=_HUGE,
            tolerance=self.tolerance, hostile=True, may_refuse=True,
        )  # fmt: skip
        yield Extra(
            check=Check.PRECISION, sends="whose arrays have half precision", code="({magnitude} * v).astype(float16)",
            build=lambda size: self._cast(min(size * self.clip, 3e4), "float16"), magnitude=_HUGE,
            tolerance=_HALF_TOLERANCE, hostile=True, may_refuse=True,
        )  # fmt: skip
        for magnitude in (1.0, _HUGE):
            if self._reordered(magnitude) is not None:
                yield Extra(
                    check=Check.ORDER, sends="whose arrays come in another order",
                    code="dict(reversed(update.items()))", build=self._reordered, magnitude=magnitude,
                    tolerance=self.tolerance, hostile=True, may_refuse=True, essential=magnitude == _HUGE,
                )  # fmt: skip

    def _reports(self) -> Iterator[Extra]:
        """What a client says about itself: numbers of examples and the like."""
        for path, value in self.template.reported.items():
            name = words(path) if isinstance(path[-1], str) else "examples"
            label = "{value:,} examples" if "example" in name or "sample" in name else f"{name} = {{value:,}}"
            honest = [max(1000, 1000 * int(value)), 10**9, 0, 1]
            for reported in (*honest, -max(1, int(value)), -(10**6), math.nan):
                yield self._extra(
                    Check.EXAMPLES, f"with {label.format(value=reported)}", f"{{magnitude}} * C * v, {name}={reported}",
                    self.direction, values={"reported": {path: reported}}, hostile=reported not in honest,
                    essential=reported == honest[0],
                )  # fmt: skip

    def _hostile(self) -> Iterator[Extra]:
        """What no honest client sends: NaN and infinity, missing and additional arrays, other shapes."""
        for value, name in ((math.nan, "NaN"), (math.inf, "infinity")):
            for everywhere in (False, True):
                place = "all coordinates" if everywhere else "coordinate 0"
                yield Extra(
                    check=Check.NOT_FINITE, sends=f"that sends {name} in {place}",
                    code=f"{_CODE} with {name} in {place}",
                    build=partial(self._nonfinite, value=value, everywhere=everywhere), magnitude=_HUGE,
                    tolerance=self.tolerance, hostile=True, may_refuse=True, essential=name == "NaN" and not everywhere,
                )  # fmt: skip
        for name, change in (
            ("one array less", _shorter),
            ("one array more", _longer),
            ("arrays of one number", _scalars),
        ):
            changed = change(self.along(self.direction, 1.0), self.template, self.clip)
            if changed is not None:
                yield Extra(
                    check=Check.STRUCTURE, sends=f"that sends {name}", code=name, hostile=True,
                    tolerance=self.tolerance, build=partial(self._changed, change), may_refuse=True,
                )  # fmt: skip

    def _changed(self, change: Callable[[Any, Template, float], Any], size: float) -> Any:
        return change(self.along(self.direction, size), self.template, self.clip)

    def _nonfinite(self, size: float, *, value: float, everywhere: bool) -> Any:
        vector = self.direction * (size * self.clip)
        vector[slice(None) if everywhere else 0] = value
        return self.template.build(vector)

    def _cast(self, size: float, dtype: str) -> Any:
        """Return the update in another type of numbers."""
        client = self.template.build(self.direction * size)
        places = dict(self.template.slices())

        def cast(path: Path, leaf: Any) -> Any:
            if path not in places:
                return leaf
            values = (self.direction[places[path]] * size).reshape(numbers_of(leaf).shape)
            target = np.zeros((), dtype=dtype)
            if is_tensor(leaf):
                import torch

                return like(torch.zeros((), dtype=getattr(torch, dtype), device=leaf.device), values)
            return like(target, values) if isinstance(leaf, np.ndarray) else leaf

        return mapped(client, cast)

    def _reordered(self, size: float) -> Any:
        """Return the client with the keys of all dicts reversed; None if there is no dict with two keys."""
        client = self.along(self.direction, size)
        changed = _reversed(client)
        return None if list(leaves(changed)) == list(leaves(client)) else changed

    @staticmethod
    def _names(paths: Mapping[Path, Any]) -> str:
        return ", ".join(words(path) for path in paths)


def _times(direction: Floats, sizes: Floats, i: int) -> Floats:
    return np.asarray(direction * sizes[i])


def _reversed(tree: Any) -> Any:
    if isinstance(tree, dict):
        return type(tree)((key, _reversed(value)) for key, value in reversed(list(tree.items())))
    if hasattr(tree, "update") and hasattr(tree, "examples"):
        return type(tree)(_reversed(tree.update), tree.examples)
    if isinstance(tree, tuple) and not hasattr(tree, "_fields"):
        return tuple(_reversed(value) for value in tree)
    return tree


def _shorter(client: Any, template: Template, clip: float) -> Any:
    """Return the client without the last array of its update; None if there is only one."""
    last, container = _last_container(client, template)
    if container is None or len(template.update) < 2:
        return None
    return _with_container(client, last[:-1], lambda items: dict(list(items.items())[:-1]), lambda items: items[:-1])


def _longer(client: Any, template: Template, clip: float) -> Any:
    """Return the client with one more array; None if its update is a single array."""
    last, container = _last_container(client, template)
    if container is None:
        return None
    leaf = template.update[last]
    more = 1000 * clip if isinstance(leaf, float) else like(leaf, np.full(3, 1000 * clip))
    return _with_container(client, last[:-1], lambda items: {**items, "another": more}, lambda items: [*items, more])


def _scalars(client: Any, template: Template, clip: float) -> Any:
    """Return the client with one number instead of each array, which NumPy and torch repeat for all coordinates."""
    size = 1 / math.sqrt(len(template.update))

    def change(path: Path, leaf: Any) -> Any:
        if path not in template.update or isinstance(leaf, float | list):
            return leaf
        return like(leaf, np.full((1,), clip * size))

    return mapped(client, change) if template.dim > 1 else None


def _last_container(client: Any, template: Template) -> tuple[Path, Any]:
    """Return the path of the last array, and the dict or list that holds it; None if nothing does."""
    last = list(template.update)[-1]
    value = client
    for part in last[:-1]:
        value = value[part] if isinstance(value, dict | list | tuple) else getattr(value, str(part))  # type: ignore[index]
    return last, value if isinstance(value, dict | list) and last else None


def _with_container(client: Any, path: Path, of_dict: Callable[[Any], Any], of_list: Callable[[Any], Any]) -> Any:
    """Return the client with the container at a path changed."""
    if not path:
        return of_dict(client) if isinstance(client, dict) else of_list(client)
    first, rest = path[0], path[1:]
    if isinstance(client, dict):
        return type(client)({**client, first: _with_container(client[first], rest, of_dict, of_list)})
    if isinstance(client, list | tuple):
        items = list(client)
        items[int(first)] = _with_container(items[int(first)], rest, of_dict, of_list)
        return type(client)(items)
    import dataclasses

    inner = _with_container(getattr(client, str(first)), rest, of_dict, of_list)
    return dataclasses.replace(client, **{str(first): inner})
