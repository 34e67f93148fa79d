"""The training under audit, as settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from coalmine.config.settings import Settings
from coalmine.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from coalmine.protocol import Audit
    from coalmine.simulation import LocalTraining, Mechanism, Training
    from coalmine.simulation.cohorts import Cohorts
    from coalmine.simulation.data import Splits, Task
    from coalmine.simulation.mechanisms.central import Clipping, Weighting
    from coalmine.simulation.optimizers import Optimizer


class OptimizerSettings(Settings):
    """A rule by which parameters move."""

    optimizer: Literal["sgd", "adam"] = Field("sgd", description="sgd or adam")
    learning_rate: float = Field(0.5, gt=0, description="the step size")
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")

    def rule(self) -> Optimizer:
        """The optimizer."""
        from coalmine.simulation import SGD, Adam

        if self.optimizer == "sgd":
            return SGD(learning_rate=self.learning_rate, momentum=self.momentum)
        if self.momentum:
            raise InputError("momentum goes with sgd; adam has its own")
        return Adam(learning_rate=self.learning_rate)


class ServerSettings(OptimizerSettings):
    """What the server does with a round's average."""

    momentum: float = Field(0.5, ge=0, lt=1, description="of sgd")


class ClientSettings(OptimizerSettings):
    """What a client does with the global model."""

    epochs: int = Field(3, ge=1, description="passes over the client's examples")
    batch_size: int | Literal["all"] = Field(5, description="examples a step, or all")

    def local(self) -> LocalTraining:
        """The client's training."""
        from coalmine.simulation import LocalTraining

        size = None if self.batch_size == "all" else self.batch_size
        return LocalTraining(optimizer=self.rule(), epochs=self.epochs, batch_size=size)


class TrainingSettings(Settings):
    """A federated training: data, model, who comes, what they do, what the mechanism adds."""

    data: str = Field("digits", description="a name (digits, mnist, stackexchange, …) or a file")
    partition: str | None = Field(
        None, examples=["iid:100"], description="natural, iid:N, dirichlet:A/N or balanced:N; as usual if not given"
    )
    test_fraction: float | None = Field(
        None, examples=[0.2], gt=0, lt=1, description="share of the users kept for testing"
    )
    min_examples: int = Field(1, ge=1, description="users with fewer examples are left out")
    level: Literal["words", "characters"] | None = Field(
        None, examples=["words"], description="what texts are split into"
    )
    positions: int | None = Field(None, examples=[20], ge=1, description="length of a sequence of text")
    vocabulary_size: int | None = Field(None, examples=[1000], ge=1, description="number of different tokens")
    clients: int | None = Field(
        None, examples=[100], ge=1, description="only so many of the training clients, the first; all if not given"
    )
    model: str | None = Field(
        None,
        examples=["mlp"],
        description="a name (mlp, word-lstm, …) or path.py:function; as fits the data if not given",
    )
    model_settings: dict[str, float] = Field(
        default_factory=dict, description="the model's own: --set model_settings.hidden=64"
    )
    rounds: int = Field(40, ge=0, description="number of rounds")
    cohort: str = Field(
        "poisson:0.5", description="poisson:Q, fixed:SIZE, with-replacement:SIZE or epoch:ROUNDS (once in so many)"
    )
    client: ClientSettings = Field(default_factory=ClientSettings, description="what a client does")
    server: ServerSettings = Field(default_factory=ServerSettings, description="what the server does")
    clip_norm: str = Field("1.0", description="clip norm; or none, or adaptive:START (follows the median norm)")
    noise_multiplier: float = Field(2.0, ge=0, description="noise multiplier: noise on the sum over the clip norm")
    weights: str = Field("equal", description="how clients are weighed: equal, size, or size:CAP, which noise needs")
    evaluate_every: int | None = Field(
        None, examples=[10], ge=1, description="rounds between evaluations; the last only if not given"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="of everything random")
    workers: int = Field(1, ge=1, description="processes")

    @field_validator("clip_norm", "cohort", "weights")
    @classmethod
    def _readable(cls, value: str, info: ValidationInfo) -> str:
        """Refuse here, where its line is known, what could not be read later."""
        {"clip_norm": _clipping, "cohort": _cohorts, "weights": _weighting}[str(info.field_name)](value)
        return value

    def splits(self, *, pool_fraction: float = 0.0) -> Splits:
        """Training and test clients, and with ``pool_fraction`` that share of the users set aside."""
        from coalmine.simulation.data import load

        found = load(
            self.data,
            partition=self.partition,
            seed=self.seed,
            test_fraction=self.test_fraction,
            pool_fraction=pool_fraction,
            min_examples=self.min_examples,
            level=self.level,
            positions=self.positions,
            vocabulary_size=self.vocabulary_size,
        )
        if self.clients is None:
            return found
        if not 1 <= self.clients <= len(found.train):
            raise InputError(f"clients must be between 1 and {len(found.train)}, got {self.clients}")
        return replace(found, train=found.train.subset(range(self.clients)))

    def module(self, splits: Splits) -> nn.Module:
        """The model at its start."""
        from coalmine.simulation import models

        task = splits.train.task
        return build_model(self.model or models.default_model(task), task, self.model_settings, seed=self.seed)

    def mechanism(self) -> Mechanism:
        """Clipping, weights and noise."""
        from coalmine.simulation import Mechanism

        if self.clip_norm == "none" and self.noise_multiplier > 0:
            raise InputError("noise is measured by the clip norm: set clip_norm to a number, or noise_multiplier to 0")
        return Mechanism(
            clipping=_clipping(self.clip_norm),
            noise_multiplier=self.noise_multiplier,
            weighting=_weighting(self.weights),
        )

    def cohorts(self) -> Cohorts:
        """Who comes."""
        return _cohorts(self.cohort)

    def training(self, splits: Splits, module: nn.Module, audits: Sequence[Audit] = ()) -> Training:
        """The training, ready to run."""
        from coalmine.simulation import Training

        return Training(
            model=module,
            data=splits.train,
            test=splits.test,
            rounds=self.rounds,
            cohorts=self.cohorts(),
            client=self.client.local(),
            mechanism=self.mechanism(),
            server=self.server.rule(),
            evaluate_every=self.evaluate_every,
            audits=audits,
            seed=self.seed,
            workers=self.workers,
        )


