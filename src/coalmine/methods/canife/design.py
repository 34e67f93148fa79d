"""Algorithm 1: the loss that CANIFE minimizes (equation 1), and its minimization for many canaries at once.

Let g be the canary's gradient and ĝ its direction, U the pool's updates over the clip norm C (m × d), b = U ĝ, and
s the norm of what the canary's client sends before clipping, over C. The loss is

    bᵀ W b + max(c − s, 0)²

The first term says how strongly the pool's updates disturb the score; the second asks the canary to reach the clip
norm. W = I/m is the paper's Loss 2 (covariance), W = 1 1ᵀ/m² its Loss 1 (mean update). With W = ((m σ²/n) I +
U Uᵀ)⁻¹, bᵀ W b is the fraction of the likelihood ratio's separation that is lost at noise σ in a cohort of n: such a
canary is designed for `likelihood_ratio_direction` rather than for ⟨ũ, u_c⟩. docs/canife.md has the derivation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_positive
from coalmine.methods.canife.pool import Pool
from coalmine.methods.canife.sample_gradients import SampleGradients, input_derivative
from coalmine.progress import track
from coalmine.simulation import flat
from coalmine.simulation.client import SGD, Adam, LocalTraining, OptimizerState

# Which W is used: that of the likelihood ratio, the paper's Loss 2, or its Loss 1.
LossName = Literal["likelihood-ratio", "covariance", "mean"]

# How the learning rate changes along a design.
Schedule = Literal["cosine", "constant"]

# λ = m σ²/n of the likelihood ratio's W at σ = 0.01 and n = 100. With so little noise, bᵀ W b is the share of ĝ in the
# span of the pool's updates; with more, the loss ignores directions in which noise will hide the canary anyway.
_RIDGE_PER_CLIENT = 0.01**2 / 100

# Losses are in units of the clip norm, so their gradients are small. Adam's usual 1e-8 would damp the steps.
_ADAM_EPSILON = 1e-16

# A design ends when no canary's best loss fell by this share within ``patience`` iterations.
_TOLERANCE = 0.01

# Samples whose gradients are held in memory together when only their losses are needed.
_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class DesignSettings:
    """How canaries are optimized.

    Args:
        loss: Which loss is minimized: ``"likelihood-ratio"``, ``"covariance"`` (the paper's Loss 2) or ``"mean"``
            (Loss 1).
        norm_constant: Norm that a canary's update should reach, in clip norms.
        iterations: Largest number of Adam iterations; 0 takes the start as it is.
        learning_rate: Initial learning rate of Adam, or None for the default of images or texts.
        schedule: ``"cosine"`` lowers the learning rate to zero along half a cosine, ``"constant"`` keeps it, None takes
            the first for images and the second for texts.
        patience: Stop early if no canary's best loss fell by 1% in this many iterations.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> DesignSettings(loss="covariance", iterations=1000, schedule="constant", learning_rate=1.0).iterations
        1000
    """

    loss: LossName = "likelihood-ratio"
    norm_constant: float = 1.0
    iterations: int = 200
    learning_rate: float | None = None
    schedule: Schedule | None = None
    patience: int = 50

    def __post_init__(self) -> None:
        if self.loss not in get_args(LossName):
            raise InputError(f"loss must be one of {', '.join(get_args(LossName))}, got {self.loss!r}")
        check_count("iterations", self.iterations, least=0)
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)


class DesignLoss:
    """The loss of canaries against a pool, as a function of their gradients.

    Args:
        pool: Updates of mock clients.
        loss: Which W to use.
        step: Factor from a gradient to a client's update (`step_size`).
        norm_constant: c, the norm to reach, in clip norms.
        used: Which coordinates of the flat gradient are given, as in `SampleGradients.used`; by default those that the
            pool holds.
        device: Where gradients are; the pool's updates are copied there.
    """

    def __init__(
        self,
        pool: Pool,
        loss: LossName = "covariance",
        *,
        step: float,
        norm_constant: float,
        used: Tensor | None = None,
        device: torch.device | None = None,
    ) -> None:
        count, self._clip_norm = len(pool), pool.clip_norm
        self._step, self._constant = step, norm_constant
        match loss:
            case "mean":
                self._metric = torch.full((count, count), 1 / count**2, dtype=torch.float64)
            case "covariance":
                self._metric = torch.eye(count, dtype=torch.float64) / count
            case "likelihood-ratio":
                ridge = count * _RIDGE_PER_CLIENT * torch.eye(count, dtype=torch.float64)
                self._metric = torch.linalg.inv(ridge + pool.gram / pool.clip_norm**2)
        self._rows = (pool.rows if used is None else pool.at(used)).to(device)

    def __call__(self, gradients: Tensor) -> tuple[Floats, Floats]:
        """Return the losses and norms (k,) of gradients (k, d)."""
        losses, norms, _, _ = self._evaluated(gradients)
        return losses, norms

    @np.errstate(invalid="ignore", over="ignore")  # whoever minimizes the loss looks for numbers that are not finite
    def derivative(self, gradients: Tensor) -> tuple[Floats, Tensor]:
        """Return the losses (k,) with v = ∂L/∂g = (2/‖g‖) (I − ĝ ĝᵀ) Uᵀ W b − 2 max(c − s, 0) (step/C) ĝ."""
        losses, norms, lengths, weighted = self._evaluated(gradients)
        # The pool's rows are C U.
        weights = torch.from_numpy(weighted * (2 / (lengths * self._clip_norm))[:, None]).to(gradients)
        across = weights @ self._rows
        # The component along ĝ is bᵀ W b up to rounding. Where updates resemble the canary's, (I − ĝ ĝᵀ) leaves little
        # of a large vector, so we measure the component on that very vector instead.
        along = -(across * gradients).sum(1).cpu().double().numpy() / lengths**2
        along -= 2 * np.maximum(self._constant - norms, 0) * self._step / (self._clip_norm * lengths)
        return losses, across.addcmul_(gradients, torch.from_numpy(along).to(gradients)[:, None])

    @np.errstate(invalid="ignore", over="ignore")
    def _evaluated(self, gradients: Tensor) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the losses, the norms s, the lengths ‖g‖ (1 for a zero gradient), and W b."""
        # These are a few numbers for each canary, where NumPy is ten times faster than torch.
        lengths = flat.norms(gradients).numpy()
        norms = lengths * self._step / self._clip_norm
        lengths = np.where(lengths == 0, 1.0, lengths)
        dots = (gradients @ self._rows.T).cpu().double().numpy()
        b = dots / (lengths * self._clip_norm)[:, None]
        weighted = (torch.from_numpy(b) @ self._metric).numpy()  # not by NumPy, which may start threads
        losses = (weighted * b).sum(1) + np.maximum(self._constant - norms, 0) ** 2
        # A gradient whose length overflows would be orthogonal to everything.
        return np.where(np.isfinite(norms), losses, np.nan), norms, lengths, weighted


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


def sample_design_losses(
    gradients: SampleGradients, loss: DesignLoss, inputs: Tensor, targets: Tensor
) -> tuple[Floats, Floats]:
    """Return the losses and norms (k,) of samples, a few at a time."""
    losses, norms = [], []
    for batch in zip(inputs.split(_BATCH), targets.split(_BATCH), strict=True):
        batch_losses, batch_norms = loss(gradients.of(*batch).detach())
        losses.append(np.where(np.isnan(batch_losses), np.inf, batch_losses))  # NaN would win the argmin
        norms.append(batch_norms)
    return np.concatenate(losses), np.concatenate(norms)


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended: the variable, the best of each canary, and how many iterations it took.

    ``not_finite`` is the iteration, counted from 1, in which a loss or derivative was not finite, or None.
    """

    last: Tensor
    best: Tensor
    iterations: int
    not_finite: int | None


def descend(
    variable: Tensor,
    samples: Callable[[Tensor], tuple[Tensor, Tensor]],
    gradients: SampleGradients,
    loss: DesignLoss,
    settings: DesignSettings,
    *,
    rate: float,
    schedule: Schedule,
    project: Callable[[Tensor], None],
) -> Descent:
    """Minimize the loss with Adam over a variable from which samples are made (steps 4 to 8 of Algorithm 1).

    Canaries do not influence one another: Adam works element by element.

    Args:
        variable: (k, …), the starting point.
        samples: Turns the variable into inputs and targets.
        gradients: Computes per-sample gradients.
        loss: The loss as a function of these gradients.
        settings: Iterations, learning rate and stopping rule.
        rate: Learning rate if the settings give none.
        schedule: Schedule if the settings give none.
        project: Brings the variable back into its valid range, in place.

    Raises:
        InputError: If the loss does not depend on the variable.
    """
    rate, schedule = settings.learning_rate or rate, settings.schedule or schedule
    now = variable.detach().clone()
    best = now.clone()
    lowest = np.full(len(now), np.inf)
    lowest_so_far: list[Floats] = []
    state: OptimizerState = {}
    for iteration in track(range(settings.iterations), "designing canaries"):
        rows = gradients.of(*samples(now.requires_grad_()))
        # Two stages: ∂L/∂g in closed form without a graph, then ∂⟨g(z), v⟩/∂z with v = ∂L/∂g held fixed.
        losses, derivatives = loss.derivative(rows.detach())
        step = input_derivative(rows, now, derivatives)
        del rows
        now = now.detach()
        better = losses < lowest  # False for NaN
        chosen = torch.from_numpy(better).to(now.device).view(-1, *[1] * (now.ndim - 1))
        best = torch.where(chosen, now, best)
        lowest = np.where(better, losses, lowest)
        lowest_so_far.append(lowest)
        if iteration == 0 and not bool(step.any()):
            raise InputError(
                "the model's gradient does not change with its inputs (are they rounded or compared?), so no sample "
                "can be designed: set iterations to 0 to use the samples unchanged"
            )
        # A sum is finite only if all of its terms are.
        if not math.isfinite(float(losses.sum()) + float(step.sum())):
            return Descent(best, best, iteration + 1, iteration + 1)
        if iteration >= settings.patience:
            before = lowest_so_far[iteration - settings.patience]
            if (lowest >= (1 - _TOLERANCE) * before).all():
                break
        cosine = (math.cos(math.pi * iteration / settings.iterations) + 1) / 2
        current_rate = rate * cosine if schedule == "cosine" else rate
        if current_rate > 0:
            Adam(learning_rate=current_rate, epsilon=_ADAM_EPSILON).step([now], [step], state)
        project(now)
    return Descent(now, best, len(lowest_so_far), None)
