"""Canaries that are examples of the training data: a coin flip decides for each whether it is inserted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from coalmine.arrays import Bools
from coalmine.errors import InputError, check_count, check_kind
from coalmine.seeds import generator

# Random streams apart from the coins of update canaries with the same seed: if the coins were shared, an update canary
# and a sample canary would always be inserted together, and each would be evidence about the other.
_COINS, _LABELS = 1, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleCanaries:
    """Examples of which fair coin flips insert about half into the training data.

    The coins are what the ``one-run`` bound rests on: choose the examples before the training and without looking at
    ``members``. They should be easy to memorize (`mislabeled`), since an adversary learns little about examples that
    look like the rest of the data.

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
        if not bool(self.inputs.isfinite().all()):
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

    def __len__(self) -> int:
        return len(self.inputs)

    def insert_into(self, dataset: Dataset[Any]) -> Dataset[Any]:
        """Return a data set of the examples of ``dataset``, followed by the inserted canaries.

        Args:
            dataset: A map-style data set of pairs ``(input, target)``, where the input is a tensor.

        Raises:
            InputError: If it gives something else, or inputs of another shape than the canaries'.
        """
        first = dataset[0]
        is_pair = isinstance(first, tuple | list) and len(first) == 2
        if not is_pair or not isinstance(first[0], Tensor):
            raise InputError(
                "canaries go into a data set of pairs (input, target) whose inputs are tensors, got items of type "
                f"{type(first).__name__}: insert canaries after the transform to tensors"
            )
        example, target = first
        shape, canary_shape = tuple(example.shape), tuple(self.inputs.shape[1:])
        if shape != canary_shape:
            raise InputError(f"examples of the data set have shape {shape}, but canaries have shape {canary_shape}")
        inserted = torch.from_numpy(np.flatnonzero(self.members))
        inputs, targets = self.inputs[inserted].to(example.dtype), self.targets[inserted]
        # Inserted canaries have the types of the other examples, so that batches of both can be made.
        labels = targets.to(target.dtype) if isinstance(target, Tensor) else targets.tolist()
        pairs: Any = list(zip(inputs, labels, strict=True))
        return ConcatDataset([dataset, pairs])

    def __repr__(self) -> str:
        return f"SampleCanaries({len(self)} {self.kind}, {int(self.members.sum())} inserted, seed={self.seed})"
