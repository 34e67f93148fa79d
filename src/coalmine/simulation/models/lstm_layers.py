"""The loss of an embedding, a stack of LSTM layers and a linear head, with gradients written out by hand.

The weights are those of ``nn.LSTM``. Of its work only what truly depends on the position before is done position by
position; the input's share of the gates, and the gradient of each weight, are one product for all positions. The
memory of the states is kept between calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coalmine.simulation.models.workspace import Workspace

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True, kw_only=True)
class _States:
    """What a layer's forward pass leaves for its backward pass; ``cells`` and ``hidden`` start with zeros."""

    gates: Tensor  # (positions, n, 4 units): first the input's share, then input, forget, candidate and output gates
    cells: Tensor  # (positions + 1, n, units)
    squashed: Tensor  # (positions, n, units): tanh of the cells
    hidden: Tensor  # (positions + 1, n, units)

    @property
    def outputs(self) -> Tensor:
        """(positions · n, units): what the next layer reads."""
        return self.hidden[1:].flatten(0, 1)

    def by_position(self) -> Iterator[tuple[Tensor, ...]]:
        """All gates, the input, forget, candidate and output gates, and tanh of the cells, at each position."""
        each = (gate.unbind() for gate in self.gates.chunk(4, 2))
        return zip(self.gates.unbind(), *each, self.squashed.unbind(), strict=True)


