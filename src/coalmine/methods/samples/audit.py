"""The samples audit: examples as canaries, scored by losses of the model or by every step's gradient.

One training is enough, since a coin flip decides for each canary whether it is inserted (Steinke, Nasr & Jagielski
2023, "Privacy Auditing with One (1) Training Run"). The ε is that of one example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import ConcatDataset, Dataset

from coalmine.arrays import Bools, Floats
from coalmine.checks.accounting import accounting_findings
from coalmine.claims import Claim
from coalmine.errors import InputError, check_count, check_kind, check_probability, did_you_mean
from coalmine.methods.estimates import canary_evidence, normality
from coalmine.methods.one_shot.scores import parse_view
from coalmine.protocol import Audit, Contribution, Release, Vector, View
from coalmine.results.result import Result, common_delta
from coalmine.results.verdict import EXAMPLE
from coalmine.seeds import generator
from coalmine.simulation.flat import FlatModel, parameter_vector
from coalmine.usercode import errors_of
from coalmine.vectors import CPU, flat, on

# From a module's outputs and targets, of k examples each, to k losses.
Losses = Callable[[Tensor, Tensor], Tensor]

# What the adversary of each view does, and the score it computes.
VIEWS = {
    "final": ("computes losses of the final model", "negative loss"),
    "final-change": ("compares losses of the first and the final model", "decrease in loss"),
    "updates": ("sees every step's noisy gradient", "log-likelihood ratio"),
}

# Per-example gradients are held for as many canaries at a time as have this many numbers together (64 MB); losses are
# computed for this many examples at a time.
_GRADIENT_NUMBERS, _LOSS_EXAMPLES = 1 << 24, 1024

# Random streams apart from the coins of update canaries with the same seed: if the coins were shared, an update canary
# and a sample canary would always be inserted together, and each would be evidence about the other.
_COINS, _LABELS = 1, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleCanaries:
    """Examples of which fair coin flips insert about half into the training data.

    The coins are what the ``one-run`` bound rests on: choose the examples before the training and without looking at
    ``members``. They should be easy to memorize (`mislabeled`), since an adversary learns little about examples that
    look like the rest of the data.

    Args:
        inputs: (k, *shape): one row per canary, shaped like the inputs of the data set.
        targets: (k,) or (k, positions): the classes.
        kind: What they are, for the record.
        seed: Seed for the coin flips.

    Attributes:
        members: (k,): which canaries are inserted.

    Raises:
        InputError: If inputs and targets differ in number, if inputs are not finite, or if all coins fell alike.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> data = TensorDataset(torch.zeros(100, 4), torch.zeros(100, dtype=torch.int64))
        >>> canaries = SampleCanaries(inputs=torch.randn(20, 4), targets=torch.arange(20) % 10)
        >>> len(canaries.insert_into(data)) - int(canaries.members.sum())
        100
    """

    inputs: Tensor
    targets: Tensor
    kind: str = "given"
    seed: int = 0
    members: Bools = field(init=False)

    def __post_init__(self) -> None:
        check_count("seed", self.seed, least=0)
        check_kind("inputs", self.inputs, Tensor, "a tensor with one row per canary")
        check_kind("targets", self.targets, Tensor, "a tensor with one row per canary")
        if len(self.inputs) != len(self.targets):
            raise InputError(
                f"every canary needs a target, got {len(self.inputs)} inputs and {len(self.targets)} targets"
            )
        if not bool(self.inputs.isfinite().all()):
            raise InputError("the inputs of canaries must be finite, got NaN or infinity")
        members = generator(self.seed, "insertion", _COINS).random(len(self.inputs)) < 0.5
        if members.all() or not members.any():
            raise InputError(
                f"coin flips inserted {int(members.sum())} of {len(members)} canaries, which leaves nothing to compare "
                "with: use more canaries"
            )
        object.__setattr__(self, "members", members)

    @classmethod
    def mislabeled(cls, inputs: Tensor, targets: Tensor, *, classes: int, seed: int = 0) -> SampleCanaries:
        """Return examples with random wrong labels, which a model can only memorize.

        Args:
            inputs: (k, *shape): examples that are not in the training data.
            targets: (k,): their true classes.
            classes: Number of classes.
            seed: Seed for the labels and the coin flips.
        """
        check_count("classes", classes, least=2)
        steps = generator(seed, "insertion", _LABELS).integers(1, classes, size=len(targets))
        wrong = (targets.long() + torch.from_numpy(steps)) % classes
        return cls(inputs=inputs, targets=wrong, kind="mislabeled", seed=seed)

    def __len__(self) -> int:
        return len(self.inputs)

    def insert_into(self, dataset: Dataset[Any]) -> Dataset[Any]:
        """Return a data set of the examples of ``dataset``, followed by the inserted canaries.

        Args:
            dataset: A map-style data set of pairs ``(input, target)``, where the input is a tensor.

        Raises:
            InputError: If it gives something else, or inputs of another shape than the canaries'.
        """
        first = dataset[0]
        is_pair = isinstance(first, tuple | list) and len(first) == 2
        if not is_pair or not isinstance(first[0], Tensor):
            raise InputError(
                "canaries go into a data set of pairs (input, target) whose inputs are tensors, got items of type "
                f"{type(first).__name__}: insert canaries after the transform to tensors"
            )
        example, target = first
        shape, canary_shape = tuple(example.shape), tuple(self.inputs.shape[1:])
        if shape != canary_shape:
            raise InputError(f"examples of the data set have shape {shape}, but canaries have shape {canary_shape}")
        inserted = torch.from_numpy(np.flatnonzero(self.members))
        inputs, targets = self.inputs[inserted].to(example.dtype), self.targets[inserted]
        # Inserted canaries have the types of the other examples, so that batches of both can be made.
        labels = targets.to(target.dtype) if isinstance(target, Tensor) else targets.tolist()
        pairs: Any = list(zip(inputs, labels, strict=True))
        return ConcatDataset([dataset, pairs])

    def __repr__(self) -> str:
        return f"SampleCanaries({len(self)} {self.kind}, {int(self.members.sum())} inserted, seed={self.seed})"


class Samples(Audit):
    """Audits a training whose data contain `SampleCanaries`.

    The training must use ``canaries.insert_into(dataset)`` in place of its data set; the audit itself adds nothing to
    any round. The ``one-run`` bound on ε of one example is valid by the coin flips alone, whatever the model and the
    scores are.

    Args:
        canaries: The canaries, inserted and held out.
        model: The module before the training. It is copied, and evaluated without dropout.
        rounds: Number of steps of the training.
        view: What the adversary sees. ``"final"``: the final model; the score is minus a canary's loss.
            ``"final-change"``: the first model as well; the score is how far the loss fell. ``"updates"``: every step's
            noisy gradient and the model before it; the score is the log-likelihood ratio of all of them with and
            without the canary's clipped gradient, as if the rest were Gaussian noise.
        rate: Probability that an example is in a batch, which the score of ``"updates"`` uses; None or 1 for certain.
        losses: Function from outputs and targets to one loss per example. Cross-entropy by default.

    Raises:
        InputError: If the view is unknown, or if it is ``"updates"`` and `torch.func` cannot differentiate the module.

    Example:
        >>> import numpy as np
        >>> canaries = SampleCanaries(inputs=torch.randn(40, 4), targets=torch.arange(40) % 3)
        >>> audit = Samples(canaries=canaries, model=nn.Linear(4, 3), rounds=1, view="final")
        >>> audit.observe(0, model=np.ones(15, dtype=np.float32))
        >>> audit.result(delta=1e-5).bound.method
        'one-run'
    """

    def __init__(
        self,
        *,
        canaries: SampleCanaries,
        model: nn.Module,
        rounds: int,
        view: str = "final-change",
        rate: float | None = None,
        losses: Losses | None = None,
    ) -> None:
        check_kind("canaries", canaries, SampleCanaries, "SampleCanaries(...)")
        check_kind("model", model, nn.Module, "a torch.nn.Module")
        if view not in VIEWS:
            raise InputError(f"unknown view {view!r} of samples. {did_you_mean(view, VIEWS)}")
        self.canaries, self.rounds, self.view = canaries, check_count("rounds", rounds), view
        self.rate = None if rate is None or rate == 1 else check_probability("rate", rate)
        self.views = (parse_view(view),) if view != "updates" else (View("update"), View("model"))
        self._losses = losses or cross_entropies
        self._model = FlatModel(model)
        self._model.module.eval()
        self._weights: Vector = parameter_vector(model).cpu().numpy()
        self._scores: Floats = np.zeros(len(canaries))
        if view == "final-change":
            self._scores += self._loss_at(self._weights)  # the final model's loss is subtracted later
        self._clip_norm = np.inf
        self._observed = np.zeros(self.rounds, dtype=bool)
        if view == "updates":
            # Refuses a module without per-example gradients now instead of in the middle of a training.
            failure = (
                'the view "updates" needs per-example gradients, which torch.func cannot compute for this model (use '
                '"final" or "final-change")'
            )
            with errors_of(failure):
                self._gradient_products(self._weights, self._weights, count=1)

    def plant(self, round: int, *, clip_norm: float, trial: int | None = None) -> Contribution | None:
        """Add nothing, since the canaries are in the data; remember the clip norm of their gradients."""
        if trial is None:
            self._clip_norm = float(clip_norm)
        return None

    def record(self, release: Release) -> None:
        """Score all canaries, inserted and held out."""
        if release.trial is not None:
            return
        vector = on(CPU, flat(release.vector))
        if vector.shape != self._weights.shape:
            raise InputError(
                f"the release of round {release.round} has shape {vector.shape}, but the model trains "
                f"{self._weights.size} parameters"
            )
        if release.kind == "update":
            # Steps are independent given the model before them, so their log-ratios add up.
            self._scores += self._log_ratios(vector, release.divisor)
            self._observed[release.round] = True
            return
        self._weights = np.array(vector)
        if self.view != "updates":
            self._scores -= self._loss_at(self._weights)
            self._observed[release.round] = True

    def skip(self, round: int, trial: int | None = None) -> None:
        """Count an aborted round as observed."""
        if trial is None and self.view == "updates":
            self._observed[round] = True

    def scores(self) -> tuple[Floats, Floats]:
        """Return the scores so far of the inserted and of the held-out canaries."""
        return self._scores[self.canaries.members], self._scores[~self.canaries.members]

    def result(
        self,
        *,
        delta: float | None = None,
        confidence: float = 0.95,
        claim: Claim | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Result:
        """Return bounds and estimates of ε of one example after the training.

        Args:
            delta: The δ to state ε at. By default that of the claim, and 1e-5 without one.
            confidence: Confidence of the bounds.
            claim: The claimed guarantee.
            metrics: Numbers to keep with ε, such as the model's accuracy.

        Raises:
            InputError: If releases that the view needs were not observed.
        """
        delta = common_delta(delta, claim)
        observed = self._observed if self.view == "updates" else self._observed[-1:]
        if not observed.all():
            raise InputError(
                f"the view {self.view!r} of samples observed {int(observed.sum())} of the {len(observed)} releases it "
                "needs: call observe with every release"
            )
        members, nonmembers = self.scores()
        evidence = canary_evidence(
            members,
            nonmembers,
            null=None,
            signs=False,
            design="coin-flips",
            delta=delta,
            confidence=confidence,
            claim=claim,
            independent=False,  # gradients of samples overlap, and all of them train the same model
        )
        test, warnings = normality(members, "inserted")
        adversary, score_name = VIEWS[self.view]
        counts = {"inserted": float(len(members)), "held_out": float(len(nonmembers))}
        return Result(
            method="samples",
            view=self.view,
            unit=EXAMPLE,
            adversary=adversary,
            score_name=score_name,
            seed=self.canaries.seed,
            **vars(evidence),
            claim=claim,
            findings=list(accounting_findings(claim)),
            warnings=[*warnings, *self.notes],
            metrics={**counts, **test, **(metrics or {})},
            config={
                "canaries": len(self.canaries),
                "kind": self.canaries.kind,
                "view": self.view,
                "rounds": self.rounds,
                "rate": self.rate,
                "seed": self.canaries.seed,
            },
        )

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return everything observed so far, for a checkpoint."""
        return {"scores": self._scores.copy(), "weights": self._weights.copy(), "observed": self._observed.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from a checkpoint."""
        self._scores, self._weights = np.array(state["scores"]), np.array(state["weights"])
        self._observed = np.array(state["observed"])

    def __repr__(self) -> str:
        return f"Samples({self.canaries!r}, view={self.view}, rounds={self.rounds}, rate={self.rate})"

    def _loss_at(self, weights: Vector) -> Floats:
        """Return the loss of every canary at these weights, (k,)."""
        self._model.load(torch.from_numpy(weights))
        both = (self.canaries.inputs, self.canaries.targets)
        inputs, targets = (t.to(self._model.device).split(_LOSS_EXAMPLES) for t in both)
        with torch.no_grad():
            parts = [self._losses(self._model.module(x), y) for x, y in zip(inputs, targets, strict=True)]
        losses = torch.cat(parts).cpu().double().numpy()
        if losses.shape != (len(self.canaries),):
            raise InputError(
                f"losses must return one number for each of {len(self.canaries)} examples, got shape {losses.shape}"
            )
        # A diverged model gives losses that are not finite. They carry no evidence, and must not end a training.
        return np.asarray(np.nan_to_num(losses, nan=0.0, posinf=1e9, neginf=-1e9), dtype=np.float64)

    def _log_ratios(self, update: Vector, divisor: float | None) -> Floats:
        """Return each canary's log-likelihood ratio of one step, (k,), by its clipped gradient before the step."""
        dots, squares = self._gradient_products(self._weights, update)
        gradient_norms = np.sqrt(squares)
        clip_factors = np.minimum(1.0, self._clip_norm / np.maximum(gradient_norms, 1e-12))
        divisor = 1.0 if divisor is None else divisor
        # The sum S is modeled as N(μ, v·I) with μ = −c if the canary's clipped gradient c is in the batch and 0 if not;
        # v is estimated from S itself. The log-ratio is then (−⟨c, S⟩ − |c|²/2)/v, where S = divisor · update.
        variance = float(np.mean(np.square(update, dtype=np.float64))) * divisor**2
        if variance == 0:
            return np.zeros(len(dots))
        log_ratios = (-clip_factors * dots * divisor - (clip_factors * gradient_norms) ** 2 / 2) / variance
        if self.rate is None:
            return np.asarray(log_ratios)
        # The adversary does not know whether an inserted canary was drawn: a mixture of both cases.
        return np.asarray(np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + log_ratios))

    def _gradient_products(self, weights: Vector, update: Vector, count: int | None = None) -> tuple[Floats, Floats]:
        """Return ⟨gradient, update⟩ and |gradient|² at ``weights`` for the first ``count`` canaries, (k,) each."""
        self._model.load(torch.from_numpy(weights))
        module, buffers, device = self._model.module, dict(self._model.module.named_buffers()), self._model.device
        parameters = dict(zip(self._model.names, [value.detach() for value in self._model.parameters], strict=True))
        pieces = torch.tensor(update, device=device).split([value.numel() for value in self._model.parameters])

        def loss(parameters: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
            return self._losses(functional_call(module, (parameters, buffers), (example[None],)), target[None])[0]

        def products(example: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            dot = square = torch.zeros((), device=device)
            for gradient, piece in zip(grad(loss)(parameters, example, target).values(), pieces, strict=True):
                dot = dot + gradient.flatten() @ piece
                square = square + gradient.square().sum()
            return dot, square

        # Per-example gradients are held for a chunk of the canaries at a time.
        chunk = max(1, _GRADIENT_NUMBERS // self._model.dim)
        inputs, targets = self.canaries.inputs[:count].to(device), self.canaries.targets[:count].to(device)
        dots, squares = vmap(products, chunk_size=chunk)(inputs, targets)
        return dots.cpu().double().numpy(), squares.cpu().double().numpy()


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return each example's cross-entropy, averaged over positions where there are several."""
    if outputs.ndim == 2:
        return F.cross_entropy(outputs, targets, reduction="none")
    return F.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none").flatten(1).mean(1)
