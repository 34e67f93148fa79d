"""Convolutions and group norms with their derivatives of first and second order written out (speed only).

Autograd takes several times as many operations to differentiate these layers twice, computes derivatives with respect
to parameters that nobody needs, and has no gradients of a kernel for each sample. Here each sample has its own copy of
the parameters, so the derivatives with respect to the copies are per-sample gradients; they can be differentiated once
more, with respect to deltas and inputs. Tests compare all of them with numerical derivatives; the plain reference path
is `DoubleBackward`.

First derivatives must be taken with ``create_graph=True``. Without a graph, only those with respect to the inputs are
returned: they are all that the second-order pass needs, and autograd does not tell a Python function what it needs.
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

    def convolution(self, images: Tensor, kernel: Tensor) -> Tensor:
        """Return the images convolved with the kernel."""
        return F.conv2d(images, kernel, None, self.stride, self.padding, self.dilation)

    def transposed(self, deltas: Tensor, kernel: Tensor, images: Tensor, groups: int = 1) -> Tensor:
        """Return the derivative of ⟨deltas, convolution⟩ with respect to ``images``, whose shape alone matters."""
        by_images: Tensor = torch.ops.aten.convolution_backward(
            deltas, images, kernel, None, self.stride, self.padding, self.dilation, False, (0, 0), groups,
            (True, False, False),
        )[0]  # fmt: skip
        return by_images

    def patches(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return what the kernel sees at each place, (k, channels · taps, places), and the places by height and width.

        The first is what ``F.unfold`` returns, but faster.
        """
        (pad_y, pad_x), (stride_y, stride_x) = self.padding, self.stride
        images = F.pad(images, (pad_x, pad_x, pad_y, pad_y)) if any(self.padding) else images.contiguous()
        sides = zip(images.shape[2:], self.kernel, self.stride, self.dilation, strict=True)
        height, width = ((side - dilation * (kernel - 1) - 1) // stride + 1 for side, kernel, stride, dilation in sides)
        sample, channel, row, pixel = images.stride()
        taps = (row * self.dilation[0], pixel * self.dilation[1])
        view = images.as_strided(
            (*images.shape[:2], *self.kernel, height, width), (sample, channel, *taps, row * stride_y, pixel * stride_x)
        )
        return view.reshape(len(images), -1, height * width), (height, width)


def convolved(images: Tensor, kernels: Tensor, biases: Tensor | None, geometry: Geometry) -> Tensor:
    """Return the convolution of each sample with its copy of a kernel, plus its copy of a bias.

    Args:
        images: (k, channels, height, width).
        kernels: (k, filters, channels · taps), copies of one kernel.
        biases: (k, filters), copies of one bias, or None.
        geometry: How the kernel meets the images.
    """
    output: Tensor = _Convolution.apply(images, kernels, biases, geometry)
    return output


class _Convolution(torch.autograd.Function):
    """See `convolved`."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Tensor, biases: Tensor | None, geometry: Geometry) -> Tensor:
        """Multiply the kernels with patches, which the derivatives need anyway."""
        ctx.save_for_backward(images)
        patches, places = geometry.patches(images)
        ctx.patches, ctx.geometry, ctx.has_bias = patches, geometry, biases is not None
        ctx.kernel = kernels[0].view(-1, images.shape[1], *geometry.kernel)
        output = torch.bmm(kernels, patches) if biases is None else torch.baddbmm(biases[:, :, None], kernels, patches)
        return output.view(*output.shape[:2], *places)

    @staticmethod
    def backward(ctx: Any, deltas: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives by images, kernels and biases, or by the images alone in the second-order pass."""
        (images,) = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return ctx.geometry.transposed(deltas, ctx.kernel, images), None, None, None
        # The patches save computing them again; the derivative flows through the images.
        by_images, kernels, biases = _ConvolutionBackward.apply(deltas, images, ctx.patches, ctx.kernel, ctx.geometry)
        return by_images, kernels, biases if ctx.has_bias else None, None


class _ConvolutionBackward(torch.autograd.Function):
    """``apply(deltas, images, patches, kernel, geometry)`` returns the derivatives by images, kernels and biases.

    With P_k the patches of sample k, those by kernels and biases are δ_k P_kᵀ and the sum of δ_k over all places.
    """

    @staticmethod
    def forward(
        ctx: Any, deltas: Tensor, images: Tensor, patches: Tensor, kernel: Tensor, geometry: Geometry
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply the transpose of the convolution, and multiply deltas with patches."""
        ctx.save_for_backward(deltas, images)
        ctx.patches, ctx.kernel, ctx.geometry = patches, kernel, geometry
        ctx.set_materialize_grads(False)  # nobody differentiates by the first layer's images: that saves a convolution
        by_place = deltas.flatten(2)
        # With a single place, batched matrix products are slower than the outer product that they amount to.
        single = patches.shape[2] == 1
        by_kernels = by_place * patches.transpose(1, 2) if single else torch.bmm(by_place, patches.transpose(1, 2))
        return geometry.transposed(deltas, kernel, images), by_kernels, by_place.sum(2)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, a_images: Tensor | None, a_kernels: Tensor | None, a_biases: Tensor | None
    ) -> tuple[Tensor, Tensor, None, None, None]:
        """Return the derivatives by deltas and images of Σ ⟨a, output⟩, with the cotangents a of the outputs."""
        deltas, images = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        if a_kernels is None:
            a_kernels = deltas.new_zeros(len(deltas), deltas.shape[1], ctx.patches.shape[1])
        constant = deltas.new_zeros(1, 1, 1) if a_biases is None else a_biases[:, :, None]
        if a_images is not None:
            constant = constant + geometry.convolution(a_images, ctx.kernel).flatten(2)
        by_deltas = torch.baddbmm(constant, a_kernels, ctx.patches).view_as(deltas)
        # One convolution for all samples, each with its own kernel.
        all_kernels = a_kernels.reshape(-1, images.shape[1], *geometry.kernel)
        all_deltas, all_images = (each.reshape(1, -1, *each.shape[2:]) for each in (deltas, images))
        by_images = geometry.transposed(all_deltas, all_kernels, all_images, groups=len(images))
        return by_deltas, by_images.view_as(images), None, None, None


def group_normalized(inputs: Tensor, scales: Tensor, shifts: Tensor, groups: int, eps: float) -> Tensor:
    """Return scale · n + shift, where n are the inputs standardized within groups of channels.

    Args:
        inputs: (k, channels, …).
        scales: (k, channels), each sample's copy of one scale.
        shifts: (k, channels), each sample's copy of one shift.
        groups: Number of groups.
        eps: Added to variances.
    """
    output: Tensor = _GroupNormalization.apply(inputs, scales, shifts, groups, eps)
    return output


@dataclass(frozen=True, eq=False)
class _Standardization:
    """How inputs (k, channels, …) are standardized within groups of channels, and the derivative of that.

    With n the standardized inputs of a group of L numbers, and r the inverse of their standard deviation, the
    derivative is the symmetric J = r (I − 1 1ᵀ/L − n nᵀ/L). torch sums the derivatives by scales and shifts over
    samples. We pass all k samples as one with k · channels channels, so that each keeps sums of its own.
    """

    inputs: Tensor
    channels: int  # of all samples together
    places: int
    groups: int  # of all samples together
    eps: float
    mean: Tensor
    inverse: Tensor  # r, (1, groups)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """One sample, and how large it is."""
        return 1, self.channels, self.places, self.groups

    def normal(self) -> Tensor:
        """Compute n, shaped like the inputs; that costs less than keeping it."""
        return torch.native_group_norm(self.inputs, None, None, *self.sizes, self.eps)[0]

    def derivatives(self, vectors: Tensor, scales: Tensor, *, sums: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Return J (scale · vectors) and, for each channel, the sums of n · vectors and of the vectors.

        Args:
            vectors: Shaped like the inputs.
            scales: One for each channel.
            sums: Whether the sums are needed.
        """
        derivatives: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_group_norm_backward(
            vectors.contiguous(), self.inputs, self.mean, self.inverse, scales, *self.sizes, (True, sums, sums)
        )
        return derivatives


class _GroupNormalization(torch.autograd.Function):
    """See `group_normalized`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, scales: Tensor, shifts: Tensor, groups: int, eps: float) -> Tensor:
        """Standardize, scale and shift."""
        ctx.save_for_backward(inputs)  # these have the graph; channels of samples can be joined if they are contiguous
        inputs, ctx.scales = inputs.contiguous(), scales.reshape(-1)
        sizes = len(ctx.scales), inputs.shape[2:].numel(), len(inputs) * groups
        output, *moments = torch.native_group_norm(inputs, ctx.scales, shifts.reshape(-1), 1, *sizes, eps)
        ctx.standardization = _Standardization(inputs, *sizes, eps, *moments)
        return output

    @staticmethod
    def backward(ctx: Any, deltas: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives by inputs, scales and shifts, or by the inputs alone in the second-order pass."""
        if not torch.is_grad_enabled():
            return ctx.standardization.derivatives(deltas, ctx.scales, sums=False)[0], None, None, None, None
        (inputs,) = ctx.saved_tensors
        return *_GroupNormalizationBackward.apply(deltas, inputs, ctx.scales, ctx.standardization), None, None


class _GroupNormalizationBackward(torch.autograd.Function):
    """``apply(deltas, inputs, scales, standardization)`` returns the derivatives by inputs, scales and shifts.

    The inputs are an argument so that they get a derivative; their numbers are in ``standardization``.
    """

    @staticmethod
    def forward(
        ctx: Any, deltas: Tensor, inputs: Tensor, scales: Tensor, standardization: _Standardization
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply J to the scaled deltas, and sum over all places."""
        by_inputs, by_scales, by_shifts = standardization.derivatives(deltas, scales)
        ctx.save_for_backward(deltas, by_inputs, by_scales)
        ctx.scales, ctx.standardization = scales, standardization
        return by_inputs, by_scales.view(len(inputs), -1), by_shifts.view(len(inputs), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a_inputs: Tensor, a_scales: Tensor, a_shifts: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the derivatives by deltas and inputs of Σ ⟨a, output⟩, with the cotangents a of the outputs.

        With a the cotangents of J g, and g the scaled deltas, ⟨a, J g⟩ has the derivative
        −(r/L) (⟨a, J g⟩ n + ⟨n, g⟩ J a + ⟨n, a⟩ J g) by the inputs, since dn = J dx and dr = −r² ⟨n, dx⟩/L.
        """
        deltas, j_g, by_scales = ctx.saved_tensors
        standardization: _Standardization = ctx.standardization
        normal = standardization.normal()
        j_a, a_by_channel, _ = standardization.derivatives(a_inputs, torch.ones_like(ctx.scales))

        def over_places(values: Tensor) -> Tensor:
            return values.view(*deltas.shape[:2], *[1] * (deltas.ndim - 2))

        def by_group(values: Tensor) -> Tensor:
            return values.reshape(standardization.groups, -1)

        by_deltas = torch.addcmul(over_places(a_shifts), normal, over_places(a_scales))
        by_deltas.addcmul_(j_a, over_places(ctx.scales))
        factor = standardization.inverse.view(-1, 1) * (-standardization.groups / deltas.numel())  # −r/L
        products = (a_inputs * j_g, by_scales * ctx.scales, a_by_channel)  # they add up to ⟨a, J g⟩, ⟨n, g⟩ and ⟨n, a⟩
        a_j_g, n_g, n_a = (by_group(values).sum(1, keepdim=True) * factor for values in products)
        curved = (by_group(normal) * a_j_g).addcmul_(by_group(j_a), n_g).addcmul_(by_group(j_g), n_a)
        by_inputs = standardization.derivatives(deltas, a_scales.reshape(-1), sums=False)[0]
        return by_deltas, by_inputs.add_(curved.view_as(deltas)), None, None
