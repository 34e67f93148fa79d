"""The loss that CANIFE minimizes (equation 1), and its derivative with respect to the canary's gradient in closed form.

Let g be the canary's gradient and ĝ its direction, U the pool's updates over the clip norm C (m × d), b = U ĝ, and
s the norm of what the canary's client sends before clipping, over C. The loss is

    bᵀ W b + max(c − s, 0)²

The first term says how strongly the pool's updates disturb the score; the second asks the canary to reach the clip
norm. W = I/m is the paper's Loss 2 (covariance), W = 1 1ᵀ/m² its Loss 1 (mean update). W = ((m σ²/n) I + U Uᵀ)⁻¹ is the
share of the likelihood ratio's separation that is lost at noise σ in a cohort of n: such a canary is designed for
`likelihood_ratio_direction` rather than for ⟨ũ, u_c⟩. docs/canife-design.md has the derivation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_positive
from coalmine.methods.canife.design_pool import Pool
from coalmine.simulation import flat

# Numbers of the pool that are copied into one matrix, at most: 64 MB.
_JOINED = 1 << 24


@dataclass(frozen=True)
class MeanLoss:
    """The paper's Loss 1: the squared product with the pool's mean update."""

    def metric(self, pool: Pool) -> Tensor:
        """Return W, (m, m)."""
        return torch.full((len(pool), len(pool)), 1 / len(pool) ** 2, dtype=torch.float64)


@dataclass(frozen=True)
class CovarianceLoss:
    """The paper's Loss 2: the mean squared product with the pool's updates."""

    def metric(self, pool: Pool) -> Tensor:
        """Return W, (m, m)."""
        return torch.eye(len(pool), dtype=torch.float64) / len(pool)


@dataclass(frozen=True, kw_only=True)
class LikelihoodRatioLoss:
    """The share of ĝ that is lost when a round is scored along the likelihood ratio's direction.

    With little noise, as by default, it is the share of ĝ in the span of the pool's updates.

    Args:
        noise_multiplier: Noise on the sum, in clip norms.
        cohort: Number of clients expected in a round.
    """

    noise_multiplier: float = 0.01
    cohort: float = 100

    def __post_init__(self) -> None:
        check_positive("noise_multiplier", self.noise_multiplier)
        check_positive("cohort", self.cohort)

    def metric(self, pool: Pool) -> Tensor:
        """Return W, (m, m)."""
        ridge = len(pool) * self.noise_multiplier**2 / self.cohort
        noise = ridge * torch.eye(len(pool), dtype=torch.float64)
        inverse: Tensor = torch.linalg.inv(noise + pool.gram / pool.clip_norm**2)
        return inverse


Loss = MeanLoss | CovarianceLoss | LikelihoodRatioLoss


@dataclass(frozen=True, eq=False)
class LossValues:
    """The losses of k canaries (k,), the norms s (k,), and the derivatives v with respect to the gradients (k, d)."""

    losses: Floats
    norms: Floats
    derivatives: Tensor


class DesignLoss:
    """The loss of canaries against a pool, as a function of their gradients.

    Args:
        pool: Updates of mock clients.
        loss: Which W to use.
        step: Factor from a gradient to a client's update: its learning rate times its number of steps.
        norm_constant: c, the norm to reach, in clip norms.
        columns: Which numbers of the flat gradient are given, as in `SampleGradients.columns`.
        device: Where gradients are; the pool's updates are copied there.
    """

    def __init__(
        self,
        pool: Pool,
        loss: Loss,
        *,
        step: float,
        norm_constant: float,
        columns: Tensor | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._metric, self._clip_norm = loss.metric(pool), pool.clip_norm
        self._step, self._constant = step, norm_constant
        self._parts_of_pool = [
            (where if isinstance(where, slice) else where.to(device), rows.to(device))
            for where, rows in _joined(pool, columns)
        ]

    def __call__(self, gradients: Tensor) -> tuple[Floats, Floats]:
        """Return the losses and norms (k,) of gradients (k, d)."""
        losses, norms, _, _ = self._evaluated(gradients)
        return losses, norms

    @np.errstate(invalid="ignore", over="ignore")  # whoever minimizes the loss looks for numbers that are not finite
    def derivative(self, gradients: Tensor) -> LossValues:
        """Return the losses with v = ∂L/∂g = (2/‖g‖) (I − ĝ ĝᵀ) Uᵀ W b − 2 max(c − s, 0) (step/C) ĝ."""
        losses, norms, lengths, weighted = self._evaluated(gradients)
        # The pool's rows are C U.
        weights = torch.from_numpy(weighted * (2 / (lengths * self._clip_norm))[:, None]).to(gradients)
        across = torch.zeros_like(gradients)
        for columns, rows in self._parts_of_pool:
            across[:, columns] = weights @ rows
        # The component along ĝ is bᵀ W b up to rounding. Where updates resemble the canary's, (I − ĝ ĝᵀ) leaves little
        # of a large vector, so we measure the component on that very vector instead.
        along = -(across * gradients).sum(1).cpu().double().numpy() / lengths**2
        along -= 2 * np.maximum(self._constant - norms, 0) * self._step / (self._clip_norm * lengths)
        return LossValues(losses, norms, across.addcmul_(gradients, torch.from_numpy(along).to(gradients)[:, None]))

    @np.errstate(invalid="ignore", over="ignore")
    def _evaluated(self, gradients: Tensor) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the losses, the norms s, the lengths ‖g‖ (1 for a gradient of zeros), and W b."""
        # These are a few numbers for each canary, for which NumPy takes a tenth of torch's time.
        lengths = flat.norms(gradients).numpy()
        norms = lengths * self._step / self._clip_norm
        lengths = np.where(lengths == 0, 1.0, lengths)
        dots = np.zeros((len(gradients), len(self._metric)))
        for columns, rows in self._parts_of_pool:
            dots += (gradients[:, columns] @ rows.T).cpu().numpy()
        b = dots / (lengths * self._clip_norm)[:, None]
        weighted = (torch.from_numpy(b) @ self._metric).numpy()  # not by NumPy, which may start threads
        losses = (weighted * b).sum(1) + np.maximum(self._constant - norms, 0) ** 2
        # A gradient whose length overflows would be orthogonal to everything.
        return np.where(np.isfinite(norms), losses, np.nan), norms, lengths, weighted


