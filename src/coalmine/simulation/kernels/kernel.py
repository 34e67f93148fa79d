"""The interface of all kernels with the clipping that they share, and the two that work for (almost) any module.

`LeanLoop` is the plain reference path, for any module and optimizer: one client after another. It is also the fastest
where a single client's work is large, and every other kernel must reproduce its results. `Stacked` runs many clients
with small networks at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coalmine.arrays import Floats
from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining, OptimizerState, Participant, loss_of, seed_dropout, tensors
from coalmine.simulation.data.federated import Examples, FederatedData, Task
from coalmine.usercode import errors_of

# Float32 rounding could push a clipped update just above the clip norm. Clipping to slightly less makes the sensitivity
# bound, and with it the privacy guarantee, hold exactly.
_SLACK = 1 - 2.0**-16

# Parameters of updates that the loop clips together: norms of many short updates take as long as that of one.
_BLOCK = 1_000_000

# Enough stacked clients and examples per pass to make a step one large product; more would leave the cache.
_CLIENTS, _EXAMPLES = 100, 1000

# Measured with benchmarks/clients.py: vmap wins for few parameters and small inputs. On larger ones it loses, because
# a convolution in which each client has its own kernel runs client by client.
_MOST_PARAMETERS, _MOST_INPUTS = 200_000, 1_024


@dataclass(frozen=True)
class PartialSum:
    """The sum of some clients' clipped updates, or its terms.

    Attributes:
        total: Σ clip(updateᵢ), shape (d,); or each clip(updateᵢ), shape (clients, d).
        norms: Norm of each client's update before clipping, shape (clients,).
        losses: Each client's loss before its first step, shape (clients,).
    """

    total: Tensor
    norms: Floats
    losses: Floats


class Kernel(ABC):
    """A way to train many clients from the global model. All kernels agree up to rounding; they differ in speed."""

    def __init__(
        self, module: nn.Module, task: Task, training: LocalTraining, *, dtype: torch.dtype = torch.float32
    ) -> None:
        self.model = flat.FlatModel(module, dtype=dtype)  # the kernel's private copy
        self.task, self.training = task, training

    @abstractmethod
    def updates(self, weights: Tensor, clients: Sequence[Participant]) -> Iterator[tuple[Tensor, Floats]]:
        """Train clients from the parameters ``weights`` (d,) and yield a few at a time, in their order.

        Yields:
            The updates before clipping, (n, d), and the losses before the first step, (n,), of the next n clients.
        """

    @abstractmethod
    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """How many clients to pass per call, in order, for clients with ``sizes`` examples, such as [3, 3, 2]."""

    def clipped_sum(self, weights: Tensor, clients: Sequence[Participant], clip_norm: float, out: Tensor) -> PartialSum:
        """Train every client from the global model and sum the clipped updates.

        Args:
            weights: Parameters of the global model, shape (d,).
            clients: The clients to train: one of `chunks`.
            clip_norm: Longer updates are scaled down to this ℓ₂ norm; ``math.inf`` disables clipping.
            out: Where to write the sum, shape (d,).
        """
        norms, losses, first = np.empty(len(clients)), np.empty(len(clients)), 0
        out.zero_()
        for rows, first_losses in self.updates(weights, clients):
            now = slice(first, first + len(rows))
            norms[now], losses[now] = flat.norms(rows).numpy(), first_losses
            factors = clip_factors(norms[now], clip_norm)
            out.addmv_(rows.t(), torch.from_numpy(factors).to(rows))
            first = now.stop
        return PartialSum(out, norms, losses)

    def clipped_updates(
        self, weights: Tensor, clients: Sequence[Participant], clip_norm: float
    ) -> Iterator[PartialSum]:
        """Yield the terms of the sum a few clients at a time, for any number of clients."""
        first = 0
        for count in self.chunks([len(client.examples) for client in clients]):
            for rows, losses in self.updates(weights, clients[first : first + count]):
                norms = flat.norms(rows).numpy()
                factors = clip_factors(norms, clip_norm)
                yield PartialSum(rows.mul_(torch.from_numpy(factors).to(rows)[:, None]), norms, losses)
                first += len(rows)


class LeanLoop(Kernel):
    """Trains clients in turn on one module: reset the parameters, differentiate, step in place."""

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """About 16 chunks, so that workers can share them evenly."""
        return group_sizes(sizes, clients=max(1, len(sizes) // 16), rows=sum(sizes))

    def updates(self, weights: Tensor, clients: Sequence[Participant]) -> Iterator[tuple[Tensor, Floats]]:
        """Train one client at a time."""
        model, optimizer, rng_state = self.model, self.training.optimizer, torch.get_rng_state()
        size = max(1, _BLOCK // model.dim)
        for first in range(0, len(clients), size):
            block = clients[first : first + size]
            rows, losses = weights.new_empty(len(block), model.dim), np.empty(len(block))
            for i, client in enumerate(block):
                model.load(weights)
                inputs, targets = tensors(client.examples, self.task, model.dtype, model.device)
                seed_dropout(int(client.stream().integers(2**32)), model.device)
                state: OptimizerState = {}
                for step, batch in enumerate(self.training.batches(len(client.examples), client.stream)):
                    # A module may change its inputs in place, so all rows of a full batch are copied.
                    batch_inputs, batch_targets = inputs.clone(), targets
                    if batch is not None:
                        chosen = torch.from_numpy(batch).to(model.device)
                        batch_inputs, batch_targets = inputs[chosen], targets[chosen]
                    with errors_of(f"the model failed on a client's batch of {len(batch_inputs)}"):
                        loss = loss_of(model.module, self.task, batch_inputs, batch_targets)
                        gradients = torch.autograd.grad(loss, model.parameters, materialize_grads=True)
                    if step == 0:
                        losses[i] = float(loss.detach())
                    with torch.no_grad():
                        optimizer.step(model.parameters, list(gradients), state)
                flat.flatten(model.parameters, out=rows[i])
            yield rows.sub_(weights), losses
        torch.set_rng_state(rng_state)


class Stacked(Kernel):
    """All clients of a chunk take their steps of plain SGD together, as rows of a (clients, d) matrix, through vmap.

    Short batches are padded with examples of loss weight zero. A client that has taken all of its steps gets gradients
    of zero, which leave it where it is; that is only true without momentum.
    """

    @staticmethod
    def suits(module: nn.Module, data: FederatedData, training: LocalTraining) -> bool:
        """Whether the network and its inputs are small, and vmap has rules for its layers."""
        recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())  # torch's have no rule for vmap
        small = int(np.prod(data.task.input_shape)) <= _MOST_INPUTS
        return not recurrent and small and len(flat.parameter_vector(module)) <= _MOST_PARAMETERS

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """As many clients as fill a pass."""
        batches = np.minimum(sizes, self.training.batch_size or max(sizes)).tolist()
        return group_sizes(batches, clients=_CLIENTS, rows=_EXAMPLES)

    def updates(self, weights: Tensor, clients: Sequence[Participant]) -> Iterator[tuple[Tensor, Floats]]:
        """Train all clients in step."""
        model, first_losses = self.model, torch.empty(0)
        matrix = weights.to(model.dtype).repeat(len(clients), 1)
        parameters, logits_of = model.views(matrix), vmap(partial(functional_call, model.module))
        batches = [self.training.batches(len(client.examples), client.stream) for client in clients]
        for step in zip_longest(*batches, fillvalue=np.empty(0, dtype=np.int64)):
            examples = []
            for client, batch in zip(clients, step, strict=True):
                examples.append(client.examples if batch is None else client.examples[batch])
            inputs, targets, loss_weights = padded(examples, self.task, model.dtype, matrix.device)
            # Only the module goes through vmap. torch.func.grad would import torch's compiler, which takes longer than
            # a short training.
            leaves = [part.detach().requires_grad_() for part in parameters]
            logits = logits_of(dict(zip(model.names, leaves, strict=True)), inputs)
            each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)
            losses = each.mul(loss_weights).flatten(1).sum(1)
            # The sum keeps clients apart, since no loss depends on another client's parameters.
            gradients = list(torch.autograd.grad(losses.sum(), leaves, materialize_grads=True))
            with torch.no_grad():
                self.training.optimizer.step(parameters, gradients, {})
            if not len(first_losses):
                first_losses = losses.detach()
        yield matrix.sub_(weights), first_losses.cpu().double().numpy()


def clip_factors(norms: Floats, clip_norm: float) -> Floats:
    """The factor for each update: clip_norm / norm if the update is longer than the clip norm, else 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(norms > clip_norm * _SLACK, clip_norm * _SLACK / norms, 1.0)


