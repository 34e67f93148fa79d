"""Per-client and per-sample gradients of a whole batch from one forward and one backward pass, layer by layer.

A layer's inputs X and the derivatives D of the loss by its outputs (its *deltas*) determine the gradient of its weight,
DᵀX. Recording both in an ordinary pass over all examples gives every client's gradient without a pass of its own.

Three users share this: `Layerwise` sums the clipped updates of clients who take one step of SGD, `WordLSTMClients` does
so for a small word LSTM without padding, and CANIFE's design (`coalmine.methods.canife.sample_gradients`)
differentiates the gradients of its canaries once more.

Norms come from Gram matrices where that takes fewer multiplications than forming the gradients (Goodfellow 2015; Li et
al. 2022, "ghost clipping"): ‖DᵀX‖² = Σ (X Xᵀ) ∘ (D Dᵀ). The plain reference is `LeanLoop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from coalmine.arrays import Floats
from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, Participant, tensors
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.kernels.kernel import Kernel, PartialSum, clip_factors, group_sizes, padded
from coalmine.simulation.models.text import SoftEmbedding, TiedLinear, WordLSTM

# What a layer saw: the inputs and the deltas of each of its uses in a forward pass.
Uses = Sequence[tuple[Tensor, Tensor]]

# Clients and examples per pass: enough for large matrix products. More inputs than that (pixels, tokens) would push
# the layers' outputs out of the cache.
_CLIENTS, _EXAMPLES, _INPUTS = 128, 2048, 1 << 18

# Sharing a pass pays off from about this many clients.
_LEAST_CLIENTS = 6

# Sentences of a word LSTM per pass: enough for large products. A pass keeps the gradients of all its clients, and all
# its logits. Sharing it pays off from about this many clients.
_SENTENCES, _MOST_GRADIENTS, _MOST_LOGITS, _LEAST_WRITERS = 256, 4_000_000, 8_000_000, 8

# Entries of gradients that are formed at a time to compute their norms: 32 MB.
_MOST_FORMED = 8_000_000

# A norm from Gram matrices is a sum of terms of both signs. If they are more than this factor larger than the result,
# float32 rounding may have made the norm too small, and the update would exceed the clip norm.
_CANCELLATION = 64


# The layers that `layer_gradients` has rules for, and with which options. A subclass may compute something else, also
# something that only later parameters show.
_SUPPORTED: dict[type[nn.Module], Callable[[Any], bool]] = {
    nn.Linear: lambda layer: True,
    TiedLinear: lambda layer: True,
    nn.GroupNorm: lambda layer: bool(layer.affine),
    # Padding by name ("same") is a string, which is longer.
    nn.Conv2d: lambda layer: (layer.groups, layer.padding_mode, len(layer.padding)) == (1, "zeros", 2),
    nn.Embedding: lambda layer: (layer.max_norm, layer.scale_grad_by_freq, layer.padding_idx) == (None, False, None),
}
_SUPPORTED[SoftEmbedding] = _SUPPORTED[nn.Embedding]


def is_supported(layer: nn.Module) -> bool:
    """Whether `layer_gradients` handles this layer."""
    return type(layer) in _SUPPORTED and _SUPPORTED[type(layer)](layer)


def parameters_of(layer: nn.Module) -> list[Tensor]:
    """The parameters that a layer itself uses."""
    return [layer.weight] if isinstance(layer, TiedLinear) else list(layer.parameters(recurse=False))


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The layers that use parameters themselves."""
    return [layer for layer in module.modules() if parameters_of(layer)]


