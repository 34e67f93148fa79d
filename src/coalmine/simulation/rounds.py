"""What federated and central training share: rounds, checkpoints, evaluation, releases to audits.

A checkpoint is the whole state of a training in one safetensors file, whose metadata hold the rest as JSON: no pickle.
There is no random state to save, because every draw is a function of the seed and the round (`coalmine.seeds`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialized
from torch import Tensor, nn

from coalmine.claims import Claim
from coalmine.errors import InputError, check_count, check_kind
from coalmine.files import write_whole
from coalmine.parallel import single_thread
from coalmine.progress import Advance, reporting, shown_if_slow
from coalmine.protocol import Audit, check_audits
from coalmine.simulation import flat
from coalmine.simulation.client import OptimizerState, evaluate
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.models import check_fits
from coalmine.vectors import AnyVector

FORMAT = 2
_FILE = "checkpoint.safetensors"

Metrics = dict[str, float]

Progress = Callable[[Metrics], None]
"""Called after each round with its metrics."""


@dataclass
class TrainingState:
    """The state of a training after ``round`` rounds.

    Attributes:
        model: Parameters of the global model, shape (d,).
        optimizer: State of the server's optimizer.
        clip_norm: Clip norm of the next round.
        round: Number of completed rounds.
        history: Metrics of each completed round.
        audits: State of each audit; filled in when a checkpoint is read.
    """

    model: Tensor
    optimizer: OptimizerState = field(default_factory=dict)
    clip_norm: float = math.inf
    round: int = 0
    history: list[Metrics] = field(default_factory=list)
    audits: list[dict[str, Tensor]] = field(default_factory=list)


@dataclass(kw_only=True, eq=False, repr=False)
class Rounds(ABC):
    """A training in rounds. A round that fails is aborted: the state stays as it was before the round.

    The arguments are those that `coalmine.simulation.training` describes for both of its trainings.
    """

    _determining: ClassVar[Sequence[str]]
    """Names of the settings that determine the results: a checkpoint with other settings is rejected."""

    model: InitVar[nn.Module]
    data: FederatedData
    rounds: int
    test: FederatedData | None = None
    evaluate_every: int | None = None
    audits: Sequence[Audit] = ()
    seed: int = 0
    device: InitVar[torch.device | str | None] = None
    private: bool = field(init=False, default=False)

    def __post_init__(self, model: nn.Module, device: torch.device | str | None) -> None:
        check_kind("data", self.data, FederatedData, "FederatedData, such as load(name).train")
        check_audits(self.audits)
        self.audits = tuple(self.audits)
        if self.evaluate_every is not None:
            check_count("evaluate_every", self.evaluate_every)
            if self.test is None:
                raise InputError(
                    f"evaluate_every is {self.evaluate_every}, but there is no test data: set test as well"
                )
        self.rounds, self.seed = check_count("rounds", self.rounds, least=0), check_count("seed", self.seed, least=0)
        model = flat.moved(model, device)
        # A model that cannot be trained is refused here, before the first round.
        flat.check_module(model, private=self.private)
        check_fits(model, self.data.task, name=type(model).__name__)
        self._model = flat.FlatModel(model)
        self.dim = self._model.dim
        self.state = TrainingState(model=flat.parameter_vector(model))
        start = self.state.model.cpu().numpy().tobytes()
        self._start = hashlib.blake2b(start, digest_size=6).hexdigest()
        # Releases what only a running training needs, such as worker processes.
        self._release: Callable[[], None] = lambda: None

    @abstractmethod
    def claim(self, delta: float) -> Claim:
        """The claimed guarantee of this configuration at ``delta``, from an accountant."""

    @abstractmethod
    def _round(self) -> tuple[TrainingState, Tensor, float | None]:
        """Compute the next round without side effects: the new state, the update, and the divisor of its sum."""

    def _before_round(self) -> None:  # noqa: B027
        """Hook for work before a round that leaves the model unchanged, such as frozen rounds."""

    @property
    def history(self) -> list[Metrics]:
        """The metrics of each completed round: training loss, median norm, test metrics in evaluated rounds, …

        For the person who runs the simulation: the mechanism does not release it, so no guarantee covers it.
        """
        return self.state.history

    def module(self) -> nn.Module:
        """A copy of the current model, in ``eval`` mode."""
        self._model.load(self.state.model)
        return copy.deepcopy(self._model.module).eval()

    def evaluate(self) -> Metrics:
        """The test metrics of the current model (see `coalmine.simulation.evaluate`)."""
        check_kind("test", self.test, FederatedData, "FederatedData, such as load(name).test")
        assert self.test is not None
        with single_thread():
            return evaluate(self.module(), self.data.task, self.test)

    @shown_if_slow()
    def run(
        self,
        *,
        until: int | None = None,
        progress: Progress | None = None,
        checkpoints: Path | str | None = None,
        checkpoint_every: int = 10,
    ) -> list[Metrics]:
        """Run the training, or continue it.

        The same arguments give the same bits, whether or not the training was interrupted.

        Args:
            until: Stop after this many rounds; None runs to the end.
            progress: Called after each round with its metrics, instead of a progress bar.
            checkpoints: Directory for checkpoints. If it holds one of this training, the run continues from there.
            checkpoint_every: Rounds between checkpoints; there is always one at the end.

        Returns:
            The history: the metrics of each completed round.

        Raises:
            InputError: If the loss or the model diverges, a worker process dies, or a checkpoint does not match.
        """
        end = self.rounds if until is None else min(check_count("until", until, least=0), self.rounds)
        directory = None if checkpoints is None else Path(checkpoints)
        check_count("checkpoint_every", checkpoint_every)
        if directory and (directory / _FILE).is_file():
            saved = self._read(directory)
            if saved.round > end:
                raise InputError(f"{directory} holds a checkpoint after round {saved.round}, past {end}: use another")
            # A checkpoint that lags behind this object is older than what it has computed itself.
            if saved.round > self.state.round:
                self._restore(saved)
        bar: AbstractContextManager[Advance] = nullcontext(lambda done, text: None)
        if progress is None:
            bar = reporting("training", end)
        try:
            with single_thread(), bar as advance:
                while self.state.round < end:
                    self._advance()
                    if directory and (self.state.round % checkpoint_every == 0 or self.state.round == end):
                        self.save(directory)
                    if progress:
                        progress(self.state.history[-1])
                    advance(self.state.round, "")
        finally:
            self._release()
        return self.history

    def save(self, directory: Path | str) -> None:
        """Write a checkpoint: the state of the training and of its audits.

        A kill at any moment leaves either the old checkpoint or the new one.
        """
        state = self.state
        tensors = {"model": state.model.cpu()}
        for key, values in state.optimizer.items():
            for i, tensor in enumerate(values):
                tensors[f"optimizer.{key}.{i:06d}"] = tensor.cpu()  # padded, so that names sort like the parameters
        for i, audit in enumerate(self.audits):
            for key, value in audit.state().items():
                tensors[f"audit.{i}.{key}"] = torch.from_numpy(np.array(value))
        about = {
            "format": FORMAT,
            "round": state.round,
            "clip_norm": state.clip_norm,
            "history": state.history,
            "settings": self._fingerprint(),
        }
        # One file, so that replacing it is what switches from the old checkpoint to the new one.
        content = serialized(tensors, metadata={"about": json.dumps(about)})
        write_whole(Path(directory) / _FILE, lambda path: path.write_bytes(content))

    def load(self, directory: Path | str) -> Self:
        """Restore a checkpoint of this training; raises `InputError` if it is of another one."""
        self._restore(self._read(Path(directory)))
        return self

    def _read(self, directory: Path) -> TrainingState:
        """Read a checkpoint; raises `InputError` if it is missing, damaged, or of another format or training."""
        path = directory / _FILE
        try:
            with safe_open(path, framework="pt") as file:
                about: dict[str, Any] = json.loads(file.metadata()["about"])
                # Clone into aligned memory: the last bits of a matrix product can depend on the alignment of its
                # factors.
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            if about["format"] != FORMAT:
                raise InputError(f"{path} has format {about['format']}, this version of coalmine reads format {FORMAT}")
            for key, value in self._fingerprint().items():
                saved = about["settings"].get(key)
                if saved != value:
                    raise InputError(
                        f"{path} belongs to another training: {key} is {saved} in the checkpoint and {value} here. "
                        "Call torch.manual_seed before building the model if only the initial model differs"
                    )
            state = TrainingState(
                model=tensors.pop("model"),
                clip_norm=float(about["clip_norm"]),
                round=int(about["round"]),
                history=about["history"],
                audits=[{} for _ in self.audits],
            )
            for name in sorted(tensors):
                kind, group, rest = name.split(".", 2)
                if kind == "optimizer":
                    state.optimizer.setdefault(group, []).append(tensors[name])
                else:
                    state.audits[int(group)][rest] = tensors[name]
        except InputError:
            raise
        except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"the checkpoint {path} cannot be read: {type(error).__name__}: {error}") from None
        return state

    def _restore(self, state: TrainingState) -> None:
        """Continue from a state that was read from a checkpoint."""
        device = self.state.model.device
        state.model = state.model.to(device)
        # Counts of steps, which have no dimensions, stay on the CPU.
        for tensors in state.optimizer.values():
            tensors[:] = [tensor.to(device) if tensor.ndim else tensor for tensor in tensors]
        for audit, saved in zip(self.audits, state.audits, strict=True):
            audit.restore({name: value.numpy() for name, value in saved.items()})
        self.state = state

    def _fingerprint(self) -> dict[str, str]:
        """Everything that determines the results, as text: a checkpoint must match all of it."""
        common = {
            "kind": type(self).__name__,
            "rounds": self.rounds,
            "seed": self.seed,
            "evaluate_every": self.evaluate_every,
            "the number of parameters": self.dim,
            "the initial model": self._start,
            "data": f"{self.data} {self.data.fingerprint}",
            "audits": list(self.audits),
        }
        settings = {name: getattr(self, name) for name in self._determining}
        return {name: str(value) for name, value in (common | settings).items()}

    def _advance(self) -> None:
        """Run one round and show the audits what their views release of it."""
        number, before = self.state.round, self.state
        self._before_round()
        try:
            state, update, divisor = self._round()
            self.state, loss = state, 0.0
            last = number + 1 == self.rounds
            if self.test is not None and (last or (number + 1) % (self.evaluate_every or self.rounds) == 0):
                state.history[-1].update(self.evaluate())
                loss = state.history[-1]["loss"]
            if not math.isfinite(float(flat.norms(state.model[None])) + loss):
                raise InputError(
                    f"the model diverged in round {number}, which was aborted: lower the learning rates or the noise"
                )
        except BaseException:
            # The round will be repeated, with the same random numbers: as if it had never begun.
            self.state = before
            for audit in self.audits:
                audit.discard(number)
            raise
        for audit in self.audits:
            for view in audit.views:
                if view.shows(number, self.rounds):
                    vector = shown(state.model if view.kind == "model" else update)
                    audit.observe(number, **{view.kind: vector}, divisor=divisor, unprocessed=divisor is not None)


def shown(vector: Tensor) -> AnyVector:
    """A copy, so that nothing an audit does can change the training: read-only NumPy, or a tensor of its device."""
    if vector.device.type != "cpu":
        return vector.clone()
    copied = vector.numpy().copy()
    copied.flags.writeable = False
    return copied
