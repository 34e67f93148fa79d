"""Fused cross-entropy over a large vocabulary whose embedding table is also the output layer.

The logits of a block of rows are computed, exponentiated in place and multiplied back before the next block, so they
stay in the cache and only one block of them ever exists.

The reference is ``torch.nn.functional.cross_entropy`` of the logits, with which tests compare loss and gradients.
``benchmarks/trainer.py`` (row "Transformer") measures the gain: about 1.5 times for the Transformer on full sentences.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits kept at a time: 16 MB of float32, which the last-level cache holds.
_BLOCK = 1 << 22
# Words whose logits are computed and used together: enough for fast products, few enough for the cache of one core.
_WORDS = 1000

# Sums of float32 powers outside (1e-30, 1e30) may have lost digits or overflowed.
_TOO_SMALL = 1e-30


def tied_cross_entropy(hidden: Tensor, table: Tensor, owners: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean cross-entropy of the logits ``hidden`` @ ``table``ᵀ and its gradients with respect to both.

    ``hidden`` is (rows, width), ``table`` (words, width). Target i is predicted from row ``owners[i]``; a row may have
    any number of targets. Without targets, loss and gradients are zero. Call it with gradients off.
    """
    words, rows = len(table), len(hidden)
    blocks = max(1, -(-rows * words // _BLOCK))
    step = max(1, -(-rows // blocks))
    scratch = hidden.new_empty(min(step, rows) * words)
    share = 1 / max(len(targets), 1)
    weights = torch.bincount(owners, minlength=rows).to(hidden.dtype).mul_(share)[:, None]
    owner_rows, target_rows = hidden.index_select(0, owners), table.index_select(0, targets)
    loss = -share * (owner_rows * target_rows).sum()
    grad_hidden = torch.empty_like(hidden)
    grad_table = torch.empty_like(table) if rows else torch.zeros_like(table)
    scaled = hidden * math.log2(math.e)  # eˣ = 2^(x log₂ e), and exp2 takes half the time of exp
    for start in range(0, rows, step):
        block = slice(start, min(start + step, rows))
        logits = _BlockOfLogits(scaled[block], table, scratch)
        # Without subtracting the maximum first, which saves a pass; it is needed only where the sums leave float range.
        sums = logits.exponentiate(grad_hidden[block])
        log_sums = sums.log()
        if not (float(sums.min()) > _TOO_SMALL and float(sums.max()) < 1 / _TOO_SMALL):
            largest = logits.largest()
            sums = logits.exponentiate(grad_hidden[block], minus=largest)
            log_sums = sums.log() + largest * math.log(2)
        loss += (weights[block] * log_sums).sum()
        scales = weights[block] / sums
        grad_hidden[block] *= scales
        logits.add_to_table(scales * hidden[block], grad_table, first=start == 0)
    # The gradient with respect to the logits is the softmax minus the one-hot target. This is the one-hot part.
    grad_hidden.index_add_(0, owners, target_rows, alpha=-share)
    grad_table.index_add_(0, targets, owner_rows, alpha=-share)
    return loss, grad_hidden, grad_table


class _BlockOfLogits:
    """The logits of some rows, in pieces of the vocabulary."""

    def __init__(self, scaled: Tensor, table: Tensor, scratch: Tensor) -> None:
        self._scaled, self._table = scaled, table
        rows = len(scaled)
        cuts = [slice(start, min(start + _WORDS, len(table))) for start in range(0, len(table), _WORDS)]
        self._pieces = [(cut, scratch[rows * cut.start : rows * cut.stop].view(rows, -1)) for cut in cuts]

    def exponentiate(self, grad_hidden: Tensor, minus: Tensor | None = None) -> Tensor:
        """Exponentiate the logits ``minus`` an offset; return the sums, write the products with the table."""
        sums = self._scaled.new_zeros(len(self._scaled), 1)
        for cut, logits in self._pieces:
            torch.mm(self._scaled, self._table[cut].t(), out=logits)
            powers = (logits if minus is None else logits.sub_(minus)).exp2_()
            sums += powers.sum(1, keepdim=True)
            grad_hidden.addmm_(powers, self._table[cut], beta=int(cut.start > 0))
        return sums

    def largest(self) -> Tensor:
        """Return the largest logit of each row, (rows, 1)."""
        maxima = [torch.mm(self._scaled, self._table[cut].t(), out=logits).amax(1) for cut, logits in self._pieces]
        return torch.stack(maxima).amax(0)[:, None]

    def add_to_table(self, factors: Tensor, grad_table: Tensor, *, first: bool) -> None:
        """Add powersᵀ @ ``factors`` to ``grad_table``; the first block overwrites it."""
        for cut, powers in reversed(self._pieces):  # the last pieces are still in the cache
            grad_table[cut].addmm_(powers.t(), factors, beta=int(not first))


class TiedCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of one target per row: ``apply(hidden, table, targets)``. Differentiable once."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, targets: Tensor) -> Tensor:
        """Return the loss; computes the gradients too, while the logits are in the cache."""
        owners = torch.arange(len(targets), device=targets.device)
        loss, *gradients = tied_cross_entropy(hidden, table, owners, targets)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients that ``forward`` computed, times the incoming gradient."""
        grad_hidden, grad_table = ctx.saved_tensors
        return grad_hidden * scale, grad_table * scale, None