@torch.no_grad()
def crop_convolutions(module: nn.Module, example: Tensor) -> Tensor:
    """Drop the weights of convolutions that only multiply padding; return which trained parameters are left, (d,).

    On images of one pixel, a 3 × 3 kernel with padding 1 uses one of its nine weights: 6 of the 11 million parameters
    of ResNet18 on 32 × 32 pixels do nothing.
    """
    sides: dict[nn.Conv2d, set[tuple[int, ...]]] = {}
    hooks = []
    for layer in module.modules():
        if type(layer) is nn.Conv2d and is_supported(layer) and layer.weight.requires_grad:
            sides[layer] = set()
            hooks.append(layer.register_forward_pre_hook(lambda used, x: sides[used].add(tuple(x[0].shape[2:]))))
    module(example)
    for hook in hooks:
        hook.remove()
    left = {id(value): torch.ones_like(value, dtype=torch.bool) for value in flat.trainable(module).values()}
    for layer, sizes in sides.items():
        centered = layer.kernel_size == (2 * int(layer.padding[0]) + 1, 2 * int(layer.padding[1]) + 1)
        if centered and sizes == {(1, 1)} and layer.dilation == (1, 1) and layer.kernel_size != (1, 1):
            # Only the middle of the kernel ever meets the pixel.
            rows, columns = (slice(int(padding), int(padding) + 1) for padding in layer.padding)
            left[id(layer.weight)].zero_()[:, :, rows, columns] = True
            layer.weight = nn.Parameter(layer.weight[:, :, rows, columns].clone())
            layer.kernel_size, layer.padding = (1, 1), (0, 0)
    return flat.flatten(list(left.values())).cpu()


class Recorder:
    """Runs a module and records the inputs and deltas of its layers.

    Args:
        module: The module, which is changed: pass a copy. All parameters must be in supported layers.
        parameters: Those whose gradients are wanted, in their order.
    """

    def __init__(self, module: nn.Module, parameters: Sequence[Tensor]) -> None:
        self.layers = layers_of(module)
        self._outputs: list[tuple[nn.Module, Tensor, Tensor, int]] = []
        self._wanted = parameters
        for layer in module.modules():
            if hasattr(layer, "inplace"):
                layer.inplace = False  # type: ignore[assignment]  # it would overwrite outputs that are recorded
        for layer in self.layers:
            layer.requires_grad_(False)  # only derivatives by the layers' outputs are needed
            layer.register_forward_hook(self._record)

    def _record(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if not output.requires_grad:
            output.requires_grad_()
        self._outputs.append((layer, inputs[0], output, output._version))

    def differentiate(
        self, losses: Callable[[], Tensor], *, create_graph: bool = False
    ) -> tuple[Tensor, dict[nn.Module, Uses]]:
        """Call ``losses``, which runs the module, and return its result with what each layer saw.

        One backward pass serves all clients or samples: the sum keeps them apart, since no loss depends on another's
        examples.
        """
        self._outputs.clear()
        values = losses()
        outputs, self._outputs = self._outputs, []
        if any(output._version != version for _, _, output, version in outputs):
            raise ValueError("the output of a layer is modified in place, so its deltas are those of other values")
        recorded = [output for _, _, output, _ in outputs]
        deltas = torch.autograd.grad(values.sum(), recorded, create_graph=create_graph)
        uses: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in self.layers}
        for (layer, inputs, _, _), delta in zip(outputs, deltas, strict=True):
            uses[layer].append((inputs if create_graph else inputs.detach(), delta))
        return values, dict(uses)

    def gradients(self, uses: Mapping[nn.Module, Uses], count: int) -> list[Tensor]:
        """The gradients of the parameters, each (count, *shape), in their order."""
        gradients: dict[int, Tensor] = {}
        for layer in self.layers:
            for value, gradient in zip(parameters_of(layer), layer_gradients(layer, uses[layer], count), strict=True):
                gradients[id(value)] = gradients[id(value)] + gradient if id(value) in gradients else gradient
        return [gradients[id(value)] for value in self._wanted]


