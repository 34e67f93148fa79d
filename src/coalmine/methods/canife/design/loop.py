"""The design loop that images and texts share (Algorithm 1): Adam on many canaries at once, the best of each kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coalmine.arrays import Array, Floats
from coalmine.errors import InputError, check_count, check_kind, check_number, check_positive
from coalmine.methods.canife.design.loss import CovarianceLoss, DesignLoss, LikelihoodRatioLoss, Loss, MeanLoss
from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.per_sample_gradients import SampleGradients, input_derivative
from coalmine.progress import track
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.data.federated import Examples, FederatedData, Task
from coalmine.simulation.optimizers import SGD, Adam, OptimizerState

Target = int | Literal["random", "best"]
"""A canary's class: one for all, drawn at random, or for each the class with which its start has the lowest loss."""

StartExamples = Examples | FederatedData | None
"""What a design starts from: examples (those of all clients together), or None for random numbers or tokens."""

# Losses are in units of the clip norm, so their gradients are small. Adam's usual 1e-8 would damp the steps.
_ADAM_EPSILON = 1e-16

# Samples whose gradients are held in memory together when only their losses are needed.
_BATCH = 8


Schedule = Literal["cosine", "constant"]
"""How the learning rate changes along a design."""


@dataclass(frozen=True)
class DefaultRate:
    """Initial learning rate and schedule of a kind of samples, where the settings leave them open."""

    start: float
    schedule: Schedule


@dataclass(frozen=True, kw_only=True)
class DesignSettings:
    """How canaries are optimized.

    Args:
        loss: Which loss is minimized.
        norm_constant: Norm that a canary's update should reach, in clip norms.
        iterations: Largest number of Adam iterations; 0 takes the start as it is.
        learning_rate: Initial learning rate of Adam, or None for the default of images or texts.
        schedule: ``"cosine"`` lowers the learning rate to zero along half a cosine, ``"constant"`` keeps it, None takes
            the first for images and the second for texts.
        patience: Stop early if no canary's best loss fell by the share ``tolerance`` in this many iterations.
        tolerance: See ``patience``.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> from coalmine.methods.canife.design.loss import CovarianceLoss
        >>> DesignSettings(loss=CovarianceLoss(), iterations=1000, schedule="constant", learning_rate=1.0).iterations
        1000
    """

    loss: Loss = field(default_factory=LikelihoodRatioLoss)
    norm_constant: float = 1.0
    iterations: int = 200
    learning_rate: float | None = None
    schedule: Schedule | None = None
    patience: int = 50
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        kinds = (MeanLoss, CovarianceLoss, LikelihoodRatioLoss)
        check_kind("loss", self.loss, kinds, "MeanLoss(), CovarianceLoss() or LikelihoodRatioLoss(...)")
        check_count("iterations", self.iterations, least=0)
        check_count("patience", self.patience)
        if check_number("norm_constant", self.norm_constant) < 0 or math.isinf(self.norm_constant):
            raise InputError(f"norm_constant must be a finite number of at least 0, got {self.norm_constant}")
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)
        if self.schedule not in ("cosine", "constant", None):
            raise InputError(f"schedule must be cosine or constant, got {self.schedule!r}")
        if not 0 <= check_number("tolerance", self.tolerance) < 1:
            raise InputError(f"tolerance must be in [0, 1), got {self.tolerance}")

    def loss_for(
        self, pool: Pool, client: LocalTraining, gradients: SampleGradients, device: torch.device | None = None
    ) -> DesignLoss:
        """Return the loss of canaries.

        Args:
            pool: Updates of mock clients.
            client: How the canaries' clients train.
            gradients: Computes the gradients that the loss will be given.
            device: Where these gradients are; the CPU if None.
        """
        return DesignLoss(
            pool,
            self.loss,
            step=step_size(client),
            norm_constant=self.norm_constant,
            columns=gradients.columns,
            device=device,
        )

    def rate(self, iteration: int, default: DefaultRate) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        start = self.learning_rate or default.start
        if (self.schedule or default.schedule) == "constant":
            return start
        return start * (math.cos(math.pi * iteration / self.iterations) + 1) / 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Canary:
    """A designed sample with its target, as a client holds them.

    Args:
        inputs: The sample, (*input_shape).
        targets: Its class, or the next token of each position.
        loss: Design loss of the sample as it is here.
        initial_loss: Design loss of its start.
        norm: Norm of its client's update before clipping, in clip norms.
    """

    inputs: Array
    targets: Array
    loss: float
    initial_loss: float
    norm: float

    @property
    def health(self) -> float:
        """The share of the initial loss that the design removed: 1 is perfect, 0 no better than the start."""
        return 1 - self.loss / self.initial_loss if self.initial_loss > 0 else 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class DesignOutcome:
    """Designed canaries, the best first, and how the design went.

    Args:
        canaries: The samples.
        task: The task they are examples of.
        losses: (iterations, canaries), what the optimizer saw.
        not_finite: Iteration, counted from 1, in which a loss or its derivative was not finite and the design stopped,
            or None. The canaries are the best before it.
        gradients_by: Which implementation of per-sample gradients was used; speeds up the next design.
    """

    canaries: tuple[Canary, ...]
    task: Task
    losses: Floats
    not_finite: int | None
    gradients_by: str

    @property
    def iterations(self) -> int:
        """The number of iterations made."""
        return len(self.losses)

    @property
    def clients(self) -> FederatedData:
        """Each canary as a client whose only example it is."""
        inputs, targets = (np.stack([getattr(c, name) for c in self.canaries]) for name in ("inputs", "targets"))
        return clients_of(inputs, targets, self.task)


