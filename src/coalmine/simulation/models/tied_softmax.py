"""Cross-entropy over a large vocabulary whose embedding is also the output layer, with its gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coalmine.simulation.models.workspace import Workspace

# Logits kept at a time: about 16 MB, which the last cache holds; and how many words' logits are made and used together:
# enough for fast products, few enough for the cache next to the core.
_BLOCK, _WORDS = 1 << 22, 1000

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
    blocks = max(1, -(-rows * words // _BLOCK))
    step = max(1, -(-rows // blocks))
    scratch = workspace.take("logits", min(step, rows), words, like=hidden).view(-1)
    share = 1 / max(len(targets), 1)
    weights = torch.bincount(owners, minlength=rows).to(hidden.dtype).mul_(share)[:, None]
    owned, aimed = hidden.index_select(0, owners), table.index_select(0, targets)
    loss = -share * (owned * aimed).sum()
    by_hidden = torch.empty_like(hidden)
    by_table = torch.empty_like(table) if rows else torch.zeros_like(table)
    in_bits = hidden * math.log2(math.e)  # powers of two take half the time of powers of e
    for start in range(0, rows, step):
        block = slice(start, min(start + step, rows))
        pieces = _Pieces(in_bits[block], table, scratch)
        sums = pieces.powers(by_hidden[block])
        logs = sums.log()
        if not (float(sums.min()) > _TOO_SMALL and float(sums.max()) < 1 / _TOO_SMALL):
            largest = pieces.largest()
            sums = pieces.powers(by_hidden[block], less=largest)
            logs = sums.log() + largest * math.log(2)
        loss += (weights[block] * logs).sum()
        shares = weights[block] / sums
        by_hidden[block] *= shares
        pieces.add_products(shares * hidden[block], by_table, first=start == 0)
    # by the logits, a target's gradient is the chances less one at the target: here is the one
    by_hidden.index_add_(0, owners, aimed, alpha=-share)
    by_table.index_add_(0, targets, owned, alpha=-share)
    return loss, by_hidden, by_table


class _Pieces:
    """The logits of some rows, by pieces of the vocabulary."""

    def __init__(self, in_bits: Tensor, table: Tensor, scratch: Tensor) -> None:
        self._in_bits, self._table = in_bits, table
        rows = len(in_bits)
        cuts = [slice(start, min(start + _WORDS, len(table))) for start in range(0, len(table), _WORDS)]
        self._each = [(cut, scratch[rows * cut.start : rows * cut.stop].view(rows, -1)) for cut in cuts]

    def powers(self, by_hidden: Tensor, less: Tensor | None = None) -> Tensor:
        """Make two to the power of the logits, ``less`` something; their sums, and their products with the table."""
        sums = self._in_bits.new_zeros(len(self._in_bits), 1)
        for cut, logits in self._each:
            torch.mm(self._in_bits, self._table[cut].t(), out=logits)
            powers = (logits if less is None else logits.sub_(less)).exp2_()
            sums += powers.sum(1, keepdim=True)
            by_hidden.addmm_(powers, self._table[cut], beta=int(cut.start > 0))
        return sums

    def largest(self) -> Tensor:
        """The largest logit of each row."""
        found = [torch.mm(self._in_bits, self._table[cut].t(), out=logits).amax(1) for cut, logits in self._each]
        return torch.stack(found).amax(0)[:, None]

    def add_products(self, factors: Tensor, by_table: Tensor, *, first: bool) -> None:
        """Add the products of the powers with ``factors`` to ``by_table``, or put them there."""
        for cut, powers in reversed(self._each):  # the last ones are still in the cache
            by_table[cut].addmm_(powers.t(), factors, beta=int(not first))


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
