"""Per-client gradients of single layers, from what went in and what came back.

For each layer: the squared norm of each client's gradient, and the sum of the gradients with a factor for each client.
Examples of a client are consecutive; every client has the same number of them (short ones are filled up with examples
whose deltas are zero).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Per-client gradients of a layer are kept for the sum only where all of them stay below this many numbers.
_KEPT = 8_000_000

# Gram matrices are trusted to float32's rounding times this factor: what is taken off clipped updates covers it.
_CANCELLING = 64
_ROUNDING = 1e-6


class LayerGradients(Protocol):
    """One layer's gradients, for some clients."""

    def squared_norms(self) -> Tensor:
        """(clients,) float64: what this layer adds to the squared norm of each client's gradient."""

    def weighted_sum(self, factors: Tensor) -> list[Tensor]:
        """Σ factorᵢ · gradientᵢ, one tensor a parameter of the layer."""


class GramGradients:
    """Linear layers, and convolutions as such: client i's gradient is Dᵢᵀ Xᵢ for inputs X and deltas D.

    X is (clients, rows, inputs), D (clients, rows, outputs). The norms come from the Gram matrices of the rows, without
    forming any gradient (Goodfellow 2015; Li et al. 2022): for few rows. Where large terms cancel in them, rounding
    could make a norm too small and let an update exceed the clip norm; then the gradients are formed after all.
    """

    def __init__(self, inputs: Tensor, deltas: Tensor, weight: Tensor) -> None:
        self._x, self._d, self._shape = inputs, deltas, weight.shape
        self._formed: FormedGradients | None = None

    def squared_norms(self) -> Tensor:
        """‖DᵀX‖² = Σ (X Xᵀ) ∘ (D Dᵀ)."""
        x_gram, d_gram = (torch.bmm(rows, rows.transpose(1, 2)) for rows in (self._x, self._d))
        diagonals = x_gram.diagonal(dim1=1, dim2=2) * d_gram.diagonal(dim1=1, dim2=2)
        largest = diagonals.double().clamp_(min=0).sqrt_().sum(1).square_()
        squares = x_gram.mul_(d_gram).flatten(1).sum(1, dtype=torch.float64).clamp_(min=0)
        if not bool((largest > _CANCELLING * squares).any()):
            return squares
        if len(self._x) * self._shape.numel() > _KEPT:
            return squares + _ROUNDING * largest  # no gradient is longer than that
        self._formed = FormedGradients(torch.bmm(self._d.transpose(1, 2), self._x).view(-1, *self._shape))
        return self._formed.squared_norms()

    def weighted_sum(self, factors: Tensor) -> list[Tensor]:
        """One product over all rows, with the deltas scaled."""
        if self._formed is not None:
            return self._formed.weighted_sum(factors)
        scaled = (self._d * factors[:, None, None]).flatten(0, 1)
        return [(scaled.T @ self._x.flatten(0, 1)).view(self._shape)]


class FormedGradients:
    """Gradients small enough to be formed for every client and kept: (clients, *shape) each."""

    def __init__(self, *gradients: Tensor) -> None:
        self._gradients = gradients

    def squared_norms(self) -> Tensor:
        """Directly."""
        squares = [rows.flatten(1).square().sum(1, dtype=torch.float64) for rows in self._gradients]
        return torch.stack(squares).sum(0)

    def weighted_sum(self, factors: Tensor) -> list[Tensor]:
        """Directly."""
        return [(factors @ rows.flatten(1)).view(rows.shape[1:]) for rows in self._gradients]


class StreamedGradients:
    """Gradients too large to keep: ``each`` forms client i's for its norm, ``total`` the sum for given factors."""

    def __init__(self, clients: int, each: Callable[[int], Tensor], total: Callable[[Tensor], Tensor]) -> None:
        self._clients, self._each, self._total = clients, each, total

    def squared_norms(self) -> Tensor:
        """One client at a time."""
        return torch.stack([self._each(i).square().sum(dtype=torch.float64) for i in range(self._clients)])

    def weighted_sum(self, factors: Tensor) -> list[Tensor]:
        """In one pass over all clients."""
        return [self._total(factors)]


class EmbeddingGradients:
    """A table of vectors: a client's gradient is zero but for the tokens it has."""

    def __init__(self, tokens: Tensor, deltas: Tensor, table: torch.Size) -> None:
        keys = tokens + torch.arange(len(tokens))[:, None] * table[0]
        found, places = keys.flatten().unique(return_inverse=True)
        self._owner, self._token = found // table[0], found % table[0]
        self._sums = deltas.new_zeros(len(found), table[1]).index_add_(0, places, deltas.flatten(0, 1))
        self._clients, self._table = len(tokens), table

    def squared_norms(self) -> Tensor:
        """Over the tokens that occur."""
        squares = self._sums.square().sum(1, dtype=torch.float64)
        return squares.new_zeros(self._clients).index_add_(0, self._owner, squares)

    def weighted_sum(self, factors: Tensor) -> list[Tensor]:
        """Into a dense table."""
        scaled = self._sums * factors[self._owner][:, None]
        return [self._sums.new_zeros(self._table).index_add_(0, self._token, scaled)]


