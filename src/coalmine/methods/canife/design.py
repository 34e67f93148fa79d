"""The optimization that images and texts share: Adam on many canaries at once, the best of each kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_kind, check_number, check_positive
from coalmine.methods.canife.design_loss import CovarianceLoss, DesignLoss, LikelihoodRatioLoss, Loss, MeanLoss
from coalmine.methods.canife.pool import Pool
from coalmine.methods.canife.sample_gradients import SampleGradients, moved_by
from coalmine.progress import track
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.data.federated import Array, FederatedData, Task
from coalmine.simulation.optimizers import SGD, Adam, State

# Losses are in units of the clip norm, so that their gradients are small: Adam must not take them for rounding.
_EPSILON = 1e-16

# Samples whose gradients are held together where only their losses are asked for.
_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class DesignSettings:
    """How canaries are optimized.

    ``iterations`` of Adam at most, whose ``learning_rate`` (None: what suits images or texts) falls to zero along half
    a cosine or stays constant. It stops early where no canary's best loss has fallen by the share ``tolerance`` in
    ``patience`` iterations. ``norm_constant`` is the length, in clip norms, that a canary's update should reach.
    """

    loss: Loss = field(default_factory=LikelihoodRatioLoss)
    norm_constant: float = 1.0
    iterations: int = 200
    learning_rate: float | None = None
    schedule: Literal["cosine", "constant"] = "cosine"
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
        if self.schedule not in ("cosine", "constant"):
            raise InputError(f"schedule must be cosine or constant, got {self.schedule!r}")
        if not 0 <= check_number("tolerance", self.tolerance) < 1:
            raise InputError(f"tolerance must be in [0, 1), got {self.tolerance}")

    def loss_for(self, pool: Pool, client: LocalTraining, gradients: SampleGradients) -> DesignLoss:
        """The loss of canaries whose clients train like ``client``."""
        return DesignLoss(
            pool, self.loss, step=step_of(client), norm_constant=self.norm_constant, boxes=gradients.boxes
        )

    def rate(self, iteration: int, usual: float) -> float:
        """The learning rate of an iteration, counted from 0."""
        start = self.learning_rate or usual
        return start * (math.cos(math.pi * iteration / self.iterations) + 1) / 2 if self.schedule == "cosine" else start


@dataclass(frozen=True, kw_only=True, eq=False)
class Canary:
    """A designed sample with its target: ``inputs`` (*input_shape) and ``targets``, as a client holds them.

    ``loss`` is its design loss and ``initial_loss`` that of its start, each of the sample as it is given here; ``norm``
    is that of its client's update before clipping, over the clip norm.
    """

    inputs: Array
    targets: Array
    loss: float
    initial_loss: float
    norm: float

    @property
    def health(self) -> float:
        """The share of the initial loss that design took away: 1 is perfect, 0 no better than the start."""
        return 1 - self.loss / self.initial_loss if self.initial_loss > 0 else 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """Canaries, the best first, and how they came about.

    ``losses`` (iterations, canaries) are what the optimizer saw. ``not_finite`` is the iteration, counted from 1, in
    which a loss or its derivative was not finite and the design stopped: the canaries are the best until then. ``way``
    names how gradients were computed.
    """

    canaries: tuple[Canary, ...]
    task: Task
    losses: Floats
    seconds: float
    not_finite: int | None
    way: str

    @property
    def iterations(self) -> int:
        """How many were made."""
        return len(self.losses)

    @property
    def clients(self) -> FederatedData:
        """Each canary as a client of its own, whose only example it is."""
        inputs, targets = (np.stack([getattr(c, name) for c in self.canaries]) for name in ("inputs", "targets"))
        return clients_of(inputs, targets, self.task)


def clients_of(inputs: Array, targets: Array, task: Task) -> FederatedData:
    """Each of these examples as a client of its own."""
    bounds = np.stack([np.arange(len(inputs)), np.arange(1, len(inputs) + 1)], axis=1)
    names = [f"canary-{i}" for i in range(len(inputs))]
    return FederatedData(inputs=inputs, targets=targets, bounds=bounds, names=names, task=task)


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended: the variables, the best of each canary so far, and its losses (iterations, k)."""

    last: list[Tensor]
    best: list[Tensor]
    losses: Floats
    not_finite: int | None


