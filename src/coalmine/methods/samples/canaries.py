"""Canaries that are examples of the training data: a coin flip decides for each whether it is inserted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from coalmine.arrays import Bools
from coalmine.errors import InputError, check_count, check_kind
from coalmine.methods.canife.design import DesignSettings
from coalmine.methods.canife.pool import pool_updates
from coalmine.methods.canife.samples import Target, clients_of, design_samples, valid_range
from coalmine.seeds import generator
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.data.federated import Task
from coalmine.simulation.optimizers import SGD

# Random streams apart from the coins of update canaries with the same seed: if the coins were shared, an update canary
# and a sample canary would always be inserted together, and each would be evidence about the other.
_COINS, _LABELS = 1, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleCanaries:
    """Examples of which fair coin flips insert about half into the training data.

    The coins are what the ``one-run`` bound rests on: choose the examples before the training and without looking at
    ``members``. They should be easy to memorize (`mislabeled`, `crafted`), since an adversary learns little about
    examples that look like the rest of the data.

    Args:
        inputs: (k, *shape): one row per canary, shaped like the inputs of the data set.
        targets: (k,) or (k, positions): the classes.
        kind: What they are, for the record.
        seed: Seed for the coin flips.

    Attributes:
        members: (k,): which canaries are inserted.

    Raises:
        InputError: If inputs and targets differ in number, if inputs are not finite, or if all coins fell alike.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> data = TensorDataset(torch.zeros(100, 4), torch.zeros(100, dtype=torch.int64))
        >>> canaries = SampleCanaries(inputs=torch.randn(20, 4), targets=torch.arange(20) % 10)
        >>> len(canaries.insert_into(data)) - int(canaries.members.sum())
        100
    """

    inputs: Tensor
    targets: Tensor
    kind: str = "given"
    seed: int = 0
    members: Bools = field(init=False)

    def __post_init__(self) -> None:
        check_count("seed", self.seed, least=0)
        for name in ("inputs", "targets"):
            check_kind(name, getattr(self, name), Tensor, "a tensor with one row per canary")
        if len(self.inputs) != len(self.targets):
            raise InputError(
                f"every canary needs a target, got {len(self.inputs)} inputs and {len(self.targets)} targets"
            )
        if self.inputs.is_floating_point() and not bool(self.inputs.isfinite().all()):
            raise InputError("the inputs of canaries must be finite, got NaN or infinity")
        members = generator(self.seed, "insertion", _COINS).random(len(self.inputs)) < 0.5
        if members.all() or not members.any():
            raise InputError(
                f"coin flips inserted {int(members.sum())} of {len(members)} canaries, which leaves nothing to compare "
                "with: use more canaries"
            )
        object.__setattr__(self, "members", members)

    @classmethod
    def mislabeled(cls, inputs: Tensor, targets: Tensor, *, classes: int, seed: int = 0) -> SampleCanaries:
        """Return examples with random wrong labels, which a model can only memorize.

        Args:
            inputs: (k, *shape): examples that are not in the training data.
            targets: (k,): their true classes.
            classes: Number of classes.
            seed: Seed for the labels and the coin flips.
        """
        check_count("classes", classes, least=2)
        steps = generator(seed, "insertion", _LABELS).integers(1, classes, size=len(targets))
        wrong = (targets.long() + torch.from_numpy(steps)) % classes
        return cls(inputs=inputs, targets=wrong, kind="mislabeled", seed=seed)

    @classmethod
    def crafted(
        cls,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        *,
        classes: int,
        clip_norm: float,
        count: int,
        settings: DesignSettings | None = None,
        target: Target = "random",
        seed: int = 0,
    ) -> SampleCanaries:
        """Return examples crafted as CANIFE does: their gradients at ``model`` differ from those of ordinary examples.

        docs/canife-design.md describes the design.

        Args:
            model: The module before the training, without per-sample hooks.
            inputs: (n, *shape): examples to differ from. They must be set aside: none may be in the audited data.
            targets: (n,): their classes.
            classes: Number of classes.
            clip_norm: Clip norm of the training.
            count: Number of canaries to craft.
            settings: Settings of the design.
            target: How classes of canaries are chosen.
            seed: Seed for the design and the coin flips.
        """
        check_count("classes", classes, least=2)
        task = Task(input_shape=tuple(inputs.shape[1:]), classes=classes)
        data = clients_of(inputs.detach().numpy().astype(np.float32), targets.detach().numpy(), task)
        # A client with one example that takes one SGD step at learning rate 1: its update is minus the gradient.
        client = LocalTraining(optimizer=SGD(learning_rate=1.0))
        pool = pool_updates(model, data, client, clip_norm, seed=seed)
        design = design_samples(
            model,
            pool,
            task=task,
            client=client,
            count=count,
            settings=settings,
            target=target,
            valid=valid_range(data),
            seed=seed,
        )
        return cls(
            inputs=torch.from_numpy(np.array(design.clients.inputs)),
            targets=torch.from_numpy(np.array(design.clients.targets)),
            kind="crafted",
            seed=seed,
        )

    def __len__(self) -> int:
        return len(self.inputs)

    def insert_into(self, dataset: Dataset[Any]) -> Dataset[Any]:
        """Return a data set of the examples of ``dataset``, followed by the inserted canaries.

        Args:
            dataset: A map-style data set of pairs ``(input, target)``, where the input is a tensor.

        Raises:
            InputError: If it gives something else, or inputs of another shape than the canaries'.
        """
        return _WithCanaries(dataset, self)

    def __repr__(self) -> str:
        return f"SampleCanaries({len(self)} {self.kind}, {int(self.members.sum())} inserted, seed={self.seed})"


class _WithCanaries(Dataset[Any]):
    """A data set followed by the inserted canaries, which have the types of the other examples."""

    def __init__(self, dataset: Dataset[Any], canaries: SampleCanaries) -> None:
        self._dataset, self._length = dataset, len(dataset)  # type: ignore[arg-type]
        first = dataset[0]
        if not isinstance(first, tuple | list) or len(first) != 2:
            size = f" of length {len(first)}" if isinstance(first, tuple | list) else ""
            raise InputError(
                f"canaries go into a data set of pairs (input, target), got items of type {type(first).__name__}{size}"
            )
        example, target = first
        shape, canary_shape = tuple(np.shape(example)), tuple(canaries.inputs.shape[1:])
        if shape != canary_shape:
            raise InputError(f"examples of the data set have shape {shape}, but canaries have shape {canary_shape}")
        if not isinstance(example, Tensor):
            raise InputError(
                f"examples of the data set must be tensors, got {type(example).__name__}: insert canaries after the "
                "transform to tensors"
            )
        inserted = torch.from_numpy(np.flatnonzero(canaries.members))
        self._inputs = canaries.inputs[inserted].to(example.dtype)
        self._targets, self._plain_targets = canaries.targets[inserted], not isinstance(target, Tensor)
        if isinstance(target, Tensor):
            self._targets = self._targets.to(target.dtype)

    def __len__(self) -> int:
        return self._length + len(self._inputs)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index < self._length:
            return self._dataset[index]
        target = self._targets[index - self._length]
        return self._inputs[index - self._length], target.item() if self._plain_targets else target
