"""Lazy public names: a package's exports are imported on first use, so that importing the package is nearly free."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], list[str]]:
    """Return a package's ``__getattr__`` and ``__all__``.

    Args:
        package: Name of the package that exports the names.
        homes: The names by the module that defines them.
        modules: Names of submodules that are exported themselves.

    Returns:
        A function for ``__getattr__`` that imports a name on first use, and the sorted list of all names.

    Example:
        >>> getattr_, names = lazy_names("math_names", {"math": ("pi", "tau")})
        >>> names
        ['pi', 'tau']
        >>> round(getattr_("tau") / getattr_("pi"))
        2
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def getattr_(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in home_of:
            return getattr(importlib.import_module(home_of[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_, sorted([*modules, *home_of])
