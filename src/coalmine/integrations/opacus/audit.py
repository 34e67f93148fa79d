"""One call that puts an Opacus training under audit, and what it finds in the end."""

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

from coalmine.accounting import Theory
from coalmine.errors import InputError
from coalmine.integrations.opacus import claim as opacus_promise
from coalmine.integrations.opacus.claim import Loading, Promise
from coalmine.integrations.opacus.steps import Steps, clips_by_layer, dim_of, seen_model
from coalmine.methods.canife.audit import Canife
from coalmine.methods.one_shot.audit import OneShot
from coalmine.methods.one_shot.participation import Participation, parse_participation
from coalmine.methods.samples.audit import Losses, Samples
from coalmine.methods.samples.planted import SampleCanaries
from coalmine.protocol import Audit
from coalmine.results.result import AuditResult


class OpacusAudit:
    """Audits of one training with Opacus. Train as ever, then ask for ``results``.

    ``audits`` are any of coalmine's that plant updates or look for samples; what they plant enters the optimizer's own
    clipping. `audit_opacus` makes the usual ones.
    """

    def __init__(
        self,
        engine: PrivacyEngine,
        optimizer: DPOptimizer,
        loader: DataLoader[Any],
        *,
        audits: Sequence[Audit],
        steps: int,
        length: float | None = None,
    ) -> None:
        if not audits:
            raise InputError("there is no audit: give gradient canaries, samples or audits")
        self.engine, self.loading = engine, Loading.of(loader)
        self.steps = Steps(optimizer, audits, steps=steps, length=length, stepped=self.loading.stepped)

    @property
    def audits(self) -> tuple[Audit, ...]:
        """In the order of their results."""
        return self.steps.audits

    def results(
        self, *, delta: float, confidence: float = 0.95, metrics: Mapping[str, float] | None = None
    ) -> list[AuditResult]:
        """ε of one example for each adversary, beside the promise that fits, once the training is over.

        Where canaries come as examples do, the promise is Opacus's; for others, such as those of every step, it is
        coalmine's own for the same noise. ``metrics`` are numbers to keep beside them, such as the accuracy.
        """
        self.steps.finish()
        found = opacus_promise.promise(self.engine, self.loading, delta=delta)
        if found.opacus.rounds != self.steps.taken:
            sentence = (
                f"the accountant has counted {found.opacus.rounds} steps, of which {self.steps.taken} were audited"
            )
            found = replace(found, warnings=[*found.warnings, sentence])
        return [self._result(audit, found, confidence, metrics or {}) for audit in self.audits]

    def _result(self, audit: Audit, found: Promise, confidence: float, metrics: Mapping[str, float]) -> AuditResult:
        theory = self._theory(audit, found)
        numbers = {"opacus_epsilon": found.opacus.epsilon, "own_epsilon": found.own.epsilon, **metrics}
        if isinstance(audit, Canife):
            noise = min(noise for noise, _ in opacus_promise.noise_schedule(self.engine))
            result: AuditResult = audit.result(
                confidence=confidence,
                noise_multiplier=noise,
                sampling=self.loading.sampling,
                theory=theory,
                metrics=numbers,
            )
        else:
            assert isinstance(audit, OneShot | Samples)
            result = audit.result(confidence=confidence, theory=theory, metrics=numbers)
        engine = {"unit": "example", "engine": f"opacus {metadata.version('opacus')}", "steps": self.steps.taken}
        return replace(result, warnings=[*result.warnings, *found.warnings], config={**result.config, **engine})

    def _theory(self, audit: Audit, found: Promise) -> Theory:
        """The promise to this adversary: Opacus's for canaries that come as examples do."""
        if not isinstance(audit, OneShot):
            return found.opacus
        alike = audit.participation == parse_participation(self.loading.participation(audit.rounds))
        if alike and not (self.loading.rate is not None and audit.knows_rounds):
            return found.opacus
        schedule = opacus_promise.noise_schedule(self.engine)
        return opacus_promise.theory(schedule, audit.sampling, delta=found.opacus.delta)

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """What to keep beside a checkpoint of model, optimizer and engine: arrays by name."""
        passes = np.array([self.loading.accumulated, *sorted(self.loading.trained)], dtype=np.int64)
        return {**self.steps.state(), "passes": passes}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what ``state`` gave, with the same settings."""
        self.steps.restore(state)
        accumulated, *trained = state["passes"].tolist()
        # Passes of the training that went before are numbered below 0, those to come above; 0 is of no known loader.
        last = max(trained, default=0)
        earlier = {one and one - max(last, 0) - 1 for one in trained}
        self.loading.accumulated, self.loading.trained = bool(accumulated), earlier


def audit_opacus(
    engine: PrivacyEngine,
    optimizer: DPOptimizer,
    loader: DataLoader[Any],
    *,
    steps: int,
    canaries: int | None = 200,
    views: Sequence[str] = ("updates", "final-change"),
    participation: str | Participation | None = None,
    length: float | None = None,
    samples: SampleCanaries | None = None,
    sample_views: Sequence[str] = ("final-change", "updates"),
    model: nn.Module | None = None,
    losses: Losses | None = None,
    seed: int = 0,
) -> OpacusAudit:
    """Put a training under audit: call it with what ``make_private`` gave, before the first of ``steps`` steps.

    ``canaries`` gradients of random directions are planted as extra examples, about as many are held out, and each of
    ``views`` (as of `OneShot`) looks for them; None plants none. They take part as the loader's examples do, drawn at
    its rate, unless ``participation`` says otherwise: ``every-round`` is the worst case, and its promise is that of
    all steps without amplification. They are ``length`` clip norms long before the optimizer clips them, 5 unless
    given; 1 is faster and leaves clipping untested.

    ``samples`` are canaries that are in the data, for which ``model`` (before or after ``make_private``) is needed;
    ``sample_views`` and ``losses`` are those of `Samples`.
    """
    loading, audits = Loading.of(loader), list[Audit]()
    if canaries is not None:
        audits += _gradient_audits(optimizer, loading, steps, canaries, views, participation, seed)
    if samples is not None:
        if model is None:
            raise InputError("samples are scored by the model: give model=, as make_private gave it")
        module = _plain(model, optimizer)
        audits += [
            Samples(canaries=samples, model=module, rounds=steps, view=view, rate=loading.share, losses=losses)
            for view in sample_views
        ]
    return OpacusAudit(engine, optimizer, loader, audits=audits, steps=steps, length=length)


def _gradient_audits(
    optimizer: DPOptimizer,
    loading: Loading,
    steps: int,
    canaries: int,
    views: Sequence[str],
    participation: str | Participation | None,
    seed: int,
) -> list[Audit]:
    if not views:
        raise InputError("views names at least one, such as updates")
    first = seen_model(optimizer)

    def initial(view: str) -> npt.NDArray[Any] | None:
        return None if view in ("final", "updates") else first

    planting = OneShot(
        dim=dim_of(optimizer),
        rounds=steps,
        canaries=canaries,
        view=views[0],
        participation=loading.participation(steps) if participation is None else participation,
        family="gaussian" if clips_by_layer(optimizer) else None,
        initial=initial(views[0]),
        seed=seed,
    )
    return [planting, *(planting.seen_by(view, initial=initial(view)) for view in views[1:])]


def _plain(model: nn.Module, optimizer: DPOptimizer) -> nn.Module:
    """A copy of the module inside Opacus's, on the CPU and without its hooks."""
    module = getattr(model, "_module", model)
    trained = [value for value in module.parameters() if value.requires_grad]
    if [id(value) for value in trained] != [id(value) for value in optimizer.params]:
        raise InputError(
            f"model= must train the optimizer's parameters, in their order: it has {len(trained)}, the optimizer "
            f"{len(list(optimizer.params))}"
        )
    found: nn.Module = copy.deepcopy(module).cpu()
    for layer in found.modules():
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks):
            hooks.clear()
        vars(layer).pop("autograd_grad_sample_hooks", None)
    return found
