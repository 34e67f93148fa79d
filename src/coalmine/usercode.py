"""Loads functions from the user's own Python files, written as ``path.py:function`` on the command line."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coalmine.errors import InputError


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
    loaded = getattr(_run(Path(path)), function, None)
    if loaded is None:
        raise InputError(f"{path} has no function {function!r}")
    if not callable(loaded):
        raise InputError(f"{function!r} in {path} is not a function but {describe_type(loaded)}")
    return loaded  # type: ignore[no-any-return]


def _run(path: Path) -> Any:
    """Import the file as a module and return it."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    # Registered in sys.modules like any import, so that classes defined in the file can be pickled. The hash keeps
    # two files of the same name apart.
    digest = hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()
    spec = importlib.util.spec_from_file_location(f"coalmine_user_{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{str(path)!r} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise InputError(f"{str(path)!r} fails when it is run: {describe_error(error)}") from error
    return module


def describe_error(error: Exception) -> str:
    """Return an exception's type and message, for use inside another message."""
    return f"{type(error).__name__}: {error}"


def describe_type(value: object) -> str:
    """Return the type of a value in words, for use inside an error message."""
    return f"something of type {type(value).__name__}"


# Earlier names, until every caller uses the new ones.
