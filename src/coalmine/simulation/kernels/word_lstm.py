"""Single SGD steps of many clients with a small word LSTM: one pass over the words of all, then one product each.

A client's few short messages keep a core busy for less time than it takes to start the operations. Here the words of
all clients go through the recurrence together, without padding, and only the last products, from states to weights, are
per client. The plain reference is `coalmine.simulation.kernels.lean`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.arrays import Floats
from coalmine.simulation import flat
from coalmine.simulation.client import SGD, LocalTraining, Participant, tensors
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.kernels.kernel import Kernel, group_sizes
from coalmine.simulation.kernels.layerwise import Recorder, parameters_of
from coalmine.simulation.models.word_lstm import WordLSTM

# Sentences per pass: enough for large products. A pass keeps the gradients of all its clients, and all its logits.
_SENTENCES, _MOST_GRADIENTS, _MOST_LOGITS = 256, 4_000_000, 8_000_000

# Sharing a pass pays off from about this many clients.
_LEAST_CLIENTS = 8


class WordLSTMClients(Kernel):
    """One step of plain SGD per client."""

    def __init__(
        self, module: nn.Module, task: Task, training: LocalTraining, *, dtype: torch.dtype = torch.float32
    ) -> None:
        assert isinstance(training.optimizer, SGD)
        self._learning_rate, self._task = training.optimizer.learning_rate, task
        self.model = flat.FlatModel(module, dtype=dtype)
        assert isinstance(self.model.module, WordLSTM)
        self._module, self._recorder = self.model.module, Recorder(self.model.module)

    @staticmethod
    def suits(module: nn.Module, data: FederatedData, training: LocalTraining) -> bool:
        """Whether clients take one step and are small enough to share a pass."""
        return (
            type(module) is WordLSTM
            and training.steps(int(data.sizes.max())) == 1
            and all(value.requires_grad for value in module.parameters())
            and _LEAST_CLIENTS * int(np.median(data.sizes)) <= _SENTENCES
            and _LEAST_CLIENTS * len(flat.parameter_vector(module)) <= _MOST_GRADIENTS
            and _SENTENCES * data.task.input_shape[0] * data.task.classes <= _MOST_LOGITS
        )

    def chunks(self, sizes: Sequence[int]) -> list[int]:
        """As many clients per chunk as share a pass."""
        return group_sizes(sizes, clients=max(1, _MOST_GRADIENTS // self.model.dim), rows=_SENTENCES)

    def updates(self, weights: Tensor, clients: Sequence[Participant]) -> Iterator[tuple[Tensor, Floats]]:
        """−learning rate · gradient of each client."""
        self.model.load(weights)
        device, count = self.model.device, len(clients)
        examples = [tensors(client.examples, self._task, self.model.dtype, device) for client in clients]
        tokens, targets = (torch.cat(parts) for parts in zip(*examples, strict=True))
        owners = torch.repeat_interleave(torch.tensor([len(client.examples) for client in clients])).to(device)
        counted = torch.ones_like(targets) if self._task.ignored is None else targets != self._task.ignored
        counts = torch.zeros(count, device=device).index_add_(0, owners, counted.sum(1).float()).clamp_(min=1)
        row_owners = owners

        def losses() -> Tensor:
            nonlocal row_owners
            each, sentences = self._module.target_losses(tokens, targets)
            row_owners = owners[sentences]
            return each.new_zeros(count).index_add(0, row_owners, each) / counts.to(each)

        values, uses = self._recorder.differentiate(losses)
        with torch.no_grad():
            rows = weights.new_zeros(count, self.model.dim)
            places = {id(p): view for p, view in zip(self.model.parameters, self.model.views(rows), strict=True)}
            # All layers see the same rows in the same order, those of recurrent layers position by position.
            order, sizes = torch.argsort(row_owners, stable=True), torch.bincount(row_owners, minlength=count).tolist()
            for layer in self._recorder.layers:
                inputs, deltas = (
                    (parts[0] if len(parts) == 1 else torch.cat(parts)).index_select(0, order)
                    for parts in zip(*uses[layer], strict=True)
                )
                gradients = [places[id(value)] for value in parameters_of(layer)]
                each = zip(inputs.split(sizes), deltas.split(sizes), strict=True)
                for i, (x, d) in enumerate(each):
                    if isinstance(layer, nn.Embedding):
                        gradients[0][i].index_add_(0, x, d)
                    else:
                        gradients[0][i].addmm_(d.t(), x)
                    if len(gradients) > 1:
                        torch.sum(d, 0, out=gradients[1][i])
            rows.mul_(-self._learning_rate)
        yield rows, values.detach().cpu().double().numpy()
