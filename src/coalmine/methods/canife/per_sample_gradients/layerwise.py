"""Fast per-sample gradients: all samples in one forward and one backward pass through recording layers (speed only).

Linear, Embedding and LSTM layers record their outputs: a sample's gradient is a product of the layer's inputs with the
derivatives of the loss with respect to its outputs (the deltas). Conv2d and GroupNorm layers give each sample its own
copy of the parameters: the deltas of the copies are the gradients (`second_order`). Inputs and deltas depend on the
sample through ordinary operations, so the gradients can be differentiated with respect to the sample; no derivative
with respect to a shared parameter is ever computed. `DoubleBackward` is the plain reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.methods.canife.per_sample_gradients.interface import (
    SoftEmbedding,
    is_plain_embedding,
    prepared_copy,
    sample_losses,
    soft_embedding,
)
from coalmine.methods.canife.per_sample_gradients.lstm_recurrence import Recurrence
from coalmine.methods.canife.per_sample_gradients.second_order import Geometry, convolved, group_normalized

ParameterGradients = Callable[[Tensor, int], tuple[Tensor, ...]]
"""Computes the gradients (k, …) of a layer's parameters from the deltas of its outputs and the number k of samples."""


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a layer: a ``tensor``, and how the gradients by ``parameters`` follow from its deltas.

    The tensor is the layer's output, or each sample's copy of a parameter, whose deltas are the gradients.
    """

    tensor: Tensor
    parameters: tuple[Tensor, ...]
    gradients: ParameterGradients
    version: int

    def check_unchanged(self) -> None:
        """Raise an error if the module modified the tensor in place: its deltas would be those of the new values."""
        if self.tensor._version != self.version:
            raise ValueError("the output of a layer is modified in place")


class Tape:
    """What the layers of a module recorded in a forward pass."""

    def __init__(self) -> None:
        self._uses: dict[int, Use] = {}  # by the identity of the tensor
        self._copies: dict[tuple[int, int], Use] = {}  # by the identity of the parameter and the number of samples

    def record(self, tensor: Tensor, parameters: tuple[Tensor, ...], gradients: ParameterGradients) -> Tensor:
        """Record a use of a layer and return the tensor."""
        if not tensor.requires_grad:
            tensor.requires_grad_()
        self._uses[id(tensor)] = Use(tensor, parameters, gradients, tensor._version)
        return tensor

    def copies(self, values: Tensor, parameter: Tensor, count: int) -> Tensor:
        """Record and return a copy of a parameter's ``values`` for each sample: its deltas are the gradients.

        Copies are made once. They serve every pass, and every use of a layer in a pass: autograd adds up their deltas.
        """
        key = (id(parameter), count)
        if key not in self._copies:
            copies = values.expand(count, *values.shape).requires_grad_()
            self._copies[key] = Use(copies, (parameter,), lambda gradients, _: (gradients,), copies._version)
        use = self._copies[key]
        self._uses[id(use.tensor)] = use
        return use.tensor

    def take(self) -> list[Use]:
        """Return what was recorded, and forget it."""
        uses = list(self._uses.values())
        self._uses.clear()
        return uses


class RecordedLinear(nn.Module):
    """``nn.Linear`` that records its uses."""

    def __init__(self, layer: nn.Linear, tape: Tape) -> None:
        super().__init__()
        self.weight, self.bias, self._tape = layer.weight, layer.bias, tape
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the torch layer returns."""

        def gradients(deltas: Tensor, count: int) -> tuple[Tensor, ...]:
            d = _by_sample(deltas, count)
            weight = _products(d, _by_sample(inputs, count))
            return (weight,) if self.bias is None else (weight, d.sum(1))

        parameters = (self.weight,) if self.bias is None else (self.weight, self.bias)
        return self._tape.record(F.linear(inputs, self.weight, self.bias), parameters, gradients)


class RecordedEmbedding(SoftEmbedding):
    """`SoftEmbedding` that records its uses."""

    def __init__(self, layer: nn.Embedding, tape: Tape) -> None:
        super().__init__(layer)
        self._tape = tape

    def forward(self, tokens: Tensor) -> Tensor:
        """Return vectors (k, positions, width)."""
        probabilities = self._probabilities(tokens)

        def gradients(deltas: Tensor, count: int) -> tuple[Tensor, ...]:
            return (_products(_by_sample(probabilities, count), _by_sample(deltas, count)) * self._trained,)

        return self._tape.record(probabilities @ self.weight, (self.weight,), gradients)