def clients_of(inputs: Array, targets: Array, task: Task) -> FederatedData:
    """Return each of these examples as a client of its own."""
    bounds = np.stack([np.arange(len(inputs)), np.arange(1, len(inputs) + 1)], axis=1)
    names = [f"canary-{i}" for i in range(len(inputs))]
    return FederatedData(inputs=inputs, targets=targets, bounds=bounds, names=names, task=task)


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended: the variable, the best of each canary, and the losses (iterations, k)."""

    last: Tensor
    best: Tensor
    losses: Floats
    not_finite: int | None


def check_settings(settings: DesignSettings | None, count: int, seed: int) -> DesignSettings:
    """Return the settings, or the default ones; raise an error for a bad count or seed."""
    check_count("count", count)
    check_count("seed", seed, least=0)
    if settings is not None:
        check_kind("settings", settings, DesignSettings, "DesignSettings(...)")
    return settings or DesignSettings()


def step_size(client: LocalTraining) -> float:
    """Return the factor from a gradient to the update of a client with a single example, to first order.

    It is the learning rate times the number of steps; with momentum μ, step t counts 1 + μ + … + μᵗ⁻¹ times.
    """
    if not isinstance(client.optimizer, SGD):
        raise InputError(f"canaries can be designed only for clients that train with SGD, got {client.optimizer}")
    length = traveled = 0.0
    for _ in range(client.steps(1)):
        length = client.optimizer.momentum * length + 1
        traveled += length
    return client.optimizer.learning_rate * traveled


def start_examples(start: Examples | FederatedData, count: int, draw: np.random.Generator) -> Examples:
    """Return ``count`` examples to start from, drawn without replacement."""
    examples = start.pooled() if isinstance(start, FederatedData) else start
    if len(examples) < count:
        raise InputError(f"{count} canaries cannot start from {len(examples)} examples: give at least {count}")
    rows = draw.choice(len(examples), count, replace=False)
    return Examples(examples.inputs[rows], examples.targets[rows])


def start_labels(target: Target, labels: Tensor, task: Task) -> Tensor:
    """Return the classes (k,) to start with: ``labels``, or the given class for all."""
    if isinstance(target, int):
        if isinstance(target, bool) or not 0 <= target < task.classes:
            raise InputError(f"target must be a class in 0..{task.classes - 1}, random or best, got {target}")
        return torch.full_like(labels, target)
    if target not in ("random", "best"):
        raise InputError(f"target must be a class, random or best, got {target!r}")
    return labels


def best_labels(gradients: SampleGradients, loss: DesignLoss, inputs: Tensor, classes: int) -> Tensor:
    """Return for each sample the class (k,) with which its loss is lowest."""
    by_class = [
        sample_losses(gradients, loss, inputs, torch.full((len(inputs),), label, device=inputs.device))[0]
        for label in range(classes)
    ]
    return torch.from_numpy(np.argmin(by_class, axis=0)).to(inputs.device)


def sample_losses(
    gradients: SampleGradients, loss: DesignLoss, inputs: Tensor, targets: Tensor
) -> tuple[Floats, Floats]:
    """Return the losses and norms (k,) of samples, a few at a time."""
    batches = [
        loss(gradients.of(*batch).detach()) for batch in zip(inputs.split(_BATCH), targets.split(_BATCH), strict=True)
    ]
    losses, norms = (np.concatenate(values) for values in zip(*batches, strict=True))
    return np.where(np.isnan(losses), np.inf, losses), norms  # NaN would be the least of all


def descend(
    variable: Tensor,
    samples: Callable[[Tensor], tuple[Tensor, Tensor]],
    gradients: SampleGradients,
    loss: DesignLoss,
    settings: DesignSettings,
    *,
    default_rate: DefaultRate,
    project: Callable[[Tensor], None],
) -> Descent:
    """Minimize the loss over a variable from which samples are made.

    Canaries do not influence one another: Adam works element by element.

    Args:
        variable: (k, …), the starting point.
        samples: Turns the variable into inputs and targets.
        gradients: Computes per-sample gradients.
        loss: The loss as a function of these gradients.
        settings: Iterations, learning rate and stopping rule.
        default_rate: Learning rate and schedule if the settings give none.
        project: Brings the variable back into its valid range, in place.

    Raises:
        InputError: If the loss does not depend on the variable.
    """
    now = variable.detach().clone()
    best = now.clone()
    lowest = np.full(len(now), np.inf)
    history: list[Floats] = []
    lowest_so_far: list[Floats] = []
    state: OptimizerState = {}
    for iteration in track(range(settings.iterations), "designing canaries"):
        rows = gradients.of(*samples(now.requires_grad_()))
        # Two stages: ∂L/∂g in closed form without a graph, then ∂⟨g(z), v⟩/∂z with v = ∂L/∂g held fixed.
        values = loss.derivative(rows.detach())
        step = input_derivative(rows, now, values.derivatives)
        del rows
        now = now.detach()
        better = values.losses < lowest  # False for NaN
        chosen = torch.from_numpy(better).to(now.device).view(-1, *[1] * (now.ndim - 1))
        best = torch.where(chosen, now, best)
        lowest = np.where(better, values.losses, lowest)
        history.append(values.losses)
        lowest_so_far.append(lowest)
        if iteration == 0 and not bool(step.any()):
            raise InputError(
                "the model's gradient does not change with its inputs (are they rounded or compared?), so no sample "
                "can be designed: set iterations to 0 to take samples as they are"
            )
        # A sum is finite only if all of its terms are.
        if not math.isfinite(float(values.losses.sum()) + float(step.sum())):
            return Descent(best, best, np.stack(history), iteration + 1)
        if iteration >= settings.patience:
            before = lowest_so_far[iteration - settings.patience]
            if (lowest >= (1 - settings.tolerance) * before).all():
                break
        rate = settings.rate(iteration, default_rate)
        if rate > 0:
            Adam(learning_rate=rate, epsilon=_ADAM_EPSILON).step([now], [step], state)
        project(now)
    return Descent(now, best, np.stack(history) if history else np.zeros((0, len(lowest))), None)
