"""Each sample's gradient with respect to a model's parameters, as a differentiable function of the sample.

Designing a canary needs ∇ₓ L(g(z)), where g(z) is the gradient of the training loss at the sample z. `SampleGradients`
returns g with a graph; after v = ∂L/∂g in closed form, one backward pass of ⟨g(z), v⟩ gives the derivative by z.

- `OneByOne` is the plain reference. It works for every module that can be differentiated twice.
- `Batched` runs all samples through ``torch.func.vmap``, each with its own copy of the parameters.
- `ByLayers` uses the kernel of one-step clients (`coalmine.simulation.kernels.layerwise`) for large models. For 16
  canaries it takes 0.35 of the time of `Batched` on ResNet18 and 0.45 on an LSTM (benchmarks/canife_design.py).

`sample_gradients` chooses, and uses the last two only if they agree with the first on two samples.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coalmine.errors import InputError
from coalmine.simulation.flat import FlatModel, check_module, trainable
from coalmine.simulation.kernels.layerwise import Recorder, crop_convolutions, is_supported, layers_of
from coalmine.simulation.models.text import SoftEmbedding

# Models with fewer parameters are faster with vmap: their layers are small, and a pass costs as much as its operations.
_LEAST_PARAMETERS = 100_000

# What a module may raise that does something unusual.
_FAILURES = (InputError, RuntimeError, TypeError, ValueError, AttributeError, LookupError)


class SampleGradients(ABC):
    """Computes each sample's gradient with respect to the trainable parameters of a module.

    Args:
        module: The module; it is copied.
        example: An input (1, …) like those to come, for which layers are rewritten to be faster; None keeps them.
    """

    used: Tensor
    """Which coordinates of the flat gradient are computed, (d,); all others are always zero."""

    def __init__(self, module: nn.Module, example: Tensor | None = None) -> None:
        # In eval mode, since a canary cannot anticipate which units its client's dropout will drop.
        dtype = next(module.parameters()).dtype
        self._module = FlatModel(module, dtype=dtype).module.eval()
        for layer in self._module.modules():
            if hasattr(layer, "inplace"):
                layer.inplace = False  # type: ignore[assignment]
            # Only a layer that maps tokens to rows of its weight and does nothing else can take distributions.
            if type(layer) is nn.Embedding and layer.max_norm is None and not layer.scale_grad_by_freq:
                layer.__class__ = SoftEmbedding  # in place, since other layers may use its weight
        if example is None:
            self._parameters = list(trainable(self._module).values())
            self.used = torch.ones(sum(value.numel() for value in self._parameters), dtype=torch.bool)
            return
        self.used = crop_convolutions(self._module, example)
        self._parameters = list(trainable(self._module).values())  # in the order before layers are rewritten
        for parent in list(self._module.modules()):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, nn.LSTM):
                    setattr(parent, name, UnrolledLSTM(layer))

    @torch.no_grad()
    def load(self, vector: Tensor) -> None:
        """Set the module's trainable parameters from a flat vector (d,)."""
        pieces = vector[self.used.to(vector.device)].split([value.numel() for value in self._parameters])
        for value, piece in zip(self._parameters, pieces, strict=True):
            value.copy_(piece.view_as(value))

    @abstractmethod
    def of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the used coordinates of the flat gradients, (k, used).

        Args:
            inputs: Numbers (k, *input_shape) or distributions over tokens (k, positions, tokens).
            targets: Labels (k,), or distributions over labels (k, classes) or (k, positions, classes).

        Returns:
            Gradients that have a graph wherever inputs or targets have one.
        """


class OneByOne(SampleGradients):
    """Goes backward through the module with a graph, one sample after another."""

    def of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradients, as `SampleGradients.of` describes."""
        samples = []
        for sample, target in zip(inputs.split(1), targets.split(1), strict=True):
            loss = sample_losses(self._module(sample), target)[0]
            rows = torch.autograd.grad(
                loss, self._parameters, create_graph=True, allow_unused=True, materialize_grads=True
            )
            samples.append(torch.cat([row.flatten() for row in rows]))
        return torch.stack(samples)