def layer_gradients(layer: nn.Module, inputs: Tensor, deltas: Tensor, clients: int) -> list[LayerGradients]:
    """The gradients of the parameters of ``layer``, in their order, from its ``inputs`` and the loss's ``deltas``.

    ``deltas`` are the derivatives of the loss by the layer's outputs.
    """
    found: list[LayerGradients] = []
    if isinstance(layer, nn.Linear):
        x, d = inputs.reshape(clients, -1, inputs.shape[-1]), deltas.reshape(clients, -1, deltas.shape[-1])
        if _few(x.shape[1], layer.weight):
            found.append(GramGradients(x, d, layer.weight))
        elif clients * layer.weight.numel() <= _KEPT:
            found.append(FormedGradients(torch.bmm(d.transpose(1, 2), x)))
        else:
            total = GramGradients(x, d, layer.weight).weighted_sum
            found.append(StreamedGradients(clients, lambda i: d[i].T @ x[i], lambda factors: total(factors)[0]))
        return found if layer.bias is None else [*found, FormedGradients(d.sum(1))]
    if isinstance(layer, nn.Conv2d):
        positions = deltas[0, 0].numel() * (len(deltas) // clients)
        some_x, some_d = inputs.chunk(clients), deltas.chunk(clients)
        if _few(positions, layer.weight):
            x, d = _patches(layer, inputs), deltas.flatten(2).transpose(1, 2)
            shape = (clients, positions, -1)
            found.append(GramGradients(x.reshape(shape), d.reshape(shape), layer.weight))
        elif clients * layer.weight.numel() <= _KEPT:
            each = [_convolution_backward(layer, *piece) for piece in zip(some_x, some_d, strict=True)]
            found.append(FormedGradients(torch.stack(each)))
        else:

            def total_of(factors: Tensor) -> Tensor:
                scale = factors.repeat_interleave(len(deltas) // clients).view(-1, 1, 1, 1)
                return _convolution_backward(layer, inputs, deltas * scale)

            found.append(
                StreamedGradients(clients, lambda i: _convolution_backward(layer, some_x[i], some_d[i]), total_of)
            )
        bias = deltas.flatten(2).sum(2).view(clients, -1, deltas.shape[1]).sum(1)
        return found if layer.bias is None else [*found, FormedGradients(bias)]
    if isinstance(layer, nn.GroupNorm):
        normal = F.group_norm(inputs, layer.num_groups, eps=layer.eps)
        shape = (clients, -1, inputs.shape[1])
        sums = [value.reshape(*value.shape[:2], -1).sum(2) for value in (normal * deltas, deltas)]
        return [FormedGradients(value.view(shape).sum(1)) for value in sums]
    assert isinstance(layer, nn.Embedding)
    tokens = inputs.reshape(clients, -1)
    return [EmbeddingGradients(tokens, deltas.reshape(clients, tokens.shape[1], -1), layer.weight.shape)]


def supported(layer: nn.Module) -> bool:
    """Whether ``layer_gradients`` knows this layer."""
    match layer:
        case nn.Conv2d():
            return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        case nn.GroupNorm():
            return layer.affine and layer.bias is not None
        case nn.Embedding():
            return layer.max_norm is None and not layer.scale_grad_by_freq and layer.padding_idx is None
        case _:
            return type(layer) is nn.Linear


def _few(rows: int, weight: Tensor) -> bool:
    """Whether Gram matrices of so many rows take fewer multiplications than the gradient of ``weight``."""
    return rows * (len(weight) + weight[0].numel()) < weight.numel()


def _patches(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """(examples, positions, inputs of one output): what each output of a convolution sees."""
    assert not isinstance(layer.padding, str)
    if layer.kernel_size == (1, 1) and layer.padding == (0, 0):
        return inputs[:, :, :: layer.stride[0], :: layer.stride[1]].flatten(2).transpose(1, 2)
    return F.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride).transpose(1, 2)


def _convolution_backward(layer: nn.Conv2d, inputs: Tensor, deltas: Tensor) -> Tensor:
    """The gradient of the weight of a convolution alone."""
    weight: Tensor
    _, weight, _ = torch.ops.aten.convolution_backward(
        deltas,
        inputs,
        layer.weight,
        None,
        layer.stride,
        layer.padding,
        layer.dilation,
        False,
        [0, 0],
        1,
        [False, True, False],
    )
    return weight
