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
from coalmine.replaying.randomness import generators, reachable, used_globals


class Isolated:
    """A callable whose state (momentum, round counters, clip norms) starts afresh in every run.

    Objects and closures are copied. Module-level variables that the code refers to are put back after the run.
    Generators are shared, not copied, since their state is set before every run. What cannot be copied is shared too.

    Args:
        release: The callable.
    """

    def __init__(self, release: Callable[..., Any]) -> None:
        self._release = release
        self.generators = generators(release)
        # An object that refers to a module or to a generator keeps referring to the same one.
        self._shared = {id(value): value for value in [*sys.modules.values(), *self.generators]}
        functions = [value for value in reachable(release) if isinstance(value, types.FunctionType)]
        spaces = {id(f.__globals__): f.__globals__ for f in functions if not _in_library(f)}
        names = {key: set[str]() for key in spaces}
        for function in functions:
            if id(function.__globals__) in names:
                names[id(function.__globals__)] |= set(used_globals(function))
        self._spaces = [(spaces[key], sorted(names[key])) for key in spaces]

    @contextmanager
    def copied(self) -> Iterator[Callable[..., Any]]:
        """Return a copy to call, as often as there are rounds."""
        memo = dict(self._shared)
        kept = [
            (space, name, space[name], _snapshot(space[name], memo)) for space, names in self._spaces for name in names
        ]
        try:
            yield _copied(self._release, dict(self._shared))
        finally:
            for space, name, value, snapshot in kept:
                _put_back(space, name, value, snapshot)


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


def _snapshot(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of what a variable holds, or None if there is nothing to put back."""
    data = value
    if not (isinstance(value, dict | list | set | bytearray | np.ndarray) or is_tensor(value)):
        if isinstance(value, types.FunctionType | types.ModuleType | type) or id(value) in memo:
            return None
        data = getattr(value, "__dict__", None)
    try:
        return copy.deepcopy(data, memo)
    except Exception:  # deepcopy raises whatever the user's objects raise
        return None


def _put_back(space: dict[str, Any], name: str, value: Any, snapshot: Any) -> None:
    """Bind a name to its old value again, with its old contents."""
    space[name] = value
    if snapshot is None:
        return
    if isinstance(value, dict | set):
        value.clear()
        value.update(snapshot)
    elif isinstance(value, list | bytearray):
        value[:] = snapshot
    elif isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = snapshot
    elif is_tensor(value):
        value.detach().copy_(snapshot.detach())
    else:
        value.__dict__.clear()
        value.__dict__.update(snapshot)
