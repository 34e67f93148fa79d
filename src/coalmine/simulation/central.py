"""Central training on the same data, as a baseline: batches of records, regardless of whose they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from coalmine import claims
from coalmine.arrays import Ints
from coalmine.claims import Claim
from coalmine.claims.sampling import EveryRound
from coalmine.errors import InputError, check_count, check_kind
from coalmine.protocol import Audit
from coalmine.seeds import generator
from coalmine.simulation import flat
from coalmine.simulation.checkpoint import TrainingState
from coalmine.simulation.client import loss_of, seed_dropout, tensors
from coalmine.simulation.data.federated import Examples, FederatedData
from coalmine.simulation.optimizers import SGD, Optimizer, check_optimizer
from coalmine.simulation.rounds import Rounds


class CentralTraining(Rounds):
    """Central (not federated) training on batches of records, without privacy.

    Audits observe it as they observe a federated training; the update of a round is the change of the model. There is
    no sum of clients' updates, so canaries must be part of the data.

    Args:
        model: The model to start from; it is not changed.
        data: The records, grouped by user.
        rounds: Number of rounds, each of ``steps`` optimizer steps.
        steps: Steps per round.
        batch_size: Records per step.
        optimizer: `SGD` or `Adam`; by default SGD with learning rate 0.1.
        order: ``"shuffled"`` draws records in random order (the IID setting of Thakkar et al., 2020); ``"by-user"``
            goes through one user's records after the other's, in a new order of users per epoch (their non-IID one).
        test: Test data, evaluated after the last round.
        evaluate_every: Evaluate after every this many rounds as well.
        audits: Audits that observe the training.
        seed: Seed for the order of the records, and for dropout.
        device: Device to train on, such as ``"cuda"``; by default where the model is.

    Raises:
        InputError: If the arguments do not fit each other, or an audit wants to insert updates.

    Example:
        >>> from coalmine.simulation import models
        >>> from coalmine.simulation.data import load
        >>> data = load("digits").train
        >>> central = CentralTraining(model=models.build("logistic", data.task), data=data, rounds=2, steps=5)
        >>> len(central.run())
        2
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
        device: torch.device | str | None = None,
    ) -> None:
        check_kind("model", model, nn.Module, "a torch.nn.Module, such as models.build(name, task)")
        super().__init__(
            model=flat.moved(model, device),
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
            check_optimizer("optimizer", optimizer)
        self.optimizer, self.order = optimizer or SGD(learning_rate=0.1), order
        self.steps, self.batch_size = check_count("steps", steps), check_count("batch_size", batch_size)
        self._records = data.indices
        self._epoch: tuple[int, Ints] | None = None

    def claim(self, delta: float) -> Claim:
        """An infinite ε: there is no noise."""
        return claims.Claim(noise_multiplier=0.0, sampling=EveryRound(), rounds=self.rounds, delta=delta)

    def _settings(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("steps", "batch_size", "optimizer", "order")}

    def _before_round(self) -> None:
        """Raise `InputError` if an audit expects a sum of clients' updates."""
        number = self.state.round
        for audit in self.audits:
            if audit.frozen_rounds(number) or audit.plant(number, clip_norm=math.inf) is not None:
                raise InputError(
                    f"{type(audit).__name__} inserts updates or asks for frozen rounds, but central training has no "
                    "sum of clients' updates: insert canaries into the data instead"
                )

    def _round(self) -> tuple[TrainingState, Tensor, None]:
        number, state = self.state.round, self.state
        self._model.load(state.model)
        self._model.reset_buffers()
        optimizer_state = {key: [tensor.clone() for tensor in values] for key, values in state.optimizer.items()}
        losses = []
        rng_state = torch.get_rng_state()
        for step in range(number * self.steps, (number + 1) * self.steps):
            inputs, targets = tensors(self._batch(step), self.data.task, device=self._model.device)
            # Dropout and similar layers draw from torch's global generator: seed it per step.
            seed = int(generator(self.seed, "central", 0, step + 1).integers(2**32))
            seed_dropout(seed, self._model.device)
            loss = loss_of(self._model.module, self.data.task, inputs, targets)
            losses.append(loss.item())
            if not np.isfinite(losses[-1]):
                raise InputError(
                    f"the loss is {losses[-1]} in step {step} of round {number}, which was aborted: lower the learning "
                    "rate"
                )
            gradients = self._model.gradients(loss)
            with torch.no_grad():
                self.optimizer.step(self._model.parameters, gradients, optimizer_state)
        torch.set_rng_state(rng_state)
        model = self._model.vector
        after = TrainingState(
            model=model,
            optimizer=optimizer_state,
            round=number + 1,
            history=[*state.history, {"round": number, "train_loss": float(np.mean(losses))}],
        )
        return after, model - state.model, None

    def _batch(self, step: int) -> Examples:
        """The records of a step, counted from the start of the training."""
        epoch, part = divmod(step, -(-len(self._records) // self.batch_size))
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._ordered(epoch))
        rows = self._epoch[1][part * self.batch_size : (part + 1) * self.batch_size]
        return Examples(self.data.inputs[rows], self.data.targets[rows])

    def _ordered(self, epoch: int) -> Ints:
        """The rows of all records in the order of an epoch."""
        draw = generator(self.seed, "central", epoch + 1)
        if self.order == "shuffled":
            return self._records[draw.permutation(len(self._records))]
        stops = np.cumsum(self.data.sizes)
        users = np.split(self._records, stops[:-1])
        return np.concatenate([users[i] for i in draw.permutation(len(users))])
