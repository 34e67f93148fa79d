"""`audit_opacus` puts an Opacus training under audit; `OpacusAudit` returns the results after it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader

from coalmine.claims import Sampling
from coalmine.errors import InputError
from coalmine.integrations.opacus.claim import Loading, OpacusClaim, claim_of, note_on_claim
from coalmine.integrations.opacus.steps import AuditedSteps, clips_by_layer, flattened
from coalmine.methods.one_shot.audit import OneShot
from coalmine.methods.samples.audit import Losses, SampleCanaries, Samples
from coalmine.protocol import Audit
from coalmine.results.result import Result
from coalmine.results.verdict import EXAMPLE, USER

# Steps with canaries. The claim without amplification grows with them, and the power of its test falls once the claim
# is so large that canaries are noise to each other; 25 steps with noise multiplier 1 claim ε = 33.
_STEPS = 25


class OpacusAudit:
    """Audits of one Opacus training. Train as usual, then call `results`.

    `audit_opacus` makes the usual audits. Use this class for others, such as ``Canife(mode="running", ...)``.

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
        self.engine, self.loading = engine, Loading.of(loader)
        self.steps = AuditedSteps(
            optimizer,
            audits,
            steps=steps,
            stepped=self.loading.stepped,
            population=_population(loader),
        )
        for audit in self.audits:
            audit.members_participation = self.loading.participation(steps)

    @property
    def audits(self) -> tuple[Audit, ...]:
        """The audits, in the order of their results."""
        return self.steps.audits

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
        # Steps that were announced and not taken must be known before anything is computed.
        self.steps.finish()
        claim = claim_of(self.engine, self.loading, delta=delta)
        if claim.opacus.rounds != self.steps.taken:
            sentence = f"the accountant recorded {claim.opacus.rounds} steps, of which {self.steps.taken} were audited"
            claim = replace(claim, warnings=[*claim.warnings, sentence])
        return [self._result(audit, claim, confidence, metrics or {}) for audit in self.audits]

    def _result(self, audit: Audit, claim: OpacusClaim, confidence: float, metrics: Mapping[str, float]) -> Result:
        epsilons = {"opacus_epsilon": claim.opacus.epsilon, "own_epsilon": claim.coalmine.epsilon}
        result = audit.result(claim=claim.opacus, confidence=confidence, metrics={**epsilons, **metrics})
        note = note_on_claim(claim.opacus, result.claim)
        return replace(
            result,
            # A canary is an example here, and its rounds are steps.
            unit=EXAMPLE if result.unit == USER else result.unit,
            warnings=[*result.warnings, *claim.warnings],
            config={**result.config, "engine": f"opacus {metadata.version('opacus')}", "steps": self.steps.taken},
            details={**result.details, **({} if note is None else {"note": note})},
        )

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return arrays to keep with a checkpoint of model, optimizer and engine."""
        # Passes over the loader decide what is proved for an example, so they belong to the checkpoint.
        passes = np.array([self.loading.accumulated, *sorted(self.loading.trained)], dtype=np.int64)
        return {**self.steps.state(), "passes": passes}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from a checkpoint, with the same settings."""
        self.steps.restore(state)
        accumulated, *trained = state["passes"].tolist()
        # The new loader counts its passes from 1 again, so earlier passes get negative numbers to stay distinct.
        # 0, which stands for another loader, stays 0.
        last = max(trained, default=0)
        earlier = {number and number - max(last, 0) - 1 for number in trained}
        self.loading.accumulated, self.loading.trained = bool(accumulated), earlier


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
        if not views:
            raise InputError('views must name at least one view, such as "updates"')
        before = flattened(optimizer.params)
        # A view of the model's change needs the model before the first step.
        initial = {view: None if view in ("final", "updates") else before for view in views}
        planting = OneShot(
            len(before),
            rounds=steps,
            canaries=canaries,
            view=views[0],
            participation=participation,
            # Clipping by layer rescales canaries, which keeps Gaussian ones independent but no others orthogonal.
            family="gaussian" if clips_by_layer(optimizer) else None,
            initial=initial[views[0]],
            seed=seed,
        )
        # One audit per view of the same random gradients; the first inserts them.
        audits += [planting, *(planting.seen_by(view, initial=initial[view]) for view in views[1:])]
    if samples is not None:
        if model is None:
            raise InputError("samples need model=, the module that make_private returned, to compute their losses")
        # The losses of samples are computed beside the training, where Opacus's hooks would collect gradients.
        module = _plain_copy(model, optimizer)
        audits += [
            Samples(canaries=samples, model=module, rounds=steps, view=view, rate=loading.share, losses=losses)
            for view in sample_views
        ]
    return OpacusAudit(engine, optimizer, loader, audits=audits, steps=steps)


def _population(loader: DataLoader[Any]) -> int | None:
    """Return the number of examples of a loader, or None if its data set has no length."""
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return None


def _plain_copy(model: nn.Module, optimizer: DPOptimizer) -> nn.Module:
    """Return a copy of the module inside Opacus's, on the CPU and without its hooks."""
    module = getattr(model, "_module", model)
    trained = [value for value in module.parameters() if value.requires_grad]
    if [id(value) for value in trained] != [id(value) for value in optimizer.params]:
        raise InputError(
            f"model= must have the optimizer's parameters in the same order: it trains {len(trained)} tensors, the "
            f"optimizer {len(list(optimizer.params))}"
        )
    plain: nn.Module = copy.deepcopy(module).cpu()
    for layer in plain.modules():
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks):
            hooks.clear()
        vars(layer).pop("autograd_grad_sample_hooks", None)
    return plain
