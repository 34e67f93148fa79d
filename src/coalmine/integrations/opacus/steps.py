"""Audits inside a training with Opacus: each step of a DPOptimizer is a round, its noisy gradient the release."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from coalmine.errors import InputError, check_count, check_kind, check_positive
from coalmine.methods.canife.audit import Canife
from coalmine.methods.one_shot.audit import OneShot
from coalmine.methods.one_shot.planted import PlantedCanaries
from coalmine.protocol import Audit, Contribution, Release, Vector, checked_contribution

_DISTRIBUTED = (
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DistributedPerLayerOptimizer,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)

# Numbers of canaries' gradients that are clipped together: 64 MB.
_AT_ONCE = 1 << 24

# What an optimizer with adaptive clipping counts.
_COUNTS = ("sample_size", "unclipped_num")

# In clip norms, where the optimizer clips what it is given: whoever forgets to clip is found out.
_LENGTH = 5.0


class Steps:
    """Leads ``audits`` through ``steps`` steps of ``optimizer``, whose methods it takes the place of on this object.

    An update is minus a gradient, so that a planted update moves the model as its owner would. Canaries are handed to
    the optimizer's own clipping as one more physical batch, ``length`` clip norms long; ``length=1`` adds their sum at
    once, which is fast and leaves clipping untested. The divisor is Opacus's own, which knows nothing of canaries.
    With the virtual steps of BatchMemoryManager canaries come once in a logical step. ``stepped`` is called after each
    step with the number of batches that it had.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        audits: Sequence[Audit],
        *,
        steps: int,
        length: float | None = None,
        stepped: Callable[[int], None] = lambda batches: None,
    ) -> None:
        _check_flavor(optimizer)
        ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        if ghost and length not in (None, 1):
            raise InputError(
                f"with ghost clipping gradients are clipped in the backward pass, where canaries cannot come: length "
                f"must be 1, got {length}"
            )
        self.length = check_positive("length", (1.0 if ghost else _LENGTH) if length is None else length)
        self.optimizer, self.steps, self.taken = optimizer, check_count("steps", steps), 0
        self.params: list[Any] = list(optimizer.params)  # parameters, to which Opacus adds attributes
        self._scale = _layer_scale(optimizer)
        self.audits, self._stepped = tuple(audits), stepped
        self._check_audits()
        self._beyond, self._finished = 0, False
        self._made: dict[int, npt.NDArray[np.float32]] = {}
        if ghost:
            self._note("ghost clipping clips in the backward pass, so canaries do not put clipping to the test")
        self._hook()

    @property
    def dim(self) -> int:
        """How many parameters are trained."""
        return dim_of(self.optimizer)

    # The optimizer's methods

    def _hook(self) -> None:
        if "pre_step" in vars(self.optimizer):
            raise InputError("this optimizer is under audit already: give all audits at once")
        pre_step, step, steps = self.optimizer.pre_step, self.optimizer.step, self

        # Bound methods, as schedulers of learning rates expect them.
        def planted_pre_step(optimizer: DPOptimizer, closure: Any = None) -> Any:
            return steps._pre_step(lambda: pre_step(closure))

        def seen_step(optimizer: DPOptimizer, closure: Any = None) -> Any:
            before = steps.taken
            found = step(closure)
            if steps.taken > before:
                steps._show("model")
            return found

        self.optimizer.pre_step = MethodType(planted_pre_step, self.optimizer)
        self.optimizer.step = MethodType(seen_step, self.optimizer)

    def _pre_step(self, original: Any) -> Any:
        """A physical step: what Opacus does between the backward pass and the parameters' move."""
        if self._finished or self.optimizer._check_skip_next_step(pop_next=False):
            return original()
        if self.taken >= self.steps:
            self._beyond += 1
            return original()
        try:
            self._plant()
            done = original()
        except BaseException:
            for audit in self.audits:
                audit.discard(self.taken)
            raise
        if done:
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
            rows = self.length != 1 or self._scale is not None
            if rows and isinstance(audit, OneShot) and isinstance(planted, PlantedCanaries):
                self._clip(audit, planted)
            else:
                self._add(checked_contribution(planted, dim=self.dim, clip_norm=clip_norm, round=self.taken))

    def _clip(self, audit: OneShot, planted: PlantedCanaries) -> None:
        """Have the optimizer clip the canaries and add them up, as it does with a batch's gradients."""
        kept = [p.grad_sample for p in self.params]
        # Canaries are not to steer a clip norm that follows how many gradients are clipped.
        counts = {name: getattr(self.optimizer, name) for name in _COUNTS if hasattr(self.optimizer, name)}
        sizes, factor = [p.numel() for p in self.params], np.float32(-self.length * planted.norm)
        try:
            for rows in self._rows(audit, planted):
                gradients = torch.from_numpy(rows * (factor if self._scale is None else factor * self._scale))
                for p, piece in zip(self.params, gradients.split(sizes, 1), strict=True):
                    p.grad_sample = piece.reshape(len(rows), *p.shape).to(p)
                self.optimizer.clip_and_accumulate()
        finally:
            for p, before in zip(self.params, kept, strict=True):
                p.grad_sample = before
            for name, before in counts.items():
                setattr(self.optimizer, name, before)

    def _rows(self, audit: OneShot, planted: PlantedCanaries) -> Iterator[npt.NDArray[np.float32]]:
        """Matrices of this step's canaries, of length 1. Where all of them fit into 64 MB they are made once."""
        assert planted.canaries is not None
        everyone = np.flatnonzero(audit.members)
        if len(everyone) * self.dim > _AT_ONCE:
            yield from _batches(planted.each(1.0), max(1, _AT_ONCE // self.dim))
        elif planted.members:
            if id(audit) not in self._made:
                self._made[id(audit)] = np.stack(list(planted.canaries.each(everyone.tolist())))
            yield self._made[id(audit)][np.searchsorted(everyone, planted.members)]

    def _add(self, planted: Contribution) -> None:
        """Add updates that are clipped already."""
        pieces = torch.from_numpy(planted.total).split([p.numel() for p in self.params])
        for p, piece in zip(self.params, pieces, strict=True):
            gradient = -piece.reshape(p.shape).to(p)
            if p.summed_grad is None:
                p.summed_grad = gradient
            else:
                p.summed_grad.add_(gradient)

    # What is seen

    def _show(self, kind: str) -> None:
        """Show the audits what the last step released: its noisy mean gradient, or the model after it."""
        round = self.taken - 1
        seeing = [a for a in self.audits if any(v.kind == kind and v.shows(round, self.steps) for v in a.views)]
        if not seeing:
            return
        vector, divisor = (self._update(), self._divisor()) if kind == "update" else (self.model(), None)
        lost = int(np.count_nonzero(~np.isfinite(vector)))
        if lost:
            # What is done to a release after it is out is no more than an adversary may do: bounds hold.
            self._note(f"step {round}: {lost} of {len(vector)} numbers are not finite, and count as 0")
            vector = np.where(np.isfinite(vector), vector, np.float32(0))
        for audit in seeing:
            if kind == "update" and not vector.any():
                audit.skip(round)
                if isinstance(audit, Canife):  # which has no score of a round that came to nothing
                    continue
            self._observe(audit, kind, round, vector, divisor)

    def _observe(self, audit: Audit, kind: str, round: int, vector: Vector, divisor: float | None) -> None:
        own = vector * self._scale if self._scale is not None and isinstance(audit, OneShot) else vector
        audit.observe(
            Release(round=round, kind="update" if kind == "update" else "model", vector=np.array(own), divisor=divisor)
        )

    def _update(self) -> Vector:
        return -_flat([p.grad for p in self.params])

    def model(self) -> Vector:
        """The parameters as they are, in the optimizer's order."""
        return _flat(self.params)

    def _divisor(self) -> float:
        if self.optimizer.loss_reduction != "mean":
            return 1.0
        return float(self.optimizer.expected_batch_size * self.optimizer.accumulated_iterations)

    def finish(self) -> None:
        """The training is over: steps that were announced and not taken count as rounds without anybody."""
        if self._finished:
            return
        if self.taken == 0:
            raise InputError("no step of the optimizer was seen: train with the optimizer that is under audit")
        if self.taken < self.steps:
            self._note(f"{self.taken} of the {self.steps} steps that were announced were taken")
        if self._beyond:
            self._note(f"the training went on for {self._beyond} steps beyond the {self.steps} that were announced")
        self._finished = True
        for round in range(self.taken, self.steps):
            for audit in self.audits:
                audit.skip(round)
                for view in audit.views:
                    if view.shows(round, self.steps) and not isinstance(audit, Canife):
                        vector = self.model() if view.kind == "model" else np.zeros(self.dim, dtype=np.float32)
                        self._observe(audit, view.kind, round, vector, 1.0)

    def _note(self, sentence: str) -> None:
        for audit in self.audits:
            audit.note(sentence)

    # Checkpoints

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """What to keep beside the model: arrays by name."""
        found = {f"{i}.{name}": value for i, audit in enumerate(self.audits) for name, value in audit.state().items()}
        return found | {"taken": np.array(self.taken)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to what ``state`` gave."""
        self.taken = int(state["taken"])
        for i, audit in enumerate(self.audits):
            start = f"{i}."
            audit.restore({name.removeprefix(start): v for name, v in state.items() if name.startswith(start)})

    def _check_audits(self) -> None:
        for audit in self.audits:
            check_kind("an audit", audit, Audit, "such as OneShot(...) or Samples(...)")
            rounds, dim = getattr(audit, "rounds", self.steps), getattr(audit, "dim", self.dim)
            if rounds != self.steps:
                raise InputError(f"an audit was made for {rounds} rounds, and there are {self.steps} steps")
            if dim != self.dim:
                raise InputError(f"an audit is for {dim} parameters, the optimizer trains {self.dim}")
            if audit.frozen_rounds(0):
                raise InputError("Opacus holds no steps on a frozen model: take mode running")
            if self._scale is not None and isinstance(audit, Canife):
                raise InputError("CANIFE's canaries are not made for per-layer clipping: take OneShot")
            if self._scale is not None and isinstance(audit, OneShot) and audit.family != "gaussian":
                raise InputError(
                    "per-layer clipping bends canaries, which leaves only independent ones as they should be: take "
                    f"family=gaussian, got {audit.family}"
                )
        planting = [audit.plants_as for audit in self.audits if audit.plants_as is not None]
        if len(set(planting)) < len(planting):
            raise InputError(f"two audits plant the same ({planting[0]}): give them different seeds")


def dim_of(optimizer: DPOptimizer) -> int:
    """How many parameters an optimizer trains."""
    return sum(p.numel() for p in optimizer.params)


def seen_model(optimizer: DPOptimizer) -> Vector:
    """The parameters as a one-shot audit sees them."""
    scale, model = _layer_scale(optimizer), _flat(optimizer.params)
    return model if scale is None else model * scale


def clips_by_layer(optimizer: DPOptimizer) -> bool:
    """Whether each parameter has a clip norm of its own."""
    return isinstance(optimizer, DPPerLayerOptimizer)


def _layer_scale(optimizer: DPOptimizer) -> Vector | None:
    """(dim,): how long a canary's part in each parameter should be, relative to an even one; None where it is even.

    With clip norms Cₗ, which together are C, parameter l of dₗ numbers takes the share Cₗ of a canary's length, where
    a random direction has C √(dₗ/d) there. A release that is scaled alike is looked at along what was planted.
    """
    if not clips_by_layer(optimizer):
        return None
    sizes = np.array([p.numel() for p in optimizer.params])
    bounds = np.array([float(bound) for bound in optimizer.max_grad_norms])
    shares = bounds / float(optimizer.max_grad_norm) * np.sqrt(sizes.sum() / sizes)
    return np.repeat(shares, sizes).astype(np.float32)


def _check_flavor(optimizer: DPOptimizer) -> None:
    check_kind("optimizer", optimizer, DPOptimizer, "the DPOptimizer that make_private gives")
    if isinstance(optimizer, _DISTRIBUTED):
        raise InputError(
            f"{type(optimizer).__name__} adds up gradients of several processes, each with its part of the noise: "
            "canaries are planted in trainings of one process"
        )
    if not math.isfinite(float(optimizer.max_grad_norm)):
        raise InputError(f"max_grad_norm must be finite, got {optimizer.max_grad_norm}: nothing is clipped")


def _flat(tensors: Sequence[Any]) -> Vector:
    found = torch.cat([value.detach().reshape(-1).float().cpu() for value in tensors])
    return np.asarray(found.numpy())


def _batches(vectors: Iterator[Vector], size: int) -> Iterator[npt.NDArray[np.float32]]:
    """Matrices of so many vectors."""
    some: list[Vector] = []
    for vector in vectors:
        some.append(vector)
        if len(some) == size:
            yield np.stack(some)
            some = []
    if some:
        yield np.stack(some)
