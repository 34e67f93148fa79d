"""Loads functions from the user's own Python files, written as ``path.py:function`` on the command line.

Whatever such a file does wrong, ``sys.exit`` included, is an error of that file: an `InputError` with file and line.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from coalmine.errors import InputError

_PREFIX = "coalmine_user_"  # of the names of modules that are users' files


def load_function(name: str, what: str = "function") -> Callable[..., object]:
    """Run a Python file and return one of its functions.

    Args:
        name: The file and the function in it, such as ``"model.py:build"``.
        what: The function's role, for error messages: ``"model"``, ``"mechanism"``.

    Returns:
        The function.

    Raises:
        InputError: If the file does not exist or fails to run, or has no such function.
    """
    path, _, function = name.rpartition(":")
    if not path.endswith(".py") or not function:
        raise InputError(f"a custom {what} must be given as path.py:function, got {name!r}")
    file = Path(path)
    if not file.is_file():
        raise InputError(f"there is no file {path!r}")
    # Registered in sys.modules like any import, so that classes defined in the file can be pickled. The hash keeps
    # two files of the same name apart.
    digest = hashlib.blake2b(str(file.resolve()).encode(), digest_size=6).hexdigest()
    spec = importlib.util.spec_from_file_location(f"{_PREFIX}{file.stem}_{digest}", file)
    assert spec is not None  # since the file ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with errors_of(f"{path!r} fails when it is run"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]  # half of a module must not serve a second attempt
        raise
    loaded = getattr(module, function, None)
    if not callable(loaded):
        raise InputError(f"{path} has no function {function!r}")
    return loaded  # type: ignore[no-any-return]


@contextmanager
def errors_of(failure: str) -> Iterator[None]:
    """Turn whatever the user's code raises into an `InputError` that says how it failed, and where.

    Ctrl-C passes, and so do errors that are an `InputError` already.

    Args:
        failure: What to say, such as ``"the mechanism failed"``.

    Example:
        >>> with errors_of("the mechanism failed"):
        ...     raise SystemExit(0)
        Traceback (most recent call last):
        ...
        coalmine.errors.InputError: the mechanism failed: it called exit(0)
    """
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(f"{failure}: {describe_error(error)}") from error


def blamed(error: BaseException) -> str:
    """Return what a user's file did and where, or nothing if no user's file was running."""
    return describe_error(error) if _users_places(traceback.walk_tb(error.__traceback__)) else ""


def describe_error(error: BaseException) -> str:
    """Return an exception's type and message, and where in a user's file it was, for use inside another message."""
    if isinstance(error, SystemExit):
        text = f"it called exit({'' if error.code is None else error.code})"
    else:
        text = f"{type(error).__name__}: {error!s:.2000}"
    # Later frames are those of libraries that the file calls: the user can only change their own line.
    for place in _users_places(traceback.walk_tb(error.__traceback__))[-1:]:
        if place not in text:
            text = f"{text} ({place})"
    return text


def _users_places(frames: Iterable[tuple[FrameType, int]]) -> list[str]:
    """Return file and line of the frames that are in a user's file, in their order."""
    places = []
    for frame, line in frames:
        if str(frame.f_globals.get("__name__", "")).startswith(_PREFIX):
            places.append(f"{frame.f_code.co_filename}, line {line}")
    return places
