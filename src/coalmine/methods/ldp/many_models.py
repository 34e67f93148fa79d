"""The losses of a few examples at many parameter vectors at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.simulation.client import ignored_index
from coalmine.simulation.data.federated import Task
from coalmine.usercode import said


class ManyModels:
    """One module, evaluated with any number of parameter vectors in one call.

    ``inputs`` (n, …) and ``targets`` are fixed; a call takes vectors (k, d) in the order of ``module.parameters()`` and
    gives the loss of each example under each, (k, n). Modules that ``torch.func.vmap`` cannot take, such as torch's
    LSTM, are evaluated one vector after the other.
    """

    def __init__(self, module: nn.Module, task: Task, inputs: Tensor, targets: Tensor) -> None:
        for part in module.modules():
            drops = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
            if part.training and (drops or isinstance(part, nn.modules.batchnorm._BatchNorm)):
                raise InputError(
                    f"the loss of a model with {type(part).__name__} depends on more than its parameters and the "
                    "example: black-box trials need a model without it, or one in its eval mode"
                )
        trainable = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        self._names = [name for name, _ in trainable]
        self._shapes = [value.shape for _, value in trainable]
        self._module, self._task, self._inputs, self._targets = module, task, inputs, targets
        self._batched = self._can_be_batched(torch.cat([value.detach().reshape(-1) for _, value in trainable]))

    def losses(self, vectors: Tensor) -> Floats:
        """The mean cross-entropy of each example over its targets that count, (k, n)."""
        try:
            with torch.no_grad():
                each = vmap(self._one)(vectors) if self._batched else torch.stack([self._one(v) for v in vectors])
        except RuntimeError as error:
            raise InputError(
                f"the model cannot be evaluated at other parameters than its own: {said(error)}; white-box and "
                "likelihood-ratio views, which see the report, need no such evaluation"
            ) from error
        found: Floats = each.double().numpy()
        return found

    def _can_be_batched(self, vector: Tensor) -> bool:
        """Whether the module gives by vmap what it gives by itself; two different vectors show it."""
        both = torch.stack([vector, 0.9 * vector])
        try:
            with torch.no_grad():
                together = vmap(self._one)(both)
                return torch.allclose(together, torch.stack([self._one(v) for v in both]), rtol=1e-3, atol=1e-4)
        except RuntimeError:
            return False

    def _one(self, vector: Tensor) -> Tensor:
        parameters, start = {}, 0
        for name, shape in zip(self._names, self._shapes, strict=True):
            parameters[name] = vector[start : start + shape.numel()].view(shape)
            start += shape.numel()
        logits = functional_call(self._module, parameters, (self._inputs,))
        if not self._task.per_position:
            return F.cross_entropy(logits, self._targets, reduction="none")
        ignored = ignored_index(self._task)
        each = F.cross_entropy(logits.transpose(1, 2), self._targets, reduction="none", ignore_index=ignored)
        return each.sum(1) / (self._targets != ignored).sum(1).clamp(min=1)