@dataclass(frozen=True, eq=False)
class _Fit:
    """A kernel cropped to the taps that ever meet a pixel of images of one size."""

    side: torch.Size
    taps: tuple[slice, slice]
    kernel: Tensor  # (filters, channels · taps)
    border: tuple[int, int, int, int]  # pixels to add or cut off at the left, right, top and bottom
    geometry: Geometry


class RecordedConv2d(nn.Module):
    """``nn.Conv2d`` without groups that records its uses and drops the taps of its kernel that only ever meet padding.

    Of a 3 × 3 kernel on images of one pixel, these are eight of nine taps.
    """

    def __init__(self, layer: nn.Conv2d, tape: Tape) -> None:
        super().__init__()
        self.weight, self.bias, self._tape = layer.weight, layer.bias, tape
        assert not isinstance(layer.padding, str)
        self._sizes = list(zip(layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True))
        self._fit: _Fit | None = None

    @property
    def taps(self) -> tuple[slice, slice] | None:
        """The taps that are used, or None before the first use."""
        return None if self._fit is None else self._fit.taps

    def forward(self, images: Tensor) -> Tensor:
        """Return what the torch layer returns."""
        if self._fit is None or images.shape[2:] != self._fit.side:
            self._fit = self._fitted(images.shape[2:])
        images = F.pad(images, self._fit.border) if any(self._fit.border) else images
        kernels = self._tape.copies(self._fit.kernel, self.weight, len(images))
        biases = None if self.bias is None else self._tape.copies(self.bias.detach(), self.bias, len(images))
        return convolved(images, kernels, biases, self._fit.geometry)

    def _fitted(self, side: torch.Size) -> _Fit:
        """Crop the kernel for images of this size, and determine how they are padded."""
        rows, columns = (_reach(length, *sizes) for length, sizes in zip(side, self._sizes, strict=True))
        taps = (rows[0], columns[0])
        if self.taps not in (None, taps):
            raise ValueError("a convolution is applied to images of different sizes, so its taps cannot be cropped")
        cropped = self.weight.detach()[:, :, taps[0], taps[1]]
        (top, bottom), (left, right) = rows[1], columns[1]
        even = (top, left) == (bottom, right) and min(top, left) >= 0
        (_, stride_y, _, dilation_y), (_, stride_x, _, dilation_x) = self._sizes
        kernel, padding = (cropped.shape[2], cropped.shape[3]), (top, left) if even else (0, 0)
        return _Fit(
            side=side,
            taps=taps,
            kernel=cropped.flatten(1),
            border=(0, 0, 0, 0) if even else (left, right, top, bottom),
            geometry=Geometry(kernel, (stride_y, stride_x), padding, (dilation_y, dilation_x)),
        )


class RecordedGroupNorm(nn.Module):
    """``nn.GroupNorm`` that records its uses."""

    def __init__(self, layer: nn.GroupNorm, tape: Tape) -> None:
        super().__init__()
        self.weight, self.bias, self._tape = layer.weight, layer.bias, tape
        self.num_groups, self.num_channels, self.eps = layer.num_groups, layer.num_channels, layer.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the torch layer returns."""
        scales, shifts = (self._tape.copies(value.detach(), value, len(inputs)) for value in (self.weight, self.bias))
        return group_normalized(inputs, scales, shifts, self.num_groups, self.eps)


class RecordedLSTM(nn.Module):
    """``nn.LSTM`` from a zero state that records its uses. The deltas of its gates are needed, which torch's hides."""

    def __init__(self, layer: nn.LSTM, tape: Tape) -> None:
        super().__init__()
        self._tape, self.batch_first, self.hidden_size = tape, layer.batch_first, layer.hidden_size
        self._stack = [tuple(weights) for weights in layer.all_weights]
        for depth, weights in enumerate(self._stack):
            for number, weight in enumerate(weights):
                self.register_parameter(f"weight_{depth}_{number}", weight)

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, None]]:
        """Return the last layer's states, and the last state of each layer; cells are not available."""
        states = inputs if self.batch_first else inputs.transpose(0, 1)
        last = []
        for weights in self._stack:
            states = self._layer(states, *weights)
            last.append(states[:, -1])
        return states if self.batch_first else states.transpose(0, 1), (torch.stack(last), None)

    def _layer(self, inputs: Tensor, w_ih: Tensor, w_hh: Tensor, *biases: Tensor) -> Tensor:
        bias = biases[0] + biases[1] if biases else None
        shares = F.linear(inputs, w_ih, bias)
        if not shares.requires_grad:
            shares.requires_grad_()
        states: Tensor = Recurrence.apply(shares, w_hh)  # type: ignore[no-untyped-call]

        def gradients(deltas: Tensor, count: int) -> tuple[Tensor, ...]:
            # The state before the first position is zero, so the first delta has no recurrent part.
            by_recurrent = _products(deltas[:, 1:], states[:, :-1])
            return (_products(deltas, inputs), by_recurrent, *[deltas.sum(1)] * len(biases))

        self._tape.record(shares, (w_ih, w_hh, *biases), gradients)
        return states


