"""Canaries that are examples of the data: each is in the data set, or held out, by a coin flip of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from coalmine.arrays import Bools
from coalmine.errors import InputError, check_count, check_kind
from coalmine.methods.canife.design.loop import DesignSettings, Target, clients_of
from coalmine.methods.canife.design.numeric import design_samples, valid_range
from coalmine.methods.canife.mock_clients import pool_updates
from coalmine.seeds import generator
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.data.federated import Task
from coalmine.simulation.optimizers import SGD

# Streams of their own beside the coins of update canaries: one coin that planted two canaries would plant twice.
_COINS, _LABELS = 1, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleCanaries:
    """Examples ``inputs`` (k, *shape) with ``targets`` (k,) or (k, positions), of which fair coins plant about half.

    They must be chosen before the training, and without looking at the coins. ``kind`` says what they are.
    """

    inputs: Tensor
    targets: Tensor
    kind: str = "given"
    seed: int = 0
    members: Bools = field(init=False)

    def __post_init__(self) -> None:
        check_count("seed", self.seed, least=0)
        for name in ("inputs", "targets"):
            check_kind(name, getattr(self, name), Tensor, "a tensor with a row for each canary")
        if len(self.inputs) != len(self.targets):
            raise InputError(
                f"every canary needs its target, got {len(self.inputs)} inputs and {len(self.targets)} targets"
            )
        if self.inputs.is_floating_point() and not bool(self.inputs.isfinite().all()):
            raise InputError("the inputs of canaries must be finite, got NaN or infinity")
        members = generator(self.seed, "insertion", _COINS).random(len(self.inputs)) < 0.5
        if members.all() or not members.any():
            raise InputError(
                f"coin flips planted {int(members.sum())} of {len(members)} canaries, which leaves nothing to compare: "
                "take more canaries"
            )
        object.__setattr__(self, "members", members)

    @classmethod
    def mislabeled(cls, inputs: Tensor, targets: Tensor, *, classes: int, seed: int = 0) -> SampleCanaries:
        """Examples that are not in the data, each with a wrong class drawn at random: it must be learnt by heart."""
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
        """``count`` samples designed as CANIFE's: gradients at ``model`` unlike those of the examples given.

        These examples must be set aside: none of them may be in the data under audit. ``model`` is the module before
        the training, without per-sample hooks. What is minimized is on the page canife-design.
        """
        check_count("classes", classes, least=2)
        task = Task(input_shape=tuple(inputs.shape[1:]), classes=classes)
        data = clients_of(inputs.detach().numpy().astype(np.float32), targets.detach().numpy(), task)
        # One step at rate 1 on one example: its client's update is minus its gradient.
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
        found = design.clients
        return cls(
            inputs=torch.from_numpy(np.array(found.inputs)),
            targets=torch.from_numpy(np.array(found.targets)),
            kind="crafted",
            seed=seed,
        )

    def __len__(self) -> int:
        return len(self.inputs)

    def planted(self, dataset: Dataset[Any]) -> Dataset[Any]:
        """``dataset`` with the planted canaries after its own examples."""
        return _WithCanaries(dataset, self)

    def __repr__(self) -> str:
        return f"SampleCanaries({len(self)} {self.kind}, {int(self.members.sum())} planted, seed={self.seed})"


class _WithCanaries(Dataset[Any]):
    """A data set whose last examples are canaries, each of the type that the others have."""

    def __init__(self, dataset: Dataset[Any], canaries: SampleCanaries) -> None:
        self._dataset, self._length = dataset, len(dataset)  # type: ignore[arg-type]
        first = dataset[0]
        if not isinstance(first, tuple | list) or len(first) != 2:
            raise InputError(
                "a data set that canaries are planted in gives pairs (input, target), got "
                f"{type(first).__name__}{f' of {len(first)}' if isinstance(first, tuple | list) else ''}"
            )
        example, target = first
        shape = tuple(np.shape(example))
        if shape != tuple(canaries.inputs.shape[1:]):
            raise InputError(
                f"an example of the data set has the shape {shape}, a canary {tuple(canaries.inputs.shape[1:])}"
            )
        if not isinstance(example, Tensor):
            raise InputError(
                f"an example of the data set must be a tensor, got {type(example).__name__}: plant canaries after the "
                "transform that makes tensors"
            )
        chosen = torch.from_numpy(np.flatnonzero(canaries.members))
        self._inputs = canaries.inputs[chosen].to(example.dtype)
        self._targets, self._whole = canaries.targets[chosen], not isinstance(target, Tensor)
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
        return self._inputs[index - self._length], target.item() if self._whole else target
