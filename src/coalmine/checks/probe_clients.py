"""The clients that replay lets join, chosen to be as difficult as possible, and the rounds that they join."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.checks.clients import Template, dotted, leaves
from coalmine.results.verdict import Check

_HUGE = 1000.0
_MOST_ARRAYS, _ESSENTIAL_ARRAYS = 24, 4  # that are tried one by one
_SPLITS = 8  # rounds with tiny and huge clients
_HALF_TOLERANCE = 0.03  # clipping in half precision loses this much of a norm


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
        only_huge: Whether only a huge update is tried, and not those of the clip norm.
    """

    check: str
    does: str
    others: Sequence[Any]
    essential: bool = False
    may_refuse: bool = False
    only_huge: bool = False


class ProbeClients:
    """Builds difficult clients in the likeness of given ones.

    Args:
        clients: The given clients.
        clip_norm: The clip norm.
        who: What a client is called.
        seed: Seed of the random direction that most of them point in.
        order: Order of the clip norm: 2, or 1 for an ℓ₁ norm.
    """

    def __init__(self, clients: Sequence[Any], *, clip_norm: float, who: str, seed: int, order: int) -> None:
        self.template, self.clients, self.clip, self.order = Template(clients[0]), list(clients), clip_norm, order
        self._who = who
        rng, dim = np.random.default_rng(seed), self.template.dim
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
        return [*self.simplest(), *self._sizes(), *self._places(), *self._reports(), *self._hostile()]

    def settings(self, *, dropouts: bool) -> Iterator[Setting]:
        """Yield rounds whose other clients make one client count for more."""
        directions = [self._unit(self.template.vector(client)) for client in self.clients]
        count = len(self.clients)

        def beside(how: str, updates: Sequence[Floats], **more: Any) -> Setting:
            others = [self.template.build(u, base=c) for u, c in zip(updates, self.clients, strict=True)]
            return Setting(check=Check.OTHERS, does=f"joined beside {self._who}s {how}", others=others, **more)

        yield beside("whose updates are all clipped", [_HUGE * self.clip * d for d in directions], essential=True)
        yield beside("whose updates are nearly zero", [1e-6 * self.clip * d for d in directions])
        if count >= 2:
            # One client decides where a median of these lies. An odd one out pulls no way.
            signs = [(-1.0) ** i if i < count - count % 2 else 1e-5 for i in range(count)]
            halves = [sign * self.clip * self.direction for sign in signs]
            yield beside("half of which pull one way, half the other", halves, essential=True)
        # What is chosen by rank, such as a quantile of norms to clip to, changes its size when one client joins, if its
        # rank lies between tiny and huge ones. With many clients, sizes rise over several ranks.
        edges = np.unique(np.linspace(0, count, _SPLITS + 1).round().astype(int))
        for low, high in pairwise(edges.tolist()):
            rising = np.linspace(0.0, 1.0, high - low + 1)[1:]
            sizes = np.concatenate([np.full(low, 1e-3), rising, np.full(count - high, _HUGE)])
            how = f"of whom {low:,} send tiny and {count - high:,} huge updates"
            yield beside(how, [size * self.clip * self.direction for size in sizes], only_huge=True)
        left = {"all others": 0, f"{count - 1} of the {count} others": 1} if count > 2 else {"all others": 0}
        for who, number in left.items() if dropouts else ():
            yield Setting(
                check=Check.DROPOUTS, does=f"joined and {who} dropped out", others=self.clients[:number],
                essential=number == 0, may_refuse=True,
            )  # fmt: skip

    def _unit(self, vector: Floats) -> Floats:
        return np.asarray(vector / max(float(np.linalg.norm(vector, self.order)), 1e-300))

    def _plain(self, sends: str, code: str, direction: Floats, length: float, *, essential: bool = False) -> Probe:
        build = partial(self.along, direction)
        check = Check.CLIPPING
        return Probe(check=check, sends=sends, code=code, build=build, length=length, plain=True, essential=essential)

    def _sizes(self) -> Iterator[Probe]:
        """Very long and very short updates, and those along and against the others."""
        yield self._plain("with a tiny update", "1e-9 * C * v", self.direction, 1e-9)
        yield self._plain("with an update of zero", "0 * v", self.direction, 0.0)
        if self.template.precision < 1e-4:  # half precision has no such numbers
            yield self._plain("with an update of 1e25 clip norms", "1e25 * C * v", self.direction, 1e25)
        equal = self._unit(np.ones(self.template.dim))
        sends = f"with an update of {_HUGE:,.0f} clip norms that is the same in every coordinate"
        yield self._plain(sends, "1000 * C * ones / norm(ones)", equal, _HUGE)
        mean = self._unit(np.mean([self.template.vector(client) for client in self.clients], axis=0))
        for sign, how in ((1, "along"), (-1, "against")) if np.isfinite(mean).all() and mean.any() else ():
            yield self._plain(
                f"with a huge update {how} the others' average", f"{sign}000 * C * mean", sign * mean, _HUGE
            )

    def _places(self) -> Iterator[Probe]:
        """Updates in one array, and in one coordinate, only; and integer arrays."""
        huge = f"with an update of {_HUGE:,.0f} clip norms, all in"
        arrays = [(path, part) for path, part in self.template.slices.items() if part.stop > part.start]
        # At most so many arrays, but always those of one number: they are what code forgets.
        arrays.sort(key=lambda item: item[1].stop - item[1].start)
        for index, (path, part) in enumerate(arrays[:_MOST_ARRAYS] if len(arrays) > 1 else ()):
            direction = np.zeros(self.template.dim)
            direction[part] = self._unit(self.direction[part])
            yield Probe(
                check=Check.ARRAY, sends=f"{huge} {dotted(path)!r},", code=f"1000 * C * v in {dotted(path)!r}",
                build=partial(self.along, direction), length=_HUGE, essential=index < _ESSENTIAL_ARRAYS,
            )  # fmt: skip
        for index in sorted({0, self.template.dim - 1}):
            direction = np.zeros(self.template.dim)
            direction[index] = 1.0
            yield Probe(
                check=Check.COORDINATE, sends=f"{huge} coordinate {index},", code=f"1000 * C * e[{index}]",
                build=partial(self.along, direction), length=_HUGE,
            )  # fmt: skip
        for value in (1000, 1_000_000) if self.template.whole else ():
            names = ", ".join(dotted(path) for path in self.template.whole)
            yield Probe(
                check=Check.INTEGERS, sends=f"whose integer arrays ({names}) hold {value:,}",
                code=f"C * v, {value} in integer arrays", build=partial(self.along, self.direction, whole=value),
                may_refuse=True, essential=value == 1000,
            )  # fmt: skip

    def _reports(self) -> Iterator[Probe]:
        """What a client says about itself: numbers of examples and the like."""
        for path, value in self.template.reported.items():
            name = dotted(path) if isinstance(path[-1], str) else "examples"
            honest = [max(1000, 1000 * int(value)), 10**9, 0, 1]
            for number in (*honest, -max(1, int(value)), -(10**6), math.nan):
                yield Probe(
                    check=Check.EXAMPLES, sends=f"with {name} = {number:,}", code=f"C * v, {name}={number}",
                    build=partial(self.along, self.direction, reported={path: number}), hostile=number not in honest,
                    essential=number == honest[0],
                )  # fmt: skip

    def _hostile(self) -> Iterator[Probe]:
        """What no honest client sends: NaN and infinity, and arrays in another order."""
        for value, name in ((math.nan, "NaN"), (math.inf, "infinity")):
            for place, where in (("coordinate 0", 0), ("all coordinates", slice(None))):
                direction = self.direction.copy()
                direction[where] = value
                yield Probe(
                    check=Check.NOT_FINITE, sends=f"that sends {name} in {place}", hostile=True, may_refuse=True,
                    code=f"1000 * C * v with {name} in {place}", build=partial(self.along, direction), length=_HUGE,
                    essential=name == "NaN" and where == 0,
                )  # fmt: skip

        def reordered(length: float) -> Any:
            return _reversed(self.along(self.direction, length))

        if list(leaves(reordered(1.0))) != list(leaves(self.clients[0])):
            for length in (1.0, _HUGE):
                yield Probe(
                    check=Check.ORDER, sends="whose arrays come in another order", build=reordered, length=length,
                    code="dict(reversed(update.items()))", hostile=True, may_refuse=True, essential=length == _HUGE,
                )  # fmt: skip


def _reversed(tree: Any) -> Any:
    """Return a client with the keys of its dicts reversed, at the top or in its parts."""
    if isinstance(tree, dict):
        return type(tree)(reversed(list(tree.items())))
    if hasattr(tree, "update") and hasattr(tree, "examples"):
        return type(tree)(_reversed(tree.update), tree.examples)
    return tuple(_reversed(value) for value in tree) if type(tree) is tuple else tree
