"""Layers with their derivatives of first and second order written out (speed only).

Autograd takes several times as many operations to differentiate a group norm twice, and has no gradients of a kernel
for each sample. Here both can be differentiated once more, with respect to deltas and inputs. Parameters are constants.
Tests compare all of them with numerical derivatives; the plain reference path is `DoubleBackward`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# mypy: disable-error-code="no-untyped-call"


@dataclass(frozen=True)
class Geometry:
    """Size, stride, padding and dilation of a convolution's kernel, each along height and width."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def transposed(self, deltas: Tensor, kernel: Tensor, shape: torch.Size, groups: int = 1) -> Tensor:
        """Return the derivative of ⟨deltas, convolution⟩ with respect to the images, which have the given ``shape``."""
        images = deltas.new_empty(1).expand(shape)  # only its shape matters
        by_images: Tensor = torch.ops.aten.convolution_backward(
            deltas, images, kernel, None, self.stride, self.padding, self.dilation, False, (0, 0), groups,
            (True, False, False),
        )[0]  # fmt: skip
        return by_images

    def patches(self, images: Tensor) -> Tensor:
        """Return what the kernel sees at each place, (k, channels · taps, places): ``F.unfold``, but faster."""
        (above, beside), (down, right) = self.padding, self.stride
        images = F.pad(images, (beside, beside, above, above)) if any(self.padding) else images.contiguous()
        sides = zip(images.shape[2:], self.kernel, self.stride, self.dilation, strict=True)
        places = [(side - dilation * (kernel - 1) - 1) // stride + 1 for side, kernel, stride, dilation in sides]
        sample, channel, row, pixel = images.stride()
        taps = (row * self.dilation[0], pixel * self.dilation[1])
        view = images.as_strided(
            (*images.shape[:2], *self.kernel, *places), (sample, channel, *taps, row * down, pixel * right)
        )
        return view.reshape(len(images), -1, places[0] * places[1])


class ConvolutionGradients(torch.autograd.Function):
    """``apply(images, deltas, geometry)`` returns each sample's gradients: kernel (flattened per filter), bias.

    With P_k the patches of sample k, these are δ_k P_kᵀ and the sum of δ_k over all places.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, deltas: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        """Multiply deltas with patches."""
        patches, by_place = geometry.patches(images), deltas.flatten(2)
        ctx.save_for_backward(deltas, patches)
        ctx.shape, ctx.geometry = images.shape, geometry
        # With a single place, batched matrix products are slower than the outer product that they amount to.
        single = patches.shape[2] == 1
        by_kernel = by_place * patches.transpose(1, 2) if single else torch.bmm(by_place, patches.transpose(1, 2))
        return by_kernel, by_place.sum(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, kernels: Tensor, biases: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the derivatives of ⟨V, δ Pᵀ⟩ + ⟨v, Σ δ⟩ with respect to images and deltas."""
        deltas, patches = ctx.saved_tensors
        by_deltas = torch.baddbmm(biases[:, :, None], kernels, patches).view_as(deltas)
        # One convolution for all samples, each with its own kernel.
        count, channels, *sides = ctx.shape
        kernels = kernels.reshape(-1, channels, *ctx.geometry.kernel)
        joined = deltas.reshape(1, -1, *deltas.shape[2:])
        by_images = ctx.geometry.transposed(joined, kernels, torch.Size([1, count * channels, *sides]), groups=count)
        return by_images.view(ctx.shape), by_deltas, None


@dataclass(frozen=True, eq=False)
class Standardized:
    """Inputs (k, channels, …) standardized within groups of channels, and the derivative of that.

    With n the standardized inputs of a group of L numbers, and r the inverse of their standard deviation, the
    derivative is the symmetric J = r (I − 1 1ᵀ/L − n nᵀ/L).
    """

    rows: Tensor  # the inputs by group, (k, groups, L)
    normal: Tensor  # n, shaped like the inputs
    mean: Tensor
    inverse: Tensor  # r, (k, groups, 1)

    @classmethod
    def of(cls, inputs: Tensor, groups: int, eps: float) -> Standardized:
        """Standardize the inputs."""
        rows = inputs.reshape(len(inputs), groups, -1)
        normal, mean, inverse = torch.native_layer_norm(rows, rows.shape[2:], None, None, eps)
        return cls(rows, normal.view(inputs.shape), mean, inverse)

    def derivative(self, vectors: Tensor) -> Tensor:
        """Return J times ``vectors``, which are shaped like the inputs."""
        product: Tensor = torch.ops.aten.native_layer_norm_backward(
            vectors.reshape(self.rows.shape), self.rows, self.rows.shape[2:], self.mean, self.inverse, None, None,
            (True, False, False),
        )[0]  # fmt: skip
        return product.view(vectors.shape)

    def curvature(self, g: Tensor, a: Tensor, j_g: Tensor, j_a: Tensor) -> Tensor:
        """Return the derivative of ⟨a, J g⟩ with respect to the inputs, given J g and J a.

        By dn = J dx and dr = −r² ⟨n, dx⟩/L it is −(r/L) (⟨a, J g⟩ n + ⟨n, g⟩ J a + ⟨n, a⟩ J g).
        """
        g, a, j_g, j_a, n = (values.reshape(self.rows.shape) for values in (g, a, j_g, j_a, self.normal))
        factor = self.inverse / -self.rows.shape[2]
        curved = n * ((a * j_g).sum(2, keepdim=True) * factor)
        curved.addcmul_(j_a, (n * g).sum(2, keepdim=True) * factor)
        curved.addcmul_(j_g, (n * a).sum(2, keepdim=True) * factor)
        return curved.view(self.normal.shape)


class GroupNormalization(torch.autograd.Function):
    """``apply(inputs, scales, shifts, groups, eps)`` returns scale · n + shift; scales and shifts are (k, channels).

    Each sample has a scale and a shift of its own, so the derivatives with respect to them are per-sample gradients.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, scales: Tensor, shifts: Tensor, groups: int, eps: float) -> Tensor:
        """Scale and shift the standardized inputs."""
        ctx.save_for_backward(inputs)
        ctx.scales, ctx.standardized = _over_places(scales, inputs), Standardized.of(inputs, groups, eps)
        return torch.addcmul(_over_places(shifts, inputs), ctx.standardized.normal, ctx.scales)

    @staticmethod
    def backward(ctx: Any, deltas: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives by inputs, scales and shifts, or by the inputs alone in the second-order pass."""
        if not torch.is_grad_enabled():  # the second-order pass builds no graph, and needs only this derivative
            return ctx.standardized.derivative(deltas * ctx.scales), None, None, None, None
        (inputs,) = ctx.saved_tensors
        return *_GroupNormalizationBackward.apply(deltas, inputs, ctx.scales, ctx.standardized), None, None


class _GroupNormalizationBackward(torch.autograd.Function):
    """``apply(deltas, inputs, scales, standardized)`` returns J (scale · deltas), Σ n · deltas and Σ deltas."""

    @staticmethod
    def forward(
        ctx: Any, deltas: Tensor, inputs: Tensor, scales: Tensor, standardized: Standardized
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply J, and sum over all places."""
        scaled = deltas * scales
        by_inputs = standardized.derivative(scaled)
        ctx.save_for_backward(deltas, scaled, by_inputs)
        ctx.scales, ctx.standardized = scales, standardized
        return by_inputs, (deltas * standardized.normal).flatten(2).sum(2), deltas.flatten(2).sum(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangents: Tensor, scales: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the derivatives by deltas and inputs of the sum of all outputs, weighted by their cotangents."""
        deltas, scaled, by_inputs = ctx.saved_tensors
        standardized: Standardized = ctx.standardized
        scales, shifts = _over_places(scales, deltas), _over_places(shifts, deltas)
        by_scaled = standardized.derivative(cotangents)
        by_deltas = torch.addcmul(shifts, standardized.normal, scales).addcmul_(by_scaled, ctx.scales)
        curved = standardized.curvature(scaled, cotangents, by_inputs, by_scaled)
        return by_deltas, curved.add_(standardized.derivative(deltas * scales)), None, None


def _over_places(values: Tensor, inputs: Tensor) -> Tensor:
    """Reshape ``values`` (k, channels) so that they broadcast over all places of ``inputs``."""
    return values.view(*values.shape, *[1] * (inputs.ndim - 2))