def layer_gradients(layer: nn.Module, uses: Uses, count: int) -> list[Tensor]:
    """The gradients of a layer's parameters, each (count, *shape), in the parameters' order.

    Args:
        layer: The layer.
        uses: What it saw.
        count: Number of clients or samples, each with equally many consecutive examples. With 1, the examples of all
            together count as one client's, so that deltas scaled client by client give the weighted sum of gradients.
    """
    if isinstance(layer, nn.Linear | TiedLinear):
        x, d = _rows(layer, uses, count)
        gradients = [torch.bmm(d.transpose(1, 2), x), d.sum(1)]
        return gradients[: len(parameters_of(layer))]  # without the bias if there is none
    totals: list[Tensor] = []
    for x, d in uses:
        match layer:
            case nn.Embedding() if x.is_floating_point():  # distributions over tokens
                words, width = layer.weight.shape
                gradients = [torch.bmm(x.reshape(count, -1, words).transpose(1, 2), d.reshape(count, -1, width))]
            case nn.Embedding():
                table = d.new_zeros(count, *layer.weight.shape)
                clients = torch.arange(count, device=x.device)[:, None].expand(-1, x.numel() // count)
                tokens, rows = x.reshape(count, -1), d.reshape(*clients.shape, -1)
                gradients = [table.index_put_((clients, tokens), rows, accumulate=True)]
            case nn.Conv2d():
                shape, geometry = layer.weight.shape, (layer.stride, layer.padding, layer.dilation)
                if len(x) == count:  # one image each: a product of matrices
                    patches, deltas = _rows(layer, [(x, d)], count)
                    weight = torch.bmm(deltas.transpose(1, 2), patches).view(count, *shape)
                else:
                    pairs = zip(x.chunk(count), d.chunk(count), strict=True)
                    weight = torch.stack([conv2d_weight(own, shape, deltas, *geometry) for own, deltas in pairs])
                gradients = [weight, d.flatten(2).sum(2).unflatten(0, (count, -1)).sum(1)]
            case nn.GroupNorm():
                normal = F.group_norm(x, layer.num_groups, eps=layer.eps)
                scales = (normal * d).reshape(*x.shape[:2], -1).sum(2)
                shifts = d.reshape(*x.shape[:2], -1).sum(2)
                gradients = [part.unflatten(0, (count, -1)).sum(1) for part in (scales, shifts)]
            case _:
                raise TypeError(f"no rule for {type(layer).__name__}")
        totals = list(map(torch.add, totals, gradients)) if totals else gradients
    return totals[: len(parameters_of(layer))]


def _rows(layer: nn.Module, uses: Uses, count: int) -> tuple[Tensor, Tensor]:
    """Inputs X (count, rows, in) and deltas D (count, rows, out) of a layer, written as a matrix product."""
    if isinstance(layer, nn.Conv2d):
        # What the kernel sees at each place of an image is one row.
        assert not isinstance(layer.padding, str)
        unfold = nn.Unfold(layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        uses = [(unfold(x).transpose(1, 2), d.flatten(2).transpose(1, 2)) for x, d in uses]
    inputs = [x.reshape(count, -1, x.shape[-1]) for x, _ in uses]
    deltas = [d.reshape(count, -1, d.shape[-1]) for _, d in uses]
    return torch.cat(inputs, 1), torch.cat(deltas, 1)


def squared_norms(layer: nn.Module, uses: Uses, count: int) -> Tensor:
    """What a layer adds to the squared norm of each client's gradient, (count,) in float64 on the CPU."""
    if isinstance(layer, nn.Linear | nn.Conv2d):
        weight = layer.weight
        rows = sum(deltas.numel() for _, deltas in uses) // (count * len(weight))
        # Gram matrices only where they take fewer multiplications than the gradient of the weight.
        if rows * (len(weight) + weight[0].numel()) < weight.numel():
            x, d = _rows(layer, uses, count)
            x_gram, d_gram = torch.bmm(x, x.transpose(1, 2)), torch.bmm(d, d.transpose(1, 2))
            # By the triangle inequality no gradient is longer than the sum over rows of ‖x‖·‖d‖.
            diagonals = (x_gram.diagonal(dim1=1, dim2=2) * d_gram.diagonal(dim1=1, dim2=2)).cpu()
            upper_bounds = diagonals.double().clamp_(min=0).sqrt_().sum(1).square_()
            # ‖DᵀX‖² = Σ (X Xᵀ) ∘ (D Dᵀ)
            squares = x_gram.mul_(d_gram).flatten(1).cpu().sum(1, dtype=torch.float64).clamp_(min=0)
            if not bool((upper_bounds > _CANCELLATION * squares).any()):
                return squares if layer.bias is None else squares + flat.norms(d.sum(1)).square_()
    # Form the gradients, as many at a time as fit into memory.
    size = sum(value.numel() for value in parameters_of(layer))
    step = max(1, _MOST_FORMED // size)
    parts = []
    for first in range(0, count, step):
        clients = min(step, count - first)
        part = [[v.unflatten(0, (count, -1))[first : first + clients].flatten(0, 1) for v in use] for use in uses]
        formed = layer_gradients(layer, [(x, d) for x, d in part], clients)
        parts.append(torch.stack([flat.norms(gradient.flatten(1)) for gradient in formed]).square_().sum(0))
    return torch.cat(parts)


class Layerwise(Kernel):
    """One pass for all clients of a chunk, who take one step of plain SGD each on all of their examples."""

    def __init__(
        self, module: nn.Module, task: Task, training: LocalTraining, *, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(module, task, training, dtype=dtype)
        self._recorder = Recorder(self.model.module, self.model.parameters)

    @staticmethod
    def suits(module: nn.Module, data: FederatedData, training: LocalTraining) -> bool:
        """Whether clients take one step, the layers are supported, and enough clients fit into a pass."""
        inputs = int(np.median(data.sizes)) * int(np.prod(data.task.input_shape))
        if training.steps(int(data.sizes.max())) > 1 or _LEAST_CLIENTS * inputs > _INPUTS:
            return False
        layers, parameters = layers_of(module), list(module.parameters())
        # Norms of the layers' shares of a gradient give its norm only if no two layers share a parameter.
        shared = sum(len(parameters_of(layer)) for layer in layers) > len(parameters)
        return not shared and all(map(is_supported, layers)) and all(value.requires_grad for value in parameters)

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """As many clients per chunk as one pass handles."""
        examples = min(_EXAMPLES, max(1, _INPUTS // int(np.prod(self.task.input_shape))))
        return group_sizes(sizes, clients=_CLIENTS, rows=examples)

    def clipped_sum(self, weights: Tensor, clients: Sequence[Participant], clip_norm: float, out: Tensor) -> PartialSum:
        """Σ weightᵢ · clip(−learning rate · gradientᵢ), without forming the gradients of large layers."""
        losses, uses = self._pass(weights, clients)
        with torch.no_grad():
            squares = [squared_norms(layer, uses[layer], len(clients)) for layer in self._recorder.layers]
            rate = self.training.optimizer.learning_rate
            norms = rate * torch.stack(squares).sum(0).sqrt().numpy()
            scales = torch.from_numpy(-rate * clip_factors(norms, clip_norm)).to(out)
            # Scaling a client's deltas scales its gradient, so one product gives the weighted sum of all.
            scaled: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
            for layer, seen in uses.items():
                scaled[layer] = []
                for x, d in seen:
                    by_client = d.unflatten(0, (len(clients), -1))
                    by_client = by_client * scales.view(-1, *[1] * (by_client.ndim - 1))
                    scaled[layer].append((x, by_client.flatten(0, 1)))
            flat.flatten(self._recorder.gradients(scaled, 1), out=out)
        return PartialSum(out, norms, losses)

    def updates(self, weights: Tensor, clients: Sequence[Participant]) -> Iterator[tuple[Tensor, Floats]]:
        """−learning rate · gradient of each client, as many at a time as fit into memory."""
        step = max(1, 8 * _MOST_FORMED // self.model.dim)
        for first in range(0, len(clients), step):
            now = clients[first : first + step]
            losses, uses = self._pass(weights, now)
            with torch.no_grad():
                gradients = self._recorder.gradients(uses, len(now))
                rows = torch.cat([part.flatten(1) for part in gradients], 1)
            yield rows.mul_(-self.training.optimizer.learning_rate), losses

    def _pass(self, weights: Tensor, clients: Sequence[Participant]) -> tuple[Floats, dict[nn.Module, Uses]]:
        """Each client's mean loss, and what the layers saw."""
        self.model.load(weights)
        examples = [client.examples for client in clients]
        inputs, targets, loss_weights = padded(examples, self.task, self.model.dtype, self.model.device)

        def losses() -> Tensor:
            logits = self.model.module(inputs.flatten(0, 1))
            each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
            return each.view(len(clients), -1).mul(loss_weights.flatten(1)).sum(1)

        values, uses = self._recorder.differentiate(losses)
        return values.detach().cpu().double().numpy(), uses


class WordLSTMClients(Layerwise):
    """One step of plain SGD of many clients with a small word LSTM: one pass over the words of all, without padding.

    A client's few short messages keep a core busy for less time than it takes to start the operations. Here the words
    of all clients go through the recurrence together, and only the last products, from states to weights, are per
    client.
    """

    @staticmethod
    def suits(module: nn.Module, data: FederatedData, training: LocalTraining) -> bool:
        """Whether clients take one step and are small enough to share a pass."""
        if type(module) is not WordLSTM:
            return False
        needed = [
            training.steps(int(data.sizes.max())),
            sum(not value.requires_grad for value in module.parameters()),
            _LEAST_WRITERS * int(np.median(data.sizes)),
            _LEAST_WRITERS * len(flat.parameter_vector(module)),
            _SENTENCES * data.task.input_shape[0] * data.task.classes,
        ]
        return bool(np.less_equal(needed, [1, 0, _SENTENCES, _MOST_GRADIENTS, _MOST_LOGITS]).all())

    # The gradients are formed here, so their norms need no Gram matrices.
    clipped_sum = Kernel.clipped_sum

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """As many clients per chunk as share a pass."""
        return group_sizes(sizes, clients=max(1, _MOST_GRADIENTS // self.model.dim), rows=_SENTENCES)

    def updates(self, weights: Tensor, clients: Sequence[Participant]) -> Iterator[tuple[Tensor, Floats]]:
        """−learning rate · gradient of each client."""
        self.model.load(weights)
        device, count = self.model.device, len(clients)
        examples = [tensors(client.examples, self.task, self.model.dtype, device) for client in clients]
        tokens, targets = (torch.cat(parts) for parts in zip(*examples, strict=True))
        owners = torch.repeat_interleave(torch.tensor([len(client.examples) for client in clients])).to(device)
        counted = targets != self.task.ignored
        counts = torch.zeros(count, device=device).index_add_(0, owners, counted.sum(1).float()).clamp_(min=1)
        row_owners = owners

        def losses() -> Tensor:
            nonlocal row_owners
            each, sentences = self.model.module.target_losses(tokens, targets)  # type: ignore[operator]
            row_owners = owners[sentences]
            totals: Tensor = each.new_zeros(count).index_add(0, row_owners, each)
            return totals / counts.to(each)

        values, uses = self._recorder.differentiate(losses)
        with torch.no_grad():
            rows = weights.new_zeros(count, self.model.dim)
            places = {id(p): view for p, view in zip(self.model.parameters, self.model.views(rows), strict=True)}
            # All layers see the same rows in the same order, those of recurrent layers position by position.
            order, sizes = torch.argsort(row_owners, stable=True), torch.bincount(row_owners, minlength=count).tolist()
            for layer in self._recorder.layers:
                inputs, deltas = (torch.cat(parts).index_select(0, order) for parts in zip(*uses[layer], strict=True))
                gradients = [places[id(value)] for value in parameters_of(layer)]
                each = zip(inputs.split(sizes), deltas.split(sizes), strict=True)
                for i, (x, d) in enumerate(each):
                    if isinstance(layer, nn.Embedding):
                        gradients[0][i].index_add_(0, x, d)
                    else:
                        gradients[0][i].addmm_(d.t(), x)
                    if len(gradients) > 1:
                        torch.sum(d, 0, out=gradients[1][i])
            rows.mul_(-self.training.optimizer.learning_rate)
        yield rows, values.detach().cpu().double().numpy()
