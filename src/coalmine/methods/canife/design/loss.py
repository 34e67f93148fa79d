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

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coalmine.errors import InputError, check_positive
from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.per_sample_gradients import Box
from coalmine.methods.canife.pool_storage import Index, ParameterBlock
from coalmine.simulation import flat


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
    """The losses of k canaries (k,), the norms s (k,), and the derivatives of the losses in the gradients."""

    losses: Tensor
    norms: Tensor
    derivatives: list[Tensor]


class DesignLoss:
    """The loss of canaries against a pool, as a function of their gradients.

    Args:
        pool: Updates of mock clients.
        loss: Which W to use.
        step: Factor from a gradient to a client's update: its learning rate times its number of steps.
        norm_constant: c, the norm to reach, in clip norms.
        boxes: Part of each parameter that gradients are given for.
        device: Where gradients are; the pool's updates are copied there.
    """

    def __init__(
        self,
        pool: Pool,
        loss: Loss,
        *,
        step: float,
        norm_constant: float,
        boxes: Sequence[Box],
        device: torch.device | None = None,
    ) -> None:
        self._metric, self._clip_norm = loss.metric(pool), pool.clip_norm
        self._step, self._constant = step, norm_constant
        self._rows = [block.rows.to(device) for block in pool.blocks]
        self._where = [_index_within(block, box) for block, box in zip(pool.blocks, boxes, strict=True)]

    def __call__(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the losses and norms (k,) of gradients [(k, *part), …]."""
        losses, norms, _ = self._parts(gradients)
        return losses, norms

    def derivative(self, gradients: Sequence[Tensor]) -> LossValues:
        """Return the losses with v = ∂L/∂g = (2/(‖g‖ C)) (I − ĝ ĝᵀ) Uᵀ W b − 2 max(c − s, 0) (step/C) ĝ."""
        losses, norms, weighted = self._parts(gradients)
        length = norms * self._clip_norm / self._step
        safe = torch.where(length > 0, length, 1.0)
        across = (weighted * (2 / (safe * self._clip_norm))[:, None]).to(gradients[0])
        along = -2 * (self._constant - norms).clamp(min=0) * self._step / (self._clip_norm * safe)
        derivatives = []
        for rows, where, piece in zip(self._rows, self._where, gradients, strict=True):
            part = across @ rows
            if where:
                whole = torch.zeros_like(piece)
                whole[(slice(None), *where)] = part.view(whole[(slice(None), *where)].shape)
            else:
                whole = part.view(piece.shape)
            derivatives.append(whole)
            # The component along ĝ is bᵀ W b up to rounding. Where updates resemble the canary's, (I − ĝ ĝᵀ) leaves
            # little of a large vector, so we measure the component on that very vector instead.
            along -= (whole * piece).flatten(1).sum(1).cpu() / safe**2
        along = torch.where(length > 0, along, 0.0).to(across)
        for whole, piece in zip(derivatives, gradients, strict=True):
            whole.addcmul_(piece, along.view(-1, *[1] * (piece.ndim - 1)))
        return LossValues(losses, norms, derivatives)

    def _parts(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses, the norms s, and W b, in float64 on the CPU."""
        count = len(gradients[0])
        squares, dots = (torch.zeros(size, dtype=torch.float64) for size in ((count,), (count, len(self._metric))))
        for rows, where, piece in zip(self._rows, self._where, gradients, strict=True):
            squares += flat.norms(piece.flatten(1)).square()
            dots += (piece[(slice(None), *where)].reshape(count, -1) @ rows.T).cpu()
        length = squares.sqrt()
        b = dots / (torch.where(length > 0, length, 1.0) * self._clip_norm)[:, None]
        weighted = b @ self._metric
        orthogonal = (weighted * b).sum(1)
        norms = length * self._step / self._clip_norm
        return orthogonal + (self._constant - norms).clamp(min=0).square(), norms, weighted


def _index_within(block: ParameterBlock, box: Box) -> Index:
    """Return where the pool's part of a parameter lies within the part that gradients are given for."""
    if not box:
        return block.index
    index = block.index or tuple(slice(None) for _ in block.shape)
    within = []
    for part, reach, length in zip(index, box, block.shape, strict=True):
        assert isinstance(part, slice)
        (start, stop, _), (first, last, _) = part.indices(length), reach.indices(length)
        if stop > start and (start < first or stop > last):
            raise InputError(
                "the design pool was made with another model, or for inputs of another size, than the canary"
            )
        within.append(slice(start - first, stop - first) if stop > start else slice(0, 0))
    whole = all(
        part == slice(0, reach.indices(length)[1] - reach.indices(length)[0])
        for part, reach, length in zip(within, box, block.shape, strict=True)
    )
    return () if whole else tuple(within)
