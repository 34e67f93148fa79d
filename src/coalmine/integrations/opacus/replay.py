"""Replay of Opacus optimizers: one example more, the same randomness (docs/checks.md)."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch import Tensor

from coalmine.checks import Replay, ReplayOptions, replay
from coalmine.checks.clients import Template
from coalmine.errors import InputError, check_count, check_kind

_MOST_RANDOM = 8
_DEFAULT = ReplayOptions()


def replay_optimizer(
    optimizer: DPOptimizer,
    examples: int | Sequence[Mapping[str, Tensor]] | None = None,
    *,
    options: ReplayOptions = _DEFAULT,
) -> Replay:
    """Replay steps of an Opacus optimizer with and without one example.

    The clients of the replay are examples: each is a per-sample gradient, a dict of tensors by the number of the
    parameter. No forward pass is needed. What is released is the noisy gradient of each step and, with adaptive
    clipping, the next clip norm. Neither the optimizer nor its model or accountant is changed.

    Args:
        optimizer: The ``DPOptimizer`` that ``make_private`` returned: with one clip norm, with one for each layer, or
            with an adaptive one.
        examples: Per-sample gradients of the other examples, ``{"0": gradient of the first parameter, …}``. Or their
            number: they then have random gradients of twice the clip norm. By default those of the last backward pass,
            if there was one since ``zero_grad``; otherwise random ones.
        options: What is tried, and what counts as a bug. The divisor is the expected batch size.

    Returns:
        The findings, and how far each example moved the gradient.

    Raises:
        InputError: If the optimizer clips in the backward pass (ghost clipping), sums gradients of several processes,
            or fails on an ordinary step.

    Example:
        >>> model = torch.nn.Linear(20, 5)
        >>> optimizer = DPOptimizer(
        ...     torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.5, max_grad_norm=0.5,
        ...     expected_batch_size=8)
        >>> replay_optimizer(optimizer, options=ReplayOptions(rounds=1)).ok
        True
    """
    check_optimizer(optimizer)
    if isinstance(optimizer, DPOptimizerFastGradientClipping):
        raise InputError(
            f"{type(optimizer).__name__} clips in the backward pass and has no per-sample gradients to replay: use "
            'grad_sample_mode="hooks", or audit the training (docs/opacus.md)'
        )
    clip_norm, noise_multiplier = float(optimizer.max_grad_norm), float(optimizer.noise_multiplier)
    if examples is None:
        examples = min(_MOST_RANDOM, int(optimizer.expected_batch_size or _MOST_RANDOM))
        if hasattr(optimizer.params[0], "grad_sample") and optimizer.params[0].grad_sample is not None:
            # Left by a backward pass: one dict of gradients per example.
            rows = zip(*(gradient.detach().clone() for gradient in optimizer.grad_samples), strict=True)
            examples = [dict(zip(map(str, range(len(row))), row, strict=True)) for row in rows] or examples
    if isinstance(examples, int):
        like = Template({str(i): p.detach() for i, p in enumerate(optimizer.params)})
        examples = like.random(check_count("examples", examples), norm=2 * clip_norm, seed=options.seed)
    divisor = optimizer.expected_batch_size if optimizer.loss_reduction == "mean" else 1
    options = replace(options, divisor=divisor, who="example")
    release = StepRelease(optimizer)
    return replay(release, examples, clip_norm=clip_norm, noise_multiplier=noise_multiplier, options=options)


def check_optimizer(optimizer: DPOptimizer) -> None:
    """Raise `InputError` unless it is an optimizer of one process that clips."""
    check_kind("optimizer", optimizer, DPOptimizer, "the DPOptimizer that make_private returned")
    # By name, since not every version of Opacus has all of these classes.
    if any(base.__name__.startswith(("Distributed", "SimpleDistributed", "FSDP")) for base in type(optimizer).__mro__):
        raise InputError(
            f"{type(optimizer).__name__} sums gradients of several processes, each with a part of the noise: audit a "
            "training in one process"
        )


class StepRelease:
    """Steps of an optimizer as a function from per-sample gradients to the noisy gradient.

    Args:
        optimizer: The optimizer. It is copied, without the hook by which an accountant counts its steps.

    Example:
        >>> model = torch.nn.Linear(3, 1, bias=False)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = DPOptimizer(sgd, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=2)
        >>> StepRelease(optimizer)([{"0": torch.tensor([[3.0, 0.0, 4.0]])}])["0"].round(decimals=3)
        tensor([[0.3000, 0.0000, 0.4000]])
    """

    def __init__(self, optimizer: DPOptimizer) -> None:
        self._optimizer = _copied(optimizer, {})

    def __deepcopy__(self, memo: dict[int, Any]) -> StepRelease:
        """Return a release with a copy of the optimizer: replay copies it before each run."""
        twin = copy.copy(self)
        twin._optimizer = _copied(self._optimizer, memo)
        return twin

    def __call__(self, examples: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
        """Take a step on these examples, and return the noisy gradient of each parameter."""
        optimizer = self._optimizer
        optimizer.zero_grad()
        for index, p in enumerate(optimizer.params):
            # Copies of parameters lack the attributes that Opacus gave them.
            p.summed_grad = None
            rows = [torch.as_tensor(example[str(index)]).to(p) for example in examples]
            # A row of zeros, dropped again, gives the shape of a step without examples.
            p.grad_sample = torch.stack([torch.zeros_like(p), *rows])[1:].detach()
        before = float(optimizer.max_grad_norm)
        optimizer.step()
        released: dict[str, Any] = {str(i): p.grad.detach().clone() for i, p in enumerate(optimizer.params)}
        after = float(optimizer.max_grad_norm)
        if after != before:  # adaptive clipping: its noise is Gaussian in the logarithm
            released["log max_grad_norm"] = math.log(after) if after > 0 else -math.inf
        return released


def _copied(optimizer: DPOptimizer, memo: dict[int, Any]) -> Any:
    """Return a copy of an optimizer, its parameters and its state, without its step hook.

    ``copy.deepcopy`` fails on a DPOptimizer, since torch's optimizers copy only the state of the optimizer inside.
    """
    twin = object.__new__(type(optimizer))
    memo[id(optimizer)] = twin  # methods that were replaced on the object refer to it
    memo[id(optimizer.generator)] = optimizer.generator
    # Without the accountant's hook, and not in the middle of a logical step.
    changed: dict[str, Any] = {"step_hook": None, "_step_skip_queue": [], "_is_last_step_skipped": False}
    vars(twin).update(copy.deepcopy(vars(optimizer) | changed, memo))
    return twin
