"""Functions from a user's own Python file: ``path.py:function``."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coalmine.errors import InputError


def load_function(name: str, what: str = "function") -> Callable[..., object]:
    """The function that ``path.py:function`` names; the file is run. ``what`` it is good for is said in errors."""
    path, _, function = name.rpartition(":")
    if not path.endswith(".py") or not function:
        raise InputError(f"a {what} of your own is given as path.py:function, got {name!r}")
    loaded = getattr(_run(Path(path)), function, None)
    if loaded is None:
        raise InputError(f"{path} has no function {function!r}")
    if not callable(loaded):
        raise InputError(f"{function!r} in {path} is not a function but {kind(loaded)}")
    return loaded  # type: ignore[no-any-return]


def _run(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    # Registered as any import is: classes of the file find their module there, to be pickled for one.
    unique = hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()
    spec = importlib.util.spec_from_file_location(f"coalmine_user_{path.stem}_{unique}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{str(path)!r} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise InputError(f"{str(path)!r} fails when it is run: {said(error)}") from error
    return module


def said(error: Exception) -> str:
    """An error in words."""
    return f"{type(error).__name__}: {error}"


def kind(thing: object) -> str:
    """What sort of thing it is, in words."""
    return f"something of type {type(thing).__name__}"
