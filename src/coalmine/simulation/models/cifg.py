"""The loss of an LSTM with coupled gates, projection and tied softmax, with gradients written out by hand.

Autograd would run a hundred small operations a position and gather the gradient of every weight once a position. Here
a position takes one product for its gates, of input and state together, and one for its projection, forth and back;
the gradient of each weight is one product for all positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coalmine.simulation.models.sentences import Beginnings
from coalmine.simulation.models.tied_softmax import tied_cross_entropy
from coalmine.simulation.models.workspace import Workspace

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class _States:
    """What the forward pass leaves for the backward pass: a row for each beginning."""

    def __init__(self, rows: int, width: int, units: int, workspace: Workspace, like: Tensor) -> None:
        def take(name: str, columns: int) -> Tensor:
            return workspace.take(name, rows, columns, like=like)

        self.read = take("read", 2 * width)  # the embedding and the hidden state before: what the gates are made of
        self.gates = take("gates", 3 * units)  # forget, output and candidate; in the end the gradients by them
        self.cells = take("cells", units)
        self.squashed = take("squashed", units)  # tanh of the cells
        self.outputs = take("outputs", units)  # before the projection
        self.hidden = take("hidden", width)


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
        width, units = table.shape[1], w_projection.shape[1]
        states = _States(len(sentences.tokens), width, units, workspace, table)
        w_read = torch.cat((w_input, w_recurrent), 1, out=workspace.take("w read", 3 * units, 2 * width, like=table))
        states.read[:, :width] = table.index_select(0, sentences.tokens)
        _run(sentences, states, w_read, bias, w_projection)
        loss, by_hidden, by_table = tied_cross_entropy(
            states.hidden, table, sentences.owners, sentences.targets, workspace
        )
        by_embedded = _run_back(sentences, states, by_hidden, w_read, w_projection)
        by_table.index_add_(0, sentences.tokens, by_embedded)
        by_read = states.gates.t() @ states.read
        ctx.save_for_backward(
            by_table, by_read[:, :width], states.gates.sum(0), by_read[:, width:], by_hidden.t() @ states.outputs
        )
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """What ``forward`` found, times the gradient of what came after."""
        gradients = ctx.saved_tensors
        return (*(gradients if scale == 1 else [gradient * scale for gradient in gradients]), None, None)


def _by_position(sentences: Beginnings, *states: Tensor) -> list[tuple[Tensor, ...]]:
    """The rows of each of the states, cut by position."""
    return list(zip(*(state.split(sentences.counts) for state in states), strict=True))


def _run(sentences: Beginnings, states: _States, w_read: Tensor, bias: Tensor, w_projection: Tensor) -> None:
    """Fill in the states, position by position."""
    width, units = w_projection.shape
    hidden, cells = bias.new_zeros(1, width), bias.new_zeros(1, units)
    # tanh x = 2 σ(2x) − 1: a sigmoid takes a third of the time
    w_gates, b_gates = w_read.clone(), bias.clone()
    w_gates[2 * units :].mul_(2)
    b_gates[2 * units :].mul_(2)
    minus_one = -torch.ones((), dtype=bias.dtype, device=bias.device)
    inner = (states.cells, states.squashed, states.outputs, states.hidden)
    each = _by_position(sentences, states.read, states.read[:, width:], states.gates, *states.gates.chunk(3, 1), *inner)
    for parent, now in zip(sentences.parents, each, strict=True):
        read, hidden_before, gates, f, o, g, cells_after, squashed, outputs, after = now
        hidden_before.copy_(hidden[parent])
        torch.addmm(b_gates, read, w_gates.t(), out=gates).sigmoid_()
        torch.add(minus_one, g, alpha=2, out=g)
        cells = torch.lerp(g, cells[parent], f, out=cells_after)
        torch.add(cells, cells, out=squashed).sigmoid_()
        torch.add(minus_one, squashed, alpha=2, out=squashed)
        hidden = torch.mm(torch.mul(o, squashed, out=outputs), w_projection.t(), out=after)


def _run_back(
    sentences: Beginnings, states: _States, by_hidden: Tensor, w_read: Tensor, w_projection: Tensor
) -> Tensor:
    """Put the gradients by the gates before their activation in the gates' place, the last position first.

    ``by_hidden`` comes with the gradients by way of the logits and leaves with those by way of later positions added.
    Returns the gradients by the embedded tokens.
    """
    width = by_hidden.shape[1]
    by_reads = torch.empty_like(states.read)
    each = _by_position(sentences, by_hidden, by_reads, states.gates, *states.gates.chunk(3, 1), states.squashed)
    cells = states.cells.split(sentences.counts)
    by_cells: Tensor | None = None
    for position in reversed(range(len(each))):
        by_after, by_read, gates, f, o, g, squashed = each[position]
        by_outputs = torch.mm(by_after, w_projection)
        by_o = by_outputs * squashed
        by_outputs.mul_(o)
        _sigmoid_backward(by_o, o, grad_input=o)  # from here on, a gate's place holds the gradient by it
        _tanh_backward(by_outputs, squashed, grad_input=by_outputs)
        by_cells = by_outputs if by_cells is None else by_cells.add_(by_outputs)

        parent = sentences.parents[position]
        by_f = (cells[position - 1][parent].sub_(g) if position else -g).mul_(by_cells)  # nobody asks for those again
        by_before = by_cells * f
        _sigmoid_backward(by_f, f, grad_input=f)
        _tanh_backward(by_cells.sub_(by_before), g, grad_input=g)

        torch.mm(gates, w_read, out=by_read)
        if position:
            _add_at(each[position - 1][0], parent, by_read[:, width:])
            by_cells = by_before
            if not isinstance(parent, slice) or len(by_before) < sentences.counts[position - 1]:
                by_cells = by_before.new_zeros(sentences.counts[position - 1], by_before.shape[1])
                _add_at(by_cells, parent, by_before)
    return by_reads[:, :width]


def _add_at(rows: Tensor, places: Tensor | slice, more: Tensor) -> None:
    """Add to some of the rows, to one that is named often as often."""
    if isinstance(places, slice):
        rows[places] += more
    else:
        rows.index_add_(0, places, more)
