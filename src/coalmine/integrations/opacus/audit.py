"""`audit_opacus` puts an Opacus training under audit; `OpacusAudit` leads the audits through its steps.

Each step of a DPOptimizer is a round, and its noisy gradient is the release. What the training claims for one example,
by Opacus's accountant and by coalmine's, is at the end. docs/opacus.md lists where the two differ.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from types import MethodType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from coalmine.checks.findings import Moved, Replay
from coalmine.claims import Claim, Poisson, Sampling
from coalmine.claims.sampling import AtMost, Epochs
from coalmine.errors import CanaryWarning, InputError, check_count, check_kind
from coalmine.integrations import finite_part
from coalmine.integrations.opacus.replay import check_optimizer
from coalmine.methods.one_shot.audit import OneShot
from coalmine.methods.one_shot.canaries import PlantedCanaries
from coalmine.methods.samples.audit import Losses, SampleCanaries, Samples
from coalmine.protocol import Audit, Kind, Vector, check_audits, checked_contribution
from coalmine.results.result import Results
from coalmine.results.verdict import EXAMPLE, USER, Check
from coalmine.vectors import CPU, AnyVector, flat, on

# Norm, in clip norms, of gradients that the optimizer has to clip. A short one would not show a small tensor left out.
_TOO_LONG = 5.0
_CLIP_TOLERANCE = 0.05  # far beyond the rounding of half precision

# Attributes in which an optimizer with adaptive clipping counts clipped gradients.
_CLIP_COUNTS = ("sample_size", "unclipped_num")


class OpacusAudit:
    """Audits of one Opacus training. Train as usual, then call `results`.

    An update is minus a gradient, so that an inserted update moves the model in its own direction. The sum of the
    canaries is added to the sum of the clipped gradients. The divisor is the optimizer's expected batch size, which
    does not count canaries. With the virtual steps of BatchMemoryManager, canaries are inserted once per logical step.
    With per-layer clipping the optimizer clips canaries like gradients of a batch.

    In the first steps the optimizer also clips gradients that are too long, which are taken out again.

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
        check_audits(audits, least=1)
        self.engine, self.optimizer, self.loading = engine, optimizer, Loading.of(loader)
        self.audits, self.steps, self.taken = tuple(audits), check_count("steps", steps), 0
        self.params: list[Any] = list(optimizer.params)  # Opacus adds attributes to parameters, hence Any
        self._sizes = [p.numel() for p in self.params]
        self.dim = sum(self._sizes)
        # An optimizer knows no names, so its tensors get numbers.
        shapes = {f"parameter {number}": tuple(p.shape) for number, p in enumerate(self.params)}
        self._by_layer = isinstance(optimizer, DPPerLayerOptimizer)
        clip_norms = None
        if self._by_layer:
            clip_norms = dict(zip(shapes, map(float, optimizer.max_grad_norms), strict=True))
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
            audit.joins(clients=None, noise_multiplier=float(optimizer.noise_multiplier))
            # Canaries that are rescaled layer by layer must not lie in a single one.
            audit.describe(layers=shapes, stratify=not self._by_layer, clip_norms=clip_norms, even_noise=True)
            audit.members_participation = self.loading.participation(steps)
        self._finished, self._examples, self._unseen = False, 0, 0
        self._left: list[Moved] = []  # of gradients that were too long, each more than those before
        self._population = len(loader.dataset)  # type: ignore[arg-type]
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        if self._ghost:
            self._note("ghost clipping happens in the backward pass, so clipping is not tested")
        self._wrap()

    def results(
        self,
        *,
        delta: float,
        epsilon: float | None = None,
        confidence: float = 0.95,
        metrics: Mapping[str, float] | None = None,
    ) -> Results:
        """Return ε of one example for each adversary after the training, beside the ε that Opacus reports.

        Canaries that are sampled like examples test that ε; others, such as canaries in every step, test the noise
        behind it, as ``participation`` of the result says. The metrics ``opacus_epsilon`` and ``own_epsilon`` hold
        Opacus's ε and coalmine's ε of an example.

        Args:
            delta: The δ to state ε at.
            epsilon: The ε that you promise. By default the one that Opacus reports. An ε that is smaller than noise,
                sampling rate and steps give is refuted.
            confidence: Confidence of the bounds.
            metrics: Numbers to keep with ε, such as the model's accuracy.

        Raises:
            InputError: If no step was taken, or more steps than the audit saw.
        """
        if self.taken == 0:
            raise InputError("the audited optimizer took no step: train with the optimizer that was given to the audit")
        if self.taken < self.steps and not self._finished:
            self._note(f"only {self.taken} of the {self.steps} announced steps were taken")
            # Audits need every announced round before anything is computed: those not taken count as aborted.
            model = flattened(self.params)
            for round in range(self.taken, self.steps):
                self._release(round, "update", np.zeros_like(model), divisor=1.0)
                self._release(round, "model", model)
        steps = max(self.taken + self._unseen, sum(int(stretch[2]) for stretch in self.engine.accountant.history))
        if steps > self.taken:
            raise InputError(self._too_many(steps))
        self._finished = True
        claim, own, cautions = claims_of(self.engine, self.loading, self.taken, delta=delta)
        numbers = {"opacus_epsilon": claim.epsilon, "own_epsilon": own.epsilon} | dict(metrics or {})
        if epsilon is not None:
            claim = claim.replace(epsilon=epsilon, accountant=None)
        engine = {"engine": f"opacus {metadata.version('opacus')}", "steps": self.taken}
        results = []
        for audit in self.audits:
            result = audit.result(claim=claim, confidence=confidence, metrics=numbers)
            # A canary is an example here, and its rounds are steps.
            unit = {USER: EXAMPLE}.get(result.unit, result.unit)
            config = {**result.config, **engine}
            results.append(replace(result, unit=unit, warnings=[*result.warnings, *cautions], config=config))
        return Results(results)

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return arrays to keep with a checkpoint of model, optimizer and engine."""
        state = {"taken": np.array(self.taken), "accumulated": np.array(self.loading.accumulated)}
        for i, audit in enumerate(self.audits):
            state |= {f"{i}.{name}": value for name, value in audit.state().items()}
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from a checkpoint, with the same settings."""
        self.taken, self.loading.accumulated = int(state["taken"]), bool(state["accumulated"])
        for i, audit in enumerate(self.audits):
            prefix = f"{i}."
            audit.restore({name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)})

    # The optimizer's methods

    def _wrap(self) -> None:
        if "pre_step" in vars(self.optimizer):
            raise InputError("this optimizer is already under audit: pass all audits at once")
        pre_step, step, steps = self.optimizer.pre_step, self.optimizer.step, self

        # Bound methods of the optimizer, since learning-rate schedulers look for them.
        def planting_pre_step(optimizer: DPOptimizer, closure: Any = None) -> Any:
            return steps._pre_step(lambda: pre_step(closure))

        def observed_step(optimizer: DPOptimizer, closure: Any = None) -> Any:
            before = steps.taken
            loss = step(closure)
            if steps.taken > before:
                steps._release(before, "model", flattened(steps.params))
            return loss

        self.optimizer.pre_step = MethodType(planting_pre_step, self.optimizer)
        self.optimizer.step = MethodType(observed_step, self.optimizer)

    def _pre_step(self, original: Callable[[], Any]) -> Any:
        """Run what Opacus does between the backward pass and the change of the parameters, with canaries."""
        optimizer, step = self.optimizer, self.taken
        # With ghost clipping there are no gradients of examples, and their number is unknown.
        if not self._ghost:
            self._examples += len(optimizer._get_flat_grad_sample(self.params[0]))
        # A logical batch may come in several physical ones (BatchMemoryManager): all but the last skip the step.
        if self._finished or optimizer._check_skip_next_step(pop_next=False):
            return original()
        if step >= self.steps:
            if not self._unseen:
                warnings.warn(self._too_many(step + 1), CanaryWarning, stacklevel=2)
            self._unseen += 1
            return original()
        try:
            # Step 0 tests a gradient of all tensors, and the next steps one tensor each: a small tensor that is left
            # out hardly shows in the norm of all.
            if not self._ghost and step <= len(self.params):
                self._test_clipping(step - 1)
            self._plant()
            original()
        except BaseException:
            # The step was not taken, and a training that catches the error may try it again.
            for audit in self.audits:
                audit.discard(step)
            raise
        # The size of the batch tells Poisson sampling from batches of equal size.
        if not self._ghost and self._examples <= self._population:
            for audit in self.audits:
                audit.cohort(step, self._examples, self._population)
        self._examples = 0
        self.taken += 1
        self.loading.accumulated |= optimizer.accumulated_iterations > 1
        # As in Opacus's scale_grad: the expected size of the batch, not the actual one, which would leak it.
        divisor = 1.0
        if optimizer.loss_reduction == "mean":
            divisor = float(optimizer.expected_batch_size * optimizer.accumulated_iterations)
        # An update moves the model against the gradient.
        self._release(step, "update", -flattened([p.grad for p in self.params]), divisor=divisor)
        return True

    def _too_many(self, steps: int) -> str:
        """Say that nobody looked at the noise of some steps, which the claim is about as well."""
        return (
            f"the training took {steps:,} steps, of which the audit saw {self.taken:,}: the noise of the others is not "
            f"tested. Call audit_opacus before the first step, with the number of all (steps=epochs * len(loader)), or "
            "results() before you train on"
        )

    def _plant(self) -> None:
        """Add what the audits insert into this step to the sum of clipped gradients."""
        clip_norm = float(self.optimizer.max_grad_norm)
        for audit in self.audits:
            planted = audit.plant(self.taken, clip_norm=clip_norm)
            if planted is None:
                continue
            if isinstance(planted, PlantedCanaries) and self._by_layer:
                # Each layer has a clip norm of its own: the optimizer clips canaries that are too long in all of them.
                total = np.zeros(self.dim, dtype=np.float32)
                for canary in planted.canaries.each(planted.members):
                    total += self._clipped(canary * np.float32(_TOO_LONG * planted.norm))
            else:
                checked = checked_contribution(planted, dim=self.dim, clip_norm=clip_norm, round=self.taken)
                total = flattened(checked.total)
            for p, piece in zip(self.params, torch.from_numpy(total).split(self._sizes), strict=True):
                gradient = -piece.view_as(p).to(p)  # an update is minus a gradient
                if p.summed_grad is not None:
                    gradient += p.summed_grad
                p.summed_grad = gradient

    def _test_clipping(self, tested: int) -> None:
        """Let the optimizer clip a gradient of a tensor, or of all (-1), that is too long, and measure what is left."""
        clip_norm = float(self.optimizer.max_grad_norm)
        edges = np.cumsum([0, *self._sizes])
        begin, end, where = edges[tested], edges[tested + 1], f" in parameter {tested}"
        if tested < 0:
            begin, end, where = 0, self.dim, ""
        gradient = np.zeros(self.dim, dtype=np.float32)
        gradient[begin:end] = _TOO_LONG * clip_norm / math.sqrt(max(1, end - begin))
        left = float(np.linalg.norm(self._clipped(gradient))) / clip_norm
        client = (
            f"one example with a gradient of {_TOO_LONG:g} clip norms{where} was clipped to max_grad_norm = "
            f"{clip_norm:g} in step {self.taken}"
        )
        if not self._left or left > self._left[-1].excess:
            row = Moved(
                check=str(Check.CLIPPING), client=client, example="", length=_TOO_LONG, clip_norms=left, excess=left,
                lower=left, plain=True,
            )  # fmt: skip
            self._left.append(row)
        replay = Replay(
            moved=tuple(self._left), clip_norm=clip_norm, unit=clip_norm, tolerance=_CLIP_TOLERANCE, calls=tested + 2,
            who="example",
        )  # fmt: skip
        for audit in self.audits:
            audit.add_replay(Check.CLIPPING, replay)

    def _clipped(self, gradient: Vector) -> Vector:
        """Return what the optimizer makes of the gradient of one example, and leave the optimizer as it was."""
        # Canaries must not influence an adaptive clip norm either, which follows the number of clipped gradients.
        counts = {name: copy.copy(value) for name, value in vars(self.optimizer).items() if name in _CLIP_COUNTS}
        before = [(p.grad_sample, p.summed_grad) for p in self.params]
        for p, piece in zip(self.params, torch.from_numpy(gradient).split(self._sizes), strict=True):
            p.grad_sample, p.summed_grad = piece.reshape(1, *p.shape).to(p), None
        try:
            self.optimizer.clip_and_accumulate()
            return flattened([p.summed_grad for p in self.params])
        finally:
            for p, (grad_sample, summed_grad) in zip(self.params, before, strict=True):
                p.grad_sample, p.summed_grad = grad_sample, summed_grad
            vars(self.optimizer).update(counts)

    def _release(self, round: int, kind: Kind, vector: Vector, divisor: float | None = None) -> None:
        """Show a step's noisy mean gradient, or the model after it, to the audits whose view shows it."""
        release: Any
        release, lost = finite_part(vector)
        if lost:
            self._note(f"step {round}: {lost} of {len(vector)} numbers are not finite and count as 0")
        rounding = math.inf if lost else 0.0
        # An optimizer with a step of its own before the parameters change may have processed what it released.
        unprocessed = divisor is not None and type(self.optimizer).pre_step is DPOptimizer.pre_step
        for audit in self.audits:
            if kind == "update" and not release.any():
                audit.skip(round)
            for view in audit.views:
                if view.kind == kind and view.shows(round, self.steps):
                    audit.observe(round, **{kind: release}, divisor=divisor, rounding=rounding, unprocessed=unprocessed)

    def _note(self, sentence: str) -> None:
        for audit in self.audits:
            audit.note(sentence)


