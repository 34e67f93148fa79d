"""The same randomness twice: find, set and restore every generator that a function draws from.

Global generators (random, NumPy, torch) are always set. Generators that the function owns are found by walking through
its closure, defaults, attributes and globals. Generators that it creates in a call without a seed take their entropy
from a stream of ours. What is left (a hardware source, a clock) shows as two equal calls with different outcomes.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

# Objects that are looked into, the nearest first; what they refer to is still seen.
_MOST_OBJECTS = 20_000

# Nothing that these refer to is a generator.
_LEAVES = (str, bytes, int, float, complex, type(None), np.generic, types.ModuleType, types.CodeType)

# Packages whose modules keep no generator of the user's.
_LIBRARIES = {*sys.stdlib_module_names, "numpy", "torch", "scipy", "sklearn", "coalmine", "jax", "jaxlib"}


def is_generator(value: object) -> bool:
    """Whether an object is a generator that can be set: NumPy's (new and legacy), torch's or `random.Random`."""
    torch = sys.modules.get("torch")
    kinds: tuple[Any, ...] = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
    if isinstance(value, random.SystemRandom):
        return False
    return isinstance(value, kinds) or (torch is not None and isinstance(value, torch.Generator))


def reachable(root: object) -> Iterator[Any]:
    """Yield the objects that a callable can reach by closures, defaults, attributes, containers and globals.

    The nearest come first: a function may refer to objects that lead anywhere, such as a test session or a web
    framework, and what it draws from is at hand.
    """
    seen, queue = {id(root): root}, deque([root])  # kept, so that no other object gets the same id meanwhile
    looked_into = 0
    while queue:
        value = queue.popleft()
        yield value
        looked_into += 1
        if looked_into > _MOST_OBJECTS:
            continue
        for child in _children(value):
            if id(child) not in seen and not isinstance(child, _LEAVES):
                seen[id(child)] = child
                queue.append(child)


def used_globals(function: types.FunctionType) -> dict[str, Any]:
    """Return the globals that a function, or a function inside it, refers to by name."""
    names = _names(function.__code__)
    return {name: function.__globals__[name] for name in names if name in function.__globals__}


@contextmanager
def kept(owned: list[Any]) -> Iterator[None]:
    """Leave all global and owned generators as they were, whatever is drawn in between."""
    torch = sys.modules.get("torch")
    states = [_state(generator) for generator in owned]
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 the user's code may draw from it
    tensors = None if torch is None else torch.get_rng_state()
    devices = _device_states(torch)
    try:
        yield
    finally:
        for generator, state in zip(owned, states, strict=True):
            _restore(generator, state)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if torch is not None and tensors is not None:
            torch.set_rng_state(tensors)
        for restore, state in devices:
            restore(state)


@contextmanager
def set_to(seed: tuple[int, ...], owned: list[Any]) -> Iterator[None]:
    """Set all generators to the state that belongs to a seed, and let new ones take their entropy from it."""
    for index, generator in enumerate(owned):
        _reseed(generator, np.random.SeedSequence([*seed, 1, index]))
    words = np.random.SeedSequence([*seed, 0]).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))  # noqa: NPY002 the user's code may draw from it
    torch = sys.modules.get("torch")
    if torch is not None and _has_accelerator():
        torch.manual_seed(int(words[2]))
    elif torch is not None:
        # torch.manual_seed also formats the stack, for a call to an accelerator that never comes.
        torch.default_generator.manual_seed(int(words[2]))
    with _entropy_from(random.Random(int(words[0]) + 1)), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes for a while: (owner, name, value). It runs around every call, and `unittest.mock` is slow."""
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _entropy_from(stream: random.Random) -> AbstractContextManager[None]:
    """Let generators that are created without a seed take one from a stream."""
    seed = random.Random.seed

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed(self, stream.getrandbits(64) if a is None else a, version)

    changes = [
        (os, "urandom", stream.randbytes),
        (random, "_urandom", stream.randbytes),  # SystemRandom and secrets
        (random.Random, "seed", seeded),
    ]
    # Also for `from numpy.random import default_rng`: the entropy of every unseeded SeedSequence comes from here.
    if hasattr(np.random.bit_generator, "randbits"):
        changes.append((np.random.bit_generator, "randbits", stream.getrandbits))
    return replaced(*changes)


