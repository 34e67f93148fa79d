"""The training under audit, as settings of ``audit.toml`` and of ``coalmine run --set``.

Every ``description`` is help text: of the command line and of ``docs/config.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationInfo, field_validator

from coalmine.claims import Claim
from coalmine.claims.sampling import SENSITIVITY, parse_sampling
from coalmine.config import Settings
from coalmine.errors import InputError, check_positive, parse_kind

if TYPE_CHECKING:
    from torch import nn

    from coalmine.protocol import Audit
    from coalmine.simulation import LocalTraining, Mechanism, Training
    from coalmine.simulation.client import Optimizer
    from coalmine.simulation.data import FederatedData, Splits


class OptimizerSettings(Settings):
    """An optimizer and its step size."""

    optimizer: Literal["sgd", "adam"] = Field("sgd", description="optimizer: sgd or adam")
    learning_rate: float = Field(0.5, gt=0, description="step size")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")

    def rule(self) -> Optimizer:
        """The optimizer; raises `InputError` if Adam is combined with momentum."""
        from coalmine.simulation import SGD, Adam

        if self.optimizer == "sgd":
            return SGD(learning_rate=self.learning_rate, momentum=self.momentum)
        if self.momentum:
            raise InputError(f"momentum is {self.momentum}, but only sgd has momentum: set it to 0 for adam")
        return Adam(learning_rate=self.learning_rate)


class ServerSettings(OptimizerSettings):
    """The server's optimizer, which applies a round's noisy mean update."""

    momentum: float = Field(0.5, ge=0, lt=1, description="momentum of SGD")


class ClientSettings(OptimizerSettings):
    """The clients' local training."""

    epochs: int = Field(3, ge=1, description="passes over a client's examples per round")
    batch_size: int | Literal["all"] | None = Field(
        None, examples=[5], description="examples per step, or all; by default a fifth of what clients have on average"
    )

    def local(self, data: FederatedData) -> LocalTraining:
        """The local training of these clients."""
        from coalmine.simulation import LocalTraining

        # About five steps per epoch, however much data the clients have.
        size = max(1, round(data.sizes.mean() / 5)) if self.batch_size is None else self.batch_size
        size = None if size == "all" else size
        return LocalTraining(optimizer=self.rule(), epochs=self.epochs, batch_size=size)


