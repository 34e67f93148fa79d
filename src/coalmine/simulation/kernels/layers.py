"""Per-client gradients of single layers, from a layer's inputs and the loss derivatives of its outputs.

For each parameter of a layer: the squared norm of every client's gradient, and the weighted sum of all of them, mostly
without forming any single gradient (Goodfellow 2015; Li et al. 2022, "ghost clipping"). A client's examples are
consecutive and all clients have equally many; `padding.padded` fills up short ones with examples whose loss weight, and
so whose delta, is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from coalmine.simulation import flat
from coalmine.simulation.kernels.convolutions import is_plain

# All clients' gradients of a layer are kept in memory for the sum only if they have at most this many entries together.
_MOST_KEPT = 8_000_000

# A norm from Gram matrices is a sum of terms of both signs. If the terms are more than this factor larger than the
# result, float32 rounding may have made the norm too small, which would let an update exceed the clip norm.
_CANCELLATION = 64
_ROUNDING = 1e-6


class LayerGradients(Protocol):
    """The gradients of one parameter of a layer, for several clients."""

    def squared_norms(self) -> Tensor:
        """What this parameter adds to the squared norm of each client's gradient, shape (clients,), float64."""

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """Write Σ factorᵢ · gradientᵢ to ``out``, which is contiguous and has the parameter's shape."""


class GramGradients:
    """Gradients of linear layers (and convolutions written as such), as products Dᵢᵀ Xᵢ.

    X are the inputs, shape (clients, rows, inputs), and D the deltas, shape (clients, rows, outputs). Suits few rows.
    """

    def __init__(self, inputs: Tensor, deltas: Tensor, weight: Tensor) -> None:
        self._x, self._d, self._shape = inputs, deltas, weight.shape
        self._formed: FormedGradients | None = None

    def squared_norms(self) -> Tensor:
        """‖DᵀX‖² = Σ (X Xᵀ) ∘ (D Dᵀ), from the Gram matrices of the rows."""
        x_gram, d_gram = (torch.bmm(rows, rows.transpose(1, 2)) for rows in (self._x, self._d))
        # By the triangle inequality no gradient is longer than the sum over rows of ‖x‖·‖d‖.
        diagonals = x_gram.diagonal(dim1=1, dim2=2) * d_gram.diagonal(dim1=1, dim2=2)
        upper_bounds = diagonals.double().clamp_(min=0).sqrt_().sum(1).square_()
        squares = x_gram.mul_(d_gram).flatten(1).sum(1, dtype=torch.float64).clamp_(min=0)
        if not bool((upper_bounds > _CANCELLATION * squares).any()):
            return squares
        if len(self._x) * self._shape.numel() > _MOST_KEPT:
            return squares + _ROUNDING * upper_bounds  # err on the side of clipping too much
        self._formed = FormedGradients(torch.bmm(self._d.transpose(1, 2), self._x).view(-1, *self._shape))
        return self._formed.squared_norms()

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """One matrix product over the rows of all clients, with scaled deltas."""
        if self._formed is not None:
            self._formed.weighted_sum(factors, out)
            return
        scaled = (self._d * factors[:, None, None]).flatten(0, 1)
        torch.mm(scaled.T, self._x.flatten(0, 1), out=out.view(len(out), -1))


class FormedGradients:
    """Gradients that are small enough to form and keep for every client: (clients, *shape)."""

    def __init__(self, gradients: Tensor) -> None:
        self._rows = gradients.flatten(1)

    def squared_norms(self) -> Tensor:
        """The squared norm of each row."""
        return flat.norms(self._rows).square_()

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """A matrix-vector product."""
        torch.mv(self._rows.T, factors, out=out.view(-1))


class StreamedGradients:
    """Gradients too large to keep: ``gradient(i)`` forms client i's for its norm, ``total`` writes the weighted sum."""

    def __init__(
        self, clients: int, gradient: Callable[[int], Tensor], total: Callable[[Tensor, Tensor], object]
    ) -> None:
        self._clients, self._gradient, self._total = clients, gradient, total

    def squared_norms(self) -> Tensor:
        """Computed one client at a time."""
        return torch.cat([flat.norms(self._gradient(i).reshape(1, -1)) for i in range(self._clients)]).square_()

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """Computed in one pass over all clients."""
        self._total(factors, out)


