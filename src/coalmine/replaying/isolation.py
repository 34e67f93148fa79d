"""Runs that leave no trace: each call gets its own copy of whatever state the user's code keeps."""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from coalmine.replaying.clients import is_tensor
from coalmine.replaying.randomness import is_generator, reachable, used_globals

# Objects whose contents are kept at most: a variable may lead anywhere, such as to a test session.
_MOST_OBJECTS = 20_000
# What these refer to is not state of the user's, or cannot change.
_FIXED = (
    str, bytes, int, float, complex, type(None), np.generic, type, types.ModuleType, types.CodeType, types.FunctionType,
    types.BuiltinFunctionType, types.MappingProxyType,
)  # fmt: skip


class Isolated:
    """A callable whose state (momentum, round counters, clip norms) starts afresh in every run.

    Objects and closures are copied. Module-level variables that the code refers to are put back after the run.
    Generators are shared, not copied, since their state is set before every run. What cannot be copied is shared too.

    Args:
        release: The callable.
    """

    def __init__(self, release: Callable[..., Any]) -> None:
        self._release = release
        objects = list(reachable(release))
        self.generators = [value for value in objects if is_generator(value)]
        # An object that refers to a module or to a generator keeps referring to the same one.
        self._shared = {id(value): value for value in [*sys.modules.values(), *self.generators]}
        functions = [value for value in objects if isinstance(value, types.FunctionType)]
        spaces = {id(f.__globals__): f.__globals__ for f in functions if not _in_library(f)}
        names = {key: set[str]() for key in spaces}
        for function in functions:
            if id(function.__globals__) in names:
                names[id(function.__globals__)] |= set(used_globals(function))
        self._spaces = [(spaces[key], sorted(names[key])) for key in spaces]

    @contextmanager
    def copied(self, release: Callable[..., Any] | None = None) -> Iterator[Callable[..., Any]]:
        """Return a copy to call once per round.

        Args:
            release: What to copy: an earlier copy that has run some rounds, or None for the release itself.
        """
        variables = [(space, name, space[name]) for space, names in self._spaces for name in names]
        seen = dict(self._shared)
        kept = [pair for _, _, value in variables for pair in _contents(value, seen)]
        try:
            yield _copied(release or self._release, dict(self._shared))
        finally:
            for space, name, value in variables:
                space[name] = value
            for value, contents in kept:
                _put_back(value, contents)


def _in_library(function: types.FunctionType) -> bool:
    """Whether a function belongs to an installed package, or to this one, whose modules keep no state of the user's."""
    if (function.__module__ or "").partition(".")[0] == "coalmine":
        return True
    home = sys.modules.get(function.__module__ or "")
    return "site-packages" in (getattr(home, "__file__", None) or "")


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a callable with copies of all that it keeps; the callable itself if that is impossible."""
    try:
        match value:
            case types.FunctionType():
                return _copied_function(value, memo)
            case types.MethodType():
                return types.MethodType(value.__func__, _copied(value.__self__, memo))
            case functools.partial():
                inner = _copied(value.func, memo)
                arguments = [_copied(argument, memo) for argument in value.args]
                return functools.partial(inner, *arguments, **{k: _copied(v, memo) for k, v in value.keywords.items()})
            case _:
                return copy.deepcopy(value, memo)
    except Exception:  # deepcopy raises whatever the user's objects raise
        return value


def _copied_function(function: types.FunctionType, memo: dict[int, Any]) -> Any:
    """Return a function of the same code whose closure and defaults are copies."""
    if id(function) in memo:
        return memo[id(function)]
    cells = tuple(memo.setdefault(id(cell), types.CellType()) for cell in function.__closure__ or ())
    code, name = function.__code__, function.__name__
    twin = types.FunctionType(code, function.__globals__, name, function.__defaults__, cells or None)
    memo[id(function)] = twin  # before its closure: functions may refer to themselves
    twin.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
    twin.__defaults__ = copy.deepcopy(function.__defaults__, memo)
    twin.__dict__.update(function.__dict__)
    for cell, old in zip(cells, function.__closure__ or (), strict=True):
        try:
            content = old.cell_contents
        except ValueError:  # a variable that is not assigned yet
            continue
        cell.cell_contents = _copied(content, memo)
    return twin


def _contents(value: Any, seen: dict[int, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield what a variable holds, at any depth: each mutable object with a copy of its contents, not of what is in it.

    Contents are put back into the same objects, so whoever else refers to them notices nothing. `seen` has the objects
    that are done or shared, by their ids.
    """
    waiting = [value]
    while waiting and len(seen) < _MOST_OBJECTS:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _FIXED):
            continue
        seen[id(value)] = value
        match value:
            case tuple() | frozenset():
                waiting += value
            case dict():
                yield value, dict(value)
                waiting += value.values()
            case list() | set():
                yield value, type(value)(value)
                waiting += value
            case bytearray() | np.ndarray():
                yield value, value.copy()
            case _ if is_tensor(value):
                yield value, value.detach().clone()
            case _:
                waiting.append(getattr(value, "__dict__", None))


def _put_back(value: Any, contents: Any) -> None:
    """Give a mutable object its old contents again."""
    if isinstance(value, dict | set):
        value.clear()
        value.update(contents)
    elif isinstance(value, list | bytearray):
        value[:] = contents
    elif isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = contents
    else:
        value.detach().copy_(contents)