class Batched(OneByOne):
    """All samples in one pass, by vmap over copies of the parameters."""

    def __init__(self, module: nn.Module, example: Tensor) -> None:
        super().__init__(module, example)
        names = {id(value): name for name, value in self._module.named_parameters()}
        self._names = [names[id(value)] for value in self._parameters]

    def of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradients, as `SampleGradients.of` describes."""
        if len(inputs) == 1:  # without a batch, vmap only costs
            return super().of(inputs, targets)

        def logits(parameters: list[Tensor], sample: Tensor) -> Tensor:
            named = dict(zip(self._names, parameters, strict=True))
            outputs: Tensor = functional_call(self._module, named, (sample[None],))
            return outputs[0]

        copies = [value.detach().expand(len(inputs), *value.shape).requires_grad_() for value in self._parameters]
        losses = sample_losses(vmap(logits)(copies, inputs), targets)
        # The sum keeps samples apart, since each has its own copy.
        rows = torch.autograd.grad(losses.sum(), copies, create_graph=True, allow_unused=True, materialize_grads=True)
        return torch.cat([row.flatten(1) for row in rows], 1)


class ByLayers(SampleGradients):
    """All samples in one pass, by products of the layers' inputs and deltas."""

    def __init__(self, module: nn.Module, example: Tensor) -> None:
        super().__init__(module, example)
        self._recorder = Recorder(self._module, self._parameters)

    def of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradients, as `SampleGradients.of` describes."""
        _, uses = self._recorder.differentiate(lambda: sample_losses(self._module(inputs), targets), create_graph=True)
        return torch.cat([rows.flatten(1) for rows in self._recorder.gradients(uses, len(inputs))], 1)


def sample_gradients(module: nn.Module, inputs: Tensor, targets: Tensor) -> SampleGradients:
    """Return the fastest implementation that is right for this module.

    A module may use its layers' weights in ways of its own, or mix the samples of a batch, so a fast implementation is
    compared with the reference on two samples.

    Args:
        module: The module; it is copied.
        inputs: Samples like those to come.
        targets: Their targets.

    Raises:
        InputError: If the module cannot be differentiated twice, or its loss has no gradient at these samples.
    """
    check_module(module, private=True)
    module, inputs, targets = copy.deepcopy(module).to(inputs.dtype), inputs.detach()[:2], targets.detach()[:2]
    if len(inputs) == 1:  # a module that mixes samples shows it only if they differ
        other = 0.9 * inputs.flip(*range(1, inputs.ndim)) + 0.05
        inputs, targets = torch.cat([inputs, other]), torch.cat([targets, targets])
    reference = OneByOne(module)
    try:
        expected, expected_derivative = _evaluate(reference, inputs, targets)
    except InputError:
        raise
    except (RuntimeError, ValueError) as error:
        raise InputError(
            "the model's gradient cannot be differentiated with respect to its inputs, which designing a canary needs "
            "(texts also need plain nn.Embedding layers: no subclass, neither max_norm nor scale_grad_by_freq): "
            f"{error}"
        ) from error
    if not bool(expected[0].any()):
        raise InputError(
            "the model's loss has no gradient with respect to its parameters at the canary's start, so a canary would "
            "be invisible: start from other samples or check the model"
        )
    for kind in (ByLayers, Batched):
        try:
            fast = kind(module, inputs[:1])
            # The kernel of layers has rules for some kinds of layers, and pays for itself in large models only.
            small = sum(value.numel() for value in fast._parameters) < _LEAST_PARAMETERS
            if kind is ByLayers and (small or not all(map(is_supported, layers_of(fast._module)))):
                continue
            gradients, derivative = _evaluate(fast, inputs, targets)
            whole = torch.zeros_like(expected)
            whole[:, fast.used] = gradients
        except _FAILURES:
            continue
        agrees = (whole - expected).norm() <= 1e-3 * expected.norm()
        if agrees and (derivative - expected_derivative).norm() <= 1e-2 * expected_derivative.norm():
            return fast
    return reference


def _evaluate(gradients: SampleGradients, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients, and the derivative of half their squared norms with respect to the inputs."""
    inputs = inputs.clone().requires_grad_()
    rows = gradients.of(inputs, targets)
    return rows.detach(), input_derivative(rows, inputs, rows.detach())


def input_derivative(rows: Tensor, leaf: Tensor, weights: Tensor) -> Tensor:
    """Return the derivative of Σ ⟨rows, weights⟩ with respect to ``leaf``, from which ``rows`` were computed."""
    derivative = None
    if rows.requires_grad:
        # As one number: for a whole tensor, torch would first spend a second on importing symbolic algebra.
        value = torch.dot(rows.flatten(), weights.flatten())
        (derivative,) = torch.autograd.grad(value, leaf, allow_unused=True)
    if derivative is None:
        raise InputError(
            "the model's loss does not depend on its inputs, or only through whole numbers, so no sample can be "
            "designed for it: use a model that is differentiable with respect to its inputs"
        )
    return derivative


def sample_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return each sample's mean cross-entropy, (k,)."""
    if not targets.is_floating_point():
        return F.cross_entropy(logits, targets, reduction="none")
    each = -(targets * logits.log_softmax(-1)).sum(-1)
    return each.flatten(1).mean(1) if each.ndim > 1 else each


class UnrolledLSTM(nn.Module):
    """``nn.LSTM`` from a zero state, written out: torch's has no rule for vmap and hides the deltas of its gates."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        if layer.bidirectional or layer.proj_size:
            raise ValueError("only plain LSTMs can be unrolled")
        self._batch_first, self._units = layer.batch_first, layer.hidden_size
        self.cells = nn.ModuleList()
        for weights in layer.all_weights:
            for weight, bias in zip(weights[:2], weights[2:] or (None, None), strict=True):
                linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
                linear.weight, linear.bias = weight, bias  # type: ignore[assignment]
                self.cells.append(linear)

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the last layer's states, and the last states and cells of all layers."""
        states = inputs if self._batch_first else inputs.transpose(0, 1)
        last_hidden, last_cells = [], []
        for from_input, from_state in zip(self.cells[::2], self.cells[1::2], strict=True):
            hidden = cell = states.new_zeros(len(states), self._units)
            steps = []
            for share in from_input(states).unbind(1):
                i, f, g, o = (share + from_state(hidden)).chunk(4, 1)
                cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
                hidden = o.sigmoid() * cell.tanh()
                steps.append(hidden)
            states = torch.stack(steps, 1)
            last_hidden.append(hidden)
            last_cells.append(cell)
        outputs = states if self._batch_first else states.transpose(0, 1)
        return outputs, (torch.stack(last_hidden), torch.stack(last_cells))
