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
from coalmine.errors import InputError, check_count
from coalmine.integrations.opacus.audit import check_optimizer

_MOST_RANDOM = 8
_DEFAULT = ReplayOptions()


def replay_optimizer(
    optimizer: DPOptimizer,
    examples: int | Sequence[Mapping[str, Tensor]] | None = None,
    *,
    clip_norm: float | None = None,
    noise_multiplier: float | None = None,
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
        clip_norm: The claimed clip norm; by default the optimizer's.
        noise_multiplier: The claimed noise multiplier; by default the optimizer's.
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
    if clip_norm is None:
        clip_norm = float(optimizer.max_grad_norm)
    if noise_multiplier is None:
        noise_multiplier = float(optimizer.noise_multiplier)
    if examples is None:
        examples = min(_MOST_RANDOM, int(optimizer.expected_batch_size or _MOST_RANDOM))
        if all(getattr(p, "grad_sample", None) is not None for p in optimizer.params):  # left by a backward pass
            rows = zip(*(gradient.detach().clone() for gradient in optimizer.grad_samples), strict=True)
            examples = [{str(i): part for i, part in enumerate(row)} for row in rows] or examples
    if isinstance(examples, int):
        like = Template({str(i): p.detach() for i, p in enumerate(optimizer.params)})
        examples = like.random(
            check_count("examples", examples), norm=2 * float(optimizer.max_grad_norm), seed=options.seed
        )
    divisor = optimizer.expected_batch_size if optimizer.loss_reduction == "mean" else 1
    options = replace(options, divisor=divisor, who="example")
    release = StepRelease(optimizer)
    return replay(release, examples, clip_norm=clip_norm, noise_multiplier=noise_multiplier, options=options)


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
            p.grad_sample = torch.stack(rows) if rows else p.new_zeros((0, *p.shape))
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
    if optimizer.generator is not None:
        memo[id(optimizer.generator)] = optimizer.generator
    state = {name: value for name, value in vars(optimizer).items() if name != "step_hook"}
    vars(twin).update({name: copy.deepcopy(value, memo) for name, value in state.items()})
    twin.step_hook = None
    twin._step_skip_queue, twin._is_last_step_skipped = [], False
    return twin