def checked_settings(settings: DesignSettings | None, count: int, seed: int) -> DesignSettings:
    """The settings, or the usual ones; bad counts are refused."""
    check_count("count", count)
    check_count("seed", seed, least=0)
    if settings is not None:
        check_kind("settings", settings, DesignSettings, "DesignSettings(...)")
    return settings or DesignSettings()


def step_of(client: LocalTraining) -> float:
    """What a client with a single example multiplies its gradient with, to first order.

    Learning rate times steps; with momentum μ the t-th step goes 1 + μ + … + μᵗ⁻¹ times as far as the first.
    """
    if not isinstance(client.optimizer, SGD):
        raise InputError(
            f"a canary is designed for clients that take steps along their gradient, with SGD, got {client.optimizer}"
        )
    length = traveled = 0.0
    for _ in range(client.steps(1)):
        length = client.optimizer.momentum * length + 1
        traveled += length
    return client.optimizer.learning_rate * traveled


def valued(gradients: SampleGradients, loss: DesignLoss, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The losses and norms (k,) of samples as they are, a few at a time."""
    found = [
        loss([rows.detach() for rows in gradients.of(*some)])
        for some in zip(inputs.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True)
    ]
    losses, norms = zip(*found, strict=True)
    return torch.cat(losses), torch.cat(norms)


def descend(
    variables: Sequence[Tensor],
    samples: Callable[[list[Tensor]], tuple[Tensor, Tensor]],
    gradients: SampleGradients,
    loss: DesignLoss,
    settings: DesignSettings,
    *,
    usual_rate: float,
    project: Callable[[list[Tensor]], None],
) -> Descent:
    """Move the ``variables``, [(k, …), …], that ``samples`` makes inputs and targets of, down the loss.

    ``project`` brings them back to where they may be, in place. Each canary is on its own: Adam knows no sums.
    """
    now = [value.detach().clone() for value in variables]
    best = [value.clone() for value in now]
    lowest = torch.full((len(now[0]),), math.inf, dtype=torch.float64)
    history: list[Tensor] = []
    bests: list[Tensor] = []
    state: State = {}
    for iteration in track(range(settings.iterations), "designing canaries"):
        leaves = [value.requires_grad_() for value in now]
        rows = gradients.of(*samples(leaves))
        here = loss.derivative([some.detach() for some in rows])
        moves = moved_by(rows, leaves, here.derivatives)
        del rows
        now = [value.detach() for value in now]
        finite = bool(here.losses.isfinite().all()) and all(bool(move.isfinite().all()) for move in moves)
        better = here.losses < lowest  # never true of NaN
        for kept, value in zip(best, now, strict=True):
            kept[better] = value[better]
        lowest = torch.where(better, here.losses, lowest)
        history.append(here.losses)
        bests.append(lowest)
        if iteration == 0 and not any(bool(move.any()) for move in moves):
            raise InputError(
                "the model's gradient does not change with its inputs (are they rounded, or compared?): a sample "
                "cannot be designed for it; 0 iterations take samples as they are"
            )
        if not finite:
            return Descent(best, best, torch.stack(history).numpy(), iteration + 1)
        if iteration >= settings.patience:
            before = bests[iteration - settings.patience]
            if bool((lowest >= (1 - settings.tolerance) * before).all()):
                break
        rate = settings.rate(iteration, usual_rate)
        if rate > 0:
            Adam(learning_rate=rate, epsilon=_EPSILON).step(now, moves, state)
        project(now)
    return Descent(now, best, torch.stack(history).numpy() if history else np.zeros((0, len(lowest))), None)
