"""Models from a user's own Python file: ``path.py:function``."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from coalmine.data.federated import Task
from coalmine.errors import InputError
from coalmine.models.tasks import check_fits


def is_user_model(name: str) -> bool:
    """Whether ``name`` names a file rather than a model of ours."""
    return ":" in name or name.endswith(".py")


def load_function(name: str) -> Callable[..., object]:
    """The function that ``path.py:function`` names; the file is run."""
    path, _, function = name.rpartition(":")
    if not path.endswith(".py") or not function:
        raise InputError(f"a model of your own is given as path.py:function, got {name!r}")
    loaded = getattr(_run(Path(path)), function, None)
    if loaded is None:
        raise InputError(f"{path} has no function {function!r}")
    if not callable(loaded):
        raise InputError(f"{function!r} in {path} is not a function but {_kind(loaded)}")
    return loaded  # type: ignore[no-any-return]


def call(name: str, function: Callable[..., object], task: Task, settings: dict[str, int | float]) -> nn.Module:
    """What ``function`` makes of the task, tried on a batch of zeros: logits of another shape are refused."""
    takes_task = any(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in inspect.signature(function).parameters.values()
    )
    try:
        module = function(task, **settings) if takes_task else function(**settings)
    except Exception as error:
        raise InputError(f"the model {name} failed: {_said(error)}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"the model {name} must return a torch.nn.Module, got {_kind(module)}")
    check_fits(module, task, name=name)
    return module


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
        raise InputError(f"{str(path)!r} fails when it is run: {_said(error)}") from error
    return module


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _kind(thing: object) -> str:
    return f"something of type {type(thing).__name__}"
