"""The registry of methods.

A method is a package (or a single module) with a subclass of `Method`. Ours are listed below; a third-party package
adds one by an entry point in the group ``coalmine.methods``::

    [project.entry-points."coalmine.methods"]
    my-method = "my_package.method:MyMethod"

It then appears in ``coalmine audit NAME``, in ``audit.toml`` and ``coalmine run``, in the report with a section of its
own, and in ``check`` and ``compare``. docs/extending.md has a complete example.
"""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from importlib.metadata import entry_points

from coalmine.errors import DataWarning, InputError, did_you_mean
from coalmine.methods.method import Method

# Entry-point group of third-party methods.
GROUP = "coalmine.methods"

_OURS = {
    "one-shot": "coalmine.methods.one_shot.method:OneShotMethod",
    "canife": "coalmine.methods.canife.method:CanifeMethod",
    "secret-sharer": "coalmine.methods.secret_sharer.method:SecretSharerMethod",
    "ldp": "coalmine.methods.ldp.method:LdpMethod",
    "exposure": "coalmine.methods.exposure.method:ExposureMethod",
    "mechanism": "coalmine.methods.mechanism.method:MechanismMethod",
    "samples": "coalmine.methods.samples:SamplesMethod",
}


def is_ours(name: str) -> bool:
    """Whether a method is one of coalmine's own."""
    return name in _OURS


def is_installed(name: str) -> bool:
    """Whether a method is one of coalmine's own or of an installed package."""
    return name in _entries()


def runnable() -> list[type[Method]]:
    """Return the methods that a run can use. Third-party ones that cannot be imported are skipped with a warning."""
    methods = []
    for name in _entries():
        try:
            method = get(name)
        except InputError as error:
            if name in _OURS:
                raise
            warnings.warn(f"skipping a method: {error}", DataWarning, stacklevel=2)
            continue
        if method.settings_type is not None:
            methods.append(method)
    return methods


@cache
def get(name: str) -> type[Method]:
    """Return a method by its name.

    Raises:
        InputError: If there is no such method, or a third-party one cannot be imported.

    Example:
        >>> get("one-shot").title
        'Random updates as canaries'
    """
    if name not in _entries():
        raise InputError(f'unknown method "{name}". {did_you_mean(name, list(_entries()))}')
    target = _entries()[name]
    module, _, attribute = target.partition(":")
    try:
        method = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"the method {name!r} cannot be imported from {target}: {error}") from error
    if not (isinstance(method, type) and issubclass(method, Method) and method.name == name):
        raise InputError(f"{target} must be a Method of coalmine with the name {name!r}, got {method!r:.100}")
    return method


def find(name: str) -> type[Method]:
    """Return a method by its name; one that is not installed is known by its name alone."""
    return get(name) if name in _entries() else type(name, (Method,), {"name": name, "title": name})


@cache
def _entries() -> dict[str, str]:
    """Return where each method is defined, as ``module:attribute``, ours first."""
    plugins = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    taken = sorted(set(plugins) & set(_OURS))
    if taken:
        raise InputError(f"the installed method {taken[0]!r} has the name of a method of coalmine: rename it")
    return _OURS | plugins