def _joined(pool: Pool, given: Tensor | None) -> list[tuple[slice | Tensor, Tensor]]:
    """Return the pool's updates in a few parts, each with its columns among the ``given`` ones of the flat gradient.

    One product with a large matrix costs less than many with small ones, so small parameters are copied together.
    """
    place = torch.arange(pool.dim)
    if given is not None:
        place = torch.full((pool.dim,), -1)
        place[given.cpu()] = torch.arange(len(given))
    pieces = place.split([block.shape.numel() for block in pool.blocks])
    groups: list[list[tuple[Tensor, Tensor]]] = []
    for piece, block in zip(pieces, pool.blocks, strict=True):
        columns = piece.view(block.shape)[block.index].flatten()
        if bool((columns < 0).any()):
            raise InputError(
                "the design pool was made with another model, or for inputs of another size, than the canary"
            )
        if not groups or sum(rows.numel() for _, rows in groups[-1]) + block.rows.numel() > _JOINED:
            groups.append([])
        groups[-1].append((columns, block.rows))
    parts: list[tuple[slice | Tensor, Tensor]] = []
    for group in groups:
        columns, rows = (values[0] if len(group) == 1 else torch.cat(values, -1) for values in zip(*group, strict=True))
        dense = len(columns) > 0 and int(columns[-1] - columns[0]) == len(columns) - 1
        parts.append((slice(int(columns[0]), int(columns[-1]) + 1) if dense else columns, rows))
    return parts
