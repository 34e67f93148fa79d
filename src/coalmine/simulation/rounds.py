"""What every training here has: rounds, checkpoints, evaluation, releases to audits."""

from __future__ import annotations

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coalmine.accounting import Theory
from coalmine.errors import InputError, check_count, check_kind
from coalmine.protocol import Audit, Release, Vector
from coalmine.simulation import checkpoint, flat
from coalmine.simulation.checkpoint import Metrics, TrainingState
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.evaluation import evaluate
from coalmine.simulation.models.tasks import check_fits
from coalmine.simulation.optimizers import SGD, Optimizer
from coalmine.simulation.pieces import Threads
from coalmine.simulation.workers import one_thread

_SPLIT = {"data": "train", "test": "test"}
_SAMPLED_ROWS = 1000  # of large data, which need not be read whole to be recognized

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
        check_kind("model", model, nn.Module, "a torch.nn.Module, as models.build(name, task) gives")
        for name, part in (("data", data), ("test", test)):
            if part is not None or name == "data":
                check_kind(name, part, FederatedData, f"FederatedData, such as {_SPLIT[name]} of what load gives")
        check_kind("audits", audits, (list, tuple), "a list of audits")
        for audit in audits:
            check_kind("an audit", audit, Audit, "an object of a subclass of coalmine.protocol.Audit")
            check_kind("an audit's views", audit.views, (list, tuple), "a list of View")
        planted = [audit.plants_as for audit in audits if audit.plants_as is not None]
        if len(set(planted)) < len(planted):
            raise InputError(
                f"two audits would plant the same {planted[0]}: give them different seeds, or let one look at the "
                "other's canaries"
            )
        if test is None and evaluate_every is not None:
            raise InputError("evaluate_every needs test data to evaluate on: give test=, or leave it out")
        self.data, self.test, self.audits = data, test, tuple(audits)
        self.rounds, self.seed = check_count("rounds", rounds, least=0), check_count("seed", seed, least=0)
        self.evaluate_every = None if evaluate_every is None else check_count("evaluate_every", evaluate_every)
        flat.check_module(model, private=private)
        check_fits(model, data.task, name=type(model).__name__)
        if test is not None and test.task != data.task:
            raise InputError(f"the test data must have the task of the training data, {data.task}, got {test.task}")
        self._model = flat.FlatModel(model)
        self.state = TrainingState(model=flat.parameter_vector(model))
        self._start = _digest(self.state.model.numpy())

    @abstractmethod
    def theory(self, delta: float) -> Theory:
        """What an accountant promises for this configuration."""

    @abstractmethod
    def _round(self) -> tuple[TrainingState, Tensor, float | None]:
        """Compute the next round: the state after it, the update that led there, what that was divided by.

        It changes nothing.
        """

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

        With ``checkpoints`` the state is saved there after every ``checkpoint_every`` rounds and at the end. Where a
        checkpoint of this very training is there already, it goes on from it, since it would come to the same bits.
        """
        end = self.rounds if until is None else min(check_count("until", until, least=0), self.rounds)
        directory = None if checkpoints is None else Path(checkpoints)
        check_count("checkpoint_every", checkpoint_every)
        if directory and checkpoint.holds_one(directory):
            self._resume(directory, end)
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
        return self._evaluate(self.state.model)

    def _evaluate(self, model: Tensor) -> Metrics:
        assert self.test is not None
        with one_thread():
            self._model.load(model)
            return evaluate(self._model.module, self.data.task, self.test)

    def save(self, directory: Path | str) -> None:
        """Write a checkpoint: the whole state, with that of the audits."""
        self.state.audits = [
            {name: torch.from_numpy(np.array(value)) for name, value in audit.state().items()} for audit in self.audits
        ]
        checkpoint.save(self.state, Path(directory), self._fingerprint())

    def load(self, directory: Path | str) -> Self:
        """Go back to a checkpoint of this very training; another's is refused."""
        self.state = checkpoint.load(Path(directory), self._fingerprint())
        for audit, kept in zip(self.audits, self.state.audits, strict=False):
            audit.restore({name: value.numpy() for name, value in kept.items()})
        return self

    def _resume(self, directory: Path, end: int) -> None:
        found = checkpoint.load(directory, self._fingerprint()).round
        if found > end:
            raise InputError(
                f"{directory} holds a checkpoint of {found} rounds, which is past round {end}: choose another"
            )
        if found > self.state.round:
            self.load(directory)

    def _fingerprint(self) -> dict[str, str]:
        common = {
            "kind": type(self).__name__,
            "rounds": self.rounds,
            "seed": self.seed,
            "evaluate_every": self.evaluate_every,
            "the number of parameters": self.dim,
            "the first model": self._start,
            "data": f"{self.data} {_digest_of_data(self.data)}",
            "audits": list(self.audits),
        }
        return {name: str(value) for name, value in (common | self._settings()).items()}

    def _advance(self) -> None:
        number = self.state.round
        self._before_round()
        try:
            state, update, divisor = self._round()
            self._measure(state, number)
        except BaseException:
            for audit in self.audits:
                audit.discard(number)
            raise
        self.state = state
        for audit in self.audits:
            for view in audit.views:
                if view.shows(number, self.rounds):
                    shown = state.model if view.kind == "model" else update
                    audit.observe(Release(round=number, kind=view.kind, vector=read_only(shown), divisor=divisor))

    def _measure(self, state: TrainingState, number: int) -> None:
        """Evaluate the model of round ``number`` where it is time to, and refuse one that has diverged."""
        last = number + 1 == self.rounds
        finite = math.isfinite(state.model @ state.model) or math.isfinite(flat.norms(state.model[None]))
        if finite and self.test is not None and (last or (number + 1) % (self.evaluate_every or self.rounds) == 0):
            state.history[-1].update(self._evaluate(state.model))
        if not finite or not math.isfinite(state.history[-1].get("loss", 0.0)):
            raise InputError(
                f"the model diverged in round {number}, which does not count: lower the learning rates or the noise"
            )


def optimized(
    server: Optimizer, state: TrainingState, update: Tensor, threads: Threads
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """The model and the optimizer's memory after a step along ``update``; ``state`` stays what it is."""
    if isinstance(server, SGD) and not server.momentum:  # one pass over the model instead of four

        def step(piece: slice) -> None:
            torch.add(state.model[piece], update[piece], alpha=server.learning_rate, out=moved[piece])

        moved = torch.empty_like(state.model)
        threads.each(len(moved), step)
        return moved, {}
    model = state.model.clone()
    memory = {key: [tensor.clone() for tensor in some] for key, some in state.optimizer.items()}
    server.step([model], [update.neg_()], memory)
    update.neg_()
    return model, memory


def read_only(vector: Tensor) -> Vector:
    """A copy as a NumPy array that cannot be written to: whatever an audit does with it, the training goes on."""
    shown = vector.numpy().copy()
    shown.flags.writeable = False
    return shown


def _digest(*arrays: npt.NDArray[Any]) -> str:
    found = hashlib.blake2b(digest_size=6)
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _digest_of_data(data: FederatedData) -> str:
    """Who holds what, in full, and some of the examples."""
    some = np.unique(np.linspace(0, len(data.inputs) - 1, _SAMPLED_ROWS).astype(np.int64))
    rows = np.empty(0, dtype=np.int64) if data.rows is None else data.rows
    return _digest(data.bounds, rows, data.inputs[some], data.targets[some])
