"""How far a canary is from perfect, and the derivative of that by its gradient, in closed form.

With ĝ the direction of the canary's gradient, U the pool's updates over the clip norm C (m × d), b = U ĝ, and s the
norm of what the canary's client sends before clipping over C, the loss is

    bᵀ W b + max(c − s, 0)²

Its first term says how much the pool's updates stir the score, the second wants the canary to reach the clip norm.
W = I/m is the covariance loss (Loss 2 of Maddock et al. 2023), W = 1 1ᵀ/m² the mean-update loss (Loss 1). With
W = ((m σ²/n) I + U Uᵀ)⁻¹ it is what is lost of the likelihood ratio's separation at the noise σ in a cohort of n: the
canary is then made for ``score_direction``, not for ⟨ũ, u_c⟩.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coalmine.errors import InputError, check_positive
from coalmine.methods.canife.pool import Block, Index, Pool
from coalmine.methods.canife.sample_gradients import Box
from coalmine.simulation import flat


@dataclass(frozen=True)
class MeanLoss:
    """Loss 1: the square of the product with the pool's mean update."""

    def metric(self, pool: Pool) -> Tensor:
        """W, (m, m)."""
        return torch.full((len(pool), len(pool)), 1 / len(pool) ** 2, dtype=torch.float64)


@dataclass(frozen=True)
class CovarianceLoss:
    """Loss 2: the mean of the squared products with the pool's updates."""

    def metric(self, pool: Pool) -> Tensor:
        """W, (m, m)."""
        return torch.eye(len(pool), dtype=torch.float64) / len(pool)


@dataclass(frozen=True, kw_only=True)
class LikelihoodRatioLoss:
    """The share of ĝ that is lost in the likelihood-ratio direction, for this noise and expected cohort.

    With little noise, as by default, it is the share that lies in the pool's span.
    """

    noise_multiplier: float = 0.01
    cohort: float = 100

    def __post_init__(self) -> None:
        check_positive("noise_multiplier", self.noise_multiplier)
        check_positive("cohort", self.cohort)

    def metric(self, pool: Pool) -> Tensor:
        """W, (m, m)."""
        ridge = len(pool) * self.noise_multiplier**2 / self.cohort
        noise = ridge * torch.eye(len(pool), dtype=torch.float64)
        inverse: Tensor = torch.linalg.inv(noise + pool.gram / pool.clip_norm**2)
        return inverse


Loss = MeanLoss | CovarianceLoss | LikelihoodRatioLoss


@dataclass(frozen=True, eq=False)
class Valued:
    """The losses of k canaries (k,), the norms s (k,), and the derivatives of the losses by the gradients."""

    losses: Tensor
    norms: Tensor
    derivatives: list[Tensor]


class DesignLoss:
    """The loss for a pool.

    ``step`` is what a client multiplies a gradient with: its learning rate, times its steps. ``boxes`` are the parts of
    the parameters that gradients come for.
    """

    def __init__(self, pool: Pool, loss: Loss, *, step: float, norm_constant: float, boxes: Sequence[Box]) -> None:
        self._metric, self._clip_norm = loss.metric(pool), pool.clip_norm
        self._step, self._constant = step, norm_constant
        self._rows = [block.rows for block in pool.blocks]
        self._where = [_within(block, box) for block, box in zip(pool.blocks, boxes, strict=True)]

    def __call__(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The losses and norms of gradients [(k, *part), …]."""
        losses, norms, _ = self._parts(gradients)
        return losses, norms

    def derivative(self, gradients: Sequence[Tensor]) -> Valued:
        """With v = ∂L/∂g: (2/(‖g‖ C)) (I − ĝ ĝᵀ) Uᵀ W b − 2 max(c − s, 0) (step/C) ĝ.

        Where the updates and the canary's are much alike, the projection leaves little of what it is taken of: what
        lies along ĝ is measured on the very vector that it is taken from, and not computed as bᵀ W b, which it is but
        for rounding.
        """
        losses, norms, weighted = self._parts(gradients)
        length = norms * self._clip_norm / self._step
        safe = torch.where(length > 0, length, 1.0)
        across = (weighted * (2 / (safe * self._clip_norm))[:, None]).to(gradients[0].dtype)
        along = -2 * (self._constant - norms).clamp(min=0) * self._step / (self._clip_norm * safe)
        found = []
        for rows, where, piece in zip(self._rows, self._where, gradients, strict=True):
            part = across @ rows
            if where:
                whole = torch.zeros_like(piece)
                whole[(slice(None), *where)] = part.view(whole[(slice(None), *where)].shape)
            else:
                whole = part.view(piece.shape)
            found.append(whole)
            along -= (whole * piece).flatten(1).sum(1) / safe**2
        along = torch.where(length > 0, along, 0.0).to(across.dtype)
        for whole, piece in zip(found, gradients, strict=True):
            whole.addcmul_(piece, along.view(-1, *[1] * (piece.ndim - 1)))
        return Valued(losses, norms, found)

    def _parts(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The losses, the norms s, and W b, in float64."""
        count = len(gradients[0])
        squares, dots = (torch.zeros(size, dtype=torch.float64) for size in ((count,), (count, len(self._metric))))
        for rows, where, piece in zip(self._rows, self._where, gradients, strict=True):
            squares += flat.norms(piece.flatten(1)).square()
            dots += piece[(slice(None), *where)].reshape(count, -1) @ rows.T
        length = squares.sqrt()
        b = dots / (torch.where(length > 0, length, 1.0) * self._clip_norm)[:, None]
        weighted = b @ self._metric
        orthogonal = (weighted * b).sum(1)
        norms = length * self._step / self._clip_norm
        return orthogonal + (self._constant - norms).clamp(min=0).square(), norms, weighted


def _within(block: Block, box: Box) -> Index:
    """Where the pool's part of a parameter lies in the part that gradients come for."""
    if not box:
        return block.index
    index = block.index or tuple(slice(None) for _ in block.shape)
    found = []
    for part, reach, length in zip(index, box, block.shape, strict=True):
        assert isinstance(part, slice)
        (start, stop, _), (first, last, _) = part.indices(length), reach.indices(length)
        if stop > start and (start < first or stop > last):
            raise InputError("the design pool was made with another model, or for other inputs, than the canary")
        found.append(slice(start - first, stop - first) if stop > start else slice(0, 0))
    whole = all(
        part == slice(0, reach.indices(length)[1] - reach.indices(length)[0])
        for part, reach, length in zip(found, box, block.shape, strict=True)
    )
    return () if whole else tuple(found)
