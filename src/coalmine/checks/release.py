"""One run of the user's aggregation: the same randomness each time, and no trace of earlier runs.

Global generators (random, NumPy, torch) are set before every run. Generators that the user's function owns are found by
walking through whatever it refers to. Generators that it creates without a seed take their entropy from a stream of
ours. All other state that it keeps (momentum, round counters, clip norms) is copied for each run.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import inspect
import os
import pickle
import random
import sys
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from coalmine.arrays import Floats
from coalmine.checks.clients import dotted, leaves, numbers_of, precision
from coalmine.errors import InputError
from coalmine.seeds import default_rng

# Numbers of earlier releases that are kept (32 MB).
_MOST_REMEMBERED = 1 << 22

# Objects that are looked into, the nearest first: a function may refer to objects that lead anywhere, such as a test
# session, and what it draws from is at hand.
_MOST_OBJECTS = 20_000

# Nothing that these refer to is a generator.
_LEAVES = (str, bytes, int, float, complex, type(None), np.generic, np.ndarray, types.ModuleType, types.CodeType)

# Packages whose modules keep no generator of the user's.
_LIBRARIES = {*sys.stdlib_module_names, "numpy", "torch", "scipy", "sklearn", "coalmine", "jax", "jaxlib"}

_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random, torch.Generator)


@dataclass(frozen=True)
class Outcome:
    """What a run released.

    Args:
        vector: All numbers of the release, rounds one after another; empty if there was no release.
        sizes: Name of each array of one round's release, and how many numbers it has.
        refusal: Why there was no release: what was raised.
        precision: Machine precision of the coarsest array.
    """

    vector: Floats
    sizes: dict[str, int]
    refusal: str = ""
    precision: float = 1.2e-7

    @property
    def is_finite(self) -> bool:
        """Whether there was a release, and all of it is finite."""
        return not self.refusal and bool(np.isfinite(self.vector).all())


class Runner:
    """Runs an aggregation with the randomness that belongs to a seed, without any trace of earlier runs.

    Runs set the generators: use them inside ``isolated.leaves_no_trace()``.

    Args:
        release: Function from a list of clients to what is released. Parameters without a default that are called
            ``seed`` or ``rng`` receive a seed or a NumPy generator.
        seed: Root of all seeds.
    """

    def __init__(self, release: Callable[..., Any], *, seed: int) -> None:
        if not callable(release):
            raise InputError(f"release must be a function of a list of clients, got {type(release).__name__}")
        self.isolated, self._seed = Isolated(release), seed
        try:
            parameters = list(inspect.signature(release).parameters.values())[1:]
        except (TypeError, ValueError):  # built-in functions may have no signature
            parameters = []
        self._asks = [p.name for p in parameters if p.name in ("seed", "rng") and p.default is p.empty]
        self._memory: dict[bytes, Outcome] = {}
        self.remembers = False
        self.calls, self.seconds = 0, 0.0

    def run(self, rounds: Sequence[Sequence[Any]], draw: int = 0) -> Outcome:
        """Run one or more rounds, or return what the same run released before.

        Args:
            rounds: The clients of each round.
            draw: Number of the random draw: equal numbers mean equal randomness.
        """
        members = [list(clients) for clients in rounds]
        try:
            content = pickle.dumps((draw, members), protocol=5)
        except Exception:  # pickle raises whatever the user's objects raise
            content = b""
        key = hashlib.blake2b(content).digest()
        if self.remembers and content and key in self._memory:
            return self._memory[key]
        outcomes: list[Outcome] = []
        with self.isolated.copied() as release:
            copied = copy.deepcopy(members)  # before seeding: copying must not draw
            with self.isolated.seeded(self._seed, draw):
                for number, clients in enumerate(copied):
                    sequence = np.random.SeedSequence([self._seed, draw, number, 2])
                    values = {"seed": int(sequence.generate_state(1)[0]), "rng": default_rng(sequence)}
                    outcomes.append(self._call(release, clients, {name: values[name] for name in self._asks}))
                    if outcomes[-1].refusal:
                        break
        outcome = outcomes[-1]
        if not outcome.refusal:
            vector = np.concatenate([each.vector for each in outcomes])
            outcome = Outcome(vector, outcomes[0].sizes, precision=max(each.precision for each in outcomes))
        if len(self._memory) * outcome.vector.size > _MOST_REMEMBERED:
            self._memory.clear()
        self._memory[key] = outcome
        return outcome

    def _call(self, release: Callable[..., Any], members: list[Any], arguments: dict[str, Any]) -> Outcome:
        """Run one round."""
        self.calls += 1
        start = time.perf_counter()
        try:
            released = release(members, **arguments)
        except Exception as error:
            return Outcome(np.empty(0), {}, refusal=f"{type(error).__name__}: {error}"[:200])
        finally:
            self.seconds += time.perf_counter() - start
        if released is None:
            return Outcome(np.empty(0), {}, refusal="no release")
        parts: dict[str, Floats] = {}
        coarsest = 0.0
        for path, leaf in leaves(released).items():
            if isinstance(leaf, str | bytes) or leaf is None:
                continue
            try:
                parts[dotted(path) or "output"] = numbers_of(leaf).ravel()
            except (TypeError, ValueError):
                raise InputError(
                    "release must return arrays or numbers, in lists, dicts or dataclasses; got "
                    f"{type(leaf).__name__} at {dotted(path) or 'the top'}"
                ) from None
            coarsest = max(coarsest, precision(leaf))
        if not sum(part.size for part in parts.values()):
            raise InputError(f"release must return numbers, got {type(released).__name__} without any")
        sizes = {name: part.size for name, part in parts.items()}
        return Outcome(np.concatenate(list(parts.values())), sizes, precision=coarsest)


class Isolated:
    """A callable that starts afresh in every run, with the randomness that belongs to a seed.

    Objects and closures are copied, and so are the module-level variables that the code refers to. Generators are
    shared, not copied, since their state is set before every run. What cannot be copied is shared too.

    Args:
        release: The callable.
    """

    def __init__(self, release: Callable[..., Any]) -> None:
        self._release = release
        self.generators: list[Any] = []
        self._globals: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for value in _reachable(release):
            if _is_generator(value):
                self.generators.append(value)
            elif isinstance(value, types.FunctionType) and not _is_installed(value.__module__):
                space, names = self._globals.setdefault(id(value.__globals__), (value.__globals__, set()))
                names |= _names(value.__code__) & space.keys()
        self._shared = {id(value): value for value in [*sys.modules.values(), *self.generators]}

    @contextmanager
    def copied(self) -> Iterator[Callable[..., Any]]:
        """Return a copy to call once per round."""
        memo = dict(self._shared)  # an object that refers to a module or a generator keeps referring to the same one
        fixed = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
        originals = [
            (space, name, space[name])
            for space, names in self._globals.values()
            for name in names
            if not isinstance(space[name], fixed)
        ]
        try:
            for space, name, value in originals:
                space[name] = _copied(value, memo)
            yield _copied(self._release, memo)
        finally:
            for space, name, value in originals:
                space[name] = value

    @contextmanager
    def seeded(self, *seed: int) -> Iterator[None]:
        """Set all generators to the state that belongs to a seed, and let new ones take their entropy from it."""
        for index, generator in enumerate(self.generators):
            _reseed(generator, np.random.SeedSequence([*seed, 1, index]))
        words = np.random.SeedSequence([*seed, 0]).generate_state(3).tolist()
        random.seed(words[0])
        np.random.seed(words[1])  # noqa: NPY002 the user's code may draw from it
        torch.default_generator.manual_seed(words[2])  # torch.manual_seed formats the stack, which takes longer
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(words[2])
        stream, seed_of = random.Random(words[0] + 1), random.Random.seed

        def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
            seed_of(self, stream.getrandbits(64) if a is None else a, version)

        changes: list[tuple[Any, str, Any]] = [
            (os, "urandom", stream.randbytes),
            (random, "_urandom", stream.randbytes),  # SystemRandom and secrets
            (random.Random, "seed", seeded),
        ]
        # Also for `from numpy.random import default_rng`: the entropy of every unseeded SeedSequence comes from here.
        if hasattr(np.random.bit_generator, "randbits"):
            changes.append((np.random.bit_generator, "randbits", stream.getrandbits))
        # By hand, since this runs around every call and `unittest.mock` is slow.
        before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
        try:
            for owner, name, value in changes:
                setattr(owner, name, value)
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)

    @contextmanager
    def leaves_no_trace(self) -> Iterator[None]:
        """Leave all generators as they were, whatever is drawn in between."""
        restore: list[Callable[[], object]] = [_restorer(generator) for generator in self.generators]
        restore.append(partial(random.setstate, random.getstate()))
        restore.append(partial(np.random.set_state, np.random.get_state()))  # noqa: NPY002
        restore.append(partial(torch.set_rng_state, torch.get_rng_state()))
        try:
            yield
        finally:
            for put_back in restore:
                put_back()


# Generators


def _is_generator(value: object) -> bool:
    return isinstance(value, _GENERATORS) and not isinstance(value, random.SystemRandom)


def _restorer(generator: Any) -> Callable[[], object]:
    """Return a function that puts a generator back into the state that it has now."""
    generator = getattr(generator, "bit_generator", generator)  # that of np.random.Generator
    if isinstance(generator, np.random.BitGenerator):
        return partial(setattr, generator, "state", generator.state)
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    return partial(generator.set_state, generator.get_state())  # np.random.RandomState and torch.Generator


def _reseed(generator: Any, seed: np.random.SeedSequence) -> None:
    generator = getattr(generator, "bit_generator", generator)
    if isinstance(generator, np.random.BitGenerator):
        generator.state = type(generator)(seed).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(int(seed.generate_state(1)[0]))
    else:
        generator.seed(int(seed.generate_state(1)[0]))


# What a function refers to


def _reachable(root: object) -> Iterator[Any]:
    """Yield the objects that a callable can reach by closures, defaults, attributes, containers and globals."""
    seen, queue = {id(root): root}, deque([root])  # kept, so that no other object gets the same id meanwhile
    for _ in range(_MOST_OBJECTS):
        if not queue:
            return
        value = queue.popleft()
        yield value
        if _is_generator(value) or (isinstance(value, type) and _is_library(value.__module__)):
            continue
        children = gc.get_referents(value)
        if isinstance(value, types.FunctionType):
            # Of the globals, only those that the code names, and of modules among them, only what it names there.
            children = [value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value)]
            names = set() if _is_library(value.__module__) else _names(value.__code__)
            for name in names & value.__globals__.keys():
                variable = value.__globals__[name]
                children.append(variable)
                if isinstance(variable, types.ModuleType) and not _is_library(variable.__name__):
                    children += [vars(variable)[attribute] for attribute in names & vars(variable).keys()]
        for child in children:
            if id(child) not in seen and not isinstance(child, _LEAVES):
                seen[id(child)] = child
                queue.append(child)
    yield from queue


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a code object, or one inside it, refers to."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _is_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def _is_installed(module: str | None) -> bool:
    """Whether a module belongs to a package that keeps no state of the user's in module-level variables."""
    return _is_library(module) or "site-packages" in (getattr(sys.modules.get(module or ""), "__file__", None) or "")


# Copies


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a callable with copies of all that it keeps; the callable itself if that is impossible."""
    if id(value) in memo:
        return memo[id(value)]
    try:
        if not isinstance(value, types.FunctionType):
            return copy.deepcopy(value, memo)
        # A function of the same code whose closure and defaults are copies.
        closure = value.__closure__ or ()
        cells = tuple(memo.setdefault(id(cell), types.CellType()) for cell in closure)
        twin = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, cells or None)
        memo[id(value)] = twin  # before its closure: functions may refer to themselves
        twin.__kwdefaults__ = copy.deepcopy(value.__kwdefaults__, memo)
        twin.__defaults__ = copy.deepcopy(value.__defaults__, memo)
        twin.__dict__.update(value.__dict__)
        for cell, original in zip(cells, closure, strict=True):
            with suppress(ValueError):  # a variable that is not assigned yet
                cell.cell_contents = _copied(original.cell_contents, memo)
    except Exception:  # deepcopy raises whatever the user's objects raise
        return value
    return twin
