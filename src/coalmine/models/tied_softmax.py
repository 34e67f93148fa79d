"""Cross-entropy over a large vocabulary whose embedding is also the output layer, with its gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coalmine.models.workspace import Workspace

# Logits worked on together: about 4 MB, which a core's share of the cache holds, and enough rows for a fast product.
_BLOCK = 1 << 20

_TOO_SMALL = 1e-30  # for float32: what is smaller may have lost digits, what is larger by as much may overflow


def tied_cross_entropy(
    hidden: Tensor, table: Tensor, owners: Tensor, targets: Tensor, workspace: Workspace
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean cross-entropy of the logits ``hidden`` · ``table``ᵀ, and its gradients by ``hidden`` and by ``table``.

    ``hidden`` is (rows, width) and ``table`` (words, width). Each of the ``targets`` is to be predicted from the row
    that ``owners`` names; a row may own any number of them. The logits of a block of rows are made, turned into
    multiples of the probabilities in place and multiplied back before the next block, so they stay in the cache and
    only one block of them ever exists. Without targets, loss and gradients are zero. Call it with gradients off.
    """
    words, rows = len(table), len(hidden)
    step = max(1, _BLOCK // words)
    scratch = workspace.take("logits", min(step, rows), words, like=hidden)
    share = 1 / max(len(targets), 1)
    weights = torch.bincount(owners, minlength=rows).to(hidden.dtype).mul_(share)[:, None]
    owned, aimed = hidden.index_select(0, owners), table.index_select(0, targets)
    loss = -share * (owned * aimed).sum()
    by_hidden = torch.empty_like(hidden)
    by_table = torch.empty_like(table) if rows else torch.zeros_like(table)
    in_bits = hidden * math.log2(math.e)  # powers of two take half the time of powers of e
    for start in range(0, rows, step):
        block = slice(start, min(start + step, rows))
        logits = torch.mm(in_bits[block], table.t(), out=scratch[: block.stop - start])
        powers = logits.exp2_()
        sums = powers.sum(1, keepdim=True)
        logs = sums.log()
        if not (float(sums.min()) > _TOO_SMALL and float(sums.max()) < 1 / _TOO_SMALL):
            logits = torch.mm(in_bits[block], table.t(), out=logits)
            largest = logits.amax(1, keepdim=True)
            powers = logits.sub_(largest).exp2_()
            sums = powers.sum(1, keepdim=True)
            logs = sums.log() + largest * math.log(2)
        loss += (weights[block] * logs).sum()
        shares = weights[block] / sums
        torch.mm(powers, table, out=by_hidden[block]).mul_(shares)
        by_table.addmm_(powers.t(), shares * hidden[block], beta=int(start > 0))
    # by the logits, a target's gradient is the chances less one at the target: here is the one
    by_hidden.index_add_(0, owners, aimed, alpha=-share)
    by_table.index_add_(0, targets, owned, alpha=-share)
    return loss, by_hidden, by_table


class TiedCrossEntropy(torch.autograd.Function):
    """``apply(hidden, table, targets, workspace)``: the mean loss of a target for each row, differentiable once."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, targets: Tensor, workspace: Workspace) -> Tensor:
        """The loss; its gradients are computed on the way, while the logits are in the cache."""
        owners = torch.arange(len(targets), device=targets.device)
        loss, *gradients = tied_cross_entropy(hidden, table, owners, targets, workspace)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """What ``forward`` found, times the gradient of what came after."""
        by_hidden, by_table = ctx.saved_tensors
        return by_hidden * scale, by_table * scale, None, None
