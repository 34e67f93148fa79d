"""Central training on the same data, for comparison: batches of records, whoever they belong to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from coalmine import accounting
from coalmine.accounting import Theory
from coalmine.accounting.sampling import EveryRound
from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count, check_kind
from coalmine.protocol import Audit
from coalmine.seeds import generator
from coalmine.simulation.checkpoint import TrainingState
from coalmine.simulation.client import loss_of, tensors
from coalmine.simulation.data.federated import Examples, FederatedData
from coalmine.simulation.optimizers import SGD, Adam, Optimizer
from coalmine.simulation.rounds import Rounds


class CentralTraining(Rounds):
    """Steps of ``optimizer`` over batches of records; a round is ``steps`` of them.

    ``order`` is how an epoch goes through the records: ``shuffled`` (the IID regime of Thakkar et al. 2021) or
    ``by-user``, all records of a user after one another, the users in a new order each epoch (their non-IID regime).
    Audits look on as in federated training, an update being how far the round moved the model; there is no sum of
    clients to plant in, so canaries must be in the data.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        data: FederatedData,
        rounds: int,
        steps: int = 100,
        batch_size: int = 32,
        optimizer: Optimizer | None = None,
        order: Literal["shuffled", "by-user"] = "shuffled",
        test: FederatedData | None = None,
        evaluate_every: int | None = None,
        audits: Sequence[Audit] = (),
        seed: int = 0,
    ) -> None:
        super().__init__(
            model=model,
            data=data,
            rounds=rounds,
            test=test,
            evaluate_every=evaluate_every,
            audits=audits,
            seed=seed,
            private=False,
        )
        if order not in ("shuffled", "by-user"):
            raise InputError(f"order must be shuffled or by-user, got {order!r}")
        if optimizer is not None:
            check_kind("optimizer", optimizer, (SGD, Adam), "SGD(...) or Adam(...) of coalmine.simulation")
        self.optimizer, self.order = optimizer or SGD(learning_rate=0.1), order
        self.steps, self.batch_size = check_count("steps", steps), check_count("batch_size", batch_size)
        self._records = data.indices
        self._epoch: tuple[int, Ints] | None = None

    def theory(self, delta: float) -> Theory:
        """ε is infinite: there is no noise."""
        return accounting.theory(noise_multiplier=0.0, sampling=EveryRound(), rounds=self.rounds, delta=delta)

    def _settings(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("steps", "batch_size", "optimizer", "order")}

    def _before_round(self) -> None:
        number = self.state.round
        for audit in self.audits:
            if audit.frozen_rounds(number) or audit.plant(number, clip_norm=math.inf) is not None:
                raise InputError(
                    f"{type(audit).__name__} plants updates or asks for frozen rounds, and central training has no sum "
                    "of clients' updates: put canaries into the data"
                )

    def _round(self) -> tuple[TrainingState, Tensor, None]:
        number, state = self.state.round, self.state
        self._model.load(state.model)
        self._model.reset_buffers()
        memory = {key: [tensor.clone() for tensor in some] for key, some in state.optimizer.items()}
        losses = []
        outside = torch.get_rng_state()
        for step in range(number * self.steps, (number + 1) * self.steps):
            inputs, targets = tensors(self._batch(step), self.data.task)
            torch.default_generator.manual_seed(int(generator(self.seed, "central", 0, step + 1).integers(2**32)))
            loss = loss_of(self._model.module, self.data.task, inputs, targets)
            losses.append(loss.item())
            if not np.isfinite(losses[-1]):
                raise InputError(
                    f"the loss is {losses[-1]} in step {step} of round {number}, which does not count: lower the "
                    "learning rate"
                )
            gradients = self._model.gradients(loss)
            with torch.no_grad():
                self.optimizer.step(self._model.parameters, gradients, memory)
        torch.set_rng_state(outside)
        self._model.reattach()
        model = self._model.vector.clone()
        after = TrainingState(
            model=model,
            optimizer=memory,
            round=number + 1,
            history=[*state.history, {"round": number, "train_loss": float(np.mean(losses))}],
        )
        return after, model - state.model, None

    def _batch(self, step: int) -> Examples:
        epoch, part = divmod(step, -(-len(self._records) // self.batch_size))
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._ordered(epoch))
        rows = self._epoch[1][part * self.batch_size : (part + 1) * self.batch_size]
        return Examples(self.data.inputs[rows], self.data.targets[rows])

    def _ordered(self, epoch: int) -> Ints:
        draw = generator(self.seed, "central", epoch + 1)
        if self.order == "shuffled":
            return self._records[draw.permutation(len(self._records))]
        stops = np.cumsum(self.data.sizes)
        users = np.split(self._records, stops[:-1])
        return np.concatenate([users[i] for i in draw.permutation(len(users))])
