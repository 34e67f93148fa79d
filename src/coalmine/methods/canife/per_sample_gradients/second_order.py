"""Layers with their derivatives of first and second order written out (speed only).

Autograd takes several times as many operations to differentiate these layers twice, computes derivatives with respect
to parameters that nobody needs, and has no gradients of a kernel for each sample. Here every sample has copies of the
parameters of its own, so the derivatives with respect to the copies are per-sample gradients; they can be
differentiated once more, with respect to deltas and inputs. Tests compare all of them with numerical derivatives; the
plain reference path is `DoubleBackward`.
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
        (above, beside), (down, right) = self.padding, self.stride
        images = F.pad(images, (beside, beside, above, above)) if any(self.padding) else images.contiguous()
        sides = zip(images.shape[2:], self.kernel, self.stride, self.dilation, strict=True)
        high, wide = [(side - dilation * (kernel - 1) - 1) // stride + 1 for side, kernel, stride, dilation in sides]
        sample, channel, row, pixel = images.stride()
        taps = (row * self.dilation[0], pixel * self.dilation[1])
        view = images.as_strided(
            (*images.shape[:2], *self.kernel, high, wide), (sample, channel, *taps, row * down, pixel * right)
        )
        return view.reshape(len(images), -1, high * wide), (high, wide)


class Convolution(torch.autograd.Function):
    """``apply(images, kernels, biases, kernel, geometry)`` returns the convolution with ``kernel`` plus the bias.

    ``kernels`` (k, filters, channels · taps) and ``biases`` (k, filters) or None are each sample's copies.
    """

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, kernels: Tensor, biases: Tensor | None, kernel: Tensor, geometry: Geometry
    ) -> Tensor:
        """Multiply the kernels with patches, which the derivatives need anyway."""
        patches, places = geometry.patches(images)
        ctx.save_for_backward(images)
        ctx.patches, ctx.kernel, ctx.has_bias, ctx.geometry = patches, kernel, biases is not None, geometry
        output = torch.bmm(kernels, patches) if biases is None else torch.baddbmm(biases[:, :, None], kernels, patches)
        return output.view(*output.shape[:2], *places)

    @staticmethod
    def backward(ctx: Any, deltas: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives by images, kernels and biases, or by the images alone in the second-order pass."""
        (images,) = ctx.saved_tensors
        if not torch.is_grad_enabled():  # the second-order pass builds no graph, and needs only this derivative
            return ctx.geometry.transposed(deltas, ctx.kernel, images), None, None, None, None
        by_images, kernels, biases = _ConvolutionBackward.apply(deltas, images, ctx.patches, ctx.kernel, ctx.geometry)
        return by_images, kernels, biases if ctx.has_bias else None, None, None


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
        ctx.set_materialize_grads(False)
        ctx.patches, ctx.kernel, ctx.geometry = patches, kernel, geometry
        by_place = deltas.flatten(2)
        # With a single place, batched matrix products are slower than the outer product that they amount to.
        single = patches.shape[2] == 1
        by_kernels = by_place * patches.transpose(1, 2) if single else torch.bmm(by_place, patches.transpose(1, 2))
        return geometry.transposed(deltas, kernel, images), by_kernels, by_place.sum(2)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, cotangents: Tensor | None, kernels: Tensor | None, biases: Tensor | None
    ) -> tuple[Tensor, Tensor, None, None, None]:
        """Return the derivatives by deltas and images of the sum of all outputs, weighted by their cotangents."""
        deltas, images = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        if kernels is None:
            kernels = deltas.new_zeros(len(deltas), deltas.shape[1], ctx.patches.shape[1])
        by_deltas = deltas.new_zeros(1, 1, 1) if biases is None else biases[:, :, None]
        if cotangents is not None:
            by_deltas = by_deltas + geometry.convolution(cotangents, ctx.kernel).flatten(2)
        by_deltas = torch.baddbmm(by_deltas, kernels, ctx.patches).view_as(deltas)
        # One convolution for all samples, each with its own kernel.
        kernels = kernels.reshape(-1, images.shape[1], *geometry.kernel)
        all_deltas, all_images = (each.reshape(1, -1, *each.shape[2:]) for each in (deltas, images))
        by_images = geometry.transposed(all_deltas, kernels, all_images, groups=len(images))
        return by_deltas, by_images.view_as(images), None, None, None


