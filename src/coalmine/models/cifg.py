"""The loss of an LSTM with coupled gates, projection and tied softmax, with gradients written out by hand.

Autograd would run a hundred small operations a position and gather the gradient of every weight once a position. Here
the input's share of the gates is one product for all positions, and so is the gradient of each weight; only what truly
depends on the position before is done position by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coalmine.models.sentences import Beginnings
from coalmine.models.tied_softmax import tied_cross_entropy
from coalmine.models.workspace import Workspace

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True, kw_only=True)
class _States:
    """What the forward pass leaves for the backward pass, a row for each beginning."""

    gates: Tensor  # first the input's share of them, then forget, output and candidate
    cells_before: Tensor
    squashed: Tensor  # tanh of the cells
    outputs: Tensor  # before the projection
    hidden_before: Tensor
    hidden: Tensor


class CIFGLoss(torch.autograd.Function):
    """``apply(table, w_input, bias, w_recurrent, w_projection, sentences, workspace)``: their mean loss.

    The weights hold forget gates, output gates and candidates, in this order. Differentiable once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        w_input: Tensor,
        bias: Tensor,
        w_recurrent: Tensor,
        w_projection: Tensor,
        sentences: Beginnings,
        workspace: Workspace,
    ) -> Tensor:
        """The loss; all gradients are computed on the way, so that what they need can be forgotten at once."""
        total, width, units = len(sentences.tokens), table.shape[1], w_projection.shape[1]
        # the input's share of the gates is the same wherever a word occurs
        words, places = sentences.tokens.unique(return_inverse=True)
        by_word = workspace.take("by word", len(words), 3 * units, like=table)
        embedded = table.index_select(0, words)
        torch.addmm(bias, embedded, w_input.t(), out=by_word)
        states = _States(
            gates=torch.index_select(by_word, 0, places, out=workspace.take("gates", total, 3 * units, like=table)),
            cells_before=workspace.take("cells before", total, units, like=table),
            squashed=workspace.take("squashed", total, units, like=table),
            outputs=workspace.take("outputs", total, units, like=table),
            hidden_before=workspace.take("hidden before", total, width, like=table),
            hidden=workspace.take("hidden", total, width, like=table),
        )
        _run(sentences.parents, states, w_recurrent, w_projection)
        loss, by_hidden, by_table = tied_cross_entropy(
            states.hidden, table, sentences.owners, sentences.targets, workspace
        )
        by_gates = workspace.take("by gates", total, 3 * units, like=table)
        _run_back(sentences.parents, states, by_hidden, by_gates, w_recurrent, w_projection)
        by_word.zero_().index_add_(0, places, by_gates)  # the gates' memory, now for the gradients by them
        by_table.index_add_(0, words, by_word @ w_input)
        ctx.save_for_backward(
            by_table,
            by_word.t() @ embedded,
            by_word.sum(0),
            by_gates.t() @ states.hidden_before,
            by_hidden.t() @ states.outputs,
        )
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """What ``forward`` found, times the gradient of what came after."""
        gradients = ctx.saved_tensors
        return (*(gradients if scale == 1 else [gradient * scale for gradient in gradients]), None, None)


def _run(parents: list[Tensor], states: _States, w_recurrent: Tensor, w_projection: Tensor) -> None:
    """Fill in the states, position by position."""
    hidden = w_recurrent.new_zeros(1, w_recurrent.shape[1])
    cells = w_recurrent.new_zeros(1, w_projection.shape[1])
    stop = 0
    for parent in parents:
        now = slice(stop, stop := stop + len(parent))
        hidden_before = torch.index_select(hidden, 0, parent, out=states.hidden_before[now])
        cells_before = torch.index_select(cells, 0, parent, out=states.cells_before[now])
        gates = states.gates[now].addmm_(hidden_before, w_recurrent.t())
        f, o, g = gates.chunk(3, 1)
        # tanh x = 2 σ(2x) − 1: a sigmoid takes a third of the time
        g.mul_(2)
        gates.sigmoid_()
        g.mul_(2).sub_(1)
        cells = torch.lerp(g, cells_before, f)
        squashed = torch.mul(cells, 2, out=states.squashed[now]).sigmoid_().mul_(2).sub_(1)
        outputs = torch.mul(o, squashed, out=states.outputs[now])
        hidden = torch.mm(outputs, w_projection.t(), out=states.hidden[now])


def _run_back(
    parents: list[Tensor],
    states: _States,
    by_hidden: Tensor,
    by_gates: Tensor,
    w_recurrent: Tensor,
    w_projection: Tensor,
) -> None:
    """Fill in the gradients by the gates before their activation, the last position first.

    ``by_hidden`` comes with the gradients by way of the logits and leaves with those by way of later positions added.
    """
    start = len(by_hidden)
    by_cells: Tensor | None = None
    for position in reversed(range(len(parents))):
        now = slice(start - len(parents[position]), start)
        f, o, g = states.gates[now].chunk(3, 1)
        by_f, by_o, by_g = by_gates[now].chunk(3, 1)
        squashed = states.squashed[now]

        by_outputs = torch.mm(by_hidden[now], w_projection)
        torch.mul(by_outputs, squashed, out=by_o)
        _sigmoid_backward(by_o, o, grad_input=by_o)
        by_outputs.mul_(o)
        _tanh_backward(by_outputs, squashed, grad_input=by_outputs)
        by_cells = by_outputs if by_cells is None else by_cells.add_(by_outputs)

        torch.sub(states.cells_before[now], g, out=by_f).mul_(by_cells)
        _sigmoid_backward(by_f, f, grad_input=by_f)
        by_cells_before = by_cells * f
        torch.sub(by_cells, by_cells_before, out=by_g)
        _tanh_backward(by_g, g, grad_input=by_g)

        if position:
            start = now.start
            before = slice(start - len(parents[position - 1]), start)
            by_hidden[before].index_add_(0, parents[position], by_gates[now] @ w_recurrent)
            by_cells = torch.zeros_like(states.squashed[before]).index_add_(0, parents[position], by_cells_before)
