"""Losses of a few examples at many parameter vectors: the one interface to a plain way and two faster ones.

* The plain way calls the module once per parameter vector. It is the reference, and works for every module.
* `torch.func.vmap` evaluates many vectors in one call, for modules it can take.
* `line_losses` evaluates many points of a line θ + t·v at once, for sequences of convolutions and linear layers.

``tests/methods/ldp/test_losses.py`` compares all three, and ``benchmarks/ldp.py`` measures what they gain.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.methods.ldp.line_losses import affine_layers, losses_along_lines
from coalmine.simulation.client import ignored_index
from coalmine.simulation.data.federated import Task
from coalmine.simulation.flat import parameter_vector
from coalmine.usercode import describe_error


class ExampleLosses:
    """Losses of fixed examples under one module with any number of parameter vectors.

    Args:
        module: The model; its own parameters are θ.
        task: What it predicts.
        inputs: The examples, ``(n, ...)``.
        targets: Their labels.
        plain: Call the module once per vector, and use no faster way.

    Raises:
        InputError: If the module's loss is random or depends on the batch.
    """

    def __init__(self, module: nn.Module, task: Task, inputs: Tensor, targets: Tensor, *, plain: bool = False) -> None:
        _check_deterministic(module)
        trainable = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        self._names = [name for name, _ in trainable]
        self._shapes = [value.shape for _, value in trainable]
        self._module, self._task, self._inputs, self._targets = module, task, inputs, targets
        self._theta = parameter_vector(module)
        self._vmapped = not plain and self._vmap_agrees()
        self._layers = None if plain or task.per_position or len(inputs) != 1 else affine_layers(module, inputs)

    def at(self, vectors: Tensor) -> Floats:
        """Return the mean cross-entropy of each example at each vector.

        Args:
            vectors: Parameters in the order of ``module.parameters()``, ``(k, d)``.

        Returns:
            Losses ``(k, n)``.
        """
        try:
            with torch.no_grad():
                losses = vmap(self._losses)(vectors) if self._vmapped else self._one_by_one(vectors)
        except RuntimeError as error:
            raise InputError(
                f"the model cannot be evaluated at other parameters than its own ({describe_error(error)}): use the "
                "views white-box and likelihood-ratio, which only look at the report"
            ) from error
        array: Floats = losses.double().numpy()
        return array

    def along(self, directions: Tensor, steps: Floats) -> Floats:
        """Return the loss of a single example at points θ + t·v.

        Args:
            directions: The vectors v, ``(k, d)``.
            steps: The numbers t of each direction, ``(k, c)``.

        Returns:
            Losses ``(k, c)``.
        """
        t = torch.from_numpy(np.ascontiguousarray(steps, dtype=np.float32))
        if self._layers is None:
            return np.stack([self.at(self._theta + column[:, None] * directions)[:, 0] for column in t.T], axis=1)
        losses: Floats = losses_along_lines(self._layers, self._targets, directions, t).double().numpy()
        return losses

    def at_theta(self) -> float:
        """Return the loss of a single example at the module's own parameters."""
        return float(self.along(torch.zeros_like(self._theta)[None], np.zeros((1, 1)))[0, 0])

    def _vmap_agrees(self) -> bool:
        """Return whether vmap can take the module and agrees with the plain way at two different vectors."""
        vectors = torch.stack([self._theta, 0.9 * self._theta])
        try:
            with torch.no_grad():
                return torch.allclose(vmap(self._losses)(vectors), self._one_by_one(vectors), rtol=1e-3, atol=1e-4)
        except RuntimeError:
            return False

    def _one_by_one(self, vectors: Tensor) -> Tensor:
        return torch.stack([self._losses(vector) for vector in vectors])

    def _losses(self, vector: Tensor) -> Tensor:
        """Return the loss of each example at one parameter vector."""
        parameters, start = {}, 0
        for name, shape in zip(self._names, self._shapes, strict=True):
            parameters[name] = vector[start : start + shape.numel()].view(shape)
            start += shape.numel()
        logits = functional_call(self._module, parameters, (self._inputs,))
        if not self._task.per_position:
            return F.cross_entropy(logits, self._targets, reduction="none")
        ignored = ignored_index(self._task)
        losses = F.cross_entropy(logits.transpose(1, 2), self._targets, reduction="none", ignore_index=ignored)
        return losses.sum(1) / (self._targets != ignored).sum(1).clamp(min=1)


def _check_deterministic(module: nn.Module) -> None:
    """Refuse dropout and batch normalization in training mode."""
    for part in module.modules():
        drops = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
        if part.training and (drops or isinstance(part, nn.modules.batchnorm._BatchNorm)):
            raise InputError(
                f"black-box views need a loss that depends only on the parameters and the example, and this model has "
                f"{type(part).__name__} in training mode: call model.eval(), or use a model without it"
            )