class TrainingSettings(Settings):
    """A federated training: data, model, participation, local training, and privacy mechanism."""

    data: str = Field("digits", description="data set: a name (digits, mnist, stackexchange, …) or a file")
    keys: dict[str, str] = Field(
        default_factory=dict,
        description="names of the columns in a file of yours (input, label, user), for example --set keys.user=author "
        "--set keys.input=body",
    )
    partition: str | None = Field(
        None,
        examples=["iid:100"],
        description="how examples are divided among clients: natural, iid:N, dirichlet:A/N or balanced:N; by default "
        "the data set's standard partition",
    )
    level: Literal["words", "characters"] | None = Field(
        None, examples=["words"], description="tokens of text: words or characters"
    )
    positions: int | None = Field(None, examples=[20], ge=1, description="tokens per text sequence")
    vocabulary_size: int | None = Field(None, examples=[1000], ge=1, description="number of distinct tokens")
    clients: int | None = Field(
        None, examples=[100], ge=1, description="use only the first N training clients; by default all"
    )
    model: str | None = Field(
        None,
        examples=["mlp"],
        description="model: a name (mlp, word-lstm, …) or path.py:function; by default one that fits the data",
    )
    model_settings: dict[str, float] = Field(
        default_factory=dict, description="arguments of the model, for example --set model_settings.hidden=64"
    )
    rounds: int = Field(40, ge=0, description="number of training rounds")
    cohort: str = Field(
        "poisson:0.5",
        description="who takes part in a round: poisson:Q, fixed:SIZE, epochs:N (every client once per epoch) or "
        "every-round",
    )
    client: ClientSettings = Field(default_factory=ClientSettings, description="local training of a client")
    server: ServerSettings = Field(default_factory=ServerSettings, description="optimizer of the server")
    clip_norm: str = Field("1.0", description="clip norm: a number, adaptive:START (tracks the median norm) or none")
    noise_multiplier: float = Field(
        2.0, ge=0, description="noise multiplier: standard deviation of the noise on the sum, in units of the clip norm"
    )
    bug: str | None = Field(
        None,
        examples=["noise:0.5"],
        description="plant a bug into the mechanism, to see whether the audit finds it; the claim stays that of the "
        "correct one. noise:SHARE (only this share of the noise), bare:TENSOR (no noise on one tensor) or repeat:N "
        "(the same noise again after N rounds)",
    )
    evaluate_every: int | None = Field(
        None, examples=[10], ge=1, description="rounds between evaluations; by default only the last round is evaluated"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed for all random choices")
    workers: int = Field(1, ge=1, description="number of worker processes")
    device: str | None = Field(
        None,
        examples=["cuda"],
        description="torch device that trains and probes the model: cpu, cuda, cuda:1, mps, …; by default the CPU. A "
        "run can be resumed on another one",
    )

    @field_validator("clip_norm", "cohort")
    @classmethod
    def _readable(cls, value: str, info: ValidationInfo) -> str:
        """Check the syntax here, where the error can name the line of the file."""
        if info.field_name == "clip_norm":
            _clipping(value)
        elif parse_sampling(value).rate == 0:
            raise InputError(f"the sampling probability q must be positive, got {value!r}")
        return value

    def splits(self, *, pool_fraction: float = 0.0) -> Splits:
        """Training and test clients, and a pool of users set aside if ``pool_fraction`` is positive."""
        from coalmine.simulation.data import load

        splits = load(
            self.data,
            partition=self.partition,
            seed=self.seed,
            pool_fraction=pool_fraction,
            level=self.level,
            positions=self.positions,
            vocabulary_size=self.vocabulary_size,
            keys=self.keys or None,
        )
        if self.clients is None:
            return splits
        if not 1 <= self.clients <= len(splits.train):
            raise InputError(f"clients must be between 1 and {len(splits.train)}, got {self.clients}")
        return replace(splits, train=splits.train.subset(range(self.clients)))

    def module(self, splits: Splits) -> nn.Module:
        """The model before training, on its device: trainings and audits of it run where it is."""
        from coalmine.simulation import models
        from coalmine.simulation.flat import moved

        task = splits.train.task
        model = models.build(self.model or models.default_model(task), task, seed=self.seed, **self.model_settings)
        return moved(model, self.device)

    def mechanism(self) -> Mechanism:
        """Clipping and noise."""
        from coalmine.simulation import Mechanism

        return Mechanism(noise_multiplier=self.noise_multiplier, **_clipping(self.clip_norm))

    def claim(self, clients: int, delta: float) -> Claim:
        """The claim for a training of this many clients, which must have a mechanism."""
        sampling = parse_sampling(self.cohort).accounted(clients, self.rounds)
        noise = self.noise_multiplier / SENSITIVITY[sampling.adjacency]
        return Claim(noise_multiplier=noise, sampling=sampling, rounds=self.rounds, delta=delta)

    def training(self, splits: Splits, module: nn.Module, audits: Sequence[Audit] = ()) -> Training:
        """The training, ready to run."""
        from coalmine.simulation import Training
        from coalmine.simulation.mechanisms.central import with_bug

        mechanism = self.mechanism()
        # The claim is computed from the same settings, so it stays that of the correct mechanism.
        if self.bug is not None:
            mechanism = with_bug(mechanism, self.bug, module)
        return Training(
            model=module,
            data=splits.train,
            test=splits.test,
            rounds=self.rounds,
            sampling=parse_sampling(self.cohort),
            client=self.client.local(splits.train),
            mechanism=mechanism,
            server=self.server.rule(),
            evaluate_every=self.evaluate_every,
            audits=audits,
            seed=self.seed,
            workers=self.workers,
        )


def _clipping(text: str) -> dict[str, float]:
    """Parse the setting ``clip_norm``."""
    kinds: dict[str, Callable[[str], dict[str, float]]] = {
        text: lambda _: {"clip_norm": check_positive("clip_norm", float(text))},  # any other text must be a number
        "none": lambda _: {},
        "adaptive:": lambda start: {"clip_norm": check_positive("START", float(start)), "quantile": 0.5},
    }
    return parse_kind(text, kinds, f"clip_norm must be a number such as 1.0, adaptive:START or none, got {text!r}")
