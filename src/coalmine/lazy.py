"""Lazy public names: a package's exports are imported on first use, so that importing the package is nearly free."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], list[str]]:
    """Return ``__getattr__`` and ``__all__`` for a package whose names are imported on first use.

    Args:
        package: Name of the package that exports the names.
        homes: The exported names, by the module that defines them.
        modules: Submodules that the package exports as well, without the package's name.

    Returns:
        A function to assign to ``__getattr__``, and the sorted list of exported names.

    Example:
        >>> getattr_, names = lazy_names("json", {"json.decoder": ["JSONDecoder"]}, ["encoder"])
        >>> names
        ['JSONDecoder', 'encoder']
        >>> getattr_("encoder").__name__
        'json.encoder'
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def getattr_(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in home_of:
            return getattr(importlib.import_module(home_of[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_, sorted([*modules, *home_of])
