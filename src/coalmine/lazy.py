"""Public names that are imported when they are first used, so that importing a package costs next to nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], list[str]]:
    """Return a package's ``__getattr__`` and ``__all__``.

    Args:
        package: Name of the package that exports the names.
        homes: The names by the module that defines them. A module without names is exported itself.

    Returns:
        A function for ``__getattr__`` that imports a name on first use, and the sorted list of all names.
    """
    home_of = {name: module for module, names in homes.items() for name in names}
    modules = {module.rpartition(".")[2]: module for module, names in homes.items() if not names}

    def getattr_(name: str) -> Any:
        if name in modules:
            return importlib.import_module(modules[name])
        if name in home_of:
            return getattr(importlib.import_module(home_of[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_, sorted([*modules, *home_of])