def group_sizes(sizes: Sequence[int], *, clients: int, rows: int) -> list[int]:
    """Cut clients into even groups of at most ``clients`` clients and ``rows`` examples (one client may exceed this).

    With 32 clients or more there are at least two groups, so that two workers can share them.
    """
    pieces = max(-(-len(sizes) // clients), -(-sum(sizes) // rows), min(2, len(sizes) // 16), 1)
    clients = min(clients, -(-len(sizes) // pieces))
    groups, taken = [0], 0
    for size in sizes:
        if groups[-1] == clients or taken + size > rows:
            groups.append(0)
            taken = 0
        groups[-1] += 1
        taken += size
    return [count for count in groups if count]


def padded(
    clients: Sequence[Examples], task: Task, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and loss weights of all clients, each of shape (clients, most examples, …).

    The loss weights of a client's targets sum to one, so that the weighted sum of losses is its mean loss; padding and
    ignored targets have weight zero.
    """
    first = next(examples for examples in clients if len(examples))
    shape = (len(clients), max(map(len, clients)))
    inputs = np.empty((*shape, *first.inputs.shape[1:]), dtype=first.inputs.dtype)
    targets = np.full((*shape, *first.targets.shape[1:]), task.ignored, dtype=np.int64)
    for i, examples in enumerate(clients):
        inputs[i, : len(examples)] = examples.inputs
        # Pad with copies of a real example: a module may fail on zeros, for instance when it normalizes its inputs.
        inputs[i, len(examples) :] = examples.inputs[0] if len(examples) else first.inputs[0]
        targets[i, : len(examples)] = examples.targets
    numbers, labels = tensors(Examples(inputs, targets), task, dtype, device)
    counted = labels != task.ignored
    loss_weights = counted.to(dtype)
    loss_weights /= loss_weights.flatten(1).sum(1).clamp_(min=1).view(-1, *[1] * (loss_weights.ndim - 1))
    return numbers, labels.mul_(counted), loss_weights
