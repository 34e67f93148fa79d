"""Per-client gradients of single layers, from what went in and what came back.

For each layer: the squared norm of each client's gradient, and the sum of the gradients with a factor for each client.
Examples of a client are consecutive; every client has the same number of them (short ones are filled up with examples
whose deltas are zero).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.simulation import flat
from coalmine.simulation.kernels.convolutions import Reach, copy_taps, patches, plain, reach, weight_gradient

# Per-client gradients of a layer are kept for the sum only where all of them stay below this many numbers.
_KEPT = 8_000_000

# Gram matrices are trusted to float32's rounding times this factor: what is taken off clipped updates covers it.
_CANCELLING = 64
_ROUNDING = 1e-6


class LayerGradients(Protocol):
    """The gradients of one parameter of a layer, for some clients."""

    def squared_norms(self) -> Tensor:
        """(clients,) float64: what this parameter adds to the squared norm of each client's gradient."""

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """Write Σ factorᵢ · gradientᵢ to ``out``, which has the parameter's shape and is contiguous."""


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

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """One product over all rows, with the deltas scaled."""
        if self._formed is not None:
            self._formed.weighted_sum(factors, out)
            return
        scaled = (self._d * factors[:, None, None]).flatten(0, 1)
        torch.mm(scaled.T, self._x.flatten(0, 1), out=out.view(len(out), -1))


class FormedGradients:
    """Gradients small enough to be formed for every client and kept: (clients, *shape)."""

    def __init__(self, gradients: Tensor) -> None:
        self._rows = gradients.flatten(1)

    def squared_norms(self) -> Tensor:
        """Directly."""
        return flat.norms(self._rows).square_()

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """Directly."""
        torch.mv(self._rows.T, factors, out=out.view(-1))


class StreamedGradients:
    """Gradients too large to keep: ``each`` forms client i's for its norm, ``total`` writes the sum with factors."""

    def __init__(self, clients: int, each: Callable[[int], Tensor], total: Callable[[Tensor, Tensor], object]) -> None:
        self._clients, self._each, self._total = clients, each, total

    def squared_norms(self) -> Tensor:
        """One client at a time."""
        return torch.cat([flat.norms(self._each(i).reshape(1, -1)) for i in range(self._clients)]).square_()

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """In one pass over all clients."""
        self._total(factors, out)


class EmbeddingGradients:
    """A table of vectors: a client's gradient is zero but for the tokens it has."""

    def __init__(self, tokens: Tensor, deltas: Tensor, table: torch.Size) -> None:
        keys = tokens + torch.arange(len(tokens))[:, None] * table[0]
        found, places = keys.flatten().unique(return_inverse=True)
        self._owner, self._token = found // table[0], found % table[0]
        self._sums = deltas.new_zeros(len(found), table[1]).index_add_(0, places, deltas.flatten(0, 1))
        self._clients = len(tokens)

    def squared_norms(self) -> Tensor:
        """Over the tokens that occur."""
        squares = self._sums.square().sum(1, dtype=torch.float64)
        return squares.new_zeros(self._clients).index_add_(0, self._owner, squares)

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """Into a dense table."""
        out.zero_().index_add_(0, self._token, self._sums * factors[self._owner][:, None])


class ReachedGradients:
    """Gradients of the part of a convolution's weight that meets pixels: the rest of it has none."""

    def __init__(self, part: LayerGradients, seen: Reach) -> None:
        self._part, self._seen = part, seen

    def squared_norms(self) -> Tensor:
        """Those of the part."""
        return self._part.squared_norms()

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """That of the part in its place."""
        place = self._seen.of(out)
        if place.shape == out.shape:
            self._part.weighted_sum(factors, out)
            return
        out.zero_()
        part = torch.empty_like(place, memory_format=torch.contiguous_format)
        self._part.weighted_sum(factors, part)
        copy_taps(part, place)


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
            found.append(StreamedGradients(clients, lambda i: d[i].T @ x[i], total))
        return found if layer.bias is None else [*found, FormedGradients(d.sum(1))]
    if isinstance(layer, nn.Conv2d):
        seen = reach(layer, inputs)
        found.append(ReachedGradients(_convolution(layer, seen, inputs, deltas, clients), seen))
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
            return layer.groups == 1 and plain(layer)
        case nn.GroupNorm():
            return layer.affine and layer.bias is not None
        case nn.Embedding():
            return layer.max_norm is None and not layer.scale_grad_by_freq and layer.padding_idx is None
        case _:
            return type(layer) is nn.Linear


def _few(rows: int, weight: Tensor) -> bool:
    """Whether Gram matrices of so many rows take fewer multiplications than the gradient of ``weight``."""
    return rows * (len(weight) + weight[0].numel()) < weight.numel()


def _convolution(layer: nn.Conv2d, seen: Reach, inputs: Tensor, deltas: Tensor, clients: int) -> LayerGradients:
    """The gradients of the part of its weight that meets pixels."""
    weight, examples = seen.of(layer.weight), len(deltas) // clients
    positions = deltas[0, 0].numel() * examples
    if _few(positions, weight):
        x, d = patches(layer, seen, inputs), deltas.flatten(2).transpose(1, 2)
        shape = (clients, positions, -1)
        return GramGradients(x.reshape(shape), d.reshape(shape), weight)
    gradient = partial(weight_gradient, layer, seen, weight)
    some_x, some_d = inputs.chunk(clients), deltas.chunk(clients)
    if clients * weight.numel() <= _KEPT:
        return FormedGradients(torch.stack([gradient(*piece) for piece in zip(some_x, some_d, strict=True)]))

    def total(factors: Tensor, out: Tensor) -> None:
        scale = factors.repeat_interleave(examples).view(-1, 1, 1, 1)
        out.copy_(gradient(inputs, deltas * scale))

    return StreamedGradients(clients, lambda i: gradient(some_x[i], some_d[i]), total)
