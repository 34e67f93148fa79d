"""Audits inside an Opacus training: each step of a DPOptimizer is a round, and its noisy gradient is the release."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from opacus.optimizers import (
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)
from opacus.optimizers.ddp_perlayeroptimizer import DistributedPerLayerOptimizer

from coalmine.errors import InputError, check_count, check_kind
from coalmine.integrations import finite_part
from coalmine.methods.one_shot.canaries import PlantedCanaries
from coalmine.protocol import Audit, Kind, Vector, check_audits, checked_contribution
from coalmine.results.finding import Check, Finding
from coalmine.vectors import VectorKind, flat

_DISTRIBUTED = (
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DistributedPerLayerOptimizer,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)

# Canaries are clipped in batches of at most this many numbers (64 MB), where the optimizer clips them by layer.
_BATCH_NUMBERS = 1 << 24

# Attributes in which an optimizer with adaptive clipping counts clipped gradients.
_CLIP_COUNTS = ("sample_size", "unclipped_num")

# Norm, in clip norms, of gradients that the optimizer has to clip. A short one would not show a small tensor left out.
_TOO_LONG = 5.0
_CLIP_TOLERANCE = 0.05  # far beyond the rounding of half precision
_CLIP_TESTS_EVERY = 20  # steps, once each test has been made


class AuditedSteps:
    """Leads audits through the steps of an optimizer, by wrapping ``pre_step`` and ``step`` of this one object.

    An update is minus a gradient, so that an inserted update moves the model in its own direction. The sum of the
    canaries is added to the sum of the clipped gradients. The divisor is the optimizer's expected batch size, which
    does not count canaries. With the virtual steps of BatchMemoryManager, canaries are inserted once per logical step.
    With per-layer clipping the optimizer clips canaries like gradients of a batch.

    In the first steps, and now and then later, the optimizer also clips gradients that are too long, which are taken
    out again.

    Args:
        optimizer: The optimizer to wrap.
        audits: The audits, whose rounds are steps.
        steps: Number of steps of the training.
        stepped: Called after each step with the number of batches it used.
        population: Number of examples that batches are drawn from, if known.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        audits: Sequence[Audit],
        *,
        steps: int,
        stepped: Callable[[int], None] = lambda batches: None,
        population: int | None = None,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer, self.steps, self.taken = optimizer, check_count("steps", steps), 0
        self.params: list[Any] = list(optimizer.params)  # Opacus adds attributes to parameters, hence Any
        # An optimizer knows no names, so its tensors get numbers.
        shapes = {f"parameter {number}": tuple(p.shape) for number, p in enumerate(self.params)}
        by_layer = clips_by_layer(optimizer)
        clip_norms = dict(zip(shapes, map(float, optimizer.max_grad_norms), strict=True)) if by_layer else None
        self._sizes = [p.numel() for p in self.params]
        self.dim = sum(self._sizes)
        self.audits, self._stepped = tuple(audits), stepped
        self._check_audits()
        for audit in self.audits:
            audit.joins(clients=None, noise_multiplier=float(optimizer.noise_multiplier))
            # Canaries that are rescaled layer by layer must not lie in a single one.
            audit.describe(layers=shapes, stratify=not by_layer, clip_norms=clip_norms, even_noise=True)
        self._extra_steps, self._finished = 0, False
        self._population, self._examples = population, 0
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self._unclipped = False
        if self._ghost:
            self._note("ghost clipping happens in the backward pass, so clipping is not tested")
        self._wrap()

    # The optimizer's methods

    def _wrap(self) -> None:
        if "pre_step" in vars(self.optimizer):
            raise InputError("this optimizer is already under audit: pass all audits at once")
        pre_step, step, steps = self.optimizer.pre_step, self.optimizer.step, self

        # Bound methods, since learning-rate schedulers look for them.
        def planting_pre_step(optimizer: DPOptimizer, closure: Any = None) -> Any:
            return steps._pre_step(lambda: pre_step(closure))

        def observed_step(optimizer: DPOptimizer, closure: Any = None) -> Any:
            before = steps.taken
            loss = step(closure)
            if steps.taken > before:
                steps._show("model")
            return loss

        self.optimizer.pre_step = MethodType(planting_pre_step, self.optimizer)
        self.optimizer.step = MethodType(observed_step, self.optimizer)

    def _pre_step(self, original: Callable[[], Any]) -> Any:
        """Run what Opacus does between the backward pass and the change of the parameters, with canaries."""
        # A logical batch may come in several physical ones (BatchMemoryManager): all but the last skip the step.
        self._examples += _batch_size(self.params[0])
        if self._finished or self.optimizer._check_skip_next_step(pop_next=False):
            return original()
        if self.taken >= self.steps:
            self._extra_steps += 1
            return original()
        try:
            if not self._ghost:
                self._test_clipping()
            self._plant()
            done = original()
        except BaseException:
            # The step was not taken, and a training that catches the error may try it again.
            for audit in self.audits:
                audit.discard(self.taken)
            raise
        if done:
            # The size of the batch tells Poisson sampling from batches of equal size.
            if self._population is not None and 0 < self._examples <= self._population:
                for audit in self.audits:
                    audit.cohort(self.taken, self._examples, self._population)
            self._examples = 0
            self.taken += 1
            self._stepped(self.optimizer.accumulated_iterations)
            self._show("update")
        return done

    def _plant(self) -> None:
        clip_norm = float(self.optimizer.max_grad_norm)
        for audit in self.audits:
            planted = audit.plant(self.taken, clip_norm=clip_norm)
            if planted is None:
                continue
            if isinstance(planted, PlantedCanaries) and clips_by_layer(self.optimizer):
                # Each layer has a clip norm of its own: the optimizer clips canaries that are too long in all of them.
                at_once = max(1, _BATCH_NUMBERS // self.dim)
                for begin in range(0, len(planted.members), at_once):
                    rows = np.stack(list(planted.canaries.each(planted.members[begin : begin + at_once])))
                    self._clip(torch.from_numpy(rows * np.float32(-_TOO_LONG * planted.norm)))
                continue
            checked = checked_contribution(planted, dim=self.dim, clip_norm=clip_norm, round=self.taken)
            total = VectorKind(self.params[0].device, torch.float32).give(flat(checked.total))
            for p, piece in zip(self.params, total.split(self._sizes), strict=True):
                update = piece.view_as(p).to(p)  # minus a gradient
                p.summed_grad = -update if p.summed_grad is None else p.summed_grad.sub_(update)

    def _test_clipping(self) -> None:
        """Let the optimizer clip a gradient that is too long, measure what is left of it, and take it out again.

        Step 0 tests a gradient of all tensors, and the next steps one tensor each: a small tensor that is left out
        hardly shows in the norm of all. Later only some steps test one: clipping rarely changes during training.
        """
        tests = 1 + len(self.params)
        if self.taken >= tests and self.taken % _CLIP_TESTS_EVERY:
            return
        turn = self.taken if self.taken < tests else self.taken // _CLIP_TESTS_EVERY
        tested = turn % tests - 1  # -1: all tensors
        clip_norm = float(self.optimizer.max_grad_norm)
        size = self.dim if tested < 0 else self._sizes[tested]
        value = _TOO_LONG * clip_norm / math.sqrt(max(1, size))
        gradient = [torch.full((1, n), value if tested in (-1, i) else 0.0) for i, n in enumerate(self._sizes)]
        before = [p.summed_grad for p in self.params]
        try:
            for p in self.params:
                p.summed_grad = None
            self._clip(torch.cat(gradient, dim=1))
            left = math.hypot(*(float(p.summed_grad.float().norm()) for p in self.params)) / clip_norm
        finally:
            for p, earlier in zip(self.params, before, strict=True):
                p.summed_grad = earlier
        findings = []
        if left > 1 + _CLIP_TOLERANCE and not self._unclipped:
            self._unclipped = True
            where = "" if tested < 0 else f" in parameter {tested}"
            sentence = (
                f"The optimizer does not clip to max_grad_norm = {clip_norm:g}: a gradient of {_TOO_LONG:g} clip "
                f"norms{where} still had {left:.3g} in step {self.taken}."
            )
            findings.append(Finding(check=Check.CLIPPING, sentence=sentence))
        for audit in self.audits:
            audit.add_findings(Check.CLIPPING, findings)

    def _clip(self, gradients: torch.Tensor) -> None:
        """Let the optimizer clip gradients (count, dim) and add them up, as it does with those of a batch."""
        grad_samples = [p.grad_sample for p in self.params]
        # Canaries must not influence an adaptive clip norm, which follows the number of clipped gradients.
        counts = {name: getattr(self.optimizer, name) for name in _CLIP_COUNTS if hasattr(self.optimizer, name)}
        try:
            for p, piece in zip(self.params, gradients.split(self._sizes, 1), strict=True):
                p.grad_sample = piece.reshape(len(gradients), *p.shape).to(p)
            self.optimizer.clip_and_accumulate()
        finally:
            for p, before in zip(self.params, grad_samples, strict=True):
                p.grad_sample = before
            for name, before in counts.items():
                setattr(self.optimizer, name, before)

    # What the audits observe

    def _show(self, kind: Kind) -> None:
        """Show the audits what the last step released: its noisy mean gradient, or the model after it."""
        round = self.taken - 1
        seeing = [a for a in self.audits if any(v.kind == kind and v.shows(round, self.steps) for v in a.views)]
        if not seeing:
            return
        if kind == "model":
            vector, divisor = flattened(self.params), None
        else:
            # As in Opacus's scale_grad: the expected size of the batch, not the actual one, which would leak it.
            batch = self.optimizer.expected_batch_size * self.optimizer.accumulated_iterations
            divisor = float(batch) if self.optimizer.loss_reduction == "mean" else 1.0
            # An update moves the model against the gradient.
            vector = -flattened([p.grad for p in self.params])
        release: Any
        release, lost = finite_part(vector)
        if lost:
            self._note(f"step {round}: {lost} of {len(vector)} numbers are not finite and count as 0")
        for audit in seeing:
            if kind == "update" and not release.any():
                audit.skip(round)
            audit.observe(round, **{kind: release}, divisor=divisor, rounding=math.inf if lost else 0.0)

    def finish(self) -> None:
        """End the training. Steps that were announced and not taken count as aborted rounds."""
        if self._finished:
            return
        if self.taken == 0:
            raise InputError("the audited optimizer took no step: train with the optimizer that was given to the audit")
        if self.taken < self.steps:
            self._note(f"only {self.taken} of the {self.steps} announced steps were taken")
        if self._extra_steps:
            self._note(f"the training took {self._extra_steps} steps more than the {self.steps} that were announced")
        self._finished = True
        for round in range(self.taken, self.steps):
            for audit in self.audits:
                audit.skip(round)
                for view in audit.views:
                    if view.shows(round, self.steps):
                        release: Any = flattened(self.params)
                        if view.kind == "update":
                            release = np.zeros_like(release)
                        audit.observe(round, **{view.kind: release}, divisor=1.0)

    def _note(self, sentence: str) -> None:
        for audit in self.audits:
            audit.note(sentence)

    # Checkpoints

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return arrays to keep with a checkpoint of the model."""
        states = {f"{i}.{name}": value for i, audit in enumerate(self.audits) for name, value in audit.state().items()}
        return states | {"taken": np.array(self.taken)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from a checkpoint."""
        self.taken = int(state["taken"])
        for i, audit in enumerate(self.audits):
            prefix = f"{i}."
            audit.restore({name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)})

    def _check_audits(self) -> None:
        check_audits(self.audits, least=1)
        for audit in self.audits:
            rounds, dim = getattr(audit, "rounds", self.steps), getattr(audit, "dim", self.dim)
            if rounds != self.steps:
                raise InputError(f"an audit was made for {rounds} rounds, but the training has {self.steps} steps")
            if dim != self.dim:
                raise InputError(f"an audit was made for {dim} parameters, but the optimizer trains {self.dim}")
            if audit.frozen_rounds(0):
                raise InputError('Opacus cannot repeat a step on a frozen model: use Canife(mode="running")')
            if clips_by_layer(self.optimizer) and audit.family not in (None, "gaussian"):
                # Rescaling layer by layer keeps independent directions independent, but not orthogonal ones orthogonal.
                raise InputError(
                    f'per-layer clipping needs canaries that may be rescaled: use OneShot(family="gaussian"), got the '
                    f"family {audit.family!r}"
                )