class EmbeddingGradients:
    """Gradients of an embedding table: zero except in the rows of a client's own tokens."""

    def __init__(self, tokens: Tensor, deltas: Tensor, table: torch.Size) -> None:
        # One row per distinct (client, token) pair.
        keys = tokens + torch.arange(len(tokens), device=tokens.device)[:, None] * table[0]
        pairs, places = keys.flatten().unique(return_inverse=True)
        self._client, self._token = pairs // table[0], pairs % table[0]
        self._sums = deltas.new_zeros(len(pairs), table[1]).index_add_(0, places, deltas.flatten(0, 1))
        self._clients = len(tokens)

    def squared_norms(self) -> Tensor:
        """Summed over the tokens that occur."""
        squares = self._sums.square().sum(1, dtype=torch.float64)
        return squares.new_zeros(self._clients).index_add_(0, self._client, squares)

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """Added up in a dense table."""
        out.zero_().index_add_(0, self._token, self._sums * factors[self._client][:, None])


def layer_gradients(layer: nn.Module, inputs: Tensor, deltas: Tensor, clients: int) -> list[LayerGradients]:
    """The gradients of a layer's parameters, in their order; ``deltas`` are the loss derivatives of its outputs."""
    if isinstance(layer, nn.Linear):
        return _linear(layer, inputs, deltas, clients)
    if isinstance(layer, nn.Conv2d):
        weight = _convolution(layer, inputs, deltas, clients)
        bias = deltas.flatten(2).sum(2).view(clients, -1, deltas.shape[1]).sum(1)
        return [weight] if layer.bias is None else [weight, FormedGradients(bias)]
    if isinstance(layer, nn.GroupNorm):
        normal = F.group_norm(inputs, layer.num_groups, eps=layer.eps)
        shape = (clients, -1, inputs.shape[1])
        sums = [value.reshape(*value.shape[:2], -1).sum(2) for value in (normal * deltas, deltas)]
        return [FormedGradients(value.view(shape).sum(1)) for value in sums]
    assert isinstance(layer, nn.Embedding)
    tokens = inputs.reshape(clients, -1)
    return [EmbeddingGradients(tokens, deltas.reshape(clients, tokens.shape[1], -1), layer.weight.shape)]


def is_supported(layer: nn.Module) -> bool:
    """Whether `layer_gradients` can handle this layer."""
    match layer:
        case nn.Conv2d():
            return layer.groups == 1 and is_plain(layer)
        case nn.GroupNorm():
            return layer.affine and layer.bias is not None
        case nn.Embedding():
            return layer.max_norm is None and not layer.scale_grad_by_freq and layer.padding_idx is None
        case _:
            return type(layer) is nn.Linear


def _linear(layer: nn.Linear, inputs: Tensor, deltas: Tensor, clients: int) -> list[LayerGradients]:
    """The gradients of weight and bias."""
    x, d = inputs.reshape(clients, -1, inputs.shape[-1]), deltas.reshape(clients, -1, deltas.shape[-1])
    weight: LayerGradients
    if _gram_is_cheaper(x.shape[1], layer.weight):
        weight = GramGradients(x, d, layer.weight)
    elif clients * layer.weight.numel() <= _MOST_KEPT:
        weight = FormedGradients(torch.bmm(d.transpose(1, 2), x))
    else:
        weight = StreamedGradients(clients, lambda i: d[i].T @ x[i], GramGradients(x, d, layer.weight).weighted_sum)
    return [weight] if layer.bias is None else [weight, FormedGradients(d.sum(1))]


def _convolution(layer: nn.Conv2d, inputs: Tensor, deltas: Tensor, clients: int) -> LayerGradients:
    """The gradients of the weight."""
    weight, examples = layer.weight, len(deltas) // clients
    positions = deltas[0, 0].numel() * examples
    assert not isinstance(layer.padding, str)
    if _gram_is_cheaper(positions, weight):
        if weight[0, 0].numel() == 1 and layer.padding == (0, 0):
            x = inputs[:, :, :: layer.stride[0], :: layer.stride[1]].flatten(2)
        else:
            x = F.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        x, d = (value.transpose(1, 2).reshape(clients, positions, -1) for value in (x, deltas.flatten(2)))
        return GramGradients(x, d, weight)

    def gradient(x: Tensor, d: Tensor) -> Tensor:
        return conv2d_weight(x, weight.shape, d, layer.stride, layer.padding, layer.dilation)  # type: ignore[no-any-return]

    client_x, client_d = inputs.chunk(clients), deltas.chunk(clients)
    if clients * weight.numel() <= _MOST_KEPT:
        return FormedGradients(torch.stack([gradient(*pair) for pair in zip(client_x, client_d, strict=True)]))

    def total(factors: Tensor, out: Tensor) -> None:
        scale = factors.repeat_interleave(examples).view(-1, 1, 1, 1)
        out.copy_(gradient(inputs, deltas * scale))

    return StreamedGradients(clients, lambda i: gradient(client_x[i], client_d[i]), total)


def _gram_is_cheaper(rows: int, weight: Tensor) -> bool:
    """Whether Gram matrices of ``rows`` rows take fewer multiplications than the gradient of ``weight``."""
    return rows * (len(weight) + weight[0].numel()) < weight.numel()