def flattened(tensors: AnyVector) -> Vector:
    """Return tensors as one float32 vector on the CPU."""
    vector: Vector = on(CPU, flat(tensors))
    return vector


def audit_opacus(
    engine: PrivacyEngine,
    optimizer: DPOptimizer,
    loader: DataLoader[Any],
    *,
    steps: int,
    canaries: int | None = 1000,
    audits: Sequence[Audit] = (),
    views: Sequence[str] = ("updates", "final-change"),
    participation: str | Sampling | None = None,
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
        canaries: Expected number of inserted gradients, or None for none.
        audits: Further audits of the same training, such as ``Canife(mode="running", …)``. Steps are their rounds.
        views: What adversaries see, as in `OneShot`; one result for each.
        participation: When gradients take part, as in `OneShot`. None draws them like the loader's examples: bounds
            are then about the ε that Opacus reports. Others, such as ``"last:25"``, test the noise behind that ε with
            more power, but their bounds are about an example in so many steps.
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
    loading, audits = Loading.of(loader), list(audits)
    if canaries is not None:
        # A view of the model's change needs the model before the first step; the others ignore it.
        before = flattened(optimizer.params)
        initial = dict.fromkeys(views, before) | {"final": None, "updates": None}
        planting = OneShot(
            len(before),
            rounds=steps,
            canaries=canaries,
            view=views[0],
            # How examples take part can only be told from the loader.
            participation=participation or loading.participation(steps),
            # Clipping by layer rescales canaries, which keeps Gaussian ones independent but no others orthogonal.
            family="gaussian" if isinstance(optimizer, DPPerLayerOptimizer) else None,
            initial=initial[views[0]],
            seed=seed,
        )
        # One audit per view of the same random gradients; the first inserts them.
        audits += [planting, *(planting.seen_by(view, initial=initial[view]) for view in views[1:])]
    if samples is not None:
        check_kind("model", model, nn.Module, "the module that make_private returned, to compute losses of samples")
        # Where batches are not drawn at random, each example is in one of them.
        rate = loading.rate or 1 / loading.batches
        # The losses of samples are computed beside the training, where Opacus's hooks would collect gradients.
        module = _plain_copy(model, optimizer)
        for view in sample_views:
            audits.append(Samples(canaries=samples, model=module, rounds=steps, view=view, rate=rate, losses=losses))
    return OpacusAudit(engine, optimizer, loader, audits=audits, steps=steps)


def _plain_copy(model: nn.Module | None, optimizer: DPOptimizer) -> nn.Module:
    """Return a copy of the module inside Opacus's, on the CPU and without its hooks."""
    module: Any = getattr(model, "_module", model)
    trained = [value for value in module.parameters() if value.requires_grad]
    if list(map(id, trained)) != list(map(id, optimizer.params)):
        raise InputError("model= must be the module whose parameters the optimizer trains, in the same order")
    plain: nn.Module = copy.deepcopy(module).cpu()
    for layer in plain.modules():
        layer._forward_hooks.clear()
        layer._forward_pre_hooks.clear()
        layer._backward_hooks.clear()
        layer._backward_pre_hooks.clear()
        vars(layer).pop("autograd_grad_sample_hooks", None)
    return plain


@dataclass(kw_only=True)
class Loading:
    """How the batches of a loader are made.

    Args:
        rate: Probability that an example is in a batch, if batches are drawn by Poisson sampling; 0 otherwise.
        batches: Number of batches in a pass over the loader.
        shuffles: Whether each example is known to occur at most once in a pass.
        accumulated: Whether any step used several batches.
    """

    rate: float
    batches: int
    shuffles: bool = False
    accumulated: bool = False

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Loading:
        """Return how this loader makes its batches."""
        check_kind("loader", loader, DataLoader, "the DataLoader that make_private returned")
        sampler: Any = loader.batch_sampler
        if isinstance(sampler, BatchSplittingSampler):  # of BatchMemoryManager: the logical batches are what counts
            sampler = sampler.sampler
        if isinstance(sampler, UniformWithReplacementSampler):
            return cls(rate=float(sampler.sample_rate), batches=len(sampler))
        # Only torch's own samplers without replacement are known to give each example at most once per pass.
        inner = getattr(sampler, "sampler", None)
        known = type(sampler) is BatchSampler and type(inner) in (SequentialSampler, RandomSampler)
        return cls(rate=0.0, batches=len(sampler), shuffles=known and not getattr(inner, "replacement", False))

    def participation(self, steps: int) -> Sampling:
        """Return the participation of canaries that are sampled like examples."""
        if self.rate:
            return Poisson(self.rate)
        return Epochs(math.ceil(steps / self.batches))


def claims_of(engine: PrivacyEngine, loading: Loading, taken: int, *, delta: float) -> tuple[Claim, Claim, list[str]]:
    """Return two claims for one example in the steps that the engine's accountant has recorded.

    Args:
        engine: The privacy engine of the training.
        loading: How its batches were made.
        taken: Number of steps with batches of this loader.
        delta: The δ to state ε at.

    Returns:
        The claim of Opacus's accountant, that of coalmine's for how examples really take part, and sentences on where
        the two differ.
    """
    history = np.array(engine.accountant.history, dtype=float).reshape(-1, 3)  # noise, sampling rate, steps
    if not len(history):
        raise InputError("the privacy engine recorded no step: train with the optimizer that make_private returned")
    noise, rates = history[:, 0], history[:, 1]
    schedule = list(zip(noise.tolist(), history[:, 2].astype(int).tolist(), strict=True))
    # Opacus assumes Poisson sampling at the rate that it recorded, whatever the loader does.
    assumed = Poisson(rates[0]) if np.ptp(rates) == 0 else None
    proved: Sampling | None = None
    if loading.rate:
        proved = Poisson(loading.rate)
    elif loading.shuffles and not loading.accumulated:
        # Batches that were added up may hold an example twice in one step.
        proved = AtMost(math.ceil(taken / loading.batches))
    name, cautions = str(engine.accountant.mechanism()), list[str]()
    coalmine = Claim(noise_schedule=schedule, sampling=proved, delta=delta)
    epsilon = math.inf  # without noise, for which Opacus's accountants fail
    if noise.all():
        try:
            epsilon = max(0.0, float(engine.get_epsilon(delta)))
        except (ValueError, RuntimeError, ArithmeticError, MemoryError, IndexError):
            epsilon = coalmine.epsilon
            cautions.append(f"Opacus's accountant {name} has no ε at δ = {delta:g}: the claim is coalmine's")
    opacus = Claim(epsilon=epsilon, delta=delta, accountant=f"opacus-{name}", noise_schedule=schedule, sampling=assumed)
    reported = f"Opacus's accountant ({name}) reports ε = {epsilon:.4g}"
    if proved is None:
        cautions.append(
            f"{reported} for examples drawn at random in each step, but nothing is proved for this loader: an example "
            "may occur several times in a step (custom samplers, sampling with replacement, or accumulated batches)"
        )
    elif isinstance(proved, AtMost):
        cautions.append(
            f"{reported} for examples drawn at random in each step, but this loader shuffles and goes through all of "
            f"them: what is proved is ε = {coalmine.epsilon:.4g}, without amplification by sampling ({proved}, if all "
            "passes over the loader were completed), for replacing an example by an empty one"
        )
    elif not np.allclose(rates, loading.rate, rtol=1e-6, atol=0):
        cautions.append(
            f"{reported} for sampling rates from {rates.min():.6g} to {rates.max():.6g}, but the loader samples at "
            f"{loading.rate:.6g}, where coalmine's accountant reports {coalmine.epsilon:.4g}"
        )
    return opacus, coalmine, cautions