class LSTMLoss(torch.autograd.Function):
    """``apply(tokens, targets, ignored, workspace, table, w_head, b_head, *layers)``: mean loss of what counts.

    ``tokens`` are (positions, n); ``targets`` are for the last so many positions, (m, n). ``layers`` has for each layer
    w_ih, w_hh, b_ih and b_hh as ``nn.LSTM`` does. Without a target that is not ``ignored`` the loss and its gradient
    are zero. Differentiable once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        targets: Tensor,
        ignored: int | None,
        workspace: Workspace,
        table: Tensor,
        w_head: Tensor,
        b_head: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        """The loss; all gradients are computed on the way, so that what they need can be forgotten at once."""
        layers = [weights[start : start + 4] for start in range(0, len(weights), 4)]
        # the first layer's share of the gates is the same wherever a token occurs
        words, places = tokens.flatten().unique(return_inverse=True)
        embedded = table.index_select(0, words)
        stack: list[_States] = []
        for depth, (w_ih, w_hh, b_ih, b_hh) in enumerate(layers):
            states = _room(depth, tokens.shape, w_hh, workspace)
            gates = states.gates.flatten(0, 1)
            if depth == 0:
                torch.index_select(embedded @ w_ih.t(), 0, places, out=gates)
            else:
                torch.mm(stack[-1].outputs, w_ih.t(), out=gates)
            _run(states, w_hh, b_ih + b_hh)
            stack.append(states)

        answered = stack[-1].outputs[-targets.numel() :]
        loss, by_logits = _cross_entropy(torch.addmm(b_head, answered, w_head.t()), targets.flatten(), ignored)
        gradients = [by_logits.t() @ answered, by_logits.sum(0)]
        by_hidden = workspace.take("by hidden", len(places), w_head.shape[1], like=table)
        by_hidden[: -len(by_logits)].zero_()
        torch.mm(by_logits, w_head, out=by_hidden[-len(by_logits) :])

        by_layers: list[Tensor] = []
        for depth, (w_ih, w_hh, _, _) in reversed(list(enumerate(layers))):
            states = stack[depth]
            _run_back(states, by_hidden.view_as(states.squashed), w_hh)
            by_gates = states.gates.flatten(0, 1)
            by_w_hh = by_gates.t() @ states.hidden[:-1].flatten(0, 1)
            if depth == 0:
                by_word = by_gates.new_zeros(len(words), by_gates.shape[1]).index_add_(0, places, by_gates)
                by_w_ih, by_bias = by_word.t() @ embedded, by_word.sum(0)
                gradients.insert(0, torch.zeros_like(table).index_copy_(0, words, by_word @ w_ih))
            else:
                by_w_ih, by_bias = by_gates.t() @ stack[depth - 1].outputs, by_gates.sum(0)
                torch.mm(by_gates, w_ih, out=by_hidden)
            by_layers = [by_w_ih, by_w_hh, by_bias, by_bias.clone(), *by_layers]
        ctx.save_for_backward(*gradients, *by_layers)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """What ``forward`` found, times the gradient of what came after."""
        gradients = ctx.saved_tensors
        return None, None, None, None, *(gradients if scale == 1 else [gradient * scale for gradient in gradients])


def _room(depth: int, shape: torch.Size, w_hh: Tensor, workspace: Workspace) -> _States:
    """Memory for the states of a layer, zero before the first position."""
    (positions, n), units = shape, w_hh.shape[1]
    states = _States(
        gates=workspace.take(f"gates {depth}", positions, n, 4 * units, like=w_hh),
        cells=workspace.take(f"cells {depth}", positions + 1, n, units, like=w_hh),
        squashed=workspace.take(f"squashed {depth}", positions, n, units, like=w_hh),
        hidden=workspace.take(f"hidden {depth}", positions + 1, n, units, like=w_hh),
    )
    states.cells[0].zero_()
    states.hidden[0].zero_()
    return states


def _run(states: _States, w_hh: Tensor, bias: Tensor) -> None:
    """Fill in the states, position by position."""
    minus_one = -torch.ones((), dtype=w_hh.dtype, device=w_hh.device)
    cells, hidden = states.cells.unbind(), states.hidden.unbind()
    for position, (gates, i, f, g, o, squashed) in enumerate(states.by_position()):
        gates.add_(bias)  # here, where they are in the cache
        if position:
            gates.addmm_(hidden[position], w_hh.t())
        # tanh x = 2 σ(2x) − 1: a sigmoid takes a third of the time
        g.add_(g)
        gates.sigmoid_()
        torch.add(minus_one, g, alpha=2, out=g)
        cell = torch.mul(f, cells[position], out=cells[position + 1]).addcmul_(i, g)
        torch.add(cell, cell, out=squashed).sigmoid_()
        torch.add(minus_one, squashed, alpha=2, out=squashed)
        torch.mul(o, squashed, out=hidden[position + 1])


def _run_back(states: _States, by_hidden: Tensor, w_hh: Tensor) -> None:
    """Put the gradients by the gates before their activation in the gates' place, the last position first.

    ``by_hidden`` (positions, n, units) comes with the gradients by way of what reads the layer, and is used up.
    """
    by_outputs, cells = by_hidden.unbind(), states.cells.unbind()
    by_cell = torch.zeros_like(cells[0])
    one, other = torch.empty_like(by_cell), torch.empty_like(by_cell)
    for position, (gates, i, f, g, o, squashed) in reversed(list(enumerate(states.by_position()))):
        by_output = by_outputs[position]
        torch.mul(by_output, o, out=one)
        by_cell.add_(_tanh_backward(one, squashed, grad_input=one))
        _sigmoid_backward(by_output.mul_(squashed), o, grad_input=o)

        torch.mul(by_cell, i, out=one)
        torch.mul(by_cell, g, out=other)
        _tanh_backward(one, g, grad_input=g)
        _sigmoid_backward(other, i, grad_input=i)

        torch.mul(by_cell, cells[position], out=other)
        by_cell.mul_(f)
        _sigmoid_backward(other, f, grad_input=f)

        if position:
            by_outputs[position - 1].addmm_(gates, w_hh)


def _cross_entropy(logits: Tensor, targets: Tensor, ignored: int | None) -> tuple[Tensor, Tensor]:
    """The mean over the targets that count, zero without any, and its gradient by the logits."""
    counted = torch.ones_like(targets, dtype=torch.bool) if ignored is None else targets != ignored
    shares = (counted.to(logits.dtype) / counted.sum().clamp(min=1))[:, None]
    aims = torch.where(counted, targets, 0)[:, None]
    chances = torch.log_softmax(logits, 1)
    loss = -(shares * chances.gather(1, aims)).sum()
    return loss, chances.exp_().mul_(shares).scatter_add_(1, aims, -shares)
