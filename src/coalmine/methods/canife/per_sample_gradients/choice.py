"""Chooses the implementation of per-sample gradients for a module by comparing it with the reference."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.methods.canife.per_sample_gradients.interface import DoubleBackward, SampleGradients, input_derivative
from coalmine.methods.canife.per_sample_gradients.layerwise import LayerwiseGradients
from coalmine.simulation.flat import check_module


def sample_gradients(
    module: nn.Module, inputs: Tensor, targets: Tensor, *, implementation: str | None = None
) -> SampleGradients:
    """Return the fastest implementation that is right for this module.

    A module may use its layers' weights in ways of its own, or mix the samples of a batch, so `LayerwiseGradients` is
    chosen only if it agrees with `DoubleBackward` on two samples.

    Args:
        module: The module; it is copied.
        inputs: Samples like those to come.
        targets: Their targets.
        implementation: Class name of the implementation that was chosen for the same module with other parameters;
            skips the comparison.

    Raises:
        InputError: If the module cannot be differentiated twice, or its loss has no gradient at these samples.
    """
    module, inputs, targets = copy.deepcopy(module).to(inputs.dtype), inputs.detach()[:2], targets.detach()[:2]
    if implementation == LayerwiseGradients.__name__:
        return LayerwiseGradients(module, inputs[:1], targets[:1])
    if implementation == DoubleBackward.__name__:
        return DoubleBackward(module)
    check_module(module, private=True)
    count = len(inputs)
    if count == 1:  # a module that mixes samples shows it only if they differ
        other = 0.9 * inputs.flip(*range(1, inputs.ndim)) + 0.05
        inputs, targets = torch.cat([inputs, other]), torch.cat([targets, targets])
    reference = DoubleBackward(module)
    gradients, derivative = _evaluate(reference, inputs, targets)
    if not bool(gradients[:count].any()):
        raise InputError(
            "the model's loss has no gradient with respect to its parameters at the canary's start, so a canary would "
            "be invisible: start from other samples or check the model"
        )
    try:
        fast = LayerwiseGradients(module, inputs, targets)
        fast_gradients, fast_derivative = _evaluate(fast, inputs, targets)
        whole = torch.zeros_like(gradients)
        whole[:, slice(None) if fast.columns is None else fast.columns] = fast_gradients
    except (InputError, RuntimeError, TypeError, ValueError, AttributeError, LookupError):
        return reference
    if not bool((whole - gradients).norm() <= 1e-3 * gradients.norm()):
        return reference
    return fast if bool((fast_derivative - derivative).norm() <= 1e-2 * derivative.norm()) else reference


def _evaluate(implementation: SampleGradients, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients, and the derivative of half their squared norms with respect to the inputs."""
    inputs = inputs.clone().requires_grad_()
    try:
        rows = implementation.of(inputs, targets)
        derivative = input_derivative(rows, inputs, rows.detach())
    except InputError:
        raise
    except (RuntimeError, ValueError) as error:
        raise InputError(
            "the model's gradient cannot be differentiated with respect to its inputs, which designing a canary needs "
            "(texts also need plain nn.Embedding layers: no subclass, no hook, neither max_norm nor "
            f"scale_grad_by_freq): {error}"
        ) from error
    return rows.detach(), derivative
