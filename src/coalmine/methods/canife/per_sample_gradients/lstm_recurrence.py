"""The recurrence of an LSTM layer, twice differentiable, with all derivatives written out (speed only).

The recurrence maps the input part of the gates, s (k, positions, 4 units), to the states h (k, positions, units): with
(i, f, g, o) the activated s_t + W h_{t−1}, c_t = f c_{t−1} + i g and h_t = o tanh c_t. Linearized around given states,
its transpose gives the gradient by s. The derivative of that gradient applies the linear map once, and its transpose
once more with source terms. Autograd does the same with ten times as many small operations; tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, kw_only=True)
class _Linearized:
    """The recurrence linearized around the states of k samples. Positions come first: (positions, k, …, units)."""

    weight: Tensor  # (4 units, units)
    gates: Tensor  # (positions, k, 4, units), activated
    slopes: Tensor  # derivatives of the activations, shaped like gates
    cells_before: Tensor  # cells before each position
    squashed: Tensor  # tanh of the cells
    by_gates: Tensor  # ∂cell/∂(i, f, g) and ∂state/∂o, with respect to the gates before activation
    by_cell: Tensor  # ∂state/∂cell

    @classmethod
    def at(cls, shares: Tensor, weight: Tensor) -> tuple[_Linearized, Tensor]:
        """Run the recurrence; return its linearization and the states (positions, k, units)."""
        positions, count, units = len(shares), shares.shape[1], weight.shape[1]
        gates = shares.clone(memory_format=torch.contiguous_format).view(positions, count, 4, units)
        cells = shares.new_zeros(positions + 1, count, units)
        squashed, states = torch.empty_like(cells[1:]), torch.empty_like(cells[1:])
        recurrent = weight.t()
        for t, gate in enumerate(gates):
            if t:
                gate.view(count, -1).addmm_(states[t - 1], recurrent)
            i, f, g, o = gate.unbind(1)
            g.mul_(2)  # tanh x = 2 σ(2x) − 1, so that one sigmoid activates all four gates
            gate.sigmoid_()
            g.mul_(2).sub_(1)
            torch.mul(f, cells[t], out=cells[t + 1]).addcmul_(i, g)
            torch.mul(o, torch.tanh(cells[t + 1], out=squashed[t]), out=states[t])
        slopes = gates - gates.square()
        slopes[:, :, 2] = 1 - gates[:, :, 2].square()
        by_gates = torch.stack([gates[:, :, 2], cells[:-1], gates[:, :, 0], squashed], 2).mul_(slopes)
        linearized = cls(
            weight=weight,
            gates=gates,
            slopes=slopes,
            cells_before=cells[:-1],
            squashed=squashed,
            by_gates=by_gates,
            by_cell=gates[:, :, 3] * (1 - squashed.square()),
        )
        return linearized, states

    def forward(self, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the shifts of gates before activation, cells and states that a ``shift`` of the inputs causes."""
        gates = shift.clone(memory_format=torch.contiguous_format).view(self.gates.shape)
        cells, states = torch.empty_like(self.cells_before), torch.empty_like(self.cells_before)
        forget, recurrent, count = self.gates[:, :, 1], self.weight.t(), self.gates.shape[1]
        for t, gate in enumerate(gates):
            if t:
                gate.view(count, -1).addmm_(states[t - 1], recurrent)
            through = gate * self.by_gates[t]
            torch.sum(through[:, :3], 1, out=cells[t])
            if t:
                cells[t].addcmul_(forget[t], cells[t - 1])
            torch.addcmul(through[:, 3], self.by_cell[t], cells[t], out=states[t])
        return gates, cells, states

    def back(self, by_states: Tensor | None, gate_source: Tensor | None, cell_source: Tensor | None) -> _Deltas:
        """Apply the transpose: return the derivatives by gates before activation, cells and states.

        Args:
            by_states: Derivatives by the states from outside the recurrence.
            gate_source: Derivatives by the gates before activation from outside.
            cell_source: Derivatives by the cells from outside.
        """
        deltas = _Deltas(
            gates=torch.empty_like(self.gates) if gate_source is None else gate_source,
            cells=torch.zeros_like(self.cells_before) if cell_source is None else cell_source,
            states=torch.zeros_like(self.cells_before) if by_states is None else by_states.clone(),
        )
        forget, count, last = self.gates[:, :, 1], self.gates.shape[1], len(self.gates) - 1
        for t in range(last, -1, -1):
            state, cell, gate = deltas.states[t], deltas.cells[t], deltas.gates[t]
            if t < last:
                state.addmm_(deltas.gates[t + 1].view(count, -1), self.weight)
                cell.addcmul_(deltas.cells[t + 1], forget[t + 1])
            cell.addcmul_(state, self.by_cell[t])
            if gate_source is None:
                torch.mul(self.by_gates[t, :, :3], cell[:, None], out=gate[:, :3])
                torch.mul(self.by_gates[t, :, 3], state, out=gate[:, 3])
            else:
                gate[:, :3].addcmul_(self.by_gates[t, :, :3], cell[:, None])
                gate[:, 3].addcmul_(self.by_gates[t, :, 3], state)
        return deltas

    def curvature(self, deltas: _Deltas, shifts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the derivative of ⟨deltas, shift⟩ in the inputs; ``shifts`` is what `forward` returned for it."""
        gates, cells, _ = shifts
        # σ″ = σ′ (1 − 2σ) and tanh″ = −2 tanh tanh′, both over the first derivative that ``deltas`` already contains.
        bend = 1 - 2 * self.gates
        bend[:, :, 2] -= 1
        gate_source = deltas.gates * bend * gates
        slope_i, slope_f, slope_g, slope_o = self.slopes.unbind(2)
        # Mixed second derivatives of c = f c₋₁ + i g: by i and g, and by f and the cell before.
        both = slope_i * slope_g * deltas.cells
        gate_source[:, :, 0].addcmul_(both, gates[:, :, 2])
        gate_source[:, :, 2].addcmul_(both, gates[:, :, 0])
        gate_source[1:, :, 1] += slope_f[1:] * deltas.cells[1:] * cells[:-1]
        # Second derivatives of h = o tanh c: by o and c, and twice by c.
        squash = 1 - self.squashed.square()
        output = slope_o * deltas.states * squash
        gate_source[:, :, 3].addcmul_(output, cells)
        cell_source = output * gates[:, :, 3] - 2 * self.squashed * self.by_cell * deltas.states * cells
        cell_source[:-1] += deltas.cells[1:] * slope_f[1:] * gates[1:, :, 1]
        return self.back(None, gate_source, cell_source).gates


@dataclass(frozen=True, kw_only=True)
class _Deltas:
    """Derivatives of a scalar by gates before activation, by cells and by states."""

    gates: Tensor
    cells: Tensor
    states: Tensor


class Recurrence(torch.autograd.Function):
    """``apply(shares, weight)`` returns the states (k, positions, units); the weight is treated as constant."""

    @staticmethod
    def forward(ctx: Any, shares: Tensor, weight: Tensor) -> Tensor:
        """Run the recurrence from a zero state."""
        ctx.linearized, states = _Linearized.at(shares.transpose(0, 1), weight)
        ctx.save_for_backward(shares)
        return states.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, by_states: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with respect to the shares, as a function that can be differentiated again."""
        (shares,) = ctx.saved_tensors
        gradient: Tensor = _Backward.apply(by_states, shares, ctx.linearized)  # type: ignore[no-untyped-call]
        return gradient, None


class _Backward(torch.autograd.Function):
    """``apply(by_states, shares, linearized)`` returns the gradient with respect to the shares."""

    @staticmethod
    def forward(ctx: Any, by_states: Tensor, shares: Tensor, linearized: _Linearized) -> Tensor:
        """Apply the transpose of the linear map at the shares."""
        ctx.linearized = linearized
        ctx.deltas = linearized.back(by_states.transpose(0, 1), None, None)
        return ctx.deltas.gates.flatten(2).transpose(0, 1)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, shift: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the derivatives with respect to ``by_states`` and the shares."""
        linearized: _Linearized = ctx.linearized
        shifts = linearized.forward(shift.transpose(0, 1))
        by_shares = linearized.curvature(ctx.deltas, shifts).flatten(2)
        return shifts[2].transpose(0, 1), by_shares.transpose(0, 1), None