def build_model(name: str, task: Task, settings: Mapping[str, float], *, seed: int = 0) -> nn.Module:
    """The model ``name`` with settings as they are read, all of them numbers; whole ones become integers."""
    from coalmine.simulation import models

    numbers: dict[str, Any] = {key: int(value) if value == int(value) else value for key, value in settings.items()}
    return models.build(name, task, seed=seed, **numbers)


def _clipping(text: str) -> Clipping:
    from coalmine.simulation import AdaptiveClipping, FixedClipping, NoClipping

    kind, _, start = text.partition(":")
    try:
        if text == "none":
            return NoClipping()
        if kind == "adaptive":
            return AdaptiveClipping(initial=float(start))
        return FixedClipping(float(text))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"clip_norm must be a norm such as 1.0, adaptive:START or none, got {text!r}") from error


def _weighting(text: str) -> Weighting:
    from coalmine.simulation import EqualWeights, WeightsBySize

    kind, _, cap = text.partition(":")
    try:
        if text == "equal":
            return EqualWeights()
        if kind == "size":
            return WeightsBySize(int(cap) if cap else None)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"weights must be equal, size or size:CAP, got {text!r}")


def _cohorts(text: str) -> Cohorts:
    from coalmine.simulation import FixedSizeCohorts, PoissonCohorts, ShuffledCohorts, WithReplacementCohorts

    kinds: dict[str, Callable[[str], Cohorts]] = {
        "poisson": lambda rest: PoissonCohorts(float(rest)),
        "fixed": lambda rest: FixedSizeCohorts(int(rest)),
        "with-replacement": lambda rest: WithReplacementCohorts(int(rest)),
        "epoch": lambda rest: ShuffledCohorts(int(rest)),
    }
    kind, _, rest = text.partition(":")
    try:
        return kinds[kind](rest)
    except (KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        accepted = "poisson:Q, fixed:SIZE, with-replacement:SIZE or epoch:ROUNDS"
        raise InputError(f"cohort must be {accepted}, got {text!r}") from error