def _state(generator: Any) -> Any:
    match generator:
        case np.random.Generator():
            return generator.bit_generator.state
        case np.random.BitGenerator():
            return generator.state
        case np.random.RandomState():
            return generator.get_state()
        case random.Random():
            return generator.getstate()
        case _:
            return generator.get_state()


def _restore(generator: Any, state: Any) -> None:
    match generator:
        case np.random.Generator():
            generator.bit_generator.state = state
        case np.random.BitGenerator():
            generator.state = state
        case np.random.RandomState():
            generator.set_state(state)
        case random.Random():
            generator.setstate(state)
        case _:
            generator.set_state(state)


def _reseed(generator: Any, seed: np.random.SeedSequence) -> None:
    match generator:
        case np.random.Generator():
            _reseed(generator.bit_generator, seed)
        case np.random.BitGenerator():
            generator.state = type(generator)(seed).state
        case np.random.RandomState():
            generator.seed(seed.generate_state(4))
        case random.Random():
            generator.seed(int(seed.generate_state(1)[0]))
        case _:
            generator.manual_seed(int(seed.generate_state(1)[0]))


@functools.cache
def _has_accelerator() -> bool:
    """Whether torch has other generators than that of the CPU."""
    import torch

    return bool(torch.accelerator.is_available()) if hasattr(torch, "accelerator") else bool(torch.cuda.is_available())


def _device_states(torch: Any) -> list[tuple[Callable[[Any], None], Any]]:
    """Return the states of torch's generators on accelerators, each with the function that restores it."""
    if torch is None or not _has_accelerator():
        return []
    states: list[tuple[Callable[[Any], None], Any]] = []
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    if torch.backends.mps.is_available():
        states.append((torch.mps.set_rng_state, torch.mps.get_rng_state()))
    return states


def _children(value: Any) -> Iterator[Any]:
    """Yield what an object refers to, as far as a generator may be there."""
    if is_generator(value):
        return
    match value:
        case types.FunctionType():
            yield from (cell.cell_contents for cell in value.__closure__ or () if _filled(cell))
            yield from value.__defaults__ or ()
            yield from (value.__kwdefaults__ or {}).values()
            yield from vars(value).values()
            yield from _globals(value)
        case types.MethodType():
            yield value.__self__
            yield value.__func__
        case types.BuiltinMethodType():
            yield value.__self__
        case types.GeneratorType():
            yield from () if value.gi_frame is None else list(value.gi_frame.f_locals.values())
        case functools.partial():
            yield from (value.func, value.args, value.keywords)
        case dict():
            yield from value.values()
        case list() | tuple() | set() | frozenset():
            yield from value
        case np.ndarray():
            return
        case type():
            if value.__module__.partition(".")[0] not in _LIBRARIES:
                yield from (vars(base) for base in value.__mro__ if base is not object)
        case staticmethod() | classmethod():
            yield value.__func__
        case property():
            yield value.fget
        case types.MappingProxyType():
            yield from value.values()
        case _:
            yield from _attributes(value)


def _attributes(value: Any) -> Iterator[Any]:
    """Yield an object's attributes, and its class, whose methods have globals."""
    if type(value).__module__.partition(".")[0] in _LIBRARIES - {"coalmine"} and not hasattr(value, "__dict__"):
        return
    yield type(value)
    yield from getattr(value, "__dict__", {}).values()
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            try:
                yield getattr(value, name)
            except Exception:  # not every slot is readable, and other libraries raise what they like
                continue


def _globals(function: types.FunctionType) -> Iterator[Any]:
    """Yield the globals that a function refers to, and what it uses of modules among them."""
    if (function.__module__ or "").partition(".")[0] in _LIBRARIES:
        return
    names = _names(function.__code__)
    for value in used_globals(function).values():
        if not isinstance(value, types.ModuleType):
            yield value
        elif value.__name__.partition(".")[0] not in _LIBRARIES:
            yield from (vars(value)[name] for name in names if name in vars(value))


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a code object, or one inside it, refers to."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*(_names(constant) for constant in inner))


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a variable that is not assigned yet
        return False
    return True