def recorded(layer: nn.Module, tape: Tape) -> nn.Module | None:
    """Return a version of ``layer`` that records its uses on ``tape``, or None for an unsupported layer."""
    # A subclass may compute something else, also something that only later parameters show.
    match layer:
        case _ if type(layer) not in (nn.Conv2d, nn.GroupNorm, nn.Embedding, nn.LSTM, nn.Linear):
            return None
        case nn.Conv2d() if layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
            return RecordedConv2d(layer, tape)
        case nn.GroupNorm() if layer.affine and layer.bias is not None:
            return RecordedGroupNorm(layer, tape)
        case nn.Embedding() if is_plain_embedding(layer):
            return RecordedEmbedding(layer, tape)
        case nn.LSTM() if not (layer.bidirectional or layer.proj_size or layer.dropout):
            return RecordedLSTM(layer, tape)
        case nn.Linear():
            return RecordedLinear(layer, tape)
    return None


def _by_sample(values: Tensor, count: int) -> Tensor:
    """Return (k, rows, width): the rows of each sample, which may lie in several dimensions."""
    return values.reshape(count, -1, values.shape[-1])


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Return (k, a, b): leftᵀ right for each sample, from (k, rows, a) and (k, rows, b)."""
    return torch.bmm(left.transpose(1, 2), right)


def _reach(side: int, kernel: int, stride: int, padding: int, dilation: int) -> tuple[slice, tuple[int, int]]:
    """Return the taps of a kernel that meet pixels along one side of an image, and their padding before and after."""
    outputs = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    met = [
        tap
        for tap in range(kernel)
        if any(0 <= place * stride - padding + tap * dilation < side for place in range(outputs))
    ]
    first, last = (met[0], met[-1]) if met else (0, kernel - 1)  # a kernel that meets only padding is not cropped
    before = padding - first * dilation
    after = (outputs - 1) * stride + dilation * (last - first) + 1 - side - before
    # Up to stride − 1 pixels may be left over at the end. More would give further outputs, so they are cut off.
    return slice(first, last + 1), (before, after if after <= -stride else max(after, 0))


class LayerwiseGradients:
    """`SampleGradients` for modules of Linear, Conv2d, GroupNorm, Embedding and LSTM layers.

    Args:
        module: The module; it is copied.
        inputs: Samples like those to come, from which the columns are determined.
        targets: Their targets.
    """

    def __init__(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        self._tape = Tape()
        self._module = prepared_copy(module, lambda layer: recorded(layer, self._tape) or soft_embedding(layer))
        parameters = [value for value in self._module.parameters() if value.requires_grad]
        for value in parameters:
            value.requires_grad_(False)
        self._place = {id(value): place for place, value in enumerate(parameters)}
        width = self.of(inputs, targets).shape[1]
        taps = {
            id(layer.weight): (slice(None), slice(None), *layer.taps)
            for layer in self._module.modules()
            if isinstance(layer, RecordedConv2d) and layer.taps is not None
        }
        everything = torch.arange(sum(value.numel() for value in parameters))
        pieces = everything.split([value.numel() for value in parameters])
        reached = [
            piece.view_as(value)[taps.get(id(value), ())].flatten()
            for piece, value in zip(pieces, parameters, strict=True)
        ]
        self.columns = None if width == len(everything) else torch.cat(reached)

    def of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradients, as `SampleGradients.of` describes."""
        self._tape.take()  # a pass that failed may have left something
        losses = sample_losses(self._module(inputs), targets)
        uses = self._tape.take()
        for use in uses:
            use.check_unchanged()
        # One backward pass for all samples: the sum keeps them apart, since no sample's loss depends on another.
        deltas = torch.autograd.grad(losses.sum(), [use.tensor for use in uses], create_graph=True)
        gradients: dict[int, Tensor] = {}
        for use, delta in zip(uses, deltas, strict=True):
            for value, rows in zip(use.parameters, use.gradients(delta, len(inputs)), strict=True):
                place = self._place.get(id(value))
                if place is not None:
                    gradients[place] = gradients[place] + rows if place in gradients else rows
        return torch.cat([gradients[place].flatten(1) for place in range(len(self._place))], 1)