def _batch_size(parameter: Any) -> int:
    """Return the number of examples that have a gradient; 0 if that is unknown, as with ghost clipping."""
    gradients = getattr(parameter, "grad_sample", None)
    parts = gradients if isinstance(gradients, list) else [gradients]
    return sum(len(part) for part in parts if part is not None)


def clips_by_layer(optimizer: DPOptimizer) -> bool:
    """Return whether each parameter has a clip norm of its own."""
    return isinstance(optimizer, DPPerLayerOptimizer)


def check_optimizer(optimizer: DPOptimizer) -> None:
    """Raise `InputError` unless it is an optimizer of one process that clips."""
    check_kind("optimizer", optimizer, DPOptimizer, "the DPOptimizer that make_private returned")
    if isinstance(optimizer, _DISTRIBUTED):
        raise InputError(
            f"{type(optimizer).__name__} sums gradients of several processes, each with a part of the noise: audit a "
            "training in one process"
        )
    if not math.isfinite(float(optimizer.max_grad_norm)):
        raise InputError(f"max_grad_norm must be finite, got {optimizer.max_grad_norm}: nothing would be clipped")


def flattened(tensors: Sequence[Any]) -> Vector:
    """Return tensors as one float32 vector, always a copy."""
    flat = torch.cat([value.detach().reshape(-1).float().cpu() for value in tensors])
    return np.asarray(flat.numpy())
