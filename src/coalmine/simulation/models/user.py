"""Models from a user's Python file: ``path.py:function``."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn

from coalmine.errors import InputError
from coalmine.simulation.data.federated import Task
from coalmine.simulation.models.tasks import check_fits
from coalmine.usercode import describe_type, errors_of


def is_user_model(name: str) -> bool:
    """Return whether ``name`` refers to a Python file rather than to one of our models."""
    return ":" in name or name.endswith(".py")


def build(name: str, function: Callable[..., object], task: Task, settings: dict[str, int | float]) -> nn.Module:
    """Call ``function``, with the task if it takes one, and check that the module fits the task."""
    takes_task = any(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in inspect.signature(function).parameters.values()
    )
    with errors_of(f"the model {name} failed"):
        module = function(task, **settings) if takes_task else function(**settings)
    if not isinstance(module, nn.Module):
        raise InputError(f"the model {name} must return a torch.nn.Module, got {describe_type(module)}")
    with errors_of(f"the model {name} failed"):
        check_fits(module, task, name=name)
    return module
