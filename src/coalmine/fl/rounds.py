"""What every training here has: rounds, checkpoints, evaluation, releases to audits."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from coalmine.accounting import Theory
from coalmine.data.federated import FederatedData
from coalmine.errors import InputError, check_count
from coalmine.fl import checkpoint, flat
from coalmine.fl.checkpoint import Metrics, TrainingState
from coalmine.fl.evaluation import evaluate
from coalmine.fl.optimisers import Optimiser
from coalmine.fl.workers import one_thread
from coalmine.models.tasks import check_fits
from coalmine.seam import Audit, Release, Vector

Progress = Callable[[Metrics], None]
"""Called after each round with what was measured in it."""


class Rounds(ABC):
    """A training that goes round by round. A round either counts whole or, where it fails, not at all."""

    def __init__(
        self,
        *,
        model: nn.Module,
        data: FederatedData,
        rounds: int,
        test: FederatedData | None,
        evaluate_every: int | None,
        audits: Sequence[Audit],
        seed: int,
        private: bool,
    ) -> None:
        self.data, self.test, self.audits = data, test, tuple(audits)
        self.rounds, self.seed = check_count("rounds", rounds, least=0), check_count("seed", seed, least=0)
        self.evaluate_every = None if evaluate_every is None else check_count("evaluate_every", evaluate_every)
        flat.check_module(model, private=private)
        check_fits(model, data.task, name=type(model).__name__)
        if test is not None and test.task != data.task:
            raise InputError(f"the test data must have the task of the training data, {data.task}, got {test.task}")
        self._model = flat.FlatModel(model)
        self.state = TrainingState(model=flat.parameter_vector(model))

    @abstractmethod
    def theory(self, delta: float) -> Theory:
        """What an accountant promises for this configuration."""

    @abstractmethod
    def _round(self) -> tuple[TrainingState, Tensor]:
        """Compute the next round: the state after it, and the update that led there. Changes nothing."""

    @abstractmethod
    def _settings(self) -> dict[str, object]:
        """What makes it this training: a checkpoint of other settings would not resume to the same bits."""

    def _before_round(self) -> None:  # noqa: B027
        """Whatever is held before a round that does not change the model."""

    def _rest(self) -> None:  # noqa: B027
        """Let go of what only a running training needs."""

    @property
    def dim(self) -> int:
        """The number of trainable parameters."""
        return self.state.model.numel()

    @property
    def history(self) -> list[Metrics]:
        """What was measured in each round done, such as the training loss, and the test metrics where evaluated.

        It is for the one who simulates; the mechanism releases none of it.
        """
        return self.state.history

    def module(self) -> nn.Module:
        """A copy of the model as it is now."""
        self._model.load(self.state.model)
        return copy.deepcopy(self._model.module).eval()

    def run(
        self,
        *,
        until: int | None = None,
        progress: Progress | None = None,
        checkpoints: Path | str | None = None,
        checkpoint_every: int = 10,
    ) -> list[Metrics]:
        """Go on to round ``until`` (to the end if not given); returns the history.

        With ``checkpoints`` the state is saved there after every ``checkpoint_every`` rounds and at the end.
        """
        end = self.rounds if until is None else min(check_count("until", until, least=0), self.rounds)
        directory = None if checkpoints is None else Path(checkpoints)
        check_count("checkpoint_every", checkpoint_every)
        try:
            with one_thread():
                while self.state.round < end:
                    self._advance()
                    if directory and (self.state.round % checkpoint_every == 0 or self.state.round == end):
                        self.save(directory)
                    if progress:
                        progress(self.state.history[-1])
        finally:
            self._rest()
        return self.history

    def evaluate(self) -> Metrics:
        """The model as it is now on the test data."""
        if self.test is None:
            raise InputError("there is no test data to evaluate on: give test=")
        with one_thread():
            self._model.load(self.state.model)
            return evaluate(self._model.module, self.data.task, self.test.pooled())

    def save(self, directory: Path | str) -> None:
        """Write a checkpoint."""
        checkpoint.save(self.state, Path(directory), self._fingerprint())

    def load(self, directory: Path | str) -> Self:
        """Go back to a checkpoint of this very training; another's is refused."""
        self.state = checkpoint.load(Path(directory), self._fingerprint())
        return self

    def _fingerprint(self) -> dict[str, str]:
        common = {"rounds": self.rounds, "seed": self.seed, "parameters": self.dim, "data": self.data}
        every = {"evaluate_every": self.evaluate_every}
        return {name: str(value) for name, value in (common | every | self._settings()).items()}

    def _advance(self) -> None:
        number = self.state.round
        self._before_round()
        state, update = self._round()
        if not bool(torch.isfinite(state.model).all()):
            raise InputError(
                f"the model is not finite after round {number}, which does not count: lower a learning rate"
            )
        self.state = state
        last = number + 1 == self.rounds
        if self.test is not None and self.evaluate_every and (last or (number + 1) % self.evaluate_every == 0):
            state.history[-1].update(self.evaluate())
        for audit in self.audits:
            for view in audit.views:
                if view.shows(number, self.rounds):
                    shown = state.model if view.kind == "model" else update
                    audit.observe(Release(round=number, kind=view.kind, vector=read_only(shown)))


def optimised(server: Optimiser, state: TrainingState, update: Tensor) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """The model and the optimiser's memory after a step along ``update``; ``state`` stays what it is."""
    model = state.model.clone()
    memory = {key: [tensor.clone() for tensor in some] for key, some in state.optimiser.items()}
    server.step([model], [-update], memory)
    return model, memory


def read_only(vector: Tensor) -> Vector:
    """A tensor as a NumPy array that shares its memory and cannot be written to."""
    shown = vector.numpy().view()
    shown.flags.writeable = False
    return shown
