"""`audit_opacus` puts an Opacus training under audit; `OpacusAudit` leads the audits through its steps.

Each step of a DPOptimizer is a round, and its noisy gradient is the release.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from types import MethodType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer
from torch import nn
from torch.utils.data import DataLoader

from coalmine.claims import Sampling
from coalmine.errors import InputError, check_count, check_kind
from coalmine.integrations import finite_part
from coalmine.integrations.opacus.claim import Loading, claims_of, note_on_claim
from coalmine.methods.one_shot.audit import OneShot
from coalmine.methods.one_shot.canaries import PlantedCanaries
from coalmine.methods.samples.audit import Losses, SampleCanaries, Samples
from coalmine.protocol import Audit, Kind, Vector, check_audits, checked_contribution
from coalmine.results.result import Result
from coalmine.results.verdict import EXAMPLE, USER, Check, Finding
from coalmine.vectors import VectorKind, flat

# Steps with canaries. The claim without amplification grows with them, and the power of its test falls once the claim
# is so large that canaries are noise to each other; 25 steps with noise multiplier 1 claim ε = 33.
_STEPS = 25

# Canaries are clipped in batches of at most this many numbers (64 MB), where the optimizer clips them by layer.
_BATCH_NUMBERS = 1 << 24

# Attributes in which an optimizer with adaptive clipping counts clipped gradients.
_CLIP_COUNTS = ("sample_size", "unclipped_num")

# Norm, in clip norms, of gradients that the optimizer has to clip. A short one would not show a small tensor left out.
_TOO_LONG = 5.0
_CLIP_TOLERANCE = 0.05  # far beyond the rounding of half precision
_CLIP_TESTS_EVERY = 20  # steps, once each test has been made


class OpacusAudit:
    """Audits of one Opacus training. Train as usual, then call `results`.

    `audit_opacus` makes the usual audits. Use this class for others, such as ``Canife(mode="running", ...)``.

    An update is minus a gradient, so that an inserted update moves the model in its own direction. The sum of the
    canaries is added to the sum of the clipped gradients. The divisor is the optimizer's expected batch size, which
    does not count canaries. With the virtual steps of BatchMemoryManager, canaries are inserted once per logical step.
    With per-layer clipping the optimizer clips canaries like gradients of a batch.

    In the first steps, and now and then later, the optimizer also clips gradients that are too long, which are taken
    out again.

    Args:
        engine: The privacy engine.
        optimizer: The optimizer that ``make_private`` returned. Its ``step`` and ``pre_step`` are wrapped.
        loader: The loader that ``make_private`` returned and that the training iterates over.
        audits: Audits that insert updates or look for samples. Steps are their rounds.
        steps: Number of optimizer steps of the training.

    Raises:
        InputError: If the audits do not fit the optimizer, or the optimizer cannot be audited (several processes).
    """

    def __init__(
        self,
        engine: PrivacyEngine,
        optimizer: DPOptimizer,
        loader: DataLoader[Any],
        *,
        audits: Sequence[Audit],
        steps: int,
    ) -> None:
        check_optimizer(optimizer)
        self.engine, self.optimizer, self.loading = engine, optimizer, Loading.of(loader)
        self.audits, self.steps, self.taken = tuple(audits), check_count("steps", steps), 0
        self.params: list[Any] = list(optimizer.params)  # Opacus adds attributes to parameters, hence Any
        self._sizes = [p.numel() for p in self.params]
        self.dim = sum(self._sizes)
        self._by_layer = isinstance(optimizer, DPPerLayerOptimizer)
        check_audits(self.audits, least=1)
        for audit in self.audits:
            made_for = getattr(audit, "rounds", steps), getattr(audit, "dim", self.dim)
            if made_for != (steps, self.dim):
                raise InputError(
                    f"an audit was made for {made_for[0]} rounds and {made_for[1]} parameters, but the training has "
                    f"{steps} steps and trains {self.dim}"
                )
            if audit.frozen_rounds(0):
                raise InputError('Opacus cannot repeat a step on a frozen model: use Canife(mode="running")')
            # Rescaling layer by layer keeps independent directions independent, but not orthogonal ones orthogonal.
            if self._by_layer and audit.family not in (None, "gaussian"):
                raise InputError(f'per-layer clipping needs OneShot(family="gaussian"), got {audit.family!r}')
        # An optimizer knows no names, so its tensors get numbers.
        shapes = {f"parameter {number}": tuple(p.shape) for number, p in enumerate(self.params)}
        clip_norms = None
        if self._by_layer:
            clip_norms = dict(zip(shapes, map(float, optimizer.max_grad_norms), strict=True))
        for audit in self.audits:
            audit.joins(clients=None, noise_multiplier=float(optimizer.noise_multiplier))
            # Canaries that are rescaled layer by layer must not lie in a single one.
            audit.describe(layers=shapes, stratify=not self._by_layer, clip_norms=clip_norms, even_noise=True)
            audit.members_participation = self.loading.participation(steps)
        self._finished, self._examples, self._unclipped = False, 0, False
        self._population = len(loader.dataset)  # type: ignore[arg-type]
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        if self._ghost:
            self._note("ghost clipping happens in the backward pass, so clipping is not tested")
        self._wrap()

    def results(
        self, *, delta: float, confidence: float = 0.95, metrics: Mapping[str, float] | None = None
    ) -> list[Result]:
        """Return ε of one example for each adversary after the training, compared with the claim that applies.

        Canaries that are sampled like examples are compared with the ε that Opacus reports; others, such as canaries in
        every step, with coalmine's ε for the same noise. ``details["note"]`` says so in a sentence, and the metrics
        ``opacus_epsilon`` and ``own_epsilon`` hold Opacus's ε and coalmine's ε of an example.

        Args:
            delta: The δ to state ε at.
            confidence: Confidence of the bounds.
            metrics: Numbers to keep with ε, such as the model's accuracy.

        Raises:
            InputError: If no step was taken.
        """
        if self.taken == 0:
            raise InputError("the audited optimizer took no step: train with the optimizer that was given to the audit")
        if self.taken < self.steps and not self._finished:
            self._note(f"only {self.taken} of the {self.steps} announced steps were taken")
            # Audits need every announced round before anything is computed: those not taken count as aborted.
            model = flattened(self.params)
            releases: dict[str, Any] = {"model": model, "update": np.zeros_like(model)}
            for round in range(self.taken, self.steps):
                for audit in self.audits:
                    audit.skip(round)
                    for view in audit.views:
                        if view.shows(round, self.steps):
                            audit.observe(round, **{view.kind: releases[view.kind]}, divisor=1.0)
        self._finished = True
        claim, own, warnings = claims_of(self.engine, self.loading, delta=delta)
        if claim.rounds != self.taken:
            warnings.append(f"the accountant recorded {claim.rounds} steps, of which {self.taken} were audited")
        numbers = {"opacus_epsilon": claim.epsilon, "own_epsilon": own.epsilon, **(metrics or {})}
        engine = {"engine": f"opacus {metadata.version('opacus')}", "steps": self.taken}
        results = []
        for audit in self.audits:
            result = audit.result(claim=claim, confidence=confidence, metrics=numbers)
            # A canary is an example here, and its rounds are steps.
            unit = EXAMPLE if result.unit == USER else result.unit
            details, config = {**result.details, **note_on_claim(claim, result.claim)}, {**result.config, **engine}
            results.append(
                replace(result, unit=unit, warnings=[*result.warnings, *warnings], config=config, details=details)
            )
        return results

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return arrays to keep with a checkpoint of model, optimizer and engine."""
        # Passes over the loader decide what is proved for an example, so they belong to the checkpoint.
        passes = np.array([self.loading.accumulated, *sorted(self.loading.trained)], dtype=np.int64)
        state = {"taken": np.array(self.taken), "passes": passes}
        for i, audit in enumerate(self.audits):
            state |= {f"{i}.{name}": value for name, value in audit.state().items()}
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from a checkpoint, with the same settings."""
        self.taken = int(state["taken"])
        for i, audit in enumerate(self.audits):
            prefix = f"{i}."
            audit.restore({name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)})
        accumulated, *trained = state["passes"].tolist()
        # The new loader counts its passes from 1 again, so earlier passes get negative numbers to stay distinct.
        # 0, which stands for another loader, stays 0.
        last = max(trained, default=0)
        earlier = {number and number - max(last, 0) - 1 for number in trained}
        self.loading.accumulated, self.loading.trained = bool(accumulated), earlier

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
        gradients = getattr(self.params[0], "grad_sample", None)
        for part in gradients if isinstance(gradients, list) else [gradients]:
            if part is not None:  # as with ghost clipping, where the number of examples is unknown
                self._examples += len(part)
        over = self._finished or self.taken >= self.steps
        if over or self.optimizer._check_skip_next_step(pop_next=False):
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
            if 0 < self._examples <= self._population:
                for audit in self.audits:
                    audit.cohort(self.taken, self._examples, self._population)
            self._examples = 0
            self.taken += 1
            self.loading.trained.add(0 if self.loading.counter is None else self.loading.counter.passes)
            self.loading.accumulated |= self.optimizer.accumulated_iterations > 1
            self._show("update")
        return done

    def _plant(self) -> None:
        clip_norm = float(self.optimizer.max_grad_norm)
        for audit in self.audits:
            planted = audit.plant(self.taken, clip_norm=clip_norm)
            if planted is None:
                continue
            if isinstance(planted, PlantedCanaries) and self._by_layer:
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

    def _note(self, sentence: str) -> None:
        for audit in self.audits:
            audit.note(sentence)


def check_optimizer(optimizer: DPOptimizer) -> None:
    """Raise `InputError` unless it is an optimizer of one process that clips."""
    check_kind("optimizer", optimizer, DPOptimizer, "the DPOptimizer that make_private returned")
    # By name, since not every version of Opacus has all of these classes.
    if any(base.__name__.startswith(("Distributed", "SimpleDistributed", "FSDP")) for base in type(optimizer).__mro__):
        raise InputError(
            f"{type(optimizer).__name__} sums gradients of several processes, each with a part of the noise: audit a "
            "training in one process"
        )


def flattened(tensors: Sequence[Any]) -> Vector:
    """Return tensors as one float32 vector, always a copy."""
    flat = torch.cat([value.detach().reshape(-1).float().cpu() for value in tensors])
    return np.asarray(flat.numpy())


def audit_opacus(
    engine: PrivacyEngine,
    optimizer: DPOptimizer,
    loader: DataLoader[Any],
    *,
    steps: int,
    canaries: int | None = 200,
    views: Sequence[str] = ("updates", "final-change"),
    participation: str | Sampling | None = f"last:{_STEPS}",
    samples: SampleCanaries | None = None,
    sample_views: Sequence[str] = ("final-change", "updates"),
    model: nn.Module | None = None,
    losses: Losses | None = None,
    seed: int = 0,
) -> OpacusAudit:
    """Put an Opacus training under audit. Call it with what ``make_private`` returned, before the first step.

    Random gradients are inserted as extra examples, and as many are held out; see `OneShot`. Bounds on ε are valid
    without retraining. The training itself draws the same batches and the same noise as without the audit.

    Args:
        engine: The privacy engine.
        optimizer: The optimizer that ``make_private`` returned.
        loader: The loader that ``make_private`` returned.
        steps: Number of optimizer steps of the training, usually ``epochs * len(loader)``.
        canaries: Expected number of inserted gradients, or None for samples only.
        views: What adversaries see, as in `OneShot`; one result for each.
        participation: When gradients take part. In each of the last 25 steps by default (in all, if there are no
            more): the worst case, which detects bugs best, and whose claim is the training's without amplification by
            sampling. None draws them like the loader's examples. Their claim is Opacus's own, but secret sampling
            hides them so well that little is detected.
        samples: Canaries that are in the data, inserted by `SampleCanaries.insert_into`.
        sample_views: Views of `Samples`; one result for each.
        model: The module, before or after ``make_private``. Needed for samples.
        losses: Function from outputs and targets to one loss per example, for samples. Cross-entropy by default.
        seed: Seed for the gradients and for which of them are inserted.

    Returns:
        The audit; call its `results` after the training.

    Raises:
        InputError: If there is nothing to look for, or the settings do not fit the optimizer.

    Example:
        >>> import torch, warnings
        >>> from torch.utils.data import TensorDataset
        >>> warnings.simplefilter("ignore")
        >>> data = TensorDataset(torch.rand(40, 8), torch.arange(40) % 2)
        >>> model, engine = nn.Linear(8, 2), PrivacyEngine()
        >>> model, optimizer, loader = engine.make_private(
        ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...     data_loader=DataLoader(data, batch_size=20), noise_multiplier=2.0, max_grad_norm=1.0,
        ... )
        >>> audit = audit_opacus(engine, optimizer, loader, steps=2, canaries=8, views=["updates"])
        >>> for inputs, targets in loader:
        ...     optimizer.zero_grad()
        ...     nn.functional.cross_entropy(model(inputs), targets).backward()
        ...     optimizer.step()
        >>> [result] = audit.results(delta=1e-5)
        >>> result.unit.name
        'one example, whole training'
    """
    loading, audits = Loading.of(loader), list[Audit]()
    # "Like examples" can only be told from the loader.
    if participation is None:
        participation = loading.participation(steps)
    elif participation == f"last:{_STEPS}" and steps <= _STEPS:
        participation = "every-round"
    if canaries is not None:
        # A view of the model's change needs the model before the first step; the others ignore it.
        before = flattened(optimizer.params)
        initial = dict.fromkeys(views, before) | {"final": None, "updates": None}
        planting = OneShot(
            len(before),
            rounds=steps,
            canaries=canaries,
            view=views[0],
            participation=participation,
            # Clipping by layer rescales canaries, which keeps Gaussian ones independent but no others orthogonal.
            family="gaussian" if isinstance(optimizer, DPPerLayerOptimizer) else None,
            initial=initial[views[0]],
            seed=seed,
        )
        # One audit per view of the same random gradients; the first inserts them.
        audits += [planting, *(planting.seen_by(view, initial=initial[view]) for view in views[1:])]
    if samples is not None:
        if model is None:
            raise InputError("samples need model=, the module that make_private returned, to compute their losses")
        # Where batches are not drawn at random, each example is in one of them.
        rate = loading.rate or 1 / loading.batches
        # The losses of samples are computed beside the training, where Opacus's hooks would collect gradients.
        module = _plain_copy(model, optimizer)
        for view in sample_views:
            audits.append(Samples(canaries=samples, model=module, rounds=steps, view=view, rate=rate, losses=losses))
    return OpacusAudit(engine, optimizer, loader, audits=audits, steps=steps)


def _plain_copy(model: nn.Module, optimizer: DPOptimizer) -> nn.Module:
    """Return a copy of the module inside Opacus's, on the CPU and without its hooks."""
    module = getattr(model, "_module", model)
    trained = [value for value in module.parameters() if value.requires_grad]
    if list(map(id, trained)) != list(map(id, optimizer.params)):
        raise InputError("model= must be the module whose parameters the optimizer trains, in the same order")
    plain: nn.Module = copy.deepcopy(module).cpu()
    for layer in plain.modules():
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks):
            hooks.clear()
        vars(layer).pop("autograd_grad_sample_hooks", None)
    return plain
