"""Fast layers, and the LSTM's recurrence, compute what torch computes, and can be differentiated twice."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn

from coalmine.methods.canife.per_sample_gradients.layerwise import RecordedConv2d, Tape
from coalmine.methods.canife.per_sample_gradients.lstm_recurrence import Recurrence
from coalmine.methods.canife.per_sample_gradients.second_order import Geometry, convolved, group_normalized


@example(side=1, kernel=1, stride=2, padding=1, dilation=1)  # the kernel meets only padding
@example(side=5, kernel=4, stride=1, padding=1, dilation=2)  # the cropped kernel has room for more outputs
@given(
    side=st.integers(1, 6),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
)
def test_a_cropped_convolution_is_the_whole_one(side, kernel, stride, padding, dilation):
    if side + 2 * padding < dilation * (kernel - 1) + 1:
        return
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, kernel, stride=stride, padding=padding, dilation=dilation).double()
    images = torch.randn(2, 2, side, side, dtype=torch.float64)
    tape = Tape()
    mine = RecordedConv2d(copy.deepcopy(layer), tape)
    expected, deltas = layer(images), torch.randn_like(layer(images))
    output = mine(images)
    torch.testing.assert_close(output, expected)
    gradients = torch.autograd.grad(output, [use.tensor for use in tape.take()], deltas, create_graph=True)
    for i in range(2):
        weight, bias = torch.autograd.grad((layer(images[i : i + 1]) * deltas[i]).sum(), [layer.weight, layer.bias])
        whole = torch.zeros_like(weight)
        part = whole[(slice(None), slice(None), *mine.taps)]
        part.copy_(gradients[0][i].view_as(part))
        torch.testing.assert_close(whole, weight)
        torch.testing.assert_close(gradients[1][i], bias)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_convolution_and_its_gradients_can_be_differentiated(has_bias):
    geometry = Geometry(kernel=(3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
    images, deltas = numbers(2, 3, 5, 6), numbers(2, 4, 3, 4)
    kernel, bias = numbers(4, 3, 3, 2).detach(), numbers(4).detach() if has_bias else None

    def output_and_copies(values):
        kernels = kernel.flatten(1).expand(2, -1, -1).requires_grad_()
        biases = bias.expand(2, -1).requires_grad_() if has_bias else None
        return convolved(values, kernels, biases, geometry), [kernels, *([biases] if has_bias else [])]

    def gradients(values, by_output):
        output, copies = output_and_copies(values)
        return torch.autograd.grad(output, [values, *copies], by_output, create_graph=True)

    expected = F.conv2d(images, kernel, bias, geometry.stride, geometry.padding, geometry.dilation)
    torch.testing.assert_close(output_and_copies(images)[0], expected)
    assert torch.autograd.gradcheck(lambda values: output_and_copies(values)[0], images)
    assert torch.autograd.gradcheck(gradients, (images, deltas))
    assert torch.autograd.gradcheck(gradients, channels_last(images, deltas))
    first_layer, frozen_kernel = (lambda *values: gradients(*values)[1:], lambda *values: gradients(*values)[-1])
    assert torch.autograd.gradcheck(first_layer, (images, deltas))
    if has_bias:
        assert torch.autograd.gradcheck(frozen_kernel, (images, deltas))


def channels_last(*tensors):
    return [tensor.detach().to(memory_format=torch.channels_last).requires_grad_() for tensor in tensors]


def test_a_group_norm_and_its_gradients_can_be_differentiated():
    inputs, deltas, scale, shift = numbers(2, 6, 3, 2), numbers(2, 6, 3, 2), numbers(6), numbers(6)

    def output_and_copies(values):
        scales, shifts = (each.detach().expand(2, -1).requires_grad_() for each in (scale, shift))
        return group_normalized(values, scales, shifts, 3, 0.1), [scales, shifts]

    def gradients(values, by_output):
        output, copies = output_and_copies(values)
        return torch.autograd.grad(output, [values, *copies], by_output, create_graph=True)

    torch.testing.assert_close(output_and_copies(inputs)[0], F.group_norm(inputs, 3, scale, shift, 0.1))
    assert torch.autograd.gradcheck(lambda values: output_and_copies(values)[0], inputs)
    assert torch.autograd.gradcheck(gradients, (inputs, deltas))
    assert torch.autograd.gradcheck(gradients, channels_last(inputs, deltas))
    _, *by_copies = gradients(inputs, deltas)
    for i, (by_scale, by_shift) in enumerate(zip(*by_copies, strict=True)):
        output = F.group_norm(inputs[i : i + 1], 3, scale, shift, 0.1)
        expected = torch.autograd.grad(output, (scale, shift), deltas[i : i + 1])
        torch.testing.assert_close((by_scale, by_shift), expected)


@examples(max_examples=10)
@given(positions=st.integers(1, 4), count=st.integers(1, 3), units=st.integers(1, 3), seed=st.integers(0, 9))
def test_the_recurrence_can_be_differentiated_twice(positions, count, units, seed):
    draw = torch.Generator().manual_seed(seed)
    shares = torch.randn(count, positions, 4 * units, generator=draw, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4 * units, units, generator=draw, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: Recurrence.apply(s, weight), shares)
    assert torch.autograd.gradgradcheck(lambda s: Recurrence.apply(s, weight), shares)


def test_the_recurrence_is_that_of_torchs_lstm():
    torch.manual_seed(0)
    layer = nn.LSTM(3, 5, batch_first=True).double()
    inputs = torch.randn(2, 7, 3, dtype=torch.float64)
    shares = F.linear(inputs, layer.weight_ih_l0, layer.bias_ih_l0 + layer.bias_hh_l0)
    torch.testing.assert_close(Recurrence.apply(shares, layer.weight_hh_l0), layer(inputs)[0])