@dataclass(frozen=True, eq=False)
class Standardized:
    """Inputs (k, channels, …) standardized within groups of channels, and the derivative of that.

    With n the standardized inputs of a group of L numbers, and r the inverse of their standard deviation, the
    derivative is the symmetric J = r (I − 1 1ᵀ/L − n nᵀ/L). To torch, all samples together are one sample with the
    channels of all, so that every sample has scales, shifts and sums of its own.
    """

    inputs: Tensor
    sizes: tuple[int, int, int, int]  # 1, k · channels, places, k · groups
    eps: float
    mean: Tensor
    inverse: Tensor  # r, (1, k · groups)

    @property
    def normal(self) -> Tensor:
        """n, shaped like the inputs."""
        return torch.native_group_norm(self.inputs, None, None, *self.sizes, self.eps)[0]

    def derivative(self, vectors: Tensor, scales: Tensor) -> Tensor:
        """Return J times the scaled ``vectors``, which are shaped like the inputs; ``scales`` is (k · channels,)."""
        return self._derivatives(vectors, scales, (True, False, False))[0]

    def derivatives(self, vectors: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same, and for each channel the sums (k · channels,) of n · vectors and of the vectors."""
        return self._derivatives(vectors, scales, (True, True, True))

    def _derivatives(
        self, vectors: Tensor, scales: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_group_norm_backward(
            vectors.contiguous(), self.inputs, self.mean, self.inverse, scales, *self.sizes, wanted
        )
        return found


class GroupNormalization(torch.autograd.Function):
    """``apply(inputs, scales, shifts, groups, eps)`` returns scale · n + shift; scales and shifts are (k, channels)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, scales: Tensor, shifts: Tensor, groups: int, eps: float) -> Tensor:
        """Scale and shift the standardized inputs."""
        (count, channels), places = inputs.shape[:2], inputs.shape[2:].numel()
        sizes = (1, count * channels, places, count * groups)
        ctx.save_for_backward(inputs)
        ctx.scales, inputs = scales.reshape(-1), inputs.contiguous()
        output, mean, inverse = torch.native_group_norm(inputs, ctx.scales, shifts.reshape(-1), *sizes, eps)
        ctx.standardized = Standardized(inputs, sizes, eps, mean, inverse)
        return output

    @staticmethod
    def backward(ctx: Any, deltas: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives by inputs, scales and shifts, or by the inputs alone in the second-order pass."""
        if not torch.is_grad_enabled():  # the second-order pass builds no graph, and needs only this derivative
            return ctx.standardized.derivative(deltas, ctx.scales), None, None, None, None
        (inputs,) = ctx.saved_tensors
        return *_GroupNormalizationBackward.apply(deltas, inputs, ctx.scales, ctx.standardized), None, None


class _GroupNormalizationBackward(torch.autograd.Function):
    """``apply(deltas, inputs, scales, standardized)`` returns J (scale · deltas), Σ n · deltas and Σ deltas."""

    @staticmethod
    def forward(
        ctx: Any, deltas: Tensor, inputs: Tensor, scales: Tensor, standardized: Standardized
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply J, and sum over all places."""
        by_inputs, by_scales, by_shifts = standardized.derivatives(deltas, scales)
        ctx.save_for_backward(deltas, by_inputs, by_scales)
        ctx.scales, ctx.standardized = scales, standardized
        count = len(inputs)
        return by_inputs, by_scales.view(count, -1), by_shifts.view(count, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangents: Tensor, scales: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the derivatives by deltas and inputs of the sum of all outputs, weighted by their cotangents.

        That of ⟨a, J g⟩ by the inputs is −(r/L) (⟨a, J g⟩ n + ⟨n, g⟩ J a + ⟨n, a⟩ J g), since dn = J dx and
        dr = −r² ⟨n, dx⟩/L. Here a are the cotangents and g the scaled deltas.
        """
        deltas, j_g, by_scales = ctx.saved_tensors
        standardized: Standardized = ctx.standardized
        j_a, n_a, _ = standardized.derivatives(cotangents, torch.ones_like(ctx.scales))
        normal = standardized.normal

        def over_places(values: Tensor) -> Tensor:
            return values.view(*deltas.shape[:2], *[1] * (deltas.ndim - 2))

        by_deltas = torch.addcmul(over_places(shifts), normal, over_places(scales))
        by_deltas.addcmul_(j_a, over_places(ctx.scales))

        def by_group(values: Tensor) -> Tensor:
            return values.reshape(standardized.sizes[3], -1)

        factor = standardized.inverse.view(-1, 1) * (-standardized.sizes[3] / deltas.numel())
        a_j_g, n_g, n_a = (
            by_group(values).sum(1, keepdim=True) * factor for values in (cotangents * j_g, by_scales * ctx.scales, n_a)
        )
        curved = by_group(normal) * a_j_g
        curved.addcmul_(by_group(j_a), n_g).addcmul_(by_group(j_g), n_a)
        return by_deltas, standardized.derivative(deltas, scales.reshape(-1)).add_(curved.view_as(deltas)), None, None
